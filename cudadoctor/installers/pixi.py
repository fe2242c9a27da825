"""pixi, whose environments belong to a project file; and pixi.toml.

What the project file says of the driver goes first: pixi solves for a machine without one.
"""

from collections.abc import Iterator

from packaging.version import Version

from cudadoctor.installers import conda
from cudadoctor.installers.index import TAGGED, is_foreign
from cudadoctor.installers.requirement import (
    CONDA,
    entry,
    listed,
    name_of,
    pin_of,
    quoted,
    sound,
)
from cudadoctor.installers.stack import Stack, heading, stack_for
from cudadoctor.installers.tool import (
    Hashes,
    Recipe,
    Tool,
    Wanted,
    Written,
    interpreter,
    manager,
    parent,
    within,
)
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import Edit, PackageChange
from cudadoctor.model.machine import Machine, OptStr, Strings
from cudadoctor.solver.demand import capabilities_of, platform_of

_AS_BEFORE = "The project already gets torch from PyPI, so this build comes from PyPI too."
_BY_WHEELS = (
    "conda-forge may not have a build of torch {torch} for this GPU, so pixi installs PyTorch's "
    "own wheels."
)


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the pixi project that the examined environment belongs to."""
    pixi = manager(m, "pixi") or "pixi"
    project = project_of(m)
    where = ("--manifest-path", project) if project else ()
    by_wheels = project is not None and not conda.owns(m)
    if by_wheels and change.index is None:
        return _from_pypi(pixi, where, change)
    specs = conda.Order(m, kb, change).specs()
    gone = tuple(map(conda.conda_name, sound(change.remove)))
    if not specs:
        return Written(tool="pixi", commands=((pixi, "remove", *where, *gone),) if gone else ())
    note = _AS_BEFORE if by_wheels else _by_wheels(m, kb, change)
    lines = [] if change.cuda is None else ["[system-requirements]"]
    lines += [] if change.cuda is None else [f'cuda = "{change.cuda.partition(".")[0]}"']
    if note:
        lines += ["", *_wheels_of(change)] if lines else _wheels_of(change)
    file = parent(m, project, "pixi.toml") if project else "pixi.toml"
    new = "" if project else " in the project folder (`pixi init` creates a project)"
    return Written(
        tool="pixi",
        commands=((pixi, "install", *where),) if note else ((pixi, "add", *where, *specs),),
        edits=(Edit(file=file, what="\n".join(lines)),) if lines else (),
        manual=f"Edit pixi.toml as shown, then run the command{new}." if lines else None,
        note=note,
        wheels=note is not None,
    )


def _from_pypi(pixi: str, where: Strings, change: PackageChange) -> Written:
    """The wheels of a project whose torch is one: what pip puts there, pixi takes out again."""
    wanted, gone = sound((*change.install, *change.then)), sound(change.remove)
    names = set(map(name_of, wanted))
    removed = tuple(name for name in gone if name not in names)
    commands = [(pixi, "remove", *where, "--pypi", *removed)] if removed and not wanted else []
    commands += [(pixi, "add", *where, "--pypi", *wanted)] if wanted else []
    return Written(tool="pixi", commands=tuple(commands))


def _by_wheels(m: Machine, kb: Knowledge, change: PackageChange) -> OptStr:
    """Why wheels are taken, None if conda-forge is known to have this torch for these GPUs."""
    if is_foreign(change.index):
        return "No conda channel has builds for this board, so pixi installs wheels made for it."
    release, platform = pin_of(sound(change.install)), platform_of(m)
    if not release or platform is None or change.variant is None:
        return None
    build = kb.build_of(Version(release), change.variant, platform)
    if build is None:
        return None
    stack = Stack(builds=(build,), capabilities=capabilities_of(m, kb))
    known = conda.forge_specs(stack, kb) is not None
    return None if known else _BY_WHEELS.format(torch=release)


def _wheels_of(change: PackageChange) -> list[str]:
    """torch and what belongs to it from PyPI, led to torch's index if that alone has them."""
    comment = "# in place of pytorch, pytorch-gpu and torchvision under [dependencies]"
    led = (f"index = {quoted(change.index)}",) if change.index is not None else ()
    return [
        "[pypi-dependencies]",
        comment,
        *(
            entry(requirement, *(led if name_of(requirement) in TAGGED else ()))
            for requirement in sound((*change.install, *change.then))
        ),
    ]


def project_of(m: Machine) -> OptStr:
    """The folder of the project: what lies before .pixi/envs in the environment's path."""
    project, mark, _ = (m.python.prefix or "").replace("\\", "/").partition("/.pixi/envs/")
    return project if mark and not project.startswith(("~", "<")) else None


def text(stack: Stack, kb: Knowledge, _: Hashes | None = None) -> str:
    """pixi.toml: from conda-forge if it is known to have the stack, else torch's own wheels."""
    found = conda.forge_specs(stack, kb)
    notes, made = ["Make it with: pixi install"], stack
    if found is None:
        notes.append(conda.not_there(stack, "pixi installs"))
        packages = [*_wheels(stack)]
    else:
        made = conda.as_made(stack, kb)
        wanted = found | dict.fromkeys(dict(stack.companions), "*")
        packages = [f"{name} = {quoted(limit)}" for name, limit in wanted.items()]
        packages += map(entry, map(conda.conda_spec, stack.then))
    python, version = conda.conda_python(stack.one_python).split("=")
    platforms = listed(CONDA[platform] for platform in stack.platforms)
    lines = [*heading(made, kb, *notes), "", "[workspace]", f"name = {quoted(made.name)}"]
    lines += ['channels = ["conda-forge"]', f"platforms = {platforms}", *_system(made)]
    lines += ["", "[dependencies]", f"{python} = {quoted(version)}", *packages]
    return "\n".join(lines) + "\n"


def _system(stack: Stack) -> Iterator[str]:
    """The driver and C library that pixi takes for granted when it solves."""
    cuda, glibc = stack.lead.cuda, [build.glibc for build in stack.builds if build.glibc]
    if cuda is not None or glibc:
        yield from ("", "[system-requirements]")
    if cuda is not None:
        yield f'cuda = "{cuda.major}"'
    if glibc:
        yield f'libc = {{ family = "glibc", version = "{max(glibc)}" }}'


def _wheels(stack: Stack) -> Iterator[str]:
    tagged = stack.tagged
    index = (f"index = {quoted(stack.index or '')}",)
    alike = not tagged or tagged == list(stack.platforms)
    if alike or stack.then:
        yield from ("", "[pypi-dependencies]")
    if alike:
        yield from (entry(pin, *(index if tagged else ())) for pin in stack.pins)
    yield from map(entry, stack.then)
    for platform in () if alike else stack.platforms:
        yield from ("", f"[target.{CONDA[platform]}.pypi-dependencies]")
        yield from (entry(pin, *(index if platform in tagged else ())) for pin in stack.pins)


def new(wanted: Wanted) -> Recipe:
    """A project, and its environment that `pixi install` makes."""
    m, manifest = wanted.machine, parent(wanted.machine, wanted.folder, "pixi.toml")
    stack = stack_for("pixi", m, wanted.kb, wanted.build, python=wanted.python)
    return Recipe(
        wanted=wanted,
        python=_python(m, wanted.folder),
        commands=((wanted.program, "install", "--manifest-path", manifest),),
        files={"pixi.toml": text(stack, wanted.kb, None)},
        use={"pixi": ("pixi", "shell", "--manifest-path", manifest)},
        scripts=False,
    )


def _python(m: Machine, *folder: str) -> str:
    """The interpreter of the project in that folder."""
    return within(m, parent(m, *folder, ".pixi", "envs", "default"), conda=True)


def _changed(m: Machine) -> str:
    python = interpreter(m)
    return python if "/.pixi/envs/" in python else _python(m)


TOOL = Tool(
    name="pixi",
    programs=("pixi",),
    fits=lambda m: (
        (m.python.kind or "").startswith("conda")
        and project_of(m) is not None
        and manager(m, "pixi") is not None
    ),
    write=write,
    kind="pixi",
    file="pixi.toml",
    text=text,
    new=new,
    makes="a pixi project (environment in .pixi)",
    found=(".pixi/bin/pixi",),
    brings_python=True,
    changed=_changed,
)

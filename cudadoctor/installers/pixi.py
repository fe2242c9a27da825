"""pixi, whose environments belong to a project file.

What the project file says of the driver goes first: pixi solves for a machine without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.installers.address import manager, parent
from cudadoctor.installers.conda import conda_name, specs_of
from cudadoctor.installers.index import TAGGED, is_foreign
from cudadoctor.installers.pip import name_of, sound
from cudadoctor.installers.written import Command, Written
from cudadoctor.model.findings import Edit
from cudadoctor.solver.builds import capabilities_of, platform_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_BY_WHEELS = (
    "It is not known that conda-forge has torch {torch} for this GPU, so torch's own wheels are "
    "taken."
)
_FIRST = "First change pixi.toml, then run the command{where}."
_NO_PROJECT = " in the project's folder (`pixi init` makes a new one)"


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the pixi project that the examined environment belongs to."""
    pixi = manager(m, "pixi") or "pixi"
    project = project_of(m)
    where: Command = ("--manifest-path", project) if project else ()
    specs = specs_of(m, kb, change)
    gone = tuple(conda_name(name) for name in sound(change.remove))
    if not specs:
        commands = ((pixi, "remove", *where, *gone),) if gone else ()
        return Written(tool="pixi", commands=commands)
    note = by_wheels(m, kb, change)
    lines = [*_system(change), *_wheels(change)] if note else _system(change)
    file = parent(m, project, "pixi.toml") if project else "pixi.toml"
    manual = _FIRST.format(where="" if project else _NO_PROJECT)
    return Written(
        tool="pixi",
        commands=((pixi, "install", *where),) if note else ((pixi, "add", *where, *specs),),
        edits=(Edit(file=file, what="\n".join(lines).strip("\n")),) if lines else (),
        manual=manual if lines else None,
        note=note,
        wheels=note is not None,
    )


def by_wheels(m: Machine, kb: Knowledge, change: PackageChange) -> str | None:
    """Why wheels are taken, None where conda-forge is known to have this torch for these GPUs."""
    from cudadoctor.installers.files import forge
    from cudadoctor.installers.files.stack import Stack

    if is_foreign(change.index):
        return "No conda channel has such builds, so wheels are taken from the index made for them."
    pins = {name_of(one): one.partition("==")[2] for one in sound(change.install)}
    release, platform = pins.get("torch"), platform_of(m)
    if not release or platform is None or change.variant is None:
        return None
    build = kb.build_of(Version(release), change.variant, platform)
    if build is None:
        return None
    stack = Stack(builds=(build,), capabilities=capabilities_of(m, kb))
    return _BY_WHEELS.format(torch=release) if forge.specs(stack, kb) is None else None


def _system(change: PackageChange) -> list[str]:
    if change.cuda is None:
        return []
    return ["[system-requirements]", f'cuda = "{change.cuda.partition(".")[0]}"']


def _wheels(change: PackageChange) -> list[str]:
    """torch and what belongs to it from PyPI, led to torch's index where that alone has them."""
    from cudadoctor.installers.files.pyproject import quoted

    comment = "# in place of pytorch, pytorch-gpu and torchvision under [dependencies]"
    lines = ["", "[pypi-dependencies]", comment]
    for one in sound((*change.install, *change.then)):
        name = name_of(one)
        pin = quoted(one[len(name) :] or "*")
        led = change.index is not None and name in TAGGED
        source = f"{{ version = {pin}, index = {quoted(change.index or '')} }}" if led else pin
        lines.append(f"{quoted(name) if '.' in name else name} = {source}")
    return lines


def project_of(m: Machine) -> str | None:
    """The folder of the project: what lies before .pixi/envs in the environment's path."""
    prefix = (m.python.prefix or "").replace("\\", "/")
    project, mark, _ = prefix.partition("/.pixi/envs/")
    return project if mark and not project.startswith(("~", "<")) else None

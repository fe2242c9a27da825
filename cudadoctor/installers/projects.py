"""pyproject.toml: uv, pdm and poetry projects, whose environment is written from a lock.

What `pip install` or `uv pip install` puts there, the next sync takes out again: so the project's
own file is changed, and its tool brings the environment after it. Only torch and its companions are
led to torch's index; all else keeps to the project's own.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.requirement import (
    CONDA,
    entry,
    listed,
    marker,
    marker_of,
    name_of,
    pin_of,
    quoted,
    sound,
    split_compiled,
)
from cudadoctor.installers.stack import Stack, heading
from cudadoctor.installers.tool import Command, Hashes, Written, manager, parent
from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.model.findings import Edit, PackageChange
from cudadoctor.model.machine import Machine, OptStr, Strings, StrPair

_FOLDER = {"uv": "--project", "pdm": "-p", "poetry": "-C"}
_TOOLS = tuple(_FOLDER)


# --- a project that is there -------------------------------------------------------------------


def owner_of(m: Machine) -> OptStr:
    """The tool that owns the examined environment: uv, pdm or poetry; None if none does.

    A report names the tool and hardly ever the project's folder.
    """
    if m.python.kind == "poetry":
        return "poetry"
    project, tool = m.python.project, m.python.project_tool
    owned = m.look == "report" or (project and (m.python.prefix or "").startswith(project))
    return tool if owned and tool in _TOOLS else None


def write(m: Machine, kb: Knowledge, change: PackageChange, tool: str) -> Written | None:
    """The change in the project; None if it only removes, or needs a page of wheels.

    No project file says the first, and Poetry's cannot say the second.
    """
    wanted = sound((*change.install, *change.then))
    if not wanted or change.find_links:
        return None
    folder = m.python.project if m.python.project_tool == tool else None
    if folder and folder.startswith(("~", "<")):
        folder = None  # redacted: it exists nowhere
    elsewhere = "torch" in map(name_of, wanted) and change.index is None
    if not elsewhere and change.index is None and not split_compiled(wanted)[1]:
        # The tool's own command writes the project file and the lock, and brings the environment.
        return Written(tool=tool, commands=(_add(m, tool, folder, wanted),))
    marker = _marker(m, kb, change)
    named = (*(m.python.index.extra if m.python.index else ()), *_leading(m, tool))
    if elsewhere and change.variant and any(TORCH_INDEX in url for url in named):
        # An index that the project names would be asked for torch again: this one is for torch.
        change, marker = replace(change, index=f"{TORCH_INDEX}/{change.variant}"), None
    lines = _poetry if tool == "poetry" else _pdm if tool == "pdm" else _uv
    file = parent(m, folder, "pyproject.toml") if folder else "pyproject.toml"
    other = _NO_OTHER_INDEX if change.index is None and elsewhere else None
    other = _IN_PLACE if _leading(m, tool) else other
    return Written(
        tool=tool,
        commands=(_command(m, tool, folder, wanted),),
        edits=(Edit(file=file, what="\n".join(lines(change, wanted, marker))),),
        manual=None
        if folder
        else "Edit pyproject.toml as shown, then run the command in the project folder.",
        note=other,
    )


_NO_OTHER_INDEX = (
    "If the file already has lines that specify another index or source for torch, delete them."
)
_IN_PLACE = "These lines replace the ones that name another index or source for these packages."


def _leading(m: Machine, tool: str) -> Strings:
    """Torch's indexes that a report's project file names."""
    urls = (url for asked in m.installs or () if asked.tool == tool for url in asked.indexes)
    return tuple(url for url in urls if TORCH_INDEX in url)


def _add(m: Machine, tool: str, folder: OptStr, wanted: Strings) -> Command:
    program = manager(m, tool) or tool
    where = (_FOLDER[tool], folder) if folder else ()
    return (
        (program, *where, "add", *wanted) if tool == "poetry" else (program, "add", *where, *wanted)
    )


def sync_warning(m: Machine) -> OptStr:
    """That pip's change will not last here, None if it will."""
    tool = owner_of(m)
    undone = f"a {tool} project: the next `{tool} sync` will undo this change."
    return tool and f"This environment belongs to {undone}"


def _command(m: Machine, tool: str, folder: OptStr, wanted: Strings) -> Command:
    program, names = manager(m, tool) or tool, map(name_of, wanted)
    where = (_FOLDER[tool], folder) if folder else ()
    if tool == "uv":
        return (program, "sync", *where)
    if tool == "pdm":
        return (program, "update", *where, *names)
    return (program, *where, "update", *names)


def _uv(change: PackageChange, wanted: Strings, marker: OptStr) -> Iterator[str]:
    yield from _dependencies(wanted)
    if compiled := split_compiled(wanted)[1]:
        yield from ("", "[tool.uv]")
        yield f"no-build-isolation-package = {listed(map(name_of, compiled))}"
    if change.index is not None:
        yield from _sources(_led(change), _index_name(change.variant), change.index, marker)


def _pdm(change: PackageChange, wanted: Strings, _: OptStr) -> Iterator[str]:
    yield from _dependencies(wanted)
    if change.index is not None:
        yield from ("", "[[tool.pdm.source]]", *_index(change))
        yield f"include_packages = {listed(_led(change))}"


def _poetry(change: PackageChange, wanted: Strings, marker: OptStr) -> Iterator[str]:
    yield "[tool.poetry.dependencies]"
    led = _led(change) if change.index else []
    markers = (f"markers = {quoted(marker)}",) if marker else ()
    keys = (f"source = {quoted(_index_name(change.variant))}", *markers)
    yield from (
        entry(requirement, *(keys if name_of(requirement) in led else ())) for requirement in wanted
    )
    if change.index is not None:
        yield from ("", "[[tool.poetry.source]]", *_index(change), 'priority = "explicit"')


def _dependencies(wanted: Strings) -> Iterator[str]:
    yield from (
        "[project]",
        "dependencies = [",
        "    # replaces the current lines for these packages",
    )
    yield from (f"    {quoted(requirement)}," for requirement in wanted)
    yield "]"


def _led(change: PackageChange) -> list[str]:
    """What comes from the change's own index."""
    return list(map(name_of, sound(change.install)))


def _index_name(variant: OptStr) -> str:
    return f"pytorch-{variant}" if variant else "pytorch"


def _index(change: PackageChange) -> StrPair:
    return f"name = {quoted(_index_name(change.variant))}", f"url = {quoted(change.index or '')}"


def _marker(m: Machine, kb: Knowledge, change: PackageChange) -> OptStr:
    """The platforms that torch's index serves; the project's others keep to the default index.

    None if the tables do not have the build: nothing is said of platforms then.
    """
    release = pin_of(change.install) or (m.torch.version.public if m.torch.version else None)
    if release is None or change.variant is None:
        return None
    rows = (kb.build_of(Version(release), change.variant, platform) for platform in CONDA)
    led = [build.platform for build in rows if build and build.published and not build.default]
    if not led:
        return None
    # Windows on ARM has its wheels from the default index, and hardly any project is for it.
    return marker_of(
        led, [platform for platform in CONDA if platform in led or platform != "windows_arm64"]
    )


def _sources(names: Iterable[str], index: str, url: str, markers: OptStr) -> Iterator[str]:
    """The tables of uv that lead these packages to an index, nothing else. markers: where to.

    A line for each platform, so that none is too long to be copied from a terminal.
    """
    yield from ("", "[tool.uv.sources]")
    for name in names:
        if markers is None:
            yield f"{name} = [{{ index = {quoted(index)} }}]"
            continue
        yield f"{name} = ["
        for part in markers.split(" or "):
            marker = part.removeprefix("(").removesuffix(")")
            yield f"    {{ index = {quoted(index)}, marker = {quoted(marker)} }},"
        yield "]"
    yield from ("", "[[tool.uv.index]]", f"name = {quoted(index)}")
    yield from (f"url = {quoted(url)}", "explicit = true")


# --- a whole file ------------------------------------------------------------------------------


def text(stack: Stack, kb: Knowledge, _: Hashes | None = None) -> str:
    """pyproject.toml of a uv project."""
    python = stack.python or ""
    use = f"Make it with: uv sync{f' --python {python}' if python.endswith('t') else ''}"
    lines = [*heading(stack, kb, use), "", "[project]"]
    lines += [f"name = {quoted(stack.name)}", 'version = "0.1.0"']
    lines += [f"requires-python = {quoted(_requires_python(stack))}", "dependencies = ["]
    lines += [f"    {quoted(requirement)}," for requirement in (*stack.pins, *stack.then)]
    lines += ["]", "", "[tool.uv]", "package = false", "environments = ["]
    lines += [f"    {quoted(marker(platform))}," for platform in stack.platforms]
    lines.append("]")
    if stack.index is not None:
        led = (build.platform for build in stack.builds if not build.default)
        lines += _sources(
            map(name_of, stack.pins),
            _index_name(stack.lead.variant),
            stack.index,
            marker_of(led, stack.platforms),
        )
    return "\n".join(lines) + "\n"


def _requires_python(stack: Stack) -> str:
    """The Pythons of the project: the fixed one, else all that the builds are made for."""
    if stack.python:
        return f"=={stack.python.removesuffix('t')}.*"
    if not (made := stack.pythons):
        return ">=3.10"
    major, minor = made[-1].split(".")
    return f">={made[0]},<{major}.{int(minor) + 1}"

"""uv, pdm and poetry projects, whose environment is written from a lock.

What `pip install` or `uv pip install` puts there, the next sync takes out again: so the project's
own file is changed, and its tool brings the environment after it. Only torch and its companions are
led to torch's index; all else keeps to the project's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.installers.address import manager, parent
from cudadoctor.installers.files.markers import CONDA, marker_of
from cudadoctor.installers.files.pyproject import led_to, quoted
from cudadoctor.installers.index import TAGGED
from cudadoctor.installers.pip import name_of, sound, split_compiled
from cudadoctor.installers.written import Command, Written, joined
from cudadoctor.model.findings import Edit

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_SYNC = {"uv": "uv sync", "pdm": "pdm sync", "poetry": "poetry sync"}


def tool_of(m: Machine) -> str | None:
    """The tool that owns the examined environment: uv, pdm or poetry; None where none does."""
    if m.python.kind == "poetry":
        return "poetry"
    project, tool = m.python.project, m.python.project_tool
    owned = bool(project) and (m.python.prefix or "").startswith(project or "")
    return tool if owned and tool in _SYNC else None


def write(m: Machine, kb: Knowledge, change: PackageChange, tool: str) -> Written | None:
    """The change in the project; None where it only removes, which no project file says."""
    wanted = sound((*change.install, *change.then))
    if not wanted:
        return None
    folder = m.python.project if m.python.project_tool == tool else None
    if folder and folder.startswith(("~", "<")):
        folder = None  # redacted: it exists nowhere
    lines = {"uv": _uv, "pdm": _pdm, "poetry": _poetry}[tool](
        change, wanted, _marker(m, kb, change)
    )
    file = parent(m, folder, "pyproject.toml") if folder else "pyproject.toml"
    at_once = "First change the file, then run the command"
    return Written(
        tool=tool,
        commands=(_command(m, tool, folder, wanted),),
        edits=(Edit(file=file, what="\n".join(lines)),),
        manual=f"{at_once}." if folder else f"{at_once} in the project's folder.",
        note=joined(_why(tool), _other_index(change, wanted)),
    )


def in_vain(m: Machine) -> str | None:
    """That pip's change will not last here, None where it will."""
    tool = tool_of(m)
    if tool is None:
        return None
    return (
        f"This environment belongs to a {tool} project: the next `{_SYNC[tool]}` undoes the change."
    )


def _why(tool: str) -> str:
    return (
        f"The environment belongs to a {tool} project, whose next `{_SYNC[tool]}` would undo what "
        "pip does there."
    )


def _other_index(change: PackageChange, wanted: tuple[str, ...]) -> str | None:
    if change.index is not None or "torch" not in map(name_of, wanted):
        return None
    return "What leads torch to another index in that file has to go."


def _command(m: Machine, tool: str, folder: str | None, wanted: tuple[str, ...]) -> Command:
    program = manager(m, tool) or tool
    names = tuple(name_of(one) for one in wanted)
    if tool == "uv":
        return (program, "sync", *(("--project", folder) if folder else ()))
    if tool == "pdm":
        return (program, "update", *(("-p", folder) if folder else ()), *names)
    return (program, *(("-C", folder) if folder else ()), "update", *names)


def _uv(change: PackageChange, wanted: tuple[str, ...], marker: str | None) -> list[str]:
    lines = _dependencies(wanted)
    if compiled := split_compiled(wanted)[1]:
        names = ", ".join(quoted(name_of(one)) for one in compiled)
        lines += ["", "[tool.uv]", f"no-build-isolation-package = [{names}]"]
    if change.index is None:
        return lines
    name = quoted(_name(change))
    lines += ["", "[tool.uv.sources]"]
    lines += [line for one in _led(change) for line in led_to(one, _name(change), marker)]
    lines += ["", "[[tool.uv.index]]", f"name = {name}", f"url = {quoted(change.index)}"]
    return [*lines, "explicit = true"]


def _pdm(change: PackageChange, wanted: tuple[str, ...], _: str | None) -> list[str]:
    lines = _dependencies(wanted)
    if change.index is None:
        return lines
    led = ", ".join(map(quoted, _led(change)))
    lines += ["", "[[tool.pdm.source]]", f"name = {quoted(_name(change))}"]
    return [*lines, f"url = {quoted(change.index)}", f"include_packages = [{led}]"]


def _poetry(change: PackageChange, wanted: tuple[str, ...], marker: str | None) -> list[str]:
    lines = ["[tool.poetry.dependencies]"]
    led = _led(change) if change.index else []
    name = quoted(_name(change))
    more = f", markers = {quoted(marker)}" if marker and change.index else ""
    for one in wanted:
        key, version = name_of(one), quoted(one[len(name_of(one)) :] or "*")
        source = f"{{ version = {version}, source = {name}{more} }}" if key in led else version
        lines.append(f"{quoted(key) if '.' in key else key} = {source}")
    if change.index is None:
        return lines
    lines += ["", "[[tool.poetry.source]]", f"name = {name}", f"url = {quoted(change.index)}"]
    return [*lines, 'priority = "explicit"']


def _dependencies(wanted: tuple[str, ...]) -> list[str]:
    pins = [f"    {quoted(one)}," for one in wanted]
    comment = "    # in place of what stands there of these"
    return ["[project]", "dependencies = [", comment, *pins, "]"]


def _led(change: PackageChange) -> list[str]:
    """What comes from the change's own index: torch's family, or whatever that index is for."""
    names = [name_of(one) for one in sound(change.install)]
    return [one for one in names if one in TAGGED] or names


def _name(change: PackageChange) -> str:
    return f"pytorch-{change.variant}" if change.variant else "pytorch"


def _marker(m: Machine, kb: Knowledge, change: PackageChange) -> str | None:
    """The platforms that torch's index serves; the project's others keep to the default index.

    None where the tables do not have the build: nothing is said of platforms then.
    """
    pins = (one.partition("==")[2] for one in change.install if one.startswith("torch=="))
    text = next(pins, None) or (m.torch.version.public if m.torch.version else None)
    if text is None or change.variant is None:
        return None
    rows = (kb.build_of(Version(text), change.variant, one) for one in CONDA)
    led = [one.platform for one in rows if one and one.published and not one.default]
    if not led:
        return None
    # Windows on ARM has its wheels from the default index, and hardly any project is for it.
    return marker_of(led, [one for one in CONDA if one in led or one != "windows_arm64"])

"""All install tools, and the one that a change is written for.

A further tool is a module with a `TOOL` of its own, and a row here.
"""

from msgspec.structs import replace

from cudadoctor.installers import conda, docker, environment, pip, pixi, projects, uv
from cudadoctor.installers.requirement import name_of
from cudadoctor.installers.stack import comments, stack_for
from cudadoctor.installers.tool import Hashes, Tool, Written, joined
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine, OptStr, Strings

TOOLS: tuple[Tool, ...] = (pixi.TOOL, conda.TOOL, uv.TOOL, pip.TOOL, docker.TOOL)
"""The first one that fits the examined environment is taken."""
BY_NAME = {tool.name: tool for tool in TOOLS}
BY_KIND = {tool.kind: tool for tool in TOOLS}
"""What `fix --as` writes."""


def tool_for(m: Machine, tool_name: OptStr = None) -> Tool:
    """The tool that was asked for, else the one that fits the examined environment."""
    return BY_NAME[tool_name] if tool_name else next(tool for tool in TOOLS if tool.fits(m))


def write(m: Machine, kb: Knowledge, change: PackageChange, tool_name: OptStr = None) -> Written:
    """The commands of a change for the tool that was asked for, else for the one that fits."""
    tool = tool_for(m, tool_name)
    # Only pip and uv read a page of wheels; what lies there is for the torch that is installed.
    by_page = change.find_links and "torch" not in map(name_of, change.install)
    if by_page and tool.name in ("conda", "pixi"):
        tool = BY_NAME["pip"]
    if tool.name not in ("pip", "uv"):
        return tool.write(m, kb, change)
    if environment.is_apart(m):
        return environment.beside(m, change)
    owner = projects.owner_of(m)
    if owner and tool_name in (None, owner) and (found := projects.write(m, kb, change, owner)):
        return found
    # In the environment itself: a project that owns it will not keep the change.
    made = tool.write(m, kb, change)
    return replace(made, note=joined(made.note, projects.sync_warning(m)))


def project_file(
    kind: str,
    m: Machine,
    kb: Knowledge,
    build: TorchBuild,
    *,
    python: OptStr,
    hashes: Hashes | None = None,
) -> str:
    """The whole file that gives this machine that build.

    python: "3.11", the one to fix; None leaves it to what the build is made for. hashes: (name,
    version) -> SHA-256 digests of every file that was resolved; with them a requirements file pins
    all of it.
    """
    return BY_KIND[kind].text(stack_for(kind, m, kb, build, python=python), kb, hashes)


def why_not(kind: str, m: Machine, kb: Knowledge, build: TorchBuild) -> OptStr:
    """Why there can be no file of that kind for that build, None if there can."""
    if BY_KIND[kind] is not docker.TOOL:
        return None
    return docker.why_not(stack_for(kind, m, kb, build, python=None).lead, kb)


def refusal(reasons: Strings) -> str:
    """Why there is no file, as comments of every kind of file."""
    return "\n".join(comments(*reasons)) + "\n"

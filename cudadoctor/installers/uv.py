"""uv: commands for environments that it made or that have no pip, and `uv pip compile`.

The latter is a resolver that answers from metadata and touches no environment.
"""

import re
import sys

from cudadoctor.installers import projects
from cudadoctor.installers.index import source_for, uv_options
from cudadoctor.installers.pip import installs, rehearsed
from cudadoctor.installers.question import (
    SWITCHED_OFF,
    UNREACHED,
    Answer,
    File,
    Question,
    Target,
    bare_url,
    is_source,
    named_host,
    without_index,
)
from cudadoctor.installers.requirement import sound
from cudadoctor.installers.stack import stack_for
from cudadoctor.installers.tool import (
    Command,
    Recipe,
    Tool,
    Wanted,
    Written,
    interpreter,
    is_of_uv,
    manager,
    parent,
    within,
)
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Json, Machine, OptInt
from cudadoctor.model.requirements import normal
from cudadoctor.model.trust import PLACEHOLDER


def write(m: Machine, _: Knowledge, change: PackageChange) -> Written:
    """The change in the examined environment: `uv pip ... --python <interpreter>`."""
    uv, python = manager(m, "uv") or "uv", interpreter(m)
    installed = install(m, change, uv, python)
    removed = sound(change.remove)
    uninstall = (uv, *in_project(m), "pip", "uninstall", *_of(m, python), *removed)
    asked = (rehearsed(installed.commands[0], "--reinstall"),) if change.ask else ()
    commands = (*asked, *((uninstall,) if removed else ()), *installed.commands)
    return Written(tool="uv", commands=commands, note=installed.note)


def install(m: Machine, change: PackageChange, uv: str, python: str) -> Written:
    """The installing half of the change, into any interpreter's environment."""
    source = source_for(m, change, "uv")
    start = (uv, *in_project(m), "pip", "install", *_of(m, python))
    commands = installs(start, change, source, uv_options(source), "--no-cache-dir")
    return Written(tool="uv", commands=commands, note=source.note)


def _of(m: Machine, python: str) -> Command:
    """Which environment is meant; a report's is the active one, or .venv of the folder."""
    return () if m.look == "report" and python == PLACEHOLDER else ("--python", python)


def in_project(m: Machine) -> Command:
    """The option for the project whose settings name the index: uv reads those of its folder."""
    origin = (m.python.index.origin if m.python.index else None) or ""
    found = re.fullmatch(r"([^~<].*)[/\\](?:uv|pyproject)\.toml", origin)
    if m.redacted or found is None:
        return ()
    inside = re.match(re.escape(found[1]) + r"[/\\]", m.python.prefix or "")
    return ("--directory", found[1]) if inside else ()


def argv(start: Command, target: Target, question: Question, *, own: str, here: bool) -> Command:
    """The words of the command, requirements on its standard input.

    own: an interpreter that uv may run if the target itself cannot be asked. () if uv has no
    words for that target.
    """
    words = [*start, "pip", "compile", "-", "--format", "pylock.toml", "--no-header", "-q"]
    words += ["--only-binary", ":all:", "--no-python-downloads", "--python"]
    if target.executable:
        words += [target.executable]
    elif target.uv is None or target.free_threaded:
        return ()
    else:
        words += [own, "--python-version", target.release, "--python-platform", target.uv]
    words += ["--default-index", question.index] if question.index else []
    words += [word for url in question.extra for word in ("--index", url)]
    words += ["--no-index"] if without_index("uv", question, here=here) else []
    words += ["--index-strategy", "unsafe-best-match"] if question.mixed else []
    return tuple(words)


def read(code: OptInt, stdout: str, stderr: str) -> Answer:
    """What uv said. A lock file can hold archives of source: none is built to look into it."""
    if code == 0:
        files = _files(stdout)
        if files is None:
            return Answer(kind="unfit", text="uv returned no lock file")
        built = [file.name for file in files if is_source(file.url)]
        return Answer(kind="source" if built else "resolved", text="".join(built[:1]), files=files)
    plain = " ".join(re.sub(r"(?m)[╰─▶│├×]+|^\s*(?:cause|error):", " ", stderr).split())
    if re.search(UNREACHED, plain):
        disabled = re.search(r"(?i)network (?:was|connectivity is) disabled", plain)
        off = "network access is disabled (UV_OFFLINE)" if disabled else ""
        return Answer(kind="unreached", host=named_host(plain), text=off)
    source = re.search(
        r"(?:Because |and |of )([\w.-]+)(?:==\S+)? ha(?:s|ve) no usable wheels", plain
    )
    if source and "building from source is disabled" in plain:
        return Answer(kind="source", text=normal(source[1]))
    if "not found in the provided package locations" in plain:
        return Answer(kind="unreached", text=SWITCHED_OFF)
    if found := re.search(r"Because (.+?),? we can conclude", plain):
        return Answer(kind="refused", text=found[1])
    if "No solution found" in plain:
        return Answer(kind="refused", text=plain.partition("dependencies:")[2] or plain)
    return Answer(kind="unfit", text=plain)


def _files(text: str) -> tuple[File, ...] | None:
    """The files of a lock file (PEP 751)."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tuple(map(_file, tomllib.loads(text).get("packages", [])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _file(row: Json) -> File:
    wheel = (row.get("wheels") or [row.get("sdist") or row.get("archive")])[0]
    return File(
        url=bare_url(wheel.get("url") or wheel.get("path") or ""),
        name=normal(row["name"]),
        version=str(row.get("version", "")),
        sha256=wheel.get("hashes", {}).get("sha256"),
        size_bytes=wheel.get("size"),
    )


def new(wanted: Wanted) -> Recipe:
    """A project, and its environment .venv that `uv sync` makes."""
    m, folder, python = wanted.machine, wanted.folder, wanted.python
    stack = stack_for("pyproject", m, wanted.kb, wanted.build, python=python)
    sync = (wanted.program, "sync", "--project", folder, "--python", wanted.base or python)
    return Recipe(
        wanted=wanted,
        python=within(m, parent(m, folder, ".venv")),
        commands=(sync,),
        files={"pyproject.toml": projects.text(stack, wanted.kb, None)},
        use={"uv": ("uv", "run", "--project", folder, "python")},
    )


TOOL = Tool(
    name="uv",
    programs=("uv",),
    fits=lambda m: is_of_uv(m) or (m.python.pip is False and manager(m, "uv") is not None),
    write=write,
    kind="pyproject",
    file="pyproject.toml",
    text=projects.text,
    new=new,
    makes="a uv project (environment in .venv)",
    found=(".local/bin/uv", ".cargo/bin/uv"),
)

"""The examined interpreter and what is installed in it, told by a script that runs there."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH118, PTH120
# ruff: noqa: PTH118
from os.path import abspath, basename, dirname, join
from typing import Any

from packaging.version import Version

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Host, existing, home_of
from cudadoctor.model.machine import (
    PROJECT_FILES,
    Gap,
    Manager,
    OptBool,
    OptStr,
    ProjectFile,
    StrPair,
)
from cudadoctor.model.requirements import EXTENSIONS, TORCH_FAMILY, cut
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.indexes import read_index
from cudadoctor.probes.installed import (
    InsideLook,
    PythonLine,
    note_torch,
    packages,
    parse,
)
from cudadoctor.probes.target import Chosen, interpreter_of, on_path_all, reported_version

NO_PYTHON = "is not a working Python"
_ERROR_WORDS = re.compile(r"(?i)error|not found|denied|cannot")
_JOURNAL_BYTES = 4 << 20
_NOT_ITS_FAULT = ("more than", "the recording", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM", "ENOENT")
"""Why nothing was heard of a program, though it may well be a Python: our own limits, mostly."""
_FACTS_INSIDE = ("python", "torch", "packages", "limits.env_free_bytes", "build.headers")
_COPIED_FIELDS = (
    *("free_threaded", "bits", "prefix", "base_prefix", "site_packages", "user_site"),
    *("abi", "ensurepip"),
)
"""Facts of the interpreter that are fields of its line."""
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy", "graalpy": "GraalPy"}


def read_target(host: Host, chosen: Chosen, timeout_s: float = 10.0) -> Looked:
    """The interpreter, its torch and its packages; nothing of it is imported."""
    notes = Looked()
    notes.fact("python.executable", chosen.executable, chosen.by)
    notes.fact("python.chosen_by", chosen.by)
    notes.fact("python.passed_over", chosen.passed_over or None, "the environment")
    ran = host.inside("look.py", timeout_s=timeout_s, python=chosen.executable)
    look = parse(ran.stdout)
    if look.python is None:
        _note_silence(notes, host, chosen.executable, ran)
        return notes
    _note_python(notes, look, look.python, chosen.executable)
    _note_surroundings(notes, host, look, look.python)
    if look.complete:
        note_torch(notes, host, look, look.python.prefix)
        notes.fact("packages", packages(look), f"metadata in {look.python.site_packages}")
    else:
        why = f"{chosen.executable} stopped early: {_how_it_ended(ran)}"
        notes.gap("torch", why)
        notes.gap("packages", why)
    return notes


def no_python(gaps: Iterable[Gap]) -> OptStr:
    """The sentence for the user where the examined program turned out to be no Python."""
    return next((gap.why for gap in gaps if gap.fact == "python" and NO_PYTHON in gap.why), None)


def _note_python(notes: Looked, look: InsideLook, python: PythonLine, chosen: str) -> None:
    source = python.executable or chosen
    notes.section(
        "python",
        source,
        executable=source,
        version=version_of(python.version),
        implementation=_IMPLEMENTATIONS.get(python.implementation, python.implementation),
        pip=look.pip,
        path=tuple(folder for folder, _ in look.path) or None,
        # PEP 668 speaks of the base installation only; a venv of it is free.
        externally_managed=python.externally_managed and python.prefix == python.base_prefix,
        **{field: getattr(python, field) for field in _COPIED_FIELDS},
    )
    notes.fact("python.nowhere", look.nowhere, "the working folder")
    notes.fact("python.shadows", look.shadows, "names in the working folder")
    notes.fact("build.headers", python.headers, source)
    place = python.site_packages
    why = f"the file system of {place} could not be queried"
    notes.fact("limits.env_free_bytes", python.env_free_bytes, place, why)


def _is_own(host: Host, prefix: str) -> OptBool:
    """Whether that environment is the one the doctor runs in; a replayed host says so itself."""
    if hasattr(host, "own_environment"):
        own: OptBool = host.own_environment
        return own
    if not prefix:
        return None
    if getattr(sys, "frozen", False):  # cudadoctor.pyz runs in the user's Python
        return False
    return prefix == sys.prefix or host.stat(prefix).real == host.stat(sys.prefix).real != ""


def _note_surroundings(notes: Looked, host: Host, look: InsideLook, python: PythonLine) -> None:
    prefix, kind = python.prefix, kind_of(host, python)
    notes.section("python", prefix, kind=kind, own=_is_own(host, prefix))
    notes.fact("python.managers", tuple(managers(host, look, python, kind)), "PATH")
    if (project := project_of(host, prefix, kind)) is None:
        notes.gap(
            "python.project", f"{prefix} does not record which project it belongs to", asked=False
        )
    else:
        notes.section("python", prefix, project=project[0], project_tool=project[1])
    files = tuple(project_files(host, dirname(prefix))) if kind in _BESIDE else ()
    notes.fact("python.files", files, dirname(prefix))
    index = read_index(host, prefix, uv_first=kind == "uv" or not look.pip)
    notes.fact("python.index", index, index.origin or "no setting of pip or uv")
    pip = pip_python(host, python.executable)
    why = "cannot determine which Python the pip on PATH uses"
    notes.fact("python.pip_python", pip, "pip on PATH", why, asked=False)
    # `python` on PATH, else `python3`.
    found = next(on_path_all(host, ("python", "python3")), "")
    found = found and same_environment(host, found, python.executable)
    notes.fact("python.path_python", found, "PATH")
    # Whether `fix` was cut off in this environment: its journal's last record tells.
    journal = f"{prefix}/.cudadoctor/journal.jsonl"
    answer = host.read(journal, limit=_JOURNAL_BYTES)
    if answer.known or answer.missing:
        notes.fact("python.repair", parse_journal(answer.text), journal)
    else:
        notes.gap("python.repair", f"{journal}: {answer.why}", asked=False)


def parse_journal(text: str) -> str:
    """Whether the last repair that a journal of `fix` tells of is "unfinished", else ""."""
    lines = text.rpartition("\n")[0].splitlines()
    last = extract(r'"what": "([a-z-]+)"', lines[-1]) if lines else None
    return "" if last in (None, "kept", "rolled-back", "undone", "forgotten") else "unfinished"


def _note_silence(notes: Looked, host: Host, executable: str, ran: Ran) -> None:
    """Note why the interpreter gave no answer: no Python, too old a Python, or a broken one."""
    end = _how_it_ended(ran)
    why = f"{executable} {NO_PYTHON}: {end}"
    # A flood, or a recording in which it was not asked, says nothing against it either.
    if ran.timed_out or ran.signal or (ran.why or "").startswith(_NOT_ITS_FAULT):
        why = f"{executable} did not respond: {end}"
    elif ran.code is not None and (version := version_of(reported_version(host, executable))):
        notes.fact("python.version", version, executable)
        why = f"{executable} does not start: {end}"
        if version < Version("3.4"):
            why = f"{executable} is Python {version}, which is too old to examine"
    for fact in _FACTS_INSIDE:
        notes.gap(fact, why)


def _how_it_ended(ran: Ran) -> str:
    """In a few words: not there, no answer in time, killed by a signal, or its last line."""
    if ran.missing:
        return "the file, or the interpreter named on its first line, does not exist"
    if ran.why:
        return ran.why
    if ran.signal:
        names = {int(number): number.name for number in signal.Signals}
        return f"killed by {names.get(ran.signal, f'signal {ran.signal}')}"
    lines = list(filter(None, map(str.strip, ran.stderr.splitlines())))
    line = next(filter(_ERROR_WORDS.search, lines), lines[0] if lines else "")
    if not line and ran.code == 0:
        return "it exited without any output"
    return f"exit status {ran.code}" + (f", {line[:200]}" if line else "")


# --- what kind of environment it is, and which programs can install into it ---------------------

_SYSTEM_PREFIXES = ("/usr", "/usr/local", "/", "/System", "/Library")


def kind_of(host: Host, python: PythonLine) -> str:
    """venv, uv, conda, conda-base, pipx, poetry, system, user or embedded."""
    if python.embedded:
        return "embedded"
    prefix = python.prefix.replace("\\", "/")
    if python.prefix != python.base_prefix:
        keys = [line.partition("=")[0].strip() for line in (python.pyvenv or "").splitlines()]
        if "/pipx/venvs/" in prefix:
            return "pipx"
        if "uv" in keys:
            return "uv"
        lock = join(dirname(python.prefix), "poetry.lock")
        poetry = "/pypoetry/virtualenvs/" in prefix or host.stat(lock).exists
        return "poetry" if poetry else "venv"
    if python.conda:
        return "conda-base" if python.conda_base else "conda"
    of_system = python.externally_managed or prefix in _SYSTEM_PREFIXES
    of_system = of_system or "/Program Files" in prefix
    return "system" if of_system and "/uv/python/" not in prefix else "user"


def is_pixi(python: PythonLine) -> bool:
    """Whether pixi owns the environment; conda itself must not touch it then."""
    return "/.pixi/envs/" in python.prefix.replace("\\", "/") + "/"


_IN_HOME = {
    "uv": (".local/bin/uv", ".cargo/bin/uv"),
    "pixi": (".pixi/bin/pixi",),
    "poetry": (".local/bin/poetry",),
    "pipx": (".local/bin/pipx",),
}
"""Where its own installer puts a program."""


def managers(host: Host, look: InsideLook, python: PythonLine, kind: str) -> Iterator[Manager]:
    """The programs that can install into this environment, found without running them."""
    if look.pip:
        version = next((dist.version for dist in look.dists if dist.name == "pip"), None)
        yield Manager(name="pip", path=python.executable, version=version or None)
    pixi, home = is_pixi(python), home_of(host)
    names: list[Any] = ["uv", *(["pixi"] if pixi else []), *({"poetry", "pipx"} & {kind})]
    for name in names:
        places = (join(home or "", *path.split("/")) for path in _IN_HOME[name])
        if path := host.which(name) or (existing(host, places) if home else None):
            yield Manager(name=name, path=path)
    if kind.startswith("conda") and not pixi:
        yield from _conda(host, python)


def _conda(host: Host, python: PythonLine) -> Iterator[Manager]:
    # An environment lies in <root>/envs/<name>; the root holds the program.
    root = dirname(dirname(python.prefix))
    own = (join(folder, "bin", "conda") for folder in (python.prefix, root))
    if conda := host.env.get("CONDA_EXE") or host.which("conda") or existing(host, own):
        yield Manager(name="conda", path=conda)
    if mamba := host.which("mamba"):
        yield Manager(name="mamba", path=mamba)
    micromamba = host.env.get("MAMBA_EXE") or host.which("micromamba") or ""
    if basename(micromamba).removesuffix(".exe") == "micromamba":  # noqa: PTH119
        yield Manager(name="micromamba", path=micromamba)


def pip_python(host: Host, executable: str) -> OptStr:
    """The interpreter of `pip` on PATH; "" where there is no pip, None where it does not tell."""
    script = host.which("pip") or host.which("pip3")
    if not script:
        return ""
    owner = interpreter_of(host, abspath(script))  # noqa: PTH100
    return owner and same_environment(host, owner, executable)


def same_environment(host: Host, python: str, executable: str) -> str:
    """`executable`, where both are names of one interpreter (python, python3.11), else `python`.

    Names in one folder belong together where they are one program; the link of a venv leads to
    the same program from another folder, and is another environment.
    """
    first, second = host.stat(python), host.stat(executable)
    if not first.exists or not second.exists or first.real != second.real:
        return python
    folders = {host.stat(dirname(path)).real for path in (python, executable)}
    return executable if len(folders) == 1 else python


# --- which project an environment belongs to: its tool writes the environment anew from a lock ----

_LOCKS = (("uv.lock", "uv"), ("pdm.lock", "pdm"), ("poetry.lock", "poetry"))
_TABLE = re.compile(r"(?m)^[ \t]*\[+[ \t]*tool\.(uv|pdm|poetry)\b")
_UNMANAGED = re.compile(r"(?m)^[ \t]*managed[ \t]*=[ \t]*false\b")
_PROJECT_BYTES = 1 << 18
NONE = ("", "")


def project_of(host: Host, prefix: str, kind: str) -> StrPair | None:
    """The project's folder and its tool (uv, pdm, poetry, pixi); ("", "") none, None not known.

    uv and pdm keep a project's environment in .venv beside pyproject.toml, poetry may too.
    """
    folder, mark, _ = prefix.replace("\\", "/").partition("/.pixi/envs/")
    if mark:
        return prefix[: len(folder)], "pixi"
    if "/pypoetry/virtualenvs/" in folder:
        return None  # its name holds a hash of the folder only
    folder, name = os.path.split(prefix)
    # Whether a project's tool would take that folder for its environment.
    own = name == ".venv" or host.env.get("UV_PROJECT_ENVIRONMENT") in (prefix, name)
    if kind not in ("venv", "uv", "poetry") or not own:
        return NONE
    path = join(folder, "pyproject.toml")
    if not (there := host.stat(path).exists):
        return NONE if there is False else None
    for lock, tool in _LOCKS:
        if host.stat(join(folder, lock)).exists:
            return folder, tool
    # The tool that has a table there, where nothing is locked yet.
    answer = host.read(path, limit=_PROJECT_BYTES)
    if not answer.known:
        return None
    found = _TABLE.search(answer.text)
    if found is None or (found[1] == "uv" and _UNMANAGED.search(answer.text)):
        return NONE
    return folder, found[1]


# --- what the project's own files require ---------------------------------------------------------

_BESIDE = ("venv", "uv", "poetry")
"""Kinds of environments that lie in the folder of their project."""
_REQUIRED = frozenset({*TORCH_FAMILY, *EXTENSIONS})
_LOCKED = re.compile(r'^name = "([\w.-]+)"\r?\nversion = "([\w.!+-]+)"', re.M)
_LOCK_BYTES = 1 << 22
_POETRY = re.compile(r"([\^~]?)=?\s*(\d+(?:\.\d+)*)")


def project_files(host: Host, folder: str) -> Iterator[ProjectFile]:
    """The files of a project that require torch or what belongs to it; they are read, never run."""
    for name in PROJECT_FILES:
        answer = host.read(join(folder, name), limit=_LOCK_BYTES)
        if not answer.known or "torch" not in answer.text:
            continue
        read = _READERS.get(name, _in_lock)
        # pip's options, as a hash on the next line, belong to no requirement.
        lines = (re.split(r"\s(?:#|--|\\)", line)[0].strip() for line in read(answer.text))
        asked = ((line, cut(line)) for line in lines)
        if requires := tuple(line for line, found in asked if found and found.name in _REQUIRED):
            yield ProjectFile(name=name, requires=requires)


def _in_pyproject(text: str) -> list[str]:
    """The dependencies of a project and of poetry's table, as pip writes them."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: Any = tomllib.loads(text)
        found = [str(line) for line in table.get("project", {}).get("dependencies", ())]
        poetry = table.get("tool", {}).get("poetry", {}).get("dependencies", {})
        for name, entry in poetry.items():
            wanted = entry.get("version", "") if isinstance(entry, dict) else entry
            found.append(f"{name}{_as_pip(str(wanted))}")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
    return found


def _in_lock(text: str) -> list[str]:
    """The releases that a lock file holds; none of a package that it holds twice, in two releases.

    All three tools write a name and its version on two lines; a whole grammar would take seconds.
    """
    held: dict[str, set[str]] = {}
    for name, version in _LOCKED.findall(text):
        held.setdefault(name, set()).add(version.partition("+")[0])
    return [f"{name}=={min(found)}" for name, found in held.items() if len(found) == 1]


_READERS: dict[str, Callable[[str], list[str]]] = {
    "pyproject.toml": _in_pyproject,
    "requirements.txt": str.splitlines,
}


def _as_pip(wanted: str) -> str:
    """A version as poetry writes it: "^2.6" is >=2.6,<3 and "~2.6" is >=2.6,<2.7."""
    short = _POETRY.fullmatch(wanted)
    if short is None:
        return "" if wanted == "*" else f"=={wanted}" if wanted[:1].isdigit() else wanted
    parts = [int(part) for part in short[2].split(".")]
    # What may change stands behind the first number that is not zero, or behind the second one.
    fixed = next((place for place, part in enumerate(parts) if part), len(parts) - 1)
    fixed = fixed if short[1] == "^" else min(1, len(parts) - 1)
    above = ".".join(map(str, [*parts[:fixed], parts[fixed] + 1]))
    return f">={short[2]},<{above}" if short[1] else f"=={short[2]}"

"""The examined interpreter and what is installed in it, told by a script that runs there."""

from __future__ import annotations

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH118, PTH120
# ruff: noqa: PTH118
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator

from packaging.version import Version

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Host
from cudadoctor.model.machine import Gap, Manager
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.indexes import read_index
from cudadoctor.probes.installed import (
    PythonLine,
    Told,
    note_torch,
    packages,
    parse,
)
from cudadoctor.probes.target import Chosen, interpreter_of, on_path_all

NO_PYTHON = "is no Python that runs"
_TELLING = re.compile(r"(?i)error|not found|denied|cannot")
_JOURNAL_BYTES = 4 << 20
_NOT_ITS_FAULT = ("more than", "the recording", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM", "ENOENT")
"""Why nothing was heard of a program, though it may well be a Python: our own limits, mostly."""
_TOLD_THERE = ("python", "torch", "packages", "limits.env_free_bytes", "build.headers")
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy", "graalpy": "GraalPy"}


def read_target(host: Host, chosen: Chosen, timeout_s: float = 10.0) -> Looked:
    """The interpreter, its torch and its packages; nothing of it is imported."""
    notes = Notes()
    notes.fact("python.executable", chosen.executable, chosen.by)
    notes.fact("python.chosen_by", chosen.by)
    if chosen.passed_over:
        notes.fact("python.passed_over", chosen.passed_over, "the environment")
    ran = host.inside("look.py", timeout_s=timeout_s, python=chosen.executable)
    told = parse(ran.stdout)
    if told.python is None:
        _note_silence(notes, host, chosen.executable, ran)
        return notes.looked()
    _note_python(notes, told, told.python, chosen.executable)
    _note_surroundings(notes, host, told, told.python)
    if told.complete:
        note_torch(notes, host, told, told.python.prefix)
        notes.fact("packages", packages(told), f"metadata in {told.python.site_packages}")
    else:
        why = f"{chosen.executable} stopped in the middle of its answer: {_how_it_ended(ran)}"
        for fact in ("torch", "packages"):
            notes.gap(fact, why)
    return notes.looked()


def no_python(gaps: Iterable[Gap]) -> str | None:
    """The sentence for the user where the examined program turned out to be no Python."""
    return next((gap.why for gap in gaps if gap.fact == "python" and NO_PYTHON in gap.why), None)


def _note_python(notes: Notes, told: Told, python: PythonLine, chosen: str) -> None:
    source = python.executable or chosen
    notes.fact("python.executable", source, source)
    notes.fact("python.version", version_of(python.version), source)
    name = python.implementation
    notes.fact("python.implementation", _IMPLEMENTATIONS.get(name, name), source)
    for field in (
        "free_threaded",
        "bits",
        "prefix",
        "base_prefix",
        "site_packages",
        "user_site",
        "abi",
        "ensurepip",
    ):
        notes.fact(f"python.{field}", getattr(python, field), source)
    notes.fact("python.pip", told.pip, source)
    notes.fact("python.path", tuple(folder for folder, _ in told.path) or None, source)
    notes.fact("python.nowhere", told.nowhere, "the working folder")
    notes.fact("python.shadows", told.shadows, "names in the working folder")
    # PEP 668 speaks of the base installation only; a venv of it is free.
    managed = python.externally_managed and python.prefix == python.base_prefix
    notes.fact("python.externally_managed", managed, source)
    notes.fact("build.headers", python.headers, source)
    notes.fact("limits.env_free_bytes", python.env_free_bytes, python.site_packages)
    if python.env_free_bytes is None:
        notes.gap("limits.env_free_bytes", f"{python.site_packages} has no file system to ask")


def _is_own(host: Host, prefix: str | None) -> bool | None:
    """Whether that environment is the one the doctor runs in; a replayed host says so itself."""
    if hasattr(host, "own_environment"):
        return bool(host.own_environment) if host.own_environment is not None else None
    if not prefix:
        return None
    return prefix == sys.prefix or host.stat(prefix).real == host.stat(sys.prefix).real != ""


def _note_surroundings(notes: Notes, host: Host, told: Told, python: PythonLine) -> None:
    kind = kind_of(host, python)
    notes.fact("python.kind", kind, python.prefix)
    notes.fact("python.own", _is_own(host, python.prefix), python.prefix)
    notes.fact("python.managers", tuple(managers(host, told, python, kind)), "PATH")
    project = project_of(host, python.prefix, kind)
    if project is None:
        notes.gap("python.project", f"{python.prefix} does not say whose it is", asked=False)
    else:
        notes.fact("python.project", project[0], python.prefix)
        notes.fact("python.project_tool", project[1], python.prefix)
    index = read_index(host, python.prefix, uv_first=kind == "uv" or not told.pip)
    notes.fact("python.index", index, index.origin or "no setting of pip or uv")
    pip = pip_python(host, python.executable)
    if pip is None:
        notes.gap("python.pip_python", "pip on PATH does not say whose it is", asked=False)
    notes.fact("python.pip_python", pip, "pip on PATH")
    notes.fact("python.path_python", path_python(host, python.executable), "PATH")
    _note_repair(notes, host, python.prefix)


def _note_repair(notes: Notes, host: Host, prefix: str) -> None:
    """Whether `fix` was cut off in this environment: its journal's last record tells."""
    journal = f"{prefix}/.cudadoctor/journal.jsonl"
    answer = host.read(journal, limit=_JOURNAL_BYTES)
    if not answer.known and not answer.missing:
        notes.gap("python.repair", f"{journal}: {answer.why}", asked=False)
        return
    notes.fact("python.repair", parse_journal(answer.text), journal)


def parse_journal(text: str) -> str:
    """Whether the last repair that a journal of `fix` tells of is "unfinished", else ""."""
    lines = text.rpartition("\n")[0].splitlines()
    last = re.search(r'"what": "([a-z-]+)"', lines[-1]) if lines else None
    ended = last is None or last[1] in ("kept", "rolled-back", "undone", "forgotten")
    return "" if ended else "unfinished"


def _note_silence(notes: Notes, host: Host, executable: str, ran: Ran) -> None:
    """Say why the interpreter told nothing: no Python, too old a Python, or a sick one."""
    why = f"{executable} {NO_PYTHON}: {_how_it_ended(ran)}"
    # A flood, or a recording in which it was not asked, says nothing against it either.
    if ran.timed_out or ran.signal or (ran.why or "").startswith(_NOT_ITS_FAULT):
        why = f"{executable} told nothing: {_how_it_ended(ran)}"
    elif ran.code is not None:
        version = _version_of(host, executable)
        notes.fact("python.version", version, executable)
        if version is not None and version < Version("3.4"):
            why = f"{executable} is Python {version}, too old to be looked into"
        elif version is not None:
            why = f"{executable} cannot start: {_how_it_ended(ran)}"
    for fact in _TOLD_THERE:
        notes.gap(fact, why)


def _version_of(host: Host, executable: str) -> Version | None:
    ran = host.run(executable, "--version", timeout_s=5)
    found = re.match(r"Python (\d+(?:\.\w+)+)", ran.stdout.strip() or ran.stderr.strip())
    return version_of(found[1]) if found else None


def _how_it_ended(ran: Ran) -> str:
    """In a few words: not there, no answer in time, killed by a signal, or its last line."""
    if ran.missing:
        return "it, or the interpreter that its first line names, is not there"
    if ran.why:
        return ran.why
    if ran.signal:
        names = {int(number): number.name for number in signal.Signals}
        return f"killed by {names.get(ran.signal, f'signal {ran.signal}')}"
    lines = [one.strip() for one in ran.stderr.splitlines() if one.strip()]
    told = next((one for one in lines if _TELLING.search(one)), lines[0] if lines else "")
    if not told and ran.code == 0:
        return "it ended without telling anything"
    return f"exit status {ran.code}" + (f", {told[:200]}" if told else "")


# --- what kind of environment it is, and which programs can install into it ---------------------

_SYSTEM_PREFIXES = ("/usr", "/usr/local", "/", "/System", "/Library")


def kind_of(host: Host, python: PythonLine) -> str:
    """venv, uv, conda, conda-base, pipx, poetry, system, user or embedded."""
    if python.embedded:
        return "embedded"
    if python.prefix != python.base_prefix:
        return _kind_of_venv(host, python)
    if python.conda:
        return "conda-base" if python.conda_base else "conda"
    prefix = python.prefix.replace("\\", "/")
    if "/uv/python/" in prefix:
        return "user"
    if python.externally_managed or prefix in _SYSTEM_PREFIXES or "/Program Files" in prefix:
        return "system"
    return "user"


def _kind_of_venv(host: Host, python: PythonLine) -> str:
    prefix = python.prefix.replace("\\", "/")
    if "/pipx/venvs/" in prefix:
        return "pipx"
    keys = [line.partition("=")[0].strip() for line in (python.pyvenv or "").splitlines()]
    if "uv" in keys:
        return "uv"
    lock = os.path.join(os.path.dirname(python.prefix), "poetry.lock")
    if "/pypoetry/virtualenvs/" in prefix or host.stat(lock).exists:
        return "poetry"
    return "venv"


def is_pixi(python: PythonLine) -> bool:
    """Whether pixi owns the environment; conda itself must not touch it then."""
    return "/.pixi/envs/" in python.prefix.replace("\\", "/") + "/"


def managers(host: Host, told: Told, python: PythonLine, kind: str) -> Iterator[Manager]:
    """The programs that can install into this environment, found without running them."""
    if told.pip:
        version = next((one.version for one in told.dists if one.name == "pip"), None)
        yield Manager(name="pip", path=python.executable, version=version or None)
    if uv := _found_program(host, "uv", ".local/bin/uv", ".cargo/bin/uv"):
        yield Manager(name="uv", path=uv)
    if is_pixi(python):
        if pixi := _found_program(host, "pixi", ".pixi/bin/pixi"):
            yield Manager(name="pixi", path=pixi)
    elif kind.startswith("conda"):
        yield from _conda(host, python)
    if kind == "poetry" and (poetry := _found_program(host, "poetry", ".local/bin/poetry")):
        yield Manager(name="poetry", path=poetry)
    if kind == "pipx" and (pipx := _found_program(host, "pipx", ".local/bin/pipx")):
        yield Manager(name="pipx", path=pipx)


def _conda(host: Host, python: PythonLine) -> Iterator[Manager]:
    # An environment lies in <root>/envs/<name>; the root holds the program.
    root = os.path.dirname(os.path.dirname(python.prefix))
    own = [os.path.join(one, "bin", "conda") for one in (python.prefix, root)]
    conda = host.env.get("CONDA_EXE") or host.which("conda")
    conda = conda or next((one for one in own if host.stat(one).exists), None)
    if conda:
        yield Manager(name="conda", path=conda)
    if mamba := host.which("mamba"):
        yield Manager(name="mamba", path=mamba)
    if micromamba := host.env.get("MAMBA_EXE") or host.which("micromamba"):
        name = os.path.basename(micromamba).removesuffix(".exe")  # noqa: PTH119
        if name == "micromamba":
            yield Manager(name="micromamba", path=micromamba)


def _found_program(host: Host, name: str, *in_home: str) -> str | None:
    """A program on PATH, or where its own installer puts it."""
    if found := host.which(name):
        return found
    home = host.env.get("HOME") or host.env.get("USERPROFILE")
    places = [os.path.join(home, *one.split("/")) for one in in_home] if home else []
    return next((one for one in places if host.stat(one).exists), None)


def pip_python(host: Host, executable: str) -> str | None:
    """The interpreter of `pip` on PATH; "" where there is no pip, None where it does not tell."""
    for name in ("pip", "pip3"):
        if script := host.which(name):
            owner = interpreter_of(host, os.path.abspath(script))  # noqa: PTH100
            return owner and same_environment(host, owner, executable)
    return ""


def path_python(host: Host, executable: str) -> str:
    """The interpreter that `python` on PATH is, else `python3`; "" where there is none."""
    found = next(on_path_all(host, ("python", "python3")), "")
    return found and same_environment(host, found, executable)


def same_environment(host: Host, python: str, executable: str) -> str:
    """`executable`, where both are names of one interpreter (python, python3.11), else `python`.

    Names in one folder belong together where they are one program; the link of a venv leads to
    the same program from another folder, and is another environment.
    """
    one, other = host.stat(python), host.stat(executable)
    if not one.exists or not other.exists or one.real != other.real:
        return python
    folders = [host.stat(os.path.dirname(path)).real for path in (python, executable)]
    return executable if folders[0] == folders[1] else python


# --- which project an environment belongs to: its tool writes the environment anew from a---

_LOCKS = (("uv.lock", "uv"), ("pdm.lock", "pdm"), ("poetry.lock", "poetry"))
_TABLE = re.compile(r"(?m)^[ \t]*\[+[ \t]*tool\.(uv|pdm|poetry)\b")
_UNMANAGED = re.compile(r"(?m)^[ \t]*managed[ \t]*=[ \t]*false\b")
_PROJECT_BYTES = 1 << 18
NONE = ("", "")


def project_of(host: Host, prefix: str, kind: str) -> tuple[str, str] | None:
    """The project's folder and its tool (uv, pdm, poetry, pixi); ("", "") none, None not known.

    uv and pdm keep a project's environment in .venv beside pyproject.toml, poetry may too.
    """
    folder, mark, _ = prefix.replace("\\", "/").partition("/.pixi/envs/")
    if mark:
        return prefix[: len(folder)], "pixi"
    if "/pypoetry/virtualenvs/" in prefix.replace("\\", "/"):
        return None  # its name holds a hash of the folder only
    folder, name = os.path.split(prefix)
    if kind not in ("venv", "uv", "poetry") or not _is_projects_own(host, prefix, name):
        return NONE
    there = host.stat(os.path.join(folder, "pyproject.toml")).exists
    if not there:
        return NONE if there is False else None
    for lock, tool in _LOCKS:
        if host.stat(os.path.join(folder, lock)).exists:
            return folder, tool
    return _by_table(host, folder)


def _is_projects_own(host: Host, prefix: str, name: str) -> bool:
    """Whether a project's tool would take that folder for its environment."""
    return name == ".venv" or host.env.get("UV_PROJECT_ENVIRONMENT") in (prefix, name)


def _by_table(host: Host, folder: str) -> tuple[str, str] | None:
    """The tool that has a table in pyproject.toml, where nothing is locked yet."""
    answer = host.read(os.path.join(folder, "pyproject.toml"), limit=_PROJECT_BYTES)
    if not answer.known:
        return None
    found = _TABLE.search(answer.text)
    if found is None or (found[1] == "uv" and _UNMANAGED.search(answer.text)):
        return NONE
    return folder, found[1]

"""Which interpreter is examined: the one of the user, found without running anything of it."""

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH100, PTH118, PTH119

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import msgspec

from cudadoctor.host import Host, absolute
from cudadoctor.probes.shims import behind_shim

_PYTHON_NAME = re.compile(r"(?i)(python|pypy|graalpy)[\w.-]*$")
_VERSION = re.compile(r"\d+\.\d+t?$")
_INSIDE = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe", "python", "python3")


class UsageError(ValueError):
    """Wrong usage of --python; its text is the one sentence for the user."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter to examine.

    executable: absolute, links not resolved (behind the link of a venv lies another environment).
    by: --python, VIRTUAL_ENV, CONDA_PREFIX, ./.venv, PATH or own.
    passed_over: places that named an interpreter which is not there, as sentences.
    """

    executable: str
    by: str
    passed_over: tuple[str, ...] = ()


def choose(host: Host, python: str | None = None, own: str = sys.executable) -> Chosen:
    """The interpreter to examine; `own` is the doctor's.

    Raises UsageError where --python names nothing that can be run.
    """
    if python is not None:
        return Chosen(executable=named(host, python), by="--python")
    passed_over: list[str] = []
    for by, folder in _active(host):
        found = in_folder(host, folder)
        if found:
            return Chosen(executable=found, by=by, passed_over=tuple(passed_over))
        if by != "./.venv":
            passed_over.append(f"{by} is {folder}, where there is no Python")
    on_path = next(on_path_all(host), None)
    if on_path:
        return Chosen(executable=on_path, by="PATH", passed_over=tuple(passed_over))
    return Chosen(executable=getattr(host, "own", own), by="own", passed_over=tuple(passed_over))


def named(host: Host, python: str) -> str:
    """The interpreter that the text of --python names: a program, a folder, a name on PATH."""
    if not python.strip():
        raise UsageError("--python is empty; give a Python, or the folder of an environment.")
    path = absolute(host, _expanded(host, python))
    stat = host.stat(path)
    if stat.is_dir:
        if found := in_folder(host, path):
            return found
        if not _looks_like_name(python):
            raise UsageError(_no_python_in(host, python, path))
    elif stat.exists and not _looks_like_name(python):
        return _program(host, python, path)
    if _looks_like_name(python) and (found := _by_name(host, python)):
        return found
    if stat.exists and not stat.is_dir:
        return _program(host, python, path)
    raise UsageError(_absent(host, python, path, stat.is_dir, stat.why))


def in_folder(host: Host, folder: str) -> str | None:
    """The Python of a venv or conda prefix, also where its bin folder is named."""
    for name in _INSIDE:
        path = os.path.join(folder, *name.split("/"))
        stat = host.stat(path)
        if stat.exists and not stat.is_dir and _runs(host, stat.mode):
            return os.path.abspath(path)
    return None


def on_path_all(host: Host, names: tuple[str, ...] = ("python3", "python")) -> Iterator[str]:
    """Every program of these names on PATH, pyenv's shims resolved, the first name first."""
    for name in names:
        for folder in host.env.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder or ".", name + (".exe" if host.system == "Windows" else ""))
            stat = host.stat(path)
            # Windows offers its shop under these names: files without content.
            shop = stat.size == 0 and "WindowsApps" in path
            if stat.exists and not stat.is_dir and not shop and _runs(host, stat.mode):
                yield behind_shim(host, os.path.abspath(path))


def _active(host: Host) -> Iterator[tuple[str, str]]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := host.env.get(variable):
            yield variable, absolute(host, folder)
    yield "./.venv", absolute(host, ".venv")


def _looks_like_name(python: str) -> bool:
    return os.sep not in python and "/" not in python and python not in (".", "..", "~")


def _expanded(host: Host, python: str) -> str:
    home = host.env.get("HOME") or host.env.get("USERPROFILE")
    if home and (python == "~" or python.startswith(("~/", "~\\"))):
        return home + python[1:]
    return python


def _by_name(host: Host, python: str) -> str | None:
    """A name on PATH; 3.11 means python3.11."""
    for name in (python, f"python{python}" if _VERSION.match(python) else python):
        found = host.which(name)
        if found:
            return _program(host, python, behind_shim(host, os.path.abspath(found)))
    return None


def _program(host: Host, python: str, path: str) -> str:
    """The path, where it can be run and is a Python."""
    stat = host.stat(path)
    if not _runs(host, stat.mode):
        raise UsageError(
            f"--python {python}: {path} is a file that cannot be executed;"
            " give a Python, or the folder of an environment."
        )
    if not _PYTHON_NAME.match(os.path.basename(path)) and not _says_python(host, path):
        raise UsageError(
            f"--python {python}: {path} is no Python; give a Python, or the folder of an"
            " environment."
        )
    return path


def _says_python(host: Host, path: str) -> bool:
    """Ask for its version: harmless to any program, unlike handing it a script of ours."""
    ran = host.run(path, "--version", timeout_s=5)
    return bool(re.match(r"Python \d", ran.stdout.strip() or ran.stderr.strip()))


def _runs(host: Host, mode: int) -> bool:
    return host.system == "Windows" or bool(mode & 0o111)


def _no_python_in(host: Host, python: str, path: str) -> str:
    seen = {one: host.stat(os.path.join(path, *one.split("/"))) for one in _INSIDE}
    for name, stat in seen.items():
        if stat.exists is None:
            where = os.path.join(path, name)
            return f"--python {python}: {where} cannot be looked at ({stat.why})."
    broken = next((name for name, stat in seen.items() if stat.is_link and not stat.exists), None)
    if broken:
        return (
            f"--python {python}: {os.path.join(path, broken)} is a link to a Python that is gone;"
            " make that environment anew."
        )
    return (
        f"--python {python}: that folder holds no Python (no bin/python);"
        " give a Python, or the folder of an environment."
    )


def _absent(host: Host, python: str, path: str, is_dir: bool, why: str | None) -> str:
    if why:
        return f"--python {python}: {path} cannot be looked at ({why})."
    if is_dir:
        return (
            f"--python {python}: that folder holds no Python (no bin/python), and there is no"
            " program of that name on PATH."
        )
    if _looks_like_name(python):
        return (
            f"--python {python}: there is no such program on PATH and no such file or folder here."
        )
    if host.stat(path).is_link:
        return f"--python {python}: {path} is a link to a file that is gone."
    return f"--python {python}: there is no such file or folder."

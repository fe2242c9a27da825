"""Which interpreter is examined: the one of the user, found without running anything of it."""

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH100, PTH118, PTH119, PTH120

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import chain
from os.path import abspath, basename, dirname, join

from msgspec import Struct

from cudadoctor.host import children
from cudadoctor.host.local import Host, absolute, existing, home_of
from cudadoctor.model.machine import OptStr, Strings
from cudadoctor.probes import extract

_PYTHON_NAME = re.compile(r"(?i)(python|pypy|graalpy)[\w.-]*$")
_VERSION = re.compile(r"\d+\.\d+t?$")
_NONE_IN_FOLDER = "the folder contains no Python (no bin/python)"
_INSIDE = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe", "python", "python3")


BESIDE = "./.venv"
MOST_FOLDERS = 4096
_STICKY = 0o1000
"""In such a folder only the owner of an entry can put another in its place."""


class UsageError(ValueError):
    """Wrong usage of --python; its text is the one sentence for the user."""


class Chosen(Struct, frozen=True, kw_only=True):
    """The interpreter to examine.

    executable: absolute, links not resolved (behind the link of a venv lies another environment).
    by: --python, VIRTUAL_ENV, CONDA_PREFIX, ./.venv, PATH or own.
    passed_over: places that named an interpreter which is not there, or which others may have put
    there, as sentences.
    """

    executable: str
    by: str
    passed_over: Strings = ()


def choose(host: Host, python: OptStr = None, own: str = sys.executable) -> Chosen:
    """The interpreter to examine; `own` is the doctor's.

    Raises UsageError where --python names nothing that can be run.
    """
    if python is not None:
        return Chosen(executable=named(host, python), by="--python")
    passed_over = []
    found = None
    for by in ("VIRTUAL_ENV", "CONDA_PREFIX", BESIDE):
        if not (folder := ".venv" if by == BESIDE else host.env.get(by)):
            continue
        folder = absolute(host, folder)
        found = in_folder(host, folder)
        # A variable that names no whole path names a folder of the current one, whichever that is.
        whole = children.path_folders(host.env.get(by, ""), windows=host.system == "Windows")
        why = distrusted(host, folder, found) if found and not whole else None
        if found and why is None:
            break
        found = None
        if why:
            passed_over.append(
                f"{by} was not used because {why}; to use it anyway, pass --python {folder}"
            )
        elif by != BESIDE:
            passed_over.append(f"{by} is {folder}, which contains no Python")
    else:
        passed_over += _beside_on_path(host)
        by, found = "PATH", _first_on_path(host, getattr(host, "own", own))
    if found is None:
        by, found = "own", getattr(host, "own", own)
    return Chosen(executable=found, by=by, passed_over=tuple(passed_over))


def named(host: Host, python: str) -> str:
    """The interpreter that the text of --python names: a program, a folder, a name on PATH."""
    if not python.strip():
        raise UsageError(
            "--python has no value; specify a Python executable or an environment folder."
        )
    home = home_of(host) if python == "~" or python.startswith(("~/", "~\\")) else None
    path = absolute(host, home + python[1:] if home else python)
    is_name = os.sep not in python and "/" not in python and python not in (".", "..", "~")
    stat = host.stat(path)
    is_file = stat.exists and not stat.is_dir
    if stat.is_dir and (inside := in_folder(host, path)):
        return inside
    found = path if is_file else None
    if is_name:
        # 3.11 means python3.11.
        names = (python, f"python{python}") if _VERSION.match(python) else (python,)
        on_path = next(filter(None, map(host.which, names)), None)
        found = behind_shim(host, abspath(on_path)) if on_path else found
    if found:
        why = _unfit(host, found)
    elif stat.is_dir and not is_name:
        why = _no_python_in(host, path)
    elif stat.why:
        why = f"cannot access {path} ({stat.why})."
    elif stat.is_dir:
        why = f"{_NONE_IN_FOLDER}, and there is no program with that name on PATH."
    elif is_name:
        why = "there is no such program on PATH, and no such file or folder."
    else:
        gone = f"{path} is a link to a file that no longer exists."
        why = gone if stat.is_link else "there is no such file or folder."
    if found and why is None:
        return found
    raise UsageError(f"--python {python}: {why}")


def in_folder(host: Host, folder: str) -> OptStr:
    """The Python of a venv or conda prefix, also where its bin folder is named."""
    paths = (join(folder, *name.split("/")) for name in _INSIDE)
    return next((abspath(path) for path in paths if _is_program(host, path)), None)


def on_path_all(host: Host, names: Strings = ("python3", "python")) -> Iterator[str]:
    """Every program of these names on PATH, pyenv's shims resolved, the first name first."""
    folders = children.path_folders(host.env.get("PATH", ""))
    for name in names:
        for path in programs(host, name + (".exe" if host.system == "Windows" else ""), folders):
            # Windows offers its shop under these names: files without content.
            if "WindowsApps" not in path or host.stat(path).size:
                yield behind_shim(host, abspath(path))


def _first_on_path(host: Host, own: str) -> OptStr:
    """The first Python on PATH; the user's own where uvx has put the doctor's in front of it."""
    pythons = on_path_all(host)
    first, folder = next(pythons, None), dirname(own)
    if first and host.env.get("UV") and dirname(first) == folder:
        packages = (join("lib", "python*", "site-packages"), join("Lib", "site-packages"))
        prefix = dirname(folder)
        if not any(host.glob(join(prefix, place, "torch")) for place in packages):
            return next((python for python in pythons if dirname(python) != folder), first)
    return first


def programs(host: Host, name: str, folders: Strings) -> Iterator[str]:
    """Every program of that name in folders of PATH; only what may be executed counts."""
    paths = (join(folder, name) for folder in dict.fromkeys(folders[:MOST_FOLDERS]))
    return (path for path in paths if _is_program(host, path))


def _is_program(host: Host, path: str) -> bool:
    stat = host.stat(path)
    return bool(stat.exists) and not stat.is_dir and _runs(host, stat.mode)


def _beside_on_path(host: Host) -> list[str]:
    """A Python of the current folder that a PATH with "." or an empty entry would find."""
    path = host.env.get("PATH", "")
    if not path or len(children.path_folders(path)) == len(path.split(os.pathsep)):
        return []
    found = absolute(host, "python3")
    stat = host.stat(found)
    if not stat.exists or stat.is_dir:
        return []
    return [
        f"PATH points to {found} in the current folder, and cudadoctor never runs programs from "
        "the current folder; to use this Python, specify it with --python"
    ]


def distrusted(host: Host, folder: str, python: str) -> OptStr:
    """Why a .venv that nobody has activated is not run; None if it is the user's own.

    Whoever can write into the current folder, or into the environment, would run programs here.
    """
    settings, around = join(folder, "pyvenv.cfg"), dirname(folder)
    if host.stat(settings).exists is False:
        return "it is not a virtual environment (it has no pyvenv.cfg)"
    if host.system == "Windows":
        return None
    mode = host.stat(around).mode
    if mode & 0o002 and not mode & _STICKY:
        return f"{around} is writable by everyone"
    if host.stat(folder).is_link:
        return "it is a symbolic link"
    trusted = _trusted_users(host)
    # What `.pth` files name is run at the start of the interpreter, isolated or not.
    packages = host.glob(join(folder, "lib", "python*", "site-packages"))
    inside = [inner for path in packages for inner in (dirname(path), path)]
    for path in (folder, settings, dirname(python), python, *inside):
        stat = host.stat(path)
        if stat.mode & 0o002:
            return f"{path} is writable by everyone"
        # A link to the Python that it was made from; what lies beside the user is no such Python.
        beside = stat.real.startswith(join(around, ""))
        if trusted is None or (path == python and stat.is_link and not beside):
            continue
        if stat.uid not in trusted:
            return f"{path} belongs to another user ({stat.uid})"
        if stat.mode & 0o020 and not _is_private(host, stat.gid, stat.uid):
            return f"{path} is writable by the group with ID {stat.gid}"
    return None


def _trusted_users(host: Host) -> frozenset[int] | None:
    """The numbers of those who may have made it; None if it is not known who runs this."""
    user = getattr(host, "uid", None)
    if user is None:
        return None
    found = {0, user}
    if user == 0:  # with sudo, or in a container that has the folder from outside
        found.add(host.stat(absolute(host, ".")).uid)
        sudo = host.env.get("SUDO_UID", "")
        found |= {int(sudo)} if sudo.isdecimal() else set()
    return frozenset(found)


def _is_private(host: Host, group: int, owner: int) -> bool:
    """Whether nobody but the owner, or root, is in a group, as far as this system's files say."""
    if group == 0:
        return True
    rows = [line.split(":") for line in host.read("/etc/passwd").text.splitlines()]
    names = {row[0] for row in rows if len(row) > 3 and row[2] == str(owner)}
    members = {row[0] for row in rows if len(row) > 3 and row[3] == str(group)}
    rows = [line.split(":") for line in host.read("/etc/group").text.splitlines()]
    for row in rows:
        if len(row) > 3 and row[2] == str(group):
            members |= set(filter(None, row[3].split(",")))
    # The users of a directory service stand in no file: theirs has the number of the user.
    return members <= names and (bool(members) or group == owner)


def _unfit(host: Host, path: str) -> OptStr:
    """Why a program is no Python that can be run; None where it may be one."""
    if not _runs(host, host.stat(path).mode):
        fault = "not executable"
    elif _PYTHON_NAME.match(basename(path)) or reported_version(host, path):
        return None
    else:
        fault = "not Python"
    return f"{path} is {fault}; specify a Python executable or an environment folder."


def reported_version(host: Host, program: str) -> OptStr:
    """What a Python answers to --version, which harms no program; None for any other program."""
    ran = host.run(program, "--version", timeout_s=5)
    return extract(r"^Python (\d[\w.]*)", ran.stdout.strip() or ran.stderr.strip())


def _runs(host: Host, mode: int) -> bool:
    return host.system == "Windows" or bool(mode & 0o111)


def _no_python_in(host: Host, folder: str) -> str:
    paths = (join(folder, *name.split("/")) for name in _INSIDE)
    seen = {path: host.stat(path) for path in paths}
    for path, stat in seen.items():
        if stat.exists is None:
            return f"cannot access {path} ({stat.why})."
    for path, stat in seen.items():
        if stat.is_link and not stat.exists:
            gone = "a link to a Python executable that no longer exists"
            return f"{path} is {gone}; recreate the environment that it belongs to."
    return f"{_NONE_IN_FOLDER}; specify a Python executable or an environment folder."


# --- what stands behind a program on PATH, told by reading it and never by running it -----------

_EXEC_LINE = re.compile(r"""(?m)^'''exec' (?:"([^"]+)"|(\S+)) """)


def behind_shim(host: Host, path: str) -> str:
    """The program that a shim of pyenv would start; the path itself where it is no shim."""
    folder, name = os.path.split(path)
    root, last = os.path.split(folder.rstrip("/\\"))
    if last != "shims" or not host.stat(join(root, "versions")).is_dir:
        return path
    for version in _wanted_versions(host, root):
        if version == "system":
            return _beyond(host, name, folder) or path
        found = (join(own, "bin", name) for own in _pyenv_versions(host, root, version))
        if program := existing(host, found):
            return program
    return path


def interpreter_of(host: Host, script: str) -> OptStr:
    """The interpreter that a script such as pip names in its first lines; None not known."""
    script = behind_shim(host, script)
    if script.lower().endswith(".exe"):
        # The python.exe that a launcher in Scripts belongs to.
        folder = dirname(script)
        return existing(host, (join(place, "python.exe") for place in (folder, dirname(folder))))
    text = host.read(script, 2048).text
    words = text.removeprefix("#!").partition("\n")[0].split()
    if not words or not text.startswith("#!"):
        return None
    program = basename(words[0])
    if program == "env":
        names = (word for word in words[1:] if not word.startswith("-") and "=" not in word)
        found = host.which(next(names, ""))
        return behind_shim(host, found) if found else None
    if program in ("sh", "bash", "dash"):
        # The form for long paths and paths with spaces: a shell script that is Python too.
        line = _EXEC_LINE.search(text)
        return (line[1] or line[2]) if line else None
    return words[0]


def _wanted_versions(host: Host, root: str) -> list[str]:
    """The versions that pyenv is set to, in its own order of precedence."""
    if versions := host.env.get("PYENV_VERSION"):
        return versions.split(":")
    folders = upwards(host.env.get("PYENV_DIR") or absolute(host, "."))
    files = (join(folder, ".python-version") for folder in folders)
    for path in (*files, join(root, "version")):
        if (found := host.read(path, 4096)).known:
            lines = (line.partition("#")[0].split() for line in found.text.splitlines())
            return list(chain.from_iterable(lines)) or ["system"]
    return ["system"]


def upwards(folder: str) -> Iterator[str]:
    """The folder and all that it lies in."""
    yield folder
    while (parent := dirname(folder)) != folder:
        folder = parent
        yield folder


def _pyenv_versions(host: Host, root: str, version: str) -> Iterator[str]:
    """The folders of that version; `3.11` means the newest 3.11 that is there.

    A .python-version of the current folder may be anybody's: one that leads out of pyenv is none.
    """
    versions = join(root, "versions")
    version = version.removeprefix("python-")
    if version in (".", "..") or re.search(r"[/\\]", version):
        return
    exact = join(versions, version)
    if host.stat(exact).is_dir:
        yield exact
        return
    fitting = [name for name in host.listing(versions).names if name.startswith(version + ".")]
    for name in sorted(fitting, key=_number, reverse=True):
        yield join(versions, name)


def _number(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def _beyond(host: Host, name: str, shims: str) -> OptStr:
    """The program of that name on PATH outside the shims, and outside any plugin's."""
    found = programs(host, name, children.path_folders(host.env.get("PATH", "")))
    return next((path for path in found if dirname(path) != shims.rstrip("/")), None)

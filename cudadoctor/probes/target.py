"""Which interpreter is examined: the one of the user, found without running anything of it."""

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH100, PTH118, PTH119, PTH120
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import msgspec

from cudadoctor.host import children
from cudadoctor.host.local import Host, absolute

_PYTHON_NAME = re.compile(r"(?i)(python|pypy|graalpy)[\w.-]*$")
_VERSION = re.compile(r"\d+\.\d+t?$")
_INSIDE = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe", "python", "python3")


BESIDE = "./.venv"


_STICKY = 0o1000
"""In such a folder only the owner of an entry can put another in its place."""


class UsageError(ValueError):
    """Wrong usage of --python; its text is the one sentence for the user."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter to examine.

    executable: absolute, links not resolved (behind the link of a venv lies another environment).
    by: --python, VIRTUAL_ENV, CONDA_PREFIX, ./.venv, PATH or own.
    passed_over: places that named an interpreter which is not there, or which others may have put
    there, as sentences.
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
        # A variable that names no whole path names a folder of the current one, whichever that is.
        whole = children.path_folders(host.env.get(by, ""), windows=host.system == "Windows")
        why = distrusted(host, folder, found) if found and not whole else None
        if found and why is None:
            return Chosen(executable=found, by=by, passed_over=tuple(passed_over))
        if why:
            passed_over.append(f"{by} was not used, because {why}; to use it: --python {folder}")
        elif by != BESIDE:
            passed_over.append(f"{by} is {folder}, where there is no Python")
    passed_over += _beside_on_path(host)
    on_path = next(on_path_all(host), None)
    if on_path:
        return Chosen(executable=on_path, by="PATH", passed_over=tuple(passed_over))
    return Chosen(executable=getattr(host, "own", own), by="own", passed_over=tuple(passed_over))


def named(host: Host, python: str) -> str:
    """The interpreter that the text of --python names: a program, a folder, a name on PATH."""
    if not python.strip():
        raise UsageError("--python is empty; give a Python, or the folder of an environment.")
    path = absolute(host, _expanded(host, python))
    is_name = os.sep not in python and "/" not in python and python not in (".", "..", "~")
    stat = host.stat(path)
    if stat.is_dir:
        if found := in_folder(host, path):
            return found
        if not is_name:
            raise UsageError(f"--python {python}: {_no_python_in(host, path)}")
    elif stat.exists and not is_name:
        return _program(host, python, path)
    # 3.11 means python3.11.
    names = (python, f"python{python}") if _VERSION.match(python) else (python,)
    if is_name and (found := next(filter(None, map(host.which, names)), None)):
        return _program(host, python, behind_shim(host, os.path.abspath(found)))
    if stat.exists and not stat.is_dir:
        return _program(host, python, path)
    if stat.why:
        why = f"{path} cannot be looked at ({stat.why})."
    elif stat.is_dir:
        why = f"{_NONE_IN_FOLDER}, and there is no program of that name on PATH."
    elif is_name:
        why = "there is no such program on PATH and no such file or folder here."
    elif stat.is_link:
        why = f"{path} is a link to a file that is gone."
    else:
        why = "there is no such file or folder."
    raise UsageError(f"--python {python}: {why}")


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
        for folder in children.path_folders(host.env.get("PATH", "")):
            path = os.path.join(folder, name + (".exe" if host.system == "Windows" else ""))
            stat = host.stat(path)
            # Windows offers its shop under these names: files without content.
            shop = stat.size == 0 and "WindowsApps" in path
            if stat.exists and not stat.is_dir and not shop and _runs(host, stat.mode):
                yield behind_shim(host, os.path.abspath(path))


def _active(host: Host) -> Iterator[tuple[str, str]]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := host.env.get(variable):
            yield variable, absolute(host, folder)
    yield BESIDE, absolute(host, ".venv")


def _beside_on_path(host: Host) -> list[str]:
    """A Python of the current folder that a PATH with "." or an empty entry would find."""
    path = host.env.get("PATH", "")
    if not path or len(children.path_folders(path)) == len(path.split(os.pathsep)):
        return []
    found = absolute(host, "python3")
    if not host.stat(found).exists or host.stat(found).is_dir:
        return []
    return [f"PATH leads to {found} in the current folder, which is not run; name it with --python"]


def distrusted(host: Host, folder: str, python: str) -> str | None:
    """Why a .venv that nobody has activated is not run; None if it is the user's own.

    Whoever can write into the current folder, or into the environment, would run programs here.
    """
    settings = os.path.join(folder, "pyvenv.cfg")
    if host.stat(settings).exists is False:
        return "it is not a virtual environment (it has no pyvenv.cfg)"
    if host.system == "Windows":
        return None
    around = host.stat(os.path.dirname(folder))
    if around.mode & 0o002 and not around.mode & _STICKY:
        return f"everybody can write to {os.path.dirname(folder)}"
    if host.stat(folder).is_link:
        return "it is a link"
    trusted = _trusted_users(host)
    beside = os.path.join(os.path.dirname(folder), "")
    # What `.pth` files name is run at the start of the interpreter, isolated or not.
    packages = host.glob(os.path.join(folder, "lib", "python*", "site-packages"))
    inside = [one for path in packages for one in (os.path.dirname(path), path)]
    for path in (folder, settings, os.path.dirname(python), python, *inside):
        stat = host.stat(path)
        # A link to the Python that it was made from; what lies beside the user is no such Python.
        link = path == python and stat.is_link and not stat.real.startswith(beside)
        if stat.mode & 0o002:
            return f"everybody can write to {path}"
        if trusted is None or link:
            continue
        if stat.uid not in trusted:
            return f"{path} belongs to another user ({stat.uid})"
        if stat.mode & 0o020 and not _is_private(host, stat.gid, stat.uid):
            return f"a group of users ({stat.gid}) can write to {path}"
    return None


def _trusted_users(host: Host) -> frozenset[int] | None:
    """The numbers of those who may have made it; None if it is not known who runs this."""
    user: int | None = getattr(host, "uid", None)
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
    users = [line.split(":") for line in host.read("/etc/passwd").text.splitlines()]
    names = {one[0] for one in users if len(one) > 3 and one[2] == str(owner)}
    members = {one[0] for one in users if len(one) > 3 and one[3] == str(group)}
    for line in host.read("/etc/group").text.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[2] == str(group):
            members |= {one for one in fields[3].split(",") if one}
    # The users of a directory service stand in no file: theirs has the number of the user.
    return members <= names and (bool(members) or group == owner)


def _expanded(host: Host, python: str) -> str:
    home = host.env.get("HOME") or host.env.get("USERPROFILE")
    if home and (python == "~" or python.startswith(("~/", "~\\"))):
        return home + python[1:]
    return python


def _program(host: Host, python: str, path: str) -> str:
    """The path, where it can be run and is a Python."""
    why = None
    if not _runs(host, host.stat(path).mode):
        why = "a file that cannot be executed; give a Python, or the folder of an environment."
    elif not _PYTHON_NAME.match(os.path.basename(path)) and not _says_python(host, path):
        why = "no Python; give a Python, or the folder of an environment."
    if why:
        raise UsageError(f"--python {python}: {path} is {why}")
    return path


def _says_python(host: Host, path: str) -> bool:
    """Ask for its version: harmless to any program, unlike handing it a script of ours."""
    ran = host.run(path, "--version", timeout_s=5)
    return bool(re.match(r"Python \d", ran.stdout.strip() or ran.stderr.strip()))


def _runs(host: Host, mode: int) -> bool:
    return host.system == "Windows" or bool(mode & 0o111)


_NONE_IN_FOLDER = "that folder holds no Python (no bin/python)"


def _no_python_in(host: Host, path: str) -> str:
    seen = {name: host.stat(os.path.join(path, *name.split("/"))) for name in _INSIDE}
    for name, stat in seen.items():
        if stat.exists is None:
            return f"{os.path.join(path, name)} cannot be looked at ({stat.why})."
    broken = next((name for name, stat in seen.items() if stat.is_link and not stat.exists), None)
    if broken:
        link = os.path.join(path, broken)
        return f"{link} is a link to a Python that is gone; make that environment anew."
    return f"{_NONE_IN_FOLDER}; give a Python, or the folder of an environment."


# --- what stands behind a program on PATH, told by reading it and never by running it -----------

_EXEC_LINE = re.compile(r"""^'''exec' (?:"([^"]+)"|(\S+)) """, re.MULTILINE)


def behind_shim(host: Host, path: str) -> str:
    """The program that a shim of pyenv would start; the path itself where it is no shim."""
    folder, name = os.path.split(path)
    root = pyenv_root(host, folder)
    if root is None:
        return path
    for version in _wanted_versions(host, root):
        if version == "system":
            return _beyond(host, name, folder) or path
        for found in _pyenv_versions(host, root, version):
            program = os.path.join(found, "bin", name)
            if host.stat(program).exists:
                return program
    return path


def pyenv_root(host: Host, folder: str) -> str | None:
    """The root of pyenv, where the folder is its folder of shims."""
    root, last = os.path.split(folder.rstrip("/\\"))
    if last != "shims" or not host.stat(os.path.join(root, "versions")).is_dir:
        return None
    return root


def interpreter_of(host: Host, script: str) -> str | None:
    """The interpreter that a script such as pip names in its first lines; None not known."""
    script = behind_shim(host, script)
    if script.lower().endswith(".exe"):
        return _beside(host, script)
    text = host.read(script, 2048).text
    if not text.startswith("#!"):
        return None
    words = text[2:].partition("\n")[0].split()
    if not words:
        return None
    if os.path.basename(words[0]) == "env":
        names = [one for one in words[1:] if not one.startswith("-") and "=" not in one]
        found = host.which(names[0]) if names else None
        return behind_shim(host, found) if found else None
    if os.path.basename(words[0]) in ("sh", "bash", "dash"):
        # The form for long paths and paths with spaces: a shell script that is Python too.
        found_line = _EXEC_LINE.search(text)
        return (found_line[1] or found_line[2]) if found_line else None
    return words[0]


def _beside(host: Host, program: str) -> str | None:
    """The python.exe that a launcher in Scripts belongs to."""
    folder = os.path.dirname(program)
    for place in (folder, os.path.dirname(folder)):
        path = os.path.join(place, "python.exe")
        if host.stat(path).exists:
            return path
    return None


def _wanted_versions(host: Host, root: str) -> Iterator[str]:
    """The versions that pyenv is set to, in its own order of precedence."""
    if told := host.env.get("PYENV_VERSION"):
        yield from told.split(":")
        return
    for folder in upwards(host.env.get("PYENV_DIR") or absolute(host, ".")):
        found = host.read(os.path.join(folder, ".python-version"), 4096)
        if found.known:
            yield from _lines(found.text)
            return
    found = host.read(os.path.join(root, "version"), 4096)
    yield from _lines(found.text) if found.known else ("system",)


def _lines(text: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [word for line in lines for word in line.split()] or ["system"]


def upwards(folder: str) -> Iterator[str]:
    """The folder and all that it lies in."""
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        yield folder


def _pyenv_versions(host: Host, root: str, version: str) -> Iterator[str]:
    """The folders of that version; `3.11` means the newest 3.11 that is there.

    A .python-version of the current folder may be anybody's: one that leads out of pyenv is none.
    """
    versions = os.path.join(root, "versions")
    version = version.removeprefix("python-")
    if version in (".", "..") or re.search(r"[/\\]", version):
        return
    exact = os.path.join(versions, version)
    if host.stat(exact).is_dir:
        yield exact
        return
    fitting = [one for one in host.listing(versions).names if one.startswith(version + ".")]
    for name in sorted(fitting, key=_number, reverse=True):
        yield os.path.join(versions, name)


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def _beyond(host: Host, name: str, shims: str) -> str | None:
    """The program of that name on PATH outside the shims, and outside any plugin's."""
    for folder in children.path_folders(host.env.get("PATH", "")):
        path = os.path.join(folder, name)
        if folder.rstrip("/") != shims.rstrip("/"):
            stat = host.stat(path)
            if stat.exists and not stat.is_dir and stat.mode & 0o111:
                return path
    return None

"""What stands behind a program on PATH, told by reading it and never by running it.

A shim of pyenv takes 70 ms to start, and a pip must not be run to learn whose it is.
"""

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudadoctor.host import children
from cudadoctor.host.local import Host, absolute

_EXEC_LINE = re.compile(r"""^'''exec' (?:"([^"]+)"|(\S+)) """, re.MULTILINE)


def behind_shim(host: Host, path: str) -> str:
    """The program that a shim of pyenv would start; the path itself where it is no shim."""
    folder, name = os.path.split(path)
    root = pyenv_root(host, folder)
    if root is None:
        return path
    for version in _wanted(host, root):
        if version == "system":
            return _beyond(host, name, folder) or path
        for found in _installed(host, root, version):
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


def _wanted(host: Host, root: str) -> Iterator[str]:
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


def _installed(host: Host, root: str, version: str) -> Iterator[str]:
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

"""The Pythons and package managers of this machine, found in the places that installers use."""

# Paths are texts here: links stay unresolved, as the user knows them.

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudadoctor.host import children
from cudadoctor.host.local import Host
from cudadoctor.model.versions import version_of
from cudadoctor.repair.setup.choosing import Base, Tools

ASKING_S = 5.0
MOST_ASKED = 24
_NAMES = tuple(f"python3.{minor}" for minor in range(15, 7, -1))
_QUESTION = (
    "import sys,struct,importlib.util as u;"
    "print('%d.%d.%d'%sys.version_info[:3],sys.implementation.name,struct.calcsize('P')*8,"
    "int(bool(u.find_spec('ensurepip')) and bool(u.find_spec('venv'))),"
    "int('free-threading' in sys.version),int(sys.prefix==sys.base_prefix))"
)
_ANSWER = re.compile(r"(\d+\.\d+\.\d+) cpython 64 ([01]) 0 1\s*$")
"""Of what may be taken: a common Python of 64 bits that is no environment itself."""
_LAUNCHED = re.compile(r"-\S+\s+(?:\*\s*)?([A-Za-z]:\\.*\.exe)")


def tools(host: Host) -> Tools:
    """The package managers that are there."""
    conda = host.env.get("MAMBA_EXE") or host.env.get("CONDA_EXE")
    return Tools(
        uv=_program(host, "uv", ".local/bin/uv", ".cargo/bin/uv"),
        conda=conda or _program(host, "mamba", "conda", "micromamba"),
        pixi=_program(host, "pixi", ".pixi/bin/pixi"),
    )


def found(host: Host) -> tuple[Base, ...]:
    """Every Python that answers, each program once, the first place first."""
    seen: dict[str, Base] = {}
    for path, origin in _places(host):
        real = host.stat(path).real
        if not real or real in seen or len(seen) >= MOST_ASKED:
            continue
        ran = host.run(path, "-I", "-c", _QUESTION, timeout_s=ASKING_S)
        if base := told(ran.stdout, path, origin):
            seen[real] = base
    return tuple(seen.values())


def told(answer: str, path: str, origin: str) -> Base | None:
    """A Python from its answer; None for those that torch has no wheels for anyway."""
    read = _ANSWER.match(answer)
    version = version_of(read[1]) if read else None
    if read is None or version is None:
        return None
    return Base(path=path, version=version, origin=origin, pip=read[2] == "1")


def _places(host: Host) -> Iterator[tuple[str, str]]:
    """Where Pythons lie: PATH, pyenv, uv, the launcher and installer of Windows, Homebrew."""
    windows = host.system == "Windows"
    if windows:
        yield from ((path, "py") for path in _launched(host))
    for folder in (*children.path_folders(host.env.get("PATH", "")), "/usr/bin", "/usr/local/bin"):
        # A shim answers for whatever is set where it is called: behind it are pyenv's own folders.
        if folder.rstrip("/\\").endswith("shims"):
            continue
        for name in _NAMES:
            path = os.path.join(folder, name + (".exe" if windows else ""))
            if host.stat(path).exists:
                yield path, "PATH"
    program = ("python.exe",) if windows else ("bin", "python3")
    for folder, origin in _kept(host):
        for name in reversed(host.listing(folder).names):
            path = os.path.join(folder, name, *program)
            if host.stat(path).exists:
                yield path, origin


def _kept(host: Host) -> Iterator[tuple[str, str]]:
    """Folders of which each holds many Pythons."""
    env = host.env
    home = env.get("HOME") or env.get("USERPROFILE")
    if root := env.get("PYENV_ROOT") or (home and os.path.join(home, ".pyenv")):
        yield os.path.join(root, "versions"), "pyenv"
    if named := env.get("UV_PYTHON_INSTALL_DIR"):
        yield named, "uv"
    if home:
        yield os.path.join(home, ".local", "share", "uv", "python"), "uv"
    if roaming := env.get("APPDATA"):
        yield os.path.join(roaming, "uv", "python"), "uv"
    if local := env.get("LOCALAPPDATA"):
        yield os.path.join(local, "Programs", "Python"), "python.org"


def _launched(host: Host) -> list[str]:
    """What the launcher of Windows knows: `py -0p` prints a tag and a path a line."""
    if not (launcher := host.which("py")):
        return []
    return launched(host.run(launcher, "-0p", timeout_s=ASKING_S).stdout)


def launched(text: str) -> list[str]:
    """The paths in what `py -0p` says."""
    found = [_LAUNCHED.fullmatch(line.strip()) for line in text.splitlines()]
    return list(dict.fromkeys(one[1] for one in found if one))


def _program(host: Host, *names: str) -> str | None:
    """The first that is on PATH, or (with a slash) under the home."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE") or ""
    for name in names:
        path = os.path.join(home, *name.split("/")) if "/" in name else host.which(name)
        if path and (home or "/" not in name) and host.stat(path).exists:
            return os.path.abspath(path)
    return None

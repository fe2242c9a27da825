"""What kind of environment it is, and which programs can install into it."""

from __future__ import annotations

# Paths are texts here: links stay unresolved, as the user wrote them.
# ruff: noqa: PTH118, PTH120
import os
from collections.abc import Iterator

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Manager
from cudadoctor.probes.shims import interpreter_of
from cudadoctor.probes.target import on_path_all
from cudadoctor.probes.told import PythonLine, Told

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


def managers(host: Host, told: Told, python: PythonLine, kind: str) -> tuple[Manager, ...]:
    """The programs that can install into this environment, found without running them."""
    return tuple(_managers(host, told, python, kind))


def _managers(host: Host, told: Told, python: PythonLine, kind: str) -> Iterator[Manager]:
    if told.pip:
        version = next((one.version for one in told.dists if one.name == "pip"), None)
        yield Manager(name="pip", path=python.executable, version=version or None)
    if uv := _program(host, "uv", ".local/bin/uv", ".cargo/bin/uv"):
        yield Manager(name="uv", path=uv)
    if is_pixi(python):
        if pixi := _program(host, "pixi", ".pixi/bin/pixi"):
            yield Manager(name="pixi", path=pixi)
    elif kind.startswith("conda"):
        yield from _conda(host, python)
    if kind == "poetry" and (poetry := _program(host, "poetry", ".local/bin/poetry")):
        yield Manager(name="poetry", path=poetry)
    if kind == "pipx" and (pipx := _program(host, "pipx", ".local/bin/pipx")):
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


def _program(host: Host, name: str, *in_home: str) -> str | None:
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

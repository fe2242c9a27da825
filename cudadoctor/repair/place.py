"""Which folders a repair of an interpreter may change: pure, from the facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.repair.records import Root

if TYPE_CHECKING:
    from cudadoctor.model.findings import Step
    from cudadoctor.model.machine import Machine

_OF_AN_ENVIRONMENT = (
    *("bin", "lib", "lib64", "include", "share", "etc", "man", "pyvenv.cfg"),
    *("Scripts", "Lib", "Include", ".gitignore", ".lock", "CACHEDIR.TAG"),
)
"""What package managers write at the top of a virtual environment."""
_OF_CONDA_ELSEWHERE = ("envs", "pkgs", "conda-bld", ".cudadoctor")
"""What lies in conda's prefix and belongs to other environments."""
OF_A_PROJECT = ("pixi.toml", "pixi.lock", "pyproject.toml")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a repair takes place.

    prefix: the folder with the journal. python: the interpreter to look at afterwards. made: the
    prefix is a new environment. limits: what lies outside of the roots, as a sentence.
    """

    prefix: str
    roots: tuple[Root, ...]
    python: str
    made: bool = False
    limits: str | None = None


def place_of(machine: Machine, steps: tuple[Step, ...], *, project: bool = False) -> Place | None:
    """The place of these steps; None where the environment's folder is not known.

    project: somebody's own files lie in the environment's folder too.
    """
    python = machine.python
    if not python.executable or not python.prefix:
        return None
    folder = next((made for step in steps if (made := folder_made(step))), None)
    if folder:
        return Place(
            prefix=folder,
            roots=(_environment(folder),),
            python=python_made(steps, folder),
            made=True,
        )
    return Place(
        prefix=python.prefix,
        roots=_roots(machine, python.prefix, project=project),
        python=python.executable,
        limits=_LIMITS if python.kind == "system" else None,
    )


_LIMITS = (
    "Of this Python its library folder and its scripts are recorded; what a package puts elsewhere "
    "(share, etc) would stay after an undo."
)


def _roots(machine: Machine, prefix: str, *, project: bool) -> tuple[Root, ...]:
    kind = machine.python.kind or ""
    if kind == "system":
        return _system(machine, prefix)
    if kind.startswith("conda"):
        return (Root(path=prefix, but=_OF_CONDA_ELSEWHERE), *_project(prefix))
    return _beside_a_project(machine, prefix) if project else (_environment(prefix),)


def _beside_a_project(machine: Machine, prefix: str) -> tuple[Root, ...]:
    """Of `lib` and its like only what is Python's: the rest is somebody's work."""
    own = ("pyvenv.cfg", "lib64", "Scripts", "Lib")
    return (Root(path=prefix, only=own), *_system(machine, prefix))


def _environment(prefix: str) -> Root:
    return Root(path=prefix, only=_OF_AN_ENVIRONMENT)


def _project(prefix: str) -> tuple[Root, ...]:
    """pixi writes into the files of its project too."""
    project, mark, _ = prefix.replace("\\", "/").partition("/.pixi/envs/")
    return (Root(path=project, only=OF_A_PROJECT),) if mark else ()


def _system(machine: Machine, prefix: str) -> tuple[Root, ...]:
    """The library folder of that one Python, and the scripts."""
    site = (machine.python.site_packages or "").replace("\\", "/")
    library, _, packages = site.rpartition("/")
    scripts = Root(path=f"{prefix}/bin", only=None)
    if machine.platform.system == "Windows":
        return (Root(path=f"{prefix}/Lib"), Root(path=f"{prefix}/Scripts"))
    # Debian's Python is /usr, and what pip installs for it goes to /usr/local.
    base = re.sub(r"/lib(64)?/.*", "", library)
    beside = () if base in (library, prefix) else (Root(path=f"{base}/bin"),)
    return (Root(path=library, only=(packages,)), scripts, *beside) if library else (scripts,)


def folder_made(step: Step) -> str | None:
    """The folder of the new environment that a step makes, None where it makes none."""
    for argv in step.commands:
        if "venv" in argv[:3] and len(argv) > 2:
            return argv[-1]
        if argv[1:2] == ("create",) and "-p" in argv[:-1]:
            return argv[argv.index("-p") + 1]
    return None


def python_made(steps: tuple[Step, ...], folder: str) -> str:
    """The interpreter of that environment, as the commands name it."""
    words = (word for step in steps for argv in step.commands for word in argv)
    inside = re.compile(re.escape(folder) + r"[/\\](?:(?:bin|Scripts)[/\\])?python(?:\.exe)?")
    return next((word for word in words if inside.fullmatch(word)), f"{folder}/bin/python")

"""pip, always as `<interpreter> -m pip`: the pip on PATH may belong to another Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.installers.address import interpreter
from cudadoctor.installers.index import options, pinned, source_for
from cudadoctor.installers.written import Command, Written

if TYPE_CHECKING:
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

COMPILED_HERE = frozenset(
    {
        "apex",
        "causal-conv1d",
        "deepspeed",
        "detectron2",
        "flash-attn",
        "mamba-ssm",
        "pytorch3d",
        "torch-cluster",
        "torch-scatter",
        "torch-sparse",
        "torch-spline-conv",
    }
)
"""Packages that come as source and must be built against the torch that is installed."""

_SOUND = re.compile(r"[A-Za-z0-9][^\s\x00-\x1f]*")


def write(m: Machine, change: PackageChange) -> Written:
    """The change in the examined environment."""
    python = interpreter(m)
    ensured: tuple[Command, ...] = ()
    manual = None
    if m.python.pip is False and m.python.ensurepip is False:
        manual = f"First get a pip for {python}: by the system's package manager, or use uv."
    elif m.python.pip is False:
        ensured = ((python, "-m", "ensurepip", "--upgrade"),)
    installed = install(m, change, python)
    removed = sound(change.remove)
    uninstall = ((python, "-m", "pip", "uninstall", "-y", *removed),) if removed else ()
    asked = (rehearsed(installed.commands[0], "--ignore-installed"),) if change.ask else ()
    commands = (*ensured, *asked, *uninstall, *installed.commands)
    return Written(tool="pip", commands=commands, manual=manual, note=installed.note)


def rehearsed(command: Command, *more: str) -> Command:
    """The same installation, only resolved: it fails before anything is removed."""
    verb = command.index("install") + 1
    return (*command[:verb], "--dry-run", *more, *command[verb:])


def install(m: Machine, change: PackageChange, python: str) -> Written:
    """The installing half of the change, into any interpreter's environment."""
    source = source_for(m, change, "pip")
    pip: Command = (python, "-m", "pip", "install")
    commands: list[Command] = []
    if wanted := pinned(sound(change.install), source):
        commands += _installs(pip, wanted, options(source))
    commands += _installs(pip, sound(change.then), links(change))
    return Written(tool="pip", commands=tuple(commands), note=source.note)


def sound(words: tuple[str, ...]) -> tuple[str, ...]:
    """The names and requirements that cannot be taken for options."""
    return tuple(word for word in words if _SOUND.fullmatch(word) and word.isprintable())


def links(change: PackageChange) -> Command:
    """The option for the page that has more wheels."""
    return ("--find-links", change.find_links) if change.find_links else ()


def name_of(requirement: str) -> str:
    """The name that a requirement begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0].lower() if found else requirement


def split_compiled(requirements: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Requirements that come as wheels, and those that are compiled against torch."""
    compiled = tuple(one for one in requirements if name_of(one) in COMPILED_HERE)
    return tuple(one for one in requirements if one not in compiled), compiled


def _installs(pip: Command, wanted: tuple[str, ...], options: Command) -> list[Command]:
    wheels, compiled = split_compiled(wanted)
    commands = [(*pip, *wheels, *options)] if wheels else []
    if compiled:
        # Where a page of wheels is named, the wheel is taken; else it is compiled.
        more = options if "--find-links" in options else ()
        commands.append((*pip, "--no-build-isolation", "--no-cache-dir", *compiled, *more))
    return commands

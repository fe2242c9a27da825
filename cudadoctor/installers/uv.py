"""uv, for environments that it made or that have no pip: `uv pip ... --python <interpreter>`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.installers.address import interpreter, manager
from cudadoctor.installers.index import pinned, source_for, uv_options
from cudadoctor.installers.pip import links, rehearsed, sound, split_compiled
from cudadoctor.installers.written import Command, Written

if TYPE_CHECKING:
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine


def write(m: Machine, change: PackageChange) -> Written:
    """The change in the examined environment."""
    uv = manager(m, "uv") or "uv"
    python = interpreter(m)
    installed = install(m, change, uv, python)
    removed = sound(change.remove)
    pip = (uv, *in_project(m), "pip")
    uninstall = ((*pip, "uninstall", "--python", python, *removed),) if removed else ()
    asked = (rehearsed(installed.commands[0], "--reinstall"),) if change.ask else ()
    commands = (*asked, *uninstall, *installed.commands)
    return Written(tool="uv", commands=commands, note=installed.note)


def in_project(m: Machine) -> Command:
    """The option for the project whose settings name the index: uv reads those of its folder."""
    origin = (m.python.index.origin if m.python.index else None) or ""
    found = re.fullmatch(r"([^~<].*)[/\\](?:uv|pyproject)\.toml", origin)
    if (
        m.redacted
        or found is None
        or not re.match(re.escape(found[1]) + r"[/\\]", m.python.prefix or "")
    ):
        return ()
    return ("--directory", found[1])


def install(m: Machine, change: PackageChange, uv: str, python: str) -> Written:
    """The installing half of the change, into any interpreter's environment."""
    source = source_for(m, change, "uv")
    start: Command = (uv, *in_project(m), "pip", "install", "--python", python)
    commands: list[Command] = []
    for wanted, more in (
        (pinned(sound(change.install), source), uv_options(source)),
        (sound(change.then), links(change)),
    ):
        wheels, compiled = split_compiled(wanted)
        if wheels:
            commands.append((*start, *wheels, *more))
        if compiled:
            found = more if "--find-links" in more else ()
            commands.append((*start, "--no-build-isolation", *compiled, *found))
    return Written(tool="uv", commands=tuple(commands), note=source.note)

"""pixi, whose environments belong to a project file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.dialects.address import manager
from cudadoctor.dialects.conda import conda_name, specs_of
from cudadoctor.dialects.pip import sound
from cudadoctor.dialects.written import Command, Written
from cudadoctor.findings import Edit

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import PackageChange
    from cudadoctor.knowledge import Knowledge


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The change in the pixi project that the examined environment belongs to."""
    pixi = manager(m, "pixi") or "pixi"
    project = project_of(m)
    where: Command = ("--manifest-path", project) if project else ()
    specs = specs_of(m, kb, change)
    commands: list[Command] = []
    gone = tuple(conda_name(name) for name in sound(change.remove))
    if gone and not specs:
        commands.append((pixi, "remove", *where, *gone))
    if specs:
        commands.append((pixi, "add", *where, *specs))
    edits: tuple[Edit, ...] = ()
    if change.cuda and specs:
        major = change.cuda.partition(".")[0]
        edits = (Edit(file="pixi.toml", what=f'[system-requirements]\ncuda = "{major}"'),)
    return Written(tool="pixi", commands=tuple(commands), edits=edits)


def project_of(m: Machine) -> str | None:
    """The folder of the project: what lies before .pixi/envs in the environment's path."""
    prefix = (m.python.prefix or "").replace("\\", "/")
    project, mark, _ = prefix.partition("/.pixi/envs/")
    return project if mark and not project.startswith(("~", "<")) else None

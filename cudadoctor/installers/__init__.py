"""How package changes are written for pip, uv, conda, pixi and docker, and for projects.

Commands are argument vectors, fully expanded: no shell has to understand them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers import conda, docker, environment, pip, pixi, projects, uv
from cudadoctor.installers.address import manager
from cudadoctor.installers.written import Written, joined

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Dialect, PackageChange
    from cudadoctor.model.machine import Machine

__all__ = ["Written", "dialect_of", "write"]


def write(m: Machine, kb: Knowledge, change: PackageChange, wish: Dialect | None = None) -> Written:
    """The change in the words of the wished manager, else of the one that fits."""
    dialect = wish or dialect_of(m)
    if dialect == "conda":
        return conda.write(m, kb, change)
    if dialect == "pixi":
        return pixi.write(m, kb, change)
    if dialect == "docker":
        return docker.write(m, kb, change)
    if environment.is_closed(m):
        return environment.beside(m, change)
    tool = projects.tool_of(m)
    owner = tool if wish is None or wish == tool else None
    found = projects.write(m, kb, change, owner) if owner else None
    return found or _in_place(m, change, dialect)


def _in_place(m: Machine, change: PackageChange, dialect: Dialect) -> Written:
    """The change in the environment itself; a project that owns it will not keep it."""
    made = uv.write(m, change) if dialect == "uv" else pip.write(m, change)
    return msgspec.structs.replace(made, note=joined(made.note, projects.in_vain(m)))


def dialect_of(m: Machine) -> Dialect:
    """The manager that fits the examined environment.

    What conda installed is changed by conda; a torch that pip put into a conda environment, by pip.
    """
    if _installed_by_conda(m):
        inside_pixi = pixi.project_of(m) is not None and manager(m, "pixi") is not None
        return "pixi" if inside_pixi else "conda"
    if m.python.pip is False and manager(m, "uv"):
        return "uv"
    return "pip"


def _installed_by_conda(m: Machine) -> bool:
    if not (m.python.kind or "").startswith("conda"):
        return False
    if m.torch.installer:
        return m.torch.installer == "conda"
    first = (m.torch.copies or (None,))[0]
    if first is not None:
        return first.kind == "conda"
    # Nothing is there yet: pip serves where it is, since the tables are about its wheels.
    return m.python.pip is False and manager(m, "uv") is None

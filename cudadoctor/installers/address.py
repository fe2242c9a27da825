"""How commands name the examined interpreter and its package managers: by path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.trust import PLACEHOLDER

if TYPE_CHECKING:
    from cudadoctor.model.machine import Machine


def interpreter(m: Machine) -> str:
    """The examined interpreter's path; the placeholder where it is not known or redacted."""
    path = m.python.executable
    if not path or path.startswith(("~", "<")):
        return PLACEHOLDER
    return path


def manager(m: Machine, *names: str) -> str | None:
    """The path of the first of these package managers that is there."""
    for name in names:
        for one in m.python.managers or ():
            if one.name == name:
                return one.path or one.name
    return None


def parent(m: Machine, *parts: str) -> str:
    """A path of that machine's system from its parts."""
    mark = "\\" if m.platform.system == "Windows" else "/"
    return mark.join((parts[0].rstrip(mark), *parts[1:]))


def within(m: Machine, folder: str, *, conda: bool = False) -> str:
    """The interpreter of an environment in that folder."""
    if m.platform.system == "Windows":
        inside = ("python.exe",) if conda else ("Scripts", "python.exe")
        return parent(m, folder, *inside)
    return parent(m, folder, "bin", "python")

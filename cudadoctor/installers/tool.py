"""What an install tool is, and how commands name interpreters, programs and folders.

Commands are argument vectors, fully expanded: no shell has to understand them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import Dialect, Edit, FileKind, PackageChange
from cudadoctor.model.machine import Machine, OptStr, Strings
from cudadoctor.model.trust import PLACEHOLDER

if TYPE_CHECKING:
    from cudadoctor.installers.stack import Stack

Command = Strings
Hashes = Mapping[tuple[str, str], Strings]
"""(name, version) -> SHA-256 digests of the files of that release, in hexadecimal."""
BESIDE = ".venv-"
"""How the name of a new environment begins that is made where the reader stands."""


class Written(Struct, frozen=True, kw_only=True):
    """Commands (or edits) that make a package change, and which tool they are for.

    wheels: it takes wheels, not a channel's packages.
    """

    tool: str
    commands: tuple[Command, ...] = ()
    edits: tuple[Edit, ...] = ()
    manual: OptStr = None
    note: OptStr = None
    wheels: bool = True


class Tool(Struct, frozen=True, kw_only=True):
    """A program that installs packages.

    programs: the names that it goes by, the preferred one first. fits: whether it is the one for
    the examined environment. write: a change in its words. kind, file: its project file, as
    `fix --as` and as the tool itself call it. text: that whole file for a stack.
    """

    name: Dialect
    programs: Strings
    fits: Callable[[Machine], bool]
    write: Callable[[Machine, Knowledge, PackageChange], Written]
    kind: FileKind
    file: str
    text: Callable[[Stack, Knowledge, Hashes | None], str]


def joined(*notes: OptStr) -> OptStr:
    """Several notes as one, None if there are none."""
    return " ".join(note for note in notes if note) or None


def interpreter(m: Machine) -> str:
    """The examined interpreter's path; the placeholder if it is not known or redacted."""
    path = m.python.executable
    return PLACEHOLDER if not path or path.startswith(("~", "<")) else path


def manager(m: Machine, *names: str) -> OptStr:
    """The path of the first of these programs that the machine has."""
    found = (
        program for name in names for program in m.python.managers or () if program.name == name
    )
    return next((program.path or program.name for program in found), None)


def parent(m: Machine, *parts: str) -> str:
    """A path of that machine's system from its parts."""
    mark = "\\" if m.platform.system == "Windows" else "/"
    return mark.join((parts[0].rstrip(mark), *parts[1:]))


def within(m: Machine, folder: str, *, conda: bool = False) -> str:
    """The interpreter of an environment in that folder."""
    if m.platform.system != "Windows":
        return parent(m, folder, "bin", "python")
    return parent(m, folder, "python.exe") if conda else parent(m, folder, "Scripts", "python.exe")


def folder_for(m: Machine, name: str) -> str:
    """Where a new environment of that name is made."""
    home = m.identity.home
    return f"{BESIDE}{name}" if not home or m.redacted else parent(m, home, ".venvs", name)

"""What an install tool is, and how commands name interpreters, programs and folders.

Commands are argument vectors, fully expanded: no shell has to understand them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import Edit, PackageChange
from cudadoctor.model.machine import Machine, OptStr, Strings
from cudadoctor.model.trust import PLACEHOLDER

if TYPE_CHECKING:
    from cudadoctor.installers.stack import Stack

Command = Strings
Hashes = Mapping[tuple[str, str], Strings]
"""(name, version) -> SHA-256 digests of the files of that release, in hexadecimal."""
BESIDE = ".venv-"
"""How the name of a new environment begins that is made where the reader stands."""


def interpreter(m: Machine) -> str:
    """The examined interpreter's path; the placeholder if it is not known or redacted."""
    path = m.python.executable
    return PLACEHOLDER if not path or path.startswith(("~", "<")) else path


class Written(Struct, frozen=True, kw_only=True):
    """Commands (or edits) that make a package change, and which tool they are for.

    wheels: it takes wheels, not a channel's packages. system: what root must install first.
    """

    tool: str
    commands: tuple[Command, ...] = ()
    edits: tuple[Edit, ...] = ()
    manual: OptStr = None
    note: OptStr = None
    wheels: bool = True
    system: tuple[Command, ...] = ()


class Wanted(Struct, frozen=True, kw_only=True):
    """A new environment that a tool is to make.

    folder: absolute. program: the tool's path. python: its release, "3.11". base: the interpreter
    to make it from, None: the tool fetches one.
    """

    machine: Machine
    kb: Knowledge
    build: TorchBuild
    change: PackageChange
    folder: str
    program: str
    python: str
    base: OptStr = None


class Recipe(Struct, frozen=True, kw_only=True):
    """How a tool makes an environment.

    python: the interpreter that it will have. files: names in the folder -> text, written before
    the commands run. alone: the tool makes the folder itself and takes none that is there. use: its
    own ways to work in the environment, by name; scripts: there are activation scripts.
    """

    wanted: Wanted
    python: str
    commands: tuple[Command, ...]
    files: dict[str, str] = {}
    alone: bool = False
    note: OptStr = None
    use: Mapping[str, Command] = {}
    scripts: bool = True


class Tool(Struct, frozen=True, kw_only=True):
    """A program that installs packages.

    programs: the names that it goes by, the preferred one first. fits: whether it is the one for
    the examined environment. write: a change in its words. kind, file: its project file, as
    `fix --as` and as the tool itself call it. text: that whole file for a stack.
    new: how `setup` makes an environment with it, None if it makes none; makes: what that is.
    found: where its program is looked for before PATH ($VARIABLE) and after it (below the home).
    brings_python: its environments always have a Python of their own. changed: the interpreter
    that a change reaches, None if no environment of this machine does.
    """

    name: str
    programs: Strings
    fits: Callable[[Machine], bool]
    write: Callable[[Machine, Knowledge, PackageChange], Written]
    kind: str
    file: str
    text: Callable[[Stack, Knowledge, Hashes | None], str]
    new: Callable[[Wanted], Recipe] | None = None
    makes: str = ""
    found: Strings = ()
    brings_python: bool = False
    changed: Callable[[Machine], OptStr] = interpreter


def joined(*notes: OptStr) -> OptStr:
    """Several notes as one, None if there are none."""
    return " ".join(note for note in notes if note) or None


def manager(m: Machine, *names: str) -> OptStr:
    """The path of the first of these programs that the machine has."""
    found = (
        program for name in names for program in m.python.managers or () if program.name == name
    )
    told = "uv" if "uv" in names and is_of_uv(m) else None
    return next((program.path or program.name for program in found), told)


def is_of_uv(m: Machine) -> bool:
    """Whether a report shows that uv made its environment, which then has no pip."""
    return m.look == "report" and "uv" in (m.python.kind, m.python.project_tool)


def parent(m: Machine, *parts: str) -> str:
    """A path of that machine's system from its parts."""
    mark = "\\" if m.platform.system == "Windows" else "/"
    return mark.join((parts[0].rstrip(mark), *parts[1:]))


_INSTALL = {
    "apt-get": ("install", "-y"),
    "dnf": ("install", "-y"),
    "zypper": ("install", "-y"),
    "pacman": ("-S", "--needed"),
    "apk": ("add",),
    "xbps-install": ("-S",),
    "emerge": (),
}
"""What a distribution's package manager takes before the names of packages."""


def system_packages(manager: str, *names: str) -> tuple[Command, ...]:
    """The commands that install packages with a distribution's package manager."""
    # Only apt's list of packages has to be brought up to date by hand.
    update = (("apt-get", "update"),) if manager == "apt-get" else ()
    return (*update, (manager, *_INSTALL[manager], *names))


def venv_package(m: Machine) -> tuple[Command, ...]:
    """Debian and its kin keep venv and ensurepip in a package of its own."""
    if not {"debian", "ubuntu"} & {m.platform.distro, *(m.platform.distro_like or ())}:
        return ()
    if m.python.base_prefix not in (None, "", "/usr"):
        return ()  # pyenv's, Homebrew's or another Python that brings its own venv
    version = m.python.version
    name = f"python{version.major}.{version.minor}-venv" if version else "python3-venv"
    return system_packages("apt-get", name)


def within(m: Machine, folder: str, *, conda: bool = False) -> str:
    """The interpreter of an environment in that folder."""
    if m.platform.system != "Windows":
        return parent(m, folder, "bin", "python")
    return parent(m, folder, "python.exe") if conda else parent(m, folder, "Scripts", "python.exe")


def folder_for(m: Machine, name: str) -> str:
    """Where a new environment of that name is made."""
    home = m.identity.home
    return f"{BESIDE}{name}" if not home or m.redacted else parent(m, home, ".venvs", name)

"""Making the environment: its folder, what is run and written there, and its end."""

import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise
from os.path import abspath, basename, dirname, isdir, realpath
from pathlib import Path

from msgspec import Struct

from cudadoctor.cli.output import Waiting
from cudadoctor.cli.speech import say
from cudadoctor.host import local
from cudadoctor.host.signals import Interrupts
from cudadoctor.installers.registry import BY_NAME
from cudadoctor.installers.tool import Recipe, Wanted
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import OptInt, OptStr, Strings
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.render import inert
from cudadoctor.repair.journal import lock
from cudadoctor.repair.session import Command, Failed, environment
from cudadoctor.repair.setup.choosing import Chosen

# Paths are texts here: what the user typed is shown as it was typed.


MARKER = ".cudadoctor-setup"
"""A file in the folder from before the first command until the last has ended: it is ours."""

_SYSTEM = re.compile(
    r"/(?:(?:usr/(?:local/)?)?(?:bin|sbin|lib(?:32|64|x32|exec)?|include)"
    r"|etc|boot|dev(?!/shm)|proc|sys|System|Library)(?:/|$)"
)
_WINDOWS_SYSTEM = re.compile(r"(?i)[a-z]:[/\\](?:windows|program files(?: \(x86\))?)(?:[/\\]|$)")
_OF_PACKAGES = ("site-packages", "dist-packages")


class Place(Struct, frozen=True, kw_only=True):
    """What is at a path, and around it.

    path: absolute, as it was named. real: behind all links. kind: absent, folder, file, link.
    entries: what lies in the folder. parent: of the folder; None where the parent is not there.
    owner, parent_owner: user numbers, None where there are none (Windows) or nothing is there.
    user: who runs the doctor. inside: an environment that the path lies in. why: it cannot be
    looked at.
    """

    path: str
    real: str
    kind: str = "absent"
    entries: Strings = ()
    parent: str = ""
    parent_there: bool = True
    parent_writable: bool = True
    writable: bool = True
    owner: OptInt = None
    parent_owner: OptInt = None
    user: OptInt = None
    inside: OptStr = None
    why: OptStr = None

    @property
    def ours(self) -> bool:
        """Whether a setup that did not come to its end has left this folder."""
        return self.kind == "folder" and MARKER in self.entries


def refusal(place: Place) -> OptStr:
    """Why no environment may be made there, as one sentence; None where one may."""
    if place.why:
        template = "cannot access {path} ({reason}); choose another folder"
        return say(template, path=place.path, reason=place.why)
    return next(chain(_by_name(place), _by_kind(place), _by_rights(place)), None)


def _by_name(place: Place) -> Iterator[str]:
    """Names that no environment can live under."""
    name = place.path
    if not name.isprintable():
        yield say("{path} contains unprintable characters; choose another name", path=inert(name))
    separator = ";" if re.match(r"[A-Za-z]:", name) else ":"
    if separator in name:
        template = "{path} contains '{mark}', which separates folders in PATH; choose another name"
        yield say(template, path=name, mark=separator)
    for packages in {*_OF_PACKAGES} & {*re.split(r"[/\\]", place.real)}:
        template = (
            "{path} is inside the {packages} folder of an environment; choose a folder outside "
            "that environment"
        )
        yield say(template, path=name, packages=packages)
    if _SYSTEM.match(place.real) or _WINDOWS_SYSTEM.match(place.real):
        yield say("{path} belongs to the system; choose a folder of your own", path=name)
    if place.inside and place.inside != place.real:
        template = (
            "{path} is inside the environment {inside}; choose a folder outside that environment"
        )
        yield say(template, path=name, inside=place.inside)


def _by_kind(place: Place) -> Iterator[str]:
    name = place.path
    if place.kind == "link":
        yield say(
            "{path} is a link to {real}; specify that folder instead", path=name, real=place.real
        )
    if place.kind == "file":
        yield say("{path} is a file; specify a folder that does not exist yet", path=name)
    if not place.parent_there:
        yield say("{path} does not exist; create it first", path=place.parent)
    if place.entries and not place.ours:
        found = ", ".join(place.entries[:3]) + (", ..." if len(place.entries) > 3 else "")
        template = "{path} is not empty ({names}); specify a folder that does not exist yet"
        yield say(template, path=name, names=found)


def _by_rights(place: Place) -> Iterator[str]:
    """Root could write everywhere, and would leave files that their owner cannot remove."""
    name, there = place.path, place.kind == "folder"
    owner = place.owner if there else place.parent_owner
    if place.user == 0 and owner not in (None, 0):
        template = "you are root, but {path} belongs to user {owner}; run this as that user"
        yield say(template, path=name if there else place.parent, owner=owner)
    if there and not place.writable:
        yield say("you cannot write to {path}; choose another folder", path=name)
    if not there and not place.parent_writable:
        yield say("you cannot write to {path}; choose another folder", path=place.parent)


def looked_at(folder: str) -> Place:
    """What is at that path now."""
    path = folder
    try:
        path = abspath(os.path.expanduser(folder))
        return _seen(path, dirname(path))
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        return Place(path=path, real=path, parent=dirname(path), why=words)


def _seen(path: str, parent: str) -> Place:
    real, kind, owner = realpath(path), "absent", None
    entries: Strings = ()
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.lstat(path)
        kinds = {stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
        owner, kind = found.st_uid, kinds.get(stat.S_IFMT(found.st_mode), "file")
        entries = tuple(sorted(os.listdir(path))) if kind == "folder" else ()
    there = isdir(parent)
    posix = hasattr(os, "geteuid")
    return Place(
        path=path,
        real=real,
        kind=kind,
        entries=entries,
        parent=parent,
        parent_there=there,
        parent_writable=os.access(parent, os.W_OK | os.X_OK),
        writable=kind != "folder" or os.access(path, os.W_OK | os.X_OK),
        owner=owner if posix else None,
        parent_owner=os.stat(parent).st_uid if there and posix else None,
        user=os.geteuid() if posix else None,
        inside=next(_environments(real), None),
    )


def _environments(real: str) -> Iterator[str]:
    """The environments that a path lies in; those of conda hold others under envs."""
    path = Path(real)
    for inner, folder in pairwise((path, *path.parents)):
        of_conda = inner.name != "envs" and (folder / "conda-meta").is_dir()
        if of_conda or (folder / "pyvenv.cfg").exists():
            yield str(folder)


def recipe(chosen: Chosen, folder: str, programs: Mapping[str, str], kb: Knowledge) -> Recipe:
    """How what was chosen is made in that folder (absolute). programs: paths by tool."""
    new, build, machine = BY_NAME[chosen.tool].new, chosen.build, chosen.machine
    change = remedy_for(build, machine, kb).packages if build else None
    if build is None or change is None or new is None:
        raise ValueError("nothing was selected, so nothing can be created")
    return new(
        Wanted(
            machine=machine,
            kb=kb,
            build=build,
            change=change,
            folder=folder,
            program=programs.get(chosen.tool, chosen.tool),
            python=chosen.python,
            base=chosen.base.path if chosen.base else None,
        )
    )


SCRATCH = f"{MARKER}-tmp"
TEXT = "cudadoctor setup is making this environment, or was killed while it did.\n"


class Busy(Exception):  # noqa: N818 - a state of the world, told in one sentence
    """Another setup works in this folder."""


class Workplace:
    """The folder while it is ours. kept: it was there before, empty, and stays so."""

    def __init__(self, place: Place, *, alone: bool) -> None:
        self.path = Path(place.path)
        self.kept = place.kind == "folder" and not place.ours
        self.lock: OptInt = None
        if place.ours:
            # What a setup left that was killed goes.
            self.lock = os.open(self.path / MARKER, os.O_RDWR)
            self._hold_or_leave()
            if left := self.remove():
                raise OSError(f"{left} cannot be removed")
        if alone:
            self.kept = False
            with suppress(FileNotFoundError):
                self.path.rmdir()
        else:
            self.path.mkdir(exist_ok=self.kept or place.ours)
            self.mark()
            self.scratch.mkdir()

    @property
    def scratch(self) -> Path:
        """For temporary files of the commands: on the same disk, and removed with the rest."""
        return self.path / SCRATCH

    def mark(self) -> None:
        """Put the marker there, as soon as there is a folder, and hold it."""
        if self.lock is not None or not self.path.is_dir():
            return
        self.lock = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT, 0o600)
        self._hold_or_leave()
        os.write(self.lock, TEXT.encode())

    def _hold_or_leave(self) -> None:
        """Hold the marker; raises Busy where another setup, or what it had started, does."""
        assert self.lock is not None
        try:
            if sys.platform != "win32":  # an open file cannot be removed there, which does as well
                lock(self.lock)
        except BlockingIOError:
            os.close(self.lock)
            self.lock = None
            raise Busy from None

    def finish(self) -> None:
        """It is an environment now, and no longer ours to remove."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._unmark()

    def remove(self) -> OptStr:
        """Take away what was made; the first thing that could not be, None where all is gone.

        The marker goes last: what a second interruption leaves is still known to be ours.
        """
        for entry in _entries(self.path):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with suppress(OSError):
                    entry.unlink()
        if left := _entries(self.path):
            return str(left[0])
        self._unmark()
        if not self.kept:
            with suppress(OSError):
                self.path.rmdir()
        return None

    def _unmark(self) -> None:
        if sys.platform == "win32":  # an open file cannot be removed there
            self._let_go()
        (self.path / MARKER).unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def make(workplace: Workplace, recipe: Recipe, waiting: Waiting, interrupts: Interrupts) -> None:
    """Write the files and run the commands, each only if the one before it ended well.

    Raises Failed, also where a signal told the doctor to stop.
    """
    try:
        for name, text in recipe.files.items():
            (workplace.path / name).write_text(text, encoding="utf-8")
    except OSError as error:
        text = say("cannot write to {path}: {reason}", path=error.filename, reason=error.strerror)
        raise Failed(text) from error
    for argv in recipe.commands:
        if interrupts():
            raise Failed(say("interrupted"))
        _run(argv, workplace, waiting, interrupts)


def _run(argv: Strings, workplace: Workplace, waiting: Waiting, interrupts: Interrupts) -> None:
    def stopped() -> bool:
        # A folder that the tool has made by now gets its marker.
        with suppress(OSError, Busy):
            workplace.mark()
        return interrupts()

    scratch = str(workplace.scratch) if workplace.scratch.is_dir() else None
    # Never in the folder that the user stands in: a venv.py may lie there.
    folder = scratch or local.this_host().place
    # The lock stays held while this child lives, also where the doctor is killed.
    held = () if workplace.lock is None else (workplace.lock,)
    try:
        command = Command(argv, clean(os.environ, scratch), folder, waiting.line, held)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        text = say("cannot start {program}: {reason}", program=argv[0], reason=words)
        raise Failed(text) from error
    command.go()
    waiting(name_of(argv), True)
    code = command.wait(stopped, math.inf)
    waiting(name_of(argv), False)
    if interrupts() or code is None:
        raise Failed(say("interrupted"), tuple(command.lines))
    if code:
        template = "`{command}` failed with exit code {code}"
        if code < 0:
            template = "`{command}` was killed by signal {code}"
        raise Failed(say(template, command=name_of(argv), code=abs(code)), tuple(command.lines))


def _entries(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.name != MARKER]
    except OSError:
        return []


_MISLEADING = (
    *("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__", "PIP_REPORT"),
    *("PIP_QUIET", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR", "UV_FROZEN", "UV_NO_SYNC"),
)
"""Variables, beside those of a repair, that lead elsewhere than into the new environment."""


def clean(env: Mapping[str, str], scratch: OptStr = None) -> dict[str, str]:
    """The environment for a package manager: nothing that leads it elsewhere or lets it ask.

    scratch: for its temporary files, where the user has named no place for them: /tmp may be small.
    """
    temporary = {} if scratch is None else {"TMPDIR": env.get("TMPDIR", scratch)}
    return environment(env, dict.fromkeys(_MISLEADING) | temporary)


def name_of(argv: Strings) -> str:
    """What a command is called while it is waited for: the module that a Python runs, else it."""
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1]
    return basename(argv[0])

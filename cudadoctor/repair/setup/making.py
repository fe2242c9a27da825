"""Making the folder and running the commands in it: all of it, or nothing of it stays.

A marker lies in the folder while it is being made, and is locked by the doctor and by the command
that it runs: it proves that the folder is ours, and tells whether somebody still works in it. A
kill -9 leaves folder and marker; the next setup for that folder starts over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.repair.setup.place import MARKER, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.repair.setup.recipe import Recipe

SCRATCH = f"{MARKER}-tmp"
TEXT = "cudadoctor setup is making this environment, or was killed while it did.\n"


class Busy(Exception):  # noqa: N818 - a state of the world, told in one sentence
    """Another setup works in this folder."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. why: a sentence where it failed. said: its last lines.

    signal: the one that told the doctor to stop.
    """

    why: str | None = None
    said: tuple[str, ...] = ()
    signal: int | None = None


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """How the making ended. failed: the command that did. why: a sentence, None where all is well.

    said: the last lines of that command. signal: the number of the one that ended it.
    """

    why: str | None = None
    failed: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    signal: int | None = None


class Workplace:
    """The folder while it is ours. kept: it was there before, empty, and stays so."""

    def __init__(self, place: Place, *, alone: bool) -> None:
        self.path = Path(place.path)
        self.kept = place.kind == "folder" and not place.ours
        self.lock: int | None = None
        if place.ours:
            self._take_over()
        if alone:
            self.kept = False
            with contextlib.suppress(FileNotFoundError):
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

    def mark_late(self) -> None:
        """The same for a folder that a tool makes, while it is at work."""
        with contextlib.suppress(OSError, Busy):
            self.mark()

    def _take_over(self) -> None:
        """Remove what a setup left that was killed."""
        self.lock = os.open(self.path / MARKER, os.O_RDWR)
        self._hold_or_leave()
        if left := self.remove():
            raise OSError(f"{left} cannot be removed")

    def _hold_or_leave(self) -> None:
        """Hold the marker; raises Busy where another setup, or what it had started, does."""
        assert self.lock is not None
        try:
            _hold(self.lock)
        except BlockingIOError:
            os.close(self.lock)
            self.lock = None
            raise Busy from None

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")

    def finish(self) -> None:
        """It is an environment now, and no longer ours to remove."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._unmark()

    def remove(self) -> str | None:
        """Take away what was made; the first thing that could not be, None where all is gone.

        The marker goes last: what a second interruption leaves is still known to be ours.
        """
        for entry in _entries(self.path):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()
        left = _entries(self.path)
        if left:
            return str(left[0])
        self._unmark()
        if not self.kept:
            with contextlib.suppress(OSError):
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


def make(workplace: Workplace, recipe: Recipe, run: Callable[[tuple[str, ...]], Ended]) -> Made:
    """Write the files and run the commands, each only where the one before it has ended well."""
    try:
        workplace.write(recipe.files)
    except OSError as error:
        return Made(why=f"{error.filename} cannot be written: {error.strerror}")
    for command in recipe.commands:
        ended = run(command)
        if ended.why is not None or ended.signal is not None:
            return Made(why=ended.why, failed=command, said=ended.said, signal=ended.signal)
    return Made()


def _entries(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if one.name != MARKER]
    except OSError:
        return []


def _hold(handle: int) -> None:
    """Lock it for as long as this handle, or a child that inherited it, is open."""
    if sys.platform == "win32":  # an open file cannot be removed there, which does as well
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: the marker alone has to do
        return

"""The journal on disk, synced record by record, and the lock that lets one repair run at a time."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sys
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.repair.belongs import demand_own
from cudadoctor.repair.records import JournalError, Record, Story, line_of, open_story, read
from cudadoctor.repair.records import stories as told_by

if TYPE_CHECKING:
    from types import TracebackType

FOLDER = ".cudadoctor"
NAME = "journal.jsonl"


class Busy(Exception):  # noqa: N818 - told in one sentence
    """Another repair of the same environment is running."""


class Journal:
    """The journal of one environment. folder: `<prefix>/.cudadoctor`.

    Held as a context, it is locked against other repairs of the same environment.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, NAME)
        self._lock: int | None = None

    @classmethod
    def of(cls, prefix: str) -> Journal:
        return cls(os.path.join(prefix, FOLDER))

    @property
    def exists(self) -> bool:
        return os.path.exists(self.path)

    def stories(self) -> tuple[Story, ...]:
        """The repairs that it tells of. Raises JournalError where it cannot be acted upon."""
        try:
            with open(self.path, "rb") as file:
                return told_by(read(file.read()))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise JournalError(f"{self.path} cannot be read ({error.strerror})") from error

    def open_story(self) -> Story | None:
        """The repair that can be undone, if any."""
        return open_story(self.stories())

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on disk, before what it announces is done."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        new = not self.exists
        self._unshared()
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        try:
            os.ftruncate(number, _whole(number))
            os.lseek(number, 0, os.SEEK_END)
            _write(number, line_of(msgspec.structs.replace(record, at=now)))
            os.fsync(number)
        finally:
            os.close(number)
        if new:
            synced_folder(self.folder)

    def _unshared(self) -> None:
        """A copy of the environment made of hard links must not write into this one's journal."""
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self.path).st_nlink > 1:
                shutil.copy2(self.path, f"{self.path}.new")
                os.replace(f"{self.path}.new", self.path)

    def __enter__(self) -> Journal:
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        demand_own(self.folder)
        self._lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _locked(self._lock)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Busy(self.folder) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _whole(number: int) -> int:
    """Where the last whole line ends: what a kill cut off is overwritten."""
    size = os.fstat(number).st_size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        os.lseek(number, start, os.SEEK_SET)
        found = os.read(number, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def _locked(number: int) -> None:
    """Lock the file for this process. Raises BlockingIOError where another one holds it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        return
    import fcntl

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks: nothing keeps two repairs apart there


def synced_folder(path: str) -> None:
    """Wait until the names in a folder are on disk."""
    with contextlib.suppress(OSError):  # Windows opens no folders
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

"""The first child starts before the command line is parsed: it looks while the rest is loaded.

What is guessed wrong here costs a child that nobody listens to, and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence

from cudadoctor.host.local import LocalHost

_LOOKING = frozenset({"check", "fix", "facts", "smoke"})
_NOT_HERE = ("--from", "--help", "-h")
_OPEN: list[LocalHost] = []
_LOCKS: list[int] = []
"""Handles on our folder: while one is open, no other start takes it for a dead run's."""
MOST_NAMES = 1024


def host() -> LocalHost:
    """The one door to this machine, with a scratch folder that `end` removes."""
    if not _OPEN:
        _OPEN.append(LocalHost(_folder()))
        if scratch := _OPEN[0].scratch:
            sweep(os.path.dirname(scratch))
    return _OPEN[0]


def begin(argv: Sequence[str]) -> None:
    """Start the look at the interpreter that these words will most likely examine."""
    if not argv or argv[0] not in _LOOKING or any(word.startswith(_NOT_HERE) for word in argv):
        return
    from cudadoctor.probes import target

    door = host()
    try:
        chosen = target.choose(door, _named(argv))
    except target.UsageError:
        return  # told in its turn
    door.begin("look.py", chosen.executable)


def end() -> None:
    """End every child that still runs, and remove what they wrote."""
    while _OPEN:
        door = _OPEN.pop()
        door.close()
        if door.scratch:
            _remove(door.scratch)
    while _LOCKS:
        os.close(_LOCKS.pop())


def _named(argv: Sequence[str]) -> str | None:
    for number, word in enumerate(argv):
        if word == "--python" and number + 1 < len(argv):
            return argv[number + 1]
        if word.startswith("--python="):
            return word.partition("=")[2]
    return None


def _folder() -> str | None:
    """A folder of our own, unreadable to others; None where no place for one can be written to."""
    for parent in (os.environ.get("TMPDIR"), "/tmp", os.environ.get("TEMP"), os.curdir):
        try:
            if parent:
                # Of a working folder that is gone not even the name can be had.
                return _made(os.path.abspath(parent))
        except OSError:
            continue
    return None


_OURS = "cudadoctor-"


def _made(parent: str) -> str:
    """A new folder that we hold; another name if another start has swept it before that."""
    for last in (False, False, True):
        path = os.path.join(parent, f"{_OURS}{os.urandom(8).hex()}")
        os.mkdir(path, 0o700)
        if (lock := _held(path)) is not None:
            _LOCKS.append(lock)
            break
        if last or os.name != "posix":
            break  # a file system without locks: nobody sweeps there either
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return path


def sweep(parent: str) -> None:
    """Remove the folders of runs that were killed: ours by name and owner, held by nobody."""
    if os.name != "posix":  # there is no lock that ends with its process
        return
    try:
        with os.scandir(parent) as entries:
            for entry in itertools.islice(entries, MOST_NAMES):
                digits = entry.name[len(_OURS) :] if entry.name.startswith(_OURS) else ""
                if len(digits) == 16 and not digits.strip("0123456789abcdef"):
                    _sweep(entry.path)
    except OSError:
        return


def _sweep(path: str) -> None:
    lock = _held(path)
    if lock is None:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            _remove(path)
    finally:
        os.close(lock)


def _held(path: str) -> int | None:
    """A lock on a real folder that ends with its holder; None if another has it, or nobody can."""
    if os.name != "posix":
        return None
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        import shutil

        if not _is_mounted_below(path):
            with contextlib.suppress(RecursionError):  # a tree as deep as Python's own stack
                shutil.rmtree(path, ignore_errors=True)


def _is_mounted_below(path: str) -> bool:
    """Whether another file system, or another part of this one, begins inside: it is not ours."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return any(f" {os.path.realpath(path)}/" in line for line in mounts)
    except OSError:
        return False

"""The first child starts before the command line is parsed: it looks while the rest is loaded.

What is guessed wrong here costs a child that nobody listens to, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cudadoctor.host import LocalHost

_LOOKING = frozenset({"check", "fix", "facts", "smoke"})
_NOT_HERE = ("--from", "--help", "-h")
_OPEN: list[LocalHost] = []


def host() -> LocalHost:
    """The one door to this machine, with a scratch folder that `end` removes."""
    if not _OPEN:
        _OPEN.append(LocalHost(_folder()))
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
                path = os.path.join(os.path.abspath(parent), f"cudadoctor-{os.urandom(8).hex()}")
                os.mkdir(path, 0o700)
                return path
        except OSError:
            continue
    return None


def _remove(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)

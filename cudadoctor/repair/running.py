"""Who uses the environment right now. Linux tells it under /proc; elsewhere it is not known."""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from cudadoctor.repair.applied import Process, processes
from cudadoctor.repair.records import Root

MOST_BYTES = 16 << 20
KERNEL = 2
"""The parent of the kernel's own threads, which map nothing."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs in the environment. words: what it was started as, shortened."""

    pid: int
    words: str


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """known: whether it could be looked at. unread: how many processes would not be read."""

    known: bool = True
    users: tuple[User, ...] = ()
    unread: int = 0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one process shows of itself. mapped: the paths of /proc/PID/maps."""

    argv: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    folder: str = ""
    path: str = ""


def used_by(prefix: str, roots: tuple[Root, ...]) -> Use:
    """The processes that run in an environment, but for the doctor and what it started."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self"):
        return Use(known=False)
    users, unread = [], 0
    everyone = processes()
    own = family(os.getpid(), everyone)
    # Maps name files behind all links; a program is called by the path that the user has.
    real = tuple(msgspec.structs.replace(one, path=os.path.realpath(one.path)) for one in roots)
    roots = (*roots, *real)
    for one in everyone:
        if one.pid in own or one.state in "ZX" or KERNEL in (one.pid, one.parent):
            continue
        seen = _seen(one.pid)
        if seen is None:
            unread += 1
        elif runs_in(seen, prefix, roots):
            users.append(User(pid=one.pid, words=" ".join(seen.argv)[:80] or "?"))
    return Use(users=tuple(users), unread=unread)


def family(pid: int, everyone: tuple[Process, ...]) -> frozenset[int]:
    """A process and all that descend from it."""
    found = {pid}
    while more := {one.pid for one in everyone if one.parent in found} - found:
        found |= more
    return frozenset(found)


def runs_in(seen: Seen, prefix: str, roots: tuple[Root, ...]) -> bool:
    """Whether a process was started by the environment's Python, or has a file of it mapped."""
    if any(_holds(root, path) for root in roots for path in seen.mapped):
        return True
    program = _program(seen)
    scripts = (f"{prefix}/bin", f"{prefix}/Scripts")
    return os.path.dirname(program) in scripts and "python" in os.path.basename(program)


def _holds(root: Root, path: str) -> bool:
    folder = root.path.rstrip("/") + "/"
    return path.startswith(folder) and root.has(path[len(folder) :].split("/", maxsplit=1)[0])


def _program(seen: Seen) -> str:
    """The program's path as it was called: the link of a venv, not what lies behind it."""
    word = seen.argv[0] if seen.argv else ""
    if "/" in word:
        return os.path.normpath(os.path.join(seen.folder or "/", word))
    for folder in seen.path.split(os.pathsep):
        path = os.path.join(folder, word)
        if word and folder and os.path.exists(path):
            return path
    return word


def _seen(pid: int) -> Seen | None:
    """What a process shows; None where it is another user's. One that has ended shows nothing."""
    try:
        maps = _read(pid, "maps")
        env = _read(pid, "environ").split("\0")
        argv = tuple(word for word in _read(pid, "cmdline").split("\0") if word)
        folder = ""
        with contextlib.suppress(OSError):
            folder = os.readlink(f"/proc/{pid}/cwd")
    except PermissionError:
        return None
    except OSError:
        return Seen()
    path = next((one[5:] for one in env if one.startswith("PATH=")), "")
    return Seen(argv=argv, mapped=parse_maps(maps), folder=folder, path=path)


def parse_maps(text: str) -> tuple[str, ...]:
    """The files that a process has mapped, each once, those deleted since without the mark."""
    lines = (line.split(maxsplit=5) for line in text.splitlines() if " /" in line)
    named = (words[5].removesuffix(" (deleted)") for words in lines if len(words) > 5)
    return tuple(dict.fromkeys(named))


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "surrogateescape")

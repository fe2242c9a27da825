"""The only door to the outside: read a file, list a folder, run a program with a deadline.

Nothing here raises for a sick machine: every answer says what was there, or why it is not known.
`this_host` is the one door of this process, with a temporary folder that `close_host` removes.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from os.path import abspath, dirname, isdir, join, realpath
from subprocess import Popen
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from msgspec import Struct

from cudadoctor.host import children
from cudadoctor.host.children import Environment, OnLine, Ran

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cudadoctor.model.machine import OptBool, OptInt, OptStr, Strings

_PACKAGE = dirname(dirname(abspath(__file__)))
INSIDE = join(_PACKAGE, "probes", "inside")


class Answer(Struct, frozen=True, kw_only=True):
    """What reading a file said. missing: it is not there; why: it is there and cannot be read."""

    data: bytes = b""
    missing: bool = False
    why: str | None = None

    @property
    def known(self) -> bool:
        return not self.missing and self.why is None

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Listing(Struct, frozen=True, kw_only=True):
    """What listing a folder said; names are sorted."""

    names: tuple[str, ...] = ()
    missing: bool = False
    why: str | None = None


class Stat:
    """What a path is. exists None: not known (why says so).

    real: the path behind all links, looked up when it is first asked for: most callers do not.
    is_link: of the path itself; one whose end is gone does not exist, and is one.
    """

    is_dir: bool = False
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    why: str | None = None

    def __init__(self, *, exists: OptBool, path: str = "", **known: Any) -> None:
        self.exists = exists
        self._path = path
        vars(self).update(known)

    @cached_property
    def real(self) -> str:
        return realpath(self._path) if self._path and self.exists else ""

    @cached_property
    def is_link(self) -> bool:
        return bool(self._path) and os.path.islink(self._path)


class Space(Struct, frozen=True, kw_only=True):
    """A file system: its size, and what is free for this user, in bytes."""

    total_bytes: int
    free_bytes: int


class _Limit(TypedDict):
    timeout_s: float


class How(_Limit, total=False):
    """How to run a program, see `Host.run`."""

    env: Environment | None
    cwd: str | None
    on_line: OnLine | None


class Host(Protocol):
    """A machine that can be asked: the real one, or a recording in a test."""

    @property
    def env(self) -> Environment:
        """The environment variables of the doctor's process."""
        ...

    @property
    def system(self) -> str:
        """Linux, Windows or Darwin."""
        ...

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        """At most `limit` bytes of a file, from `offset` on."""
        ...

    def listing(self, path: str) -> Listing: ...

    def stat(self, path: str) -> Stat: ...

    def glob(self, pattern: str) -> Strings: ...

    def which(self, name: str) -> OptStr:
        """The program of that name on PATH; what lies in the current folder is none."""
        ...

    def space(self, path: str) -> Space | None:
        """The size of the file system under a path; None where it cannot be learnt."""
        ...

    def run(self, *argv: str, stdin: OptStr = None, **how: Unpack[How]) -> Ran:
        """Run a program without a shell, in a folder of our own unless cwd names another.

        env replaces the whole environment. on_line: called with every line of its output.
        """
        ...

    def inside(self, script: str, *args: str, python: OptStr = None, **how: Unpack[How]) -> Ran:
        """Run a script of probes/inside in an interpreter (the doctor's own by default).

        on_line: where the host really waits, it says how long it waits for each next line.
        """
        ...


def absolute(host: Host, path: str) -> str:
    """The path as seen from the working folder; a replayed host brings its own."""
    joined = join(getattr(host, "folder", ""), path)
    try:
        return abspath(joined)
    except OSError:
        return joined  # the working folder is gone


def existing(host: Host, paths: Iterable[str]) -> OptStr:
    """The first of the paths that is there."""
    return next((path for path in paths if host.stat(path).exists), None)


def home_of(host: Host) -> OptStr:
    """The folder of the user, as the environment names it."""
    return host.env.get("HOME") or host.env.get("USERPROFILE")


def state_folder(env: Environment) -> OptStr:
    """Where the doctor keeps what lasts; None where no variable and no home says.

    XDG_STATE_HOME/cudadoctor, on Windows LOCALAPPDATA/cudadoctor: never the current folder.
    """
    home = env.get("HOME") or env.get("USERPROFILE")
    places = (
        env.get("LOCALAPPDATA", "") if os.name == "nt" else "",
        env.get("XDG_STATE_HOME", ""),
        f"{home}/.local/state" if home else "",
    )
    # A relative one is to be ignored, says XDG.
    return next((join(place, "cudadoctor") for place in places if os.path.isabs(place)), None)


def saved_tables(env: Environment) -> OptStr:
    """Where `cudadoctor update` saves its tables."""
    place = state_folder(env)
    return place and join(place, "knowledge.json")


class LocalHost:
    """This machine. `scratch` is a temporary folder that takes every cache of every child."""

    def __init__(self, scratch: OptStr = None) -> None:
        self.scratch = scratch
        self._children: set[Popen[bytes]] = set()
        self._begun: dict[Strings, Popen[bytes]] = {}
        self._closed = False

    @property
    def place(self) -> str:
        """Where children start: nothing of the user's lies there."""
        if self.scratch and isdir(self.scratch):
            return self.scratch
        return children.neutral_folder()

    @property
    def uid(self) -> OptInt:
        """The user's number, None on Windows."""
        return os.geteuid() if hasattr(os, "geteuid") else None

    @property
    def env(self) -> Environment:
        return os.environ

    @property
    def system(self) -> str:
        return {"win32": "Windows", "darwin": "Darwin"}.get(sys.platform, "Linux")

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        try:
            # Not blocking: a named pipe in the place of a file must not hold the doctor up.
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            return Answer(missing=missing, why=None if missing else _words(error))
        try:
            if offset:
                os.lseek(handle, offset, os.SEEK_SET)
            return Answer(data=_first(handle, limit))
        except (OSError, OverflowError) as error:
            return Answer(why=_words(error))
        finally:
            os.close(handle)

    def listing(self, path: str) -> Listing:
        try:
            return Listing(names=tuple(sorted(os.listdir(path))))
        except (FileNotFoundError, NotADirectoryError):
            return Listing(missing=True)
        except (OSError, ValueError) as error:
            return Listing(why=_words(error))

    def stat(self, path: str) -> Stat:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return Stat(exists=False, path=path)
        except (OSError, ValueError) as error:
            return Stat(exists=None, why=_words(error))
        return Stat(
            exists=True,
            is_dir=stat.S_ISDIR(found.st_mode),
            mode=found.st_mode & 0o7777,
            uid=found.st_uid,
            gid=found.st_gid,
            size=found.st_size,
            path=path,
        )

    def glob(self, pattern: str) -> Strings:
        import glob

        try:
            return tuple(sorted(glob.glob(pattern, recursive="**" in pattern)))
        except (OSError, ValueError):
            return ()

    def which(self, name: str) -> OptStr:
        # shutil brings every archive format with it (3 ms), and on Windows the current folder.
        endings = os.environ.get("PATHEXT", "").split(";") if sys.platform == "win32" else ()
        for folder in children.path_folders(self.env.get("PATH") or os.defpath):
            for ending in ("", *endings):
                path = join(folder, name + ending)
                with suppress(ValueError):  # a null byte in PATH
                    if os.access(path, os.X_OK) and not isdir(path):
                        return path
        return None

    def space(self, path: str) -> Space | None:
        try:
            if sys.platform == "win32":
                import shutil

                whole = shutil.disk_usage(path)
                return Space(total_bytes=whole.total, free_bytes=whole.free)
            found = os.statvfs(path)
        except (OSError, ValueError):
            return None
        size = found.f_frsize
        return Space(total_bytes=found.f_blocks * size, free_bytes=found.f_bavail * size)

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Environment | None = None,
        cwd: OptStr = None,
        stdin: OptStr = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        """Run a program without a shell. on_line: told every line of its output as it comes."""
        if self._closed:
            return Ran(why="stopped")
        started = monotonic()
        plain = env is None and cwd is None and stdin is None
        process = self._begun.pop(argv, None) if plain else None
        try:
            process = process or self._started(argv, env, cwd, piped=stdin is not None)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and error.filename in (None, argv[0]):
                return Ran(missing=True)
            return Ran(why=_words(error))
        try:
            return children.collected(process, started, timeout_s, stdin, on_line)
        finally:
            self._children.discard(process)

    def begin(self, script: str, python: str) -> None:
        """Start a script of probes/inside already, for an `inside` with the same words later on."""
        argv = self._words_of(script, python)
        with suppress(OSError, ValueError):
            self._begun[argv] = self._started(argv, None, None, piped=False)

    def _started(
        self, argv: Strings, env: Environment | None, cwd: OptStr, *, piped: bool
    ) -> Popen[bytes]:
        cwd = cwd or self.place
        quiet = self.quiet(self.env if env is None else env, cwd)
        process = children.start(argv, env=quiet, cwd=cwd, stdin=subprocess.PIPE if piped else None)
        self._children.add(process)
        if self._closed:  # closed while it was being started
            children.kill(process)
        return process

    def inside(self, script: str, *args: str, python: OptStr = None, **how: Unpack[How]) -> Ran:
        return self.run(*self._words_of(script, python), *args, **how)

    @staticmethod
    def _words_of(script: str, python: OptStr) -> Strings:
        # -I: a json.py in the working folder or a broken PYTHONPATH must not end the probe.
        # -B: isolated, it does not heed the variable that forbids writing byte code.
        flags = ("-I", "-B", "-S") if python is None else ("-I", "-B")
        return (python or sys.executable, *flags, join(INSIDE, script))

    def quiet(self, env: Environment, cwd: str) -> dict[str, str]:
        """The environment with every cache in the scratch folder: a check writes nothing."""
        changed = children.examined_environment(env, cwd)
        changed["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.scratch:
            for name in _CACHES:
                changed[name] = join(self.scratch, name.lower())
        return changed

    def close(self) -> None:
        """End every child that still runs, without waiting for it."""
        self._closed = True
        for process in tuple(self._children):
            children.kill(process)


_CACHES = (
    "CUDA_CACHE_PATH",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "PIP_CACHE_DIR",
    "MPLCONFIGDIR",
)


def _first(handle: int, limit: int) -> bytes:
    data = bytearray()
    with suppress(BlockingIOError):  # the end of what /dev/kmsg holds now
        while part := os.read(handle, min(limit - len(data), 1 << 16)):
            data += part
    return bytes(data)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"
    return f"{type(error).__name__}: {error}"


# --- the one host of this process, with its temporary folder ------------------------------------

_OPEN: list[LocalHost] = []
_LOCKS: list[int] = []
"""Handles on our folder: while one is open, no other start takes it for a dead run's."""
_OURS = "cudadoctor-"
MOST_NAMES = 1024


def this_host() -> LocalHost:
    """The one door of this process, with a temporary folder that `close_host` removes."""
    if not _OPEN:
        _OPEN.append(LocalHost(_folder()))
        if scratch := _OPEN[0].scratch:
            sweep(dirname(scratch))
    return _OPEN[0]


def close_host() -> None:
    """End every child that still runs, and remove what they wrote."""
    while _OPEN:
        host = _OPEN.pop()
        host.close()
        if host.scratch:
            _remove(host.scratch)
    while _LOCKS:
        os.close(_LOCKS.pop())


def _folder() -> OptStr:
    """A folder of our own, unreadable to others; None where no place for one can be written to."""
    for parent in (os.environ.get("TMPDIR"), "/tmp", os.environ.get("TEMP"), os.curdir):
        # Of a working folder that is gone not even the name can be had.
        with suppress(OSError):
            if parent:
                return _made(abspath(parent))
    return None


def _made(parent: str) -> str:
    """A new folder that we hold; another name if another start has swept it before that."""
    for last in (False, False, True):
        path = join(parent, f"{_OURS}{os.urandom(8).hex()}")
        os.mkdir(path, 0o700)
        if (lock := _held(path)) is not None:
            _LOCKS.append(lock)
            break
        if last or os.name != "posix":
            break  # a file system without locks: nobody sweeps there either
        with suppress(OSError):
            os.rmdir(path)
    return path


def sweep(parent: str) -> None:
    """Remove the folders of runs that were killed: ours by name and owner, held by nobody."""
    if os.name != "posix":  # there is no lock that ends with its process
        return
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in itertools.islice(entries, MOST_NAMES):
            ours = re.fullmatch(_OURS + "[0-9a-f]{16}", entry.name)
            if ours and (lock := _held(entry.path)) is not None:
                try:
                    if os.fstat(lock).st_uid == os.geteuid():
                        _remove(entry.path)
                finally:
                    os.close(lock)


def _held(path: str) -> OptInt:
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
            with suppress(RecursionError):  # a tree as deep as Python's own stack
                shutil.rmtree(path, ignore_errors=True)


def _is_mounted_below(path: str) -> bool:
    """Whether another file system, or another part of this one, begins inside: it is not ours."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return any(f" {realpath(path)}/" in line for line in mounts)
    except OSError:
        return False

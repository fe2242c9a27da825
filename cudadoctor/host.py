"""The only door to the outside: read a file, list a folder, run a program with a deadline.

Nothing here raises for a sick machine: every answer says what was there, or why it is not known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Protocol

import msgspec

INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probes", "inside")
MOST_BYTES = 8 << 20
GRACE_S = 0.2
POLL_S = 0.25


class Answer(msgspec.Struct, frozen=True, kw_only=True):
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


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What listing a folder said; names are sorted."""

    names: tuple[str, ...] = ()
    missing: bool = False
    why: str | None = None


class Stat:
    """What a path is. exists None: not known (why says so).

    real: the path behind all links, looked up when it is first asked for: most callers do not.
    """

    __slots__ = ("_path", "_real", "exists", "gid", "is_dir", "mode", "size", "uid", "why")

    def __init__(
        self,
        *,
        exists: bool | None,
        is_dir: bool = False,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        size: int = 0,
        real: str = "",
        path: str = "",
        why: str | None = None,
    ) -> None:
        self.exists = exists
        self.is_dir = is_dir
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size = size
        self.why = why
        self._real = real
        self._path = path

    @property
    def real(self) -> str:
        if not self._real and self._path:
            self._real = os.path.realpath(self._path)
        return self._real


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """A file system: its size, and what is free for this user, in bytes."""

    total_bytes: int
    free_bytes: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What running a program said.

    missing: there is no such program. why: it gave no full answer (time limit, flood, no
    permission). code: exit status, negative for a signal, None where it did not end in time.
    stdout, stderr: what came, also where it did not end. seconds: how long it took.
    """

    code: int | None = None
    stdout: str = ""
    stderr: str = ""
    missing: bool = False
    why: str | None = None
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.why is None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None where none did."""
        return -self.code if self.code is not None and self.code < 0 else None


class Host(Protocol):
    """A machine that can be asked: the real one, or a recording in a test."""

    @property
    def env(self) -> Mapping[str, str]:
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

    def glob(self, pattern: str) -> tuple[str, ...]: ...

    def which(self, name: str) -> str | None:
        """The program of that name on PATH."""
        ...

    def space(self, path: str) -> Space | None:
        """The size of the file system under a path; None where it cannot be learnt."""
        ...

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
    ) -> Ran:
        """Run a program without a shell. env replaces the whole environment."""
        ...

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Ran:
        """Run a script of probes/inside in an interpreter (the doctor's own by default)."""
        ...


class LocalHost:
    """This machine. `scratch` is a temporary folder that takes every cache of every child."""

    def __init__(self, scratch: str | None = None) -> None:
        self.scratch = scratch
        self._children: set[subprocess.Popen[bytes]] = set()
        self._begun: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
        self._closed = False

    @property
    def env(self) -> Mapping[str, str]:
        return os.environ

    @property
    def system(self) -> str:
        return {"win32": "Windows", "darwin": "Darwin"}.get(sys.platform, "Linux")

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        try:
            # Not blocking: a named pipe in the place of a file must not hold the doctor up.
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            return _unread(error)
        try:
            if offset:
                os.lseek(handle, offset, os.SEEK_SET)
            return Answer(data=_first(handle, limit))
        except (OSError, OverflowError) as error:
            return _unread(error)
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
            return Stat(exists=False)
        except (OSError, ValueError) as error:
            return Stat(exists=None, why=_words(error))
        return Stat(
            exists=True,
            is_dir=(found.st_mode & 0o170000) == 0o040000,
            mode=found.st_mode & 0o7777,
            uid=found.st_uid,
            gid=found.st_gid,
            size=found.st_size,
            path=path,
        )

    def glob(self, pattern: str) -> tuple[str, ...]:
        import glob

        try:
            return tuple(sorted(glob.glob(pattern, recursive="**" in pattern)))
        except (OSError, ValueError):
            return ()

    def which(self, name: str) -> str | None:
        if sys.platform == "win32":
            import shutil

            return shutil.which(name)
        # shutil brings every archive format with it: 3 ms of a fast check.
        for folder in (self.env.get("PATH") or os.defpath).split(os.pathsep):
            path = os.path.join(folder, name)
            with contextlib.suppress(ValueError):  # a null byte in PATH
                if os.access(path, os.X_OK) and not os.path.isdir(path):
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
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Ran:
        """Run a program without a shell. on_line: told every line of its output as it comes."""
        if self._closed:
            return Ran(why="stopped")
        started = time.monotonic()
        plain = env is None and cwd is None and stdin is None
        child = self._begun.pop(argv, None) if plain else None
        try:
            child = child or self._started(argv, env, cwd, piped=stdin is not None)
        except FileNotFoundError:
            return Ran(missing=True)
        except (OSError, ValueError) as error:
            return Ran(why=_words(error))
        try:
            return _collected(child, started, timeout_s, stdin, on_line)
        finally:
            self._children.discard(child)

    def begin(self, script: str, python: str) -> None:
        """Start a script of probes/inside already, for an `inside` with the same words later on."""
        argv = self._words_of(script, python)
        with contextlib.suppress(OSError, ValueError):
            self._begun[argv] = self._started(argv, None, None, piped=False)

    def _started(
        self, argv: tuple[str, ...], env: Mapping[str, str] | None, cwd: str | None, *, piped: bool
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.quiet(self.env if env is None else env),
            cwd=cwd,
            start_new_session=True,
        )
        self._children.add(child)
        return child

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Ran:
        words = self._words_of(script, python)
        return self.run(*words, *args, timeout_s=timeout_s, env=env, cwd=cwd)

    @staticmethod
    def _words_of(script: str, python: str | None) -> tuple[str, ...]:
        # -I: a json.py in the working folder or a broken PYTHONPATH must not end the probe.
        # -B: isolated, it does not heed the variable that forbids writing byte code.
        flags = ("-I", "-B", "-S") if python is None else ("-I", "-B")
        return (python or sys.executable, *flags, os.path.join(INSIDE, script))

    def quiet(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment with every cache in the scratch folder: a check writes nothing."""
        changed = dict(env)
        changed["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.scratch:
            for name in _CACHES:
                changed[name] = os.path.join(self.scratch, name.lower())
        return changed

    def close(self) -> None:
        """End every child that still runs, without waiting for it."""
        self._closed = True
        for child in tuple(self._children):
            _kill(child)


_CACHES = (
    "CUDA_CACHE_PATH",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "PIP_CACHE_DIR",
    "MPLCONFIGDIR",
)


def _first(handle: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    try:
        while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except BlockingIOError:
        pass  # the end of what /dev/kmsg holds now
    return b"".join(parts)


def _unread(error: Exception) -> Answer:
    if isinstance(error, FileNotFoundError):
        return Answer(missing=True)
    return Answer(why=_words(error))


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"
    return f"{type(error).__name__}: {error}"


class _Pipe(threading.Thread):
    """Reads one pipe of a child to its end. Threads, since Windows cannot select on pipes.

    One that a grandchild holds open is left behind, with its pipe: closing it under a reader would
    hand its number to the next file that is opened.
    """

    def __init__(self, pipe: IO[bytes], on_line: Callable[[str], None] | None = None) -> None:
        super().__init__(daemon=True)
        self.size = 0
        self._number = os.dup(pipe.fileno())
        pipe.close()
        self._parts: list[bytes] = []
        self._untold = b""
        self._on_line = on_line
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self.size <= MOST_BYTES and (part := os.read(self._number, 1 << 16)):
                self._parts.append(part)
                self.size += len(part)
                if self._on_line is not None:
                    self._tell(part)

    def _tell(self, part: bytes) -> None:
        *lines, self._untold = (self._untold + part).split(b"\n")
        for line in lines:
            if self._on_line is not None:
                self._on_line(line.decode("utf-8", "replace"))

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode("utf-8", "replace")

    def close(self) -> None:
        if not self.is_alive():
            os.close(self._number)


def _collected(
    child: subprocess.Popen[bytes],
    started: float,
    timeout_s: float,
    stdin: str | None,
    on_line: Callable[[str], None] | None = None,
) -> Ran:
    """Read both pipes until they close, the deadline passes or a flood comes."""
    deadline = started + timeout_s
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Pipe(child.stdout, on_line), _Pipe(child.stderr)
    _feed(child, stdin)
    in_time = _finished(child, (out, err), deadline)
    flooded = out.size + err.size > MOST_BYTES
    code = _ended(child, deadline) if in_time and not flooded else None
    if code is None:
        _kill(child)
    why = None
    if flooded:
        why = f"more than {MOST_BYTES >> 20} MiB of output"
    elif code is None:
        why = f"no answer within {timeout_s:g} s"
    ran = Ran(
        code=code,
        stdout=out.text,
        stderr=err.text,
        why=why,
        timed_out=code is None and not flooded,
        seconds=time.monotonic() - started,
    )
    out.close()
    err.close()
    return ran


def _finished(child: subprocess.Popen[bytes], pipes: tuple[_Pipe, _Pipe], deadline: float) -> bool:
    """Whether all was read that will come or that we take; False where the deadline passed."""
    for pipe in pipes:
        while pipe.is_alive():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if any(one.size > MOST_BYTES for one in pipes):
                return True
            before = pipe.size
            pipe.join(min(left, POLL_S))
            # Ended and silent: a grandchild that keeps the pipe open is not waited for.
            if child.poll() is not None and pipe.size == before:
                break
    return True


def _feed(child: subprocess.Popen[bytes], stdin: str | None) -> None:
    if stdin is None or child.stdin is None:
        return
    # One that ended without reading: its exit status says more.
    with contextlib.suppress(OSError):
        child.stdin.write(stdin.encode())
        child.stdin.close()


def _ended(child: subprocess.Popen[bytes], deadline: float) -> int | None:
    """The exit status, None where it closed its pipes and goes on past the deadline."""
    try:
        return child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's session. Hardly waited for: stuck in the driver it cannot be killed."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except OSError:
        pass
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        # Python would warn of it and wait at exit; it is abandoned on purpose.
        child.returncode = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1

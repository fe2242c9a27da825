"""Child processes: the one way to start, read, limit and kill a program.

Most callers want `LocalHost.run` of host.local: it starts a program, reads it to its end, its
deadline or a flood, and says what came of it (`Ran`). Who needs more takes the parts: `start`
starts one in a session of its own, `wait` waits until it ends or the caller has had enough, `send`
and `kill` reach the whole session. `environment` keeps the user's folder out of what a child runs:
a pip.py, a torch.py or a nvidia-smi that lies there is read, named and never executed.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os.path import abspath, dirname, join, realpath
from subprocess import Popen, TimeoutExpired
from time import monotonic
from typing import IO

from msgspec import Struct

MOST_BYTES = 8 << 20
GRACE_S = 0.2
POLL_S = 0.25
NO_MORE = "EAGAIN"
"""How a system says that this user may start no more."""

# Every thread reserves its stack, 8 MiB on most systems: ten of them fill the address space that a
# limited user has. Deep nesting still ends in a RecursionError at this size.
threading.stack_size(2 << 20)

Environment = Mapping[str, str]
OnLine = Callable[[str], "float | None"]
"""Called with every line as it comes; returns how long the next one may take, None for any time."""


class Ran(Struct, frozen=True, kw_only=True):
    """What running a program said.

    missing: there is no such program. why: it gave no full answer (time limit, flood, no
    permission). code: exit status, negative for a signal, None where it did not end in time.
    stdout, stderr: what came, also where it did not end. seconds: how long it took. silent_s: of
    one that ran out of time, how long it had printed nothing.
    """

    code: int | None = None
    stdout: str = ""
    stderr: str = ""
    missing: bool = False
    why: str | None = None
    timed_out: bool = False
    seconds: float = 0.0
    silent_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.why is None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None where none did."""
        return -self.code if self.code is not None and self.code < 0 else None


def start_thread(job: Callable[[], object]) -> threading.Thread | None:
    """Start a job in a thread of its own; None if the system allows no more threads."""
    thread = threading.Thread(target=job, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def start(
    argv: Sequence[str],
    *,
    env: Environment,
    cwd: str,
    stdin: int | None = None,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> Popen[bytes]:
    """Start a program without a shell, in a session of its own. Raises OSError or ValueError.

    env: all of it; `environment` makes one. cwd: a folder that is not the user's. stdin: at its end
    unless it is subprocess.PIPE.
    """
    # In a bare chroot there is no /dev/null.
    nothing = subprocess.DEVNULL if os.path.exists(os.devnull) else subprocess.PIPE
    child = Popen(
        argv,
        stdin=nothing if stdin is None else stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    if stdin is None and child.stdin is not None:
        child.stdin.close()
    return child


def wait(child: Popen[bytes], stopped: Callable[[], bool], poll_s: float = POLL_S) -> int | None:
    """Wait for the end of a child; None as soon as `stopped` says so. It is not killed here."""
    while not stopped():
        with suppress(TimeoutExpired):
            return child.wait(poll_s)
    return child.poll()


def send(child: Popen[bytes], name: str) -> None:
    """Send a signal to the child's whole session; where there are no sessions, kill the child."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, getattr(signal, name))
        else:
            child.kill()


def kill(
    child: Popen[bytes], *asked: str, patience_s: float = 0.0, grace_s: float = GRACE_S
) -> None:
    """Kill the child's session, and hardly wait for it: stuck in the driver it cannot be killed.

    asked: signals sent before, each with so much patience, for a child that tidies up.
    """
    for name in asked:
        send(child, name)
        with suppress(TimeoutExpired):
            child.wait(patience_s)
            return
    send(child, "SIGKILL")
    try:
        child.wait(grace_s)
    except TimeoutExpired:
        # Python would warn of it and wait at exit; it is abandoned on purpose.
        child.returncode = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1


class _Pipe(threading.Thread):
    """Reads one pipe of a child to its end. Threads, since Windows cannot select on pipes.

    One that a grandchild holds open is left behind, with its pipe: closing it under a reader would
    hand its number to the next file that is opened.
    """

    def __init__(self, pipe: IO[bytes], on_line: OnLine | None = None) -> None:
        super().__init__(daemon=True)
        self.size = 0
        self.last_read = monotonic()
        self.limit_s: float | None = None
        self._number = os.dup(pipe.fileno())
        pipe.close()
        self._parts: list[bytes] = []
        self._on_line = on_line
        self.start()

    def run(self) -> None:
        rest = b""
        with suppress(OSError, ValueError):
            while self.size <= MOST_BYTES and (part := os.read(self._number, 1 << 16)):
                self._parts.append(part)
                self.size += len(part)
                self.last_read = monotonic()
                if self._on_line is not None:
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        self.limit_s = self._on_line(line.decode("utf-8", "replace"))

    @property
    def due(self) -> float:
        """When the next line has to be there."""
        return math.inf if self.limit_s is None else self.last_read + self.limit_s

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode("utf-8", "replace")

    def close(self) -> None:
        if not self.is_alive():
            os.close(self._number)


def collected(
    child: Popen[bytes],
    started: float,
    timeout_s: float,
    stdin: str | None,
    on_line: OnLine | None = None,
) -> Ran:
    """Read both pipes until they close, a deadline passes or a flood comes; kill what goes on."""
    deadline = started + timeout_s
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        out, err = _Pipe(child.stdout, on_line), _Pipe(child.stderr)
    except RuntimeError:  # at the limit of processes: a thread counts as one
        kill(child)
        return Ran(why=f"{NO_MORE}: could not start a thread to read its output")
    if stdin is not None and child.stdin is not None:
        with suppress(OSError):  # it ended without reading: its exit status says more
            child.stdin.write(stdin.encode())
            child.stdin.close()
    code = None
    in_time = _finished(child, (out, err), deadline)
    flood = out.size + err.size > MOST_BYTES
    if in_time and not flood:
        # Some close their pipes and go on past the deadline.
        with suppress(TimeoutExpired):
            code = child.wait(max(0.0, min(deadline, out.due) - monotonic()))
    late = code is None and not flood
    limit_s = timeout_s if out.limit_s is None or deadline < out.due else out.limit_s
    why = f"more than {MOST_BYTES >> 20} MiB of output" if flood else None
    silent_s = monotonic() - out.last_read
    if code is None:
        kill(child)
    ran = Ran(
        code=code,
        stdout=out.text,
        stderr=err.text,
        why=f"no response within {limit_s:g} s" if late else why,
        timed_out=late,
        seconds=monotonic() - started,
        silent_s=silent_s if late else None,
    )
    out.close()
    err.close()
    return ran


def _finished(child: Popen[bytes], pipes: tuple[_Pipe, _Pipe], deadline: float) -> bool:
    """Whether all was read that will come or that we take; False if a deadline passed."""
    for pipe in pipes:
        while pipe.is_alive():
            left = min(deadline, *(pipe.due for pipe in pipes)) - monotonic()
            if left <= 0:
                return False
            if any(pipe.size > MOST_BYTES for pipe in pipes):
                return True
            before = pipe.size
            pipe.join(min(left, POLL_S))
            # Ended and silent: a grandchild that keeps the pipe open is not waited for.
            if child.poll() is not None and pipe.size == before:
                break
    return True


# --- where a child starts, and what its environment leads to ------------------------------------

OWN = "CUDADOCTOR_OWN_"
"""Before the variables that tell look.py what the user's own programs are started with."""
_FILES = (
    *("PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_CERT", "PIP_CLIENT_CERT"),
    *("UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_FIND_LINKS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
"""Settings that may name a file beside the user, which a child elsewhere would not find."""
_SYSTEM = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
"""Folders of programs that stay on PATH for somebody who stands in them."""


def working_folder() -> str:
    """The current folder, "" if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def neutral_folder() -> str:
    """Where a child starts if there is no folder of our own: the root holds nobody's programs."""
    return abspath(os.sep) if os.name == "posix" else dirname(os.__file__)


def path_folders(path: str, *, windows: bool = os.name == "nt") -> tuple[str, ...]:
    """The folders of a PATH without those that lead to the working folder: "", ".", bin."""
    if windows:
        from ntpath import isabs
    else:
        from posixpath import isabs
    found = tuple(folder for folder in path.split(";" if windows else ":") if isabs(folder))
    user = working_folder()
    if not user or {user, realpath(user)} & _SYSTEM:
        return found
    return folders_outside(found, user)


def folders_outside(folders: Iterable[str], user: str) -> tuple[str, ...]:
    """The folders that are not the user's, behind all links; all of them if that is not known."""
    real = realpath(user) if user else None
    return tuple(folder for folder in folders if real is None or realpath(folder) != real)


def examined_environment(env: Environment, cwd: str) -> dict[str, str]:
    """The same for a child that looks at what the user's own programs would find."""
    own = {name: env[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH") if env.get(name)}
    own["PWD"] = working_folder()
    named = {OWN + name: value for name, value in own.items()}
    return environment(env, cwd) | named | {"PYTHONSAFEPATH": "1"}


def environment(env: Environment, cwd: str) -> dict[str, str]:
    """The environment of a child that starts in `cwd`, without what leads into the user's folder.

    What is the user's own and lies elsewhere stays: it is part of what is examined. PYTHONSAFEPATH
    is not for package managers: many a setup.py imports what lies beside it.
    """
    user = working_folder()
    changed = {name: value for name, value in env.items() if not name.startswith(OWN)}
    changed["PATH"] = os.pathsep.join(path_folders(env.get("PATH") or os.defpath))
    if "PYTHONPATH" in env:
        own = path_folders(env["PYTHONPATH"])
        changed["PYTHONPATH"] = os.pathsep.join(folders_outside(own, user))
    if not os.path.isabs(env.get("PYTHONHOME") or os.sep):
        del changed["PYTHONHOME"]
    if "PWD" in env:
        changed["PWD"] = cwd
    for name in _FILES:
        if (value := env.get(name)) and not os.path.isabs(value) and os.path.exists(value):
            changed[name] = join(user, value)
    return changed

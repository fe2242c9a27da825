"""Reading a child process to its end, to its deadline or to a flood, and never longer.

The other half of host.py, which starts them.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO

import msgspec

MOST_BYTES = 8 << 20
GRACE_S = 0.2
POLL_S = 0.25
NO_MORE = "EAGAIN"
"""How a system says that this user may start no more."""


OnLine = Callable[[str], "float | None"]
"""Told every line as it comes; gives back how long the next may take, None for no such limit."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
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


def aside(job: Callable[[], object]) -> threading.Thread | None:
    """A job in a thread of its own; None where the system allows no more, and nothing was begun."""
    thread = threading.Thread(target=job, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class _Pipe(threading.Thread):
    """Reads one pipe of a child to its end. Threads, since Windows cannot select on pipes.

    One that a grandchild holds open is left behind, with its pipe: closing it under a reader would
    hand its number to the next file that is opened.
    """

    def __init__(self, pipe: IO[bytes], on_line: OnLine | None = None) -> None:
        super().__init__(daemon=True)
        self.size = 0
        self.heard = time.monotonic()
        self.limit_s: float | None = None
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
                self.heard = time.monotonic()
                if self._on_line is not None:
                    self._tell(part)

    def _tell(self, part: bytes) -> None:
        *lines, self._untold = (self._untold + part).split(b"\n")
        for line in lines:
            if self._on_line is not None:
                self.limit_s = self._on_line(line.decode("utf-8", "replace"))

    @property
    def due(self) -> float:
        """When the next line has to be there."""
        return math.inf if self.limit_s is None else self.heard + self.limit_s

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode("utf-8", "replace")

    def close(self) -> None:
        if not self.is_alive():
            os.close(self._number)


def collected(
    child: subprocess.Popen[bytes],
    started: float,
    timeout_s: float,
    stdin: str | None,
    on_line: OnLine | None = None,
) -> Ran:
    """Read both pipes until they close, a deadline passes or a flood comes."""
    deadline = started + timeout_s
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        out, err = _Pipe(child.stdout, on_line), _Pipe(child.stderr)
    except RuntimeError:  # at the limit of processes: a thread counts as one
        kill(child)
        return Ran(why=f"{NO_MORE}: no thread to read its answer")
    _feed(child, stdin)
    in_time = _finished(child, (out, err), deadline)
    flooded = out.size + err.size > MOST_BYTES
    code = _ended(child, min(deadline, out.due)) if in_time and not flooded else None
    silent_s = time.monotonic() - out.heard
    limit_s = timeout_s if out.limit_s is None or deadline < out.due else out.limit_s
    if code is None:
        kill(child)
    why = None
    if flooded:
        why = f"more than {MOST_BYTES >> 20} MiB of output"
    elif code is None:
        why = f"no answer within {limit_s:g} s"
    ran = Ran(
        code=code,
        stdout=out.text,
        stderr=err.text,
        why=why,
        timed_out=code is None and not flooded,
        seconds=time.monotonic() - started,
        silent_s=silent_s if code is None and not flooded else None,
    )
    out.close()
    err.close()
    return ran


def _finished(child: subprocess.Popen[bytes], pipes: tuple[_Pipe, _Pipe], deadline: float) -> bool:
    """Whether all was read that will come or that we take; False if a deadline passed."""
    for pipe in pipes:
        while pipe.is_alive():
            left = min(deadline, *(one.due for one in pipes)) - time.monotonic()
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


def kill(child: subprocess.Popen[bytes]) -> None:
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

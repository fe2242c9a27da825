"""The children that measure: one process that forks a runner for every order, or one for each.

The doctor's side: it sends orders and hears lines, and never waits longer than it was told to.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from cudadoctor.host import children
from cudadoctor.smoke import INSIDE
from cudadoctor.smoke.inside.wire import BOOT

KILLED_S = 5.0
HEARING_S = 0.2
TAIL = 4000
Line = dict[str, Any]


class Interrupted(Exception):  # noqa: N818 - by Ctrl-C, not by a fault
    """Whoever asked has stopped it."""


class Stable:
    """Runners in the examined interpreter.

    forks: whether one process may fork them all; else each imports torch anew. env: the whole
    environment of the children. cwd: where they start.
    """

    def __init__(
        self,
        python: str,
        env: Mapping[str, str],
        cwd: str = "",
        *,
        forks: bool | None = None,
    ) -> None:
        self.python = python
        self.env = dict(env)
        self.cwd = cwd or children.working_folder()
        self.forks = sys.platform.startswith("linux") if forks is None else forks
        self.stopped = False
        self._number = 0
        self._mail: queue.SimpleQueue[tuple[_Child, Line | None]] = queue.SimpleQueue()
        self._stash: dict[int, deque[Line]] = {}
        self._common: _Child | None = None
        self._begun: dict[int, Line] = {}
        self._own: dict[int, _Child] = {}

    def start(self, **order: Any) -> int:
        """Begin an order in a runner of its own; its number."""
        self._number += 1
        number = self._number
        self._stash[number] = deque()
        self._give({"id": number, "do": "start", **order})
        return number

    def send(self, number: int, do: str, **more: Any) -> None:
        """Tell a runner something; one that has ended hears nothing."""
        child = self._common if self.forks else self._own.get(number)
        if child is not None:
            child.send({"id": number, "do": do, **more})

    def hear(self, number: int, timeout_s: float) -> Line | None:
        """The next line of a runner; None where none came in time. Raises Interrupted."""
        until = time.monotonic() + timeout_s
        while not self._stash[number]:
            if self.stopped:
                raise Interrupted
            left = until - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                self._sort(*self._mail.get(timeout=min(HEARING_S, left)))
        return self._stash[number].popleft()

    def kill(self, number: int) -> None:
        """End a runner. One that cannot be killed is left behind with all that forked it."""
        self._begun.pop(number, None)
        self.send(number, "kill")
        own = self._own.get(number)
        if own is not None:
            own.end()
            return
        until = time.monotonic() + KILLED_S
        while (left := until - time.monotonic()) > 0:
            line = self.hear(number, left)
            if line is not None and line["kind"] == "over":
                return
        self.end()

    def stop(self, _: int) -> None:
        """From a signal's handler: every waiting `hear` raises Interrupted soon."""
        self.stopped = True

    def end(self) -> None:
        """End every child."""
        for child in [self._common, *self._own.values()]:
            if child is not None:
                child.end()
        self._common, self._own = None, {}
        self._begun.clear()

    def _give(self, order: Line) -> None:
        """A start to the child that is to do it; kept until that child is known to be able to."""
        number = order["id"]
        if not self.forks:
            child = self._own[number] = _Child(self, "one", number)
        else:
            if self._common is None or self._common.over:
                self._common = _Child(self, "fork", 0)
            child = self._common
            if not child.ready:
                self._begun[number] = order
        child.send(order)

    def _sort(self, child: _Child, line: Line | None) -> None:
        """Give a line to the runner it is of; the end of a process is the end of its runners."""
        if line is None:
            child.over = True
            if child.dismissed:
                return
            for number in [child.number] if child.number else self._stash:
                self._stash[number].append({"kind": "over", "detail": child.last_words()})
        elif line["kind"] in ("torch", "broken"):
            child.error = " ".join(str(line.get("error") or child.error).split())[:600]
            child.ready, child.dismissed = True, bool(line.get("begun"))
            orders, self._begun = self._begun, {}
            if child.dismissed:
                # An import has begun CUDA: no fork could use it, so each runner gets a process.
                self._common, self.forks = None, False
                child.end()
                for order in orders.values():
                    self._give(order)
        elif line.get("id") in self._stash:
            self._stash[line["id"]].append(line)


class _Child:
    """A process of the examined interpreter, and the threads that read what it says."""

    def __init__(self, stable: Stable, how: str, number: int) -> None:
        self.number = number
        self.over = False
        self.ready = False
        self.dismissed = False
        self.error = ""
        self._mail = stable._mail
        self._tail = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        try:
            self._process = children.start(
                (stable.python, "-c", BOOT, str(INSIDE), how),
                env=stable.env,
                cwd=stable.cwd,
                stdin=subprocess.PIPE,
            )
        except OSError as error:
            self.error = f"{stable.python}: {error.strerror or error}"
            self._mail.put((self, None))
            return
        begun = (children.start_thread(self._read), children.start_thread(self._listen))
        self._readers = [reader for reader in begun if reader is not None]
        if len(self._readers) < 2:
            self.error = "the system allows no more threads"
            children.kill(self._process)
            self._mail.put((self, None))

    def send(self, order: Line) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended: its last line says so
                self._process.stdin.write((json.dumps(order) + "\n").encode("ascii"))
                self._process.stdin.flush()

    def end(self) -> None:
        if self._process is None:
            return
        children.kill(self._process)
        for reader in self._readers:
            reader.join(0.5)  # one that a stuck process holds open is left behind
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def last_words(self) -> str:
        """Why it ended, as well as that is known."""
        code = self._process.poll() if self._process is not None else None
        if self.error or not code:
            return self.error
        words = self._tail.decode("utf-8", "replace").strip().splitlines()
        said = f": {words[-1][:300]}" if words else ""
        how = f"status {code}" if code >= 0 else f"signal {-code}"
        return f"the interpreter ended with {how}{said}"

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for text in self._process.stdout:
                with contextlib.suppress(msgspec.DecodeError):
                    line = msgspec.json.decode(text)
                    if isinstance(line, dict) and "kind" in line:
                        self._mail.put((self, line))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process.stdout.close()
        self._mail.put((self, None))

    def _listen(self) -> None:
        """Keep the end of what torch prints: there stands why a process ended."""
        assert self._process is not None
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for text in self._process.stderr:
                self._tail = (self._tail + text)[-TAIL:]
        self._process.stderr.close()

"""The children that measure: one process that forks a runner for every order, or one for each.

The doctor's side: it sends orders and hears lines, and never waits longer than it was told to.
"""

from __future__ import annotations

import errno
import json
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from cudadoctor.bench.results import Line
from cudadoctor.host import children
from cudadoctor.probes.streamed import line_of
from cudadoctor.smoke import INSIDE
from cudadoctor.smoke.inside.wire import BOOT

KILLED_S, HEARING_S = 5.0, 0.2


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
        cwd: str = ".",
        *,
        forks: bool = sys.platform.startswith("linux"),
    ) -> None:
        self.python, self.env, self.cwd, self.forks = python, env, cwd, forks
        self.stopped = False
        self._mail: queue.SimpleQueue[tuple[_Child, Line | None]] = queue.SimpleQueue()
        self._received: dict[int, deque[Line]] = {}
        self._child_of: dict[int, _Child] = {}
        self._common: _Child | None = None
        self._begun: dict[int, Line] = {}

    def start(self, **order: Any) -> int:
        """Begin an order in a runner of its own; its number."""
        number = len(self._received) + 1
        self._received[number] = deque()
        self._give({"id": number, "do": "start", **order})
        return number

    def send(self, number: int, do: str, **more: Any) -> None:
        """Tell a runner something; one that has ended hears nothing."""
        if child := self._child_of.get(number):
            child.send({"id": number, "do": do, **more})

    def hear(self, number: int, timeout_s: float) -> Line | None:
        """The next line of a runner; None where none came in time. Raises Interrupted."""
        until = monotonic() + timeout_s
        while not self._received[number]:
            if self.stopped:
                raise Interrupted
            left = until - monotonic()
            if left <= 0:
                return None
            with suppress(queue.Empty):
                self._sort(*self._mail.get(timeout=min(HEARING_S, left)))
        return self._received[number].popleft()

    def kill(self, number: int) -> None:
        """End a runner. One that cannot be killed is left behind with all that forked it."""
        self._begun.pop(number, None)
        self.send(number, "kill")
        child = self._child_of.get(number)
        if child is not self._common:
            if child:
                child.end()
            return
        until = monotonic() + KILLED_S
        while (left := until - monotonic()) > 0:
            line = self.hear(number, left)
            if line is not None and line["kind"] == "over":
                return
        self.end()

    def stop(self, _: int) -> None:
        """From a signal's handler: every waiting `hear` raises Interrupted soon."""
        self.stopped = True

    def end(self) -> None:
        """End every child."""
        for child in set(self._child_of.values()):
            child.end()
        self._common = None
        self._begun.clear()

    def _give(self, order: Line) -> None:
        """A start to the child that is to do it; kept until that child is known to be able to."""
        number, child = order["id"], self._common
        try:
            if not self.forks:
                child = _Child(self, "one")
            elif child is None or child.over:
                child = self._common = _Child(self, "fork")
        except OSError as error:
            why = f"{self.python}: {error.strerror}"
            self._received[number].append({"kind": "over", "detail": why})
            return
        if self.forks and not child.ready:
            self._begun[number] = order
        self._child_of[number] = child
        child.send(order)

    def _sort(self, child: _Child, line: Line | None) -> None:
        """Give a line to the runner it is of; the end of a process is the end of its runners."""
        if line is None:
            child.over = True
            for number, own in self._child_of.items():
                if own is child:
                    self._received[number].append({"kind": "over", "detail": child.last_words()})
        elif line["kind"] in ("torch", "broken"):
            child.error = " ".join(str(line.get("error") or child.error).split())[:600]
            child.ready = True
            orders, self._begun = self._begun, {}
            if line.get("begun"):
                # An import has begun CUDA: no fork could use it, so each runner gets a process.
                self._common, self.forks = None, False
                child.end()
                for order in orders.values():
                    self._give(order)
        elif line.get("id") in self._received:
            self._received[line["id"]].append(line)


class _Child:
    """A process of the examined interpreter, and the threads that read what it says.

    Raises OSError where the system allows no more of them.
    """

    def __init__(self, stable: Stable, how: str) -> None:
        self.over = False
        self.ready = False
        self.error = ""
        self._mail = stable._mail
        self._last = b""
        argv = (stable.python, "-c", BOOT, str(INSIDE), how)
        self._process = children.start(argv, env=stable.env, cwd=stable.cwd, stdin=subprocess.PIPE)
        self._readers = [children.start_thread(job) for job in (self._read, self._listen)]
        if None in self._readers:
            self.end()
            raise OSError(errno.EAGAIN, "the system does not allow any more threads")

    def send(self, order: Line) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended: its last line says so
            self._process.stdin.write((json.dumps(order) + "\n").encode("ascii"))
            self._process.stdin.flush()

    def end(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return  # its number may be another's by now
        children.kill(self._process)
        for reader in filter(None, self._readers):
            reader.join(0.5)  # one that a stuck process holds open is left behind
        with suppress(OSError):
            stdin.close()

    def last_words(self) -> str:
        """Why it ended, as well as that is known."""
        code = self._process.poll()
        if self.error or not code:
            return self.error
        words = self._last.decode("utf-8", "replace")[:300]
        how = f"status {code}" if code >= 0 else f"signal {-code}"
        return f"the Python process ended with {how}{words and f': {words}'}"

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with stdout, suppress(OSError, ValueError):
            for line in filter(None, map(line_of, stdout)):
                self._mail.put((self, line))
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._mail.put((self, None))

    def _listen(self) -> None:
        """Keep the last line of what torch prints: there stands why a process ended."""
        stderr = self._process.stderr
        assert stderr is not None
        with stderr, suppress(OSError, ValueError):
            for text in stderr:
                self._last = text.strip() or self._last

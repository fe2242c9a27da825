"""What is being waited for, on stderr: nothing in the first second, never on stdout."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cudadoctor.host.children import start_thread

if TYPE_CHECKING:
    from rich.status import Status

FIRST_S = 1.0
SAID_S = 10.0
SHORTER = "--timeout sets a shorter limit"
"""The hint of a command that has this option."""
Progress = Callable[[str, bool], None]
"""Called as progress(what, going): something was started or has ended."""


class _Waiting:
    """The things under way, and the thread that tells of them."""

    def __init__(self, hint: str) -> None:
        self.hint = f"; {hint}" if hint else ""
        self.live = sys.stderr.isatty()
        self.under_way: dict[str, float] = {}
        self.said: set[str] = set()
        self.status: Status | None = None
        self.over = threading.Event()
        self.lock = threading.Lock()

    def note(self, what: str, going: bool) -> None:
        with self.lock:
            if going:
                self.under_way[what] = time.monotonic()
            else:
                self.under_way.pop(what, None)

    def tell(self) -> None:
        while not self.over.wait(0.25):
            slow = self._slow()
            if self.live and slow:
                text = ", ".join(f"{what} ({took:.0f} s)" for what, took in slow.items())
                self._spin(text + (self.hint if max(slow.values()) > SAID_S else ""))
            elif not self.live:
                self._once({what for what, took in slow.items() if took > SAID_S})

    def _slow(self) -> dict[str, float]:
        """What takes long, without a whole of which a part is named: `the driver: cuInit`."""
        now = time.monotonic()
        with self.lock:
            slow = {what: now - at for what, at in self.under_way.items() if now - at > FIRST_S}
        wholes = {_whole(what) for what in slow if what != _whole(what)}
        return {what: took for what, took in slow.items() if what not in wholes}

    def _spin(self, text: str) -> None:
        """One line that moves, on a terminal; rich is loaded once there is a wait."""
        from rich.console import Console
        from rich.text import Text

        shown = Text(f"waiting for {text}")
        if self.status is None:
            self.status = Console(stderr=True).status(shown)
            self.status.start()
        else:
            self.status.update(shown)

    def _once(self, slow: set[str]) -> None:
        for what in sorted(slow):
            if _whole(what) not in self.said:
                with suppress(OSError):  # a full disk behind stderr
                    sys.stderr.write(f"waiting for {what} since {SAID_S:.0f} s{self.hint}\n")
                self.said.add(_whole(what))

    def clear(self) -> None:
        if self.status is not None:
            self.status.stop()


def _whole(what: str) -> str:
    return what.partition(":")[0]


@contextmanager
def shown_on_stderr(hint: str = "") -> Iterator[Progress]:
    """Tell on stderr what takes longer than a second, until the block ends.

    hint: how to wait for less, said after ten seconds.
    """
    waiting = _Waiting(hint)
    teller = start_thread(waiting.tell)
    try:
        yield waiting.note
    finally:
        waiting.over.set()
        if teller is not None:
            teller.join(1.0)
        waiting.clear()

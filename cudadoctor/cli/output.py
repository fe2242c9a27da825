"""What stands on the terminal: results in colour on stdout, and what is waited for on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cudadoctor.cli.options import refuse
from cudadoctor.host.children import start_thread

if TYPE_CHECKING:
    from rich.status import Status

    from cudadoctor.probes.streamed import Progress
    from cudadoctor.render.terminal import Line

WIDEST = 100
NARROWEST = 40
_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}


def written(text: str, output: str | None) -> None:
    """Write a result to stdout, or to the file of --output."""
    if output is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            refuse(f"cannot write to stdout: {error.strerror}")
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 3 ms
            file.write(text)
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror}")


def width() -> int:
    """Columns to lay the report out for: COLUMNS, else the terminal's, else 80."""
    told = os.environ.get("COLUMNS", "")
    columns = int(told) if told.isdecimal() else 0
    if not columns and sys.__stdout__ is not None:
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns
    return max(NARROWEST, min(columns or 80, WIDEST))


def coloured() -> bool:
    """Whether stdout shows colours: a terminal that is not dumb, without NO_COLOR."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def painted(lines: list[Line], *, to_file: bool = False) -> str:
    """The lines as one text."""
    if to_file or not coloured():
        return "".join(line.text.rstrip() + "\n" for line in lines)
    return "".join(
        "".join(_span(text, style) for text, style in line.spans) + "\n" for line in lines
    )


def _span(text: str, style: str) -> str:
    # Six styles need no library: rich would take as long to load as the whole look takes.
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


FIRST_S = 1.0
SAID_S = 10.0
SHORTER = "--timeout sets a shorter limit"
"""The hint of a command that has this option."""


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

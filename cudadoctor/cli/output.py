"""What stands on the terminal: results in colour on stdout, and what is waited for on stderr."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from cudadoctor.cli.options import refuse
from cudadoctor.host.children import start_thread

if TYPE_CHECKING:
    from rich.status import Status

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
            refuse("cannot write to stdout: {reason}", reason=error.strerror)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs 3 ms
            file.write(text)
    except OSError as error:
        refuse("cannot write to {path}: {reason}", path=output, reason=error.strerror)


def replaced(text: str, path: str) -> None:
    """Written beside it and renamed: whoever collects the file never sees half of it."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - as above
        written(text, path)  # a pipe or a device, which must stay
        return
    made = f"{path}.{os.getpid()}.tmp"
    try:
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        os.replace(made, path)  # noqa: PTH105
    except OSError as error:
        with suppress(OSError):
            os.unlink(made)  # noqa: PTH108
        refuse("cannot write to {path}: {reason}", path=path, reason=error.strerror)


def width() -> int:
    """Columns to lay the report out for: COLUMNS, else the terminal's, else 80."""
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if given.isdecimal() else 0
    if not columns:
        # Of sys.stdout: PYTHONUNBUFFERED makes the start of the program replace sys.__stdout__.
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
    return max(NARROWEST, min(columns or 80, WIDEST))


_SIGNS = "✓✗–·…→"
_WITHOUT_SIGNS = ("dumb", "linux")
"""Terminals whose fonts lack them: the kernel's own console has 256 characters."""


def signs() -> bool:
    """Whether stdout shows ✓ and ✗: a terminal, in a locale that can write them."""
    try:
        _SIGNS.encode(sys.stdout.encoding)
    except (UnicodeError, LookupError, TypeError):
        return False
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    # Python writes UTF-8 there all the same, and who chooses this locale wants none of it.
    plain = next(filter(None, named), "") in ("C", "POSIX")
    return sys.stdout.isatty() and not plain and os.environ.get("TERM", "") not in _WITHOUT_SIGNS


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


def asked(question: str) -> bool:
    """Whether the user says yes to a question on stderr; the answers stand behind it."""
    from cudadoctor.cli.speech import say

    sys.stderr.write(f"{question} {say('[y/N]')} ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes", *say("y yes").split()}


FIRST_S = 1.0
ANNOUNCE_S = 10.0
SHORTER = "--timeout sets a shorter limit"
"""The hint of a command that has this option."""


class Waiting:
    """Says on stderr what takes longer than a second, until the block ends.

    hint: how to wait for less, said after ten seconds. lead: "" where what is under way is named
    as what the doctor does.
    """

    def __init__(self, hint: str = "", *, lead: str = "waiting for {what}") -> None:
        self.hint = hint
        self.lead = lead
        self.live = sys.stderr.isatty()
        self.under_way: dict[str, float] = {}
        self.announced: set[str] = set()
        self._latest = ""
        self._status: Status | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> Waiting:
        self._thread = start_thread(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(1.0)
        self._clear()

    def __call__(self, what: str, going: bool) -> None:
        """Something begins, or has ended."""
        with self._lock:
            self._latest = ""
            if going:
                self.under_way[what] = monotonic()
            else:
                self.under_way.pop(what, None)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """One step of several, named at once where no line moves."""
        if self.live:
            self(what, True)
        else:
            self.say(what)
        try:
            yield
        finally:
            self(what, False)
            self._clear()

    def line(self, text: str) -> None:
        """The tool that is waited for said this."""
        from cudadoctor.render import inert

        self._latest = f": {inert(text.strip())}"

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._clear()
        with suppress(OSError):  # a full disk behind stderr
            sys.stderr.write(f"{sentence}\n")
            sys.stderr.flush()

    def slow(self) -> dict[str, float]:
        """What takes long, without a whole of which a part is named: `the driver: cuInit`."""
        now = monotonic()
        with self._lock:
            slow = {what: now - at for what, at in self.under_way.items() if now - at > FIRST_S}
        wholes = {_whole(what) for what in slow if what != _whole(what)}
        return {what: took for what, took in slow.items() if what not in wholes}

    def once(self, slow: set[str]) -> None:
        """Where no line moves: each thing once, when it has taken long."""
        for what in sorted(slow):
            if _whole(what) not in self.announced:
                self.say(self._told({what: ANNOUNCE_S}, hint=self.hint))
                self.announced.add(_whole(what))

    def _told(self, slow: dict[str, float], *, hint: str) -> str:
        """What is waited for, and how to wait for less."""
        from cudadoctor.cli.speech import say

        text = ", ".join(f"{_named(what)} ({took:.0f} s)" for what, took in slow.items())
        told = say(self.lead, what=text) if self.lead else text
        return f"{told}; {say(hint)}" if hint else told

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            slow = self.slow()
            if not self.live:
                self.once({what for what, took in slow.items() if took > ANNOUNCE_S})
            elif slow:
                hint = self.hint if max(slow.values()) > ANNOUNCE_S else ""
                self._spin(self._told(slow, hint=hint) + self._latest)
            else:
                self._clear()

    def _spin(self, text: str) -> None:
        """One line that moves, on a terminal; rich is loaded once there is a wait."""
        from rich.console import Console
        from rich.text import Text

        with self._lock:
            if self._status is None:
                self._status = Console(stderr=True).status("")
                self._status.start()
            self._status.update(Text(text[: self._status.console.width - 3]))

    def _clear(self) -> None:
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None


def _whole(what: str) -> str:
    return what.partition(":")[0]


def _named(what: str) -> str:
    """What a probe waits for, in the user's words: `the driver: cuInit`."""
    from cudadoctor.cli.speech import say

    whole, mark, part = what.partition(": ")
    return f"{say(whole)}{mark}{part}"

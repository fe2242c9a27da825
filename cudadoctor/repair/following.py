"""What goes on, on stderr: one line that moves on a terminal, a line for each step elsewhere."""

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator

from cudadoctor.render import inert

EVERY_S = 0.1


class Following:
    """Tells of a long work. verbose: every line of the tools, in place of the moving one."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.live = sys.stderr.isatty() and not verbose
        self.verbose = verbose
        self._begun = time.monotonic()
        self._shown = 0.0
        self._what = ""

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(sentence + "\n")

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Something begins; on a terminal its line is gone when it has ended."""
        self._what, self._begun, self._shown = what, time.monotonic(), 0.0
        if self.live:
            self._move("")
        else:
            self._write(f"{what}\n")
        try:
            yield
        finally:
            self.clear()

    def line(self, text: str) -> None:
        """The tool said this."""
        if self.verbose:
            self._write(f"  {inert(text)}\n")
        elif self.live and time.monotonic() - self._shown > EVERY_S:
            self._move(text)

    def clear(self) -> None:
        if self.live:
            self._write("\r\x1b[2K")

    def _move(self, text: str) -> None:
        self._shown = time.monotonic()
        took = f"{self._shown - self._begun:.0f} s"
        words = f"{self._what} ({took})" + (f": {inert(text.strip())}" if text else "")
        self._write("\r\x1b[2K" + words[: shutil.get_terminal_size().columns - 1])

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk behind stderr
            sys.stderr.write(text)
            sys.stderr.flush()

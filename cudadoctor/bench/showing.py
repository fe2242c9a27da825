"""What the bench prints: its progress on stderr, its result on stdout or into files."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cudadoctor.bench import results, storing, techniques
from cudadoctor.cli.commands import NARROWEST, WIDEST, written
from cudadoctor.cli.usage import refuse

if TYPE_CHECKING:
    from cudadoctor.bench.results import BenchResult
    from cudadoctor.bench.words import Hint
    from cudadoctor.cli.options import Asked

BAR = 20


class Progress:
    """One line that moves on a terminal; elsewhere a line for each new thing that is begun."""

    def __init__(self, began: float, seconds: float) -> None:
        self.began = began
        self.seconds = max(1.0, seconds)
        self.live = sys.stderr.isatty()
        self._last = ""

    def say(self, text: str) -> None:
        spent = time.monotonic() - self.began
        with contextlib.suppress(OSError):  # a full disk behind stderr
            if self.live:
                self._move(text, spent)
            elif (what := text.partition(": round ")[0]) != self._last:
                self._last = what
                sys.stderr.write(f"[{spent:4.0f} s] {what}\n")
                sys.stderr.flush()

    def _move(self, text: str, spent: float) -> None:
        done = min(BAR, round(BAR * spent / self.seconds))
        left = max(0.0, self.seconds - spent)
        bar = "#" * done + "." * (BAR - done)
        line = f"[{bar}] {left // 60:.0f}:{left % 60:02.0f} at most  {text}"
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        sys.stderr.write("\r\x1b[2K" + line[: columns - 1])
        sys.stderr.flush()

    def end(self) -> None:
        if self.live:
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[2K")
                sys.stderr.flush()


def shown(result: BenchResult, asked: Asked, *, keep: bool) -> None:
    """Print the result as it was asked for, draw the chart, and keep it for later advice."""
    written(_text(result, asked), asked.output)
    if asked.chart:
        _draw(result, asked.chart)
    if keep and asked.scale != "tiny":
        why = storing.keep(result, os.environ)
        if why is not None:
            sys.stderr.write(f"cudadoctor: {why}\n")


def _text(result: BenchResult, asked: Asked) -> str:
    if asked.as_json:
        return results.dumps(result) + "\n"
    if asked.markdown:
        from cudadoctor.bench import markdown as bench_markdown

        return bench_markdown.report(result, hints())
    from cudadoctor.bench import terminal as bench_terminal
    from cudadoctor.cli import painting

    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    layout = bench_terminal.Layout(
        width=painting.width(NARROWEST, WIDEST), blocks=encoding == "utf8", hints=hints()
    )
    return painting.painted(bench_terminal.report(result, layout), to_file=asked.output is not None)


def hints() -> dict[str, Hint]:
    """How each technique is taken over."""
    from cudadoctor.bench.words import Hint

    return {
        one.name: Hint(recipe=f"recipes/train/{one.recipe}", code=one.code, cost=one.cost)
        for one in techniques.TECHNIQUES
        if one.recipe
    }


def _draw(result: BenchResult, file: str) -> None:
    from cudadoctor.bench import charts

    try:
        if file.endswith(".png"):
            Path(file).write_bytes(charts.png(result))
        else:
            Path(file).write_text(charts.svg(result), encoding="utf-8")
    except charts.NoPng as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"cannot write to {file}: {error.strerror}")

"""Lines of a report -> text for this terminal: with colour where it has any, plain elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}

if TYPE_CHECKING:
    from cudadoctor.render.terminal import Line


def width(narrowest: int, widest: int) -> int:
    """Columns to lay the report out for: COLUMNS, else the terminal's, else 80."""
    told = os.environ.get("COLUMNS", "")
    columns = int(told) if told.isdecimal() else 0
    if not columns and sys.__stdout__ is not None:
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns
    return max(narrowest, min(columns or 80, widest))


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

"""Lines of a report -> text for this terminal: with colour where it has any, plain elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudadoctor.render.terminal import Line


def width(narrowest: int, widest: int) -> int:
    """Columns to lay the report out for."""
    return max(narrowest, min(shutil.get_terminal_size((80, 24)).columns, widest))


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
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True, markup=False, highlight=False, emoji=False)
    with console.capture() as taken:
        for line in lines:
            text = Text.assemble(*((part, style or "none") for part, style in line.spans))
            console.print(text, soft_wrap=True)
    return taken.get()

"""Draw docs/check.svg: the page that `cudadoctor check` prints on the machine of picture.toml.

python docs/picture.py
"""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cudadoctor import pipeline
from cudadoctor.render import terminal

HERE = Path(__file__).resolve().parent
COLUMNS = 90


def page(scenario: Path) -> list[terminal.Line]:
    """The lines of the page; the scenario has the form of those in tests/scenarios."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from scenario_reader import read_scenario

    judged = pipeline.judge(read_scenario(scenario).machine)
    shown = pipeline.report(judged, seconds=4.2)
    return terminal.report(shown, terminal.Layout(width=COLUMNS))


def picture(prompt: str, lines: list[terminal.Line]) -> str:
    """The page below its prompt, as an SVG."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), (prompt, "bold")))
    for line in lines:
        console.print(Text.assemble(*line.spans), overflow="fold")
    return console.export_svg(title=prompt, unique_id="check")


def main() -> None:
    svg = picture("cudadoctor check", page(HERE / "picture.toml"))
    (HERE / "check.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()

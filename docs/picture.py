"""Draw the picture of the README: a real run of `cudadoctor check` in a terminal of 90 columns.

    python docs/picture.py [PYTHON] [FILE]

PYTHON is the interpreter that is examined (default: what `check` chooses by itself), FILE the
picture (default: docs/check.svg).
"""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 90
LIMIT_S = 300


def run_in_terminal(command: list[str]) -> str:
    """What the command writes to a terminal, colours and all."""
    leader, follower = pty.openpty()
    env = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, stdout=follower, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    ) as running:
        os.close(follower)
        written = b"".join(_pieces(leader))
        running.wait(LIMIT_S)
    os.close(leader)
    return written.decode().replace("\r\n", "\n")


def _pieces(leader: int) -> list[bytes]:
    found, end = [], time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError:  # Linux tells the end of a terminal by an error.
            break
        if not piece:
            break
        found.append(piece)
    return found


def picture(prompt: str, written: str) -> str:
    """The run as an SVG; a command that is longer than a line is folded, as a terminal does it."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), (prompt, "bold")), overflow="fold")
    console.print(Text.from_ansi(written), overflow="fold")
    return console.export_svg(title="cudadoctor check", unique_id="check")


def main() -> None:
    """Run, draw, write."""
    arguments = ["check", *(["--python", sys.argv[1]] if len(sys.argv) > 1 else [])]
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("check.svg")
    written = run_in_terminal([sys.executable, "-m", "cudadoctor", *arguments])
    svg = picture(shlex.join(["cudadoctor", *arguments]), written)
    file.write_text(svg, encoding="utf-8")
    print(written)  # noqa: T201


if __name__ == "__main__":
    main()

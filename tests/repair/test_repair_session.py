"""A command of a repair while it runs: what counts as a sign of life, and which words are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudadoctor.repair.session import Command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on POSIX")

BAR = """
import sys, time
for step in range(20):
    sys.stdout.write(f"\\r{step} %")
    sys.stdout.flush()
    time.sleep(0.1)
print("\\rdone")
"""


def ran(folder: Path, code: str, silence_s: float) -> tuple[int | None, list[str]]:
    lines: list[str] = []
    command = Command((sys.executable, "-c", code), {}, str(folder), lines.append)
    command.go()
    return command.wait(lambda: False, silence_s), lines


def test_a_progress_bar_is_a_sign_of_life(tmp_path: Path) -> None:
    """It ends no line for two seconds; what stands last on the line is kept."""
    assert ran(tmp_path, BAR, silence_s=1.5) == (0, ["done"])


def test_silence_ends_it(tmp_path: Path) -> None:
    assert ran(
        tmp_path, "import signal; signal.signal(2, signal.SIG_DFL); signal.pause()", silence_s=0.5
    ) == (None, [])


def test_words_without_an_end_of_line_are_kept(tmp_path: Path) -> None:
    assert ran(tmp_path, "print('no end', end='')", silence_s=60.0) == (0, ["no end"])

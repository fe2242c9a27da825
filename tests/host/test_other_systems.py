"""Windows and macOS, as far as Linux can play them: no name that they lack is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLAYED = Path(__file__).parent.parent / "support" / "played_system.py"
SYSTEMS = ["win32", "darwin"]


def played(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PLAYED, *words], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_can_be_imported(system: str) -> None:
    ran = played(system, "imports")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(("system", "name"), [("win32", "Windows"), ("darwin", "Darwin")])
def test_a_fast_check_runs_to_its_end(system: str, name: str) -> None:
    ran = played(system, "check", "--fast", "--json", "--python", sys.executable)
    assert (ran.returncode in (0, 1, 3), ran.stderr) == (True, "")
    assert json.loads(ran.stdout)["facts"]["platform"]["system"] == name

"""SIGKILL at any moment of a repair: what was there comes back, and the repair can be resumed."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repair_fixtures import FITTING, STRANGE, Environment, broken_environment
from share import WHOLE, share

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")

RECORDS = 8
"""begun, snapshot-begun, snapshot-done, step-begun, step-ended, checking, verdict, kept."""
UNDONE = range(1, RECORDS + 1) if WHOLE else (1, 2, 4, 6, 8)
RESUMED = range(1, RECORDS) if WHOLE else (1, 3, 4, 5, 7)
"""After each record the one, the other, or both."""
MOMENTS = 5
"""Spread over a repair; benchmarks/repair_kills.py takes hundreds."""
LONGEST_S = 0.9
SEED = 20261121
KILLED = -9


def whole(broken: Environment) -> tuple[object, ...]:
    """All that can be said of it: its files, the packages they are, and that they work."""
    return broken.tree(), broken.listed(), broken.imports()


@pytest.mark.parametrize("records", UNDONE)
def test_killed_after_a_record_it_can_be_undone(broken: Environment, records: int) -> None:
    before = whole(broken)
    assert broken.killed_after(records, "yes") == KILLED
    assert len(broken.records()) == records
    ran = broken.fix("--undo")
    assert ran.returncode == 0, ran
    assert whole(broken) == before
    assert not list(broken.journal.parent.glob("before-*"))


@pytest.mark.parametrize("records", RESUMED)
def test_killed_after_a_record_it_can_be_resumed(broken: Environment, records: int) -> None:
    before = whole(broken)
    assert broken.killed_after(records, "yes") == KILLED
    ran = broken.fix("--resume")
    assert ran.returncode == 0, ran
    assert broken.imports() == FITTING
    assert broken.records()[-1] == "kept"
    assert broken.fix("--undo").returncode == 0
    assert whole(broken) == before


TAKEN_BACK = [(8, "--undo"), (8, "--resume"), (9, "--resume"), (9, "--undo")]


@pytest.mark.parametrize(("records", "then"), share(TAKEN_BACK, 2, 1))
def test_killed_while_it_is_taken_back(broken: Environment, records: int, then: str) -> None:
    """The verdict is not better; the kill comes before and after all has been brought back."""
    stray = broken.site / f"torchvision-{STRANGE}.dist-info" / "direct_url.json"
    stray.write_text("{}")
    before = whole(broken)
    assert broken.killed_after(records, "yes") == KILLED
    assert broken.records()[-1] == ("rolling-back" if records == 8 else "rolled-back")
    assert broken.fix(then).returncode == (1 if (records, then) == (8, "--resume") else 0)
    assert whole(broken) == before


@pytest.mark.parametrize("records", [1, 2])
def test_an_undo_that_was_killed_is_finished_by_the_next(broken: Environment, records: int) -> None:
    before = whole(broken)
    broken.fix("--yes")
    assert broken.killed_after(records, "undo") == KILLED
    assert broken.fix("--undo").returncode == 0
    assert whole(broken) == before


def test_killed_at_random_moments_it_can_be_undone(sound: Path, index: str, tmp_path: Path) -> None:
    """Each moment lies between the first record and the end, in a new copy."""
    moments = random.Random(SEED)
    broken = broken_environment(sound, tmp_path / "venv", index)
    freeze, before = broken.freeze(), whole(broken)
    reached = set()
    for number in range(MOMENTS):
        killed_within(broken, (number + moments.random()) * LONGEST_S / MOMENTS)
        reached.add(len(broken.records()))
        ran = broken.fix("--undo")
        assert ran.returncode == 0, (number, ran)
        assert whole(broken) == before, number
    assert broken.freeze() == freeze
    assert len(reached) > 1


def killed_within(broken: Environment, seconds: float) -> None:
    """Start a repair and kill it so long after its first record."""
    earlier = len(broken.records())
    with subprocess.Popen(
        broken.words("--yes"),
        env=broken.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        while child.poll() is None and len(broken.records()) <= earlier:
            time.sleep(0.001)
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)


def test_that_a_repair_was_cut_off_is_said_and_it_is_undone_without_its_python(
    broken: Environment,
) -> None:
    before = whole(broken)
    broken.killed_after(4)
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--python", str(broken.folder)]
    ran = subprocess.run(argv, env=broken.env(), capture_output=True, text=True, check=False)
    assert "interrupted; undo it first: cudadoctor fix --undo" in " ".join(ran.stdout.split())
    again = broken.fix("--yes")
    assert again.returncode == 2, "another repair began"
    assert "--resume" in again.stderr
    assert "--undo" in again.stderr
    # And without its Python, as where conda was killed while it replaced Python itself.
    shutil.rmtree(broken.folder / "bin")
    words = [*broken.words("--undo")[:-2], str(broken.python), "--undo"]
    ran = subprocess.run(words, env=broken.env(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    assert whole(broken) == before

"""`fix` as a program: a real environment, a real pip, real wheels; cured, undone, refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repair_fixtures import (
    FITTING,
    STRANGE,
    TORCH,
    TORCH_FILES,
    Environment,
    write_index,
)


def last(ran: subprocess.CompletedProcess[str]) -> str:
    """Its words after the plan, on one line."""
    return " ".join(ran.stdout.rpartition("\n\n")[2].split())


def test_a_fault_is_cured_and_the_cure_can_be_undone(broken: Environment) -> None:
    freeze, before = broken.freeze(), broken.tree()
    ran = broken.fix("--yes")
    assert (ran.returncode, last(ran).partition(".")[0]) == (
        0,
        "Fixed: the verdict changed from broken to healthy",
    ), ran
    assert broken.imports() == FITTING
    assert broken.records()[-1] == "kept"
    undone = broken.fix("--undo")
    assert undone.returncode == 0
    assert last(undone).startswith("Undone: everything is as it was before the fix")
    assert (broken.freeze(), broken.tree(), broken.imports()) == (freeze, before, STRANGE)


def test_what_did_not_help_is_taken_back(broken: Environment) -> None:
    """pip leaves metadata behind that it did not record, so two versions are found afterwards."""
    stray = broken.site / f"torchvision-{STRANGE}.dist-info" / "direct_url.json"
    stray.write_text("{}")
    freeze, before = broken.freeze(), broken.tree()
    ran = broken.fix("--yes")
    assert ran.returncode == 1, ran
    assert (
        "Not fixed: torch-companion-mismatch is still reported. Everything is as it was before."
        in last(ran)
    )
    assert broken.records()[-3:] == ["verdict", "rolling-back", "rolled-back"]
    assert (broken.freeze(), broken.tree()) == (freeze, before)


def test_a_failing_pip_changes_nothing_for_good(broken: Environment, tmp_path: Path) -> None:
    broken.index = write_index(tmp_path / "empty", ("torch", TORCH, TORCH_FILES, ()))
    before = broken.tree()
    ran = broken.fix("--yes")
    assert ran.returncode == 1
    assert broken.tree() == before


def test_json_is_one_document_with_the_outcome(broken: Environment) -> None:
    ran = broken.fix("--yes", "--json")
    document = json.loads(ran.stdout)
    assert (document["schema"], document["outcome"], document["exit"]) == (1, "kept", 0)
    assert (document["before"]["verdict"], document["after"]["verdict"]) == ("broken", "healthy")
    here = [step["id"] for step in document["plan"]["steps"] if step["where"] == "here"]
    assert document["applied"] == here
    assert Path(document["journal"]) == broken.journal


def test_without_a_terminal_and_without_yes_nothing_is_done(broken: Environment) -> None:
    before = broken.tree()
    ran = broken.fix()
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "--yes" in ran.stderr
    assert broken.tree() == before
    assert not broken.journal.exists()


def test_nothing_to_undo_is_no_failure(broken: Environment) -> None:
    for word in ("--undo", "--resume", "--forget"):
        ran = broken.fix(word)
        assert ran.returncode == 0, ran
        verb = {"--forget": "delete"}.get(word, word[2:])
        assert last(ran) == f"Nothing to {verb}: no fix has been applied to {broken.folder}."


def test_what_is_forgotten_cannot_be_undone(broken: Environment) -> None:
    broken.fix("--yes")
    assert broken.fix("--forget").returncode == 0
    assert not list(broken.journal.parent.glob("before-*"))
    assert last(broken.fix("--undo")).startswith("Nothing to undo")
    assert broken.imports() == FITTING


def test_an_undo_waits_for_who_runs_in_it_says_what_would_be_lost_and_wants_a_yes(
    broken: Environment,
) -> None:
    broken.fix("--yes")
    user = subprocess.Popen([str(broken.python), "-c", "import time; time.sleep(60)"])
    try:
        ran = broken.fix("--undo")
    finally:
        user.kill()
        user.wait()
    assert ran.returncode == 1
    assert "is running in this environment" in last(ran)
    assert broken.imports() == FITTING
    (broken.site / "mine.py").write_text("MINE = 1\n")
    asked = broken.fix("--undo")
    assert asked.returncode == 2
    assert "1 file has changed since the fix" in asked.stderr
    assert broken.imports() == FITTING
    assert broken.fix("--undo", "--yes").returncode == 0
    assert broken.imports() == STRANGE
    assert not (broken.site / "mine.py").exists()


def test_an_environment_in_use_is_left_alone(broken: Environment) -> None:
    before = broken.tree()
    user = subprocess.Popen([str(broken.python), "-c", "import time; time.sleep(60)"])
    try:
        ran = broken.fix("--yes")
    finally:
        user.kill()
        user.wait()
    assert ran.returncode == 1
    assert f"({user.pid}) is running in this environment" in last(ran)
    assert broken.tree() == before


def test_two_repairs_do_not_run_at_once(broken: Environment) -> None:
    """The second one comes while the first waits for its pip."""
    slow = broken.folder.parent / "slow.py"
    slow.write_text(
        "import sys, time\n"
        "from cudadoctor.repair.journal import Journal\n"
        "with Journal(sys.argv[1]):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, str(slow), str(broken.folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        ran = broken.fix("--yes")
        holder.kill()
    assert ran.returncode == 1
    assert "another cudadoctor process is working on" in last(ran)


@pytest.mark.parametrize("record", ["snapshot-begun", "step-begun", "checking"])
def test_an_interrupt_brings_everything_back(broken: Environment, record: str) -> None:
    before = broken.tree()
    child = subprocess.Popen(
        broken.words("--yes"), env=broken.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while record not in broken.records():
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b": interrupted." in out
    assert broken.tree() == before
    assert broken.records()[-1] == "rolled-back"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_the_environment_of_another_user_alone(broken: Environment) -> None:
    for path in (broken.folder, *broken.folder.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    before = broken.tree()
    ran = broken.fix("--yes")
    assert ran.returncode == 2
    assert "belongs to nobody" in ran.stderr
    assert broken.tree() == before


def test_the_snapshot_before_goes_when_a_second_repair_is_kept(broken: Environment) -> None:
    broken.fix("--yes")
    first = list(broken.journal.parent.glob("before-*"))
    found = broken.site / f"torchvision-{FITTING}.dist-info" / "METADATA"
    found.write_text(found.read_text().replace(FITTING, "0.19.0").replace(TORCH, "2.4.0"))
    assert broken.fix("--yes").returncode == 0
    second = list(broken.journal.parent.glob("before-*"))
    assert len(first) == len(second) == 1
    assert first != second
    assert "forgotten" in broken.records()


@pytest.mark.parametrize("killed_after", [None, 4])
def test_a_record_that_was_removed_is_said_and_closes_the_repair(
    broken: Environment, killed_after: int | None
) -> None:
    if killed_after:
        broken.killed_after(killed_after)
    else:
        broken.fix("--yes")
    for folder in broken.journal.parent.glob("before-*"):
        shutil.rmtree(folder)
    ran = broken.fix("--undo")
    assert ran.returncode == 1
    assert "nothing can be restored" in last(ran)
    assert last(broken.fix("--undo")).startswith("Nothing to undo")
    assert broken.fix("--yes").returncode == 0

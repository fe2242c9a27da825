"""What the doctor survives: a driver that never answers, killed children, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hang_fixtures import Sick, sick_host
from standin_fixtures import StandIns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HANGS = "nvmlInitWithFlags = hang\ncuInit = hang"
LONG_S = 60
"""No figure of speed: whoever waits for a hung child waits for minutes."""
DOCUMENTED = {0, 1, 3}
FAST = ("check", "--fast", "--json", "--python", sys.executable)


@pytest.fixture
def sick(standins: StandIns, tmp_path: Path) -> Iterator[Sick]:
    """Nothing that talks to the driver ever comes back."""
    host = sick_host(standins, tmp_path, HANGS)
    yield host
    host.end()


@pytest.fixture
def well(standins: StandIns, tmp_path: Path) -> Iterator[Sick]:
    """The driver's libraries answer, and there is no nvidia-smi of ours."""
    host = sick_host(standins, tmp_path, "", silent_smi=False)
    yield host
    host.end()


def ended(child: subprocess.Popen[bytes], limit_s: float = LONG_S) -> tuple[int, bytes, bytes]:
    out, err = child.communicate(timeout=limit_s)
    assert b"Traceback" not in err, err.decode()
    return child.returncode, out, err


def reported(child: subprocess.Popen[bytes], limit_s: float = LONG_S) -> dict[str, Any]:
    """The report; its exit code is a documented one."""
    code, out, err = ended(child, limit_s)
    assert code in DOCUMENTED, err.decode()
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


# --- a driver that never answers -------------------------------------------------------


def test_a_fast_check_names_what_did_not_answer(sick: Sick, python_cu130: str) -> None:
    child = sick.started("check", "--fast", "--json", "--python", python_cu130)
    document = reported(child, limit_s=30)
    gaps = json.dumps(document["facts"]["gaps"])
    for name in ("nvmlInit", "cuInit", "nvidia-smi"):
        assert f"{name}: no response within" in gaps
    assert child.returncode == 3
    assert document["verdict"] == "undecided"
    assert document["primary"] is None
    assert not sick.left()
    assert not list(sick.scratch.iterdir())


def test_a_limit_of_the_users_own_is_kept(sick: Sick) -> None:
    document = reported(sick.started(*FAST, "--timeout", "1"))
    assert "no response within 1 s" in json.dumps(document["facts"]["gaps"])
    assert not sick.left()


# --- Ctrl-C and its kin ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_an_interruption_leaves_no_child_and_no_folder(
    sick: Sick, number: signal.Signals, code: int
) -> None:
    child = sick.started("check", "--json", "--python", sys.executable)
    sick.child("nvml.py")
    sick.child("nvidia-smi")
    assert list(sick.scratch.iterdir())
    os.killpg(child.pid, number)
    found, out, err = ended(child)
    assert (found, out) == (code, b""), err.decode()
    assert not sick.left()
    assert not list(sick.scratch.iterdir())


def test_ctrl_c_in_the_training_step_leaves_no_child(well: Sick, python_cpu: str) -> None:
    child = well.started("check", "--json", "--python", python_cpu, "--device", "cpu")
    well.child("smoke/inside")
    os.killpg(child.pid, signal.SIGINT)
    assert ended(child)[:2] == (130, b"")
    assert not well.left()
    assert not list(well.scratch.iterdir())


def test_ctrl_c_pressed_again_and_again_is_still_one_ctrl_c(sick: Sick) -> None:
    child = sick.started("check", "--python", sys.executable)
    sick.child("nvml.py")
    while child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.02)  # as fast as a key repeats
    assert ended(child)[:2] == (130, b"")
    assert not sick.left()


# --- children killed by others, as the out-of-memory killer does -----------------------


def test_a_killed_nvml_child_is_told_and_the_report_comes(sick: Sick) -> None:
    child = sick.started(*FAST)
    os.kill(sick.child("nvml.py"), signal.SIGKILL)
    document = reported(child)
    assert document["facts"]["driver"]["nvml"]["signal"] == signal.SIGKILL
    assert not sick.left()


def test_a_killed_look_is_told_and_the_report_comes(well: Sick, tmp_path: Path) -> None:
    slow = tmp_path / "bin" / "python3"
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    child = well.started("check", "--fast", "--json", "--python", str(slow))
    os.kill(well.child("look.py"), signal.SIGKILL)
    document = reported(child)
    assert "killed" in json.dumps(document["facts"]["gaps"])
    assert not well.left()


def test_a_killed_training_step_is_told_and_the_report_comes(well: Sick, python_cpu: str) -> None:
    child = well.started("check", "--json", "--python", python_cpu, "--device", "cpu")
    os.kill(well.child("smoke/inside"), signal.SIGKILL)
    document = reported(child)
    assert document["verdict"] != "healthy"
    assert not well.left()
    assert not list(well.scratch.iterdir())

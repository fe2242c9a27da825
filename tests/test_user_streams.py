"""Closed, full and interrupted: what a shell or a service hands to the doctor."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

DOCTOR = f"{sys.executable} -m cudadoctor"
FAST = f"{DOCTOR} check --fast --python {sys.executable}"


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", "-c", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_changes_nothing_but_itself(closed: str) -> None:
    usual, ran = _shell(FAST), _shell(f"{FAST} {closed}")
    assert ran.returncode == usual.returncode
    assert (ran.stdout == "") == (">&-" in closed.replace("2>&-", ""))
    assert "Traceback" not in ran.stderr
    assert "itself failed" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_stdout_is_said_in_one_sentence() -> None:
    ran = _shell(f"{FAST} > /dev/full")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("cudadoctor: cannot write to stdout: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_wherever_it_stands(number: signal.Signals) -> None:
    """Raised as an exception it would be lost in a callback, or crash a library's own code."""
    program = (
        "import os, threading; from cudadoctor import __main__ as m; m._heed_signals()\n"
        "class Callback:\n"
        f"    def __del__(self): os.kill(os.getpid(), {int(number)}); os.getpid()\n"
        "one = Callback(); del one; print('went on')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + number, "", "")

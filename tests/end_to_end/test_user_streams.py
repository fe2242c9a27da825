"""Closed, full and interrupted: what a shell or a service hands to the doctor."""

from __future__ import annotations

import re
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "words", ["explain", "explain torch-missing", "version", "--version", "--help", "check --help"]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_no_command_takes_a_full_disk_for_a_failure_of_its_own(words: str, unbuffered: str) -> None:
    ran = _shell(f"PYTHONUNBUFFERED={unbuffered} {DOCTOR} {words} > /dev/full")
    assert ran.stderr == "cudadoctor: cannot write to stdout: No space left on device\n"
    assert ran.returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_takes_only_the_beginning_is_no_success(
    tmp_path: Path, unbuffered: str
) -> None:
    out = tmp_path / "out"
    ran = _shell(f"ulimit -f 1; PYTHONUNBUFFERED={unbuffered} {DOCTOR} explain > {out}")
    assert ran.returncode == 2
    assert out.stat().st_size in (512, 1024)
    assert ran.stderr == "cudadoctor: cannot write to stdout: File too large\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_stderr_does_not_change_the_exit_code() -> None:
    assert _shell(f"{DOCTOR} check --nonsense 2> /dev/full").returncode == 2
    usual, ran = _shell(FAST), _shell(f"{FAST} 2> /dev/full")
    took = re.compile(r"\d+\.\d s\b")
    assert ran.returncode == usual.returncode
    assert took.sub("", ran.stdout) == took.sub("", usual.stdout)


@pytest.mark.parametrize(
    "words", ["check --fast", "check --fast --json", "explain", "facts --fast"]
)
def test_a_reader_that_leaves_early_hears_of_no_error(words: str) -> None:
    ran = _shell(f"{DOCTOR} {words} | head -1")
    errors = [line for line in ran.stderr.splitlines() if not line.startswith("not checked: ")]
    assert (ran.returncode, errors) == (0, [])
    assert len(ran.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    "limit", ["nan", "inf", "-inf", "-1", "0", "1e99", "1e-5", "", "soon", "0x10", "86401"]
)
def test_a_limit_that_is_none_is_refused_in_one_sentence(limit: str) -> None:
    ran = _shell(f"{FAST} --timeout='{limit}'")
    sentence = (
        f"cudadoctor: '{limit}' is not a valid limit: enter a value in seconds from 0.1 to 86400\n"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_wherever_it_stands(number: signal.Signals) -> None:
    """Raised as an exception it would be lost in a callback, or crash a library's own code."""
    program = (
        "import os, threading; from cudadoctor import __main__ as m; m.signals.take(m._interrupt)\n"
        "class Callback:\n"
        f"    def __del__(self): os.kill(os.getpid(), {int(number)}); os.getpid()\n"
        "one = Callback(); del one; print('went on')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + number, "", "")

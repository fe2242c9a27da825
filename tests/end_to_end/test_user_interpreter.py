"""What a user sees of the choice of the interpreter, and of one that cannot be examined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import typed
from cudadoctor.pipeline import judge
from cudadoctor.probes.target import UsageError, choose
from cudadoctor.render import shells

_UNLOOKED = ("smoke", "torch", "libraries", "packages", "python.bits", "python.implementation")


def _python(version: str) -> Machine:
    """A machine whose Python did not tell what it holds."""
    return machine_like("rtx4090-linux", {"python": {"version": version}}, _UNLOOKED)


def test_an_active_environment_that_is_gone_is_said_beside_the_interpreter(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    env = {**os.environ, "VIRTUAL_ENV": str(gone)}
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast"]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    examined = " ".join(ran.stdout.split())
    assert f"VIRTUAL_ENV is {gone}, which contains no Python" in examined


def test_python_2_is_unsupported_although_nothing_looked_into_it() -> None:
    assert judge(_python("2.7.18")).diagnosis.primary == "torch-python-unsupported"


def test_the_oldest_python_with_a_wheel_is_not_called_unsupported_unseen() -> None:
    builds = knowledge.load().builds
    pythons = {python.strip("t") for row in builds for python in row.pythons}
    assert min(int(python.split(".")[1]) for python in pythons) == 6
    found = judge(_python("3.6.0")).diagnosis
    assert (found.primary, found.verdict) == (None, "undecided")


def test_the_next_command_asks_the_examined_python() -> None:
    machine = _python("3.6.0")
    command = judge(machine).diagnosis.next_command
    assert command is not None
    assert command[0] == machine.python.executable


def test_a_next_command_of_a_redacted_document_can_be_pasted() -> None:
    machine = _python("3.6.0")
    shown = shells.command_line(typed("$PYTHON", "-m", "torch.utils.collect_env"), machine)
    assert shown == '"$PYTHON" -m torch.utils.collect_env'


def test_an_environment_whose_python_cannot_be_looked_at_is_not_called_empty(
    tmp_path: Path,
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(python)  # a loop: as with a folder that others may not enter, no answer
    with pytest.raises(UsageError, match="cannot access"):
        choose(LocalHost(), str(tmp_path / "venv"))

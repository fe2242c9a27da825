"""Whatever child is killed, whenever: the report comes, its exit code is a documented one.

The children are counted as they appear, and in each run another one is killed with SIGKILL, at its
start or in the middle of its work: the probes', the programs', the training step's and its ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hang_fixtures import Sick, sick_host
from share import share
from standin_fixtures import StandIns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LONG_S = 90
DAMAGE = {"torch-install-corrupt", "numpy-abi", "torch-extension-abi", "torch-companion-mismatch"}
"""What nobody may read from a process that was killed."""
SLOW = """\
#!/bin/sh
sleep 0.3
echo {said}
sleep 0.3
"""


@pytest.fixture
def host(standins: StandIns, tmp_path: Path) -> Iterator[Sick]:
    """Drivers that answer, and programs beside them that take their time."""
    made = sick_host(standins, tmp_path, "count = 2", silent_smi=False)
    for name, said in (("nvidia-smi", "No devices were found"), ("pip", "pip 26"), ("conda", "x")):
        program = tmp_path / "bin" / name
        program.write_text(SLOW.format(said=said))
        program.chmod(0o755)
    yield made
    made.end()


def below(pid: int) -> set[int]:
    """Every living process under that one."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            text = (task / "children").read_text()
            for child in map(int, text.split()):
                found |= {child} | below(child)
    return found


def killed(child: subprocess.Popen[bytes], number: int, after_s: float) -> bool:
    """Kill the descendant of that number in the order of appearance; whether there was one."""
    seen: list[int] = []
    end = time.monotonic() + LONG_S
    while child.poll() is None and time.monotonic() < end:
        for pid in sorted(below(child.pid) - {*seen}):
            seen.append(pid)
            if len(seen) == number + 1:
                time.sleep(after_s)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                return True
        time.sleep(0.0005)
    return False


def ended(
    host: Sick, words: list[str], number: int, after_s: float
) -> tuple[subprocess.Popen[bytes], bool, bytes, bytes]:
    """The command, ended; whether it had such a child; what it said, read while it speaks."""
    child = host.started(*words)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(child.communicate, timeout=LONG_S)
        hit = killed(child, number, after_s)
        out, err = said.result()
    return child, hit, out, err


def reported(host: Sick, words: list[str], number: int, after_s: float) -> dict[str, Any] | None:
    """The report of a run in which that child was killed; None where there was no such child."""
    child, hit, out, err = ended(host, words, number, after_s)
    text = err.decode("utf-8", "replace")
    assert child.returncode in (0, 1, 3), (number, after_s, child.returncode, text)
    assert "Traceback" not in text
    assert "itself failed" not in text
    document = json.loads(out)
    assert isinstance(document, dict)
    assert not host.left()
    assert not list(host.scratch.iterdir())
    return document if hit else None


def causes(document: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in document["findings"] if finding["severity"] == "error"}


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_any_child_of_a_fast_check_may_be_killed(
    host: Sick, python_cu130: str, after_s: float
) -> None:
    words = ["check", "--fast", "--json", "--python", python_cu130]
    runs = 0
    while (document := reported(host, words, runs, after_s)) is not None:
        assert not causes(document) & DAMAGE
        runs += 1
    assert runs >= 3
    sys.stdout.write(f"{runs} children killed, one in each run\n")


AT_ITS_START = [(number, 0.0) for number in share(range(5, 12), 2)]


@pytest.mark.parametrize(("number", "after_s"), [*AT_ITS_START, (8, 0.6)])
def test_any_process_of_the_training_step_may_be_killed(
    host: Sick, python_cpu: str, number: int, after_s: float
) -> None:
    """benchmarks/kills.py kills every one at every tenth of a second."""
    words = ["check", "--json", "--python", python_cpu, "--device", "cpu"]
    document = reported(host, words, number, after_s)
    assert document is None or not causes(document) & DAMAGE


@pytest.mark.parametrize(("turn", "command"), [*enumerate(["facts", "fix --print", "smoke"])])
def test_other_commands_survive_a_killed_child_too(
    host: Sick, python_cpu: str, turn: int, command: str
) -> None:
    words = [*command.split(), "--python", python_cpu]
    for number in share(range(2), 2, turn):
        child, _, out, err = ended(host, words, number, 0.0)
        assert child.returncode in (0, 1), (number, err.decode())
        assert out
        assert b"Traceback" not in err
    assert not host.left()

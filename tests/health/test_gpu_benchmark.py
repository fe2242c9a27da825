"""benchmarks/gpu.py goes on where it stopped, and takes no CPU for a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=250)


@pytest.mark.torch
def test_it_goes_on_where_it_stopped(python_cpu: str, tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    words = ("--stand-in", "--python", python_cpu, "--part", "health", "--output", str(output))
    first = ran(*words, "--runs", "1")
    assert (first.returncode, first.stderr) == (0, "health: health 1\n")
    assert json.loads(output.read_text())["machine"]["stand_in"] is True
    again = ran(*words, "--runs", "2")
    assert (again.returncode, again.stderr) == (0, "health: health 2\n")
    summary = json.loads(output.read_text())["summary"]
    assert (summary["health_runs"], summary["alarms_of_health"]) == (2, {})
    late = ran(*words, "--runs", "3", "--minutes", "0.01")
    assert late.returncode == 1
    assert len(json.loads(output.read_text())["parts"]["health"]) == 2


@pytest.mark.torch
def test_a_cpu_is_no_gpu(python_cpu: str, tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    done = ran("--python", python_cpu, "--output", str(output))
    assert done.returncode == 1
    assert "torch sees no GPU" in done.stderr
    assert not output.exists()
    assert ran("--stand-in", "--python", python_cpu).returncode == 2

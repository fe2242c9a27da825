"""Old drivers, many GPUs, none, and a library that ends the process: through the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from fault_fixtures import ESSENTIAL
from standin_fixtures import StandIns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are made for Linux")


def checked(standins: StandIns, scenario: str, *flags: str) -> dict[str, Any]:
    """The report where these libraries are the driver's."""
    env = standins.environment(scenario, standins.nvml(*flags), standins.cuda())
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--json"]
    argv += ["--python", sys.executable]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1, 3), ran.stderr
    document = json.loads(ran.stdout)
    assert isinstance(document, dict)
    return document


def errors(document: dict[str, Any]) -> set[str]:
    found = {finding["cause"] for finding in document["findings"] if finding["severity"] == "error"}
    return found - {"torch-missing"}


@pytest.mark.parametrize("flags", [(), ("-DR450",), ("-DR450", "-DANCIENT")], ids=len)
@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_every_gpu_of_every_driver_is_named(
    standins: StandIns, flags: tuple[str, ...], gpus: int
) -> None:
    document = checked(standins, f"count = {gpus}", *flags)
    assert len(document["facts"]["gpus"]) == gpus
    assert all(gpu["name"] and gpu["memory_bytes"] for gpu in document["facts"]["gpus"])
    assert not errors(document)


def test_a_driver_that_counts_no_gpu_is_believed(standins: StandIns) -> None:
    document = checked(standins, "count = 0")
    assert document["facts"]["gpus"] == []
    assert "gpu-unhealthy-hardware" not in errors(document)


@pytest.mark.parametrize("count", [-1, 257, 0x7FFFFFFF])
def test_a_count_that_cannot_be_is_a_gap(standins: StandIns, count: int) -> None:
    document = checked(standins, f"count = {count}\ncuDeviceGetCount = 999")
    assert "which cannot be" in json.dumps(document["facts"]["gaps"])
    assert len(document["facts"].get("gpus") or []) <= 256


@pytest.mark.parametrize("does", ["crash", "open", "15", "999"])
@pytest.mark.parametrize("function", [*ESSENTIAL, "cuInit", "cuDriverGetVersion"])
def test_a_driver_that_breaks_at_its_first_words_ends_no_report(
    standins: StandIns, function: str, does: str
) -> None:
    document = checked(standins, f"count = 2\n{function} = {does}")
    assert errors(document) <= {
        "gpu-lost",
        "gpu-unhealthy-hardware",
        "uvm-not-loaded",
        "container-gpu-lost",
        "unknown",
    }

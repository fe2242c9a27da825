"""The command as its user runs it, on a real torch, with a CPU that plays the GPUs.

No GPU here: NVML, NCCL and events of a GPU are not exercised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def ran(python: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", "health", "--python", python, *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200, env=env)


def planted(python: str, fault: str, *words: str, gpus: int = 3) -> tuple[int, dict[str, Any]]:
    """The exit code and the document where GPUs are played, one of them with a fault."""
    plants = (f"pretend={gpus}", "limit=2", f"plant={fault}")
    options = [option for plant in plants for option in ("--plant", plant)]
    done = ran(python, "--json", *options, *words)
    return done.returncode, json.loads(done.stdout)


def kinds(document: dict[str, Any]) -> list[str]:
    return sorted({f"{found['kind']} {found['gpu']}" for found in document["anomalies"]})


def test_a_cpu_that_plays_gpus_never_counts_as_one(python_cpu: str, tmp_path: Path) -> None:
    metrics = tmp_path / "gpus.prom"
    code, document = planted(python_cpu, "", "--prometheus", str(metrics), "--soak", "1")
    assert (code, document["verdict"], document["anomalies"]) == (3, "undecided", [])
    assert document["schema"] == 1
    assert [gpu["index"] for gpu in document["gpus"]] == [0, 1, 2]
    whats = {(speed["what"], speed.get("together", False)) for speed in document["speeds"]}
    links = {(what, together) for what in ("h2d", "d2h") for together in (False, True)}
    assert whats == links | {(what, False) for what in ("gemm", "copy", "p2p", "allreduce")}
    assert {speed.get("nvls", True) for speed in document["speeds"]} == {True, False}
    soaked = [speed["windows"] for speed in document["speeds"] if speed["what"] == "gemm"]
    assert min(soaked) > 2
    lines = metrics.read_text().splitlines()
    assert all(line.startswith(("# ", "cudadoctor_")) for line in lines)
    assert any(line.startswith('cudadoctor_gemm_flops{gpu="2"') for line in lines)
    assert list(tmp_path.iterdir()) == [metrics]


@pytest.mark.parametrize(
    ("fault", "code", "found"),
    [
        ("slow:1", 0, ["straggler 1"]),
        ("hot:1", 0, ["straggler 1"]),
        ("wrong:2", 1, ["wrong-results 2"]),
        ("differs:0", 1, ["different-results 0"]),
        ("torn:0", 1, ["damaged-data 0", "damaged-data-between 0"]),
        ("lost:2", 1, ["lost 2"]),
        ("hang:1", 1, ["lost 1"]),
        ("ecc-uncorrected:1", 1, ["ecc-uncorrected 1"]),
    ],
)
def test_a_planted_fault_is_named(python_cpu: str, fault: str, code: int, found: list[str]) -> None:
    ended, document = planted(python_cpu, fault)
    assert (ended, kinds(document)) == (code, found)


def test_strict_counts_warnings(python_cpu: str) -> None:
    assert planted(python_cpu, "slow:1", "--strict")[0] == 1


def test_a_torch_without_cuda_measures_nothing(python_cpu: str) -> None:
    done = ran(python_cpu)
    assert done.returncode == 3
    assert "No GPU was measured: torch sees no GPU: this torch build is CPU-only" in done.stdout
    spanish = ran(python_cpu, "--lang", "es").stdout
    assert "No se midió ninguna GPU" in spanish


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "cpu"),
        ("--soak", "-1"),
        ("--soak", "long"),
        ("--prometheus", "/nowhere/at/all.prom"),
        ("--output", "/nowhere/at/all.json"),
        ("gpu0",),
    ],
)
def test_wrong_use_is_one_sentence(python_cpu: str, words: tuple[str, ...]) -> None:
    done = ran(python_cpu, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_page_fits_80_columns_in_plain_text(python_cpu: str) -> None:
    options = ("--plant", "pretend=8", "--plant", "plant=slow:7")
    text = ran(python_cpu, *options, LC_ALL="C", COLUMNS="80").stdout
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    assert "GPU 7 is slower than its equals" in " ".join(text.split())

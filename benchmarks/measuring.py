"""How the benchmarks measure: whole processes, alternating, medians, and memory of a whole tree."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def wall_s(
    argv: Sequence[str], env: Mapping[str, str] | None = None, limit_s: float = 300
) -> float:
    """Wall time of one run of a program, in seconds."""
    started = time.perf_counter()
    child = subprocess.Popen(
        argv,
        env=dict(env or os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # A wait with a timeout polls in steps of up to 50 ms; the limit is kept from beside.
    guard = threading.Timer(limit_s, child.kill)
    guard.start()
    child.wait()
    guard.cancel()
    return time.perf_counter() - started


def alternating(
    programs: Mapping[str, Sequence[str]], rounds: int, env: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Wall times of several programs, taken in turn after one warm-up of each."""
    for argv in programs.values():
        wall_s(argv, env)
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, argv in programs.items():
            times[name].append(wall_s(argv, env))
    return times


def peak_bytes(argv: Sequence[str]) -> int:
    """Largest memory of a program and all its children together, sampled each 2 ms (Linux).

    Resident sets added up: a page shared by two of them counts twice, so this is an upper bound.
    """
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while child.poll() is None:
        most = max(most, sum(_rss(pid) for pid in _family(child.pid)))
        time.sleep(0.002)
    return most


def _family(root: int) -> list[int]:
    known = [root]
    for pid in known:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                known.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue
    return known


def _rss(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def cudadoctor() -> list[str]:
    """The console script beside this interpreter, else the module."""
    script = Path(sys.executable).with_name("cudadoctor")
    return [str(script)] if script.exists() else [sys.executable, "-m", "cudadoctor"]


def saved(name: str, figures: dict[str, Any]) -> None:
    """Print the figures and keep them in results/, with what they were measured on."""
    document = {
        "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))

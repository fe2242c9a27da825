"""The smoke step and a whole `check` beside `accelerate test`, in the same environment.

    python benchmarks/smoke_vs_accelerate.py --python ENV/bin/python [--rounds 5]

The environment needs torch and accelerate. The three are run in turn, so that they share whatever
else the machine does, and their medians are compared. The bar: `check` at most 0.45 on a machine
without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Smoke
from cudadoctor.smoke import run_smoke

BAR = 0.45


def main() -> int:
    """Measure, print one JSON document; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", default="/tmp/envs/cu130/bin/python")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    runs: dict[str, Callable[[], object]] = {
        "accelerate": lambda: accelerate(asked.python),
        "smoke": lambda: smoke(asked.python),
        "check": lambda: check(asked.python),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(asked.rounds + 1):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    report(medians, asked.python, asked.rounds)
    return 0 if medians["check"] <= BAR * medians["accelerate"] else 1


def accelerate(python: str) -> None:
    """`accelerate test` of that environment, which must succeed."""
    folder = Path(python).parent
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "PATH": path, "HF_HOME": home}
        done = subprocess.run(
            [str(folder / "accelerate"), "test"], env=env, capture_output=True, check=True
        )
    assert b"Test is a success" in done.stdout


def smoke(python: str) -> None:
    """The smoke step alone, every stage of which must pass."""
    found = run_smoke(LocalHost(), python, mode="full").facts["smoke"]
    assert isinstance(found, Smoke)
    assert {stage.status for stage in found.stages} == {"passed"}, found


def check(python: str) -> None:
    """The command of a user: probes, import, smoke, diagnosis."""
    argv = [sys.executable, "-m", "cudadoctor", "check", "--json", "--python", python]
    done = subprocess.run(argv, capture_output=True, check=False)
    stages = json.loads(done.stdout)["smoke"]["stages"]
    assert {stage["status"] for stage in stages} == {"passed"}, stages


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one run; nan where it does not work (a command line that is not there yet)."""
    began = time.perf_counter()
    try:
        run()
    except (AssertionError, KeyError, TypeError, ValueError, OSError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return float("nan")
    return time.perf_counter() - began


def report(medians: dict[str, float], python: str, rounds: int) -> None:
    """The figures, and on what they were taken."""
    ratios = {name: round(value / medians["accelerate"], 3) for name, value in medians.items()}
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": python,
        "rounds": rounds,
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "share_of_accelerate_test": ratios,
        "bar": BAR,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())

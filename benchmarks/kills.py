"""Every process of a check killed with SIGKILL, one in each run, at several moments of its life.

Run: python benchmarks/kills.py PYTHON_WITH_TORCH
The drivers are stand-ins; the training step is real, on the CPU. Bars: in every run the report
comes with a documented exit code, no process and no file is left, and no damage is read from it.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))

from hang_fixtures import Sick, sick_host
from standin_fixtures import StandIns
from test_fault_kills import DAMAGE, causes, reported

MOMENTS_S = {"fast": (0.0, 0.01, 0.02, 0.05, 0.1), "full": (0.0, 0.1, 0.3, 0.6, 1.0)}


def main(python: str) -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        host = sick_host(StandIns(Path(folder)), Path(folder), "count = 2", silent_smi=False)
        words = ["check", "--json", "--python", python]
        figures = {
            "fast": _all(host, [*words, "--fast"], MOMENTS_S["fast"]),
            "full": _all(host, [*words, "--device", "cpu"], MOMENTS_S["full"]),
        }
    failed = sum(len(figure["failed"]) for figure in figures.values())
    seconds = round(time.monotonic() - started, 1)
    measuring.saved("kills", figures | {"bars": {"failed": 0}, "seconds": seconds})
    return 1 if failed else 0


def _all(host: Sick, words: list[str], moments: tuple[float, ...]) -> dict[str, Any]:
    """Kill the first, second, third... process of a run, until a run has fewer processes."""
    runs, failed = 0, []
    for after_s in moments:
        for number in itertools.count():
            try:
                document = reported(host, words, number, after_s)
            except AssertionError as error:
                failed.append(f"{number} after {after_s} s: {error}")
                document = {"findings": []}
            if document is None:
                break
            runs += 1
            if wrong := causes(document) & DAMAGE:
                failed.append(f"{number} after {after_s} s: {sorted(wrong)}")
    return {"runs": runs, "failed": failed}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

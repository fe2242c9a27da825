"""How long a check takes where nothing that talks to the driver ever answers.

NVML and libcuda are stand-ins made of C that block every signal and never return; nvidia-smi
ignores SIGTERM. Run: python benchmarks/hang.py PYTHON_WITH_TORCH [ROUNDS]
Bars: `check --fast` within 6 s, `check` within 75 s, and both name what did not answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from hang_fixtures import Sick, sick_host
from standin_fixtures import StandIns

HANGS = "nvmlInitWithFlags = hang\ncuInit = hang"
BARS = {"fast": 6.0, "full": 75.0}


def main(python: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sick = sick_host(StandIns(Path(folder)), Path(folder), HANGS)
        fast = [_run(sick, "check", "--fast", "--json", "--python", python) for _ in range(rounds)]
        full = _run(sick, "check", "--json", "--python", python)
    seconds = {"fast": max(run["seconds"] for run in fast), "full": full["seconds"]}
    figures = {
        "bars_s": BARS,
        "seconds": seconds,
        "within": {name: seconds[name] <= bar for name, bar in BARS.items()},
        "fast": fast[-1],
        "full": full,
        "rounds": rounds,
    }
    measuring.saved("hang", figures)


def _run(sick: Sick, *words: str) -> dict[str, Any]:
    started = time.perf_counter()
    ran = subprocess.run(
        [*measuring.cudadoctor(), *words],
        env=sick.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    seconds = time.perf_counter() - started
    document = json.loads(ran.stdout)
    gaps = [gap["why"] for gap in document["facts"].get("gaps", [])]
    return {
        "seconds": round(seconds, 2),
        "exit_code": ran.returncode,
        "verdict": document["verdict"],
        "primary": document["primary"],
        "silent": sorted({why.split(":")[0] for why in gaps if "no response" in why}),
        "children_left": len(sick.left()),
        "files_left": len(list(sick.scratch.iterdir())),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)

"""False alarms: sound checks of a CPU build, half of them while other programs use every core.

    python benchmarks/sound_runs.py --python ENV/bin/python [--runs 50] [--compile 2]

A stage that fails or times out, an error or a warning is an alarm; that there is no GPU is none.
--compile: so many further runs with --torch-compile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SPIN = "while True: pass"


def main() -> int:
    """Run them, print one JSON document; 1 where there was an alarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--compile", type=int, default=2)
    asked = parser.parse_args()
    alarms: list[str] = []
    slowest: dict[str, float] = {}
    for number in range(asked.runs + asked.compile):
        more = ("--torch-compile",) if number >= asked.runs else ()
        with busy(os.cpu_count() or 1 if number % 2 else 0):
            document = check(asked.python, *more)
        print(f"{number + 1}: {document['verdict']}", file=sys.stderr)
        for stage in document["smoke"]["stages"]:
            known = slowest.get(stage["name"], 0.0)
            slowest[stage["name"]] = max(known, stage["seconds"] or 0.0)
        alarms += found_in(document)
    print(
        json.dumps(
            {
                "date": time.strftime("%Y-%m-%d"),
                "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
                "torch": document["torch"],
                "runs": asked.runs,
                "runs_with_torch_compile": asked.compile,
                "beside_a_busy_program_on_every_core": (asked.runs + asked.compile) // 2,
                "false_alarms": len(alarms),
                "alarms": dict(Counter(alarms)),
                "slowest_s": {name: round(taken, 2) for name, taken in slowest.items()},
            },
            indent=1,
        )
    )
    return int(bool(alarms))


def check(python: str, *more: str) -> dict[str, Any]:
    """The document of one check, on the CPU."""
    argv = [sys.executable, "-m", "cudadoctor", "check", "--json", "--python", python]
    done = subprocess.run([*argv, "--device", "cpu", *more], capture_output=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    version = "import torch; print(torch.__version__)"
    asked = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    return found | {"torch": asked.stdout.strip()}


def found_in(document: dict[str, Any]) -> Iterator[str]:
    """Whatever a sound machine must not be told."""
    for stage in document["smoke"]["stages"]:
        if stage["status"] in ("failed", "timed-out"):
            yield f"{stage['name']}: {stage['detail']}"
    for finding in document["findings"]:
        if finding["severity"] != "info":
            yield finding["cause"]
    if document["smoke"]["ended"]:
        yield document["smoke"]["ended"]


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many programs that do nothing but compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for child in spinning:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main())

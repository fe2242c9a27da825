"""`check --fast --json` on a machine with 64 stand-in GPUs against the same with one.

Run: python benchmarks/many_gpus.py [PYTHON_TO_EXAMINE] [ROUNDS]
Bar: 64 GPUs cost at most twice the wall time of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from standin_fixtures import StandIns

COUNTS = (1, 8, 64)
BAR = 2.0


def main(python: str, rounds: int) -> int:
    argv = [*measuring.cudadoctor(), "check", "--fast", "--json", "--python", python]
    times: dict[int, list[float]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory() as folder:
        standins = StandIns(Path(folder))
        libraries = (standins.nvml(), standins.cuda())
        envs = {n: standins.environment(f"count = {n}", *libraries) for n in COUNTS}
        named = {count: _named(argv, env) for count, env in envs.items()}
        for _ in range(rounds):
            for count, env in envs.items():
                times[count].append(measuring.wall_s(argv, env))
    medians = {count: measuring.median(taken) for count, taken in times.items()}
    ratio = medians[64] / medians[1]
    measuring.saved(
        "many_gpus",
        {
            "bars": {"ratio_64_to_1": BAR},
            "gpus_named": {str(count): number for count, number in named.items()},
            "median_s": {str(count): round(value, 4) for count, value in medians.items()},
            "ratio_64_to_1": round(ratio, 3),
            "rounds": rounds,
        },
    )
    return 0 if ratio <= BAR and named == {count: count for count in COUNTS} else 1


def _named(argv: list[str], env: dict[str, str]) -> int:
    """How many GPUs the report names; also the warm-up."""
    said = subprocess.run(argv, env=dict(env or os.environ), capture_output=True, check=False)
    return sum(bool(gpu.get("name")) for gpu in json.loads(said.stdout)["facts"].get("gpus", ()))


if __name__ == "__main__":
    examined = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    raise SystemExit(main(examined, int(sys.argv[2]) if len(sys.argv) > 2 else 9))

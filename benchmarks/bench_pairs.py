"""Whether two whole runs of `cudadoctor bench` on one machine contradict each other.

    python benchmarks/bench_pairs.py --python /path/to/python [--pairs 10] [--minutes 1]

Each run is the command itself on the smallest workload, with a technique that does nothing among
others. Two runs contradict each other where the intervals of a technique do not meet; of what is
called equal, that is as far as it may differ. Adds its figures to bench_agreement.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from cudadoctor.bench.page import ends
from cudadoctor.bench.results import BenchResult, Gain
from cudadoctor.bench.store import cpu_name

RESULTS = Path(__file__).parent / "results" / "bench_agreement.json"
TECHNIQUES = ("nothing", "amp-bf16", "sdpa", "gradient-accumulation")
DECIDED = ("faster", "slower", "same", "undecided")


def run(asked: argparse.Namespace) -> dict[str, Gain]:
    """What one whole bench says of each technique; a baseline that the time ended says nothing."""
    words = ["--scale", "tiny", "--minutes", str(asked.minutes), "--workload", asked.workload]
    words += [word for name in TECHNIQUES for word in ("--only", name)]
    argv = [sys.executable, "-m", "cudadoctor", "bench", "--json", "--python", asked.python, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if not ran.stdout:
        print(ran.stderr, file=sys.stderr)
        return {}
    result = msgspec.json.decode(ran.stdout, type=BenchResult)
    (workload,) = result.workloads
    return {gain.technique: gain for gain in workload.alone if gain.verdict in DECIDED}


def contradict(one: Gain, other: Gain) -> bool:
    """Whether their intervals do not meet. One without an interval contradicts nothing."""
    if None in (one.low, other.low):
        return False
    (low, high), (least, most) = ends(one), ends(other)
    return high < least or most < low


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--workload", default="decoder")
    asked = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()
    rows: list[dict[str, Any]] = []
    for number in range(asked.pairs):
        first, second = run(asked), run(asked)
        for name in TECHNIQUES:
            if name in first and name in second:
                some = first[name], second[name]
                row = {
                    "pair": number + 1,
                    "technique": name,
                    "verdicts": [gain.verdict for gain in some],
                    "intervals": [[gain.low, gain.ratio, gain.high] for gain in some],
                    "contradict": contradict(*some),
                }
                rows.append(row)
                print(row, flush=True)
    verdicts = {
        name: Counter(word for row in rows if row["technique"] == name for word in row["verdicts"])
        for name in TECHNIQUES
    }
    figures: dict[str, Any] = {
        "pairs": asked.pairs,
        "compared": len(rows),
        "contradictions": sum(row["contradict"] for row in rows),
        "verdicts": verdicts,
        "minutes": asked.minutes,
        "hardware": cpu_name(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load_average": [load, os.getloadavg()],
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    document["whole_runs"] = figures
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(figures["contradictions"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())

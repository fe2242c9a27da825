"""Whether the figures of `cudadoctor bench` are those of a plain timing loop.

    python benchmarks/bench_agreement.py --python /path/to/python [--device cuda:0] [--rounds 10]

For each workload the baseline and two techniques: the bench's own runner and a plain loop
(bench_plain_loop.py, its own code but for models and data) take turns on the same device, so that
what else the machine does hits both. Processes differ, too, the same code in each: on a CPU by
where their memory lies (up to 7 % for good) and by how often glibc gives it back and asks for it
again (up to 10 %). What is compared here is the measuring, not that luck: both get large pages and
keep their memory (KEEP; the bench itself changes nothing about it, as little as a user's training
would), and several processes of each are compared by the median of their medians of pairs. The bar
is 5 %. Writes benchmarks/results/bench_agreement.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cudadoctor.bench.heats import Runner, Track
from cudadoctor.bench.results import config
from cudadoctor.bench.stable import Stable
from cudadoctor.bench.store import cpu_name
from cudadoctor.bench.techniques import settings_of
from cudadoctor.smoke import INSIDE

BAR = 0.05
TECHNIQUES = {
    "cnn": ("amp-bf16", "channels-last"),
    "encoder": ("amp-bf16", "sdpa"),
    "decoder": ("amp-bf16", "sdpa"),
}
KEEP = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
RESULTS = Path(__file__).parent / "results" / "bench_agreement.json"
PLAIN = Path(__file__).parent / "bench_plain_loop.py"


class Plain:
    """The plain loop in a process of its own."""

    def __init__(self, python: str, workload: str, name: str, device: str, shape: Any) -> None:
        words = (str(INSIDE), workload, name, device, json.dumps(shape))
        # A session of its own, as the bench's has: schedulers share by session.
        self.child = subprocess.Popen(
            [python, str(PLAIN), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **KEEP},
        )
        assert self._said() == "ready"

    def turn(self, steps: int) -> float:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{steps}\n")
        self.child.stdin.flush()
        return float(self._said())

    def end(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(30)

    def _said(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()


def taken_turns(
    stable: Stable, asked: argparse.Namespace, workload: str, name: str, shape: Any
) -> tuple[list[float], list[float]]:
    """Rounds of one process of the bench and of one plain process, in turns."""
    wanted = config(workload, *(() if name == "baseline" else (name,)))
    track = Track(device=asked.device, shape=shape, round_s=asked.round_s)
    runner = Runner(stable, track, wanted, settings_of(wanted.techniques))
    runner.warm(time.monotonic() + 300.0)
    assert runner.error is None, runner.error
    plain = Plain(asked.python, workload, name, asked.device, shape)
    theirs: list[float] = []
    for number in range(asked.rounds):
        # Who is first changes from round to round.
        if number % 2:
            theirs.append(plain.turn(runner.steps))
        runner.turn(time.monotonic() + 120.0)
        assert runner.error is None, runner.error
        if not number % 2:
            theirs.append(plain.turn(runner.steps))
    plain.end()
    runner.stop()
    return runner.rounds, theirs


def compared(
    stable: Stable, asked: argparse.Namespace, workload: str, name: str, shape: Any
) -> dict[str, Any]:
    """Measure one configuration both ways, each in several processes."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(asked.processes):
        own, plain = taken_turns(stable, asked, workload, name, shape)
        ours.append(own)
        theirs.append(plain)
    pairs = [
        statistics.median(ours_s / other for ours_s, other in zip(own, plain, strict=True))
        for own, plain in zip(ours, theirs, strict=True)
    ]
    bench_s = statistics.median(map(statistics.median, ours))
    plain_s = statistics.median(map(statistics.median, theirs))
    off = statistics.median(pairs) - 1
    fastest = min(map(min, ours)) / min(map(min, theirs)) - 1
    each = ", ".join(f"{ratio - 1:+.1%}" for ratio in pairs)
    print(
        f"{workload:8} {name:14} bench {1e3 * bench_s:9.3f} ms, plain {1e3 * plain_s:9.3f} ms,"
        f" off {off:+.1%} (processes: {each}), fastest rounds {fastest:+.1%}",
        flush=True,
    )
    return {
        "workload": workload,
        "configuration": name,
        "bench_ms": round(1e3 * bench_s, 3),
        "plain_ms": round(1e3 * plain_s, 3),
        "off": round(off, 4),
        "off_of_each_process": [round(ratio - 1, 4) for ratio in pairs],
        "off_of_fastest_rounds": round(fastest, 4),
        "within_bar": abs(off) <= BAR,
    }


def look_and_sizes(
    stable: Stable, asked: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the device is, and how large the workloads are on it."""
    look = stable.hear(stable.start(what="look"), 200.0) or {}
    tiers = ("large", "small") if asked.device != "cpu" else ("cpu",)
    sizes = {}
    for workload in TECHNIQUES:
        number = stable.start(what="size", workload=workload, tiers=tiers, device=asked.device)
        sizes[workload] = (stable.hear(number, 200.0) or {})["shape"]
    return look, sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workload", choices=tuple(TECHNIQUES), action="append")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--round-s", type=float, default=0.4)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    began = time.monotonic()
    stable = Stable(asked.python, {**os.environ, **KEEP})
    look, sizes = look_and_sizes(stable, asked)
    rows = [
        compared(stable, asked, workload, name, sizes[workload])
        for workload, names in TECHNIQUES.items()
        if workload in (asked.workload or TECHNIQUES)
        for name in ("baseline", *names)
    ]
    stable.end()
    devices = [device["name"] for device in look.get("devices", ()) if asked.device != "cpu"]
    document = {
        "what": (__doc__ or "").splitlines()[0],
        "date": datetime.date.today().isoformat(),
        "device": asked.device,
        "hardware": devices[0] if devices else cpu_name(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load_average": list(os.getloadavg()),
        "torch": look.get("torch"),
        "rounds": asked.rounds,
        "processes": asked.processes,
        "bar": BAR,
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["within_bar"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

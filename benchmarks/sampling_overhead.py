"""What sampling costs a user's training: a loop that fills a core, with the sampler and without.

Run: python benchmarks/sampling_overhead.py [PAIRS] [SECONDS_OF_A_TURN] [LOOPS]
Bar: less than 1 % of the wall time, after the first looks at stacks, which are counted apart.

One process does the same small piece of work over and over and tells how long each took. The
sampler beside it is stopped and let go on in turns (SIGSTOP, SIGCONT), so that what else this
machine does hits both alike; the order within a pair is drawn. LOOPS such processes fill that many
cores; a stand-in for NVML answers for one GPU, so that its calls are made too.

On a machine that others use too, wall time is too unsteady to show a part of a per cent: its
interval says so (`wall_decides`). What the sampler can cost at most is told by CPU time then: the
share of a core that it takes itself, and by how much more CPU time the same work took beside it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from standin_fixtures import StandIns

from cudadoctor.bench import script
from cudadoctor.bench.script import starved

BAR = 0.01
FIRST_S, STEADY_S = 75.0, 60.0
LOOP = """
import mmap, os, sys, time
# The sampler takes what has mapped such a file for a training, and looks at its stacks.
torch = open(sys.argv[2], "rb")
mapped = mmap.mmap(torch.fileno(), 0, prot=mmap.PROT_READ)
def work():
    total = 0
    for number in range(120000): total += number * number % 7
    return total
if int(sys.argv[1]) > 1:
    for _ in range(int(sys.argv[1]) - 1):
        if os.fork() == 0:
            while os.getppid() != 1: work()
            os._exit(0)
while True:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    os.write(1, b"%f %f %f\\n" % (time.monotonic(), time.perf_counter() - wall,
                                  time.process_time() - cpu))
"""
Piece = tuple[float, float, float]
"""When it ended, and what it took of wall and CPU time."""


class Loop:
    """The training's stand-in, and the pieces of work that it told of."""

    def __init__(self, loops: int, torch: Path) -> None:
        torch.write_bytes(b"torch")
        argv = [sys.executable, "-c", LOOP, str(loops), str(torch)]
        self.child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        self.pieces: list[Piece] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            ended, wall, cpu = map(float, line.split())
            self.pieces.append((ended, wall, cpu))

    def within(self, began: float, ended: float) -> list[Piece]:
        return [piece for piece in self.pieces if began < piece[0] - piece[1] and piece[0] < ended]

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def turn(sampler: script.Sampler, loop: Loop, seconds: float, *, on: bool) -> list[Piece]:
    """One turn with the sampler running or stopped."""
    os.kill(sampler.pid, signal.SIGCONT if on else signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(seconds)
    return loop.within(began, time.monotonic())


def rate(pieces: list[Piece], column: int) -> float:
    """Mean seconds per piece; a pause that the sampler causes would raise it."""
    return statistics.fmean(piece[column] for piece in pieces)


def interval(ratios: list[float]) -> tuple[float, float]:
    """The middle 95 % of the medians of resampled pairs."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-101]


def spent_s(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measured(pairs: int, seconds: float, loops: int, folder: Path) -> dict[str, object]:
    drawn = random.Random(1)
    loop = Loop(loops, folder / "libtorch.so")
    time.sleep(2.0)
    sampler = script.Sampler(loop.child.pid)
    # The first looks at stacks are a credit, spent once in each run.
    time.sleep(FIRST_S)
    fixed = spent_s(sampler.pid)
    # What it takes is measured without stops: it is allowed a share of the time that passes.
    time.sleep(STEADY_S)
    used = spent_s(sampler.pid) - fixed
    walls: list[float] = []
    cpus: list[float] = []
    try:
        for _ in range(pairs):
            order = drawn.choice([(True, False), (False, True)])
            turns = {on: turn(sampler, loop, seconds, on=on) for on in order}
            walls.append(rate(turns[True], 1) / rate(turns[False], 1))
            cpus.append(rate(turns[True], 2) / rate(turns[False], 2))
        os.kill(sampler.pid, signal.SIGCONT)
        figures = starved.figures(sampler.end())
    finally:
        loop.end()
    wall, cpu = interval(walls), interval(cpus)
    share = used / STEADY_S
    return {
        "loops": loops,
        "pairs": pairs,
        "turn_s": seconds,
        "wall_ratio": round(statistics.median(walls), 5),
        "wall_ratio_95": [round(ratio, 5) for ratio in wall],
        "cpu_ratio": round(statistics.median(cpus), 5),
        "cpu_ratio_95": [round(ratio, 5) for ratio in cpu],
        "py_spy": sampler.spy is not None,
        "first_s": FIRST_S,
        "first_cpu_s": round(fixed, 2),
        "sampler_cpu_s": round(used, 2),
        "sampler_on_s": STEADY_S,
        "sampler_share_of_a_core": round(share, 5),
        "wall_decides": wall[1] - wall[0] < BAR,
        "cpu_bound": round(share + max(0.0, statistics.median(cpus) - 1), 5),
        "samples": figures.ticks,
        "looks_at_stacks": figures.stacks.all_looks,
    }


def bound(row: dict[str, object]) -> float:
    """What it costs: by wall time where that decides, else by CPU time."""
    wall, cpu = row["wall_ratio"], row["cpu_bound"]
    assert isinstance(wall, float)
    assert isinstance(cpu, float)
    return wall - 1 if row["wall_decides"] else cpu


def main(pairs: int, seconds: float, loops: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        standins = StandIns(Path(folder))
        os.environ.update(standins.environment("utilization = 90\n", standins.nvml()))
        rows = [measured(pairs, seconds, count, Path(folder)) for count in sorted({1, loops})]
    held = all(bound(row) < BAR for row in rows)
    figures = {
        "bars": {"overhead_of_wall_time": BAR},
        "held": held,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "rows": rows,
    }
    measuring.saved("sampling_overhead", figures)
    return 0 if held else 1


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    raise SystemExit(
        main(
            int(given[0]) if given else 40,
            given[1] if len(given) > 1 else 3.0,
            int(given[2]) if len(given) > 2 else os.cpu_count() or 1,
        )
    )

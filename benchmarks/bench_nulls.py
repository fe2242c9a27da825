"""How often a whole bench makes a false claim, and how often it sees a true gain, by simulation.

    python benchmarks/bench_nulls.py [--benches 400] [--processes 2]

The decisions are the bench's own (`Search` and `judging`, all workloads, the default time); only
the clock is made up: each process is faster or slower for good by a draw of its own, each round by
another, and the machine drifts meanwhile. A false claim is "faster" or "slower" of a technique that
does nothing, or a best combination that holds one. Writes benchmarks/results/bench_nulls.json.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pool
from typing import Any

from measuring import saved
from msgspec import Struct
from packaging.version import Version

from cudadoctor.bench import techniques
from cudadoctor.bench.heats import ROUNDS
from cudadoctor.bench.results import Bottleneck, Config, Measured, WorkloadResult
from cudadoctor.bench.search import Heat, Raced, Search
from cudadoctor.bench.techniques import Ground, slowness

MINUTES = 10.0
"""The default of --minutes."""
CPU = Ground(gpu=False, torch=Version("2.13"), compiler=True, cores=4, cpu_bf16=True)
H200 = Ground(
    gpu=True,
    capability=Version("9.0"),
    torch=Version("2.14"),
    compiler=True,
    triton=True,
    cores=16,
)
SPREADS = (0.005, 0.01, 0.02, 0.05)
Effect = Callable[[random.Random], float]


class Clock(Struct):
    """A machine in seconds that nobody waits for.

    spread: the standard deviation of a process's mean, as a log. within: of a round. gains: what
    techniques are worth. drift: how far the machine slows down and speeds up again, within about
    two minutes. effect: draws what a process is worth for good; None: normally distributed.
    """

    ground: Ground
    spread: float
    chance: random.Random
    gains: Mapping[str, float] = {}
    within: float = 0.02
    correlated: float = 0.5
    drift: float = 0.0
    effect: Effect | None = None
    now: float = 0.0

    def race(self, heat: Heat) -> Raced:
        """A heat as Heats runs it: fresh processes, and rounds in a random order."""
        configs = [heat.reference, *heat.candidates, *[heat.reference] * heat.twins]
        start_s, round_s = (5.5, 0.3) if self.ground.gpu else (2.5, 0.5)
        slow_s = 30.0 if self.ground.gpu else 20.0
        slow = [sum(slow_s * slowness(name) for name in wanted.techniques) for wanted in configs]
        # On many cores they start side by side, but for what compiles.
        together = not any(slow) and self.ground.cores >= 2 * len(configs)
        starting = start_s * (1 if together else len(configs)) + sum(slow) + 3.0
        needed = starting + ROUNDS * round_s * len(configs)
        if needed > heat.limit_s:
            self.now += heat.limit_s
            return self._raced(heat, [self._late(wanted) for wanted in configs], heat.limit_s)
        self.now += starting
        effects = [self._effect(wanted) for wanted in configs]
        rounds: list[list[float]] = [[] for _ in configs]
        noise = 0.0
        for _ in range(ROUNDS):
            for place in self.chance.sample(range(len(configs)), len(configs)):
                self.now += round_s
                rest = math.sqrt(1 - self.correlated**2)
                noise = self.correlated * noise + rest * self.chance.gauss(0.0, self.within)
                slower = self.drift * math.sin(self.now / 20.0)
                rounds[place].append(0.1 * math.exp(slower + noise - effects[place]))
        runs = [_measured(wanted, own) for wanted, own in zip(configs, rounds, strict=True)]
        return self._raced(heat, runs, needed)

    def _effect(self, wanted: Config) -> float:
        own = self.effect(self.chance) if self.effect else self.chance.gauss(0.0, 1.0)
        true = sum(math.log(self.gains.get(name, 1.0)) for name in wanted.techniques)
        return true + self.spread * own

    def _late(self, wanted: Config) -> Measured:
        return Measured(config=wanted, error="the time limit was reached during startup")

    def _raced(self, heat: Heat, runs: list[Measured], seconds: float) -> Raced:
        number = len(heat.candidates)
        return Raced(
            reference=runs[0],
            candidates=tuple(runs[1 : number + 1]),
            twins=tuple(runs[number + 1 :]),
            bottleneck=Bottleneck(kind="compute", why="made up") if heat.twins else None,
            seconds=seconds,
        )


def _measured(wanted: Config, rounds: list[float]) -> Measured:
    middle = statistics.median(rounds)
    return Measured(
        config=wanted, rounds=tuple(rounds), processes=(middle,), samples_a_step=8, losses=(1.0,)
    )


def bench(
    clock: Clock, minutes: float = MINUTES, only: tuple[str, ...] = ()
) -> list[WorkloadResult]:
    """A whole bench: every workload with its share of the time."""
    searches = [Search(name, clock.ground, 0.0, only=only) for name in techniques.WORKLOADS]
    waiting = [search for search in searches if search.alone]
    until = 60.0 * minutes
    for place, search in enumerate(waiting):
        search.share(sum(len(each.alone) for each in waiting), len(waiting))
        search.slice_s = (until - clock.now) / (len(waiting) - place)
        began = clock.now
        search.run(clock.race, lambda began=began: clock.now - began)  # type: ignore[misc]
    return [search.result() for search in waiting]


def false_claims(found: list[WorkloadResult], gains: Mapping[str, float]) -> list[str]:
    """What is called faster or slower although it does nothing, and what is wrongly combined."""
    wrong = []
    for workload in found:
        for gain in workload.alone:
            true = gains.get(gain.technique, 1.0)
            if (gain.verdict == "faster" and true <= 1) or (gain.verdict == "slower" and true >= 1):
                wrong.append(f"{workload.name}: {gain.technique} {gain.verdict}")
        for gain in workload.combined:
            names, _, before = gain.technique.partition(", against ")
            added = {*names.split(" + ")} - {*before.split(" + ")}
            true = math.prod(gains.get(name, 1.0) for name in added)
            if (gain.verdict == "faster" and true <= 1) or (gain.verdict == "slower" and true >= 1):
                wrong.append(f"{workload.name}: {gain.technique} {gain.verdict}")
        wrong += [
            f"{workload.name}: {name} is in the best"
            for name in workload.best
            if gains.get(name, 1.0) <= 1
        ]
    return wrong


def two_sided(chance: random.Random) -> float:
    """Half of the processes are lucky with their memory: two speeds, and nothing between."""
    return chance.choice((-1.0, 1.0))


def heavy(chance: random.Random) -> float:
    """Few processes are far off, the others hardly: Student's t with three degrees of freedom."""
    return (
        chance.gauss(0.0, 1.0)
        / math.sqrt(statistics.mean(chance.gauss(0, 1) ** 2 for _ in range(3)))
        / math.sqrt(3)
    )


SHAPES: dict[str, dict[str, Any]] = {
    "normal": {},
    "two speeds": {"effect": two_sided},
    "heavy tails": {"effect": heavy},
    "drift of 10%, correlated rounds": {"drift": 0.1, "correlated": 0.9},
}


Job = tuple[str, float, str, dict[str, float], str, int]
"""Device, spread, shape of the processes, true gains, the technique that is asked for, and seed."""


def simulated(job: Job) -> dict[str, Any]:
    """One whole bench."""
    device, spread, shape, gains, measured, seed = job
    chance = random.Random(f"{device} {spread} {shape} {sorted(gains)} {seed}")
    ground = H200 if device == "gpu" else CPU
    found = bench(Clock(ground, spread, chance, gains, **SHAPES[shape]))
    known = [gain for workload in found for gain in workload.alone]
    wanted = [gain for gain in known if gain.technique == measured]
    tried = [gain for gain in known if gain.pairs]
    return {
        "false": false_claims(found, gains),
        "seen": [gain.verdict == "faster" for gain in wanted],
        "verdicts": [gain.verdict for gain in tried],
        "pairs": sum(len(gain.pairs) for gain in tried),
    }


def share(hits: int, number: int) -> dict[str, float]:
    """With its interval of 95 % by Wilson."""
    z, part = 1.96, hits / number
    middle = (part + z * z / (2 * number)) / (1 + z * z / number)
    reach = math.sqrt(part * (1 - part) / number + z * z / (4 * number * number))
    reach *= z / (1 + z * z / number)
    low, high = max(0.0, middle - reach), middle + reach
    return {"share": round(part, 4), "low": round(low, 4), "high": round(high, 4)}


def rows(benches: int, pool: Any) -> Iterator[dict[str, Any]]:
    """Null techniques in every shape, then one true gain among them."""
    for device in ("cpu", "gpu"):
        for shape in SHAPES:
            for spread in SPREADS:
                jobs: list[Job] = [(device, spread, shape, {}, "", seed) for seed in range(benches)]
                found = pool.map(simulated, jobs, chunksize=10)
                verdicts = [verdict for each in found for verdict in each["verdicts"]]
                yield {
                    "device": device,
                    "processes": shape,
                    "spread": spread,
                    "gain": None,
                    "false_claims": share(sum(bool(each["false"]) for each in found), benches),
                    "equal": round(verdicts.count("same") / len(verdicts), 3),
                    "not_decided": round(verdicts.count("undecided") / len(verdicts), 3),
                }
        for ratio in (1.1, 1.2):
            for spread in SPREADS:
                jobs = [
                    (device, spread, "normal", {"amp-bf16": ratio}, "amp-bf16", seed)
                    for seed in range(benches)
                ]
                found = pool.map(simulated, jobs, chunksize=10)
                seen = [hit for each in found for hit in each["seen"]]
                yield {
                    "device": device,
                    "processes": "normal",
                    "spread": spread,
                    "gain": ratio,
                    "false_claims": share(sum(bool(each["false"]) for each in found), benches),
                    "called_faster": share(sum(seen), len(seen)),
                }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benches", type=int, default=400)
    parser.add_argument("--processes", type=int, default=None)
    asked = parser.parse_args()
    found = []
    with Pool(asked.processes) as pool:
        for row in rows(asked.benches, pool):
            found.append(row)
            print(row, file=sys.stderr, flush=True)
    saved("bench_nulls", {"benches": asked.benches, "minutes": MINUTES, "rows": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

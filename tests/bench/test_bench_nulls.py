"""Whole benches on a simulated machine: false claims of techniques that do nothing, and power.

A small version of benchmarks/bench_nulls.py, with fixed seeds.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from bench_nulls import CPU, H200, SHAPES, Clock, bench, false_claims

from cudadoctor.bench import judging
from cudadoctor.bench.results import config
from cudadoctor.bench.search import Heat

BENCHES = 25


@pytest.mark.parametrize("shape", ["normal", "two speeds", "drift of 10%, correlated rounds"])
@pytest.mark.parametrize("spread", [0.005, 0.05])
def test_techniques_that_do_nothing_are_called_neither_faster_nor_slower(
    shape: str, spread: float
) -> None:
    """Intervals over rounds, or a looser look at many techniques, would claim in most benches."""
    wrong = []
    for seed in range(BENCHES):
        clock = Clock(H200, spread, random.Random(seed), **SHAPES[shape])
        wrong.append(false_claims(bench(clock), {}))
    assert sum(map(bool, wrong)) <= 1, wrong


def test_intervals_over_rounds_would_be_caught() -> None:
    """Held against each other by their rounds, equal processes look different most of the time."""
    wrong = 0
    for seed in range(BENCHES):
        clock = Clock(H200, 0.05, random.Random(seed))
        candidates = (config("decoder", "sdpa"),)
        found = clock.race(Heat(reference=config("decoder"), candidates=candidates))
        rounds = zip(found.reference.rounds, found.candidates[0].rounds, strict=True)
        gain = judging.gain(
            "sdpa",
            found.reference,
            found.candidates[0],
            [math.log(theirs / own) for theirs, own in rounds],
            spread=judging.LEAST_SPREAD_GPU,
            error=judging.FAMILY,
            tolerance=1.0,
            losses="steps",
        )
        wrong += gain.verdict in ("faster", "slower")
    assert wrong > BENCHES / 3


@pytest.mark.parametrize(("ratio", "share"), [(1.2, 0.8), (1.1, 0.5)])
def test_a_true_gain_is_seen_within_the_usual_time(ratio: float, share: float) -> None:
    seen = []
    gains = {"amp-bf16": ratio}
    for seed in range(BENCHES):
        found = bench(Clock(CPU, 0.01, random.Random(seed), gains))
        (gain,) = [gain for gain in found[0].alone if gain.technique == "amp-bf16"]
        seen.append(gain.verdict == "faster")
        assert false_claims(found, gains) == []
    assert sum(seen) >= share * BENCHES

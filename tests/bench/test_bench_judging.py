"""From pairs of processes to gains: what is claimed, what is equal, and whose losses differ."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from cudadoctor.bench import judging
from cudadoctor.bench.results import Gain, Measured, config

ERROR = 0.001
SPREAD = 0.014
"""Of pairs whose processes differ by 1 %."""


def measured(
    *rounds: float, losses: tuple[float | None, ...] = (1.0, 0.9), samples: int = 8
) -> Measured:
    return Measured(
        config=config("cnn"), rounds=rounds, steps=3, samples_a_step=samples, losses=losses
    )


def drawn(ratio: float, spread: float, number: int, seed: int = 1) -> list[float]:
    """Logs of pairs around a ratio."""
    chance = random.Random(seed)
    return [math.log(ratio) + chance.gauss(0.0, spread) for _ in range(number)]


def judged(pairs: list[float], spread: float = SPREAD, **more: object) -> Gain:
    how = {"tolerance": 0.05, "losses": "steps", "spread": spread, "error": ERROR, **more}
    some = measured(0.1, 0.1, 0.1)
    return judging.gain("x", some, some, pairs, **how)  # type: ignore[arg-type]


def test_twice_the_speed_is_faster_and_its_ratio_is_two() -> None:
    found = judged(drawn(2.0, SPREAD, 5))
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(2.0, rel=0.03)
    assert found.low is not None and found.high is not None
    assert 1 < found.low < 2 < found.high


def test_half_the_speed_is_slower() -> None:
    assert judged(drawn(0.5, SPREAD, 5)).verdict == "slower"


def test_fewer_than_three_processes_decide_nothing() -> None:
    found = judged([0.7, 0.7])
    assert (found.verdict, found.low) == ("undecided", None)
    assert "at least 3" in found.why


def test_rounds_that_agree_are_no_proof_where_processes_differ() -> None:
    """Three processes are 12, 2 and 9 % faster: by their rounds alone each would be a sure gain."""
    assert judged([0.12, 0.02, 0.09]).verdict == "undecided"


def test_few_pairs_that_agree_by_chance_are_held_against_the_usual_spread() -> None:
    """Processes of two speeds agree three times in a row now and then."""
    lucky = [0.05, 0.05, 0.05, 0.05]
    assert judged(lucky, spread=0.003).verdict == "faster"
    assert judged(lucky, spread=0.05).verdict == "undecided"


def test_the_usual_spread_is_that_of_most_and_never_tiny() -> None:
    some = [drawn(1.0, spread, 15, seed) for seed, spread in enumerate((0.02, 0.02, 0.9))]
    assert judging.spread_of(some, gpu=True) == pytest.approx(0.02, rel=0.5)
    assert judging.spread_of([[0.0, 0.0, 0.0]], gpu=True) == judging.LEAST_SPREAD_GPU
    assert judging.spread_of([[0.0, 0.2]], gpu=False) == judging.LEAST_SPREAD_CPU


def test_more_pairs_decide_what_few_could_not() -> None:
    pairs = drawn(1.1, 0.03, 15)
    verdicts = [judged(pairs[:number], 0.03).verdict for number in range(1, 16)]
    assert verdicts[3] == "undecided"
    assert verdicts[-1] == "faster"
    # It is judged at the looks alone, so a number between two of them changes nothing.
    assert verdicts[6] == verdicts[5] and verdicts[8] == verdicts[9]


def test_the_looks_share_the_error_among_them() -> None:
    assert sum(judging.LOOKS.values()) == pytest.approx(1.0)


def test_equal_is_said_with_how_far() -> None:
    found = judged(drawn(1.001, 0.005, 5), 0.005)
    assert found.verdict == "same"
    assert found.within is not None and 0 < found.within <= 0.05
    assert judged(drawn(1.001, 0.08, 5), 0.08).verdict == "undecided"


def test_a_sure_difference_that_nobody_would_notice_is_equal() -> None:
    assert judged([0.004 + 0.0001 * (number % 2) for number in range(6)], 0.0001).verdict == "same"


@pytest.mark.parametrize(
    ("error", "freedom", "t"),
    [
        (0.05, 2, 4.3027),
        (0.001, 4, 8.6103),
        (0.01, 5, 4.0321),
        (2e-5, 2, 223.6034),
        (1e-4, 7, 7.8846),
    ],
)
def test_quantiles_are_those_of_students_tables(error: float, freedom: int, t: float) -> None:
    assert judging.quantile(error, freedom) == pytest.approx(t, abs=1e-4)


# --- one pair ---------------------------------------------------------------------------------


def test_a_larger_batch_is_judged_by_samples_a_second() -> None:
    found = judging.pair(measured(0.1, 0.1, 0.1), measured(0.1, 0.1, 0.1, samples=16))
    assert found == pytest.approx(math.log(2))


def test_one_round_that_was_disturbed_moves_no_pair() -> None:
    found = judging.pair(measured(*[0.1] * 5), measured(0.05, 0.05, 3.0, 0.05, 0.05))
    assert found == pytest.approx(math.log(2))


def test_a_process_with_two_rounds_has_no_say() -> None:
    assert judging.pair(measured(0.1, 0.1), measured(0.1, 0.1)) is None


# --- what else a gain says -----------------------------------------------------------------------


def test_what_failed_says_why() -> None:
    lost = Measured(config=config("cnn", "compile"), error="out of memory")
    found = judging.gain(
        "x", measured(0.1), lost, [], spread=1.0, error=ERROR, tolerance=0.05, losses="steps"
    )
    assert (found.verdict, found.why) == ("failed", "out of memory")


@pytest.mark.parametrize(
    ("losses", "kind", "differs"),
    [
        ((1.0, 0.9), "steps", False),
        ((1.05, 0.9), "steps", False),  # exactly at the tolerance
        ((1.06, 0.9), "steps", True),
        ((1.0, 0.8), "steps", True),
        ((1.0, 0.8), "first", False),
        ((0.9, 1.0), "mean", False),
        ((0.5, 0.6), "mean", True),
        ((1.0, None), "steps", True),
    ],
)
def test_losses_are_held_against_the_tolerance(
    losses: tuple[float | None, ...], kind: str, differs: bool
) -> None:
    rounds = (0.1, 0.1, 0.1)
    found = judging.gain(
        "x",
        measured(*rounds),
        measured(*rounds, losses=losses),
        [0.0, 0.0, 0.0],
        spread=0.01,
        error=ERROR,
        tolerance=0.0501,
        losses=kind,  # type: ignore[arg-type]
    )
    assert (found.verdict == "loss-differs") is differs


def test_memory_is_compared_where_both_are_known() -> None:
    reference = msgspec.structs.replace(measured(0.1, 0.1, 0.1), peak_bytes=1000)
    candidate = msgspec.structs.replace(reference, peak_bytes=250)
    found = judging.gain(
        "x",
        reference,
        candidate,
        [0.0],
        spread=0.01,
        error=ERROR,
        tolerance=0.1,
        losses="steps",
    )
    assert found.memory_ratio == 0.25

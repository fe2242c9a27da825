"""From rounds to gains: what counts as noise, what as a gain, and which losses are the same."""

from __future__ import annotations

import random

import pytest

from cudadoctor.bench import judging
from cudadoctor.bench.results import Measured, config


def measured(
    *rounds: float, losses: tuple[float | None, ...] = (1.0, 0.9), samples: int = 8
) -> Measured:
    return Measured(
        config=config("cnn"), rounds=rounds, steps=3, samples_a_step=samples, losses=losses
    )


def drawn(middle: float, spread: float, seed: int, rounds: int = 10) -> tuple[float, ...]:
    chance = random.Random(seed)
    return tuple(middle * chance.lognormvariate(0.0, spread) for _ in range(rounds))


def judged(reference: Measured, candidate: Measured, noise: float = 1.02, **more: object) -> str:
    how = {"tolerance": 0.05, "losses": "steps", **more}
    found = judging.gain("x", reference, candidate, noise=noise, **how)  # type: ignore[arg-type]
    return found.verdict


def test_twice_the_speed_is_faster_and_its_ratio_is_two() -> None:
    reference, candidate = measured(*drawn(0.1, 0.02, 1)), measured(*drawn(0.05, 0.02, 2))
    found = judging.gain("x", reference, candidate, noise=1.02, tolerance=0.05, losses="steps")
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(2.0, rel=0.03)
    ends = [ratio for ratio in (found.low, found.ratio, found.high) if ratio is not None]
    assert ends == sorted(ends)
    assert len(set(ends)) == 3


def test_half_the_speed_is_slower() -> None:
    assert judged(measured(*drawn(0.1, 0.02, 1)), measured(*drawn(0.2, 0.02, 2))) == "slower"


def test_a_larger_batch_is_judged_by_samples_a_second() -> None:
    same_step = measured(*drawn(0.1, 0.01, 1), samples=16)
    assert judged(measured(*drawn(0.1, 0.01, 2)), same_step) == "faster"


@pytest.mark.parametrize("spread", [0.005, 0.05, 0.3])
def test_the_baseline_against_itself_is_hardly_ever_a_gain(spread: float) -> None:
    """Three processes give the noise and a fourth is judged by it, as in a bench."""
    claimed = 0
    for seed in range(400):
        rounds = [measured(*drawn(0.1, spread, 4 * seed + process)) for process in range(4)]
        noise = judging.noise_of(rounds[:3], gpu=True)  # the lower floor
        claimed += judged(rounds[0], rounds[3], noise) != "same"
    assert claimed <= 4


def test_processes_that_differ_for_good_raise_the_noise() -> None:
    """More rounds would not see it: one process is 6 % slower than its twin, round by round."""
    twins = measured(*drawn(0.1, 0.001, 1)), measured(*drawn(0.106, 0.001, 2))
    noise = judging.noise_of(twins, gpu=True)
    assert noise == pytest.approx(1.06**2, rel=0.002)
    candidate = measured(*drawn(0.1 / 1.11, 0.001, 3))
    assert judged(measured(*drawn(0.1, 0.001, 4)), candidate, noise) == "same"
    assert judged(measured(*drawn(0.1, 0.001, 4)), candidate, 1.02) == "faster"


def test_one_round_that_was_disturbed_changes_no_verdict() -> None:
    calm = list(drawn(0.1, 0.005, 1))
    disturbed = [0.05 * seconds / 0.1 for seconds in calm]
    disturbed[4] = 3.0
    assert judged(measured(*calm), measured(*disturbed)) == "faster"


def test_five_rounds_tell_nothing() -> None:
    slow, fast = drawn(0.1, 0.001, 1, rounds=6), drawn(0.01, 0.001, 1, rounds=6)
    assert judged(measured(*slow[:5]), measured(*fast[:5])) == "same"
    assert judged(measured(*slow), measured(*fast)) == "faster"


def test_the_interval_keeps_its_cover() -> None:
    """With ten rounds one may lie outside on each side, with six none."""

    def low(number: int) -> float:
        ratio = judging.paired(measured(*[1.0] * number), measured(*range(1, number + 1)))
        assert ratio is not None
        return 1 / ratio.low

    # The slowest pair is the last: whether it, or the one before it, ends the interval.
    assert [round(low(number)) for number in (6, 8, 9, 10)] == [6, 8, 8, 9]


def test_what_failed_says_why() -> None:
    lost = Measured(config=config("cnn", "compile"), error="out of memory")
    found = judging.gain("x", measured(0.1), lost, noise=1.02, tolerance=0.05, losses="steps")
    assert (found.verdict, found.why) == ("failed", "out of memory")


def test_what_the_time_ended_did_not_fail() -> None:
    lost = Measured(config=config("cnn", "compile"), error=f"{judging.OVER} during startup")
    assert judged(measured(0.1), lost) == "not-here"


@pytest.mark.parametrize(
    ("losses", "kind", "verdict"),
    [
        ((1.0, 0.9), "steps", "same"),
        ((1.05, 0.9), "steps", "same"),  # exactly at the tolerance
        ((1.06, 0.9), "steps", "loss-differs"),
        ((1.0, 0.8), "steps", "loss-differs"),
        ((1.0, 0.8), "first", "same"),
        ((0.9, 1.0), "mean", "same"),
        ((0.5, 0.6), "mean", "loss-differs"),
        ((1.0, None), "steps", "loss-differs"),
    ],
)
def test_losses_are_held_against_the_tolerance(
    losses: tuple[float | None, ...], kind: str, verdict: str
) -> None:
    rounds = drawn(0.1, 0.001, 1)
    candidate = measured(*rounds, losses=losses)
    assert judged(measured(*rounds), candidate, tolerance=0.0501, losses=kind) == verdict


def test_memory_is_compared_where_both_are_known() -> None:
    import msgspec

    reference = msgspec.structs.replace(measured(*drawn(0.1, 0.01, 1)), peak_bytes=1000)
    candidate = msgspec.structs.replace(reference, peak_bytes=250)
    found = judging.gain("x", reference, candidate, noise=1.02, tolerance=0.1, losses="steps")
    assert found.memory_ratio == 0.25

"""From rounds that took turns to gains, and from a profile to where the time goes. Pure."""

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from cudadoctor.bench.results import Bottleneck, Gain, Kind, Measured, Verdict
from cudadoctor.bench.techniques import Losses

LEAST_ROUNDS = 6
"""With fewer, even the whole range of the pairs covers the median too seldom."""
COVERED = 0.96
LEAST_NOISE_GPU, LEAST_NOISE_CPU = 1.01, 1.10
"""What no measurement of ours tells apart, however calm the machine was.

On a CPU the same code in another process is up to a tenth slower for good, by where its memory lies
and how often the C library gives it back (benchmarks/bench_agreement.py); three show it by chance.
"""
SHIFTS = 2.0
"""Two or three processes show less than their kind differ: so many times of it is assumed."""
OVER = "the time was over"
NO_WORKERS = "why_no_workers"
"""The setting that tells why a loader was not given the workers that were asked for."""


class Ratio(msgspec.Struct, frozen=True):
    """Samples a second over those of the reference: the median of the pairs, and its interval."""

    mid: float
    low: float
    high: float
    rounds: int


def paired(reference: Measured, candidate: Measured) -> Ratio | None:
    """The ratio of two that took turns; None where there is no pair.

    Its interval rests on the order of the pairs alone: one disturbed round moves it by a place,
    whatever it was disturbed by.
    """
    more = candidate.samples_a_step / max(1, reference.samples_a_step)
    pairs = zip(reference.rounds, candidate.rounds, strict=False)
    logs = sorted(math.log(more * one / other) for one, other in pairs)
    if not logs:
        return None
    place = _place(len(logs))
    low, mid, high = logs[place], statistics.median(logs), logs[-1 - place]
    return Ratio(math.exp(mid), math.exp(low), math.exp(high), len(logs))


def _place(number: int) -> int:
    """How many of the smallest, and of the largest, pairs lie outside of the interval."""
    place, outside = 0, 2 * 0.5**number
    while True:
        outside += 2 * math.comb(number, place + 1) * 0.5**number
        if 1 - outside < COVERED:
            return place
        place += 1


def noise_of(equals: Sequence[Measured], *, gpu: bool) -> float:
    """How far apart two that are equal may seem, as a ratio above 1.

    equals: the baseline in several processes that took turns. Processes differ for good, by where
    their memory lies, and more rounds would not show it: the largest shift between two of them
    counts twice. Where rounds scatter, half of the widest interval counts.
    """
    least = LEAST_NOISE_GPU if gpu else LEAST_NOISE_CPU
    found = [paired(one, other) for one, other in itertools.combinations(equals, 2)]
    ratios = [one for one in found if one is not None]
    if not ratios:
        return least**2
    shift = max(abs(math.log(one.mid)) for one in ratios)
    width = max(math.log(max(one.high, 1 / one.low)) for one in ratios)
    return max(least, math.exp(max(SHIFTS * shift, width / 2)))


def gain(
    name: str,
    reference: Measured,
    candidate: Measured,
    *,
    noise: float,
    tolerance: float,
    losses: Losses,
) -> Gain:
    """What a candidate is worth against what it took turns with."""
    ratio = paired(reference, candidate)
    if candidate.error is not None or ratio is None:
        why = candidate.error or "nothing was measured"
        lost: Verdict = "not-here" if why.startswith(OVER) else "failed"
        return Gain(technique=name, verdict=lost, why=why, measured=candidate)
    if without := str(candidate.settings.get(NO_WORKERS) or ""):
        return Gain(technique=name, verdict="not-here", why=without, measured=candidate)
    verdict, why = _verdict(ratio, noise)
    if differs := _loss_differs(reference, candidate, tolerance, losses):
        verdict, why = "loss-differs", differs
    return Gain(
        technique=name,
        verdict=verdict,
        why=why,
        ratio=ratio.mid,
        low=ratio.low,
        high=ratio.high,
        memory_ratio=_memory(reference, candidate),
        measured=candidate,
    )


def _verdict(ratio: Ratio, noise: float) -> tuple[Verdict, str]:
    if ratio.rounds < LEAST_ROUNDS:
        return "same", f"{ratio.rounds} rounds are too few to tell a difference"
    between = f"between {_percent(ratio.low)} and {_percent(ratio.high)} in {ratio.rounds} rounds"
    least = f"noise {_percent(noise)}"
    if ratio.low > 1 and ratio.mid > noise and ratio.low > math.sqrt(noise):
        return "faster", f"{between}, {least}"
    if ratio.high < 1 and ratio.mid < 1 / noise and ratio.high < 1 / math.sqrt(noise):
        return "slower", f"{between}, {least}"
    return "same", f"no difference that can be told: {between}, {least}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _loss_differs(
    reference: Measured, candidate: Measured, tolerance: float, losses: Losses
) -> str:
    """How the losses differ by more than the tolerance, "" where they do not."""
    if None in candidate.losses and None not in reference.losses:
        return "its loss is not finite"
    theirs = [one for one in reference.losses if one is not None]
    own = [one for one in candidate.losses if one is not None]
    number = min(len(theirs), len(own))
    if not number:
        return ""
    if losses == "mean":
        theirs, own, number = [statistics.mean(theirs)], [statistics.mean(own)], 1
    off, step = 0.0, 0
    for place in range(1 if losses == "first" else number):
        found = abs(own[place] - theirs[place]) / max(abs(theirs[place]), 0.05)
        off, step = max((off, step), (found, place))
    if off <= tolerance:
        return ""
    where = {"mean": "the mean loss", "first": "the first loss"}.get(
        losses, f"the loss of step {step + 1}"
    )
    values = f"{own[step]:.4f} against {theirs[step]:.4f}"
    return f"{where} is {off:.1%} off, {values} (tolerance {tolerance:.0%})"


def _memory(reference: Measured, candidate: Measured) -> float | None:
    if not reference.peak_bytes or candidate.peak_bytes is None:
        return None
    return candidate.peak_bytes / reference.peak_bytes


# --- where the time of a step goes: data, the host, bandwidth or arithmetic ----------------------

WAITS = 0.25
"""Part of a step: from here on waiting for data, or for the host, is what to work on first."""
EXPLAINED = 0.2
"""Part of the busy time that arithmetic and traffic at full speed must explain, else not known."""


class Peaks(msgspec.Struct, frozen=True):
    """What a device can at most: operations and bytes a second. source: how that is known."""

    flops: float
    bytes_s: float
    source: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one step: seconds, seconds waited for its batch, seconds the GPU worked (None: a CPU).

    operations: (flops, bytes, times) of those that compute.
    """

    step_s: float
    wait_s: float
    device_s: float | None = None
    operations: tuple[tuple[int, int, int], ...] = ()
    peaks: Peaks | None = None


def bottleneck_of(figures: Figures) -> Bottleneck:
    """What the step mostly does."""
    step_s = figures.step_s
    waits = min(1.0, figures.wait_s / step_s)
    told = {"loader_share": waits}
    idle = 0.0
    if figures.device_s is not None:
        idle = max(0.0, step_s - figures.wait_s - figures.device_s) / step_s
        busy = min(1.0, figures.device_s / step_s)
        told |= {"host_share": idle, "device_share": busy, "device_s": figures.device_s}
    busy_s = figures.device_s
    if busy_s is None:
        busy_s = max(1e-9, step_s - figures.wait_s)
    flops = sum(flops * times for flops, _, times in figures.operations)
    moved = sum(size * times for _, size, times in figures.operations)
    if flops:
        told |= {"tflops": flops / busy_s / 1e12, "gb_s": moved / busy_s / 1e9}
    if waits >= WAITS and waits >= idle:
        return Bottleneck(
            kind="data loading", why=f"{waits:.0%} of a step is waiting for its batch", figures=told
        )
    if idle >= WAITS:
        why = (
            f"the GPU has nothing to do in {idle:.0%} of a step: what holds it up is the host, or"
            " copies that are waited for"
        )
        return Bottleneck(kind="host overhead", why=why, figures=told)
    peaks = figures.peaks
    if peaks is None or not told.get("tflops"):
        why = "what this device can at most is not known"
        return Bottleneck(kind="not known", why=why, figures=told)
    # Of each operation counts what would take longer at full speed: its arithmetic or its traffic.
    arithmetic = traffic = 0.0
    for flops, size, times in figures.operations:
        computing, moving = flops / peaks.flops, size / peaks.bytes_s
        if computing >= moving:
            arithmetic += times * computing
        else:
            traffic += times * moving
    told |= {"compute_share": arithmetic / busy_s, "bandwidth_share": traffic / busy_s}
    told |= {"peak_tflops": peaks.flops / 1e12, "peak_gb_s": peaks.bytes_s / 1e9}
    explained = (arithmetic + traffic) / busy_s
    if explained < EXPLAINED:
        why = f"arithmetic and traffic at full speed would take {explained:.0%} of it"
        if figures.device_s is None:
            why += "; on a CPU the rest cannot be told apart"
        return Bottleneck(kind="not known", why=why, figures=told)
    kind: Kind = "compute" if arithmetic >= traffic else "memory bandwidth"
    share = max(arithmetic, traffic) / (arithmetic + traffic)
    what = "arithmetic" if kind == "compute" else "moving data"
    why = f"{what} would take {share:.0%} of the time at full speed ({peaks.source})"
    return Bottleneck(kind=kind, why=why, figures=told)

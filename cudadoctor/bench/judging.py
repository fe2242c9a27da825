"""From processes that took turns to gains, and from a profile to where the time goes. Pure.

The process is the unit: its rounds agree among themselves, but the next process of the same code is
faster or slower for good. So a gain is the mean over pairs of fresh processes, and its interval
comes from how far the pairs lie apart.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.bench.results import Amount, Bottleneck, Gain, Kind, Measured, Verdict
from cudadoctor.bench.techniques import Losses
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import OptStr

FAMILY, COMBINED = 0.05, 0.25
"""How often a whole bench may make any false claim, and the part of it for combinations."""
LOOKS = {3: 0.05, 4: 0.15, 5: 0.2, 6: 0.2, 8: 0.15, 11: 0.15, 15: 0.1}
"""After so many pairs it is judged, each time with its share of the error that is allowed: more
pairs are measured where the first ones do not decide, and that costs no false claims."""
LEAST_PAIRS, MOST_PAIRS = min(LOOKS), max(LOOKS)
EQUAL, EQUAL_ERROR = 1.05, 0.1
"""Within so much it is called equal, if an interval of 90 % lies inside (two one-sided tests)."""
LEAST_GAIN = 1.01
"""A smaller difference is not worth a claim, however sure."""
LEAST_SPREAD_GPU, LEAST_SPREAD_CPU = 0.005, 0.015
"""How far pairs lie apart at least: a few may agree by chance. On a CPU, where the memory of a
process lies makes up to 7 % for good (benchmarks/bench_agreement.py)."""
LEAST_ROUNDS = 3
"""Rounds of a process that has a say."""
OVER = "the time limit was reached"
NO_WORKERS = "why_no_workers"
"""The setting that tells why a loader was not given the workers that were asked for."""


def pair(reference: Measured, candidate: Measured) -> Amount:
    """The log of how much faster one process is than the one it took turns with.

    The median of its rounds against those beside them: a disturbed round moves it by a place.
    """
    more = candidate.samples_a_step / max(1, reference.samples_a_step)
    rounds = zip(reference.rounds, candidate.rounds, strict=False)
    logs = [math.log(more * theirs / own) for theirs, own in rounds if theirs > 0 and own > 0]
    return statistics.median(logs) if len(logs) >= LEAST_ROUNDS and more else None


def spread_of(pairs: Iterable[Sequence[float]], *, gpu: bool) -> float:
    """How far pairs of the same two configurations lie apart: the usual standard deviation.

    No single one counts for less: with three pairs it is often far too small by chance.
    """
    known = [statistics.stdev(some) for some in pairs if len(some) >= LEAST_PAIRS]
    least = LEAST_SPREAD_GPU if gpu else LEAST_SPREAD_CPU
    return max(least, statistics.median(known) if known else 0.0)


class Ratio(Struct, frozen=True):
    """Logs. mid: the mean of the pairs; low, high: the interval at this look, for the whole bench.

    near: how far from no difference the interval of 90 % reaches. pairs: how many it rests on.
    """

    mid: float
    low: float
    high: float
    near: float
    pairs: int


def at_look(pairs: Sequence[float], spread: float, error: float) -> Ratio:
    """What so many pairs say, where there is a look at so many. error: of the comparison."""
    number = len(pairs)
    mid = statistics.mean(pairs)
    of_the_mean = max(spread, statistics.stdev(pairs)) / math.sqrt(number)
    reach = quantile(error * LOOKS[number], number - 1) * of_the_mean
    near = abs(mid) + quantile(EQUAL_ERROR, number - 1) * of_the_mean
    return Ratio(mid, mid - reach, mid + reach, near, number)


@functools.lru_cache(maxsize=1024)
def quantile(error: float, freedom: int) -> float:
    """The t that is exceeded, on either side, with this probability."""
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > error:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > error else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """How probable it is that Student's t is farther from 0 (Abramowitz and Stegun, 26.7.3 f.)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for factor in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (factor - 1) / factor
        total += term
    inside = math.sin(angle) * total
    return 1.0 - (2 / math.pi * (angle + inside) if odd else inside)


def gain(
    name: str,
    reference: Measured,
    candidate: Measured,
    pairs: Sequence[float],
    *,
    spread: float,
    error: float,
    tolerance: float,
    losses: Losses,
) -> Gain:
    """What a candidate is worth against what it took turns with, by the first look that decides.

    pairs: of each pair of processes, its `pair`. spread: the usual one. error: how often this
    comparison may make a false claim.
    """
    without = str(candidate.settings.get(NO_WORKERS, ""))
    why = candidate.error or without or ("" if pairs else "nothing was measured")
    if why:
        lost: Verdict = "not-here" if why == without or why.startswith(OVER) else "failed"
        return Gain(technique=name, verdict=lost, why=why, measured=candidate)
    memory = None
    if reference.peak_bytes and candidate.peak_bytes is not None:
        memory = candidate.peak_bytes / reference.peak_bytes
    found = replace(
        _by_looks(name, pairs, spread, error),
        memory_ratio=memory,
        measured=candidate,
        pairs=tuple(math.exp(one) for one in pairs),
    )
    if differs := _loss_differs(reference, candidate, tolerance, losses):
        return replace(found, verdict="loss-differs", why=differs)
    return found


def _by_looks(name: str, pairs: Sequence[float], spread: float, error: float) -> Gain:
    looks = [at_look(pairs[:look], spread, error) for look in LOOKS if look <= len(pairs)]
    if not looks:
        why = f"pairs of processes measured: {len(pairs)}, at least {LEAST_PAIRS} are needed"
        mid = math.exp(statistics.mean(pairs))
        return Gain(technique=name, verdict="undecided", why=why, ratio=mid)
    verdicts = map(_verdict, looks)
    decided = ((look, verdict) for look, verdict in zip(looks, verdicts, strict=True) if verdict)
    look, verdict = next(decided, (looks[-1], None))
    low, mid, high = map(math.exp, (look.low, look.mid, look.high))
    between = f"between {_percent(low)} and {_percent(high)}, pairs of processes: {look.pairs}"
    near = math.ceil(100 * math.expm1(look.near) - 1e-9) / 100
    return Gain(
        technique=name,
        verdict=verdict or "undecided",
        why=between,
        ratio=mid,
        low=low,
        high=high,
        within=near if verdict == "same" else None,
    )


def _verdict(look: Ratio) -> Verdict | None:
    least = math.log(LEAST_GAIN)
    if look.low > 0 and look.mid >= least:
        return "faster"
    if look.high < 0 and look.mid <= -least:
        return "slower"
    return "same" if look.near <= math.log(EQUAL) else None


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"


def _loss_differs(
    reference: Measured, candidate: Measured, tolerance: float, losses: Losses
) -> str:
    """How the losses differ by more than the tolerance, "" where they do not."""
    if None in candidate.losses and None not in reference.losses:
        return "the loss is not finite"
    theirs = [loss for loss in reference.losses if loss is not None]
    own = [loss for loss in candidate.losses if loss is not None]
    if not theirs or not own:
        return ""
    if losses == "mean":
        theirs, own = [statistics.mean(theirs)], [statistics.mean(own)]
    pairs = list(zip(own, theirs, strict=False))
    off, step = max(
        (abs(ours - other) / max(abs(other), 0.05), place)
        for place, (ours, other) in enumerate(pairs[: 1 if losses == "first" else None])
    )
    if off <= tolerance:
        return ""
    where = {"mean": "the mean loss", "first": "the first loss"}.get(
        losses, f"the loss of step {step + 1}"
    )
    values = "{:.4f} instead of {:.4f}".format(*pairs[step])
    return f"{where} is off by {off:.1%}: {values} (tolerance {tolerance:.0%})"


# --- where the time of a step goes: data, the host, bandwidth or arithmetic ----------------------

WAITS = 0.25
"""Part of a step: from here on waiting for data, or for the host, is what to work on first."""
EXPLAINED = 0.2
"""Part of the busy time that arithmetic and traffic at full speed must explain, else not known."""
REACHED, REACHED_BY_A_COPY = 0.6, 0.7
"""Part of a data sheet's figure that a large product, or a large copy, reaches on such a board."""


class Peaks(Struct, frozen=True):
    """What a device can at most: operations and bytes a second. source: how that is known."""

    flops: float
    bytes_s: float
    source: str


def peaks_of(name: OptStr, knowledge: Knowledge, workload: str) -> Peaks | None:
    """The most that the maker says of this GPU; None where the tables do not name it.

    torch computes convolutions in TF32 where the GPU has it, and products in fp32.
    """
    # A slice has a part of what the card has.
    known = knowledge.peaks(name) if name and " MIG " not in name else None
    if known is None:
        return None
    tflops = (workload == "cnn" and known.tf32_tflops) or known.fp32_tflops
    if tflops is None:
        return None
    return Peaks(tflops * 1e12, known.bandwidth_gb_s * 1e9, "according to the GPU's data sheet")


def believed(table: Peaks | None, measured: Peaks | None, workload: str) -> Peaks | None:
    """The table's, but where what was measured is far below it: boards of one name may differ.

    measured: a large product in fp32 and a large copy. It says nothing of the convolutions, for
    which the table gives TF32.
    """
    if table is None or measured is None:
        return table or measured
    less_flops = workload != "cnn" and measured.flops < REACHED * table.flops
    less_bytes = measured.bytes_s < REACHED_BY_A_COPY * table.bytes_s
    if not less_flops and not less_bytes:
        return table
    flops = measured.flops if less_flops else table.flops
    bytes_s = measured.bytes_s if less_bytes else table.bytes_s
    return Peaks(
        flops, bytes_s, "measured on this machine; well below the figure in the GPU's data sheet"
    )


def bottleneck_of(
    *,
    step_s: float,
    wait_s: float,
    device_s: Amount = None,
    operations: Sequence[Sequence[int]] = (),
    peaks: Peaks | None = None,
) -> Bottleneck:
    """What the step mostly does.

    step_s, wait_s, device_s: seconds of one step, of those waited for its batch, and of those the
    GPU worked (None: a CPU). operations: flops, bytes and times of each that computes.
    """
    waits, idle, busy_s = min(1.0, wait_s / step_s), 0.0, max(1e-9, step_s - wait_s)
    figures = {"loader_share": waits}
    if device_s is not None:
        idle, busy_s = max(0.0, step_s - wait_s - device_s) / step_s, device_s
        figures |= {
            "host_share": idle,
            "device_share": min(1.0, busy_s / step_s),
            "device_s": busy_s,
        }
    total = sum(flops * times for flops, _, times in operations)
    if total:
        moved = sum(size * times for _, size, times in operations)
        figures |= {"tflops": total / busy_s / 1e12, "gb_s": moved / busy_s / 1e9}
    kind: Kind = "not known"
    if waits >= WAITS and waits >= idle:
        kind, why = (
            "data loading",
            f"each step spends {waits:.0%} of its time waiting for the next batch",
        )
    elif idle >= WAITS:
        kind = "host overhead"
        why = f"the GPU is idle for {idle:.0%} of each step, waiting for the CPU or for data copies"
    elif peaks is None or not total:
        why = "the peak speed of this device is unknown"
    else:
        # Of each operation counts what would take longer at full speed.
        arithmetic = traffic = 0.0
        for flops, size, times in operations:
            computing, moving = times * (flops / peaks.flops), times * (size / peaks.bytes_s)
            if computing >= moving:
                arithmetic += computing
            else:
                traffic += moving
        figures |= {"compute_share": arithmetic / busy_s, "bandwidth_share": traffic / busy_s}
        figures |= {"peak_tflops": peaks.flops / 1e12, "peak_gb_s": peaks.bytes_s / 1e9}
        both = arithmetic + traffic
        if both / busy_s < EXPLAINED:
            why = (
                f"at peak speed, computing and moving data would take only {both / busy_s:.0%} "
                "of the busy time"
            )
            why += "; on a CPU the rest cannot be broken down" if device_s is None else ""
        else:
            computes = arithmetic >= traffic
            kind = "compute" if computes else "memory bandwidth"
            what, share = "computing" if computes else "moving data", max(arithmetic, traffic)
            part = f"{share / both:.0%} of the time"
            why = f"at peak speed ({peaks.source}), {what} would take {part}"
    return Bottleneck(kind=kind, why=why, figures=figures)

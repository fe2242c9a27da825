"""From rounds that took turns to gains, and from a profile to where the time goes. Pure."""

import itertools
import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from cudadoctor.bench.results import Amount, Bottleneck, Gain, Kind, Measured, Verdict
from cudadoctor.bench.techniques import Losses
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import OptStr

LEAST_ROUNDS = 6
"""With fewer, even the whole range of the pairs covers the median too seldom."""
TWO_OUTSIDE = 9
"""From so many pairs on, the smallest and the largest lie outside of the interval: what is between
covers the median with 96 %, as the whole range does of six."""
LEAST_NOISE_GPU, LEAST_NOISE_CPU = 1.01, 1.10
"""What no measurement of ours tells apart, however calm the machine was.

On a CPU the same code in another process is up to a tenth slower for good, by where its memory lies
and how often the C library gives it back (benchmarks/bench_agreement.py); three show it by chance.
"""
SHIFTS = 2.0
"""Two or three processes show less than their kind differ: so many times of it is assumed."""
OVER = "the time limit was reached"
NO_WORKERS = "why_no_workers"
"""The setting that tells why a loader was not given the workers that were asked for."""


class Ratio(Struct, frozen=True):
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
    logs = sorted(math.log(more * theirs / own) for theirs, own in pairs)
    if not logs:
        return None
    place = len(logs) >= TWO_OUTSIDE
    low, mid, high = logs[place], statistics.median(logs), logs[-1 - place]
    return Ratio(math.exp(mid), math.exp(low), math.exp(high), len(logs))


def noise_of(equals: Sequence[Measured], *, gpu: bool) -> float:
    """How far apart two that are equal may seem, as a ratio above 1.

    equals: the baseline in several processes that took turns. Processes differ for good, by where
    their memory lies, and more rounds would not show it: the largest shift between two of them
    counts twice. Where rounds scatter, half of the widest interval counts.
    """
    least = LEAST_NOISE_GPU if gpu else LEAST_NOISE_CPU
    ratios = list(filter(None, itertools.starmap(paired, itertools.combinations(equals, 2))))
    if not ratios:
        return least**2
    shift = max(abs(math.log(ratio.mid)) for ratio in ratios)
    width = max(math.log(max(ratio.high, 1 / ratio.low)) for ratio in ratios)
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
    without = str(candidate.settings.get(NO_WORKERS, ""))
    why = candidate.error or ("nothing was measured" if ratio is None else without)
    if ratio is None or why:
        lost: Verdict = "not-here" if why == without or why.startswith(OVER) else "failed"
        return Gain(technique=name, verdict=lost, why=why, measured=candidate)
    verdict, why = _verdict(ratio, noise)
    if differs := _loss_differs(reference, candidate, tolerance, losses):
        verdict, why = "loss-differs", differs
    memory = None
    if reference.peak_bytes and candidate.peak_bytes is not None:
        memory = candidate.peak_bytes / reference.peak_bytes
    return Gain(
        technique=name,
        verdict=verdict,
        why=why,
        ratio=ratio.mid,
        low=ratio.low,
        high=ratio.high,
        memory_ratio=memory,
        measured=candidate,
    )


def _verdict(ratio: Ratio, noise: float) -> tuple[Verdict, str]:
    if ratio.rounds < LEAST_ROUNDS:
        return "same", f"{ratio.rounds} rounds are too few to measure a difference"
    between = f"between {_percent(ratio.low)} and {_percent(ratio.high)}"
    seen = f"{between} over {ratio.rounds} rounds, noise {_percent(noise)}"
    root = math.sqrt(noise)
    if ratio.low > root and ratio.mid > noise:
        return "faster", seen
    if 1 / ratio.high > root and 1 / ratio.mid > noise:
        return "slower", seen
    return "same", f"no difference: {seen}"


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

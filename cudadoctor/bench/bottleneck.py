"""Where the time of a step goes, from figures: waiting for data, the host, bandwidth or arithmetic.

Pure. The larger part decides, and where the figures do not add up it is not known.
"""

from __future__ import annotations

import msgspec

from cudadoctor.bench.results import Bottleneck, Kind

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


def judge(figures: Figures) -> Bottleneck:
    """What the step mostly does."""
    step_s = figures.step_s
    waits = min(1.0, figures.wait_s / step_s)
    told = {"loader_share": waits}
    idle = 0.0
    if figures.device_s is not None:
        idle = max(0.0, step_s - figures.wait_s - figures.device_s) / step_s
        busy = min(1.0, figures.device_s / step_s)
        told |= {"host_share": idle, "device_share": busy, "device_s": figures.device_s}
    told |= _achieved(figures)
    if waits >= WAITS and waits >= idle:
        return _found("data loading", f"{waits:.0%} of a step is waiting for its batch", told)
    if idle >= WAITS:
        why = (
            f"the GPU has nothing to do in {idle:.0%} of a step: what holds it up is the host, or"
            " copies that are waited for"
        )
        return _found("host overhead", why, told)
    return _busy(figures, told)


def _found(kind: Kind, why: str, figures: dict[str, float]) -> Bottleneck:
    return Bottleneck(kind=kind, why=why, figures=figures)


def _busy_s(figures: Figures) -> float:
    if figures.device_s is not None:
        return figures.device_s
    return max(1e-9, figures.step_s - figures.wait_s)


def _achieved(figures: Figures) -> dict[str, float]:
    """Rates over the busy time."""
    busy_s = _busy_s(figures)
    flops = sum(flops * times for flops, _, times in figures.operations)
    moved = sum(size * times for _, size, times in figures.operations)
    if not flops:
        return {}
    return {"tflops": flops / busy_s / 1e12, "gb_s": moved / busy_s / 1e9}


def _busy(figures: Figures, told: dict[str, float]) -> Bottleneck:
    """Of each operation, what would take longer at full speed: its arithmetic or its traffic."""
    peaks = figures.peaks
    if peaks is None or not told.get("tflops"):
        return _found("not known", "what this device can at most is not known", told)
    arithmetic = traffic = 0.0
    for flops, size, times in figures.operations:
        computing, moving = flops / peaks.flops, size / peaks.bytes_s
        if computing >= moving:
            arithmetic += times * computing
        else:
            traffic += times * moving
    busy_s = _busy_s(figures)
    told |= {"compute_share": arithmetic / busy_s, "bandwidth_share": traffic / busy_s}
    told |= {"peak_tflops": peaks.flops / 1e12, "peak_gb_s": peaks.bytes_s / 1e9}
    explained = (arithmetic + traffic) / busy_s
    if explained < EXPLAINED:
        why = f"arithmetic and traffic at full speed would take {explained:.0%} of it"
        if figures.device_s is None:
            why += "; on a CPU the rest cannot be told apart"
        return _found("not known", why, told)
    kind: Kind = "compute" if arithmetic >= traffic else "memory bandwidth"
    share = max(arithmetic, traffic) / (arithmetic + traffic)
    what = "arithmetic" if kind == "compute" else "moving data"
    why = f"{what} would take {share:.0%} of the time at full speed ({peaks.source})"
    return _found(kind, why, told)

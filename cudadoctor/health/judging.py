"""From what was measured to what is wrong: equals first, then the data sheet. Pure.

Equal GPUs in one machine are the best yardstick: same driver, same torch, same moment. The data
sheet is asked at the clock that NVML named in the very window, so that a GPU that is kept slow is
told from one that is slow. Slow without a reason is slow, never broken.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from msgspec.structs import replace

from cudadoctor.health.measured import (
    COPIES,
    DTYPES,
    Anomaly,
    Board,
    Measurements,
    Severity,
    Speed,
    Verdict,
)
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import OptInt, Xid

OF_EQUALS = {"gemm": 0.95, "copy": 0.95, "h2d": 0.9, "d2h": 0.9, "p2p": 0.9}
"""Below this share of the median of its equals a GPU is a straggler. Links share switches and
processors, so they differ more between sound GPUs than what a GPU does alone.
"""
OF_THE_SHEET = 0.6
"""Libraries reach 0.65 to 0.95 of the data sheet at the measured clock, by product and GPU."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of a PCIe lane by its generation, in one direction, before protocol."""
HOT, POWER_BRAKE, SLOWDOWN, POWER_CAP, SET_CLOCKS = 0x60, 0x80, 0x8, 0x4, 0x2
FEW = 10
"""New events of a link or corrected errors that half a minute may bring on a sound machine."""

SENTENCES: dict[str, tuple[Severity, str]] = {
    "wrong-results": (
        "error",
        "GPU {gpu} computes wrong results: the same product gave different results ({dtypes})",
    ),
    "different-results": (
        "error",
        "GPU {gpu} computes wrong results: its products differ from those of its equals ({dtypes})",
    ),
    "results-disagree": (
        "error",
        "equal GPUs disagree on the same product ({dtypes}); one of them computes wrong results",
    ),
    "damaged-data": ("error", "GPU {gpu}: {what} delivered damaged data"),
    "damaged-data-between": ("error", "GPU {gpu}: copies to GPU {peer} delivered damaged data"),
    "lost": ("error", "GPU {gpu} failed during {what}: {why}"),
    "not-finished": ("error", "the test did not finish; it stopped at {what}: {why}"),
    "xid": ("error", "the driver logged Xid {code} for GPU {gpu} during the test"),
    "ecc-uncorrected": ("error", "GPU {gpu} had {count} uncorrected memory errors in the test"),
    "remap-failed": ("error", "GPU {gpu} could not remap a bad row of its memory: replace the GPU"),
    "remap-pending": (
        "warning",
        "GPU {gpu} remaps a bad row of its memory at the next reset: reset it soon",
    ),
    "not-measured": ("warning", "{what} could not be measured: {why}"),
    "new-events": ("warning", "GPU {gpu}: {count} new {what} during the test"),
    "straggler": (
        "warning",
        "GPU {gpu} is slower than its equals (measured/median: {figures}); {reason}",
    ),
    "slow": (
        "warning",
        "GPU {gpu} is slow for its data sheet and clock (measured/most: {figures}); {reason}",
    ),
    "slow-link": (
        "warning",
        "GPU {gpu} copies slowly for its PCIe link (measured/most: {figures}); {reason}",
    ),
    "narrow-link": (
        "warning",
        "the PCIe link of GPU {gpu} runs at {now} under load, but {most} is possible",
    ),
}
"""Kind -> how bad it is, and its sentence."""

NOT_KNOWN = "reason not known"
REASONS = {
    "hot": "the GPU is overheating ({celsius} °C)",
    "brake": "the power supply limits the GPU (power brake)",
    "slowdown": "the hardware slows the GPU down",
    "limit": "its power limit is {watts} W, that of its equals {usual} W",
    "set": "somebody set its clocks lower",
    "cap": "it reaches its power limit at {clock} MHz, its equals run at {usual} MHz",
    "clock": "its clock is {clock} MHz, that of its equals {usual} MHz",
    "link": "its PCIe link is {now}, that of its equals {usual}",
}
EVENTS = {
    "pcie-replays": "PCIe replays",
    "nvlink-replays": "NVLink replays",
    "nvlink-recoveries": "NVLink recoveries",
    "nvlink-crc": "NVLink CRC errors",
    "ecc-corrected": "corrected memory errors",
    "rows-corrected": "remapped rows",
    "rows-uncorrected": "remapped rows",
}
"""Counters that should hardly grow; remapped rows never."""


def judge(
    measured: Measurements, knowledge: Knowledge, *, xids: Iterable[tuple[int, int]] = ()
) -> tuple[Anomaly, ...]:
    """What is wrong, the gravest first. xids: (GPU, code) that came during the test."""
    found = [
        *_lost(measured),
        *_results(measured),
        *_damages(measured),
        *(_anomaly("xid", gpu, code=code) for gpu, code in xids),
        *_counters(measured),
        *chain.from_iterable(_speeds(measured, board, knowledge) for board in measured.boards),
    ]
    named = {board.index: f"{board.index} ({board.bus_id})" for board in measured.boards}
    placed = [_placed(anomaly, named) for anomaly in found]
    return tuple(sorted(placed, key=lambda anomaly: anomaly.severity))


def _placed(anomaly: Anomaly, named: Mapping[int, str]) -> Anomaly:
    """With the address of its GPU: torch's numbers are not those of nvidia-smi."""
    name = named.get(-1 if anomaly.gpu is None else anomaly.gpu, "()")
    if name.endswith("()"):
        return anomaly
    return replace(anomaly, text=anomaly.text.replace(f"GPU {anomaly.gpu}", f"GPU {name}", 1))


def verdict_of(measured: Measurements, anomalies: Iterable[Anomaly]) -> Verdict:
    """Healthy needs figures: what was not measured is not known. A CPU proves nothing of a GPU."""
    severities = {anomaly.severity for anomaly in anomalies}
    if "error" in severities:
        return "broken"
    proven = {speed.gpu for speed in measured.speeds if speed.what == "gemm"}
    if not measured.boards or any(board.index not in proven for board in measured.boards):
        return "undecided"
    if "warning" in severities:
        return "warnings"
    return "undecided" if measured.pretended else "healthy"


def unjudged(measured: Measurements, knowledge: Knowledge) -> tuple[int, ...]:
    """GPUs whose products nothing could be compared with: no equals, and no data sheet or clock."""
    return tuple(
        board.index
        for board in measured.boards
        if not any(
            _others(measured, board, speed) or sheet_of(board, speed, knowledge)
            for speed in measured.speeds
            if speed.what == "gemm" and speed.gpu == board.index
        )
    )


def new_xids(
    before: Iterable[Xid] | None, after: Iterable[Xid] | None, boards: Iterable[Board]
) -> tuple[tuple[int, int], ...]:
    """GPU and code of every Xid that was logged meanwhile; () where the log cannot be read."""
    if before is None or after is None:
        return ()
    known = {(xid.code, xid.bus_id): xid.count for xid in before}
    by_bus = {_slot(board.bus_id): board.index for board in boards if board.bus_id}
    return tuple(
        (by_bus[_slot(xid.bus_id)], xid.code)
        for xid in after
        if xid.count > known.get((xid.code, xid.bus_id), 0) and _slot(xid.bus_id) in by_bus
    )


def _slot(bus_id: str) -> str:
    """0000:41:00 of an address as NVML, CUDA or the kernel log write it."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def _anomaly(
    kind: str,
    gpu: OptInt,
    *,
    numbers: dict[str, float] | None = None,
    reason: str = "",
    **values: object,
) -> Anomaly:
    severity, template = SENTENCES[kind]
    text = template.format(gpu=gpu, reason=reason or NOT_KNOWN, **values)
    return Anomaly(
        kind=kind, severity=severity, gpu=gpu, text=text, reason=reason, figures=numbers or {}
    )


# --- what is wrong ------------------------------------------------------------------------------


def _lost(measured: Measurements) -> Iterator[Anomaly]:
    for trouble in measured.troubles:
        if not trouble.lost:
            yield _anomaly("not-measured", None, what=trouble.what, why=trouble.why)
        # Of several GPUs that worked together nobody knows which one stopped.
        elif len(trouble.gpus) == 1:
            yield _anomaly("lost", trouble.gpus[0], what=trouble.what, why=trouble.why)
        else:
            yield _anomaly("not-finished", None, what=trouble.what, why=trouble.why)


def _results(measured: Measurements) -> Iterator[Anomaly]:
    """Products of the same numbers whose bits differ: over time, or from those of the equals."""
    wrong: dict[tuple[str, OptInt], list[str]] = {}
    for group in equals(measured.boards):
        for dtype in DTYPES:
            for found in _differing(measured, group, dtype):
                wrong.setdefault(found, []).append(dtype)
    for (kind, gpu), dtypes in wrong.items():
        yield _anomaly(kind, gpu, dtypes=", ".join(dtypes))


def _differing(
    measured: Measurements, group: Mapping[int, Board], dtype: str
) -> Iterator[tuple[str, OptInt]]:
    counts: dict[int, Counter[str]] = {}
    for result in measured.results:
        if result.dtype == dtype and result.gpu in group:
            counts.setdefault(result.gpu, Counter()).update(result.counts)
    for gpu, found in counts.items():
        if len(found) > 1:
            yield "wrong-results", gpu
    usual = {gpu: found.most_common(1)[0][0] for gpu, found in counts.items()}
    votes = Counter(usual.values()).most_common()
    if len(votes) > 1 and 2 * votes[0][1] <= len(usual):
        yield "results-disagree", None
    elif votes:
        yield from (
            ("different-results", gpu) for gpu, sums in usual.items() if sums != votes[0][0]
        )


def _damages(measured: Measurements) -> Iterator[Anomaly]:
    for damage in dict.fromkeys(
        (damage.what, damage.gpu, damage.peer) for damage in measured.damages
    ):
        what, gpu, peer = damage
        if peer is None:
            yield _anomaly("damaged-data", gpu, what=what)
        else:
            yield _anomaly("damaged-data-between", gpu, peer=peer)


def _counters(measured: Measurements) -> Iterator[Anomaly]:
    for gpu, after in measured.after.items():
        before = measured.before.get(gpu, {})
        grown = {name: after[name] - before[name] for name in after if name in before}
        for kind in ("remap-failed", "remap-pending"):
            if after.get(kind):
                yield _anomaly(kind, gpu)
        if grown.get("ecc-uncorrected", 0) > 0:
            yield _anomaly("ecc-uncorrected", gpu, count=grown["ecc-uncorrected"])
        for name, what in EVENTS.items():
            if grown.get(name, 0) > (0 if name.startswith("rows") else FEW):
                yield _anomaly("new-events", gpu, count=grown[name], what=what)


# --- how fast -----------------------------------------------------------------------------------


def equals(boards: Iterable[Board]) -> list[dict[int, Board]]:
    """The GPUs by what they are: name and number of SMs."""
    groups: dict[tuple[str, int], dict[int, Board]] = {}
    for board in boards:
        groups.setdefault((board.name, board.sms), {})[board.index] = board
    return list(groups.values())


def _speeds(measured: Measurements, board: Board, knowledge: Knowledge) -> Iterator[Anomaly]:
    """One anomaly of a kind, with all figures that show it; a straggler's data sheet says no more.

    A GPU that the same reason keeps slow as its equals is below the sheet, not below them.
    """
    own = [speed for speed in measured.speeds if speed.gpu == board.index]
    behind, below, links = [], [], []
    for speed in own:
        usual = _usual(measured, board, speed)
        if usual and speed.value < OF_EQUALS[speed.what] * usual:
            behind.append((speed, usual))
        elif (most := sheet_of(board, speed, knowledge)) and speed.value < OF_THE_SHEET * most:
            below.append((speed, most))
        elif (most := link_of(speed)) and speed.value < OF_THE_SHEET * most:
            links.append((speed, most))
    for kind, slow in (("straggler", behind), ("slow", below), ("slow-link", links)):
        if slow:
            yield _slow(kind, measured, board, slow)
    yield from _narrow(board, own)


def _slow(
    kind: str, measured: Measurements, board: Board, slow: list[tuple[Speed, float]]
) -> Anomaly:
    told = ", ".join(
        f"{label_of(speed)} {speed.value:.3g}/{usual:.3g} {unit_of(speed)}"
        for speed, usual in slow[:3]
    )
    numbers = {label_of(speed): speed.value / usual for speed, usual in slow}
    reasons = filter(None, (_reason(measured, board, speed) for speed, _ in slow))
    return _anomaly(kind, board.index, numbers=numbers, reason=next(reasons, ""), figures=told)


def label_of(speed: Speed) -> str:
    """A figure as it is named: `bf16`, `h2d together`, `p2p to GPU 3`."""
    name = speed.dtype or speed.what
    if speed.peer is not None:
        name += f" to GPU {speed.peer}"
    return f"{name} together" if speed.together else name


def unit_of(speed: Speed) -> str:
    """What the value of a figure is in."""
    return "TFLOP/s" if speed.what == "gemm" else "GB/s"


def _others(measured: Measurements, board: Board, speed: Speed) -> list[Speed]:
    """The same figure of its equals."""
    (group,) = (group for group in equals(measured.boards) if board.index in group)
    return [
        other
        for other in measured.speeds
        if other.gpu in group
        and board.index not in (other.gpu, other.peer)
        and (other.what, other.dtype, other.together) == (speed.what, speed.dtype, speed.together)
        and (other.direct, other.nvls) == (speed.direct, speed.nvls)
    ]


def _usual(measured: Measurements, board: Board, speed: Speed) -> float | None:
    """The median of its equals; of copies between GPUs, of the pairs that it has no part in."""
    others = [other.value for other in _others(measured, board, speed)]
    if not others or speed.what not in OF_EQUALS:
        return None
    if speed.what == "p2p":
        # Between far and near GPUs copies differ for good: then no pair is slower than its equals.
        low, high = min(others), max(others)
        return statistics.median(others) if low > OF_EQUALS["p2p"] * high else None
    return statistics.median(others)


def sheet_of(board: Board, speed: Speed, knowledge: Knowledge) -> float | None:
    """The most that the data sheet promises, products at the clock that was measured.

    None where the tables or NVML are silent, and for a slice of a GPU.
    """
    known = knowledge.peaks(board.name) if " MIG " not in board.name else None
    if known is None:
        return None
    if speed.what == "copy":
        return known.bandwidth_gb_s
    clock, operations = speed.load.clock_mhz, known.per_clock.get(speed.dtype)
    if speed.what != "gemm" or not clock or not operations:
        return None
    return board.sms * operations * clock / 1e6


def link_of(speed: Speed) -> float | None:
    """GB/s of the PCIe link as it was under load, in one direction; None of copies together."""
    lane = LANE_GB_S.get(speed.load.generation or 0)
    if speed.what not in ("h2d", "d2h") or speed.together or not lane or not speed.load.width:
        return None
    return lane * speed.load.width


def _narrow(board: Board, own: Iterable[Speed]) -> Iterator[Anomaly]:
    """A link that stays below what it can be, though it works."""
    for speed in own:
        load, possible = speed.load, link_of(speed)
        if speed.what != "h2d" or possible is None or speed.value > possible:
            continue  # faster than the link that is named: a virtual machine, or no PCIe at all
        now, most = (load.generation, load.width), (board.generation_max, board.width_max)
        if any(here and there and here < there for here, there in zip(now, most, strict=True)):
            yield _anomaly("narrow-link", board.index, now=_link(*now), most=_link(*most))


def _link(generation: OptInt, width: OptInt) -> str:
    return f"PCIe {generation or '?'}.0 x{width or '?'}"


def _reason(measured: Measurements, board: Board, speed: Speed) -> str:
    """Why it is slow, as far as NVML tells; "" where it does not."""
    load, bits = speed.load, speed.load.throttle or 0
    equal = [other.load for other in _others(measured, board, speed)]
    (group,) = (group for group in equals(measured.boards) if board.index in group)
    limits = [other.power_limit_w for other in group.values() if other.index != board.index]
    usual_limit = _median(limits)
    clock = _median([other.clock_mhz for other in equal])
    if speed.what in ("h2d", "d2h"):
        links = Counter((other.generation, other.width) for other in equal).most_common(1)
        if links and links[0][0] != (load.generation, load.width):
            now, usual = _link(load.generation, load.width), _link(*links[0][0])
            return REASONS["link"].format(now=now, usual=usual)
        return ""
    if bits & HOT:
        return REASONS["hot"].format(celsius=load.temperature_c or "?")
    if bits & POWER_BRAKE:
        return REASONS["brake"]
    if usual_limit and board.power_limit_w and board.power_limit_w < 0.98 * usual_limit:
        return REASONS["limit"].format(
            watts=f"{board.power_limit_w:.0f}", usual=f"{usual_limit:.0f}"
        )
    if bits & SLOWDOWN:
        return REASONS["slowdown"]
    if bits & SET_CLOCKS:
        return REASONS["set"]
    if clock and load.clock_mhz and load.clock_mhz < 0.97 * clock:
        template = REASONS["cap" if bits & POWER_CAP else "clock"]
        return template.format(clock=load.clock_mhz, usual=f"{clock:.0f}")
    return ""


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


MEASURED = (*(("gemm", dtype) for dtype in DTYPES), *((what, "") for what in COPIES))
"""The figures of a GPU, in the order of a table."""

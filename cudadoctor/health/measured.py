"""What the child measured, as values, and their JSON (schema 1). Pure.

Products are in TFLOP/s, copies and all-reduces in GB/s (10**9 bytes a second).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from cudadoctor.model.machine import Json, OptFloat, OptInt, OptStr

DTYPES = ("fp32", "tf32", "fp16", "bf16")
COPIES = ("copy", "h2d", "d2h")
Severity = Literal["error", "warning"]
Verdict = Literal["healthy", "warnings", "broken", "undecided"]


class Load(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The median of what NVML said of a GPU while it worked. throttle: NVML's clock event bits."""

    clock_mhz: OptInt = None
    power_mw: OptInt = None
    temperature_c: OptInt = None
    throttle: OptInt = None
    generation: OptInt = None
    width: OptInt = None


class Speed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. what: gemm, copy, h2d, d2h, p2p or allreduce.

    gpu: by torch's index, -1 of all together. peer: the GPU that the copy goes to. size: bytes of
    an all-reduce. together: all GPUs copied at once. direct: the GPUs reach each other's memory.
    nvls: False where NCCL was told to do without NVLink SHARP. value: the best of two windows, the
    median of more. lowest: of them.
    """

    what: str
    value: float
    gpu: int = -1
    dtype: str = ""
    peer: OptInt = None
    size: OptInt = None
    together: bool = False
    direct: bool | None = None
    nvls: bool = True
    windows: int = 1
    lowest: OptFloat = None
    load: Load = Load()

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured; windows of the same are one figure."""
        return (self.what, self.gpu, self.dtype, self.peer, self.size, self.together, self.nvls)


class Board(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that was measured. *_max: of its PCIe link in this slot."""

    index: int
    name: str
    sms: int
    capability: str
    bus_id: str = ""
    uuid: OptStr = None
    generation_max: OptInt = None
    width_max: OptInt = None
    power_limit_w: OptFloat = None


class Result(Struct, frozen=True, kw_only=True):
    """Sums of the bits of one product, done again and again -> how often each came."""

    gpu: int
    dtype: str
    counts: dict[str, int]


class Damage(Struct, frozen=True, kw_only=True):
    """Data that arrived otherwise than it was sent. what: host copies, p2p or all-reduce."""

    what: str
    gpu: int
    peer: OptInt = None


class Trouble(Struct, frozen=True, kw_only=True):
    """What could not be measured, on which GPUs (() all). lost: they did not go on at all."""

    what: str
    gpus: tuple[int, ...]
    why: str
    lost: bool = False


class Anomaly(Struct, frozen=True, kw_only=True):
    """Something that is not as it should be. text: the English sentence of template and values.

    reason: why it is so, "" where that is not known or no question.
    """

    kind: str
    severity: Severity
    gpu: OptInt
    text: str
    reason: str = ""
    figures: dict[str, float] = {}


class Measurements(Struct, frozen=True, kw_only=True):
    """All that was measured. pretended: by a CPU that played the GPUs, for tests."""

    torch: str = ""
    cuda: str = ""
    error: str = ""
    pretended: bool = False
    count: int = 0
    skipped: tuple[tuple[int, str], ...] = ()
    boards: tuple[Board, ...] = ()
    speeds: tuple[Speed, ...] = ()
    results: tuple[Result, ...] = ()
    damages: tuple[Damage, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    before: dict[int, dict[str, int]] = {}
    after: dict[int, dict[str, int]] = {}
    seconds: OptFloat = None

    def speed(self, gpu: int, what: str, dtype: str = "") -> Speed | None:
        """The figure of a GPU alone, None where it was not measured."""
        found = (each for each in self.speeds if (each.gpu, each.what) == (gpu, what))
        return next((each for each in found if each.dtype == dtype and not each.together), None)


_LISTED = {
    "gpu": "boards",
    "digest": "results",
    "torn": "damages",
    "lacking": "troubles",
    "lost": "troubles",
}
"""Kind of a line -> the list that it belongs to."""


def read(lines: Iterable[Json], *, pretended: bool = False, ended: str = "") -> Measurements:
    """What the lines of the child say. ended: why it gave no full answer; then what it did last is
    lost.
    """
    speeds: list[Speed] = []
    found: Json = {name: [] for name in _LISTED.values()}
    found |= {"pretended": pretended, "before": {}, "after": {}}
    doing: Json = {"what": "import torch", "gpus": ()}
    for line in lines:
        kind = line["kind"]
        if kind in _LISTED:
            found[_LISTED[kind]].append({**line, "lost": kind == "lost"})
        elif kind == "figure":
            speeds.append(convert(line, Speed))
        elif kind == "counters":
            found[line["when"]][line["gpu"]] = line["counts"]
        elif kind in ("chosen", "done", "torch"):
            found |= {name: value for name, value in line.items() if name in _SAID[kind]}
        elif kind == "doing":
            doing = line
        elif kind == "broken":
            ended = ended or line["error"]
    if ended and "seconds" not in found and not found.get("error"):
        found["troubles"].append({**doing, "why": ended, "lost": True})
    return replace(convert(found, Measurements), speeds=_together(speeds))


_SAID = {
    "chosen": ("torch", "cuda", "error", "skipped", "count"),
    "done": ("seconds",),
    "torch": ("error",),
}


def sound(line: Json | None) -> bool:
    """Whether a line is one that `read` understands; others were not said by the child."""
    if line is None:
        return False
    try:
        read([line])
    except (ValidationError, KeyError, TypeError, AttributeError):
        return False
    return True


def _together(speeds: Iterable[Speed]) -> tuple[Speed, ...]:
    """One figure of each, over all its windows."""
    by_key: dict[Any, list[Speed]] = {}
    for speed in speeds:
        by_key.setdefault(speed.key, []).append(speed)
    return tuple(map(_of_windows, by_key.values()))


def _of_windows(windows: list[Speed]) -> Speed:
    ordered = sorted(windows, key=lambda speed: speed.value)
    values = [speed.value for speed in ordered]
    # One window of two may have been disturbed; of many the usual one counts.
    best = ordered[-1] if len(ordered) < 3 else ordered[(len(ordered) - 1) // 2]
    value = best.value if len(ordered) < 3 else statistics.median(values)
    return replace(best, value=value, windows=len(ordered), lowest=values[0])

"""One GPU out of NVML's answers: impossible values are refused, refusals get their reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from packaging.version import Version

from cudadoctor.model.machine import Gpu, GpuProcess

UNSUPPORTED = (3, 13, 25)
"""Not supported, function not found, struct version not known: an older driver or another GPU."""
EVERY_GPU_HAS: dict[str, tuple[int, ...]] = {
    "name": (),
    "uuid": (),
    "pci": (),
    "capability": (),
    "memory": (3,),
}
"""Answers that no GPU lacks, with the refusals that are an answer all the same: a GPU that shares
the memory of the processor has none of its own."""
GONE = (15, 16)
"""Lost, and waiting for a reset: said of the GPU, not of the question."""

FAILING = (10, 14, 999)
"""Timeout, corrupted infoROM, unknown error: a sick GPU or a sick driver behind a good handle."""
VITAL = frozenset(
    {
        *("name", "uuid", "pci", "capability", "memory", "mig", "compute_mode", "ecc"),
        *("ecc_uncorrected", "remap", "retired_pending", "utilization", "temperature_c"),
    }
)
"""Questions that every sound GPU answers or does not support. Power, clocks and the like are not
among them: some laptops answer those with 999 for good."""

_MOST_MEMORY = 1 << 44
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host", 4: "host"}

Fields = dict[str, Any]


class _ImpossibleError(ValueError):
    """An answer that no GPU can give."""


def gpu_from(
    index: int, lines: Iterable[dict[str, object]]
) -> tuple[Gpu, tuple[tuple[str, str], ...]]:
    """The GPU, and (field, why) for each field that should be known and is not; "" for all."""
    fields: Fields = {}
    unsupported: list[str] = []
    gaps: list[tuple[str, str]] = []
    told = list(lines)
    for line in told:
        asked, code = str(line.get("field")), _code(line.get("code", 0))
        if asked == "handle":
            fields["code"] = code if code else None
            if code:
                words = f" ({line['words']})" if line.get("words") else ""
                gaps.append(("", f"nvmlDeviceGetHandleByIndex: {refusal(code)}{words}"))
        elif asked not in FIELDS:
            continue
        elif code in EVERY_GPU_HAS.get(asked, UNSUPPORTED):
            unsupported += FIELDS[asked][0]
        elif code:
            gaps += [(name, refusal(code)) for name in FIELDS[asked][0]]
        else:
            _take(fields, gaps, asked, line.get("value"))
            unsupported += fields.pop("unsupported", [])
    fields["code"] = fields.get("code") or _answered_with(GONE, told)
    fields["failed"] = _answered_with(
        FAILING, [line for line in told if line.get("field") in VITAL]
    )
    gpu = Gpu(index=index, unsupported=tuple(dict.fromkeys(unsupported)), **fields)
    return gpu, tuple((name, why) for name, why in gaps if name not in fields)


def _code(value: object) -> int:
    """NVML's code; -1, our own for an answer that cannot be read, for what is none."""
    return value if type(value) is int else -1


def refusal(code: object) -> str:
    return "NVML's answer could not be read" if code == -1 else f"NVML refused it with code {code}"


def _answered_with(codes: tuple[int, ...], told: list[dict[str, object]]) -> int | None:
    """The first of these codes that a question about the GPU was answered with."""
    return next((code for line in told if (code := _code(line.get("code", 0))) in codes), None)


def _take(fields: Fields, gaps: list[tuple[str, str]], asked: str, value: object) -> None:
    names, convert = FIELDS[asked]
    try:
        fields.update(convert(value))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        gaps += [(name, f"NVML answered {str(value)[:60]!r}, which cannot be") for name in names]


def _whole(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _ImpossibleError
    return value


def _number(name: str, least: int, most: int) -> tuple[list[str], Callable[[Any], Fields]]:
    return [name], lambda value: {name: _whole(value, least, most)}


def _watts(name: str) -> tuple[list[str], Callable[[Any], Fields]]:
    return [name], lambda value: {name: _whole(value, 0, 20_000_000) / 1000}


def _flag(name: str) -> tuple[list[str], Callable[[Any], Fields]]:
    return [name], lambda value: {name: _whole(value, 0, 1) == 1}


def _now_and_pending(now: str, later: str) -> tuple[list[str], Callable[[Any], Fields]]:
    return [now, later], lambda value: {
        now: _whole(value[0], 0, 1) == 1,
        later: _whole(value[1], 0, 1) == 1,
    }


def _words(name: str) -> tuple[list[str], Callable[[Any], Fields]]:
    def convert(value: Any) -> Fields:
        text = str(value).strip()
        if not text or not text.isprintable() or len(text) > 120:
            raise _ImpossibleError
        return {name: text}

    return [name], convert


def _pci(value: Any) -> Fields:
    bus = str(value["bus"]).strip()
    if not bus.isprintable() or bus.count(":") < 1:
        raise _ImpossibleError
    both = _whole(value["id"], 1, 0xFFFFFFFF)
    return {"bus_id": bus.lower(), "device_id": f"{both >> 16:04x}"}


def _capability(value: Any) -> Fields:
    major, minor = _whole(value[0], 1, 40), _whole(value[1], 0, 9)
    return {"capability": Version(f"{major}.{minor}")}


def _memory(value: Any) -> Fields:
    total = _whole(value["total"], 1 << 20, _MOST_MEMORY)
    fields: Fields = {
        "memory_bytes": total,
        "memory_used_bytes": _whole(value["used"], 0, total),
    }
    reserved = value.get("reserved")
    if reserved is None:  # an older driver, which counts it as used
        return fields | {"unsupported": ["memory_reserved_bytes"]}
    return fields | {"memory_reserved_bytes": _whole(reserved, 0, total)}


def _remap(value: Any) -> Fields:
    """Correctable, uncorrectable, pending, failure."""
    return {
        "remapped_rows": _whole(value[0], 0, 1 << 24) + _whole(value[1], 0, 1 << 24),
        "remap_pending": _whole(value[2], 0, 1) == 1,
        "remap_failed": _whole(value[3], 0, 1) == 1,
    }


def _fabric(value: Any) -> Fields:
    state = _whole(value, 0, 3)
    return {"fabric_state": state} if state else {"unsupported": ["fabric_state"]}


def _nvlinks(value: Any) -> Fields:
    """Links that are down beside others that work; without any (no bridge) none is missing."""
    states = [_whole(state, 0, 255) for state in value]
    return {"nvlink_down": states.count(0) if any(states) else 0}


def _processes(value: Any) -> Fields:
    return {"processes": tuple(_process(one) for one in value)}


def _process(one: Any) -> GpuProcess:
    name = str(one["name"] or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
    used = one.get("memory")
    return GpuProcess(
        pid=_whole(one["pid"], 1, 1 << 31),
        name=name if name.isprintable() and name else None,
        memory_bytes=None if used is None else _whole(used, 0, _MOST_MEMORY),
    )


def _mig_devices(value: Any) -> Fields:
    return {"mig_devices": tuple(str(uuid) for uuid in value)}


def _named(name: str, names: dict[int, str]) -> tuple[list[str], Callable[[Any], Fields]]:
    return [name], lambda value: {name: names[_whole(value, 0, 9)]}


FIELDS: dict[str, tuple[list[str], Callable[[Any], Fields]]] = {
    "name": _words("name"),
    "uuid": _words("uuid"),
    "pci": (["bus_id", "device_id"], _pci),
    "capability": (["capability"], _capability),
    "memory": (["memory_bytes", "memory_used_bytes", "memory_reserved_bytes"], _memory),
    "mig": _now_and_pending("mig", "mig_pending"),
    "mig_devices": (["mig_devices"], _mig_devices),
    "compute_mode": _named("compute_mode", _COMPUTE_MODES),
    "persistence": _flag("persistence"),
    "ecc": _now_and_pending("ecc", "ecc_pending"),
    "ecc_uncorrected": _number("ecc_uncorrected", 0, 1 << 48),
    "ecc_aggregate": _number("ecc_aggregate", 0, 1 << 48),
    "remap": (["remapped_rows", "remap_pending", "remap_failed"], _remap),
    "retired_pending": _flag("retired_pending"),
    "throttle": _number("throttle", 0, 1 << 32),
    "performance_state": _number("performance_state", 0, 15),
    "utilization": _number("utilization", 0, 100),
    "temperature_c": _number("temperature_c", 1, 150),
    "slowdown_c": _number("slowdown_c", 1, 200),
    "power_w": _watts("power_w"),
    "power_limit_w": _watts("power_limit_w"),
    "power_default_w": _watts("power_default_w"),
    "sm_clock_mhz": _number("sm_clock_mhz", 0, 10_000),
    "sm_clock_max_mhz": _number("sm_clock_max_mhz", 1, 10_000),
    "sm_clock_set_mhz": _number("sm_clock_set_mhz", 0, 10_000),
    "sm_clock_default_mhz": _number("sm_clock_default_mhz", 0, 10_000),
    "pcie_width": _number("pcie_width", 1, 32),
    "pcie_width_max": _number("pcie_width_max", 1, 32),
    "pcie_generation": _number("pcie_generation", 1, 10),
    "pcie_generation_max": _number("pcie_generation_max", 1, 10),
    "pcie_generation_gpu_max": _number("pcie_generation_gpu_max", 1, 10),
    "virtualization": _named("virtualization", _VIRTUALIZATION),
    "display": _flag("display"),
    "fabric_state": (["fabric_state"], _fabric),
    "nvlinks": (["nvlink_down"], _nvlinks),
    "processes": (["processes"], _processes),
}
"""What the child asks -> the fields it fills, and how."""

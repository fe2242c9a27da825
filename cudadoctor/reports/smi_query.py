"""nvidia-smi -q: pages of indented labels -> GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from cudadoctor.model.machine import Gpu

MIB = 1 << 20
LONGEST_LINE = 300
_GPU = re.compile(
    r"\s{0,8}GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$"
)
_FIELD = re.compile(
    r"(?P<indent>\s{0,40})(?P<label>[A-Za-z][\w ()./-]{0,60}?)\s{0,60}:\s(?P<value>.{0,200})$"
)
_HEAD = re.compile(r"(?P<indent>\s{0,40})(?P<label>[A-Za-z][\w ()./-]{0,60}?)\s*$")
_THROTTLE = {
    "idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
}
"""NVML's bits of the reasons for which the clocks are held down."""


def query_gpus(text: str) -> tuple[Gpu, ...] | None:
    """The GPUs of a whole -q or of a part of it; None where there is none of it."""
    pages: list[dict[str, str]] = []
    buses: list[str | None] = []
    heads: list[tuple[int, str]] = []
    for line in text.splitlines():
        if len(line) > LONGEST_LINE:
            continue
        gpu = _GPU.match(line)
        if gpu or (not pages and "Product Name" in line):
            pages.append({})
            buses.append(gpu[1].lower() if gpu else None)
            heads = []
            if gpu:
                continue
        if pages:
            _note(line, pages[-1], heads)
    found = [
        _gpu(index, bus, page)
        for index, (bus, page) in enumerate(zip(buses, pages, strict=True))
        if "product name" in page
    ]
    return tuple(found) or None


def _note(line: str, page: dict[str, str], heads: list[tuple[int, str]]) -> None:
    """A value under the path of the heads above it, by their indentation."""
    field = _FIELD.match(line)
    head = None if field else _HEAD.match(line)
    found = field or head
    if found is None:
        return
    indent = len(found["indent"].expandtabs(8))
    while heads and heads[-1][0] >= indent:
        heads.pop()
    label = found["label"].strip().lower()
    if field is None:
        heads.append((indent, label))
        return
    parent = heads[-1][1] if heads else ""
    value = field["value"].strip()
    page.setdefault(label, value)
    page.setdefault(f"{parent}/{label}", value)


def _gpu(index: int, bus: str | None, page: dict[str, str]) -> Gpu:
    fields: dict[str, Any] = {}
    for path, (name, convert) in _PATHS.items():
        value = page.get(path)
        converted = convert(value) if value else None
        if converted is not None:
            fields.setdefault(name, converted)
    reasons = [
        bit
        for label, bit in _THROTTLE.items()
        for head in ("clocks throttle reasons", "clocks event reasons")
        if page.get(f"{head}/{label}", "").lower() == "active"
    ]
    known = any(path.startswith(("clocks throttle", "clocks event")) for path in page)
    return Gpu(index=index, bus_id=bus, throttle=sum(set(reasons)) if known else None, **fields)


def _words(text: str) -> str | None:
    return None if text.lower() in ("n/a", "unknown error", "[n/a]", "err!") else text[:100]


def _number(text: str) -> int | None:
    found = re.match(r"(\d{1,9})(?!\d)", text)
    return int(found[1]) if found else None


def _float(text: str) -> float | None:
    found = re.match(r"(\d{1,6}(?:\.\d{1,3})?) ?W", text)
    return float(found[1]) if found else None


def _mebibytes(text: str) -> int | None:
    number = _number(text)
    return number * MIB if number is not None and "MiB" in text else None


def _switch(text: str) -> bool | None:
    known = {"enabled": True, "disabled": False, "yes": True, "no": False}
    return known.get(text.lower())


def _mode(text: str) -> str | None:
    low = text.lower()
    return "exclusive" if low.startswith("exclusive") else low if low in _MODES else None


_MODES = ("default", "prohibited")


def _fabric(text: str) -> int | None:
    return {"completed": 3, "in progress": 2, "not started": 1}.get(text.lower())


def _state(text: str) -> int | None:
    found = re.fullmatch(r"P(\d{1,2})", text)
    return int(found[1]) if found else None


def _width(text: str) -> int | None:
    found = re.fullmatch(r"(\d{1,2})x", text)
    return int(found[1]) if found else None


def _device(text: str) -> str | None:
    found = re.fullmatch(r"0x([0-9A-Fa-f]{4})10DE", text)
    return found[1].lower() if found else None


def _capability(text: str) -> Version | None:
    found = re.fullmatch(r"\d{1,2}\.\d", text)
    return Version(text) if found else None


_PATHS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "product name": ("name", _words),
    "gpu uuid": ("uuid", _words),
    "pci/device id": ("device_id", _device),
    "compute capability": ("capability", _capability),
    "/persistence mode": ("persistence", _switch),
    "persistence mode": ("persistence", _switch),
    "compute mode": ("compute_mode", _mode),
    "mig mode/current": ("mig", _switch),
    "mig mode/pending": ("mig_pending", _switch),
    "ecc mode/current": ("ecc", _switch),
    "ecc mode/pending": ("ecc_pending", _switch),
    "current ecc/current": ("ecc", _switch),
    "fb memory usage/total": ("memory_bytes", _mebibytes),
    "fb memory usage/used": ("memory_used_bytes", _mebibytes),
    "fb memory usage/reserved": ("memory_reserved_bytes", _mebibytes),
    "performance state": ("performance_state", _state),
    "utilization/gpu": ("utilization", _number),
    "temperature/gpu current temp": ("temperature_c", _number),
    "temperature/gpu slowdown temp": ("slowdown_c", _number),
    "power readings/power draw": ("power_w", _float),
    "gpu power readings/power draw": ("power_w", _float),
    "gpu power readings/instantaneous power draw": ("power_w", _float),
    "gpu power readings/average power draw": ("power_w", _float),
    "power readings/power limit": ("power_limit_w", _float),
    "gpu power readings/current power limit": ("power_limit_w", _float),
    "power readings/default power limit": ("power_default_w", _float),
    "gpu power readings/default power limit": ("power_default_w", _float),
    "clocks/sm": ("sm_clock_mhz", _number),
    "max clocks/sm": ("sm_clock_max_mhz", _number),
    "pcie generation/current": ("pcie_generation", _number),
    "pcie generation/max": ("pcie_generation_max", _number),
    "pcie generation/device max": ("pcie_generation_gpu_max", _number),
    "link width/current": ("pcie_width", _width),
    "link width/max": ("pcie_width_max", _width),
    "remapped rows/pending": ("remap_pending", _switch),
    "remapped rows/remapping failure occurred": ("remap_failed", _switch),
    "retired pages/pending page blacklist": ("retired_pending", _switch),
    "volatile/dram uncorrectable": ("ecc_uncorrected", _number),
    "aggregate/dram uncorrectable": ("ecc_aggregate", _number),
    "display active": ("display", _switch),
    "fabric/state": (
        "fabric_state",
        _fabric,
    ),
}

"""What libnvidia-ml answers: asked in a child, parsed here into facts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Gpu, GpuPair, GpuProcess, Nvml
from cudadoctor.model.versions import DriverVersion, cuda_from_int, driver_of
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.streamed import Patience, Progress, Streamed, asked, unheard

SOURCE = "NVML"
MOST_GPUS = 256
LEAST_S = 0.3
"""A child that has less time need not be started."""


def read_nvml(host: Host, patience: Patience, progress: Progress = unheard) -> Looked:
    """Ask NVML for everything it knows, in a child that is abandoned where it hangs.

    What the others are is asked again without a GPU that the child did not survive.
    """
    until = time.monotonic() + patience.nvml_s
    # Without the module the child still says whether the library loads, and which release it is.
    words = ["nvml.py", module_folder() or ""]
    said = [asked(host, *words, patience=patience, timeout_s=patience.nvml_s, progress=progress)]
    # The driver has started once: it gets no half minute for it again.
    sooner = msgspec.structs.replace(patience, start_s=patience.call_s)
    left_out: list[str] = []
    while said[-1].fatal_gpu and (left := until - time.monotonic()) > LEAST_S:
        if str(said[-1].gpu) in left_out:
            break  # a recording, or a child that does not do what it is asked
        left_out.append(str(said[-1].gpu))
        again = (*words, ",".join(left_out))
        said.append(asked(host, *again, patience=sooner, timeout_s=left, progress=progress))
    return nvml_facts(*said)


def module_folder() -> str | None:
    """The folder that holds pynvml; found, but not imported: that costs 20 ms and may load NVML."""
    from importlib.util import find_spec

    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    folder, name = os.path.split(spec.origin)
    return os.path.dirname(folder) if name == "__init__.py" else folder


def nvml_facts(first: Streamed, *again: Streamed) -> Looked:
    """The facts in what the child printed, whole or cut short.

    again: what later ones printed, each without the GPU that ended the one before.
    """
    notes = Notes()
    notes.fact("driver.nvml", _nvml(first), "libnvidia-ml")
    whole = (first, *again)
    system: dict[str, dict[str, Any]] = {}
    for line in (line for said in whole for line in said.of("system")):
        system.setdefault(str(line.get("name")), line)
    _note_driver(notes, system)
    gpus = _gpus(notes, whole, system.get("count", {}).get("value"))
    notes.fact("gpus", gpus, SOURCE)
    note_pairs(notes, first, gpus)
    stopped = {said.gpu: said.stopped("NVML") for said in whole if said.gpu is not None}
    for index, why in stopped.items():
        notes.gap(f"gpus.{index}", why)
    if first.unsure:
        notes.gap("driver.nvml.hung", first.stopped("NVML"))
    why = _why_not_more(whole[-1])
    if why:
        each = (f"gpus.{gpu.index}" for gpu in gpus or () if gpu.index not in stopped)
        for path in (*_TOLD_BY_NVML, "gpus", *each):
            notes.gap(path, why)
    return notes.looked()


def _nvml(said: Streamed) -> Nvml:
    loaded, unloaded = said.last("loaded"), said.last("not-loaded")
    decided = said.last("no-count") or said.last("init")
    system = {str(line.get("name")): line.get("value") for line in said.of("system")}
    code = decided.get("code")
    message = decided.get("message")
    return Nvml(
        loads=True if loaded else False if unloaded else None,
        why=str(unloaded.get("why")) if unloaded else None,
        path=said.text("loaded", "path"),
        code=code if type(code) is int and code >= 0 else None,
        call=said.call if said.signal else _text(decided.get("call")),
        message=str(message) if message else None,
        version=library_version(str(system.get("version") or "")),
        hung=said.call if said.hung else None,
        hung_gpu=said.gpu if said.hung else None,
        signal=said.signal,
        count=_count(system.get("count")),
    )


def _text(value: object) -> str | None:
    return str(value) if value else None


def library_version(text: str) -> DriverVersion | None:
    """13.580.95.05 is CUDA's major version and then the driver's."""
    found = re.fullmatch(r"(?:\d{1,2}\.)?(\d{3}\.\d+(?:\.\d+){0,2})", text.strip())
    return driver_of(found[1]) if found else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_GPUS else None


def _note_driver(notes: Notes, system: dict[str, dict[str, Any]]) -> None:
    """What it says of the driver as a whole, and why it does not where it should."""
    for name, (path, convert) in _OF_THE_DRIVER.items():
        line = system.get(name, {})
        code, value = line.get("code"), line.get("value")
        known = convert(value)
        if known is None and value is not None:
            notes.gap(path, f"NVML answered {value!r}"[:80] + ", which cannot be")
        elif code is not None and (code not in UNSUPPORTED or name in _ALWAYS_TOLD):
            notes.gap(path, refusal(code))
        elif not path.startswith("driver.nvml."):
            notes.fact(path, known, SOURCE)
    count = system.get("count", {}).get("value")
    if count is not None and _count(count) is None:
        notes.gap("gpus", f"NVML counts {count} GPUs, which cannot be")


def _reported(value: object) -> DriverVersion | None:
    try:
        return DriverVersion(value.strip()) if isinstance(value, str) else None
    except ValueError:
        return None


def _switch(value: object) -> bool | None:
    return value == 1 if type(value) is int and 0 <= value <= 1 else None


def _cuda(value: object) -> Version | None:
    return cuda_from_int(value) if isinstance(value, int) and 1000 <= value < 100_000 else None


_TOLD_BY_NVML = (
    *("driver.nvml.code", "driver.nvml.version", "driver.nvml.count", "driver.reported"),
    *("driver.cuda", "driver.excluded", "driver.confidential"),
)
_ALWAYS_TOLD = ("version", "driver", "cuda")
_OF_THE_DRIVER: dict[str, tuple[str, Callable[[object], object]]] = {
    "version": ("driver.nvml.version", lambda value: library_version(str(value or ""))),
    "count": ("driver.nvml.count", _count),
    "driver": ("driver.reported", _reported),
    "cuda": ("driver.cuda", _cuda),
    "excluded": ("driver.excluded", _count),
    "confidential": ("driver.confidential", _switch),
    "confidential_ready": ("driver.confidential_ready", _switch),
}
"""What the child asks of the driver as a whole -> the fact, and the value if it can be."""


def _gpus(notes: Notes, whole: tuple[Streamed, ...], count: object) -> tuple[Gpu, ...] | None:
    """All GPUs that NVML counts, also those that nobody came to ask about."""
    counted = _count(count)
    if counted is None:
        return None
    answers: dict[int, list[dict[str, Any]]] = {index: [] for index in range(counted)}
    for line in (line for said in whole for line in said.of("gpu")):
        index = line.get("index")
        if type(index) is int and index in answers:
            answers[index].append(line)
    gpus = []
    for index, lines in answers.items():
        gpu, gaps = gpu_from(index, lines)
        gpus.append(gpu)
        for field, why in gaps:
            notes.gap(f"gpus.{index}.{field}" if field else f"gpus.{index}", why)
    return tuple(gpus)


def _why_not_more(said: Streamed) -> str:
    """What kept NVML from telling everything; "" where nothing did."""
    unloaded, broken = said.last("not-loaded"), said.last("no-module")
    if unloaded:
        return f"NVML cannot be loaded: {unloaded.get('why')}"
    if broken:
        return f"pynvml cannot be imported: {broken.get('why')}"
    return _refused(said) if said.done else said.stopped("NVML")


def _refused(said: Streamed) -> str:
    line = said.last("no-count") or said.last("init")
    if not line.get("code"):
        return ""
    return f"{line.get('call')} failed with {line['code']} ({line.get('message')})"


# --- one GPU out of NVML's answers: impossible values are refused, refusals get their rea----

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


# --- what lies between every two GPUs, out of NVML's answers ------------------------------------

P2P = ("ok", "chipset", "gpu", "topology", "disabled", "unsupported", "unknown")
_FACTS = {"read": "p2p", "write": "p2p", "nvlink": "nvlink", "level": "level"}
LEVELS: dict[int, Any] = {
    0: "internal",
    10: "switch",
    20: "switches",
    30: "bridge",
    40: "node",
    50: "system",
}


def note_pairs(notes: Notes, said: Streamed, gpus: tuple[Gpu, ...] | None) -> None:
    """The pairs, where all were asked; one GPU or none has none."""
    live = [gpu for gpu in gpus or () if gpu.code is None]
    skipped = said.last("no-pairs")
    if gpus is not None and len(live) < 2:
        notes.fact("driver.pairs", (), SOURCE)
    elif skipped:
        notes.gap("driver.pairs", f"between {skipped.get('count')} GPUs it is not asked")
    elif not said.last("all-pairs"):
        notes.gap("driver.pairs", "NVML was not asked to its end") if live else None
    else:
        pairs = [(pair, line) for line in said.of("pair") if (pair := pair_from(line)) is not None]
        notes.fact("driver.pairs", tuple(pair for pair, _ in pairs), SOURCE)
        for place, (_, line) in enumerate(pairs):
            for name, code in dict(line.get("refused") or {}).items():
                if code not in UNSUPPORTED and name in _FACTS:
                    notes.gap(f"driver.pairs.{place}.{_FACTS[name]}", refusal(code))


def pair_from(line: dict[str, Any]) -> GpuPair | None:
    """One pair; what NVML refused, or answered with an impossible number, is not known."""
    first, second = line.get("first"), line.get("second")
    if type(first) is not int or type(second) is not int or not 0 <= first < second < MOST_GPUS:
        return None
    level, nvlink = line.get("level"), line.get("nvlink")
    return GpuPair(
        first=first,
        second=second,
        p2p=_p2p(line.get("read"), line.get("write")),
        nvlink=nvlink == 0 if isinstance(nvlink, int) and 0 <= nvlink < len(P2P) else None,
        level=LEVELS.get(level) if isinstance(level, int) else None,
    )


def _p2p(read: object, write: object) -> Any:
    """Reading decides; where it works and writing does not, writing."""
    states = [one for one in (read, write) if isinstance(one, int)]
    if not states or any(not 0 <= one < len(P2P) for one in states):
        return None
    return P2P[max(states) if states[0] == 0 else states[0]]

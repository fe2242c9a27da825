"""What libnvidia-ml answers: asked in a child, parsed here into facts."""

import os
from collections.abc import Callable, Iterable
from os.path import dirname
from time import monotonic
from typing import Any

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.machine import (
    Gpu,
    GpuPair,
    GpuProcess,
    Json,
    Nvml,
    OptBool,
    OptDriverVersion,
    OptStr,
    Strings,
    StrPair,
)
from cudadoctor.model.versions import driver_of
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.libcuda import MOST_GPUS, possible_count, possible_cuda
from cudadoctor.probes.streamed import Patience, Progress, Streamed, asked, no_progress

SOURCE = "NVML"
LEAST_S = 0.3
"""A child that has less time need not be started."""


def read_nvml(host: Host, patience: Patience, progress: Progress = no_progress) -> Looked:
    """Ask NVML for everything it knows, in a child that is abandoned where it hangs.

    What the others are is asked again without a GPU that the child did not survive.
    """
    until = monotonic() + patience.nvml_s
    # Without the module the child still says whether the library loads, and which release it is.
    words = ["nvml.py", module_folder() or ""]
    answers = [asked(host, *words, patience=patience, timeout_s=patience.nvml_s, progress=progress)]
    # The driver has started once: it gets no half minute for it again.
    sooner = replace(patience, start_s=patience.call_s)
    left_out = []
    while answers[-1].fatal_gpu and (left := until - monotonic()) > LEAST_S:
        if str(answers[-1].gpu) in left_out:
            break  # a recording, or a child that does not do what it is asked
        left_out.append(str(answers[-1].gpu))
        again = (*words, ",".join(left_out))
        answers.append(asked(host, *again, patience=sooner, timeout_s=left, progress=progress))
    return nvml_facts(*answers)


def module_folder() -> OptStr:
    """The folder that holds pynvml; found, but not imported: that costs 20 ms and may load NVML."""
    from importlib.util import find_spec

    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    folder, name = os.path.split(spec.origin)
    return dirname(folder) if name == "__init__.py" else folder


def nvml_facts(first: Streamed, *again: Streamed) -> Looked:
    """The facts in what the child printed, whole or cut short.

    again: what later ones printed, each without the GPU that ended the one before.
    """
    notes = Looked()
    notes.fact("driver.nvml", _nvml(first), "libnvidia-ml")
    whole = (first, *again)
    lines = [line for answer in whole for line in answer.of("system")]
    system = {str(line.get("name")): line for line in reversed(lines)}
    _note_driver(notes, system)
    gpus = _gpus(notes, whole, system.get("count", {}).get("value"))
    notes.fact("gpus", gpus, SOURCE)
    note_pairs(notes, first, gpus)
    stopped = {answer.gpu: answer.stopped("NVML") for answer in whole if answer.gpu is not None}
    for index, why in stopped.items():
        notes.gap(f"gpus.{index}", why)
    if first.unsure:
        notes.gap("driver.nvml.hung", first.stopped("NVML"))
    if why := _why_not_more(whole[-1]):
        each = (f"gpus.{gpu.index}" for gpu in gpus or () if gpu.index not in stopped)
        for path in (*_NVML_FACTS, "gpus", *each):
            notes.gap(path, why)
    return notes


def _nvml(answer: Streamed) -> Nvml:
    decided = answer.last("no-count") or answer.last("init")
    system = {str(line.get("name")): line.get("value") for line in answer.of("system")}
    code, call, message = (decided.get(name) for name in ("code", "call", "message"))
    return Nvml(
        loads=answer.loads,
        why=answer.unloaded,
        path=answer.text("loaded", "path"),
        code=code if type(code) is int and code >= 0 else None,
        call=answer.call if answer.signal else str(call) if call else None,
        message=str(message) if message else None,
        version=library_version(str(system.get("version") or "")),
        hung=answer.call if answer.hung else None,
        hung_gpu=answer.gpu if answer.hung else None,
        signal=answer.signal,
        count=possible_count(system.get("count")),
    )


def library_version(text: str) -> OptDriverVersion:
    """13.580.95.05 is CUDA's major version and then the driver's."""
    return driver_of(extract(r"^(?:\d{1,2}\.)?(\d{3}\.\d+(?:\.\d+){0,2})\Z", text.strip()) or "")


def _note_driver(notes: Looked, system: dict[str, Json]) -> None:
    """What it says of the driver as a whole, and why it does not where it should."""
    for name, (path, convert) in _OF_THE_DRIVER.items():
        line = system.get(name, {})
        code, value = line.get("code"), line.get("value")
        known = convert(value)
        if known is None and value is not None:
            notes.gap(path, f"NVML answered {value!r}"[:80] + ", which cannot be right")
        elif code is not None and (code not in UNSUPPORTED or name in _ALWAYS_SUPPORTED):
            notes.gap(path, refusal(code))
        elif not path.startswith("driver.nvml."):
            notes.fact(path, known, SOURCE)
    count = system.get("count", {}).get("value")
    if count is not None and possible_count(count) is None:
        notes.gap("gpus", f"NVML reports {count} GPUs, which cannot be right")


def _reported(value: object) -> OptDriverVersion:
    return driver_of(value.strip()) if isinstance(value, str) else None


def _switch(value: object) -> OptBool:
    return value == 1 if type(value) is int and 0 <= value <= 1 else None


_NVML_FACTS = (
    *("driver.nvml.code", "driver.nvml.version", "driver.nvml.count", "driver.reported"),
    *("driver.cuda", "driver.excluded", "driver.confidential"),
)
_ALWAYS_SUPPORTED = ("version", "driver", "cuda")
_OF_THE_DRIVER: dict[str, tuple[str, Callable[[object], object]]] = {
    "version": ("driver.nvml.version", lambda value: library_version(str(value or ""))),
    "count": ("driver.nvml.count", possible_count),
    "driver": ("driver.reported", _reported),
    "cuda": ("driver.cuda", possible_cuda),
    "excluded": ("driver.excluded", possible_count),
    "confidential": ("driver.confidential", _switch),
    "confidential_ready": ("driver.confidential_ready", _switch),
}
"""What the child asks of the driver as a whole -> the fact, and the value if it can be."""


def _gpus(notes: Looked, whole: tuple[Streamed, ...], count: object) -> tuple[Gpu, ...] | None:
    """All GPUs that NVML counts, also those that nobody came to ask about."""
    counted = possible_count(count)
    if counted is None:
        return None
    answers: dict[object, list[Json]] = {index: [] for index in range(counted)}
    for line in (line for answer in whole for line in answer.of("gpu")):
        if type(index := line.get("index")) is int:
            answers.get(index, []).append(line)
    gpus = []
    for index, lines in enumerate(answers.values()):
        gpu, gaps = gpu_from(index, lines)
        gpus.append(gpu)
        for field, why in gaps:
            notes.gap(f"gpus.{index}.{field}".rstrip("."), why)
    return tuple(gpus)


def _why_not_more(answer: Streamed) -> str:
    """What kept NVML from telling everything; "" where nothing did."""
    if unloaded := answer.unloaded:
        return f"NVML cannot be loaded: {unloaded}"
    if broken := answer.last("no-module"):
        return f"pynvml cannot be imported: {broken.get('why')}"
    if not answer.done:
        return answer.stopped("NVML")
    line = answer.last("no-count") or answer.last("init")
    if not line.get("code"):
        return ""
    return f"{line.get('call')} failed with {line['code']} ({line.get('message')})"


# --- one GPU out of NVML's answers: impossible values are refused, refusals get their reason ----

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

Convert = Callable[[Any], tuple[Any, ...]]


class _ImpossibleError(ValueError):
    """An answer that no GPU can give."""


def gpu_from(index: int, lines: Iterable[dict[str, object]]) -> tuple[Gpu, tuple[StrPair, ...]]:
    """The GPU, and (field, why) for each field that should be known and is not; "" for all."""
    fields: Json = {"code": None}
    unsupported: list[str] = []
    gaps: list[StrPair] = []
    answers = [(str(line.get("field")), _code(line.get("code", 0)), line) for line in lines]
    for field, code, line in answers:
        names, convert = FIELDS.get(field, ((), tuple))
        if field == "handle":
            fields["code"] = code or None
            if code:
                words = f" ({line['words']})" if line.get("words") else ""
                gaps.append(("", f"nvmlDeviceGetHandleByIndex: {refusal(code)}{words}"))
        elif code in EVERY_GPU_HAS.get(field, UNSUPPORTED):
            unsupported += names
        elif code:
            gaps += [(name, refusal(code)) for name in names]
        elif names:
            value = line.get("value")
            try:
                found = dict(zip(names, convert(value), strict=True))
            except (TypeError, ValueError, KeyError, AttributeError, IndexError):
                why = f"NVML returned {str(value)[:60]!r}, which cannot be right"
                gaps += [(name, why) for name in names]
                continue
            unsupported += [name for name, known in found.items() if known is None]
            fields |= {name: known for name, known in found.items() if known is not None}
    gone = (code for _, code, _ in answers if code in GONE)
    failed = (code for field, code, _ in answers if code in FAILING and field in VITAL)
    fields["code"] = fields["code"] or next(gone, None)
    gpu = Gpu(
        index=index,
        unsupported=tuple(dict.fromkeys(unsupported)),
        failed=next(failed, None),
        **fields,
    )
    return gpu, tuple((name, why) for name, why in gaps if name not in fields)


def _code(value: object) -> int:
    """NVML's code; -1, our own for an answer that cannot be read, for what is none."""
    return value if type(value) is int else -1


def refusal(code: object) -> str:
    return "NVML's response could not be read" if code == -1 else f"NVML error {code}"


def _whole(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _ImpossibleError
    return value


def _number(least: int, most: int) -> Convert:
    return lambda value: (_whole(value, least, most),)


def _watts(value: Any) -> tuple[Any, ...]:
    return (_whole(value, 0, 20_000_000) / 1000,)


def _is_on(value: Any) -> bool:
    return _whole(value, 0, 1) == 1


def _words(value: Any) -> tuple[Any, ...]:
    text = str(value).strip()
    if not text or not text.isprintable() or len(text) > 120:
        raise _ImpossibleError
    return (text,)


def _pci(value: Any) -> tuple[Any, ...]:
    bus = str(value["bus"]).strip()
    if not bus.isprintable() or ":" not in bus:
        raise _ImpossibleError
    return bus.lower(), f"{_whole(value['id'], 1, 0xFFFFFFFF) >> 16:04x}"


def _capability(value: Any) -> tuple[Any, ...]:
    return (Version(f"{_whole(value[0], 1, 40)}.{_whole(value[1], 0, 9)}"),)


def _memory(value: Any) -> tuple[Any, ...]:
    """An older driver counts the reserved memory as used."""
    total = _whole(value["total"], 1 << 20, _MOST_MEMORY)
    reserved = value.get("reserved")
    known = None if reserved is None else _whole(reserved, 0, total)
    return total, _whole(value["used"], 0, total), known


def _remap(value: Any) -> tuple[Any, ...]:
    """Correctable, uncorrectable, pending, failure."""
    rows = _whole(value[0], 0, 1 << 24) + _whole(value[1], 0, 1 << 24)
    return rows, _is_on(value[2]), _is_on(value[3])


def _nvlinks(value: Any) -> tuple[Any, ...]:
    """Links that are down beside others that work; without any (no bridge) none is missing."""
    states = [_whole(state, 0, 255) for state in value]
    return (states.count(0) if any(states) else 0,)


def _process(process: Any) -> GpuProcess:
    name = str(process["name"] or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
    used = process.get("memory")
    return GpuProcess(
        pid=_whole(process["pid"], 1, 1 << 31),
        name=name if name.isprintable() and name else None,
        memory_bytes=None if used is None else _whole(used, 0, _MOST_MEMORY),
    )


def _flag(value: Any) -> tuple[Any, ...]:
    return (_is_on(value),)


def _now_and_pending(value: Any) -> tuple[Any, ...]:
    return _is_on(value[0]), _is_on(value[1])


FIELDS: dict[str, tuple[Strings, Convert]] = {
    "pci": (("bus_id", "device_id"), _pci),
    "capability": (("capability",), _capability),
    "memory": (("memory_bytes", "memory_used_bytes", "memory_reserved_bytes"), _memory),
    "mig": (("mig", "mig_pending"), _now_and_pending),
    "mig_devices": (("mig_devices",), lambda value: (tuple(map(str, value)),)),
    "compute_mode": (("compute_mode",), lambda value: (_COMPUTE_MODES[_whole(value, 0, 9)],)),
    "ecc": (("ecc", "ecc_pending"), _now_and_pending),
    "remap": (("remapped_rows", "remap_pending", "remap_failed"), _remap),
    "virtualization": (("virtualization",), lambda value: (_VIRTUALIZATION[_whole(value, 0, 9)],)),
    "fabric_state": (("fabric_state",), lambda value: (_whole(value, 0, 3) or None,)),
    "nvlinks": (("nvlink_down",), _nvlinks),
    "processes": (("processes",), lambda value: (tuple(map(_process, value)),)),
}
"""What the child asks -> the fields it fills, and their values; None is "not supported"."""

_NUMBERS = """
ecc_uncorrected         0 281474976710656
ecc_aggregate           0 281474976710656
throttle                0 4294967296
performance_state       0 15
utilization             0 100
temperature_c           1 150
slowdown_c              1 200
sm_clock_mhz            0 10000
sm_clock_max_mhz        1 10000
sm_clock_set_mhz        0 10000
sm_clock_default_mhz    0 10000
pcie_width              1 32
pcie_width_max          1 32
pcie_generation         1 10
pcie_generation_max     1 10
pcie_generation_gpu_max 1 10
"""
"""Fields that are a whole number: the least and the most that it can be."""
for _name, _least, _most in map(str.split, _NUMBERS.strip().splitlines()):
    FIELDS[_name] = (_name,), _number(int(_least), int(_most))
for _convert, _names in (
    (_words, "name uuid"),
    (_flag, "persistence retired_pending display"),
    (_watts, "power_w power_limit_w power_default_w"),
):
    FIELDS |= {_name: ((_name,), _convert) for _name in _names.split()}


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


def note_pairs(notes: Looked, answer: Streamed, gpus: tuple[Gpu, ...] | None) -> None:
    """The pairs, where all were asked; one GPU or none has none."""
    live = [gpu for gpu in gpus or () if gpu.code is None]
    skipped = answer.last("no-pairs")
    if gpus is not None and len(live) < 2:
        notes.fact("driver.pairs", (), SOURCE)
    elif skipped:
        notes.gap("driver.pairs", f"too many GPUs to check every pair ({skipped.get('count')})")
    elif not answer.last("all-pairs"):
        notes.gap("driver.pairs", "NVML did not answer every query") if live else None
    else:
        pairs = [
            (pair, line) for line in answer.of("pair") if (pair := pair_from(line)) is not None
        ]
        notes.fact("driver.pairs", tuple(pair for pair, _ in pairs), SOURCE)
        for place, (_, line) in enumerate(pairs):
            for name, code in dict(line.get("refused") or {}).items():
                if name in _FACTS:
                    notes.gap(f"driver.pairs.{place}.{_FACTS[name]}", refusal(code))


def pair_from(line: Json) -> GpuPair | None:
    """One pair; what NVML refused, or answered with an impossible number, is not known."""
    first, second = line.get("first"), line.get("second")
    if type(first) is not int or type(second) is not int or not 0 <= first < second < MOST_GPUS:
        return None
    read, write, nvlink, level = (line.get(name) for name in ("read", "write", "nvlink", "level"))
    # Reading decides; where it works and writing does not, writing.
    states = [state for state in (read, write) if isinstance(state, int)]
    possible = states and all(0 <= state < len(P2P) for state in states)
    decides = (max(states) if states[0] == 0 else states[0]) if possible else None
    p2p: Any = None if decides is None else P2P[decides]
    return GpuPair(
        first=first,
        second=second,
        p2p=p2p,
        nvlink=nvlink == 0 if isinstance(nvlink, int) and 0 <= nvlink < len(P2P) else None,
        level=LEVELS.get(level) if isinstance(level, int) else None,
    )

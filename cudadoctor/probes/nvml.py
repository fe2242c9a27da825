"""What libnvidia-ml answers: asked in a child, parsed here into facts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Gpu, Nvml
from cudadoctor.model.versions import DriverVersion, cuda_from_int, driver_of
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.nvml_gpu import UNSUPPORTED, gpu_from, refusal
from cudadoctor.probes.nvml_pairs import note_pairs
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
        path=_text(loaded.get("path")),
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

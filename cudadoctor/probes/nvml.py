"""What libnvidia-ml answers: asked in a child, parsed here into facts."""

from __future__ import annotations

import os
import re

from packaging.version import Version

from cudadoctor.facts import Gpu, Nvml
from cudadoctor.host import Host
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.nvml_gpu import gpu_from
from cudadoctor.probes.nvml_pairs import note_pairs
from cudadoctor.probes.streamed import Streamed, streamed
from cudadoctor.versions import DriverVersion, cuda_from_int, driver_of

SOURCE = "NVML"
MOST_GPUS = 256
ABSENT = "libnvidia-ml.so.1: no such library in the folders that the loader searches"
SLOW = "without persistence mode many GPUs can need 30 s"


def read_nvml(host: Host, timeout_s: float, *, conclusive: bool = True) -> Looked:
    """Ask NVML for everything it knows, in a child that is abandoned after the limit.

    conclusive: the limit is so long that silence means a sick driver; else it is only a gap.
    """
    # Without the module the child still says whether the library loads, and which release it is.
    said = streamed(host.inside("nvml.py", module_folder() or "", timeout_s=timeout_s))
    return nvml_facts(said, timeout_s, conclusive=conclusive)


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


def nvml_facts(said: Streamed, timeout_s: float, *, conclusive: bool = True) -> Looked:
    """The facts in what the child printed, whole or cut short."""
    notes = Notes()
    notes.fact("driver.nvml", _nvml(said, conclusive), "libnvidia-ml")
    system = {str(line.get("name")): line.get("value") for line in said.of("system")}
    _note_driver(notes, system)
    gpus = _gpus(notes, said)
    notes.fact("gpus", gpus, SOURCE)
    note_pairs(notes, said, gpus)
    why = _why_not_more(said, timeout_s, conclusive)
    if why:
        each = (f"gpus.{gpu.index}" for gpu in gpus or ())
        for path in ("driver.nvml.code", "driver.reported", "driver.cuda", "gpus", *each):
            notes.gap(path, why)
    return notes.looked()


def _nvml(said: Streamed, conclusive: bool) -> Nvml:
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
        hung=_asked_call(said) if said.hung and conclusive else None,
        signal=said.signal,
        count=_count(system.get("count")),
    )


def _text(value: object) -> str | None:
    return str(value) if value else None


def _asked_call(said: Streamed) -> str:
    return said.call or "starting the process that asks NVML"


def library_version(text: str) -> DriverVersion | None:
    """13.580.95.05 is CUDA's major version and then the driver's."""
    found = re.fullmatch(r"(?:\d{1,2}\.)?(\d{3}\.\d+(?:\.\d+){0,2})", text.strip())
    return driver_of(found[1]) if found else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_GPUS else None


def _note_driver(notes: Notes, system: dict[str, object]) -> None:
    driver = system.get("driver")
    if isinstance(driver, str):
        try:
            notes.fact("driver.reported", DriverVersion(driver.strip()), SOURCE)
        except ValueError:
            notes.gap("driver.reported", f"NVML named the driver {driver[:40]!r}")
    cuda = _cuda(system.get("cuda"))
    if cuda is None and system.get("cuda") is not None:
        notes.gap("driver.cuda", f"NVML named the CUDA version {system['cuda']!r}"[:120])
    notes.fact("driver.cuda", cuda, SOURCE)
    _note_settings(notes, system)
    count = system.get("count")
    if count is not None and _count(count) is None:
        notes.gap("driver.nvml.count", f"NVML counts {count} GPUs, which cannot be")
        notes.gap("gpus", f"NVML counts {count} GPUs, which cannot be")


def _note_settings(notes: Notes, system: dict[str, object]) -> None:
    """What a setting of the module or of the processor does to the GPUs; unsupported is no gap."""
    notes.fact("driver.excluded", _count(system.get("excluded")), SOURCE)
    for name in ("confidential", "confidential_ready"):
        value = system.get(name)
        if isinstance(value, int) and 0 <= value <= 1:
            notes.fact(f"driver.{name}", value == 1, SOURCE)


def _cuda(value: object) -> Version | None:
    return cuda_from_int(value) if isinstance(value, int) and 1000 <= value < 100_000 else None


def _gpus(notes: Notes, said: Streamed) -> tuple[Gpu, ...] | None:
    """The GPUs whose handle was asked; () only where NVML counted none."""
    answers: dict[int, list[dict[str, object]]] = {}
    for line in said.of("gpu"):
        index = line.get("index")
        if type(index) is int and 0 <= index < MOST_GPUS:
            answers.setdefault(index, []).append(line)
    count = next((x.get("value") for x in said.of("system") if x.get("name") == "count"), None)
    if not answers:
        return () if count == 0 else None
    if _count(count) is None:
        return None
    gpus = []
    for index, lines in sorted(answers.items()):
        gpu, gaps = gpu_from(index, lines)
        gpus.append(gpu)
        for field, why in gaps:
            notes.gap(f"gpus.{index}.{field}", why)
    return tuple(gpus)


def _why_not_more(said: Streamed, timeout_s: float, conclusive: bool) -> str:
    """What kept NVML from telling everything; "" where nothing did."""
    unloaded, broken = said.last("not-loaded"), said.last("no-module")
    if unloaded:
        return f"NVML cannot be loaded: {unloaded.get('why')}"
    if broken:
        return f"pynvml cannot be imported: {broken.get('why')}"
    if said.done:
        return _refused(said)
    if said.hung:
        slow = "" if conclusive else f"; {SLOW}"
        return f"{_asked_call(said)}: no answer within {timeout_s:g} s{slow}"
    return f"{said.call or 'the process that asks NVML'}: {said.why}"


def _refused(said: Streamed) -> str:
    line = said.last("no-count") or said.last("init")
    if not line.get("code"):
        return ""
    return f"{line.get('call')} failed with {line['code']} ({line.get('message')})"

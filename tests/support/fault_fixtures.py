"""A healthy machine whose NVML is made of C and sick in one place: probed for real, then judged."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from scenario_reader import healthy_machine
from standin_fixtures import SOURCES, HostWith, StandIns

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis, Severity
from cudadoctor.model.machine import Gpu, Libcuda, Machine, Nvml, PciGpu, Smi, gap_of, lookup
from cudadoctor.probes import Looked
from cudadoctor.probes.examine import assembled
from cudadoctor.probes.nvml import read_nvml
from cudadoctor.probes.streamed import Patience
from cudadoctor.rules.diagnose import diagnose

CODES = (*range(1, 5), *range(6, 24), *range(25, 31), 999)
"""Every error code of NVML but 5 (already initialised, long gone) and 24, which have no meaning."""

GARBAGE = ("ones", "zeros", "noise", "open")
ESSENTIAL = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
"""Without these nothing is known of a GPU; of all others the loss is a gap."""

_NEVER_ASKED = {"nvmlShutdown", "nvmlErrorString"}
_OLD_FORMS = {"nvmlInit", "nvmlInit_v2", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
"""Asked only where the library lacks the newer form."""

LONG = 60.0
_WORDS = "driver = 570.172.08\nversion = 12.570.172.08\ncuda = 12080\nprocesses = 1\n"
_MIG = "mig = 1\nmig_devices = 2\nnvlinks = 0\n"


def functions() -> tuple[str, ...]:
    """What the probe may ask of a current driver, as the stand-in's source has it."""
    found = re.findall(r"\bnvml[A-Z]\w+", (SOURCES / "nvml.c").read_text())
    return tuple(sorted({*found} - _NEVER_ASKED - _OLD_FORMS))


class Fault(NamedTuple):
    """One function that does something else than to answer, on a machine with so many GPUs.

    does: what a scenario can say of a function, or "missing".
    """

    function: str
    does: str
    gpus: int

    @property
    def scenario(self) -> str:
        return "" if self.does == "missing" else f"{self.function} = {self.does}"

    @property
    def essential(self) -> bool:
        return self.function in ESSENTIAL


NO_INSTANCE = Fault("nvmlDeviceGetMigDeviceHandleByIndex", "6", 1)
"""No failure but an answer: there is no such instance."""


class Seen(NamedTuple):
    """What the probe told, and what the rules say with all else healthy, or with NVML alone."""

    looked: Looked
    whole: Diagnosis
    alone: Diagnosis

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.looked.facts.get("gpus") or ()

    @property
    def nvml(self) -> Nvml:
        found = self.looked.facts["driver.nvml"]
        assert isinstance(found, Nvml)
        return found

    def false_alarms(self) -> set[str]:
        return {*standing(self.whole), *standing(self.alone)}


def standing(found: Diagnosis) -> list[str]:
    """The errors and warnings that nothing explains, in order."""
    return [f.cause for f in found.findings if not f.because_of and f.severity < Severity.INFO]


def unexplained(looked: Looked) -> list[str]:
    """The facts of NVML that are neither known nor unsupported, and have no gap that says why."""
    machine = assembled([looked])
    paths = [*_OF_THE_DRIVER]
    for place, gpu in enumerate(machine.gpus or ()):
        names = {*gpu.__struct_fields__} - {"code", "failed", "unsupported", *gpu.unsupported}
        names -= set() if gpu.mig else {"mig_devices"}
        paths += [f"gpus.{place}.{name}" for name in sorted(names)]
    for place, _ in enumerate(machine.driver.pairs or ()):
        paths += [f"driver.pairs.{place}.{name}" for name in ("p2p", "level")]
    missing = [path for path in paths if lookup(machine, path) is None]
    return [path for path in missing if gap_of(machine, path) is None]


_OF_THE_DRIVER = (
    *("gpus", "driver.reported", "driver.cuda", "driver.nvml.code", "driver.nvml.count"),
    "driver.nvml.version",
)


ROOTS: dict[str, frozenset[str]] = {
    "4": frozenset({"device-permission"}),
    "8": frozenset({"gpu-unhealthy-hardware"}),
    "11": frozenset({"gpu-unhealthy-hardware"}),
    "15": frozenset({"gpu-lost"}),
    "16": frozenset({"gpu-lost"}),
    "18": frozenset({"driver-library-mismatch"}),
    "999": frozenset({"gpu-lost"}),
}
"""What a failure of an essential function with that code may be called beside "unknown"."""

_ALWAYS_TOLD = {"4": ESSENTIAL[:2], "15": ESSENTIAL, "16": ESSENTIAL, "18": ESSENTIAL[:2]}
"""Codes that leave no doubt, and the functions where they come from."""


def wrong(fault: Fault, seen: Seen) -> str | None:
    """What is wrong with the judgement of this fault, None if nothing is."""
    if silent := unexplained(seen.looked):
        return f"{fault}: not known, and nothing says why: {silent}"
    if fault.essential is False and len(seen.gpus) != fault.gpus:
        return f"{fault}: {len(seen.gpus)} GPUs are left"
    alarms = seen.false_alarms()
    if fault == NO_INSTANCE._replace(gpus=fault.gpus):
        # The machine around it counts GPUs that CUDA would not count then: several contradict it.
        return None if alarms - {"unknown"} == {"mig-misconfigured"} else f"{fault}: {alarms}"
    if fault.does in ("15", "16") and fault.function.startswith("nvmlDeviceGet"):
        alarms -= {"gpu-lost"}
    if not fault.essential:
        return f"{fault}: false alarm {alarms}" if alarms else None
    fitting = ROOTS.get(fault.does, frozenset()) | {"unknown"}
    if alarms - fitting:
        return f"{fault}: {alarms} does not fit"
    if fault.function in _ALWAYS_TOLD.get(fault.does, ()) and seen.alone.primary not in fitting:
        return f"{fault}: its cause is not told: {seen.alone.primary}"
    return None


def product(codes: Iterable[int] = CODES, gpus: Iterable[int] = (1, 8)) -> Iterator[Fault]:
    """All functions, with all codes, with all numbers of GPUs."""
    for count in gpus:
        for function in functions():
            for code in codes:
                yield Fault(function, str(code), count)


def scenario_of(fault: Fault) -> str:
    mig = _MIG if "Mig" in fault.function and fault.function != "nvmlDeviceGetMigMode" else ""
    return f"count = {fault.gpus}\n{fault.scenario}\n{_WORDS}{mig}"


def injected(standins: StandIns, fault: Fault, limit_s: float = LONG) -> Seen:
    """Probe it through the real child, and judge what comes of it."""
    folder = lacking(standins, fault.function) if fault.does == "missing" else None
    return played(standins, scenario_of(fault), fault.gpus, folder=folder, limit_s=limit_s)


def lacking(standins: StandIns, function: str) -> Path:
    """The folder of a library without that function: its name is changed in the symbol table."""
    folder = standins.folder / f"without-{function}"
    whole = standins.nvml() / "libnvidia-ml.so.580.95.05"
    name = function.encode()
    if not folder.exists():
        data = whole.read_bytes()
        data = data.replace(b"\0" + name + b"\0", b"\0" + b"x" * len(name) + b"\0")
        made = standins.folder / f"made-{uuid.uuid4().hex}"
        made.mkdir()
        (made / "libnvidia-ml.so.1").write_bytes(data)
        with contextlib.suppress(OSError):  # another thread was first
            made.rename(folder)
    return folder


def played(
    standins: StandIns,
    scenario: str,
    gpus: int,
    *,
    folder: Path | None = None,
    limit_s: float = LONG,
    loaded: bool = True,
) -> Seen:
    """The same for any scenario."""
    host = HostWith(standins.environment(scenario, folder or standins.nvml()))
    looked = read_nvml(host, Patience(start_s=limit_s, call_s=limit_s))
    kb = knowledge.load()
    judged = (diagnose(_machine(looked, gpus, whole, loaded), kb) for whole in (True, False))
    return Seen(looked, *judged)


def all_injected(
    standins: StandIns, faults: Iterable[Fault], limit_s: float = LONG
) -> list[tuple[Fault, Seen]]:
    """Inject many faults, two at a time."""
    standins.nvml()
    # msgspec prepares each class on first use, and not safely from two threads.
    healthy_machine("h100x8-linux")
    many = list(faults)
    with ThreadPoolExecutor(2) as pool:
        seen = pool.map(lambda fault: injected(standins, fault, limit_s), many)
        return list(zip(many, seen, strict=True))


def _machine(looked: Looked, gpus: int, whole: bool, loaded: bool) -> Machine:
    """A DGX H100 with this many GPUs. whole: libcuda and torch have answered as well."""
    base = healthy_machine("h100x8-linux")
    sections: dict[str, Any] = {
        name: value
        for name in base.__struct_fields__
        if name not in ("gpus", "gaps", "origins", "look", "date", "schema", "smoke")
        and (value := getattr(base, name)) is not None
    }
    driver = msgspec.structs.replace(base.driver, nvml=Nvml(), reported=None, cuda=None)
    sections["driver"] = driver
    sections["pci"] = tuple(_placed(device, n) for n, device in enumerate((base.pci or ())[:gpus]))
    if whole:
        counted = msgspec.structs.replace(base.driver.libcuda, count=gpus)
        sections["driver"] = msgspec.structs.replace(driver, libcuda=counted)
        assert base.torch.imported is not None
        imported = msgspec.structs.replace(base.torch.imported, device_count=gpus)
        sections["torch"] = msgspec.structs.replace(base.torch, imported=imported)
    else:
        sections["driver"] = _silent(driver, loaded)
        sections["torch"] = msgspec.structs.replace(base.torch, imported=None)
    look = "no-smoke" if whole else "fast"
    return assembled([Looked(facts=sections), looked], look=look, date="2026-11-21")


def _placed(device: PciGpu, index: int) -> PciGpu:
    """Where the stand-in says that its GPUs are."""
    return msgspec.structs.replace(device, address=f"0000:{0xA0 + index:02x}:00.0")


def _silent(driver: Any, loaded: bool) -> Any:
    """A driver of which nothing speaks but NVML and the files."""
    quiet: dict[str, Any] = {"libcuda": Libcuda(), "smi": Smi(found=False)}
    if not loaded:
        quiet |= {"loaded": False, "kernel": None, "flavour": None, "modules": ()}
    return msgspec.structs.replace(driver, **quiet)

"""GPUs of different age in one machine: which are meant, and how a program leaves some out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.solver.demand import capability_by_pci, capability_of, nvidia_devices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine


class SeenGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One usable GPU. index: in PCI bus order, from 0. name: without its maker."""

    index: int
    name: str
    capability: Version
    uuid: str | None = None


def seen_gpus(m: Machine, kb: Knowledge) -> tuple[SeenGpu, ...]:
    """The usable GPUs whose capability is known, as the driver tells of them or else the bus."""
    if m.gpus:
        usable = [gpu for gpu in m.gpus if not gpu.code] or list(m.gpus)
        asked = [(gpu.index, gpu.name, capability_of(gpu, kb), gpu.uuid) for gpu in usable]
    else:
        asked = [
            (index, _model(one.device_id, kb), capability_by_pci(one.device_id, kb), None)
            for index, one in enumerate(nvidia_devices(m))
        ]
    return tuple(
        SeenGpu(index=index, name=_short(name), capability=capability, uuid=uuid)
        for index, name, capability, uuid in asked
        if capability is not None
    )


def _model(device_id: str, kb: Knowledge) -> str | None:
    found = kb.gpus_by_pci(device_id)
    return found[0].name if found else None


def _short(name: str | None) -> str:
    """The name as people say it: "GeForce GTX 1080"."""
    return (name or "GPU").removeprefix("NVIDIA ")


def of_capability(gpus: Iterable[SeenGpu], capabilities: Collection[Version]) -> list[SeenGpu]:
    """Those of the GPUs that have one of these capabilities."""
    return [one for one in gpus if one.capability in capabilities]


def named(gpus: Iterable[SeenGpu]) -> str:
    """The GPUs in a sentence: "the Tesla K80 (GPU 0) and the Tesla T4 (GPU 1)"."""
    words = [f"the {one.name} (GPU {one.index})" for one in gpus]
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def variables_for(staying: Iterable[SeenGpu], *, redacted: bool | None) -> dict[str, str | None]:
    """What leaves all other GPUs out: by UUID where each is known, else by its place on the bus."""
    stay = list(staying)
    uuids = [one.uuid for one in stay if one.uuid and not redacted]
    if len(uuids) == len(stay):
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    places = ",".join(str(one.index) for one in stay)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": places}

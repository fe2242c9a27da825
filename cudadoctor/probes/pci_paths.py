"""What lies between several GPUs and the memory: NUMA node, IOMMU, and the bridges above them."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from cudadoctor.host.local import Host
from cudadoctor.model.machine import PciGpu

BUS = "/sys/bus/pci/devices"
_BRIDGE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EXTENDED, _WHOLE = 0x100, 4096
_ACS, _TO_THE_ROOT = 0x000D, 0x0C
"""ACS among the extended capabilities; its bits that redirect requests and completions."""
_PASSES = ("iommu=pt", "iommu.passthrough=1")
_TRANSLATES = ("DMA", "DMA-FQ")


def with_surroundings(host: Host, gpus: tuple[PciGpu, ...]) -> tuple[PciGpu, ...]:
    """The same GPUs; those of NVIDIA with what is around them, where there are several."""
    if sum(one.vendor == "nvidia" for one in gpus) < 2:
        return gpus
    bridges: dict[str, bool | None] = {}
    return tuple(_around(host, one, bridges) if one.vendor == "nvidia" else one for one in gpus)


def _around(host: Host, gpu: PciGpu, bridges: dict[str, bool | None]) -> PciGpu:
    folder = f"{BUS}/{gpu.address}"
    numa = host.read(f"{folder}/numa_node", 16).text.strip()
    return msgspec.structs.replace(
        gpu,
        numa=int(numa) if re.fullmatch(r"-1|\d{1,4}", numa) else None,
        iommu=_iommu(host, folder),
        acs=_acs(host, folder, bridges),
    )


def _iommu(host: Host, folder: str) -> Literal["off", "identity", "translated"] | None:
    """By the kind of its IOMMU group; kernels before 5.11 tell it on their command line only."""
    if not host.stat(f"{folder}/iommu_group").exists:
        return "off"
    kind = host.read(f"{folder}/iommu_group/type", 32).text.strip()
    if kind:
        return "translated" if kind in _TRANSLATES else "identity" if kind == "identity" else None
    words = host.read("/proc/cmdline", 4096).text.split()
    return "identity" if any(word in _PASSES for word in words) else None


def _acs(host: Host, folder: str, bridges: dict[str, bool | None]) -> bool | None:
    """Whether a bridge on its way up redirects; None where a bridge does not show it.

    Only root reads more than the first 64 bytes of a device's configuration.
    """
    above = _BRIDGE.findall(host.stat(folder).real)[:-1]
    for name in above:
        if name not in bridges:
            bridges[name] = redirects(host.read(f"{BUS}/{name}/config", _WHOLE).data)
    told = [bridges[name] for name in above]
    return True if True in told else None if not told or None in told else False


def redirects(config: bytes) -> bool | None:
    """Whether the configuration space of a bridge sends peers' traffic to the root."""
    if len(config) <= _EXTENDED + 4:
        return None
    place, seen = _EXTENDED, 0
    while _EXTENDED <= place <= len(config) - 8 and seen < 64:
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(config[place + 6 : place + 8], "little")
            return bool(control & _TO_THE_ROOT)
        place, seen = header >> 20, seen + 1
    return False

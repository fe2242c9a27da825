"""GPUs on the PCI bus, seen without any driver."""

from __future__ import annotations

import re
import struct
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Json, OptBool, OptStr, PciGpu
from cudadoctor.probes import Looked

BUS = "/sys/bus/pci/devices"
BUS_KINDS = "/sys/bus"
NVIDIA = "10de"
VENDORS = {NVIDIA: "nvidia", "1002": "amd", "8086": "intel"}
NVSWITCH = "0680"
_MEMORY, _MEMORY_64, _UNSET = 0x200, 0x100000, 0x20000000
_HEX = re.compile("[0-9a-fA-F]{1,6}")
_ROW = re.compile(r"(?i)0x[0-9a-f]+ 0x[0-9a-f]+ 0x[0-9a-f]+\s*")


class Device(NamedTuple):
    """One function on the bus: vendor and device as four hex digits, class as six."""

    address: str
    vendor: str
    device: str
    class_id: str
    bound: str

    @property
    def folder(self) -> str:
        return f"{BUS}/{self.address}"

    @property
    def is_gpu(self) -> bool:
        """Display controllers of any vendor, and processing accelerators."""
        kind = self.class_id[:2]
        return kind == "03" or (kind == "12" and self.vendor in VENDORS)


def read_pci(host: Host) -> Looked:
    """All display and compute devices, and how many NVSwitches there are."""
    notes = Looked()
    if host.system != "Linux":
        notes.gap("pci", "the PCI bus is only checked on Linux")
        return notes
    listing = host.listing(BUS)
    buses = host.listing(BUS_KINDS).names if listing.missing else ()
    if buses and "pci" not in buses:  # the kernel shows its buses: no PCI device can be there
        notes.fact("pci", (), BUS_KINDS)
        notes.fact("driver.fabric.nvswitches", 0, BUS_KINDS)
        return notes
    if listing.missing or listing.why:
        notes.gap("pci", listing.why or f"{BUS} does not exist")
        return notes
    seen = {name: _device(host, name) for name in listing.names}
    devices = list(filter(None, seen.values()))
    unread = next((name for name, device in seen.items() if device is None), None)
    if unread and not any(device.is_gpu and device.vendor == NVIDIA for device in devices):
        # What it is is not known: the bus does not prove that there is no GPU.
        name = unread[:40].encode("ascii", "replace").decode()
        notes.gap("pci", f"{BUS}/{name} has no vendor or class")
        return notes
    gpus = [device for device in devices if device.is_gpu]
    # What lies around them matters where there are several.
    bridges: dict[str, OptBool] = {}
    several = sum(device.vendor == NVIDIA for device in gpus) > 1
    found = tuple(_gpu(host, device, bridges if several else None) for device in gpus)
    notes.fact("pci", found, BUS)
    switches = sum(d.vendor == NVIDIA and d.class_id[:4] == NVSWITCH for d in devices)
    notes.fact("driver.fabric.nvswitches", switches, BUS)
    return notes


def _device(host: Host, address: str) -> Device | None:
    """One read for each device: `uevent` holds what vendor, device, class and driver say."""
    folder = f"{BUS}/{address}"
    lines = host.read(f"{folder}/uevent").text.splitlines()
    words = dict(line.partition("=")[::2] for line in lines)
    vendor, _, device = words.get("PCI_ID", "").lower().partition(":")
    class_id, bound = words.get("PCI_CLASS", "").lower(), words.get("DRIVER", "")
    if not all(map(_HEX.fullmatch, (vendor, device, class_id))):
        vendor, class_id, device = (
            host.read(f"{folder}/{name}").text.strip().lower().removeprefix("0x")
            for name in ("vendor", "class", "device")
        )
        if not all(map(_HEX.fullmatch, (vendor, class_id))):
            return None
        link = host.stat(f"{folder}/driver")
        bound = link.real.rstrip("/").rpartition("/")[2] if link.exists else ""
    return Device(address, vendor.zfill(4), device.zfill(4), class_id.zfill(6), bound)


def _gpu(host: Host, device: Device, bridges: dict[str, OptBool] | None) -> PciGpu:
    """bridges: what is known of those above; None where nothing around the GPU is looked at."""
    folder = device.folder
    power = host.read(f"{folder}/power_state").text.strip() or None
    gpu = PciGpu(
        address=device.address,
        vendor=VENDORS.get(device.vendor, device.vendor),
        device_id=device.device,
        class_id=device.class_id[:4],
        bound=device.bound,
        power=power,
    )
    if device.vendor != NVIDIA:
        return gpu
    around: Json = {}
    if bridges is not None:
        numa = host.read(f"{folder}/numa_node", 16).text.strip()
        around["numa"] = int(numa) if re.fullmatch(r"-1|\d{1,4}", numa) else None
        around |= {"iommu": _iommu(host, folder), "acs": _acs(host, folder, bridges)}
    lost, missing = _lost(host, folder, power), _bars_missing(host, folder)
    return replace(gpu, lost=lost, bars_missing=missing, **around)


def _lost(host: Host, folder: str, power: OptStr) -> OptBool:
    """Whether the configuration space reads all ones. A sleeping GPU is left asleep."""
    file = f"{folder}/power/runtime_status"
    if power in ("D3cold", "D3hot") and host.read(file).text.strip().startswith("suspend"):
        return False
    config = host.read(f"{folder}/config", 64).data
    return set(config) == {0xFF} if config else None


def _bars_missing(host: Host, folder: str) -> OptBool:
    """Whether the firmware left a memory range of the first two without an address."""
    lines = host.read(f"{folder}/resource").text.splitlines()[:6]
    rows = [tuple(int(part, 16) for part in line.split()) for line in lines if _ROW.fullmatch(line)]
    if len(rows) < 3:
        return None
    # A 64 bit range takes two rows; from Hopper on the first range is one.
    second = rows[2] if rows[0][2] & _MEMORY_64 else rows[1]
    unset = any(flags & _MEMORY and (flags & _UNSET or not start) for start, _, flags in rows)
    return unset or not any(rows[0]) or not any(second)


# --- what lies between several GPUs and the memory: NUMA node, IOMMU, and the bridges above -------

_BRIDGE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EXTENDED, _WHOLE = 0x100, 4096
_ACS, _TO_THE_ROOT = 0x000D, 0x0C
"""ACS among the extended capabilities; its bits that redirect requests and completions."""
_PASSES = frozenset({"iommu=pt", "iommu.passthrough=1"})
_TRANSLATES = ("DMA", "DMA-FQ")


def _iommu(host: Host, folder: str) -> Literal["off", "identity", "translated"] | None:
    """By the kind of its IOMMU group; kernels before 5.11 tell it on their command line only."""
    if not host.stat(f"{folder}/iommu_group").exists:
        return "off"
    kind = host.read(f"{folder}/iommu_group/type", 32).text.strip()
    if kind:
        return "translated" if kind in _TRANSLATES else "identity" if kind == "identity" else None
    return None if _PASSES.isdisjoint(host.read("/proc/cmdline", 4096).text.split()) else "identity"


def _acs(host: Host, folder: str, bridges: dict[str, OptBool]) -> OptBool:
    """Whether a bridge on its way up redirects; None where a bridge does not show it.

    Only root reads more than the first 64 bytes of a device's configuration.
    """
    above = _BRIDGE.findall(host.stat(folder).real)[:-1]
    for name in above:
        if name not in bridges:
            bridges[name] = redirects(host.read(f"{BUS}/{name}/config", _WHOLE).data)
    answers = {bridges[name] for name in above}
    return True if True in answers else False if answers == {False} else None


def redirects(config: bytes) -> OptBool:
    """Whether the configuration space of a bridge sends peers' traffic to the root."""
    if len(config) <= _EXTENDED + 4:
        return None
    place = _EXTENDED
    for _ in range(64):
        if not _EXTENDED <= place <= len(config) - 8:
            break
        header, control = struct.unpack_from("<I2xH", config, place)
        if header & 0xFFFF == _ACS:
            return bool(control & _TO_THE_ROOT)
        place = header >> 20
    return False

"""Outputs about the kernel's side of the driver: modules, device nodes, daemons, inventories."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from cudadoctor.model.machine import Gpu, ModuleFile, Node
from cudadoctor.model.versions import DriverVersion
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_LSMOD = re.compile(
    r"\s{0,4}(nvidia(?:_uvm|_modeset|_drm|_peermem|_fs)?|nouveau|nvgpu|nvmap|amdgpu|i915)"
    r"\s{1,30}(\d{3,10})\s{1,10}-?\d{1,4}\b"
)
_NODE = re.compile(
    r"c(?P<mode>[rwx-]{9})[.+]?\s{1,4}\d{1,3} \w{1,30}\s{1,8}(?P<group>\w{1,30})\s.{1,60}?"
    r"(?P<path>/dev/(?:nvidia[\w-]{0,20}|dxg|dri/\w{1,20}))\s{0,4}$"
)
_NO_NODES = re.compile(r"cannot access '?/dev/nvidia\S{0,3}'?: no such file")
_FILE = re.compile(
    r"filename: (?P<path>/lib/modules/(?P<kernel>[^/\s]{3,80})/\S{0,160}nvidia\S{0,30})"
)
_VERSION = re.compile(r"\bversion: (\d{3,4}(?:\.\d{1,4}){1,2})\b")
_NOT_FOUND = re.compile(r"modinfo: error: module nvidia not found", re.I)
_FABRIC = re.compile(
    r"nvidia-fabricmanager\S{0,10} .{0,240}?active: (active|inactive|failed|activating)"
)
_NO_FABRIC = "nvidia-fabricmanager.service could not be found"
_INXI = re.compile(
    r"Device-\d: (NVIDIA .{3,80}?) driver: (nvidia|nouveau|N/A)(?: v: (\d{3}[\d.]{2,12}))?", re.I
)
_LSHW = re.compile(
    r"vendor: NVIDIA Corporation .{0,400}?configuration: .{0,60}?driver=(nvidia|nouveau)"
)
_GPUSTAT = re.compile(
    r"^\s{0,4}\[(\d{1,2})\] (\S.{2,50}?)\s{0,10}\| {0,3}\d{1,3}.{0,30}\|\s{0,6}(\d{1,6})"
    r" / (\d{3,6}) MB"
)
_NVTOP = re.compile(r"Device (\d{1,2}) \[((?:NVIDIA|GeForce|Tesla|Quadro)[^\]]{2,50})\]")
_CONTAINER_CLI = re.compile(
    r"NVRM version: (?P<driver>\d{3}[\d.]{2,12}) CUDA version: (?P<cuda>\d{1,2}\.\d)"
    r"(?:.{0,80}?Model: (?P<gpu>.{3,60}?) Brand:)?(?:.{0,200}?Architecture: (?P<cc>\d{1,2}\.\d))?"
)
_DKMS = re.compile(
    r"(nvidia(?:-[\w-]{1,30})?[/,] ?\d{3}[\d.]{2,12}(?:, [\w.+-]{3,80}, \w{4,10})"
    r"?: (?:added|built|installed)\b(?: \(WARNING[^)]{0,80}\))?)"
)
_WINDOWS = re.compile(r"(?<![\w.])3\d\.0\.1\d\.\d{4}(?!\d)")
"""How Windows counts the releases of NVIDIA's driver; those of other makers look otherwise."""
_SECURE_BOOT = re.compile(r"secureboot (enabled|disabled)")


def read_modules(doc: Document, _: Knowledge) -> Iterator[Said]:
    """lsmod, modinfo, dkms status and mokutil."""
    if "used by" in doc.low or "lsmod" in doc.low:
        rows = [(line, one) for line in doc.lines if (one := _LSMOD.match(line.text))]
        if rows:
            names = tuple(sorted({one[1] for _, one in rows}))
            line = rows[0][0].number
            yield Said("driver.modules", names, line, Rank.TOOL, "lsmod")
            if "nvidia" in names:
                yield Said("driver.loaded", True, line, Rank.TOOL, "lsmod")
    if "filename: " in doc.low or "modinfo: " in doc.low:
        yield from _modinfo(doc)
    if "nvidia" in doc.low and (": installed" in doc.low or ": added" in doc.low):
        states = list(_DKMS.finditer(doc.flat))
        if states:
            line = doc.line_at(states[0].start()).number
            status = tuple(one[1].strip() for one in states)
            yield Said("driver.dkms", status, line, Rank.TOOL, "dkms")
    if "secureboot " in doc.low and (found := _SECURE_BOOT.search(doc.low)):
        line = doc.line_at(found.start()).number
        yield Said("platform.secure_boot", found[1] == "enabled", line, Rank.TOOL, "mokutil")


def _modinfo(doc: Document) -> Iterator[Said]:
    absent = _NOT_FOUND.search(doc.flat)
    if absent:
        line = doc.line_at(absent.start()).number
        yield Said("driver.module_files", (), line, Rank.TOOL, "modinfo")
    found = _FILE.search(doc.flat)
    if found is None:
        return
    said = _VERSION.search(doc.flat, found.end(), found.end() + 400)
    version = DriverVersion(said[1]) if said else None
    license_ = doc.low[found.end() : found.end() + 500]
    flavour: Literal["open", "proprietary"] | None = None
    if "license: " in license_:
        flavour = "open" if "license: dual mit/gpl" in license_ else "proprietary"
    line = doc.line_at(found.start()).number
    one = ModuleFile(path=found["path"], kernel=found["kernel"], version=version, flavour=flavour)
    yield Said("driver.module_files", (one,), line, Rank.TOOL, "modinfo")
    yield Said("driver.installed", True, line, Rank.TOOL, "modinfo")


def read_nodes(doc: Document, _: Knowledge) -> Iterator[Said]:
    """ls -l /dev/nvidia*, as it stands or with its complaint."""
    if "/dev/nvidia" not in doc.low and "/dev/dxg" not in doc.low:
        return
    absent = _NO_NODES.search(doc.low)
    if absent:
        line = doc.line_at(absent.start()).number
        yield Said("driver.nodes", (), line, Rank.TOOL, "ls /dev")
        return
    nodes, first = [], 0
    for line_ in doc.lines:
        found = _NODE.match(line_.text) if "/dev/" in line_.text else None
        if found:
            first = first or line_.number
            nodes.append(Node(path=found["path"], mode=_mode(found["mode"]), group=found["group"]))
    if nodes:
        yield Said("driver.nodes", tuple(nodes), first, Rank.TOOL, "ls /dev")


def _mode(text: str) -> int:
    return sum(1 << (8 - place) for place, mark in enumerate(text) if mark != "-")


def read_fabric(doc: Document, _: Knowledge) -> Iterator[Said]:
    """systemctl status nvidia-fabricmanager."""
    if "nvidia-fabricmanager" not in doc.low:
        return
    if _NO_FABRIC in doc.low:
        line = doc.line_at(doc.low.find(_NO_FABRIC)).number
        yield Said("driver.fabric.manager", "absent", line, Rank.TOOL, "systemctl")
        return
    found = _FABRIC.search(doc.low)
    if found:
        state = "inactive" if found[1] == "activating" else found[1]
        line = doc.line_at(found.start()).number
        yield Said("driver.fabric.manager", state, line, Rank.TOOL, "systemctl")


def read_inventories(doc: Document, _: Knowledge) -> Iterator[Said]:
    """inxi, lshw, gpustat, nvtop and nvidia-container-cli info."""
    if "device-" in doc.low and (inxi := _INXI.search(doc.flat)):
        yield from _bound(inxi[2].lower(), inxi[3], doc.line_at(inxi.start()).number, "inxi")
    if "vendor: nvidia" in doc.low and (lshw := _LSHW.search(doc.flat)):
        yield from _bound(lshw[1], None, doc.line_at(lshw.start()).number, "lshw")
    if " mb" in doc.low and "[0]" in doc.low:
        yield from _gpustat(doc)
    if "device 0 [" in doc.low:
        found = list(_NVTOP.finditer(doc.flat))
        gpus = tuple(Gpu(index=int(one[1]), name=one[2]) for one in found)
        if gpus:
            line = doc.line_at(found[0].start()).number
            yield Said("gpus", gpus, line, Rank.TOOL, "nvtop")
    if ".0.1" in doc.low and "nvidia" in doc.low and (windows := _WINDOWS.search(doc.flat)):
        line = doc.line_at(windows.start()).number
        driver = values.driver_version(windows[0])
        yield Said("driver.reported", driver, line, Rank.MESSAGE, "Windows")
        yield Said("platform.system", "Windows", line, Rank.MESSAGE, "Windows")
    if "nvrm version: " in doc.low and (told := _CONTAINER_CLI.search(doc.flat)):
        yield from _container_cli(told, doc.line_at(told.start()).number)


def _bound(driver: str, version: str | None, line: int, source: str) -> Iterator[Said]:
    if driver == "nvidia":
        yield Said("driver.loaded", True, line, Rank.TOOL, source)
        known = values.driver_version(version or "")
        yield Said("driver.reported", known, line, Rank.TOOL, source)
    elif driver == "nouveau":
        yield Said("driver.modules", ("nouveau",), line, Rank.TOOL, source)


def _gpustat(doc: Document) -> Iterator[Said]:
    gpus, first = [], 0
    for line in doc.lines:
        row = _GPUSTAT.match(line.text)
        if row:
            first = first or line.number
            memory, used = int(row[4]) << 20, int(row[3]) << 20
            gpus.append(
                Gpu(index=int(row[1]), name=row[2], memory_bytes=memory, memory_used_bytes=used)
            )
    if gpus:
        yield Said("gpus", tuple(gpus), first, Rank.TOOL, "gpustat")


def _container_cli(found: re.Match[str], line: int) -> Iterator[Said]:
    source = "nvidia-container-cli"
    yield Said("driver.reported", values.driver_version(found["driver"]), line, Rank.TOOL, source)
    yield Said("driver.cuda", Version(found["cuda"]), line, Rank.TOOL, source)
    if found["gpu"]:
        capability = Version(found["cc"]) if found["cc"] else None
        gpu = Gpu(index=0, name=found["gpu"], capability=capability)
        yield Said("gpus", (gpu,), line, Rank.TOOL, source)

"""NVIDIA's kernel modules on disk, for every kernel that is installed, and what DKMS built."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Literal

from cudadoctor.host.local import Host
from cudadoctor.model.machine import ModuleFile
from cudadoctor.model.versions import DriverVersion

BASE = "/lib/modules"
DKMS = "/var/lib/dkms"

_FOLDERS = (
    "updates",
    "updates/dkms",
    "extra",
    "extra/nvidia",
    "weak-updates",
    "weak-updates/nvidia",
    "misc",
    "kernel/drivers/video",
    "kernel/drivers/video/nvidia",
    "kernel/drivers/gpu/nvidia",
    "extramodules",
    "video",
)
_FILE = re.compile(r"nvidia(-current|-legacy[\w-]*|-tesla[\w-]*|-\d{3}[\w-]*)?\.ko(\.(xz|zst|gz))?")
_MOST_KERNELS = 16


def module_files(host: Host, *, ask: bool) -> tuple[ModuleFile, ...]:
    """The driver's main module for each kernel. ask: let `modinfo` open compressed ones."""
    found = []
    for kernel in host.listing(BASE).names[-_MOST_KERNELS:]:
        for path in _paths(host, f"{BASE}/{kernel}"):
            found.append(_module_file(host, path, kernel, ask))
    return tuple(found)


def _paths(host: Host, root: str) -> Iterator[str]:
    inside = host.listing(f"{root}/kernel").names
    # Ubuntu's signed modules: kernel/nvidia-570-open, kernel/nvidia-580srv.
    folders = [*_FOLDERS, *(f"kernel/{name}" for name in inside if name.startswith("nvidia"))]
    for folder in folders:
        for name in host.listing(f"{root}/{folder}").names:
            if _FILE.fullmatch(name):
                yield f"{root}/{folder}/{name}"


def _module_file(host: Host, path: str, kernel: str, ask: bool) -> ModuleFile:
    words = modinfo(host, path) if path.endswith(".ko") else {}
    if not words and ask and host.which("modinfo"):
        ran = host.run("modinfo", path, timeout_s=5.0)
        words = _pairs(ran.stdout, ":") if ran.ok else {}
    return ModuleFile(
        path=path,
        kernel=kernel,
        version=_version(words.get("version", "")) or _version_of_dkms(host, path, kernel),
        flavour=_flavour(words.get("license", ""), path),
    )


def _version(text: str) -> DriverVersion | None:
    try:
        return DriverVersion(text.strip())
    except ValueError:
        return None


def _version_of_dkms(host: Host, path: str, kernel: str) -> DriverVersion | None:
    """A module in DKMS's folder is of the version that DKMS installed for that kernel."""
    if "/dkms/" not in path:
        return None
    versions = {
        line.partition(",")[0].partition("/")[2]
        for line in dkms_lines(host)
        if f", {kernel}," in line and line.endswith(": installed")
    }
    return _version(versions.pop()) if len(versions) == 1 else None


def _flavour(licence: str, path: str) -> Literal["open", "proprietary"] | None:
    if licence:
        return "open" if "GPL" in licence else "proprietary"
    folder = path.rpartition("/")[0].rpartition("/")[2]
    if folder.startswith("nvidia-"):
        return "open" if folder.endswith("-open") else "proprietary"
    return None


def modinfo(host: Host, path: str) -> dict[str, str]:
    """What an uncompressed module says about itself: only its section .modinfo is read."""
    header = host.read(path, 64).data
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return {}
    (table,) = struct.unpack_from("<Q", header, 40)
    size, count, names = struct.unpack_from("<HHH", header, 58)
    rows = host.read(path, size * count, table).data
    if size < 64 or len(rows) < size * count or names >= count:
        return {}
    sections = [struct.unpack_from("<IIQQQQ", rows, n * size) for n in range(count)]
    strings = host.read(path, min(sections[names][5], 1 << 20), sections[names][4]).data
    for name, _, _, _, offset, length in sections:
        if strings[name : name + 9] == b".modinfo\0":
            text = host.read(path, min(length, 1 << 20), offset).text
            return _pairs(text.replace("\0", "\n"), "=")
    return {}


def _pairs(text: str, between: str) -> dict[str, str]:
    rows = (line.partition(between) for line in text.splitlines())
    found: dict[str, str] = {}
    for name, there, value in rows:
        if there:
            found.setdefault(name.strip(), value.strip())
    return found


def dkms_lines(host: Host) -> tuple[str, ...]:
    """What `dkms status` would print for nvidia, read from its folders: it is slow itself."""
    found = []
    for module in host.listing(DKMS).names:
        if not module.startswith("nvidia"):
            continue
        for version in host.listing(f"{DKMS}/{module}").names:
            if version[:1].isdigit():
                found += _built(host, module, version)
    return tuple(found)


def _built(host: Host, module: str, version: str) -> list[str]:
    folder = f"{DKMS}/{module}"
    links = host.listing(folder).names
    lines = []
    for kernel in host.listing(f"{folder}/{version}").names:
        if kernel in ("source", "build"):
            continue
        for arch in host.listing(f"{folder}/{version}/{kernel}").names:
            linked = host.stat(f"{folder}/kernel-{kernel}-{arch}").real
            here = f"kernel-{kernel}-{arch}" in links and f"/{version}/" in f"{linked}/"
            built = host.listing(f"{folder}/{version}/{kernel}/{arch}/module").names
            state = "installed" if here else "built" if built else "failed"
            lines.append(f"{module}/{version}, {kernel}, {arch}: {state}")
    return lines or [f"{module}/{version}: added"]

"""The kernel's side of the driver: its version, modules, log, device nodes and stuck processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from cudadoctor.host.local import Answer, Host
from cudadoctor.model.driver_packages import MATTERS, Manager, is_driver
from cudadoctor.model.machine import ModuleFile, Node, SystemPackage
from cudadoctor.model.versions import DriverVersion, driver_of, whole
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.elf import find_section
from cudadoctor.probes.streamed import streamed
from cudadoctor.reports.kernel_log import parse_kernel_log

PROC_VERSION = "/proc/driver/nvidia/version"
SYS_VERSION = "/sys/module/nvidia/version"
MODULES = frozenset(
    {"nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs"}
    | {"nvidia_vgpu_vfio", "nouveau", "nova_core", "nova_drm", "nvgpu", "nvmap", "vfio_pci"}
    | {"gdrdrv", "ib_umad", "amdgpu", "i915", "xe"}
)
BLACKLISTS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")

Flavour = Literal["open", "proprietary"]

_NODE = re.compile(
    r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch(ctl|\d+)|-nvlink)|dxg|nvmap|nvhost-.*gpu.*"
)
_ORDER = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_KEEPS_OUT = re.compile(
    r"^[ \t]*(?:blacklist\s+nvidia|alias\s+nvidia\s+off"
    r"|install\s+nvidia\s+/(?:usr/)?bin/(?:false|true))\s*(?:#.*)?$",
    re.MULTILINE,
)
_KEEPS_OUT_AT_BOOT = re.compile(
    r"(?:modprobe\.blacklist|module_blacklist)=(?:\S*,)?nvidia(?:,|\s|$)"
)


def read_kernel(host: Host, *, fast: bool, limit_s: float = 30.0) -> Looked:
    """Everything of the driver that is seen without loading its libraries.

    fast: nothing that starts a program for more than a few milliseconds. limit_s: for each child.
    """
    notes = Notes()
    if host.system != "Linux":
        notes.gap("driver.kernel", "the kernel module is read on Linux only")
        return notes.looked()
    _note_version(notes, host)
    _note_modules(notes, host)
    notes.fact("driver.module_files", module_files(host, ask=not fast), "/lib/modules")
    notes.fact("driver.dkms", dkms_lines(host), "/var/lib/dkms")
    notes.fact("driver.blacklisted_by", _blacklisting(host), "/etc/modprobe.d")
    packages = note_packages(notes, host, fast=fast)
    _note_nodes(notes, host, min(limit_s, 3.0 if fast else 30.0))
    _note_log(notes, host, fast=fast)
    note_fabric(notes, host, packages, fast=fast)
    if not fast:
        notes.fact("driver.stuck", stuck_processes(host), "/proc/*/stat")
    else:
        notes.gap("driver.stuck", "not looked for with --fast", asked=False)
    return notes.looked()


def parse_proc_version(text: str) -> tuple[DriverVersion | None, Flavour | None]:
    """Version and flavour of the loaded module, from its line of /proc/driver/nvidia/version."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d{2,4}(?:\.\d{1,4}){1,3})\b", line)
    if found is None:
        return None, None
    flavour: Flavour = "open" if "Open Kernel Module" in line else "proprietary"
    return driver_of(found[1]), flavour


def _note_version(notes: Notes, host: Host) -> None:
    proc, sys = host.read(PROC_VERSION), host.read(SYS_VERSION, 64)
    version, flavour = parse_proc_version(proc.text)
    notes.fact("driver.kernel", version, PROC_VERSION)
    notes.fact("driver.flavour", flavour, PROC_VERSION)
    if version is None and sys.known:
        text = sys.text.strip()
        try:
            notes.fact("driver.kernel", DriverVersion(text), SYS_VERSION)
        except ValueError:
            notes.gap("driver.kernel", f"{SYS_VERSION} says {text[:40]!r}")
    elif version is None:
        notes.gap("driver.kernel", _unread(proc, PROC_VERSION))


def _unread(answer: Answer, path: str) -> str:
    if answer.missing:
        return f"{path} is not there: no NVIDIA kernel module is loaded"
    return f"{path} cannot be read ({answer.why})" if answer.why else f"{path} names no version"


def _note_modules(notes: Notes, host: Host) -> None:
    """Loaded modules that matter; those built into the kernel stand in /sys/module only."""
    answer = host.read("/proc/modules", 1 << 20)
    folder = host.listing("/sys/module")
    loaded = [line.split(" ", 1)[0] for line in answer.text.splitlines()]
    known = MODULES.intersection([*loaded, *folder.names])
    if not answer.known and not folder.names:
        notes.gap("driver.modules", answer.why or "/proc/modules is not there")
        return
    notes.fact("driver.modules", tuple(sorted(known)), "/proc/modules")


def _blacklisting(host: Host) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for folder in BLACKLISTS:
        for name in host.listing(folder).names:
            path = f"{folder}/{name}"
            if name.endswith(".conf") and _KEEPS_OUT.search(host.read(path, 1 << 16).text):
                found.setdefault(host.stat(path).real or path, path)
    if _KEEPS_OUT_AT_BOOT.search(host.read("/proc/cmdline", 1 << 14).text):
        found["cmdline"] = "/proc/cmdline"
    return tuple(found.values())


# --- device nodes ------------------------------------------------------------------------------


def _note_nodes(notes: Notes, host: Host, limit_s: float) -> None:
    listing = host.listing("/dev")
    if listing.why or listing.missing:
        notes.gap("driver.nodes", listing.why or "/dev is not there")
        return
    paths = list(_node_paths(host, listing.names))
    if not paths:
        notes.fact("driver.nodes", (), "/dev")
        return
    said = streamed(host.inside("nodes.py", *paths, timeout_s=limit_s))
    errnos = {str(line.get("path")): line.get("errno") for line in said.of("node")}
    groups = _groups(host)
    notes.fact("driver.nodes", tuple(_node(host, one, errnos, groups) for one in paths), "open()")
    missing = [n for n, one in enumerate(paths) if one not in errnos]
    for position in missing:
        why = f"{said.call or 'opening it'}: {said.why or 'no answer'}"
        notes.gap(f"driver.nodes.{position}.errno", why)


def _node_paths(host: Host, names: tuple[str, ...]) -> Iterator[str]:
    """The control nodes first: a GPU's own node may take seconds to open."""
    own = [name for name in names if _NODE.fullmatch(name)]
    yield from (f"/dev/{name}" for name in _ORDER if name in own)
    numbered = (name for name in own if name not in _ORDER)
    yield from (f"/dev/{name}" for name in sorted(numbered, key=_natural))
    if "nvidia-caps" in names:
        yield from host.glob("/dev/nvidia-caps/nvidia-cap*")
    if "nvgpu" in names:
        yield from host.glob("/dev/nvgpu/*/ctrl")


def _natural(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.*?)(\d*)", name)
    return (found[1], int(found[2] or -1)) if found else (name, -1)


def _node(host: Host, path: str, errnos: dict[str, object], groups: dict[int, str]) -> Node:
    stat = host.stat(path)
    errno = errnos.get(path)
    return Node(
        path=path,
        errno=errno if type(errno) is int else None,
        mode=stat.mode if stat.exists else None,
        group=groups.get(stat.gid, str(stat.gid)) if stat.exists else None,
    )


def _groups(host: Host) -> dict[int, str]:
    rows = (line.split(":") for line in host.read("/etc/group").text.splitlines())
    numbered = ((whole(row[2]), row[0]) for row in rows if len(row) > 2)
    return {number: name for number, name in numbered if number is not None}


# --- log and stuck processes ---------------------------------------------------------------------


def _note_log(notes: Notes, host: Host, *, fast: bool) -> None:
    text, source = _log_text(host, fast=fast)
    if text is None:
        for fact in ("driver.log", "driver.xids"):
            notes.gap(fact, source)
        return
    uptime = host.read("/proc/uptime", 64).text.partition(" ")[0]
    try:
        log = parse_kernel_log(text, float(uptime))
    except ValueError:
        log = parse_kernel_log(text)
    notes.fact("driver.log", log.lines, source)
    notes.fact("driver.xids", log.xids, source)


def _log_text(host: Host, *, fast: bool) -> tuple[str | None, str]:
    """The text of the kernel log and who gave it; else None and why nobody did."""
    answer = host.read("/dev/kmsg", 4 << 20)
    if answer.known and answer.data:
        return answer.text, "/dev/kmsg"
    if host.which("dmesg"):
        ran = host.run("dmesg", timeout_s=0.7 if fast else 5.0)
        if ran.ok and ran.stdout.strip():
            return ran.stdout, "dmesg"
    if not fast and host.which("journalctl"):
        argv = ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic", "-n", "20000")
        ran = host.run(*argv, timeout_s=5.0)
        if ran.ok and len(ran.stdout.splitlines()) > 1:
            return ran.stdout, "journalctl -k"
    reason = answer.why or ("/dev/kmsg is not there" if answer.missing else "it is empty")
    return None, f"the kernel log is not readable here ({reason})"


def stuck_processes(host: Host) -> tuple[str, ...]:
    """Processes in uninterruptible sleep that have a node of the driver open: "name (pid)"."""
    found = []
    for pid in host.listing("/proc").names:
        if not pid.isdigit():
            continue
        text = host.read(f"/proc/{pid}/stat", 512).text
        name, _, rest = text.partition("(")[2].rpartition(")")
        if rest.split()[:1] == ["D"] and _holds_driver(host, pid, name):
            found.append(f"{name} ({pid})")
    return tuple(found)


def _holds_driver(host: Host, pid: str, name: str) -> bool:
    if name.startswith(("nvidia-", "nv_", "nv-")) or "[nv" in name:
        return True
    handles = host.listing(f"/proc/{pid}/fd").names[:512]
    links = (host.stat(f"/proc/{pid}/fd/{handle}").real for handle in handles)
    return any(link.startswith(("/dev/nvidia", "/dev/dxg")) for link in links)


# --- nVIDIA's kernel modules on disk, for every kernel that is installed, and what DKMS b---

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
        for path in _module_paths(host, f"{BASE}/{kernel}"):
            found.append(_module_file(host, path, kernel, ask))
    return tuple(found)


def _module_paths(host: Host, root: str) -> Iterator[str]:
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
        version=_driver_version(words.get("version", "")) or _version_of_dkms(host, path, kernel),
        flavour=_flavour(words.get("license", ""), path),
    )


def _driver_version(text: str) -> DriverVersion | None:
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
    return _driver_version(versions.pop()) if len(versions) == 1 else None


def _flavour(licence: str, path: str) -> Literal["open", "proprietary"] | None:
    if licence:
        return "open" if "GPL" in licence else "proprietary"
    folder = path.rpartition("/")[0].rpartition("/")[2]
    if folder.startswith("nvidia-"):
        return "open" if folder.endswith("-open") else "proprietary"
    return None


def modinfo(host: Host, path: str) -> dict[str, str]:
    """What an uncompressed module says about itself: only its section .modinfo is read."""
    part = find_section(host, path, ".modinfo")
    if part is None:
        return {}
    text = host.read(path, min(part.size, 1 << 20), part.offset).text
    return _pairs(text.replace("\0", "\n"), "=")


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


# --- nVSwitch's daemon, the fabric manager: whether it is there, runs, and which version ---

UNIT = "nvidia-fabricmanager"
PROGRAM = "/usr/bin/nv-fabricmanager"
UNITS = tuple(f"{folder}/systemd/system/{UNIT}.service" for folder in ("/usr/lib", "/lib", "/etc"))

State = Literal["absent", "inactive", "failed", "active"]


def note_fabric(
    notes: Notes, host: Host, packages: tuple[SystemPackage, ...] | None, *, fast: bool
) -> None:
    """State and version of the fabric manager of this system; a container cannot see the host's."""
    there = any(host.stat(path).exists for path in (PROGRAM, *UNITS))
    version = _of_package(packages or ())
    if not there and version is None:
        notes.fact("driver.fabric.manager", "absent", PROGRAM)
        return
    notes.fact("driver.fabric.version", version or _of_program(host, fast=fast), UNIT)
    argv = ("systemctl", "show", UNIT, "-p", "ActiveState,LoadState")
    ran = host.run(*argv, timeout_s=1.0 if fast else 5.0)
    state = parse_unit(ran.stdout) if ran.ok else None
    notes.fact("driver.fabric.manager", state, f"systemctl show {UNIT}")
    if state is None:
        notes.gap("driver.fabric.manager", "systemd does not answer here")


def _of_package(packages: tuple[SystemPackage, ...]) -> DriverVersion | None:
    for one in packages:
        found = re.search(r"\d{3}\.\d+(?:\.\d+)?", one.version)
        if found and re.fullmatch(r"nvidia-fabric-?manager(-\d+)?", one.name):
            return driver_of(found[0])
    return None


def _of_program(host: Host, *, fast: bool) -> DriverVersion | None:
    if fast:
        return None
    ran = host.run(PROGRAM, "--version", timeout_s=3.0)
    found = re.search(r"version is\s*:?\s*(\d{3}\.\d+(?:\.\d+)?)", ran.stdout + ran.stderr, re.I)
    return driver_of(found[1]) if found else None


def parse_unit(text: str) -> State | None:
    """The state in the lines of `systemctl show`."""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    if words.get("LoadState") == "not-found":
        return "absent"
    return _STATES.get(words.get("ActiveState", ""))


_STATES: dict[str, State] = {
    **dict.fromkeys(("active", "reloading"), "active"),
    **dict.fromkeys(("inactive", "activating", "deactivating"), "inactive"),
    "failed": "failed",
}


# --- packages of the operating system that belong to the driver, CUDA, cuDNN or NCCL ------------

__all__ = ["DPKG", "is_driver", "note_packages", "parse_dpkg"]

DPKG = "/var/lib/dpkg/status"
PACMAN = "/var/lib/pacman/local"
RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")

_LONGEST = 1 << 16
"""Of the words on one package."""


def note_packages(notes: Notes, host: Host, *, fast: bool) -> tuple[SystemPackage, ...] | None:
    """The packages, from whichever database this system has; () where it has none that matters."""
    dpkg = host.read(DPKG, 64 << 20)
    if dpkg.known and dpkg.data:
        source, found = DPKG, parse_dpkg(dpkg.data)
    elif names := host.listing(PACMAN).names:
        # A folder name-version-release for each package.
        parts = (name.rsplit("-", 2) for name in names)
        rows = [(part[0], "-".join(part[1:])) for part in parts if len(part) == 3]
        source, found = PACMAN, _that_matter(rows, "pacman")
    elif not any(host.listing(path).names for path in RPM):
        why = dpkg.why or "no package database of dpkg, rpm or pacman is here"
        notes.gap("driver.packages", why)
        return None
    elif fast:
        notes.gap("driver.packages", "rpm is not asked with --fast", asked=False)
        return None
    else:
        ran = host.run("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n", timeout_s=10.0)
        if not ran.ok:
            notes.gap("driver.packages", f"rpm: {ran.why or f'exit status {ran.code}'}")
            return None
        lines = (line.split() for line in ran.stdout.splitlines())
        source, found = "rpm", _that_matter([(w[0], w[1]) for w in lines if len(w) == 2], "rpm")
    notes.fact("driver.packages", found, source)
    return found


def _that_matter(rows: list[tuple[str, str]], manager: Manager) -> tuple[SystemPackage, ...]:
    return tuple(
        SystemPackage(name=name, version=version, manager=manager)
        for name, version in rows
        if MATTERS.fullmatch(name)
    )


def parse_dpkg(data: bytes) -> tuple[SystemPackage, ...]:
    """The installed packages that matter, out of dpkg's status file."""
    found = []
    for start in re.finditer(rb"\nPackage: ([^\n]*(?:nv|cud|nccl)[^\n]*)", b"\n" + data):
        name = start[1].decode("ascii", "replace")
        # One byte was put before the data, so that the first package also follows a line end.
        begin = start.end() - 1
        end = data.find(b"\n\n", begin, begin + _LONGEST)
        stanza = data[begin : end if end >= 0 else begin + _LONGEST]
        version = re.search(rb"^Version: (\S+)", stanza, re.MULTILINE)
        installed = re.search(rb"^Status: \S+ \S+ (?!config-files|not-installed)", stanza, re.M)
        if version and installed:
            found.append((name, version[1].decode("ascii", "replace")))
    return _that_matter(found, "dpkg")

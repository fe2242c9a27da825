"""The kernel's side of the driver: its version, modules, log, device nodes and stuck processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec.structs import replace

from cudadoctor.host.local import Host, existing
from cudadoctor.model.driver_packages import MATTERS, Manager
from cudadoctor.model.machine import (
    ModuleFile,
    Node,
    OptDriverVersion,
    OptStr,
    Strings,
    SystemPackage,
)
from cudadoctor.model.versions import driver_of, whole
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.elf import find_section
from cudadoctor.probes.streamed import streamed
from cudadoctor.reports.kernel_log import parse_kernel_log

NAMELESS = "contains no version number"
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
    r"(?m)^[ \t]*(?:blacklist\s+nvidia|alias\s+nvidia\s+off"
    r"|install\s+nvidia\s+/(?:usr/)?bin/(?:false|true))\s*(?:#.*)?$",
)
_KEEPS_OUT_AT_BOOT = re.compile(
    r"(?:modprobe\.blacklist|module_blacklist)=(?:\S*,)?nvidia(?:,|\s|$)"
)


def read_kernel(host: Host, *, fast: bool, limit_s: float = 30.0) -> Looked:
    """Everything of the driver that is seen without loading its libraries.

    fast: nothing that starts a program for more than a few milliseconds. limit_s: for each child.
    """
    notes = Looked()
    if host.system != "Linux":
        notes.gap("driver.kernel", "the kernel module is only checked on Linux")
        return notes
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
        notes.gap("driver.stuck", "not checked with --fast", asked=False)
    return notes


def parse_proc_version(text: str) -> tuple[OptDriverVersion, Flavour | None]:
    """Version and flavour of the loaded module, from its line of /proc/driver/nvidia/version."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    version = extract(r"Kernel Module(?: for \S+)?\s+(\d{2,4}(?:\.\d{1,4}){1,3})\b", line)
    flavour: Flavour = "open" if "Open Kernel Module" in line else "proprietary"
    return driver_of(version or ""), flavour if version else None


def _note_version(notes: Looked, host: Host) -> None:
    proc, sys = host.read(PROC_VERSION), host.read(SYS_VERSION, 64)
    version, flavour = parse_proc_version(proc.text)
    notes.section("driver", PROC_VERSION, kernel=version, flavour=flavour)
    if version is not None:
        return
    if sys.known:
        text = sys.text.strip()
        version, why = driver_of(text), f"{SYS_VERSION} says {text[:40]!r}"
    elif proc.missing:
        why = f"{PROC_VERSION} does not exist: no NVIDIA kernel module is loaded"
    else:
        why = f"{PROC_VERSION} " + (f"cannot be read ({proc.why})" if proc.why else NAMELESS)
    notes.fact("driver.kernel", version, SYS_VERSION, why)


def _note_modules(notes: Looked, host: Host) -> None:
    """Loaded modules that matter; those built into the kernel stand in /sys/module only."""
    answer = host.read("/proc/modules", 1 << 20)
    built_in = host.listing("/sys/module").names
    if not answer.known and not built_in:
        notes.gap("driver.modules", answer.why or "/proc/modules does not exist")
        return
    loaded = (line.split(" ", 1)[0] for line in answer.text.splitlines())
    known = sorted(MODULES.intersection([*loaded, *built_in]))
    notes.fact("driver.modules", tuple(known), "/proc/modules")


def _blacklisting(host: Host) -> Strings:
    found: dict[str, str] = {}
    for folder in BLACKLISTS:
        for path in (f"{folder}/{name}" for name in host.listing(folder).names):
            if path.endswith(".conf") and _KEEPS_OUT.search(host.read(path, 1 << 16).text):
                found.setdefault(host.stat(path).real or path, path)
    if _KEEPS_OUT_AT_BOOT.search(host.read("/proc/cmdline", 1 << 14).text):
        found["cmdline"] = "/proc/cmdline"
    return tuple(found.values())


# --- device nodes ------------------------------------------------------------------------------


def _note_nodes(notes: Looked, host: Host, limit_s: float) -> None:
    listing = host.listing("/dev")
    if listing.why or listing.missing:
        notes.gap("driver.nodes", listing.why or "/dev does not exist")
        return
    paths = list(_node_paths(host, listing.names))
    if not paths:
        notes.fact("driver.nodes", (), "/dev")
        return
    answer = streamed(host.inside("nodes.py", *paths, timeout_s=limit_s))
    errnos = {str(line.get("path")): line.get("errno") for line in answer.of("node")}
    rows = (line.split(":") for line in host.read("/etc/group").text.splitlines())
    groups = {whole(row[2]): row[0] for row in rows if len(row) > 2}
    nodes = []
    for place, path in enumerate(paths):
        stat, errno = host.stat(path), errnos.get(path)
        node = Node(path=path, errno=errno if type(errno) is int else None)
        if stat.exists:
            node = replace(node, mode=stat.mode, group=groups.get(stat.gid, str(stat.gid)))
        nodes.append(node)
        if path not in errnos:
            why = f"{answer.call or 'opening it'}: {answer.why or 'no answer'}"
            notes.gap(f"driver.nodes.{place}.errno", why)
    notes.fact("driver.nodes", tuple(nodes), "open()")


def _node_paths(host: Host, names: Strings) -> Iterator[str]:
    """The control nodes first: a GPU's own node may take seconds to open."""

    def order(name: str) -> tuple[int, str, int]:
        stem = name.rstrip("0123456789")
        place = _ORDER.index(name) if name in _ORDER else len(_ORDER)
        return place, stem, int(name[len(stem) :] or -1)

    yield from (f"/dev/{name}" for name in sorted(filter(_NODE.fullmatch, names), key=order))
    if "nvidia-caps" in names:
        yield from host.glob("/dev/nvidia-caps/nvidia-cap*")
    if "nvgpu" in names:
        yield from host.glob("/dev/nvgpu/*/ctrl")


# --- log and stuck processes ---------------------------------------------------------------------


def _note_log(notes: Looked, host: Host, *, fast: bool) -> None:
    text, source = _log_text(host, fast=fast)
    if text is None:
        notes.gap("driver.log", source)
        notes.gap("driver.xids", source)
        return
    uptime = host.read("/proc/uptime", 64).text.partition(" ")[0]
    try:
        log = parse_kernel_log(text, float(uptime))
    except ValueError:
        log = parse_kernel_log(text)
    notes.section("driver", source, log=log.lines, xids=log.xids)


def _log_text(host: Host, *, fast: bool) -> tuple[OptStr, str]:
    """The text of the kernel log and who gave it; else None and why nobody did."""
    answer = host.read("/dev/kmsg", 4 << 20)
    if answer.known and answer.data:
        return answer.text, "/dev/kmsg"
    journal = ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic", "-n", "20000")
    for argv, source, least in ((("dmesg",), "dmesg", 0), (journal, "journalctl -k", 1)):
        if host.which(argv[0]) and not (fast and argv is journal):
            ran = host.run(*argv, timeout_s=0.7 if fast else 5.0)
            if ran.ok and len(ran.stdout.strip().splitlines()) > least:
                return ran.stdout, source
    reason = answer.why or ("/dev/kmsg does not exist" if answer.missing else "it is empty")
    return None, f"the kernel log cannot be read here ({reason})"


def stuck_processes(host: Host) -> Strings:
    """Processes in uninterruptible sleep that have a node of the driver open: "name (pid)"."""
    found = []
    for pid in filter(str.isdigit, host.listing("/proc").names):
        name, _, rest = host.read(f"/proc/{pid}/stat", 512).text.partition("(")[2].rpartition(")")
        if rest.split()[:1] == ["D"] and _holds_driver(host, pid, name):
            found.append(f"{name} ({pid})")
    return tuple(found)


def _holds_driver(host: Host, pid: str, name: str) -> bool:
    if name.startswith(("nvidia-", "nv_", "nv-")) or "[nv" in name:
        return True
    handles = host.listing(f"/proc/{pid}/fd").names[:512]
    links = (host.stat(f"/proc/{pid}/fd/{handle}").real for handle in handles)
    return any(link.startswith(("/dev/nvidia", "/dev/dxg")) for link in links)


# --- NVIDIA's kernel modules on disk, for every kernel that is installed, and what DKMS built -----

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
    return tuple(
        _module_file(host, f"{folder}/{name}", kernel, ask)
        for kernel in host.listing(BASE).names[-_MOST_KERNELS:]
        for folder in _module_folders(host, f"{BASE}/{kernel}")
        for name in host.listing(folder).names
        if _FILE.fullmatch(name)
    )


def _module_folders(host: Host, root: str) -> Iterator[str]:
    """Ubuntu's signed modules too: kernel/nvidia-570-open, kernel/nvidia-580srv."""
    signed = [name for name in host.listing(f"{root}/kernel").names if name.startswith("nvidia")]
    yield from (f"{root}/{folder}" for folder in _FOLDERS)
    yield from (f"{root}/kernel/{name}" for name in signed)


def _module_file(host: Host, path: str, kernel: str, ask: bool) -> ModuleFile:
    words = modinfo(host, path) if path.endswith(".ko") else {}
    if not words and ask and host.which("modinfo"):
        ran = host.run("modinfo", path, timeout_s=5.0)
        words = _pairs(ran.stdout, ":") if ran.ok else {}
    version = driver_of(words.get("version", ""))
    if version is None and "/dkms/" in path:
        # A module in DKMS's folder is of the version that DKMS installed for that kernel.
        lines = (line for line in dkms_lines(host) if f", {kernel}," in line)
        rows = {re.split("[/,]", line)[1] for line in lines if line.endswith(": installed")}
        version = driver_of(rows.pop()) if len(rows) == 1 else None
    flavour = _flavour(words.get("license", ""), path)
    return ModuleFile(path=path, kernel=kernel, version=version, flavour=flavour)


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
    """The first value of each name."""
    rows = [line.partition(between) for line in text.splitlines()]
    return {name.strip(): value.strip() for name, there, value in reversed(rows) if there}


def dkms_lines(host: Host) -> Strings:
    """What `dkms status` would print for nvidia, read from its folders: it is slow itself."""
    return tuple(
        line
        for module in host.listing(DKMS).names
        if module.startswith("nvidia")
        for version in host.listing(f"{DKMS}/{module}").names
        if version[:1].isdigit()
        for line in _built(host, module, version)
    )


def _built(host: Host, module: str, version: str) -> list[str]:
    folder = f"{DKMS}/{module}"
    links = host.listing(folder).names
    lines = []
    for kernel in host.listing(f"{folder}/{version}").names:
        if kernel in ("source", "build"):
            continue
        for arch in host.listing(f"{folder}/{version}/{kernel}").names:
            link = f"kernel-{kernel}-{arch}"
            real = f"{host.stat(f'{folder}/{link}').real}/"
            built = host.listing(f"{folder}/{version}/{kernel}/{arch}/module").names
            state = "built" if built else "failed"
            state = "installed" if link in links and f"/{version}/" in real else state
            lines.append(f"{module}/{version}, {kernel}, {arch}: {state}")
    return lines or [f"{module}/{version}: added"]


# --- NVSwitch's daemon, the fabric manager: whether it is there, runs, and which version ---------

UNIT = "nvidia-fabricmanager"
PROGRAM = "/usr/bin/nv-fabricmanager"
UNITS = tuple(f"{folder}/systemd/system/{UNIT}.service" for folder in ("/usr/lib", "/lib", "/etc"))

_FABRIC_VERSION = re.compile(r"(?i)version is\s*:?\s*(\d{3}\.\d+(?:\.\d+)?)")
State = Literal["absent", "inactive", "failed", "active"]


def note_fabric(
    notes: Looked, host: Host, packages: tuple[SystemPackage, ...] | None, *, fast: bool
) -> None:
    """State and version of the fabric manager of this system; a container cannot see the host's."""
    named = (p for p in packages or () if re.fullmatch(r"nvidia-fabric-?manager(-\d+)?", p.name))
    found = (re.search(r"\d{3}\.\d+(?:\.\d+)?", package.version) for package in named)
    version = next((driver_of(release[0]) for release in found if release), None)
    if version is None and existing(host, (PROGRAM, *UNITS)) is None:
        notes.fact("driver.fabric.manager", "absent", PROGRAM)
        return
    if version is None and not fast:
        ran = host.run(PROGRAM, "--version", timeout_s=3.0)
        version = driver_of(extract(_FABRIC_VERSION, ran.stdout + ran.stderr) or "")
    notes.fact("driver.fabric.version", version, UNIT)
    argv = ("systemctl", "show", UNIT, "-p", "ActiveState,LoadState")
    ran = host.run(*argv, timeout_s=1.0 if fast else 5.0)
    state = parse_unit(ran.stdout) if ran.ok else None
    source, why = f"systemctl show {UNIT}", "systemd does not respond"
    notes.fact("driver.fabric.manager", state, source, why)


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

DPKG = "/var/lib/dpkg/status"
PACMAN = "/var/lib/pacman/local"
RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")

_LONGEST = 1 << 16
"""Of the words on one package."""


def note_packages(notes: Looked, host: Host, *, fast: bool) -> tuple[SystemPackage, ...] | None:
    """The packages, from whichever database this system has; () where it has none that matters."""
    dpkg = host.read(DPKG, 64 << 20)
    if dpkg.known and dpkg.data:
        source, found = DPKG, parse_dpkg(dpkg.data)
    elif names := host.listing(PACMAN).names:
        # A folder name-version-release for each package.
        rows = (name.rsplit("-", 2) for name in names)
        source, found = PACMAN, _that_matter(rows, "pacman")
    elif not any(host.listing(path).names for path in RPM):
        why = dpkg.why or "no dpkg, rpm or pacman database found"
        notes.gap("driver.packages", why)
        return None
    elif fast:
        notes.gap("driver.packages", "rpm is not run with --fast", asked=False)
        return None
    else:
        ran = host.run("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n", timeout_s=10.0)
        if not ran.ok:
            notes.gap("driver.packages", f"rpm: {ran.why or f'exit status {ran.code}'}")
            return None
        rows = (line.split() for line in ran.stdout.splitlines())
        source, found = "rpm", _that_matter(rows, "rpm")
    notes.fact("driver.packages", found, source)
    return found


def _that_matter(rows: Iterable[list[str]], manager: Manager) -> tuple[SystemPackage, ...]:
    """Of rows of name, version and maybe release."""
    return tuple(
        SystemPackage(name=row[0], version="-".join(row[1:]), manager=manager)
        for row in rows
        if len(row) > 1 and MATTERS.fullmatch(row[0])
    )


def parse_dpkg(data: bytes) -> tuple[SystemPackage, ...]:
    """The installed packages that matter, out of dpkg's status file."""
    found = []
    data = b"\n" + data  # so that the first package also follows a line end
    for start in re.finditer(rb"\nPackage: ([^\n]*(?:nv|cud|nccl)[^\n]*)", data):
        end = data.find(b"\n\n", start.end(), start.end() + _LONGEST)
        stanza = data[start.end() : end if end >= 0 else start.end() + _LONGEST]
        version = re.search(rb"^Version: (\S+)", stanza, re.M)
        installed = re.search(rb"^Status: \S+ \S+ (?!config-files|not-installed)", stanza, re.M)
        if version and installed:
            found.append([text.decode("ascii", "replace") for text in (start[1], version[1])])
    return _that_matter(found, "dpkg")

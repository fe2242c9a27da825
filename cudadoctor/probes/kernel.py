"""The kernel's side of the driver: its version, modules, log, device nodes and stuck processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from cudadoctor.host.local import Answer, Host
from cudadoctor.model.machine import Node
from cudadoctor.model.versions import DriverVersion, driver_of, whole
from cudadoctor.probes import Looked, Notes
from cudadoctor.probes.fabric import note_fabric
from cudadoctor.probes.modules import dkms_lines, module_files
from cudadoctor.probes.packages import note_packages
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

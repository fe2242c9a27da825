"""The operating system, the machine under it, and what boxes this process in."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

from packaging.version import Version

from cudadoctor.host.local import Host, home_of
from cudadoctor.model.machine import (
    Container,
    Identity,
    Json,
    OptBool,
    OptStr,
    OptVersion,
    Platform,
)
from cudadoctor.model.versions import version_of
from cudadoctor.probes import Looked, extract
from cudadoctor.probes.elf import find_section

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
WSL_LIBCUDA = "/usr/lib/wsl/lib/libcuda.so.1"

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "i386": "i686", "x86": "i686"}
_ELF_MACHINES = {
    62: "x86_64",
    183: "aarch64",
    3: "i686",
    40: "armv7l",
    21: "ppc64le",
    243: "riscv64",
}
_LIBC_PLACES = (
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
)


def read_platform(host: Host) -> Looked:
    """System, distribution, libc, WSL, Jetson, virtual machine, container, scheduler, identity."""
    notes = Looked()
    notes.fact("identity", _identity(host), "environment")
    linux = host.system == "Linux"
    kind = container_kind(host) if linux else ""
    found = _linux(host, kind, notes) if linux else _elsewhere(host)
    notes.fact("platform", found, "/etc/os-release" if linux else host.system)
    box = Container(
        kind=kind,
        scheduler=scheduler(host.env),
        dxg=host.stat("/dev/dxg").exists if linux else False,
        wsl_libs=host.stat(WSL_LIBCUDA).exists if linux else False,
    )
    notes.fact("container", box, "/proc and the environment")
    return notes


def _linux(host: Host, kind: str, notes: Looked) -> Platform:
    release = parse_os_release(
        host.read("/etc/os-release").text or host.read("/usr/lib/os-release").text
    )
    kernel = host.read("/proc/sys/kernel/osrelease").text.strip() or None
    libc, glibc = _libc(host)
    jetson, l4t, board = _jetson(host, kernel or "")
    uid = extract(r"(?m)^Uid:\s+\d+\s+(\d+)", host.read("/proc/self/status").text)
    return Platform(
        system="Linux",
        machine=_linux_machine(host),
        kernel=kernel,
        distro=release.get("ID", "").lower() or None,
        distro_version=release.get("VERSION_ID") or None,
        distro_like=tuple(release.get("ID_LIKE", "").lower().split()),
        libc=libc,
        glibc=glibc,
        wsl=wsl_of(host, kernel or ""),
        jetson=jetson,
        l4t=l4t,
        virtual=hypervisor(host, kernel or ""),
        product=board or _product(host),
        root=uid == "0" if uid else None,
        secure_boot=_secure_boot(host, kind, notes),
    )


def parse_os_release(text: str) -> dict[str, str]:
    """os-release as a dict, quotes removed."""
    rows = (line.strip().partition("=") for line in text.splitlines())
    return {
        name: value.strip().strip("\"'")
        for name, equals, value in rows
        if equals and name.isidentifier()
    }


def _linux_machine(host: Host) -> OptStr:
    """Of the kernel; kernels before 6.1 do not say it in /proc, there it is our own program's."""
    name = host.read("/proc/sys/kernel/arch").text.strip().lower()
    if re.fullmatch(r"[a-z]\w{2,20}", name, re.ASCII):
        return _MACHINES.get(name, name)
    header = host.read("/proc/self/exe", 20).data
    if header[:4] == b"\x7fELF" and len(header) == 20:
        return _ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))
    return None


def _libc(host: Host) -> tuple[Literal["glibc", "musl"] | None, OptVersion]:
    for place in _LIBC_PLACES:
        # The banner lies in a twelfth of the file; a recorded host may hold the words alone.
        part = find_section(host, place, ".rodata")
        data = host.read(place, part.size, part.offset).data if part else host.read(place).data
        at = data.find(b"GNU C Library ")
        found = re.search(rb"version (\d+\.\d+)", data[at : at + 120]) if at >= 0 else None
        if found:
            return "glibc", Version(found[1].decode())
    if host.glob("/lib/ld-musl-*.so.1"):
        return "musl", None
    return None, None


def wsl_of(host: Host, kernel: str) -> int:
    """0 no WSL, else 1 or 2. A kernel built by the user lacks the word, /dev/dxg is still there."""
    if "microsoft" in kernel.lower():
        return 1 if kernel.startswith(("3.", "4.4.")) and "WSL2" not in kernel else 2
    mounted = host.stat("/dev/dxg").exists or host.stat("/usr/lib/wsl/lib").exists
    return 2 if mounted else 0


def _jetson(host: Host, kernel: str) -> tuple[bool, OptVersion, OptStr]:
    """Whether it is a Tegra board, its L4T release and its name."""
    release = host.read("/etc/nv_tegra_release")
    compatible = host.read("/proc/device-tree/compatible", 4096).text
    tegra = "nvidia,tegra" in compatible or release.known or kernel.endswith("-tegra")
    model = host.read("/proc/device-tree/model", 256).text.strip("\x00 \n") if tegra else ""
    return tegra, parse_l4t(release.text), model or None


def parse_l4t(text: str) -> OptVersion:
    """# R36 (release), REVISION: 4.3 is 36.4.3."""
    found = re.search(r"R(\d+) \(release\), REVISION: (\d+(?:\.\d+)?)", text)
    return version_of(f"{found[1]}.{found[2]}") if found else None


def _product(host: Host) -> OptStr:
    answer = host.read("/sys/class/dmi/id/product_name", 256)
    if answer.missing:
        return ""
    return answer.text.strip() if answer.known else None


def _secure_boot(host: Host, kind: str, notes: Looked) -> OptBool:
    """The fifth byte says it; a machine without EFI has none; a container often cannot see."""
    answer = host.read(SECURE_BOOT, 16)
    if answer.known and len(answer.data) >= 5:
        return answer.data[4] == 1
    firmware = host.listing("/sys/firmware")
    # Containers show an empty folder in its place.
    if firmware.names and "efi" not in firmware.names:
        return False
    why = (
        "the firmware is not visible in a container"
        if kind
        else "the Secure Boot EFI variable cannot be read"
    )
    notes.gap("platform.secure_boot", answer.why or why)
    return None


def _elsewhere(host: Host) -> Platform:
    """Windows and macOS, as far as Python knows them without starting anything."""
    plain: Json = {"distro": "", "distro_like": (), "wsl": 0, "jetson": False}
    if host.system == "Windows":
        env, version = host.env, getattr(sys, "getwindowsversion", lambda: None)()
        processor = env.get("PROCESSOR_ARCHITEW6432") or env.get("PROCESSOR_ARCHITECTURE") or ""
        machine = _MACHINES.get(processor.lower(), processor.lower()) or None
        kernel = f"{version.major}.{version.minor}.{version.build}" if version else None
        return Platform(system="Windows", machine=machine, kernel=kernel, **plain)
    known: Any = getattr(os, "uname", lambda: None)()
    return Platform(
        system="Darwin",
        machine=known.machine.lower() if known else None,
        kernel=known.release.lower() if known else None,
        root=getattr(os, "geteuid", lambda: 1)() == 0,
        **plain,
    )


def _identity(host: Host) -> Identity:
    env, linux = host.env, host.system == "Linux"
    name = host.read("/proc/sys/kernel/hostname", 256).text.strip() if linux else ""
    user = env.get("USER") or env.get("LOGNAME") or env.get("USERNAME") or _user(host)
    return Identity(
        user=user[:256] if user else None,
        home=home_of(host) or None,
        host=name or env.get("COMPUTERNAME") or env.get("HOSTNAME") or None,
    )


def _user(host: Host) -> OptStr:
    """Containers often lack USER; the password file knows the number."""
    status = host.read("/proc/self/status").text if host.system == "Linux" else ""
    if not (uid := extract(r"(?m)^Uid:\s+(\d+)", status)):
        return None
    rows = (line.split(":") for line in host.read("/etc/passwd").text.splitlines())
    return next((row[0] for row in rows if row[2:3] == [uid]), None)


# --- what a process is boxed in: container, job of a scheduler, virtual machine -----------------

_IN_ROOT_MOUNT = (
    ("kubelet", "kubernetes"),
    ("kubepods", "kubernetes"),
    ("/containers/storage/", "podman"),
    ("/docker/", "docker"),
    ("/enroot", "enroot"),
    ("/apptainer", "apptainer"),
    ("/singularity", "apptainer"),
    ("containerd", "containerd"),
    ("/lxc/", "lxc"),
    ("/lxd/", "lxc"),
    ("/incus/", "lxc"),
)
"""Words in the mount of / or in cgroup v1 paths, and who puts them there."""

_NAMED = {"lxc": "lxc", "podman": "podman", "docker": "docker", "oci": "other", "enroot": "enroot"}

_MAKERS = {
    "kvm": (
        *("qemu", "kvm", "google", "amazon ec2", "openstack", "digitalocean", "alibaba"),
        "nutanix",
    ),
    "vmware": ("vmware",),
    "virtualbox": ("virtualbox", "innotek"),
    "microsoft": ("microsoft",),
    "xen": ("xen",),
    "parallels": ("parallels",),
    "bhyve": ("bhyve",),
}
"""Hypervisors, and the words of their DMI maker or product."""


def container_kind(host: Host) -> str:
    """The container around this process, "" where none is seen."""
    env = host.env
    if env.get("APPTAINER_CONTAINER") or env.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for path, kind in _MARKS.items():
        if host.stat(path).exists:
            return kind
    mounts = (line.split() for line in host.read("/proc/self/mountinfo").text.splitlines())
    roots = (" ".join(words) for words in mounts if words[4:5] == ["/"])
    words = [root for root in roots if " - overlay " in root or " - fuse" in root]
    text = "\n".join([*words, host.read("/proc/1/cgroup").text])
    return next((kind for word, kind in _IN_ROOT_MOUNT if word in text), "") or _by_name(host)


_MARKS = {
    "/run/.containerenv": "podman",
    "/.dockerenv": "docker",
    "/.singularity.d": "apptainer",
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/dev/lxd": "lxc",
    "/dev/.lxc": "lxc",
}


def _by_name(host: Host) -> str:
    """`container` is set by systemd-nspawn, LXC and Podman, for the first process at least."""
    first = host.read("/proc/1/environ").text
    if name := host.env.get("container") or extract(r"(?:^|\x00)container=([^\x00]*)", first):
        return _NAMED.get(name, "other")
    return "enroot" if any(key.startswith("ENROOT_") for key in host.env) else ""


def scheduler(env: Mapping[str, str]) -> str:
    """Whose job this process is, "" where it is nobody's."""
    return next((kind for name, kind in _JOBS.items() if env.get(name)), "")


_JOBS = {
    "SLURM_JOB_ID": "slurm",
    "SLURM_JOBID": "slurm",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "LSB_JOBID": "lsf",
    "PBS_JOBID": "pbs",
}


def hypervisor(host: Host, kernel: str) -> str:
    """The hypervisor, "" on bare metal, "other" where it does not say its name."""
    if "microsoft" in kernel.lower():
        return "microsoft"
    cpuinfo = host.read("/proc/cpuinfo", 8192).text
    ids = (host.read(f"/sys/class/dmi/id/{name}", 256) for name in ("sys_vendor", "product_name"))
    maker = " ".join(answer.text.strip().lower() for answer in ids)
    if ".metal" in maker:
        return ""
    named = next((kind for kind, words in _MAKERS.items() if any(w in maker for w in words)), "")
    # Microsoft and Google sell machines of metal too: the processor must agree, where it can.
    if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M):
        return named or host.read("/sys/hypervisor/type", 64).text.strip() or "other"
    return named if named in ("kvm", "xen") and "\nflags" not in cpuinfo else ""

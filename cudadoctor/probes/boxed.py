"""What a process is boxed in: container, job of a scheduler, virtual machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cudadoctor.host.local import Host

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

_MAKERS = (
    ("qemu", "kvm"),
    ("kvm", "kvm"),
    ("google", "kvm"),
    ("amazon ec2", "kvm"),
    ("openstack", "kvm"),
    ("digitalocean", "kvm"),
    ("alibaba", "kvm"),
    ("vmware", "vmware"),
    ("virtualbox", "virtualbox"),
    ("innotek", "virtualbox"),
    ("microsoft", "microsoft"),
    ("xen", "xen"),
    ("parallels", "parallels"),
    ("bhyve", "bhyve"),
    ("nutanix", "kvm"),
)
"""Words of the DMI maker or product, and the hypervisor behind them."""


def container_kind(host: Host) -> str:
    """The container around this process, "" where none is seen."""
    env = host.env
    if env.get("APPTAINER_CONTAINER") or env.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for path, kind in (
        ("/run/.containerenv", "podman"),
        ("/.dockerenv", "docker"),
        ("/.singularity.d", "apptainer"),
        ("/var/run/secrets/kubernetes.io", "kubernetes"),
        ("/dev/lxd", "lxc"),
        ("/dev/.lxc", "lxc"),
    ):
        if host.stat(path).exists:
            return kind
    return _by_mounts(host) or _by_name(host)


def _by_mounts(host: Host) -> str:
    mounts = host.read("/proc/self/mountinfo").text.splitlines()
    roots = [line for line in mounts if len(line.split()) > 4 and line.split()[4] == "/"]
    overlay = [line for line in roots if " - overlay " in line or " - fuse" in line]
    groups = host.read("/proc/1/cgroup").text
    text = "\n".join([*overlay, groups])
    return next((kind for word, kind in _IN_ROOT_MOUNT if word in text), "")


def _by_name(host: Host) -> str:
    """`container` is set by systemd-nspawn, LXC and Podman, for the first process at least."""
    first = host.read("/proc/1/environ").text
    found = re.search(r"(?:^|\x00)container=([^\x00]*)", first)
    name = host.env.get("container") or (found[1] if found else "")
    if not name:
        return "enroot" if any(key.startswith("ENROOT_") for key in host.env) else ""
    return _NAMED.get(name, "other")


def scheduler(env: Mapping[str, str]) -> str:
    """Whose job this process is, "" where it is nobody's."""
    for names, kind in (
        (("SLURM_JOB_ID", "SLURM_JOBID"), "slurm"),
        (("KUBERNETES_SERVICE_HOST",), "kubernetes"),
        (("LSB_JOBID",), "lsf"),
        (("PBS_JOBID",), "pbs"),
    ):
        if any(env.get(name) for name in names):
            return kind
    return ""


def hypervisor(host: Host, kernel: str) -> str:
    """The hypervisor, "" on bare metal, "other" where it does not say its name."""
    if "microsoft" in kernel.lower():
        return "microsoft"
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", _cpuinfo(host), re.M) is not None
    maker = " ".join(
        host.read(f"/sys/class/dmi/id/{name}", 256).text.strip().lower()
        for name in ("sys_vendor", "product_name")
    )
    if ".metal" in maker:
        return ""
    named = next((kind for word, kind in _MAKERS if word in maker), "")
    # Microsoft and Google sell machines of metal too: the processor must agree, where it can.
    if flagged:
        return named or host.read("/sys/hypervisor/type", 64).text.strip() or "other"
    return named if named in ("kvm", "xen") and not _has_flags(host) and maker else ""


def _has_flags(host: Host) -> bool:
    return "\nflags" in _cpuinfo(host)


def _cpuinfo(host: Host) -> str:
    return host.read("/proc/cpuinfo", 8192).text

"""Limits of this process: shared memory, locked memory, open files, memory, processors."""

from __future__ import annotations

import re

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Limits
from cudadoctor.model.versions import whole
from cudadoctor.probes import Looked

UNLIMITED = -1
_V1_UNLIMITED = 1 << 60
_LONGEST_LINE = 200
_MOST_CPUS = 1 << 20
_NAMES_INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_MOST_INTERFACES = 512


def read_limits(host: Host, environment: str | None = None) -> Looked:
    """All limits. environment: the folder of the examined environment, for its free space."""
    notes = Looked()
    tmp = host.env.get("TMPDIR") or host.env.get("TEMP") or host.env.get("TMP") or "/tmp"
    room, home = host.space(tmp), host.space(environment) if environment else None
    linux = host.system == "Linux"
    shm = host.space("/dev/shm") if linux else None
    limits = parse_limits(host.read("/proc/self/limits").text) if linux else {}
    meminfo = host.read("/proc/meminfo").text if linux else ""
    memory = re.search(r"^MemTotal:\s+(\d{1,15}) kB", meminfo, re.M)
    if linux and shm is None:
        notes.gap("limits.shm_bytes", "/dev/shm is not there")
    found = Limits(
        shm_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        memlock_bytes=limits.get("Max locked memory"),
        nofile=limits.get("Max open files"),
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        cgroup_memory_bytes=_cgroup_memory(host) if linux else None,
        cpus=_cpus(host) if linux else whole(host.env.get("NUMBER_OF_PROCESSORS", "")),
        tmp_free_bytes=room.free_bytes if room else None,
        env_free_bytes=home.free_bytes if home else None,
        interfaces=_interfaces(host, notes) if linux else None,
    )
    notes.fact("limits", found, "this process")
    return notes


def _interfaces(host: Host, notes: Looked) -> tuple[str, ...] | None:
    """The names of the network interfaces, where a variable names one to be compared with."""
    if not any(host.env.get(name) for name in _NAMES_INTERFACE):
        return None
    found = host.listing("/sys/class/net")
    if not found.names:
        notes.gap("limits.interfaces", "/sys/class/net is not readable")
        return None
    return tuple(sorted(found.names))[:_MOST_INTERFACES]


def parse_limits(text: str) -> dict[str, int]:
    """The soft limits of /proc/self/limits; -1 is unlimited."""
    found = {}
    for line in text.splitlines():
        row = re.match(r"(Max .*?)\s{2,}(unlimited|\d+)\s", line[:_LONGEST_LINE])
        number = UNLIMITED if row and row[2] == "unlimited" else whole(row[2]) if row else None
        if row and number is not None:
            found[row[1]] = number
    return found


def _cpus(host: Host) -> int | None:
    """Processors that this process may use: its affinity, then the quota of its control group."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", host.read("/proc/self/status").text, re.M)
    allowed = parse_cpu_list(found[1]) if found else None
    quota = _quota(host)
    if allowed is None or quota is None:
        return allowed or quota
    return min(allowed, quota)


def parse_cpu_list(text: str) -> int | None:
    """How many processors 0-3,8 names."""
    total = 0
    for part in text.split(","):
        row = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if row is None or int(row[2] or row[1]) < int(row[1]):
            return None
        total += int(row[2] or row[1]) - int(row[1]) + 1
    return total if total <= _MOST_CPUS else None


def _quota(host: Host) -> int | None:
    for text in _up(host, "cpu.max"):
        row = re.match(r"(\d{1,18}) (\d{1,18})\b", text)
        if row and int(row[2]):
            return max(1, -(-int(row[1]) // int(row[2])))
    quota = whole(host.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 64).text)
    period = whole(host.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 64).text)
    return max(1, -(-quota // period)) if quota is not None and period else None


def _cgroup_memory(host: Host) -> int | None:
    """The tightest limit from the own control group up to the root; -1 where none is set."""
    texts = _up(host, "memory.max")
    # In a container the own path is the host's, so the root of the mount is asked too.
    for folder in dict.fromkeys((_own_group(host, "memory").rstrip("/"), "")):
        answer = host.read(f"/sys/fs/cgroup/memory{folder}/memory.limit_in_bytes", 64)
        texts += [answer.text] if answer.known else []
    numbers = [whole(text) for text in texts]
    limits = [number for number in numbers if number is not None and number < _V1_UNLIMITED]
    if limits:
        return min(limits)
    return UNLIMITED if texts or host.listing("/sys/fs/cgroup").names else None


def _own_group(host: Host, controller: str) -> str:
    for line in host.read("/proc/self/cgroup").text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return path.strip()
    return "/"


def _up(host: Host, name: str) -> list[str]:
    """A file of cgroup v2 in the own group and in all above it."""
    path = _own_group(host, "").rstrip("/")
    found = []
    while True:
        answer = host.read(f"/sys/fs/cgroup{path}/{name}", 4096)
        if answer.known:
            found.append(answer.text)
        if not path:
            return found
        path = path.rpartition("/")[0]

"""Limits of this process: shared memory, locked memory, open files, memory, processors."""

from __future__ import annotations

import re

from cudadoctor.host.local import Host
from cudadoctor.model.machine import Limits, OptInt, OptStrings
from cudadoctor.model.versions import whole
from cudadoctor.probes import Looked, extract

UNLIMITED = -1
_V1_UNLIMITED = 1 << 60
_LONGEST_LINE = 200
_MOST_CPUS = 1 << 20
_NAMES_INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_MOST_INTERFACES = 512


def read_limits(host: Host) -> Looked:
    """All limits of this process and of its file systems."""
    notes = Looked()
    tmp = host.env.get("TMPDIR") or host.env.get("TEMP") or host.env.get("TMP") or "/tmp"
    room = host.space(tmp)
    free = room.free_bytes if room else None
    if host.system != "Linux":
        cpus = whole(host.env.get("NUMBER_OF_PROCESSORS", ""))
        notes.fact("limits", Limits(cpus=cpus, tmp_free_bytes=free), "this process")
        return notes
    shm, text = host.space("/dev/shm"), host.read("/proc/self/limits").text
    limits = parse_limits(text)
    memory = extract(r"(?m)^MemTotal:\s+(\d{1,15}) kB", host.read("/proc/meminfo").text)
    if shm is None:
        notes.gap("limits.shm_bytes", "/dev/shm does not exist")
    found = Limits(
        shm_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        memlock_bytes=limits.get("Max locked memory"),
        memlock_hard_bytes=parse_limits(text, hard=True).get("Max locked memory"),
        nofile=limits.get("Max open files"),
        memory_bytes=int(memory) * 1024 if memory else None,
        cgroup_memory_bytes=_cgroup_memory(host),
        cpus=_cpus(host),
        tmp_free_bytes=free,
        interfaces=_interfaces(host, notes),
    )
    notes.fact("limits", found, "this process")
    return notes


def _interfaces(host: Host, notes: Looked) -> OptStrings:
    """The names of the network interfaces, where a variable names one to be compared with."""
    if not any(map(host.env.get, _NAMES_INTERFACE)):
        return None
    names = host.listing("/sys/class/net").names
    if not names:
        notes.gap("limits.interfaces", "/sys/class/net cannot be read")
    return tuple(sorted(names))[:_MOST_INTERFACES] or None


def parse_limits(text: str, *, hard: bool = False) -> dict[str, int]:
    """The soft or the hard limits of /proc/self/limits; -1 is unlimited."""
    before = r"\S+\s+" if hard else ""
    row_of = re.compile(rf"(Max .*?)\s{{2,}}{before}(unlimited|\d+)(?:\s|$)")
    rows = (row_of.match(line[:_LONGEST_LINE]) for line in text.splitlines())
    known = {row[1]: UNLIMITED if row[2] == "unlimited" else whole(row[2]) for row in rows if row}
    return {name: limit for name, limit in known.items() if limit is not None}


def _cpus(host: Host) -> OptInt:
    """Processors that this process may use: its affinity, then the quota of its control group."""
    allowed = extract(r"(?m)^Cpus_allowed_list:\s*(\S+)", host.read("/proc/self/status").text)
    limits = (parse_cpu_list(allowed or ""), _quota(host))
    return min((limit for limit in limits if limit is not None), default=None)


def parse_cpu_list(text: str) -> OptInt:
    """How many processors 0-3,8 names."""
    total = 0
    for part in text.split(","):
        row = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(row[1]), int(row[2] or row[1])) if row else (1, 0)
        if last < first:
            return None
        total += last - first + 1
    return total if total <= _MOST_CPUS else None


def _quota(host: Host) -> OptInt:
    for text in group_files(host, "cpu.max"):
        row = re.match(r"(\d{1,18}) (\d{1,18})\b", text)
        if row and int(row[2]):
            return max(1, -(-int(row[1]) // int(row[2])))
    quota = whole(host.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 64).text)
    period = whole(host.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 64).text)
    return max(1, -(-quota // period)) if quota is not None and period else None


def _cgroup_memory(host: Host) -> OptInt:
    """The tightest limit from the own control group up to the root; -1 where none is set."""
    texts = group_files(host, "memory.max")
    # In a container the own path is the host's, so the root of the mount is asked too.
    for folder in dict.fromkeys((_own_group(host, "memory"), "")):
        answer = host.read(f"/sys/fs/cgroup/memory{folder}/memory.limit_in_bytes", 64)
        texts += [answer.text] if answer.known else []
    limits = [limit for text in texts if (limit := whole(text)) is not None]
    known = texts or host.listing("/sys/fs/cgroup").names
    tightest = min((limit for limit in limits if limit < _V1_UNLIMITED), default=UNLIMITED)
    return tightest if known else None


def _own_group(host: Host, controller: str) -> str:
    """The path of the own control group, "" at the root."""
    for line in host.read("/proc/self/cgroup").text.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if controller in names.split(","):
            return path.strip().rstrip("/")
    return ""


def group_files(host: Host, name: str) -> list[str]:
    """A file of cgroup v2 in the own group and in all above it."""
    path = _own_group(host, "")
    above = [path.rsplit("/", count)[0] for count in range(path.count("/") + 1)]
    answers = [host.read(f"/sys/fs/cgroup{folder}/{name}", 4096) for folder in above]
    return [answer.text for answer in answers if answer.known]

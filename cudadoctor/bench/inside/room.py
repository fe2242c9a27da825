"""How much room there is for batches on their way to the device: memory, and /dev/shm."""

import os
from typing import Iterable, Optional, Tuple

SHARED = "/dev/shm"
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
AHEAD = 2
"""Batches that each worker prepares in advance: the loader's own default."""
IN_USE = 2
"""Batches that have left the workers, and are not given back yet."""
WORKER_BYTES = 128 << 20
"""What a forked worker comes to need of its own, apart from its batches."""
SHARE = 0.25
"""Of what there is: several loaders run side by side, and others are guests too."""


def available_bytes() -> int:
    """Memory that is free for a new program, in this container too; 0 where that is not known."""
    try:
        with open("/proc/meminfo") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0
    free = next((int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"), 0)
    allowed = allowed_bytes()
    return free if allowed is None else min(free, allowed)


def shared_bytes() -> Optional[int]:
    """What one loader may fill of /dev/shm, through which workers hand over; None not known.

    Mostly a part of the whole, so that loaders side by side get the same number of workers.
    """
    try:
        found = os.statvfs(SHARED)
    except (OSError, AttributeError):
        return None
    whole, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return int(min(SHARE * whole, free / 2.0))


def workers_that_fit(
    asked: int, batch_bytes: int, shared: Optional[int], memory: int
) -> Tuple[int, str]:
    """So many workers at most, and why there are none. memory: 0 where it is not known."""
    fit, why = asked, ""
    if shared is not None:
        fit, why = _fewer(fit, (shared // batch_bytes - IN_USE) // AHEAD, SHARED)
    if memory:
        of_one = WORKER_BYTES + AHEAD * batch_bytes
        fit, more = _fewer(fit, int(SHARE * memory) // of_one, "memory")
        why = why or more
    if not why:
        return fit, ""
    size = "%.1f MB" % (batch_bytes / 1e6)
    return 0, "%s has no room for workers that prepare batches of %s" % (why, size)


def allowed_bytes(groups: Iterable[Tuple[str, str, str]] = GROUPS) -> Optional[int]:
    """What the limit of the control group leaves; files that are only cached count as free."""
    for most, used, cached in groups:
        try:
            # Without a limit there stands "max", which is no number.
            left = int(_text(most)) - int(_text(used))
        except (OSError, ValueError):
            continue
        # 0 would say that it is not known.
        return max(1, left + _cached_bytes(os.path.dirname(most), cached))
    return None


def _fewer(asked: int, fit: int, where: str) -> Tuple[int, str]:
    return max(0, min(asked, fit)), where if asked and fit < 1 else ""


def _cached_bytes(folder: str, name: str) -> int:
    try:
        rows = [line.split() for line in _text(os.path.join(folder, "memory.stat")).splitlines()]
        return next((int(row[1]) for row in rows if row[0] == name), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()

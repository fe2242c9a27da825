"""Memory that a program can have: of the host, within a control group's limit, of a GPU."""

import ctypes
import os
import sys
from typing import Iterable, List, Optional, Sequence, Tuple

import torch

GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def words_of(path: str) -> List[str]:
    """The words of a file of the system's."""
    with open(path) as file:
        return file.read().split()


def available_bytes() -> int:
    """Memory that is free for a new program, in this container too; 0 where that is not known."""
    try:
        words = words_of("/proc/meminfo")
        free = int(words[words.index("MemAvailable:") + 1]) * 1024
    except (OSError, ValueError):
        return 0
    return min(free, allowed_bytes() or free)


def allowed_bytes(groups: Iterable[Sequence[str]] = GROUPS) -> Optional[int]:
    """What the limit of the control group leaves; files that are only cached count as free."""
    for most, used, cached in groups:
        try:
            # Without a limit there stands "max", which is no number.
            left = int(words_of(most)[0]) - int(words_of(used)[0])
        except (OSError, ValueError, IndexError):
            continue
        try:
            words = words_of(os.path.join(os.path.dirname(most), "memory.stat"))
            left += int(words[words.index(cached) + 1])
        except (OSError, ValueError, IndexError):
            pass  # nothing is known of what is cached
        # 0 would say that it is not known.
        return max(1, left)
    return None


# --- of a GPU -------------------------------------------------------------------------------------

NODE = "/sys/devices/system/node/node%d/meminfo"
INTEGRATED, NUMA_CONFIG, NUMA_ID = 18, 130, 131
"""Attributes of a device, by the driver's numbers."""


def free_bytes(index: int) -> Tuple[int, int]:
    """What is free on a GPU, with what the system gives back when asked, and what it has in all."""
    free, total = torch.cuda.mem_get_info(index)
    return min(total, max(free, unified_bytes(index) or 0)), total


def unified_bytes(index: int) -> Optional[int]:
    """What is free of memory that the GPU shares with the system; None where it shares none.

    CUDA counts cached files as used memory; the kernel gives it back. An integrated GPU (Jetson,
    GB10) uses the host's memory; the memory of a GH200's GPU is a NUMA node of the system. Nothing
    is begun on the GPU.
    """
    if attribute(index, INTEGRATED):
        return available_bytes() or None
    if attribute(index, NUMA_CONFIG):
        return node_bytes(attribute(index, NUMA_ID))
    return None


def attribute(index: int, number: int) -> int:
    """What the driver says of a device; 0 where it does not know that attribute."""
    value = ctypes.c_int()
    try:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        code = ctypes.CDLL(name).cuDeviceGetAttribute(ctypes.byref(value), number, index)
    except Exception:
        return 0
    return 0 if code else value.value


def node_bytes(number: int) -> Optional[int]:
    """What is free on a NUMA node, or holds files that are only cached."""
    try:
        words = words_of(NODE % number)
        parts = [words.index(name) for name in ("MemFree:", "Active(file):", "Inactive(file):")]
        return sum([int(words[part + 1]) for part in parts]) * 1024
    except (OSError, ValueError, IndexError):
        return None

"""What the machine offers to a training, and how much of it this process holds."""

import os
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional

import torch

from .feeding import cores
from .order import Order

FALSIFYING = (
    "CUDA_LAUNCH_BLOCKING=1",
    "TORCHDYNAMO_DISABLE=1",
    "TORCH_COMPILE_DISABLE=1",
    "NVIDIA_TF32_OVERRIDE=0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
)
"""Variables with the value that changes what is measured."""


def look() -> Dict[str, Any]:
    """Devices, versions and compilers, for the choice of what to try."""
    found: Dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "python": "%d.%d.%d" % sys.version_info[:3],
        "built": torch.backends.cuda.is_built(),
        "available": False,
        "count": 0,
        "error": "",
        "devices": [],
        "compiler": _compiler("CXX", "g++", "clang++", "cl"),
        "c_compiler": _compiler("CC", "gcc", "cc", "clang", "cl"),
        "environment": falsifying(os.environ),
        "cores": cores(),
        "forks": sys.platform.startswith("linux"),
        "cpu_bf16": _cpu_bf16(),
        "triton": _has("triton"),
    }
    try:
        found["available"] = torch.cuda.is_available()
        if found["available"]:
            found["count"] = torch.cuda.device_count()
            found["devices"] = [_device(one) for one in range(found["count"])]
    except BaseException as problem:
        found["available"], found["error"] = False, str(problem)[:300]
    return found


def falsifying(env: Mapping[str, str]) -> List[str]:
    """Those that are set so, as NAME=VALUE."""
    return [one for one in FALSIFYING if env.get(one.split("=")[0], "") == one.split("=")[1]]


def keep_to_a_share(order: Order, part: float = 1.0) -> None:
    """Never more than a share of what is free now, or a part of it: others may be guests too."""
    index = int(order.device.partition(":")[2] or 0)
    torch.cuda.set_device(index)
    free, total = torch.cuda.mem_get_info(index)
    torch.cuda.set_per_process_memory_fraction(max(0.01, part * order.share * free / total), index)
    torch.cuda.reset_peak_memory_stats(index)


def forget_the_peak(order: Order) -> None:
    """Batches that were tried are no part of what the training needs."""
    if order.gpu:
        torch.cuda.reset_peak_memory_stats()


def resident_bytes() -> int:
    """Memory of this process that lies in RAM; 0 where it cannot be learnt."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def peak_resident_bytes() -> int:
    """The most that it ever was."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) * (1 if sys.platform == "darwin" else 1024)


def drivers_bytes(pid: int) -> Optional[int]:
    """What the driver says that a process holds; None where nobody can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        held: List[int] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if one.pid == pid and one.usedGpuMemory:
                    held.append(int(one.usedGpuMemory))
    except BaseException:
        return None
    return sum(held) or None


def _device(index: int) -> Dict[str, Any]:
    """What the driver says of it; nothing is begun on it, since others may be using it."""
    properties = torch.cuda.get_device_properties(index)
    bus = getattr(properties, "pci_bus_id", None)
    where = ""
    if bus is not None:
        where = "%04x:%02x:%02x.0" % (properties.pci_domain_id, bus, properties.pci_device_id)
    return {
        "index": index,
        "name": properties.name,
        "capability": "%d.%d" % (properties.major, properties.minor),
        "bus_id": where,
        "total_bytes": int(properties.total_memory),
    }


def _compiler(variable: str, *usual: str) -> str:
    """What torch.compile calls: C++ for a CPU, C for a GPU by Triton; "" where there is none."""
    named = os.environ.get(variable)
    for name in ([named] if named else []) + list(usual):
        path = shutil.which(name.split(" ")[0])
        if path:
            return path
    return ""


def _cpu_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        asked = getattr(torch.cpu, name, None) or getattr(torch._C, name, None)
        try:
            if asked is not None and asked():
                return True
        except BaseException:
            continue
    return False


def _has(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False

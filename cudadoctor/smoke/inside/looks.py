"""What torch says of itself, of CUDA and of its neighbours; each asked in a child that may die."""

import ctypes
import importlib.util
import os
import sys
import warnings
from typing import Any

import torch

from . import room, wire
from .spec import Fields
from .wire import say

COMPANIONS = (
    *("torchvision", "torchaudio", "flash_attn", "pyg_lib", "torch_cluster", "torch_scatter"),
    *("torch_sparse", "torch_spline_conv"),
)
"""Packages whose import loads compiled code; xformers and others only warn, or load it later."""


def pretended(count: int) -> None:
    """For tests: say that there are GPUs, which the CPU will play."""
    devices = [{"index": index, "capability": "9.0", "bus_id": ""} for index in range(count)]
    say("cuda", built="0", available=True, count=count, error="", devices=devices)


def cuda() -> None:
    """Whether CUDA answers, with the words of the first call that failed."""
    version: Any = torch.version
    built = str(getattr(version, "cuda", None) or getattr(version, "hip", None) or "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        count = int(torch.cuda.device_count()) if built else 0
    error = ""
    if built and not available:
        warned = [str(warning.message) for warning in caught]
        error = next((text for text in warned if "CUDA" in text), "")
        if not error:
            try:
                torch.cuda.init()
            except Exception as problem:
                error = str(problem)[:2000]
    devices = []
    try:
        for index in range(count if available else 0):
            devices.append(device(index))
    except Exception as problem:
        error = error or str(problem)[:2000]
    say("cuda", built=built, available=available, count=count, error=error, devices=devices)
    _libraries()


def device(index: int) -> Fields:
    """What the driver says of a GPU; others may be using it, and nothing is begun on it."""
    about = torch.cuda.get_device_properties(index)
    bus_id = ""
    try:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        buffer = ctypes.create_string_buffer(32)
        # By torch's order, asked of the driver that numbered them.
        if ctypes.CDLL(name).cuDeviceGetPCIBusId(buffer, 32, index) == 0:
            bus_id = buffer.value.decode("ascii", "replace").lower()
    except Exception:
        pass  # not known
    return {
        "index": index,
        "name": about.name,
        "capability": "%d.%d" % (about.major, about.minor),
        "bus_id": bus_id,
        "total_bytes": int(about.total_memory),
        "unified_bytes": room.unified_bytes(index),
    }


def numpy_bridge() -> None:
    """Whether tensors and arrays share memory; "" where they do, or numpy is not installed."""
    if importlib.util.find_spec("numpy") is None:
        say("numpy", error="")
        return
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import numpy

            array: Any = numpy.ones(2, dtype="float32")
            same = bool((torch.from_numpy(array).numpy() == array).all())
        error = "" if same else "the values changed when converted from NumPy to torch and back"
    except Exception as problem:
        error = "; ".join([wire.words(problem)] + [str(warning.message) for warning in caught][:1])
    say("numpy", error=error[:2000])


def companion(name: str) -> None:
    """Import one neighbour of torch."""
    error = ""
    try:
        importlib.import_module(name)
    except BaseException as problem:
        error = wire.words(problem)
    say("companion", name=name, error=error)


def there(name: str) -> bool:
    """Whether the path holds it as a package."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return False
    return spec is not None and bool(spec.origin)


def maps() -> None:
    """Say which shared libraries this process has mapped, in the order of their addresses."""
    try:
        with open("/proc/self/maps", "rb") as handle:
            parts = [line.split(None, 5) for line in handle.read().splitlines()]
    except OSError:
        return
    files = dict.fromkeys([os.fsdecode(part[5]) for part in parts if len(part) == 6])
    say(
        "maps",
        torch=os.path.dirname(os.path.realpath(torch.__file__ or "")),
        prefix=sys.prefix,
        conda=os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        paths=[path for path in files if ".so" in os.path.basename(path)],
    )


LOOKS: Fields = {"cuda": cuda, "numpy": numpy_bridge, "companion": companion}


def _libraries() -> None:
    """The versions of cuDNN and NCCL that answer in this process."""
    cudnn = cudnn_error = nccl = ""
    try:
        cudnn = _dotted(torch.backends.cudnn.version() or (), 90000)
    except Exception as problem:
        cudnn_error = wire.words(problem)
    try:
        nccl = _dotted(torch.cuda.nccl.version(), 10000)
    except Exception:
        pass  # this build has none
    say("libraries", cudnn=cudnn, cudnn_error=cudnn_error, nccl=nccl)


def _dotted(version: Any, large: int) -> str:
    """1.2.3 of (1, 2, 3) or of a number: 1203, and from a large one on 10203."""
    if isinstance(version, int):
        step = 10000 if version >= large else 1000
        return "%d.%d.%d" % (version // step, version % step // 100, version % 100)
    return ".".join([str(part) for part in version])

"""What torch says of itself, of CUDA and of its neighbours; each asked in a child that may die."""

import ctypes
import os
import sys
import warnings
from typing import Any, Dict, List

import torch

from . import wire

COMPANIONS = ("torchvision", "torchaudio")


def pretended(count: int) -> None:
    """For tests: say that there are GPUs, which the CPU will play."""
    devices = [{"index": index, "capability": "9.0", "bus_id": ""} for index in range(count)]
    wire.say("cuda", built="0", available=True, count=count, error="", devices=devices)


def cuda() -> None:
    """Whether CUDA answers, with the words of the first call that failed."""
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        count = int(torch.cuda.device_count()) if _built_for() else 0
    said = [str(one.message) for one in caught if "CUDA" in str(one.message)]
    if not available and _built_for():
        error = said[0] if said else ""
        if not error:
            try:
                torch.cuda.init()
            except Exception as problem:
                error = str(problem)[:2000]
    devices, wrong = _devices(count if available else 0)
    wire.say(
        "cuda",
        built=_built_for(),
        available=available,
        count=count,
        error=error or wrong,
        devices=devices,
    )
    _libraries()


def numpy_bridge() -> None:
    """Whether tensors and arrays share memory; "" where they do, or numpy is not installed."""
    import importlib.util

    if importlib.util.find_spec("numpy") is None:
        wire.say("numpy", error="")
        return
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import numpy

            array = numpy.ones(2, dtype="float32")
            same = bool((torch.from_numpy(array).numpy() == array).all())
        error = "" if same else "the values changed on the way from numpy to torch and back"
    except Exception as problem:
        error = "; ".join([wire.words(problem)] + [str(one.message) for one in caught][:1])
    wire.say("numpy", error=error[:2000])


def companion(name: str) -> None:
    """Import one neighbour of torch."""
    import importlib

    try:
        importlib.import_module(name)
        error = ""
    except BaseException as problem:
        error = wire.words(problem)
    wire.say("companion", name=name, error=error)


def companions() -> List[str]:
    """The neighbours that the path holds as packages."""
    import importlib.util

    found = []
    for name in COMPANIONS:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:
            continue
        if spec is not None and spec.origin:
            found.append(name)
    return found


def maps() -> None:
    """Say which shared libraries this process has mapped, in the order of their addresses."""
    try:
        with open("/proc/self/maps", "rb") as handle:
            lines = handle.read().splitlines()
    except OSError:
        return
    paths: Dict[str, None] = {}
    for line in lines:
        parts = line.split(None, 5)
        if len(parts) == 6 and b".so" in parts[5].rsplit(b"/", 1)[-1]:
            paths[os.fsdecode(parts[5])] = None
    wire.say(
        "maps",
        torch=os.path.dirname(os.path.realpath(torch.__file__ or "")),
        prefix=sys.prefix,
        conda=os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        paths=list(paths),
    )


LOOKS: Dict[str, Any] = {
    "cuda": cuda,
    "numpy": numpy_bridge,
    "companion": companion,
    "maps": maps,
}


def _built_for() -> str:
    version: Any = torch.version
    return str(getattr(version, "cuda", None) or getattr(version, "hip", None) or "")


def _devices(count: int) -> Any:
    devices: List[Dict[str, Any]] = []
    for index in range(count):
        try:
            about = torch.cuda.get_device_properties(index)
        except Exception as problem:
            return devices, str(problem)[:2000]
        devices.append(
            {
                "index": index,
                "capability": "%d.%d" % (about.major, about.minor),
                "bus_id": _bus_id(index),
            }
        )
    return devices, ""


def _bus_id(index: int) -> str:
    """The PCI address of a device in torch's order, asked of the driver that numbered it."""
    try:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        buffer = ctypes.create_string_buffer(32)
        if ctypes.CDLL(name).cuDeviceGetPCIBusId(buffer, 32, index) == 0:
            return buffer.value.decode("ascii", "replace").lower()
    except Exception:
        return ""
    return ""


def _libraries() -> None:
    """The versions of cuDNN and NCCL that answer in this process."""
    said: Dict[str, str] = {"cudnn": "", "cudnn_error": "", "nccl": ""}
    try:
        said["cudnn"] = _dotted(torch.backends.cudnn.version() or (), 90000)
    except Exception as problem:
        said["cudnn_error"] = wire.words(problem)
    try:
        said["nccl"] = _dotted(torch.cuda.nccl.version(), 10000)
    except Exception:
        said["nccl"] = ""
    wire.say("libraries", **said)


def _dotted(version: Any, large: int) -> str:
    """1.2.3 of (1, 2, 3) or of a number: 1203, and from a large one on 10203."""
    if isinstance(version, int):
        step = 10000 if version >= large else 1000
        return "%d.%d.%d" % (version // step, version % step // 100, version % 100)
    return ".".join([str(part) for part in version])

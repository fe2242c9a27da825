"""The libraries of a process that matter here, from the paths that it has mapped. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cudadoctor.model.machine import Library

_WANTED = re.compile(
    r"lib(cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|cupti|cufile|cudss|caffe2"
    r"|nv|nccl|torch|c10|stdc\+\+|gcc_s|gomp|iomp|omp|mkl|amdhip|hsa|rccl)"
)
_NAME = re.compile(r"(lib.+?)(?:-[0-9a-f]{8})?\.so((?:\.\d+)*)$")
# Their files carry the driver's release where the soname has 1.
_DRIVERS = re.compile(r"lib(cuda|nvidia-.+|nvcuvid|nvoptix)$")
_TOOLKIT = re.compile(r"/cuda(-[\d.]+)?/")


def libraries(paths: Iterable[str], torch: str, prefix: str, conda: bool) -> tuple[Library, ...]:
    """Those that CUDA, torch and the C++ runtime are made of, each once, in order."""
    found = {path: _library(path, torch, prefix, conda) for path in paths if _wanted(path)}
    return tuple(found.values())


def soname(path: str) -> str:
    """The name a program asks the loader for, from the name of the file that answered."""
    name = path.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    stem, numbers = match[1], match[2].split(".")[1:]
    if _DRIVERS.fullmatch(stem) and numbers:
        return f"{stem}.so.1"
    # CUDA 11 and older runtimes have two numbers in the soname, and so has what nvrtc builds in.
    kept = 2 if stem in ("libcudart", "libnvrtc-builtins", "libnvrtc") and numbers else 1
    if stem == "libcudart" and numbers and int(numbers[0]) >= 12:
        kept = 1
    if stem == "libnvrtc" and numbers and int(numbers[0]) >= 12:
        kept = 1
    return ".".join((f"{stem}.so", *numbers[:kept]))


def _wanted(path: str) -> bool:
    return bool(_WANTED.match(path.rpartition("/")[2]))


def _library(path: str, torch: str, prefix: str, conda: bool) -> Library:
    return Library(
        soname=soname(path), path=path, how="mapped", owner=_owner(path, torch, prefix, conda)
    )


def _owner(path: str, torch: str, prefix: str, conda: bool) -> str:
    packages = torch.rpartition("/")[0]
    if torch and path.startswith(torch + "/"):
        return "torch"
    if packages and path.startswith(packages + "/"):
        return "wheel"
    if conda and path.startswith(prefix + "/"):
        return "conda"
    if _TOOLKIT.search(path):
        return "toolkit"
    if path.startswith(("/lib", "/usr/lib", "/lib64")):
        return "system"
    return "other"

"""Facts that torch itself names in its messages: architectures, capabilities, driver, build."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Gpu, Toolkit
from cudadoctor.model.versions import cuda_from_int
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

Facts = Callable[["re.Match[str]"], values.Pairs]

_TOO_OLD = re.compile(r"too old \(found version (\d{4,5})\)", re.I)
_NOT_COMPATIBLE = re.compile(
    r"(?:^|[\s'\"])(?P<gpu>(?:NVIDIA |GeForce |Tesla |Quadro |TITAN |[GR]TX |[AHLB]\d|GB\d|Orin)"
    r"[^:\n]{0,50}?) with CUDA capability sm_(?P<code>\d{2,3})[af]? is not compatible"
)
_SUPPORTS = re.compile(
    r"PyTorch install(?:ation)? supports CUDA capabilities"
    r" ((?:(?:sm|compute)_\d{2,3}[af]?[\s,.]{0,3}){1,40})",
    re.I,
)
_ARCH_LIST = re.compile(
    r"\[((?:['\"](?:sm|compute)_\d{2,3}[af]?['\"],? ?){1,40})\]",
)
_FOUND_GPU = re.compile(
    r"Found GPU ?(?P<index>\d{1,2}) (?P<gpu>.{3,60}?) which (?:is of (?:cuda|compute) capability"
    r"(?: \(CC\))? |requires |is (?:too old|supported)[^.]{0,60}?)(?P<cc>\d{1,2}\.\d)?",
    re.I,
)
_NOT_COMPILED = re.compile(
    r"Torch not compiled with CUDA enabled|not linked with support for cuda devices"
    r"|PyTorch was compiled without CUDA|built without CUDA support|"
    r"torch\.cuda\.is_available\(\) is False.{0,40}CPU-only (?:build|version)",
    re.I,
)
_WITH_DIFFERENT = re.compile(
    r"PyTorch and torchvision were compiled with different CUDA(?: major)? versions\."
    r" PyTorch has CUDA Version[= ](?P<torch>\d{1,2}\.\d) and torchvision has CUDA Version[= ]"
    r"(?P<vision>\d{1,2}\.\d)",
    re.I,
)
_DETECTED = re.compile(
    r"detected CUDA version \((?P<nvcc>\d{1,2}\.\d{1,2})\)"
    r" (?:mismatches|has a minor version mismatch with) the version that was used"
    r" to compile PyTorch \((?P<torch>\d{1,2}\.\d{1,2})\)",
    re.I,
)
_NO_DRIVER = re.compile(r"Found no NVIDIA driver on your system", re.I)


def read_torch_messages(doc: Document, _: Knowledge) -> Iterator[Said]:
    """What stands in torch's words as numbers and names."""
    for gate, pattern, facts in _MESSAGES:
        if gate not in doc.low:
            continue
        found = pattern.search(doc.flat)
        if found is None:
            continue
        line = doc.line_at(found.start()).number
        for path, value in facts(found):
            yield Said(path, value, line, Rank.MESSAGE, "torch")


def _driver_cuda(found: re.Match[str]) -> values.Pairs:
    cuda = cuda_from_int(int(found[1]))
    plausible = Version("5.0") <= cuda < Version("20.0")
    unseen = (("torch.imported.ok", True), ("torch.imported.cuda_available", False))
    return (("driver.cuda", cuda), ("torch.build", "cuda"), *unseen) if plausible else ()


def _incompatible(found: re.Match[str]) -> values.Pairs:
    name, code = values.gpu_name(found["gpu"]), found["code"]
    capability = Version(f"{code[:-1]}.{code[-1]}")
    return (("gpus", (Gpu(index=0, name=name, capability=capability),)), ("torch.build", "cuda"))


def _archs(found: re.Match[str]) -> values.Pairs:
    codes = re.findall(r"(?:sm|compute)_\d{2,3}[af]?", found[1])
    return (("torch.archs", tuple(dict.fromkeys(codes))), ("torch.build", "cuda"))


def _found_gpu(found: re.Match[str]) -> values.Pairs:
    name = values.gpu_name(found["gpu"])
    capability = Version(found["cc"]) if found["cc"] else None
    gpu = Gpu(index=int(found["index"]), name=name, capability=capability)
    return (("gpus", (gpu,)), ("torch.build", "cuda")) if name else ()


def _not_compiled(_: re.Match[str]) -> values.Pairs:
    """Builds for ROCm count as compiled with CUDA in these words; those for Macs do not."""
    return (("torch.build", "cpu"), ("torch.installed", True), ("torch.imported.ok", True))


def _different(found: re.Match[str]) -> values.Pairs:
    return (("torch.build", "cuda"), ("torch.cuda", Version(found["torch"])))


def _compiling(found: re.Match[str]) -> values.Pairs:
    """An extension was being compiled, and torch names the toolkit that it found for that."""
    toolkit = Toolkit(
        path="CUDA_HOME", origin="CUDA_HOME", cuda=Version(found["nvcc"]), nvcc="nvcc"
    )
    return (
        *_different(found),
        ("build.toolkits", (toolkit,)),
        ("build.used", toolkit.path),
        ("build.needed_by", ("--compile",)),
    )


def _no_driver(_: re.Match[str]) -> values.Pairs:
    unseen = (("torch.imported.ok", True), ("torch.imported.cuda_available", False))
    return (("torch.build", "cuda"), *unseen)


_MESSAGES: tuple[tuple[str, re.Pattern[str], Facts], ...] = (
    ("(found version", _TOO_OLD, _driver_cuda),
    ("with cuda capability sm_", _NOT_COMPATIBLE, _incompatible),
    ("supports cuda capabilities", _SUPPORTS, _archs),
    ("'sm_", _ARCH_LIST, _archs),
    ("found gpu", _FOUND_GPU, _found_gpu),
    ("not compiled with cuda", _NOT_COMPILED, _not_compiled),
    ("not linked with support for cuda", _NOT_COMPILED, _not_compiled),
    ("compiled with different cuda", _WITH_DIFFERENT, _different),
    ("used to compile pytorch", _DETECTED, _compiling),
    ("found no nvidia driver on your system", _NO_DRIVER, _no_driver),
)

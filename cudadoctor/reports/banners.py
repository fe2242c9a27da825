"""Single lines in which a program tells which torch, CUDA and GPU it runs with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.facts import Distribution, Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

MIB = 1 << 20

_ULTRALYTICS = re.compile(
    r"(?:Python-(?P<python>3\.\d{1,2}(?:\.\d{1,2})?) )?"
    r"torch[- ](?P<torch>\d\.\d{1,2}\.\d{1,2}\S{0,40}) "
    r"(?:CPU\b|CUDA:[\d,]{1,20} \((?P<gpu>[^,()]{3,60}), (?P<memory>\d{3,6})(?:Mi?B|\.0MB)\))"
)
_BACKEND = re.compile(r"Torch backend: nVidia CUDA (\d{1,2}\.\d)", re.I)
_DETECTED = re.compile(
    r"Torch detected GPU: (?P<gpu>.{3,60}?) VRAM (?P<memory>\d{3,6})"
    r"(?: Arch \((?P<a>\d{1,2}), (?P<b>\d)\))?"
)
_BITSANDBYTES = re.compile(
    r"PyTorch settings found: CUDA_VERSION=(\d{2,3}),"
    r" Highest Compute Capability: \(?(\d{1,2})(?:\.|, )(\d)",
    re.I,
)
_UNSLOTH = re.compile(
    r"GPU: (?P<gpu>[^.]{3,60})\.(?: Num GPUs = (?P<count>\d{1,2})\.)? Max memory"
    r".{0,120}?(?:Py)?Torch: (?P<torch>\d\.\d{1,2}\.\d\S{0,20}?)\."
    r" CUDA(?: =|:) (?P<cc>\d{1,2}\.\d)",
    re.I,
)
_COMPUTE = re.compile(
    r"(?:[Dd]evice:? (?P<place>\d{1,2})[:,] )(?:name: )?(?P<gpu>[^,:\n]{3,60}),"
    r"(?: pci bus id: [\w:.]{6,16},)?"
    r" compute capability:? (?P<cc>\d{1,2}\.\d)"
)
_TENSORFLOW = re.compile(
    r"pciBusID: \S{6,16} name: (?P<gpu>.{3,60}?) computeCapability: (?P<cc>\d{1,2}\.\d)"
)
_PROPERTIES = re.compile(
    r"_CudaDeviceProperties\(name='(?P<gpu>[^']{3,60})', major=(?P<a>\d{1,2}), minor=(?P<b>\d)"
)
_OLLAMA = re.compile(
    r"library=cuda .{0,60}?compute=(?P<cc>\d{1,2}\.\d) .{0,60}?driver=(?P<driver>\d{1,2}\.\d)"
    r" .{0,60}?name=\"(?P<gpu>[^\"]{3,60})\""
)
_DEVICE_QUERY = re.compile(r"CUDA Driver Version / Runtime Version (\d{1,2}\.\d) / (\d{1,2}\.\d)")
_XFORMERS = re.compile(
    r"xformers was built for:? ?-? ?PyTorch (?P<built>\d\S{2,40})"
    r"(?: with CUDA (?P<cuda>\d{4}|None))? \(you have (?P<have>\d\S{2,40}?)\)",
    re.I,
)
_XFORMERS_RELEASE = re.compile(r"\bxformers[ =:v]{1,3}(0\.0\.\d{1,3}\S{0,30})", re.I)


def read_banners(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Every such line that is known."""
    for gate, pattern, facts, rank in BANNERS:
        if gate not in doc.low:
            continue
        found = pattern.search(doc.flat)
        if found is None:
            continue
        line = doc.line_at(found.start()).number
        for path, value in facts(found):
            yield Said(path, value, line, rank, "a program's own line")
    if "compute capability" in doc.low:
        yield from _listed(doc)
    if "xformers was built for" in doc.low:
        yield from _xformers(doc)


def _of_gpu(found: re.Match[str]) -> values.Pairs:
    words = found.groupdict()
    name = values.gpu_name(words.get("gpu") or "")
    if name is None:
        return ()
    cc = words.get("cc") or (f"{words['a']}.{words['b']}" if words.get("a") else "")
    capability = Version(cc) if cc else None
    memory = words.get("memory")
    size = int(memory) * MIB if memory else None
    places = range(int(words.get("count") or 1))
    gpus = (Gpu(index=n, name=name, capability=capability, memory_bytes=size) for n in places)
    return (("gpus", tuple(gpus)),)


def _listed(doc: Document) -> Iterator[Said]:
    """Each GPU on a line of its own, as llama.cpp and TensorFlow log them."""
    gpus: dict[str, Gpu] = {}
    first = 0
    for found in _COMPUTE.finditer(doc.flat):
        first = first or doc.line_at(found.start()).number
        for _, some in _of_gpu(found):
            place = found["place"] or str(len(gpus))
            gpus.setdefault(place, msgspec.structs.replace(some[0], index=int(place)))
    if gpus:
        yield Said("gpus", tuple(gpus.values()), first, Rank.MESSAGE, "a program's own line")


def _torch_and_gpu(found: re.Match[str]) -> values.Pairs:
    words = found.groupdict()
    said = values.torch_facts(words["torch"]) + _of_gpu(found)
    if words.get("python"):
        said += values.python_facts(words["python"])
    if words.get("gpu"):
        said += (("torch.imported.ok", True), ("torch.imported.cuda_available", True))
    return said


def _backend(found: re.Match[str]) -> values.Pairs:
    return (("torch.build", "cuda"), ("torch.cuda", Version(found[1])))


def _bitsandbytes(found: re.Match[str]) -> values.Pairs:
    cuda = Version(f"{found[1][:-1]}.{found[1][-1]}")
    capability = Version(f"{found[2]}.{found[3]}")
    available = (("torch.imported.ok", True), ("torch.imported.cuda_available", True))
    return (
        *(("torch.build", "cuda"), ("torch.cuda", cuda)),
        *available,
        ("torch.imported.capabilities", (capability,)),
    )


def _ollama(found: re.Match[str]) -> values.Pairs:
    return (("driver.cuda", Version(found["driver"])), *_of_gpu(found))


def _device_query(found: re.Match[str]) -> values.Pairs:
    return (("driver.cuda", Version(found[1])),)


def _xformers(doc: Document) -> Iterator[Said]:
    """xformers names the torch that it was built for beside the one that is there."""
    found = _XFORMERS.search(doc.flat)
    if found is None:
        return
    line = doc.line_at(found.start()).number
    for path, value in values.torch_facts(found["have"].rstrip(")")):
        yield Said(path, value, line, Rank.MESSAGE, "xformers")
    release = _XFORMERS_RELEASE.search(doc.flat)
    torch = values.torch_version(found["built"])
    number = found["cuda"] or ""
    cuda = Version(f"{int(number) // 100}.{int(number) % 100}") if number.isdigit() else None
    if release and torch:
        one = Distribution(name="xformers", version=release[1], torch=torch, cuda=cuda)
        yield Said("packages", (one,), line, Rank.MESSAGE, "xformers")


Facts = Callable[["re.Match[str]"], values.Pairs]

BANNERS: tuple[tuple[str, re.Pattern[str], Facts, Rank], ...] = (
    (" torch-", _ULTRALYTICS, _torch_and_gpu, Rank.TOOL),
    ("yolov5", _ULTRALYTICS, _torch_and_gpu, Rank.TOOL),
    ("torch backend: nvidia", _BACKEND, _backend, Rank.TOOL),
    ("torch detected gpu", _DETECTED, _of_gpu, Rank.TOOL),
    ("settings found: cuda_version", _BITSANDBYTES, _bitsandbytes, Rank.TOOL),
    ("max memory", _UNSLOTH, _torch_and_gpu, Rank.TOOL),
    ("computecapability:", _TENSORFLOW, _of_gpu, Rank.MESSAGE),
    ("_cudadeviceproperties(", _PROPERTIES, _of_gpu, Rank.TOOL),
    ("library=cuda", _OLLAMA, _ollama, Rank.TOOL),
    ("cuda driver version / runtime version", _DEVICE_QUERY, _device_query, Rank.TOOL),
)
"""A word that must stand there, the line, what it tells, and how much that is worth."""

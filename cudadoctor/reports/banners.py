"""Single lines in which a program tells which torch, CUDA and GPU it runs with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.model.machine import Distribution, Gpu
from cudadoctor.model.versions import cuda_from_int
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


_DRIVER_CUDA = re.compile(
    r"(?:CUDA Driver Version ?: ?|cudaDriverVersion )(\d{4,5}|\d{1,2}\.\d)(?![\d.])", re.I
)
_NCCL = re.compile(r"NCCL version (2\.\d{1,2}\.\d{1,2})", re.I)
_CONDA_CUDA = re.compile(r"__cuda==?(\d{1,2}\.\d)(?![\d.])")
_CONDA_GLIBC = re.compile(r"__glibc==?(2\.\d{1,2})")
_KERNEL_SIDE = re.compile(r"kernel reported version is:? (\d{3}\.[\d.]{2,9})", re.I)
_USER_SIDE = re.compile(r"libcuda reported version is:? (\d{3}\.[\d.]{2,9})", re.I)
_IMAGE = re.compile(
    r"NVIDIA Driver Release \S{3,12} or later, but version (\d{3}\.[\d.]{2,9}) was detected", re.I
)
_IMAGE_TORCH = re.compile(r"NVIDIA Release \S{4,8} .{0,60}?PyTorch Version (\d\.\d{1,2}\S{0,40})")
_UV_PYTHON = re.compile(
    r"Using (?:CPython|Python) (3\.\d{1,2}\.\d{1,2}) (?:interpreter at|environment at)"
)
_CUPY = re.compile(
    r"Device 0 Name ?: (?P<gpu>.{3,60}?) Device 0 Compute Capability ?: (?P<cc>\d{2,3})(?!\d)"
)
_NUMBA = re.compile(
    r"id \d{1,2} b'(?P<gpu>[^']{3,60})' \[SUPPORTED\] Compute Capability: (?P<cc>\d{1,2}\.\d)", re.I
)


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


def _driver_cuda(found: re.Match[str]) -> values.Pairs:
    """A number such as 12020, or 12.2 where a program has made a version of it."""
    text = found[1]
    cuda = Version(text) if "." in text else cuda_from_int(int(text))
    return (("driver.cuda", cuda),) if Version("5.0") <= cuda < Version("20.0") else ()


def _nccl(found: re.Match[str]) -> values.Pairs:
    return (("torch.imported.nccl", found[1]),)


def _conda_info(found: re.Match[str]) -> values.Pairs:
    return (("driver.cuda", Version(found[1])),)


def _conda_glibc(found: re.Match[str]) -> values.Pairs:
    return values.glibc_facts(found[1])


def _kernel_side(found: re.Match[str]) -> values.Pairs:
    return (("driver.kernel", values.driver_version(found[1])),)


def _user_side(found: re.Match[str]) -> values.Pairs:
    return (("driver.library", values.driver_version(found[1])),)


def _image(found: re.Match[str]) -> values.Pairs:
    """NVIDIA's images say which driver they were built for and which one they found."""
    driver = values.driver_version(found[1])
    return (("driver.reported", driver), ("container.kind", "docker"))


def _image_torch(found: re.Match[str]) -> values.Pairs:
    torch = values.torch_facts(found[1])
    return (*torch, ("torch.build", "cuda"), ("container.kind", "docker"))


def _uv_python(found: re.Match[str]) -> values.Pairs:
    return values.python_facts(found[1])


def _cupy(found: re.Match[str]) -> values.Pairs:
    capability = Version(f"{found['cc'][:-1]}.{found['cc'][-1]}")
    name = values.gpu_name(found["gpu"])
    return (("gpus", (Gpu(index=0, name=name, capability=capability),)),) if name else ()


def _numba(found: re.Match[str]) -> values.Pairs:
    return _of_gpu(found)


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
    ("cuda driver version", _DRIVER_CUDA, _driver_cuda, Rank.TOOL),
    ("cudadriverversion", _DRIVER_CUDA, _driver_cuda, Rank.TOOL),
    ("nccl version ", _NCCL, _nccl, Rank.TOOL),
    ("__cuda=", _CONDA_CUDA, _conda_info, Rank.TOOL),
    ("__glibc=", _CONDA_GLIBC, _conda_glibc, Rank.TOOL),
    ("kernel reported version is", _KERNEL_SIDE, _kernel_side, Rank.MESSAGE),
    ("libcuda reported version is", _USER_SIDE, _user_side, Rank.MESSAGE),
    ("or later, but version", _IMAGE, _image, Rank.MESSAGE),
    ("nvidia release ", _IMAGE_TORCH, _image_torch, Rank.TOOL),
    ("using ", _UV_PYTHON, _uv_python, Rank.TOOL),
    ("device 0 compute capability", _CUPY, _cupy, Rank.TOOL),
    ("[supported] compute capability", _NUMBA, _numba, Rank.TOOL),
)
"""A word that must stand there, the line, what it tells, and how much that is worth."""

"""What the values behind the labels of a dump tell, by the name of their field."""

from __future__ import annotations

import re
from collections.abc import Callable

from packaging.version import Version

from cudadoctor.model.machine import Distribution, Gpu, PciGpu, Toolkit
from cudadoctor.reports import values
from cudadoctor.reports.labels import first_line
from cudadoctor.reports.libraries import library_at
from cudadoctor.reports.packages import distribution


def _torch_line(value: str) -> values.Pairs:
    """2.1.0+cu118 (True): the second says whether a GPU is seen; 1.8.1 @/opt/... where it lies."""
    text = first_line(value)
    said = values.torch_facts(text)
    seen = re.search(r"\((True|False|NA|CUDA|XPU|MPS|CPU)\)", text)
    place = re.search(r"@ ?((?:/|[A-Za-z]:)\S{3,200})", text)
    if said and seen and seen[1] in ("True", "CUDA", "False", "CPU"):
        said += _available("True" if seen[1] in ("True", "CUDA") else "False")
    return said + ((("torch.path", place[1]),) if said and place else ())


def _torch_cuda(value: str) -> values.Pairs:
    """torch.version.cuda is None in a build for the CPU: old and new forms say it differently."""
    text = first_line(value)
    cuda = values.release(text)
    if cuda is not None:
        return (("torch.build", "cuda"), ("torch.cuda", cuda), ("torch.installed", True))
    if text.lower().startswith(("none", "could not collect")):
        return (("torch.build", "cpu"),)
    return ()


def _torch_hip(value: str) -> values.Pairs:
    text = first_line(value)
    if not re.match(r"\d{1,2}\.\d", text):
        return ()
    return (("torch.build", "rocm"), ("torch.hip", text.split()[0]), ("torch.installed", True))


def _torch_xpu(value: str) -> values.Pairs:
    return (("torch.build", "xpu"),) if first_line(value)[:1].isdigit() else ()


def _available(value: str) -> values.Pairs:
    said = values.switch(first_line(value))
    if said is None:
        return ()
    return (("torch.imported.cuda_available", said), ("torch.imported.ok", True))


def _nvcc(value: str) -> values.Pairs:
    cuda = values.release(first_line(value))
    if cuda is None:
        return ()
    found = Toolkit(path="nvcc", origin="PATH", cuda=cuda, nvcc="nvcc")
    return (("build.toolkits", (found,)), ("build.used", found.path))


def _driver(value: str) -> values.Pairs:
    text = first_line(value)
    lines = [values.driver_version(line) for line in value.splitlines()[:20]]
    several = [one for one in lines if one is not None]
    version = values.driver_version(text) or (several[0] if several and not text else None)
    return (("driver.reported", version),) if version else ()


_GPU = re.compile(
    r"GPU[ #]?(\d{1,3}(?:,\d{1,3}){0,15})\s?:\s{0,8}(\S.{1,79}?)(?=\s{0,8}GPU[ #]?\d|\n|$)"
)
_MIG = re.compile(r"MIG \d{1,2}[gc]\.[\w.]{1,20}\s{1,20}Device")


def _gpus(value: str) -> values.Pairs:
    found: list[Gpu] = []
    for one in _GPU.finditer(value):
        name = values.gpu_name(one[2])
        indexes = [int(number) for number in one[1].split(",")] if name else []
        found += [Gpu(index=index, name=name) for index in indexes]
    if _MIG.search(value) and found:
        found[-1] = Gpu(index=found[-1].index, name=found[-1].name, mig=True)
    if found:
        amd = all(_is_amd(gpu.name or "") for gpu in found)
        return _amd(len(found)) if amd else (("gpus", tuple(found)),)
    text = first_line(value)
    if values.is_nothing(text) or not text:
        return ()
    if _is_amd(text):
        return _amd(1)
    name = values.gpu_name(text)
    return (("gpus", (Gpu(index=0, name=name),)),) if name else ()


def _is_amd(text: str) -> bool:
    low = text.lower()
    return "radeon" in low or "(gfx" in low or low.startswith("amd ") or "instinct" in low


def _amd(count: int) -> values.Pairs:
    return (("pci", tuple(PciGpu(address="", vendor="amd", device_id="") for _ in range(count))),)


def _cudnn(value: str) -> values.Pairs:
    paths = re.findall(r"(?:/|[A-Za-z]:\\)[^\n:*?\"<>|]{3,200}?cudnn[\w.]{2,60}", value)
    found = tuple(one for path in paths[:40] if (one := library_at(path, "system")) is not None)
    return (("libraries.copies", found),) if found else ()


def _allocator(value: str) -> values.Pairs:
    found = dict(re.findall(r"['\"](PYTORCH_\w{3,30})['\"]: ?['\"]([^'\"\n]{1,200})['\"]", value))
    return (("env", found),) if found else ()


def _hypervisor(value: str) -> values.Pairs:
    text = first_line(value).lower()
    return (("platform.virtual", text[:20]),) if text and not values.is_nothing(text) else ()


def _machine(value: str) -> values.Pairs:
    words = first_line(value).lower().split()
    known = values.MACHINES.get(words[0]) if words else None
    return (("platform.machine", known),) if known else ()


def _cpus(value: str) -> values.Pairs:
    text = first_line(value)
    return (("limits.cpus", int(text)),) if re.fullmatch(r"[0-9]{1,4}", text) else ()


def _gcc(value: str) -> values.Pairs:
    text = first_line(value)
    found = re.search(r"\)\s{0,4}(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", text) or re.match(
        r"(?:gcc )?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", text
    )
    version = values.version_of(found[1]) if found else None
    if version is None:
        return ()
    present = ("build.compiler.present", True)
    return (present, ("build.compiler.name", "g++"), ("build.compiler.version", version))


def _vllm(value: str) -> values.Pairs:
    found = re.match(r"v?(\d{1,2}\.\d{1,3}\S{0,60})", first_line(value))
    return (("packages", (Distribution(name="vllm", version=found[1]),)),) if found else ()


def _gpu_available(value: str) -> values.Pairs:
    """True, or why it is not: detectron2 says No: torch.cuda.is_available() == False."""
    return _available(value)


def _device_count(value: str) -> values.Pairs:
    text = first_line(value)
    return (("torch.imported.device_count", int(text)),) if re.fullmatch(r"\d{1,3}", text) else ()


def _one_gpu(value: str) -> values.Pairs:
    """The GPU that a program uses, with its capability where it is told."""
    text = first_line(value).removeprefix("cuda:0 ")
    text = re.sub(r"^cuda(?::\d{1,2})? ", "", text)
    if values.is_nothing(text) or _is_amd(text):
        return _amd(1) if _is_amd(text) and not values.is_nothing(text) else ()
    name = values.gpu_name(text)
    if name is None or not values.is_nvidia(name):
        return ()
    return (("gpus", (Gpu(index=0, name=name, capability=capability(text)),)),)


def capability(text: str) -> Version | None:
    """The compute capability that stands beside a GPU's name."""
    found = re.search(
        r"(?:arch ?=|capability|compute|sm_?|Arch \()[ :=(]{0,4}(\d{1,2})[., ]{0,2}(\d)(?!\d)",
        text,
        re.I,
    )
    return Version(f"{found[1]}.{found[2]}") if found else None


def _capability_field(value: str) -> values.Pairs:
    found = re.match(r"\(?(\d{1,2})[.,]\s?(\d)", first_line(value))
    return (("torch.imported.capabilities", (Version(f"{found[1]}.{found[2]}"),)),) if found else ()


def _nvcc_words(value: str) -> values.Pairs:
    """An nvcc's banner or its release alone; a compiler's own words are no toolkit."""
    text = first_line(value)
    found = re.search(r"release (\d{1,2}\.\d{1,2})|cuda_(\d{1,2}\.\d{1,2})\.", text, re.I)
    return _nvcc(next(one for one in found.groups() if one) if found else text)


def _cuda_home(value: str) -> values.Pairs:
    text = first_line(value)
    place = re.match(
        r"(?:/|[A-Za-z]:\\)[^\s'\"\]]{0,200}(?: [\w.]{1,20}(?=[\\ ])[^\s'\"\]]{0,200}){0,6}", text
    )
    if place is None:
        return (("build.cuda_home", ""),) if text.lower() == "none" else ()
    home = place[0].replace(" - invalid!", "").strip()
    missing: values.Pairs = (("build.cuda_home_exists", False),) if "invalid!" in text else ()
    return (("build.cuda_home", home), *missing)


def _package(name: str) -> Callable[[str], values.Pairs]:
    """A package by a version that is a value of its own."""

    def read(value: str) -> values.Pairs:
        text = first_line(value)
        found = re.match(r"v?(\d{1,4}\.\d{1,4}[\w.+]{0,60})", text)
        if found is None:
            return ()
        return (("packages", (distribution(name, found[1].rstrip(".")),)),)

    return read


def _shm(value: str) -> values.Pairs:
    found = re.match(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGT])B", first_line(value))
    if found is None:
        return ()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[found[2]]
    return (("limits.shm_bytes", int(float(found[1]) * scale)),)


_SYSTEMS = {
    "linux": "Linux",
    "win32": "Windows",
    "windows": "Windows",
    "nt": "Windows",
    "darwin": "Darwin",
}


def _system(value: str) -> values.Pairs:
    """linux, win32 and darwin of sys.platform, or the name of a system."""
    text = first_line(value)
    names = {
        "linux": "Linux",
        "win32": "Windows",
        "windows": "Windows",
        "darwin": "Darwin",
        "nt": "Windows",
    }
    known = names.get(text.lower().split(" ")[0].strip("',\""))
    return (("platform.system", known),) if known else values.os_facts(text)


def _platform(value: str) -> values.Pairs:
    text = first_line(value)
    return values.platform_facts(text) or _system(text)


def _archs(value: str) -> values.Pairs:
    found = tuple(dict.fromkeys(re.findall(r"\b((?:sm|compute)_\d{2,3}[af]?)\b", value[:900])))
    return (("torch.archs", found),) if found else ()


def _executable(value: str) -> values.Pairs:
    text = first_line(value).strip("'\"")
    return (("python.executable", text),) if re.match(r"/|[A-Za-z]:\\", text) else ()


PACKAGES = (
    *("torchvision", "torchaudio", "numpy", "triton", "transformers", "accelerate", "diffusers"),
    *("safetensors", "peft", "bitsandbytes", "xformers", "deepspeed", "mmcv", "detectron2"),
    *("flash-attn", "pytorch-lightning", "ultralytics", "tensorflow"),
)

FIELDS: dict[str, Callable[[str], values.Pairs]] = {
    "torch": _torch_line,
    "torch.cuda": _torch_cuda,
    "torch.hip": _torch_hip,
    "torch.xpu": _torch_xpu,
    "available": _available,
    "nvcc": _nvcc,
    "driver": _driver,
    "gpus": _gpus,
    "cudnn": _cudnn,
    "allocator": _allocator,
    "hypervisor": _hypervisor,
    "machine": _machine,
    "cpus": _cpus,
    "gcc": _gcc,
    "vllm": _vllm,
    "os": lambda value: values.os_facts(first_line(value)),
    "libc": lambda value: values.glibc_facts(first_line(value).removeprefix("glibc")),
    "python": lambda value: values.python_facts(first_line(value)),
    "platform": _platform,
    "system": _system,
    "gpu available": _gpu_available,
    "device count": _device_count,
    "gpu": _one_gpu,
    "capability": _capability_field,
    "nvcc words": _nvcc_words,
    "cuda home": _cuda_home,
    "shm": _shm,
    "archs": _archs,
    "executable": _executable,
    **{f"package {name}": _package(name) for name in PACKAGES},
}
"""Field -> what its value tells, as pairs of a fact path and a value."""

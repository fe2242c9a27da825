"""Dumps of an environment in the forms of other projects than torch.

transformers-cli, accelerate and diffusers-cli env; ds_report; bitsandbytes; xformers.info; mmcv and
detectron2's collect_env; Lightning; ComfyUI, A1111 and SD.Next; Ultralytics; unsloth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.model.machine import Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.fields import FIELDS, capability
from cudadoctor.reports.labels import Label, labelled
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_NEAR = 2500

_HUGGING_FACE = (
    Label("transformers' version", "package transformers", sure=True),
    Label("transformers version", "package transformers"),
    Label("accelerate' version", "package accelerate", sure=True),
    Label("accelerate version", "package accelerate"),
    Label("diffusers' version", "package diffusers", sure=True),
    Label("diffusers version", "package diffusers"),
    Label("huggingface_hub version", "", sure=True),
    Label("safetensors version", "", sure=True),
    Label("peft version", "package peft"),
    Label("bitsandbytes version", "package bitsandbytes"),
    Label("xformers version", "package xformers"),
    Label("numpy version", "package numpy"),
    Label("pytorch version (gpu?)", "torch", sure=True),
    Label("pytorch version (accelerator?)", "torch", sure=True),
    Label("pytorch version", "torch"),
    Label("pytorch accelerator", "", sure=True),
    Label("platform", "platform"),
    Label("python version", "python"),
    Label("system ram", ""),
    Label("gpu type", "gpu"),
    Label("accelerator", "gpu"),
    Label("using gpu in script", "", sure=True),
    Label("using distributed or parallel set-up in script", "", sure=True),
    Label("tensorflow version", ""),
    Label("deepspeed version", "package deepspeed"),
    Label("running on google colab", "", sure=True),
)
_DEEPSPEED = (
    Label("torch install path", "", sure=True),
    Label("torch version", "torch"),
    Label("torch cuda version", "torch.cuda", sure=True),
    Label("torch hip version", "torch.hip", sure=True),
    Label("nvcc version", "nvcc words"),
    Label("deepspeed install path", "", sure=True),
    Label("deepspeed info", "package deepspeed", sure=True),
    Label("deepspeed wheel compiled w.", "", sure=True),
    Label("shared memory (/dev/shm) size", "shm", sure=True),
)
_XFORMERS = (
    Label("pytorch.version", "torch", sure=True),
    Label("pytorch.cuda", "available", sure=True),
    Label("gpu.compute_capability", "capability", sure=True),
    Label("gpu.name", "gpu", sure=True),
    Label("build.info", "", sure=True),
    Label("build.cuda_version", "", sure=True),
    Label("build.python_version", "", sure=True),
    Label("build.torch_version", "", sure=True),
)
_TABLES = (
    Label("sys.platform", "system", sure=True, table=True),
    Label("python", "python", table=True),
    Label("numpy", "package numpy", table=True),
    Label("cuda available", "gpu available", table=True),
    Label("gpu available", "gpu available", table=True),
    Label("cuda_home", "cuda home", table=True),
    Label("nvcc", "nvcc words", table=True),
    Label("gcc", "gcc", table=True),
    Label("msvc", "", table=True),
    Label("compiler", "", table=True),
    Label("cuda compiler", "", table=True),
    Label("driver version", "driver", table=True),
    Label("detectron2", "package detectron2", table=True),
    Label("detectron2 arch flags", "", sure=True, table=True),
    Label("detectron2_env_module", "", sure=True, table=True),
    Label("pytorch", "torch", table=True),
    Label("pytorch debug build", "", sure=True, table=True),
    Label("pytorch compiling details", "", sure=True, table=True),
    Label("pillow", "", table=True),
    Label("torchvision", "package torchvision", table=True),
    Label("torchvision arch flags", "", sure=True, table=True),
    Label("opencv", "", table=True),
    Label("mmcv", "package mmcv", table=True),
    Label("mmcv compiler", "", sure=True, table=True),
    Label("mmcv cuda compiler", "", sure=True, table=True),
    Label("mmengine", "", table=True),
    Label("mmdetection", "", table=True),
    Label("fvcore", "", sure=True, table=True),
    Label("iopath", "", table=True),
    Label("cv2", "", table=True),
    Label("musa available", "", table=True),
)
_INTERFACES = (
    Label("pytorch version", "torch"),
    Label("xformers version", "package xformers"),
    Label("set vram state to", "", sure=True),
    Label("total vram", "", sure=True),
    Label("device", "gpu"),
    Label("** python version", "python", sure=True),
    Label("** python executable", "executable", sure=True),
    Label("** platform", "system", sure=True),
    Label("python executable", "executable"),
    Label("comfyui version", "", sure=True),
    Label("embedded python", "", sure=True),
    Label("vram total", "", sure=True),
    Label("torch vram total", "", sure=True),
    Label("python version", "python"),
    Label("os", "system"),
    Label("name", "gpu"),
    Label("torch", "torch"),
    Label("python", "python"),
    Label("xformers", "package xformers"),
    Label("gradio", "", sure=True),
    Label("checkpoint", ""),
    Label("bitsandbytes", "package bitsandbytes"),
)
_BITSANDBYTES = (
    Label("platform", "platform"),
    Label("libc", ""),
    Label("python", "python"),
    Label("pytorch", "torch"),
    Label("cuda", "torch.cuda"),
    Label("hip", ""),
    Label("xpu", ""),
    Label("related packages", "", sure=True),
    Label("accelerate", "package accelerate"),
    Label("diffusers", "package diffusers"),
    Label("numpy", "package numpy"),
    Label("peft", "package peft"),
    Label("safetensors", "package safetensors"),
    Label("transformers", "package transformers"),
    Label("triton", "package triton"),
)
_LIGHTNING = (
    Label("* cuda", "", sure=True),
    Label("available", "available"),
    Label("version", "torch.cuda"),
    Label("* lightning", "", sure=True),
    Label("* packages", "", sure=True),
    Label("* system", "", sure=True),
    Label("pytorch_version", "torch", sure=True),
    Label("pytorch_debug", "", sure=True),
    Label("torch", "torch"),
    Label("torchvision", "package torchvision"),
    Label("torchaudio", "package torchaudio"),
    Label("numpy", "package numpy"),
    Label("pytorch-lightning", "package pytorch-lightning"),
    Label("lightning", ""),
    Label("os", "system"),
    Label("architecture", ""),
    Label("processor", "machine"),
    Label("python", "python"),
    Label("release", ""),
)

DUMPS: tuple[tuple[str, tuple[str, ...], tuple[Label, ...]], ...] = (
    (
        "the dump of transformers, accelerate or diffusers",
        ("' version: ", "version (gpu?)", "version (accelerator?)", "huggingface_hub version"),
        _HUGGING_FACE,
    ),
    ("ds_report", ("torch cuda version", "deepspeed info", "torch install path"), _DEEPSPEED),
    ("xformers.info", ("pytorch.version", "gpu.compute_capability"), _XFORMERS),
    (
        "the dump of mmcv or detectron2",
        ("sys.platform", "pytorch compiling details", "pytorch debug build", "arch flags"),
        _TABLES,
    ),
    (
        "the start of a user interface",
        ("total vram", "set vram state", "** python", "comfyui version", "• torch:", "gradio: "),
        _INTERFACES,
    ),
    ("python -m bitsandbytes", ("related packages:",), _BITSANDBYTES),
    ("the dump of Lightning", ("* cuda:", "pytorch_version:", "* lightning:"), _LIGHTNING),
)
"""Who prints it, words of which one must stand there, and the labels."""


def read_environment_dumps(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Every dump whose labels are known."""
    for source, gate, labels in DUMPS:
        if any(words in doc.low for words in gate):
            yield from _told(doc, source, labels)
    if "sys.platform" in doc.low or "* cuda" in doc.low or "gpu available" in doc.low:
        yield from _gpus(doc)
    yield from read_compiled(doc)


_NUMBERED = re.compile(r"GPU (\d{1,2}(?:,\d{1,2}){0,15})(?:: {0,20}| {2,40})(\S.{1,120})$")
_NESTED = re.compile(r"\s{1,24}[-*] (NVIDIA .{3,60}|(?:GeForce|Tesla|Quadro|TITAN) .{1,50})$", re.I)


def _gpus(doc: Document) -> Iterator[Said]:
    """GPU 0,1: a name, as mmcv and detectron2 write it; and the nested list of Lightning."""
    found: list[Gpu] = []
    first = 1
    for line in doc.lines:
        numbered = _NUMBERED.match(line.text.strip(" \t-*•")) if "GPU " in line.text else None
        nested = None if numbered else _NESTED.match(line.text)
        name = values.gpu_name(numbered[2] if numbered else nested[1] if nested else "")
        if name is None:
            continue
        first = first if found else line.number
        arch = capability(numbered[2]) if numbered else None
        places = numbered[1].split(",") if numbered else [str(len(found))]
        found += [Gpu(index=int(one), name=name, capability=arch) for one in places]
    if found:
        yield Said("gpus", tuple(found), first, Rank.TOOL, "the dump of an environment")


def _told(doc: Document, source: str, labels: tuple[Label, ...]) -> Iterator[Said]:
    text = doc.text
    known: set[str] = set()
    for one in labelled(text, labels, _NEAR):
        reader = FIELDS.get(one.label.field)
        for path, value in reader(one.value) if reader else ():
            if path == "torch.build" and path in known and value == "cpu":
                continue
            known.add(path)
            line = doc.lines[text.count("\n", 0, one.start)].number
            rank = Rank.COMMAND if path == "build.used" else Rank.TOOL
            yield Said(path, value, line, rank, source)


# --- torch.__config__.show() ---------------------------------------------------------------------

_FLAGS = re.compile(r"NVCC architecture flags: ?([-\w=;, .]{4,2000})")
_FLAG = re.compile(r"code=(?:\[?)((?:sm|compute)_\d{2,3}[af]?)")
_RUNTIME = re.compile(r"- CUDA Runtime (\d{1,2}\.\d{1,2})")
_SETTINGS = re.compile(r"\bTORCH_VERSION=(\d\.\d{1,2}\.\d{1,3})")


def read_compiled(doc: Document) -> Iterator[Said]:
    """What torch was built with, and for which architectures."""
    if "pytorch built with" not in doc.low and "nvcc architecture flags" not in doc.low:
        return
    source = "torch.__config__"
    for pattern, facts in ((_FLAGS, _archs), (_RUNTIME, _runtime), (_SETTINGS, _version)):
        found = pattern.search(doc.flat)
        if found:
            line = doc.line_at(found.start()).number
            for path, value in facts(found[1]):
                yield Said(path, value, line, Rank.TOOL, source)
    without = "use_cuda=off" in doc.low or "use_cuda=0" in doc.low
    if without and "use_rocm=on" not in doc.low:
        line = doc.line_at(doc.low.find("use_cuda=")).number
        yield Said("torch.build", "cpu", line, Rank.TOOL, source)


def _archs(text: str) -> values.Pairs:
    found = tuple(dict.fromkeys(_FLAG.findall(text)))
    return (("torch.archs", found),) if found else ()


def _runtime(text: str) -> values.Pairs:
    cuda = values.release(text)
    return (("torch.build", "cuda"), ("torch.cuda", cuda)) if cuda else ()


def _version(text: str) -> values.Pairs:
    return (("torch.installed", True), ("torch.version", values.version_of(text)))

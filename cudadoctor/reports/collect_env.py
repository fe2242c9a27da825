"""Dumps of an environment that label each value: torch's collect_env and its descendants.

The labels are looked for anywhere, so that a dump whose line breaks were lost is read too. A value
ends at its line's end or at the next label. Three answers mean different things: "N/A" that torch
could not be asked, "Could not collect" that the program gave nothing, and "No CUDA" that torch sees
no GPU and nvidia-smi and nvcc gave nothing. None of them proves that there is no hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from cudadoctor.facts import Distribution, Gpu, PciGpu, Toolkit
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.libraries import library_at
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

SOURCE = "collect_env"
_NEAR = 3000
"""How far from a label that only a dump has, a common label still belongs to the dump."""
_LONGEST = 400
"""Of a value more is not read."""


class Label(NamedTuple):
    """A label. words: as printed, in lower case. sure: only a program prints it."""

    words: str
    field: str
    sure: bool


LABELS = (
    Label("pytorch version", "torch", sure=False),
    Label("is debug build", "", sure=True),
    Label("cuda used to build pytorch", "torch.cuda", sure=True),
    Label("rocm used to build pytorch", "torch.hip", sure=True),
    Label("xpu used to build pytorch", "torch.xpu", sure=True),
    Label("os", "os", sure=False),
    Label("gcc version", "gcc", sure=False),
    Label("clang version", "", sure=False),
    Label("cmake version", "", sure=False),
    Label("libc version", "libc", sure=True),
    Label("python version", "python", sure=False),
    Label("python platform", "platform", sure=True),
    Label("is cuda available", "available", sure=True),
    Label("cuda runtime version", "nvcc", sure=True),
    Label("cuda_module_loading set to", "", sure=True),
    Label("gpu models and configuration", "gpus", sure=True),
    Label("nvidia driver version", "driver", sure=True),
    Label("cudnn version", "cudnn", sure=False),
    Label("hip runtime version", "", sure=True),
    Label("miopen runtime version", "", sure=True),
    Label("is xnnpack available", "", sure=True),
    Label("is xpu available", "", sure=True),
    Label("caching allocator config", "allocator", sure=True),
    Label("architecture", "machine", sure=False),
    Label("hypervisor vendor", "hypervisor", sure=False),
    Label("cpu", "", sure=False),
    Label("cpu(s)", "cpus", sure=False),
    Label("versions of relevant libraries", "", sure=True),
    Label("rocm version", "", sure=False),
    Label("neuron sdk version", "", sure=True),
    Label("vllm version", "vllm", sure=False),
    Label("vllm build flags", "", sure=True),
    Label("gpu topology", "", sure=False),
)
_GATE = tuple(label.words for label in LABELS if label.sure)
_COLON = re.compile(r"[ \t]{0,40}:[ \t]{0,20}")


class Found(NamedTuple):
    """A label that stands in the text, and what follows it. start: of the value."""

    label: Label
    value: str
    start: int


def read_collect_env(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Everything that torch's collect_env, or vLLM's or another that is made after it, says."""
    if not any(words in doc.low for words in _GATE):
        return
    text = doc.text
    rank = Rank.PROSE if _by_hand(doc.low) else Rank.TOOL
    known: set[str] = set()
    for one in _labelled(text):
        for path, value in _facts(one):
            if path == "torch.build" and path in known and value == "cpu":
                continue  # no CUDA version is no build for the CPU where another was named
            known.add(path)
            line = text.count("\n", 0, one.start)
            yield Said(path, value, doc.lines[line].number, rank, SOURCE)


def _by_hand(low: str) -> bool:
    """Whether the labels are those of an issue form, which a person fills in."""
    form = "(e.g., " in low or "how you installed" in low
    programs = ("is debug build", "cuda used to build", "libc version")
    return form and not any(words in low for words in programs)


def _labelled(text: str) -> list[Found]:
    """The labels in order, each with its value; common words only near words of a dump."""
    low = text.replace("İ", "I").lower()
    places = sorted(place for label in LABELS for place in _places(label, low))
    sure = [start for start, _, label in places if label.sure]
    near = [one for one in places if any(abs(one[0] - other) < _NEAR for other in sure)]
    ends = [start for start, _, _ in near[1:]] + [len(text)]
    return [
        Found(label, text[after : min(end, after + _LONGEST * 10)], after)
        for (_, after, label), end in zip(near, ends, strict=True)
    ]


def _places(label: Label, low: str) -> Iterator[tuple[int, int, Label]]:
    place, times = low.find(label.words), 0
    while place >= 0 and times < 40:
        times += 1
        end = place + len(label.words)
        colon = _COLON.match(low, end)
        if colon and not (place and (low[place - 1].isalnum() or low[place - 1] in "_./")):
            yield place, colon.end(), label
        place = low.find(label.words, end)


def _line(value: str) -> str:
    """The first line of a value; where it was wrapped behind its label, the next one."""
    first, _, rest = value.partition("\n")
    if not first.strip():
        first = rest.partition("\n")[0]
        return "" if _COLON.search(first) else first.strip()[:_LONGEST]
    return first.strip()[:_LONGEST]


def _facts(one: Found) -> values.Pairs:
    reader = _FIELDS.get(one.label.field)
    return reader(one.value) if reader else ()


# --- what the fields say -----------------------------------------------------------------------


def _torch(value: str) -> values.Pairs:
    return values.torch_facts(_line(value))


def _torch_cuda(value: str) -> values.Pairs:
    """torch.version.cuda is None in a build for the CPU: old and new forms say it differently."""
    text = _line(value)
    cuda = values.release(text)
    if cuda is not None:
        return (("torch.build", "cuda"), ("torch.cuda", cuda), ("torch.installed", True))
    if text.lower().startswith(("none", "could not collect")):
        return (("torch.build", "cpu"),)
    return ()


def _torch_hip(value: str) -> values.Pairs:
    text = _line(value)
    if not re.match(r"\d{1,2}\.\d", text):
        return ()
    return (("torch.build", "rocm"), ("torch.hip", text.split()[0]), ("torch.installed", True))


def _torch_xpu(value: str) -> values.Pairs:
    return (("torch.build", "xpu"),) if _line(value)[:1].isdigit() else ()


def _available(value: str) -> values.Pairs:
    said = values.switch(_line(value))
    if said is None:
        return ()
    return (("torch.imported.cuda_available", said), ("torch.imported.ok", True))


def _nvcc(value: str) -> values.Pairs:
    cuda = values.release(_line(value))
    if cuda is None:
        return ()
    found = Toolkit(path="nvcc", origin="PATH", cuda=cuda, nvcc="nvcc")
    return (("build.toolkits", (found,)), ("build.used", found.path))


def _driver(value: str) -> values.Pairs:
    text = _line(value)
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
    for one in _GPU.finditer(value[: _LONGEST * 10]):
        name = values.gpu_name(one[2])
        indexes = [int(number) for number in one[1].split(",")] if name else []
        found += [Gpu(index=index, name=name) for index in indexes]
    if _MIG.search(value) and found:
        found[-1] = Gpu(index=found[-1].index, name=found[-1].name, mig=True)
    if found:
        amd = all(_is_amd(gpu.name or "") for gpu in found)
        return _amd(len(found)) if amd else (("gpus", tuple(found)),)
    text = _line(value)
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
    text = _line(value).lower()
    return (("platform.virtual", text[:20]),) if text and not values.is_nothing(text) else ()


def _machine(value: str) -> values.Pairs:
    words = _line(value).lower().split()
    known = values.MACHINES.get(words[0]) if words else None
    return (("platform.machine", known),) if known else ()


def _cpus(value: str) -> values.Pairs:
    text = _line(value)
    return (("limits.cpus", int(text)),) if text.isdigit() and len(text) < 5 else ()


def _gcc(value: str) -> values.Pairs:
    text = _line(value)
    found = re.search(r"\)\s{0,4}(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", text) or re.match(
        r"(?:gcc )?(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", text
    )
    version = values.version_of(found[1]) if found else None
    if version is None:
        return ()
    present = ("build.compiler.present", True)
    return (present, ("build.compiler.name", "g++"), ("build.compiler.version", version))


def _vllm(value: str) -> values.Pairs:
    found = re.match(r"v?(\d{1,2}\.\d{1,3}\S{0,60})", _line(value))
    return (("packages", (Distribution(name="vllm", version=found[1]),)),) if found else ()


_FIELDS: dict[str, Callable[[str], values.Pairs]] = {
    "torch": _torch,
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
    "os": lambda value: values.os_facts(_line(value)),
    "libc": lambda value: values.glibc_facts(_line(value).removeprefix("glibc")),
    "python": lambda value: values.python_facts(_line(value)),
    "platform": lambda value: values.platform_facts(_line(value)),
}

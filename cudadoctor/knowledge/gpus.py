"""GPUs by name and by PCI id, their generations, and which compiled code serves which GPU."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import field
from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, minor, version
from cudadoctor.model.machine import OptBool, OptFloat, OptInt, OptVersion, Strings, Versions

if TYPE_CHECKING:
    from collections.abc import Iterator

OpenModules = Literal["only", "both", "none"]
Served = Literal["native", "ptx"]

_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_MEMORY = re.compile(r"\d+g(?:b|$)")
_VIRTUAL = re.compile(r"(?:-\d+)?-\d+[qcab](?:\d|me)?$")
_SHARE = re.compile(
    r"(?:grid )?(?:(rtx) ?(?:(a\d{4})|(\d{4})p?( ada)?)|([a-z]{1,2}\d{1,3})[a-z]{0,2})"
)
"""A board as the names of its shares write it: V100D, T4, RTXA6000, RTX6000P, RTX6000-Ada."""
_WRITTEN = (
    (re.compile(r".*\[(.+)\]"), r"\1"),
    (re.compile(r"[()]| lite hash rate$|(?<=\w)(?: /|/(?=\d{4}$)).*"), ""),
    (re.compile(r"(?<=\d{4})d\b"), " d"),
    (re.compile(r"\bmobile\b"), "laptop"),
    (re.compile(r" ada$"), " ada generation"),
    (re.compile(r" blackwell dc$"), " blackwell"),
    (re.compile(r"^([rg]tx?) ?(?=\d)|^(?=mx\d)"), r"geforce \1 "),
)
"""How lists of PCI devices and people write a name -> how the driver writes it."""


class GpuModel(Row, frozen=True):
    """A GPU as NVIDIA sells it. data_center: forward compatibility packages may be used.

    open_modules: "only", "both" or "none", where this board differs from its generation too.
    tensor_cores is a hint.
    """

    name: str
    capability: Version
    architecture: str
    data_center: bool
    tensor_cores: OptBool
    open_modules: OpenModules = "both"


class GpuPeaks(Row, frozen=True):
    """The most that a GPU does, dense and with fp32 sums; tera-operations and GB a second.

    None: it has no units for that type, or the figure is not known. per_clock: operations of an SM
    in one clock by type, {} where the data sheet's figures do not follow from them.
    """

    name: str
    fp32_tflops: OptFloat
    tf32_tflops: OptFloat
    bandwidth_gb_s: float
    per_clock: dict[str, int]


class Architecture(Row, frozen=True):
    """A generation of GPUs and its drivers.

    last_branch: the newest driver branch that supports it, None for "all later ones".
    first_branch: the oldest, approximate. open_modules: "only", "both" or "none".
    """

    name: str
    capabilities: Versions
    first_branch: OptInt
    last_branch: OptInt
    open_modules: OpenModules
    source: str


class _Models(Row, frozen=True):
    """names: spelling -> number of the model, -1 for a name of several chips.

    usual: name of several chips -> the capability of the board that nearly everybody has. several:
    what people call boards of several generations -> a model of each.
    """

    models: tuple[GpuModel, ...]
    names: dict[str, int]
    devices: dict[str, tuple[int, ...]]
    usual: dict[str, Version]
    several: dict[str, Strings] = field(default_factory=dict)


class _Peaks(Row, frozen=True):
    rows: tuple[GpuPeaks, ...]
    names: dict[str, int]


class _Lifted(Row, frozen=True):
    torch: Version
    cuda: Version
    code: Strings


class _Serving(Row, frozen=True):
    exclusions: dict[str, Strings]
    aliases: dict[str, Strings]
    lifted: _Lifted


class _Architectures(Row, frozen=True):
    generations: tuple[Architecture, ...]
    serving: _Serving


class Gpus:
    """Models, peaks and generations, and the compatibility of machine code and PTX."""

    _gpus = kept("gpus", _Models)
    _peaks = kept("peaks", _Peaks)
    _architectures = kept("architectures", _Architectures)

    @cached_property
    def _by_capability(self) -> dict[str, Architecture]:
        return {
            str(capability): row
            for row in self._architectures.generations
            for capability in row.capabilities
        }

    def gpus_by_pci(self, device_id: str) -> tuple[GpuModel, ...]:
        """The models behind a PCI device id (four hex digits), () if it is not in the table."""
        numbers = self._gpus.devices.get(device_id.lower().removeprefix("0x"), ())
        return tuple(self._gpus.models[number] for number in numbers)

    def gpu_by_name(self, name: str) -> GpuModel | None:
        """The model of that name, None if unknown or if the name means several chips.

        "NVIDIA GeForce RTX 3090" and "GeForce RTX 3090" are the same name.
        """
        number = _number(name, self._gpus.names)
        if number is not None:
            return None if number < 0 else self._gpus.models[number]
        if name.endswith("..."):
            start = spellings(name.rstrip(". "))[0]
            return self._alike(start) if len(start) > 4 else None
        return self._share(name) or self._otherwise_written(name)

    def gpus_by_name(self, name: str) -> tuple[GpuModel, ...]:
        """Every model of that name, the most common board first; () for one that is not known."""
        model = self.gpu_by_name(name)
        if model is not None:
            return (model,)
        rows = sorted(self._gpus.models, key=lambda row: not self.is_usual(row))
        texts = {*spellings(name), *rewritten(name)}
        texts.update(*(self._gpus.several.get(text, ()) for text in texts))
        return tuple(row for row in rows if not texts.isdisjoint(spellings(row.name)))

    def is_usual(self, model: GpuModel) -> bool:
        """Whether a name of several chips nearly always means this one."""
        return self._gpus.usual.get(model.name) == model.capability

    def _share(self, name: str) -> GpuModel | None:
        """The board of which a virtual GPU is a share: "GRID V100D-8Q", "RTX6000-Ada-48Q"."""
        text = spellings(name)[0]
        found = _SHARE.fullmatch(text)
        shared = text.startswith("grid ") or text.endswith("d") or _VIRTUAL.search(name.lower())
        if found is None or not shared:
            return None
        rtx, newer, number, ada, code = found.groups()
        if rtx:
            words = f"rtx {newer or number}" + (" ada generation" if ada else "")
            return self.gpu_by_name(words if newer or ada else f"quadro {words}")
        return self._alike(f"{code} ", f"tesla {code} ")

    def _otherwise_written(self, name: str) -> GpuModel | None:
        texts = (text for text in rewritten(name) if text in self._gpus.names)
        number = self._gpus.names.get(next(texts, ""), -1)
        return None if number < 0 else self._gpus.models[number]

    def _alike(self, *starts: str) -> GpuModel | None:
        """The first model whose name begins so, if all that do are alike."""
        known = self._gpus.names.items()
        numbers = sorted({number for name, number in known if f"{name} ".startswith(starts)})
        if not numbers or numbers[0] < 0:
            return None
        models = [self._gpus.models[number] for number in numbers]
        alike = {(model.capability, model.architecture, model.data_center) for model in models}
        return models[0] if len(alike) == 1 else None

    def peaks(self, name: str) -> GpuPeaks | None:
        """The most that a GPU of this name does; None not known, or if several boards share it."""
        number = _number(name, self._peaks.names)
        return None if number is None or number < 0 else self._peaks.rows[number]

    def architecture(self, capability: Version) -> Architecture | None:
        """The generation of a compute capability, None for one that the tables do not have."""
        return self._by_capability.get(minor(capability))

    @property
    def capabilities(self) -> Versions:
        """Every compute capability of the tables, lowest first."""
        return tuple(sorted(map(version, self._by_capability)))

    def known_bad_arch(self, capability: Version) -> bool:
        """Whether the capability is newer than every architecture in the tables."""
        return capability > self.capabilities[-1]

    def serves(
        self, code: str, capability: Version, torch: OptVersion, cuda: OptVersion
    ) -> Served | None:
        """How code compiled for sm_XX or compute_XX runs on a device, None if it does not.

        Same major and lower or equal minor, but for the exclusions in the tables (Jetson);
        PTX is compiled for anything newer. torch, cuda: of the build, for its exceptions.
        """
        parsed = _parsed(code)
        if parsed is None:
            return None
        kind, built_for, suffix = parsed
        device = (capability.major, capability.minor)
        if suffix == "a":  # architecture-specific code runs on its own architecture only
            return kind if device == built_for else None
        if kind == "ptx" and not suffix:
            return "ptx" if device >= built_for else None
        rule = self._architectures.serving
        number, name = f"{built_for[0]}{built_for[1]}", minor(capability)
        if name in rule.aliases.get(number, ()):
            return "native"
        lifted = torch and cuda and torch >= rule.lifted.torch and cuda >= rule.lifted.cuda
        if name in rule.exclusions.get(number, ()) and not (lifted and number in rule.lifted.code):
            return None
        return kind if device[0] == built_for[0] and device[1] >= built_for[1] else None


@lru_cache(maxsize=4096)
def _parsed(code: str) -> tuple[Served, tuple[int, int], str] | None:
    found = _CODE.fullmatch(code)
    if found is None:
        return None
    return "ptx" if found[1] == "compute" else "native", (int(found[2]), int(found[3])), found[4]


def _number(name: str, names: dict[str, int]) -> OptInt:
    """The first spelling that the tables know decides; -1 marks one with several chips."""
    return next((names[text] for text in spellings(name) if text in names), None)


@lru_cache(maxsize=4096)
def spellings(name: str) -> Strings:
    """A GPU's name in its plain spelling, then without its memory size if it has one.

    nvidia-smi says "NVIDIA GeForce RTX 3090", torch says the same, older drivers leave the vendor
    out, lists of PCI ids write "Tesla V100 SXM2 16GB" where the driver writes "Tesla
    V100-SXM2-16GB".
    """
    text = name.lower().partition(" mig ")[0].replace("(nvgpu)", " ")
    text = _VIRTUAL.sub("", text.strip())
    text = text.replace("with max-q design", "max-q")
    words = [word for word in re.split(r"[\s\-_]+", text) if word not in ("", "nvidia", "gpu")]
    exact = " ".join(words)
    short = " ".join(word for word in words if not _MEMORY.match(word))
    return (exact, short) if short and short != exact else (exact,)


def rewritten(name: str) -> Iterator[str]:
    """A name step by step as the driver would write it: "GA106 [GeForce RTX 3060]", "RTX 4090"."""
    text = spellings(name)[0]
    for pattern, plain in _WRITTEN:
        text = " ".join(pattern.sub(plain, text).split())
        yield text

"""What the knowledge answers with: typed rows, versions as versions."""

from __future__ import annotations

from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion

PLATFORMS = Literal[
    "linux_x86_64",
    "linux_aarch64",
    "windows_amd64",
    "windows_arm64",
    "macos_arm64",
    "macos_x86_64",
]


class KnowledgeError(ValueError):
    """A table contradicts itself: our own mistake, in one sentence."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a number comes from. url None: the package index itself. date: last looked up."""

    title: str
    url: str | None
    date: str | None


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """One published build of torch: a release, a variant and a platform.

    variant: cu126, cpu ... cuda: None for cpu. published: True seen, False known absent, None only
    announced. archs: machine code (sm_90) and PTX (compute_90), None not known; archs_uncertain:
    not read from a binary and marked weak; contested: code of that list that another source denies.
    pythons: "3.11", "3.14t", as the default index has them. glibc: the floor, Linux only.
    default: what a plain `pip install torch==X` gives on this platform. index: URL for pip, of the
    default index where the build is the default. download_bytes: of the wheel alone, None not
    known. torchvision, torchaudio: the matching release, None where there is none.
    toolkit: the CUDA release that it was compiled with; cudnn: its cuDNN (Linux).
    """

    torch: Version
    variant: str
    platform: str
    cuda: Version | None
    published: bool | None
    archs: tuple[str, ...] | None
    archs_uncertain: bool
    pythons: tuple[str, ...]
    glibc: Version | None
    default: bool
    index: str
    download_bytes: int | None
    torchvision: str | None
    torchaudio: str | None
    released: str
    sources: tuple[str, ...]
    contested: tuple[str, ...] = ()
    toolkit: str | None = None
    cudnn: str | None = None


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest driver that runs a CUDA version on one system."""

    driver: DriverVersion
    source: str
    uncertain: bool = False


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as NVIDIA sells it. data_center: forward compatibility packages may be used.

    open_modules: "only", "both" or "none", where this board differs from its generation too.
    memory and tensor cores are hints.
    """

    name: str
    capability: Version
    architecture: str
    data_center: bool
    memory_gb: tuple[float, ...]
    tensor_cores: bool | None
    bf16: bool | None
    tf32: bool | None
    open_modules: Literal["only", "both", "none"] = "both"
    sources: tuple[str, ...] = ()


class GpuPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a GPU does, dense and with fp32 sums; tera-operations and GB a second.

    None: it has no units for that type, or the figure is not known.
    """

    name: str
    fp32_tflops: float | None
    tf32_tflops: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    bandwidth_gb_s: float
    sources: tuple[str, ...] = ()


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of GPUs and its drivers.

    last_branch: the newest driver branch that supports it, None for "all later ones".
    first_branch: the oldest, approximate. open_modules: "only", "both" or "none".
    """

    name: str
    first_branch: int | None
    last_branch: int | None
    open_modules: Literal["only", "both", "none"]
    source: str


class HostCompilers(msgspec.Struct, frozen=True, kw_only=True):
    """What nvcc of one toolkit accepts as a host compiler; None not known.

    msc_min, msc_below: bounds of _MSC_VER. uncertain: not read from nvcc's own header.
    """

    gcc_max: int | None
    clang_max: int | None
    msc_min: int | None
    msc_below: int | None
    visual_studio: str | None
    uncertain: bool
    sources: tuple[str, ...]


Compat = Literal["compatible", "native", "older"]
"""A cuda-compat package on a driver branch: usable, not needed, or older than the driver."""


class DriverFault(msgspec.Struct, frozen=True, kw_only=True):
    """A known fault of driver releases: which of them have it, and how it is told.

    first, below: the releases that have it, None where its signs alone tell. fixed_branch: the
    oldest branch without it. uncertain: the source does not name the bounds.
    log: words of the kernel log that prove it; cuinit: the code that cuInit gives with it.
    gpus: words in the name of a GPU that has it; several: it shows between GPUs; p2p: only where
    the driver offers P2P. cure: "upgrade" or "hmm-off".
    """

    id: str
    title: str
    why: str
    first: DriverVersion | None
    below: DriverVersion | None
    fixed_branch: int | None
    uncertain: bool
    log: tuple[str, ...]
    cuinit: int | None
    flavour: Literal["open", "proprietary"] | None
    gpus: str | None
    several: bool
    p2p: bool
    data_center: bool | None
    severity: Literal["error", "warning", "info"]
    cure: Literal["upgrade", "hmm-off"]
    sources: tuple[str, ...]


class JetsonBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Where the builds of torch for one JetPack lie. l4t: its Linux for Tegra release."""

    l4t: int
    jetpack: int
    index: str
    variant: str
    cuda: str
    python: str
    sources: tuple[str, ...]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """How GPUs whose names hold a pattern are wired. pcie: they have a PCIe link of their own.

    nvswitch: "bus" where they come on boards whose NVSwitches stand on the PCI bus, "hidden" where
    these do not, "none" where they come without. A board may be equipped with fewer.
    """

    names: str
    nvswitch: Literal["bus", "hidden", "none"]
    pcie: bool
    sources: tuple[str, ...]


class PygWheel(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled part of torch-geometric that was seen on PyG's page for one torch and variant."""

    torch: str
    variant: str
    package: str
    version: str
    platforms: tuple[str, ...]
    pythons: tuple[str, ...]
    sources: tuple[str, ...]

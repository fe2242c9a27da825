"""What is known of the world: tables with sources and dates, and one typed loader.

The rows live in JSON files beside this module, built from the collected facts. Nothing here is
read before it is asked for: `check --fast` must not pay for tables that no rule looks at.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.versions import DriverVersion

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
    not read from a binary and marked weak. pythons: "3.11", "3.14t". glibc: the floor, Linux only.
    default: what a plain `pip install torch==X` gives on this platform. index: URL for pip,
    download_bytes: of the wheel alone, None not known. torchvision, torchaudio: the matching
    release, None where there is none. removable pins: requires.
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


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest driver that runs a CUDA version on one system."""

    driver: DriverVersion
    source: str
    uncertain: bool = False


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as NVIDIA sells it. data_center: forward compatibility packages may be used."""

    name: str
    capability: Version
    architecture: str
    data_center: bool
    memory_gb: tuple[float, ...]
    tensor_cores: bool | None
    bf16: bool | None
    tf32: bool | None


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


class Knowledge:
    """All tables. Make one with `load()`."""

    @cached_property
    def date(self) -> str:
        """The day the tables were collected, ISO 8601."""
        raise NotImplementedError

    def source(self, key: str) -> Source:
        """The source behind a key. Raises KnowledgeError for a key that no table has."""
        raise NotImplementedError

    @cached_property
    def builds(self) -> tuple[TorchBuild, ...]:
        """Every build of torch in the tables, newest release first."""
        raise NotImplementedError

    def build_of(self, torch: Version, variant: str, platform: str) -> TorchBuild | None:
        """That build, None where the tables have no row for it."""
        raise NotImplementedError

    def newest_torch(self) -> Version:
        """The newest torch release in the tables."""
        raise NotImplementedError

    def driver_floor(self, cuda: Version, system: str) -> Floor | None:
        """The oldest driver that runs this CUDA version on Linux or Windows.

        From 11 on the floor of the major (minor-version compatibility), before it the toolkit's own
        row. None where the tables are silent.
        """
        raise NotImplementedError

    def native_cuda(self, driver: DriverVersion) -> Version | None:
        """The CUDA version that a driver of this branch reports, None for an unknown branch."""
        raise NotImplementedError

    def branch_for(self, cuda: Version) -> int | None:
        """The oldest current driver branch whose own CUDA level is at least this version."""
        raise NotImplementedError

    def gpus_by_pci(self, device_id: str) -> tuple[GpuModel, ...]:
        """The models behind a PCI device id (four hex digits), () where it is not in the table."""
        raise NotImplementedError

    def gpu_by_name(self, name: str) -> GpuModel | None:
        """The model of that name, None where unknown or where the name means several chips.

        "NVIDIA GeForce RTX 3090" and "GeForce RTX 3090" are the same name.
        """
        raise NotImplementedError

    def architecture(self, capability: Version) -> Architecture | None:
        """The generation of a compute capability, None for one newer than the tables."""
        raise NotImplementedError

    def serves(
        self, code: str, capability: Version, torch: Version | None, cuda: Version | None
    ) -> Literal["native", "ptx"] | None:
        """How code compiled for sm_XX or compute_XX runs on a device, None where it does not.

        Same major and lower or equal minor, but for the exclusions in the tables (Jetson);
        PTX is compiled for anything newer. torch, cuda: of the build, for its exceptions.
        """
        raise NotImplementedError

    def known_bad_arch(self, capability: Version) -> bool:
        """Whether the capability is newer than every architecture in the tables."""
        raise NotImplementedError

    def companion(self, package: str, torch: Version) -> tuple[str, ...]:
        """Releases of a companion (torchvision, torchaudio, xformers, ...) that match a torch.

        Newest first; () where none is known.
        """
        raise NotImplementedError

    def companion_torch(self, package: str, version: str) -> str | None:
        """The torch requirement (a specifier) of that companion release; None not known."""
        raise NotImplementedError

    def cudnn_refuses(self, cudnn: Version, capability: Version) -> bool | None:
        """Whether that cuDNN refuses a GPU of this capability, None where the tables are silent."""
        raise NotImplementedError

    def gcc_max(self, cuda: Version) -> int | None:
        """The newest gcc major that nvcc of this CUDA accepts."""
        raise NotImplementedError

    def nvcc_range(self, cuda: Version) -> tuple[Version, Version] | None:
        """The lowest and highest compute capability that nvcc of this CUDA compiles for."""
        raise NotImplementedError


@lru_cache(maxsize=1)
def load() -> Knowledge:
    """The tables of this package. Cheap: every table is read when it is first asked for."""
    return Knowledge()

"""What is known of the world: tables with sources and dates, and one typed loader.

The rows live in JSON files beside this module, kept by `knowledge.update`. Nothing here is
read before it is asked for: `check --fast` must not pay for tables that no rule looks at.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from cudadoctor.knowledge.model import (
    PLATFORMS,
    Architecture,
    Board,
    Compat,
    DriverFault,
    Floor,
    GpuModel,
    GpuPeaks,
    HostCompilers,
    JetsonBuild,
    KnowledgeError,
    PygWheel,
    Source,
    TorchBuild,
)
from cudadoctor.model.versions import DriverVersion

if TYPE_CHECKING:
    from cudadoctor.knowledge.architectures import Architectures
    from cudadoctor.knowledge.channels import Channel, Conda, Images
    from cudadoctor.knowledge.companions import Companions
    from cudadoctor.knowledge.compilers import Compilers
    from cudadoctor.knowledge.drivers import Drivers
    from cudadoctor.knowledge.gpus import Gpus
    from cudadoctor.knowledge.habits import Habits
    from cudadoctor.knowledge.libraries import Libraries
    from cudadoctor.knowledge.peaks import PeakRows
    from cudadoctor.knowledge.torch_builds import TorchBuilds

__all__ = [
    "PLATFORMS",
    "Architecture",
    "Board",
    "Compat",
    "DriverFault",
    "Floor",
    "GpuModel",
    "GpuPeaks",
    "HostCompilers",
    "JetsonBuild",
    "Knowledge",
    "KnowledgeError",
    "PygWheel",
    "Source",
    "TorchBuild",
    "load",
]


class Knowledge:
    """All tables. Make one with `load()`."""

    @cached_property
    def _torch(self) -> TorchBuilds:
        from cudadoctor.knowledge.torch_builds import TorchBuilds

        return TorchBuilds()

    @cached_property
    def _drivers(self) -> Drivers:
        from cudadoctor.knowledge.drivers import Drivers

        return Drivers()

    @cached_property
    def _gpus(self) -> Gpus:
        from cudadoctor.knowledge.gpus import Gpus

        return Gpus()

    @cached_property
    def _peaks(self) -> PeakRows:
        from cudadoctor.knowledge.peaks import PeakRows

        return PeakRows()

    @cached_property
    def _architectures(self) -> Architectures:
        from cudadoctor.knowledge.architectures import Architectures

        return Architectures()

    @cached_property
    def _companions(self) -> Companions:
        from cudadoctor.knowledge.companions import Companions

        return Companions(self._torch)

    @cached_property
    def _libraries(self) -> Libraries:
        from cudadoctor.knowledge.libraries import Libraries

        return Libraries()

    @cached_property
    def _compilers(self) -> Compilers:
        from cudadoctor.knowledge.compilers import Compilers

        return Compilers()

    @cached_property
    def _images(self) -> Images:
        from cudadoctor.knowledge.channels import Images

        return Images()

    @cached_property
    def _conda(self) -> Conda:
        from cudadoctor.knowledge.channels import Conda

        return Conda()

    @cached_property
    def _habits(self) -> Habits:
        from cudadoctor.knowledge.habits import Habits

        return Habits()

    @cached_property
    def _sources(self) -> dict[str, Source]:
        from cudadoctor.knowledge.tables import table

        return table("sources", dict[str, dict[str, Source]])["sources"]

    @cached_property
    def date(self) -> str:
        """The day the tables were collected, ISO 8601."""
        from cudadoctor.knowledge.tables import day

        return day()

    def source(self, key: str) -> Source:
        """The source behind a key. Raises KnowledgeError for a key that no table has."""
        if key not in self._sources:
            raise KnowledgeError(f"No table names a source {key!r}")
        return self._sources[key]

    # Builds of torch

    @property
    def builds(self) -> tuple[TorchBuild, ...]:
        """Every build of torch in the tables, newest release first."""
        return self._torch.all

    def builds_on(self, platform: str) -> tuple[TorchBuild, ...]:
        """The builds of one platform, newest release first; () for an unknown platform."""
        return self._torch.on(platform)

    def build_of(self, torch: Version, variant: str, platform: str) -> TorchBuild | None:
        """That build, None where the tables have no row for it."""
        return self._torch.one(torch.base_version, variant, platform)

    def newest_torch(self) -> Version:
        """The newest torch release in the tables."""
        return self._torch.newest()

    def torch_releases(self) -> tuple[Version, ...]:
        """Every release in the tables, newest first."""
        return self._torch.releases()

    @cached_property
    def projects(self) -> frozenset[str]:
        """The name of every distribution in the tables."""
        return self._torch.pinned | self._companions.names | self._libraries.names

    def default_pins(self, torch: Version, platform: str) -> tuple[str, ...] | None:
        """What the wheel of the default index requires (nvidia-*, triton), None not known."""
        return self._torch.pins(torch.base_version, platform)

    # Drivers

    def driver_floor(self, cuda: Version, system: str) -> Floor | None:
        """The oldest driver that runs this CUDA version on Linux or Windows.

        From 11 on the floor of the major (minor-version compatibility), before it the toolkit's own
        row. None where the tables are silent.
        """
        return self._drivers.floor(cuda, system)

    def oldest_driver(self, cuda: Version, system: str) -> Floor | None:
        """The oldest driver that the tables name for programs of this CUDA release.

        That of the release itself can be older than the floor of its major. It proves that a driver
        is too old; what is prescribed keeps to the floor.
        """
        return self._drivers.oldest(cuda, system)

    def native_cuda(self, driver: DriverVersion) -> Version | None:
        """The CUDA version that a driver of this branch reports, None for an unknown branch."""
        return self._drivers.native(driver)

    def branch_for(self, cuda: Version) -> int | None:
        """The oldest current driver branch whose own CUDA level is at least this version."""
        return self._drivers.branch_for(cuda)

    def newest_branch(self) -> int:
        """The newest driver branch in the tables."""
        return self._drivers.newest_branch()

    def branch_is_current(self, branch: int) -> bool | None:
        """Whether that branch still gets updates, None for one that the tables do not have."""
        return self._drivers.is_current(branch)

    def forward_compat(self, cuda: Version, branch: int) -> Compat | None:
        """What the cuda-compat package of a CUDA version is on a driver branch.

        None where NVIDIA's table does not name the pair: an ended branch, which is no target.
        """
        return self._drivers.compat(cuda, branch)

    @property
    def driver_faults(self) -> tuple[DriverFault, ...]:
        """Known faults of driver releases, each with its sources."""
        return self._habits.faults

    # GPUs

    def gpus_by_pci(self, device_id: str) -> tuple[GpuModel, ...]:
        """The models behind a PCI device id (four hex digits), () where it is not in the table."""
        return self._gpus.by_pci(device_id)

    def gpu_by_name(self, name: str) -> GpuModel | None:
        """The model of that name, None where unknown or where the name means several chips.

        "NVIDIA GeForce RTX 3090" and "GeForce RTX 3090" are the same name.
        """
        return self._gpus.by_name(name)

    def architecture(self, capability: Version) -> Architecture | None:
        """The generation of a compute capability, None for one that the tables do not have."""
        return self._architectures.of(capability)

    @property
    def capabilities(self) -> tuple[Version, ...]:
        """Every compute capability of the tables, lowest first."""
        return self._architectures.capabilities

    def serves(
        self, code: str, capability: Version, torch: Version | None, cuda: Version | None
    ) -> Literal["native", "ptx"] | None:
        """How code compiled for sm_XX or compute_XX runs on a device, None where it does not.

        Same major and lower or equal minor, but for the exclusions in the tables (Jetson);
        PTX is compiled for anything newer. torch, cuda: of the build, for its exceptions.
        """
        return self._architectures.serves(code, capability, torch, cuda)

    def known_bad_arch(self, capability: Version) -> bool:
        """Whether the capability is newer than every architecture in the tables."""
        return self._architectures.newer_than_all(capability)

    # Companions

    def companion(self, package: str, torch: Version) -> tuple[str, ...]:
        """Releases of a companion (torchvision, torchaudio, xformers, ...) that match a torch.

        The one released together with that torch comes first, then newest first; () where none is
        known. torchaudio ended with 2.11.0, which declares no torch requirement: it is the answer
        for every later torch.
        """
        return self._companions.matching(package, torch)

    def companion_torch(self, package: str, version: str) -> str | None:
        """The torch requirement (a specifier) of that companion release; None not known.

        "" where the release declares none.
        """
        return self._companions.requirement(package, version)

    def built_against(self, package: str, version: str) -> Version | None:
        """The one torch that a companion release was compiled against; None not known."""
        return self._companions.built_against(package, version)

    def companion_cuda(self, package: str, version: str) -> tuple[Version, ...] | None:
        """The CUDA versions that a companion release has binaries for; None not known."""
        return self._companions.cuda_builds(package, version)

    def companion_python(self, package: str, version: str) -> str | None:
        """Requires-Python of a companion release; None not known."""
        return self._companions.python(package, version)

    def companion_platforms(self, package: str, version: str) -> tuple[str, ...] | None:
        """Where a companion release has wheels; () for source only, None not known."""
        return self._companions.platforms(package, version)

    def lacks_wheel(self, package: str, version: str, python: str, platform: str) -> bool:
        """Whether that release is known to have no wheel for this Python ("3.13") there."""
        return self._habits.lacks_wheel(package, version, python, platform)

    def prebuilt_flash(self, torch: Version, cuda: Version, python: str) -> str | None:
        """The newest flash-attn that has a Linux wheel for all three; None where none is known."""
        return self._companions.prebuilt_flash(torch, cuda, python)

    def pyg_wheels(self, torch: Version, variant: str) -> tuple[PygWheel, ...]:
        """Wheels of PyG's compiled parts seen for that torch and variant: no full list."""
        return self._habits.pyg(torch.base_version, variant)

    # Libraries and compilers

    def cudnn_refuses(self, cudnn: Version, capability: Version) -> bool | None:
        """Whether that cuDNN refuses a GPU of this capability, None where the tables are silent."""
        return self._libraries.cudnn_refuses(cudnn, capability)

    def cudnn_below(self, capability: Version) -> Version | None:
        """The first cuDNN that refuses a GPU of this capability; None where none does."""
        return self._libraries.cudnn_below(capability)

    def nccl_of(self, torch: Version, variant: str) -> str | None:
        """The NCCL that a build of torch pins or contains; None not known."""
        return self._libraries.nccl(torch.base_version, variant)

    def cuda_wheels(self, toolkit: str) -> dict[str, str] | None:
        """Distribution -> version of the nvidia-* wheels of a toolkit release such as 12.6.3."""
        return self._libraries.wheels(toolkit)

    def toolkits_of_wheel(self, distribution: str, version: str) -> tuple[str, ...]:
        """The toolkit releases that a version of an nvidia-* wheel belongs to; () not known."""
        return self._libraries.toolkits_of(distribution, version)

    def gcc_max(self, cuda: Version) -> int | None:
        """The newest gcc major that nvcc of this CUDA accepts."""
        host = self._compilers.host(cuda)
        return None if host is None else host.gcc_max

    def host_compilers(self, cuda: Version) -> HostCompilers | None:
        """All host compilers that nvcc of this CUDA accepts; None not known."""
        return self._compilers.host(cuda)

    def nvcc_range(self, cuda: Version) -> tuple[Version, Version] | None:
        """The lowest and highest compute capability that nvcc of this CUDA compiles for."""
        found = self._compilers.capabilities(cuda)
        return None if found is None else (min(found), max(found))

    def nvcc_capabilities(self, cuda: Version) -> tuple[Version, ...] | None:
        """Every compute capability that nvcc of this CUDA compiles for; None not known."""
        return self._compilers.capabilities(cuda)

    @property
    def compiles_at_run_time(self) -> tuple[str, ...]:
        """Packages that call nvcc while a program runs, not only while they are installed."""
        return self._habits.compiles

    def board(self, gpu: str) -> Board | None:
        """How GPUs of that name are wired, None where no row has it."""
        return self._habits.board(gpu)

    def jetson_build(self, l4t: int) -> JetsonBuild | None:
        """Where NVIDIA's builds of torch for that Linux for Tegra release lie; None not known."""
        return self._habits.jetson(l4t)

    def peaks(self, name: str) -> GpuPeaks | None:
        """The most that a GPU of this name does; None not known."""
        return self._peaks.of(name)

    # Images and conda

    def docker_tag(self, cuda: str, flavour: str, distro: str) -> bool | None:
        """Whether nvidia/cuda has the tag <cuda>-<flavour>-<distro>, None where not known."""
        return self._images.has(cuda, flavour, distro)

    def newest_docker_tag(self, cuda: Version, flavour: str, distro: str) -> str | None:
        """The newest known tag of that CUDA major.minor, None where there is none."""
        return self._images.newest(cuda, flavour, distro)

    def conda_cuda(
        self, channel: Channel, torch: Version, platform: str
    ) -> tuple[Version, ...] | None:
        """The CUDA versions of a torch on a conda channel; None where it lacks that release."""
        return self._conda.cuda(channel, torch, platform)

    def conda_archs(self, cuda: Version, platform: str) -> tuple[str, ...] | None:
        """What conda-forge compiles its current builds of that CUDA for; None not known."""
        return self._conda.archs(cuda, platform)

    def conda_glibc(self, cuda: Version) -> Version | None:
        """The oldest glibc for conda-forge's builds with that CUDA; None not known."""
        return self._conda.glibc(cuda)

    def newest_on_conda(self, channel: Channel) -> Version:
        """The newest torch seen on a conda channel."""
        return self._conda.newest(channel)


@lru_cache(maxsize=1)
def load() -> Knowledge:
    """The tables of this package. Cheap: every table is read when it is first asked for."""
    return Knowledge()

"""cuDNN, compilers, boards and packages; and where else torch comes from: images and conda."""

from __future__ import annotations

import re
from typing import Literal

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, minor, version
from cudadoctor.model.machine import (
    OptBool,
    OptInt,
    OptStr,
    OptStrings,
    OptVersion,
    Strings,
    Versions,
)

Channel = Literal["pytorch", "conda-forge"]

CONDA_PLATFORMS = {
    "linux_x86_64": "linux_64",
    "linux_aarch64": "linux_aarch64",
    "windows_amd64": "win_64",
}


class JetsonBuild(Row, frozen=True):
    """Where the builds of torch for one JetPack lie. l4t: its Linux for Tegra release.

    pins: the releases that are known to be there and to fit each other. system: the package of
    JetPack's own index with a library that they load and JetPack leaves out.
    """

    l4t: int
    jetpack: int
    index: str
    variant: str
    cuda: str
    python: str
    pins: dict[str, str]
    system: OptStr = None


class TegraRelease(Row, frozen=True):
    """What is known of one release of Linux for Tegra, by which it can be told.

    kernel: its first two numbers; ubuntu: its base; driver: the branch that nvidia-smi shows; cuda:
    that comes with it. gpus: that no other release supports. wheel: NVIDIA's own of torch, where no
    index has one. last_for: boards that no later release supports.
    """

    l4t: int
    kernel: str
    ubuntu: str
    driver: OptInt
    cuda: Strings
    gpus: Strings
    wheel: OptStr
    last_for: Strings = ()


class Backend(Row, frozen=True):
    """A kind of torch for another maker's GPUs. systems: for which its index has wheels."""

    maker: str
    name: str
    label: str
    index: str
    systems: Strings


class Board(Row, frozen=True):
    """How GPUs whose names hold a pattern are wired. pcie: they have a PCIe link of their own.

    nvswitch: "bus" where they come on boards whose NVSwitches stand on the PCI bus, "hidden" where
    these do not, "none" where they come without. A board may be equipped with fewer.
    """

    names: str
    nvswitch: Literal["bus", "hidden", "none"]
    pcie: bool


class _PygWheels(Row, frozen=True):
    """Compiled parts of torch-geometric -> their release, for one minor of torch: each variant,
    platform and Python of the row has a wheel of each.
    """

    torch: str
    variants: Strings
    packages: dict[str, str]
    platforms: Strings
    pythons: Strings


class _Compiling(Row, frozen=True):
    package: str


class _NoWheel(Row, frozen=True):
    """Releases without a wheel where their torch has one. pythons: () for all.

    indexed: torch's own index has it; the package index alone lacks it.
    """

    package: str
    versions: Strings
    platform: str
    pythons: Strings
    indexed: bool = False


class _Need(Row, frozen=True):
    """What releases of a program, the first to the last, need of the wheels that torch pins."""

    package: str
    first: Version
    last: OptVersion
    requires: Strings


class _Numpy2(Row, frozen=True):
    """A package whose releases need NumPy 2 from one on."""

    package: str
    since: str


class _Floor(Row, frozen=True):
    """A package whose wheels serve no GPU below a compute capability."""

    package: str
    capability: Version


class _Programs(Row, frozen=True):
    needs: tuple[_Need, ...]
    numpy_2: tuple[_Numpy2, ...]
    floors: tuple[_Floor, ...]
    brings: dict[str, str]


class _Practice(Row, frozen=True):
    compiles: tuple[_Compiling, ...]
    jetson: tuple[JetsonBuild, ...]
    l4t: tuple[TegraRelease, ...]
    backends: tuple[Backend, ...]
    pyg: tuple[_PygWheels, ...]
    no_wheel: tuple[_NoWheel, ...]
    boards: tuple[Board, ...]


class _Cudnn(Row, frozen=True):
    first: Version
    last: OptVersion
    lowest: Version
    highest: OptVersion


class _Wheels(Row, frozen=True):
    toolkit: str
    packages: dict[str, str]


class _Libraries(Row, frozen=True):
    cudnn: tuple[_Cudnn, ...]
    wheels: tuple[_Wheels, ...]


class _Nvcc(Row, frozen=True):
    toolkit: str
    capabilities: Versions


class _Host(Row, frozen=True):
    toolkit: str
    gcc_max: OptInt


class Glibc(Row, frozen=True):
    """From this glibc on, its headers declare functions as those of CUDA before that do not."""

    glibc: Version
    cuda: Version
    functions: Strings


class _Compilers(Row, frozen=True):
    glibc: tuple[Glibc, ...]
    nvcc: tuple[_Nvcc, ...]
    hosts: tuple[_Host, ...]


class _Image(Row, frozen=True):
    cuda: Version
    distro: str
    flavours: Strings


class _Images(Row, frozen=True):
    tags: tuple[_Image, ...]


class _CondaTorch(Row, frozen=True):
    torch: Version
    cuda: Strings


class _Conda(Row, frozen=True):
    pytorch: tuple[_CondaTorch, ...]
    conda_forge: tuple[_CondaTorch, ...]
    conda_forge_archs: dict[str, Strings]
    conda_forge_glibc: dict[str, Version]

    def rows(self, channel: Channel) -> tuple[_CondaTorch, ...]:
        return self.pytorch if channel == "pytorch" else self.conda_forge


class Software:
    """What surrounds torch."""

    _libraries = kept("libraries", _Libraries)
    _compilers = kept("compilers", _Compilers)
    _images = kept("images", _Images)
    _conda = kept("conda", _Conda)
    _practice = kept("practice", _Practice)
    _programs = kept("programs", _Programs)

    # Libraries and compilers

    @property
    def library_names(self) -> frozenset[str]:
        """Every nvidia-* wheel of the tables."""
        return frozenset(name for row in self._libraries.wheels for name in row.packages)

    def toolkit_wheels(self, toolkit: OptStr) -> dict[str, str]:
        """The nvidia-* wheels of one release of the CUDA toolkit; {} where it is not known."""
        rows = (row.packages for row in self._libraries.wheels if row.toolkit == toolkit)
        return next(rows, {})

    @property
    def program_names(self) -> frozenset[str]:
        """Every package that a row about other programs names."""
        rows = (self._programs.needs, self._programs.numpy_2, self._programs.floors)
        return frozenset(row.package for kind in rows for row in kind)

    def needs_of(self, package: str, release: Version) -> Strings:
        """What a program needs of the wheels that torch pins, () where the tables are silent."""
        return tuple(
            line
            for row in self._programs.needs
            if row.package == package
            and row.first <= release
            and (row.last is None or release <= row.last)
            for line in row.requires
        )

    def releases_needing(self, package: str, wheel: str) -> tuple[tuple[str, str], ...]:
        """The requirement on a program by its releases, newest first, and what those need of it."""
        found = [
            (
                f"{package}=={row.last}"
                if row.last
                else f"{package}>={row.first},<{row.first.major + 1}",
                line.removeprefix(wheel),
            )
            for row in self._programs.needs
            for line in row.requires
            if row.package == package and re.match(rf"{wheel}[=<>]", line)
        ]
        return tuple(reversed(found))

    @property
    def brings(self) -> dict[str, str]:
        """Programs -> the one below them that loads CUDA's libraries; that one for itself."""
        return self._programs.brings

    def numpy_2_since(self, package: str) -> OptStr:
        """The first release of a package that needs NumPy 2, None if none is known to."""
        rows = (row.since for row in self._programs.numpy_2 if row.package == package)
        return next(rows, None)

    def capability_floor(self, package: str) -> OptVersion:
        """The oldest GPU that the wheels of a package serve, None if that is not known."""
        rows = (row.capability for row in self._programs.floors if row.package == package)
        return next(rows, None)

    def cudnn_refuses(self, cudnn: Version, capability: Version) -> OptBool:
        """Whether that cuDNN refuses a GPU of this capability, None if the tables are silent."""
        # The release without its build number: 9.10.2.21 is 9.10.2.
        short = version(".".join(map(str, cudnn.release[:3])))
        for row in self._libraries.cudnn:
            if cudnn >= row.first and (row.last is None or short <= row.last):
                known = capability < row.lowest or (row.highest and capability <= row.highest)
                return capability < row.lowest if known else None
        return None

    def cudnn_below(self, capability: Version) -> OptVersion:
        """The first cuDNN that refuses a GPU of this capability; None if none does."""
        refusing = (row.first for row in self._libraries.cudnn if capability < row.lowest)
        return min(refusing, default=None)

    def gcc_max(self, cuda: Version) -> OptInt:
        """The newest gcc major that nvcc of this CUDA accepts; None not known."""
        hosts = (row.gcc_max for row in self._compilers.hosts if row.toolkit == minor(cuda))
        return next(hosts, None)

    def glibc_conflict(self, cuda: Version, glibc: Version) -> Glibc | None:
        """Which CUDA is the first whose headers fit that glibc; None if this one's do."""
        rows = [row for row in self._compilers.glibc if glibc >= row.glibc and cuda < row.cuda]
        return max(rows, key=lambda row: row.cuda, default=None)

    def nvcc_capabilities(self, cuda: Version) -> Versions | None:
        """Every compute capability that nvcc of this CUDA compiles for; None not known."""
        rows = (row.capabilities for row in self._compilers.nvcc if row.toolkit == minor(cuda))
        return next(rows, None)

    # Packages and boards

    @property
    def compiles_at_run_time(self) -> Strings:
        """Packages that call nvcc while a program runs, not only while they are installed."""
        return tuple(row.package for row in self._practice.compiles)

    def lacks_wheel(
        self, package: str, release: str, python: str, platform: str, *, pypi: bool = False
    ) -> bool:
        """Whether that release is known to have no wheel for this Python ("3.13") there.

        pypi: on the package index; otherwise on torch's own index either.
        """
        return any(
            row.package == package
            and release in row.versions
            and row.platform == platform
            and (not row.pythons or python in row.pythons)
            and (pypi or not row.indexed)
            for row in self._practice.no_wheel
        )

    def pyg_release(
        self, package: str, torch: Version, variant: str, platform: OptStr, python: OptStr
    ) -> OptStr:
        """The release of a compiled part of PyG for that torch: 2.1.2+pt26cu124; None not known.

        platform, python: of its wheel, None for any.
        """
        for row in self._practice.pyg:
            here = platform in (None, *row.platforms) and python in (None, *row.pythons)
            fits = here and row.torch == minor(torch) and variant in row.variants
            if fits and (release := row.packages.get(package)):
                return f"{release}+pt{torch.major}{torch.minor}{variant}"
        return None

    def board(self, gpu: str) -> Board | None:
        """How GPUs of that name are wired: the first row that has a word of it, None if none."""
        rows = self._practice.boards
        return next((row for row in rows if re.search(row.names, gpu, re.IGNORECASE)), None)

    def jetson_build(self, l4t: int) -> JetsonBuild | None:
        """Where NVIDIA's builds of torch for that Linux for Tegra release lie; None not known."""
        return next((row for row in self._practice.jetson if row.l4t == l4t), None)

    @property
    def tegra_releases(self) -> tuple[TegraRelease, ...]:
        """The releases of Linux for Tegra, oldest first."""
        return self._practice.l4t

    def backend_of(self, maker: str) -> Backend:
        """Where the builds of torch for the GPUs of that maker lie (amd, intel)."""
        return next(row for row in self._practice.backends if row.maker == maker)

    # Images and conda

    def newest_docker_tag(self, cuda: Version, flavour: str, distro: str) -> OptStr:
        """The newest known tag of nvidia/cuda for that CUDA major.minor, None if there is none."""
        found = [
            row.cuda
            for row in self._images.tags
            if row.distro == distro and flavour in row.flavours and minor(row.cuda) == minor(cuda)
        ]
        return f"{max(found)}-{flavour}-{distro}" if found else None

    def conda_cuda(self, channel: Channel, torch: Version, platform: str) -> Versions | None:
        """The CUDA versions of a torch on a conda channel; None if it lacks that release."""
        prefix = "" if channel == "pytorch" else f"{CONDA_PLATFORMS.get(platform, '')}:"
        for row in self._conda.rows(channel):
            if str(row.torch) == torch.base_version:
                found = (cuda for cuda in row.cuda if cuda.startswith(prefix))
                return tuple(version(cuda.removeprefix(prefix)) for cuda in found)
        return None

    def conda_archs(self, cuda: Version, platform: str) -> OptStrings:
        """What conda-forge compiles its current builds of that CUDA for; None not known.

        A row is for several CUDA versions ("12.8 / 12.9"), or for one on one processor.
        """
        processor = "aarch64" if platform.endswith("aarch64") else "x86_64"
        for label, capabilities in self._conda.conda_forge_archs.items():
            words = set(label.split())
            if minor(cuda) in words and words & {"x86_64", "aarch64"} <= {processor}:
                return tuple(code for text in capabilities for code in _codes(text))
        return None

    def conda_glibc(self, cuda: Version) -> OptVersion:
        """The oldest glibc for conda-forge's Linux builds with that CUDA; None not known."""
        return self._conda.conda_forge_glibc.get(str(cuda))

    def newest_on_conda(self, channel: Channel) -> Version:
        """The newest torch seen on a conda channel."""
        return max(row.torch for row in self._conda.rows(channel))


def _codes(capability: str) -> Strings:
    """12.0+PTX as the code that is compiled for it: sm_120 and compute_120."""
    number = capability.removesuffix("+PTX").replace(".", "")
    return (f"sm_{number}", f"compute_{number}") if "+" in capability else (f"sm_{number}",)

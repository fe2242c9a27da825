"""Builds of torch: which release exists in which variant, where, and for what."""

from __future__ import annotations

import re
from functools import cached_property

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, packaged, table
from cudadoctor.model.machine import (
    OptBool,
    OptInt,
    OptStr,
    OptStrings,
    OptVersion,
    Strings,
    StrPair,
    Versions,
)

DEFAULT_INDEX = "https://pypi.org/simple"
TORCH_INDEX = "https://download.pytorch.org/whl"

_NAME = re.compile(r"[a-z0-9.-]+")


class TorchRelease(Row, frozen=True):
    """One release of torch. pythons: platform -> "3.11", "3.14t", as the default index has them."""

    torch: Version
    released: str
    pythons: dict[str, Strings]
    torchvision: OptStr
    torchaudio: OptStr
    torchtext: OptStr
    sources: Strings


class TorchBuild(
    Row, frozen=True, rename={"archs_uncertain": "uncertain", "download_bytes": "bytes"}
):
    """One published build of torch: a release, a variant and a platform.

    variant: cu126, cpu ... cuda: None for cpu. published: True seen, False known absent, None only
    announced. archs: machine code (sm_90) and PTX (compute_90), None not known; archs_uncertain:
    not read from a binary and marked weak; contested: code of that list that another source denies.
    glibc: the floor, Linux only. default: what a plain `pip install torch==X` gives on this
    platform. download_bytes: of the wheel alone, None not known.
    toolkit: the CUDA release that it was compiled with; cudnn: its cuDNN (Linux).
    pythons, torchvision, torchaudio, released: of its release; None where there is none.
    """

    torch: Version
    variant: str
    platform: str
    cuda: OptVersion
    published: OptBool
    archs: OptStrings
    archs_uncertain: bool
    glibc: OptVersion
    default: bool
    download_bytes: OptInt
    sources: Strings
    contested: Strings = ()
    toolkit: OptStr = None
    cudnn: OptStr = None
    pythons: Strings = ()
    torchvision: OptStr = None
    torchaudio: OptStr = None
    released: str = ""

    @property
    def index(self) -> str:
        """URL for pip: of the default index if the build is the default."""
        return DEFAULT_INDEX if self.default else f"{TORCH_INDEX}/{self.variant}"


_WHEELS_SINCE = (2, 1)
"""From this release on, torch's own indexes bring the CUDA libraries as wheels, too."""


class _Torch(Row, frozen=True):
    releases: tuple[TorchRelease, ...]
    builds: tuple[TorchBuild, ...]


class _Pins(Row, frozen=True):
    torch: str
    platform: str
    requires: Strings


class TorchBuilds:
    """The builds in the tables, newest release first."""

    _torch = kept("torch", _Torch)

    @cached_property
    def _releases(self) -> dict[str, TorchRelease]:
        return {str(release.torch): release for release in self._torch.releases}

    @cached_property
    def _by_platform(self) -> dict[str, tuple[TorchBuild, ...]]:
        platforms = {build.platform for build in self.builds}
        return {
            platform: tuple(build for build in self.builds if build.platform == platform)
            for platform in platforms
        }

    @cached_property
    def _pins(self) -> dict[StrPair, Strings]:
        rows = table("pins", dict[str, tuple[_Pins, ...]])["pins"]
        return {(row.torch, row.platform): row.requires for row in rows}

    @cached_property
    def builds(self) -> tuple[TorchBuild, ...]:
        """Every build of torch in the tables, newest release first."""
        return tuple(map(self._with_release, self._torch.builds))

    def _with_release(self, build: TorchBuild) -> TorchBuild:
        release = self._releases[str(build.torch)]
        return replace(
            build,
            pythons=release.pythons.get(build.platform, ()),
            torchvision=release.torchvision,
            torchaudio=release.torchaudio,
            released=release.released,
        )

    def builds_on(self, platform: str) -> tuple[TorchBuild, ...]:
        """The builds of one platform, newest release first; () for an unknown platform."""
        return self._by_platform.get(platform, ())

    def build_of(self, torch: Version, variant: str, platform: str) -> TorchBuild | None:
        """That build, None if the tables have no row for it."""
        builds = (build for build in self.builds_on(platform) if build.variant == variant)
        return next((build for build in builds if str(build.torch) == torch.base_version), None)

    def torch_releases(self) -> Versions:
        """Every release in the tables, newest first."""
        return tuple(release.torch for release in self._torch.releases)

    def default_pins(self, torch: Version, platform: str) -> OptStrings:
        """What the wheel of the default index requires (nvidia-*, triton), None not known."""
        return self._pins.get((torch.base_version, platform))

    def cudnn_pin(self, torch: OptVersion, cuda: OptVersion, platform: OptStr) -> OptStr:
        """The wheel of cuDNN that a build for Linux pins, None where it has none or is unknown."""
        if torch is None or cuda is None or not (platform or "").startswith("linux"):
            return None
        build = self.build_of(torch, f"cu{cuda.major}{cuda.minor}", platform or "")
        own = torch.release >= _WHEELS_SINCE and build and build.cudnn
        return f"nvidia-cudnn-cu{cuda.major}=={own}" if own and own.count(".") > 2 else None

    @property
    def pinned_names(self) -> frozenset[str]:
        """The names of all that a wheel of torch requires, by the tables of this package.

        What a foreign document may name is not for a file of rows to say.
        """
        rows = packaged("pins", dict[str, tuple[_Pins, ...]])["pins"]
        named = (_NAME.match(line) for row in rows for line in row.requires)
        return frozenset(found[0] for found in named if found)

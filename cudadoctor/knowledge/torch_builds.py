"""Builds of torch: which release exists in which variant, where, and for what."""

from __future__ import annotations

import re
from functools import cached_property

from packaging.version import Version

from cudadoctor.knowledge.model import TorchBuild
from cudadoctor.knowledge.tables import Row, table, version

DEFAULT_INDEX = "https://pypi.org/simple"
TORCH_INDEX = "https://download.pytorch.org/whl"

_NAME = re.compile(r"[a-z0-9.-]+")


class ReleaseRow(Row, frozen=True):
    torch: str
    released: str
    pythons: dict[str, tuple[str, ...]]
    torchvision: str | None
    torchaudio: str | None
    torchtext: str | None
    sources: tuple[str, ...]


class BuildRow(Row, frozen=True):
    torch: str
    variant: str
    platform: str
    cuda: str | None
    toolkit: str | None
    cudnn: str | None
    published: bool | None
    archs: tuple[str, ...] | None
    uncertain: bool
    contested: tuple[str, ...]
    glibc: str | None
    default: bool
    bytes: int | None
    sources: tuple[str, ...]


class TorchTable(Row, frozen=True):
    collected: str
    releases: tuple[ReleaseRow, ...]
    builds: tuple[BuildRow, ...]


class PinRow(Row, frozen=True):
    torch: str
    platform: str
    requires: tuple[str, ...]
    sources: tuple[str, ...]


class PinTable(Row, frozen=True):
    pins: tuple[PinRow, ...]


class TorchBuilds:
    """The builds in the tables, newest release first."""

    def __init__(self) -> None:
        self._table = table("torch", TorchTable)
        self._releases = {row.torch: row for row in self._table.releases}
        self._known: dict[tuple[str, str], tuple[TorchBuild, ...]] = {}

    @property
    def collected(self) -> str:
        return self._table.collected

    @cached_property
    def all(self) -> tuple[TorchBuild, ...]:
        """Every build of every platform."""
        return tuple(self._build(row) for row in self._table.builds)

    def on(self, platform: str) -> tuple[TorchBuild, ...]:
        """The builds of one platform."""
        key = ("platform", platform)
        if key not in self._known:
            rows = (row for row in self._table.builds if row.platform == platform)
            self._known[key] = tuple(self._build(row) for row in rows)
        return self._known[key]

    def one(self, torch: str, variant: str, platform: str) -> TorchBuild | None:
        """That build, None where there is no row for it."""
        for build in self.on(platform):
            if build.variant == variant and str(build.torch) == torch:
                return build
        return None

    def newest(self) -> Version:
        return version(self._table.releases[0].torch)

    def releases(self) -> tuple[Version, ...]:
        return tuple(version(row.torch) for row in self._table.releases)

    def release(self, torch: str) -> ReleaseRow | None:
        return self._releases.get(torch)

    def pins(self, torch: str, platform: str) -> tuple[str, ...] | None:
        """What the wheel of the default index requires; None where there is no row."""
        return self._pins.get((torch, platform))

    @property
    def pinned(self) -> frozenset[str]:
        """The names of all that a wheel of torch requires."""
        named = (_NAME.match(line) for lines in self._pins.values() for line in lines)
        return frozenset(found[0] for found in named if found)

    @cached_property
    def _pins(self) -> dict[tuple[str, str], tuple[str, ...]]:
        rows = table("pins", PinTable).pins
        return {(row.torch, row.platform): row.requires for row in rows}

    def _build(self, row: BuildRow) -> TorchBuild:
        release = self._releases[row.torch]
        return TorchBuild(
            torch=version(row.torch),
            variant=row.variant,
            platform=row.platform,
            cuda=None if row.cuda is None else version(row.cuda),
            published=row.published,
            archs=row.archs,
            archs_uncertain=row.uncertain,
            pythons=release.pythons.get(row.platform, ()),
            glibc=None if row.glibc is None else version(row.glibc),
            default=row.default,
            index=DEFAULT_INDEX if row.default else f"{TORCH_INDEX}/{row.variant}",
            download_bytes=row.bytes,
            torchvision=release.torchvision,
            torchaudio=release.torchaudio,
            released=release.released,
            sources=row.sources,
            contested=row.contested,
            toolkit=row.toolkit,
            cudnn=row.cudnn,
        )

"""cuDNN, NCCL and the nvidia-* wheels of each toolkit."""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, table, version


class CudnnRow(Row, frozen=True):
    first: str
    last: str | None
    cuda_majors: tuple[int, ...]
    lowest: str
    highest: str | None
    sources: tuple[str, ...]


class NcclRow(Row, frozen=True):
    torch: str
    default_variant: str
    default: str | None
    variants: dict[str, str]
    bundled: str | None
    uncertain: bool
    sources: tuple[str, ...]


class WheelsRow(Row, frozen=True):
    toolkit: str
    packages: dict[str, str]
    ranges: tuple[str, ...]
    sources: tuple[str, ...]


class LibraryTable(Row, frozen=True):
    cudnn: tuple[CudnnRow, ...]
    cudnn_yanked: tuple[str, ...]
    nccl: tuple[NcclRow, ...]
    wheels: tuple[WheelsRow, ...]


class Libraries:
    """Rules of cuDNN, pins of NCCL, wheels of toolkits."""

    def __init__(self) -> None:
        self._table = table("libraries", LibraryTable)

    def cudnn_refuses(self, cudnn: Version, capability: Version) -> bool | None:
        for row in self._table.cudnn:
            if cudnn < version(row.first):
                continue
            if row.last is not None and _short(cudnn) > version(row.last):
                continue
            if capability < version(row.lowest):
                return True
            known = row.highest is not None and capability <= version(row.highest)
            return False if known else None
        return None

    def cudnn_below(self, capability: Version) -> Version | None:
        rows = (row for row in self._table.cudnn if capability < version(row.lowest))
        return min((version(row.first) for row in rows), default=None)

    def cudnn_yanked(self, cudnn: str) -> bool:
        return cudnn in self._table.cudnn_yanked

    def nccl(self, torch: str, variant: str) -> str | None:
        """The NCCL that a build of torch pins or contains; None where it is not known."""
        for row in self._table.nccl:
            if row.torch == torch:
                pinned = row.default if variant == row.default_variant else None
                return row.variants.get(variant) or pinned or row.bundled
        return None

    def wheels(self, toolkit: str) -> dict[str, str] | None:
        """Distribution -> version of the nvidia-* wheels of one toolkit release (12.6.3)."""
        rows = (row.packages for row in self._table.wheels if row.toolkit == toolkit)
        return next(rows, None)

    @property
    def names(self) -> frozenset[str]:
        """Every nvidia-* wheel of the tables."""
        return frozenset(name for row in self._table.wheels for name in row.packages)

    def toolkits_of(self, distribution: str, release: str) -> tuple[str, ...]:
        """The toolkit releases that a version of an nvidia-* wheel belongs to."""
        return tuple(
            row.toolkit
            for row in self._table.wheels
            if row.packages.get(distribution) == release and distribution not in row.ranges
        )


def _short(cudnn: Version) -> Version:
    """The release without its build number: 9.10.2.21 is 9.10.2."""
    return version(".".join(str(part) for part in cudnn.release[:3]))

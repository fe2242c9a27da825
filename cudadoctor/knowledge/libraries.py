"""cuDNN, NCCL and the nvidia-* wheels of each toolkit; compilers for nvcc."""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.knowledge.model import HostCompilers
from cudadoctor.knowledge.rows import CompilerTable, LibraryTable, NvccRow
from cudadoctor.knowledge.tables import table, version


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

    def toolkits_of(self, distribution: str, release: str) -> tuple[str, ...]:
        """The toolkit releases that a version of an nvidia-* wheel belongs to."""
        return tuple(
            row.toolkit
            for row in self._table.wheels
            if row.packages.get(distribution) == release and distribution not in row.ranges
        )


class Compilers:
    """What nvcc compiles for, and with which host compilers."""

    def __init__(self) -> None:
        read = table("compilers", CompilerTable)
        self._nvcc = {row.toolkit: row for row in read.nvcc}
        self._hosts = {row.toolkit: row for row in read.hosts}

    def host(self, cuda: Version) -> HostCompilers | None:
        row = self._hosts.get(f"{cuda.major}.{cuda.minor}")
        if row is None:
            return None
        return HostCompilers(
            gcc_max=row.gcc_max,
            clang_max=row.clang_max,
            msc_min=row.msc_min,
            msc_below=row.msc_below,
            visual_studio=row.visual_studio,
            uncertain=row.uncertain,
            sources=row.sources,
        )

    def capabilities(self, cuda: Version) -> tuple[Version, ...] | None:
        row = self.nvcc(cuda)
        return None if row is None else tuple(version(text) for text in row.capabilities)

    def nvcc(self, cuda: Version) -> NvccRow | None:
        return self._nvcc.get(f"{cuda.major}.{cuda.minor}")


def _short(cudnn: Version) -> Version:
    """The release without its build number: 9.10.2.21 is 9.10.2."""
    return version(".".join(str(part) for part in cudnn.release[:3]))

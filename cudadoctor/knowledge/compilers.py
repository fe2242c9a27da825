"""What nvcc compiles for, and with which host compilers."""

from __future__ import annotations

from packaging.version import Version

from cudadoctor.knowledge.model import HostCompilers
from cudadoctor.knowledge.tables import Row, table, version


class NvccRow(Row, frozen=True):
    toolkit: str
    capabilities: tuple[str, ...]
    variants: tuple[str, ...]
    default: str | None
    sources: tuple[str, ...]


class HostRow(Row, frozen=True):
    toolkit: str
    gcc_max: int | None
    clang_max: int | None
    msc_min: int | None
    msc_below: int | None
    visual_studio: str | None
    uncertain: bool
    sources: tuple[str, ...]


class CompilerTable(Row, frozen=True):
    nvcc: tuple[NvccRow, ...]
    hosts: tuple[HostRow, ...]


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

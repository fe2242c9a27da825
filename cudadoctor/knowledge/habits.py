"""Known faults of drivers, packages that compile at run time, and the builds for boards."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec

from cudadoctor.knowledge.model import Board, DriverFault, JetsonBuild, PygWheel
from cudadoctor.knowledge.tables import Row, table
from cudadoctor.model.versions import DriverVersion


class CompilesRow(Row, frozen=True):
    package: str
    sources: tuple[str, ...]


class NoWheelRow(Row, frozen=True):
    """Releases without a wheel where their torch has one. pythons: () for all."""

    package: str
    versions: tuple[str, ...]
    platform: str
    pythons: tuple[str, ...]
    sources: tuple[str, ...]


class PracticeTable(Row, frozen=True):
    compiles: tuple[CompilesRow, ...]
    jetson: tuple[JetsonBuild, ...]
    pyg: tuple[PygWheel, ...]
    no_wheel: tuple[NoWheelRow, ...]
    boards: tuple[Board, ...]


class Habits:
    """What people do and what is known to go wrong; each table is read when it is asked for."""

    @cached_property
    def _practice(self) -> PracticeTable:
        return table("practice", PracticeTable)

    @cached_property
    def faults(self) -> tuple[DriverFault, ...]:
        """Known faults of driver releases."""
        rows = table("driver_faults", dict[str, list[dict[str, object]]])["faults"]
        return tuple(msgspec.convert(row, DriverFault, dec_hook=_release) for row in rows)

    @property
    def compiles(self) -> tuple[str, ...]:
        """Packages that call nvcc while a program runs, by their normalised names."""
        return tuple(row.package for row in self._practice.compiles)

    def jetson(self, l4t: int) -> JetsonBuild | None:
        """The builds for the JetPack of that Linux for Tegra release."""
        return next((row for row in self._practice.jetson if row.l4t == l4t), None)

    def board(self, gpu: str) -> Board | None:
        """How GPUs of that name are wired: the first row that has a word of it."""
        rows = self._practice.boards
        return next((row for row in rows if re.search(row.names, gpu, re.IGNORECASE)), None)

    def lacks_wheel(self, package: str, release: str, python: str, platform: str) -> bool:
        """Whether that release is known to have no wheel for this Python there."""
        return any(
            row.package == package
            and release in row.versions
            and row.platform == platform
            and (not row.pythons or python in row.pythons)
            for row in self._practice.no_wheel
        )

    def pyg(self, torch: str, variant: str) -> tuple[PygWheel, ...]:
        """The wheels that were seen on PyG's page for the minor release of that torch."""
        minor = torch.split(".")[:2]
        rows = self._practice.pyg
        return tuple(
            one for one in rows if one.torch.split(".")[:2] == minor and one.variant == variant
        )


def _release(kind: type, value: object) -> object:
    if kind is DriverVersion:
        return DriverVersion(str(value))
    raise NotImplementedError

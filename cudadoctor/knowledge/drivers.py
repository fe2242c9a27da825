"""Drivers: the oldest that runs a CUDA version, what each branch brings, and known faults."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, minor, table
from cudadoctor.model.machine import OptBool, OptDriverVersion, OptInt, OptStr, OptVersion, Strings
from cudadoctor.model.versions import DriverVersion

MINOR_COMPATIBILITY_FROM = 11
SPREAD = 5
"""Windows drivers of one branch count a few hundreds on: 475.14 belongs to branch 470."""

Compat = Literal["compatible", "native", "older"]
"""A cuda-compat package on a driver branch: usable, not needed, or older than the driver."""

_CELLS: dict[str, Compat] = {"C": "compatible", "N": "native", "X": "older"}


class Floor(Row, frozen=True):
    """The oldest driver that runs a CUDA version on one system."""

    driver: DriverVersion
    source: str
    uncertain: bool = False


class DriverFault(Row, frozen=True):
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
    first: OptDriverVersion
    below: OptDriverVersion
    fixed_branch: OptInt
    uncertain: bool
    log: Strings
    cuinit: OptInt
    flavour: Literal["open", "proprietary"] | None
    gpus: OptStr
    several: bool
    p2p: bool
    data_center: OptBool
    severity: Literal["error", "warning", "info"]
    cure: Literal["upgrade", "hmm-off"]
    sources: Strings


class _Oldest(Row, frozen=True):
    """The oldest driver of a toolkit, or of a major from CUDA 11 on."""

    linux: OptDriverVersion
    windows: OptDriverVersion
    sources: Strings
    major: int = 0
    toolkit: OptVersion = None
    uncertain: bool = False

    def on(self, system: str) -> OptDriverVersion:
        return self.windows if system == "Windows" else self.linux


class _Branch(Row, frozen=True):
    branch: int
    cuda: OptVersion
    current: OptBool


class _Forward(Row, frozen=True):
    cuda: Version
    cells: dict[str, str]


class _DriverTable(Row, frozen=True):
    floors: tuple[_Oldest, ...]
    toolkits: tuple[_Oldest, ...]
    branches: tuple[_Branch, ...]
    forward_compat: tuple[_Forward, ...]


class Drivers:
    """Floors, branches, forward compatibility and faults."""

    _drivers = kept("drivers", _DriverTable)

    @cached_property
    def driver_faults(self) -> tuple[DriverFault, ...]:
        """Known faults of driver releases, each with its sources."""
        return table("driver_faults", dict[str, tuple[DriverFault, ...]])["faults"]

    @cached_property
    def _toolkits(self) -> dict[str, list[_Oldest]]:
        """The rows of the toolkits of each major.minor."""
        found: dict[str, list[_Oldest]] = {}
        for row in self._drivers.toolkits:
            assert row.toolkit is not None
            found.setdefault(minor(row.toolkit), []).append(row)
        return found

    def _covering(self, cuda: Version) -> list[_Oldest]:
        """The toolkits of that release, or of that major.minor if no update is named."""
        rows = self._toolkits.get(minor(cuda), [])
        return [
            row
            for row in rows
            if len(cuda.release) < 3 or (row.toolkit and row.toolkit.release == cuda.release)
        ]

    def driver_floor(self, cuda: Version, system: str) -> Floor | None:
        """The oldest driver that runs this CUDA version on Linux or Windows.

        From 11 on the floor of the major (minor-version compatibility), before it the toolkit's own
        row: that of its newest update, since a build rarely names its update. None where the tables
        are silent.
        """
        if cuda.major < MINOR_COMPATIBILITY_FROM:
            rows = self._covering(cuda)
        else:
            rows = [row for row in self._drivers.floors if row.major == cuda.major]
        row = next(iter(rows), None)
        if row is None or (driver := row.on(system)) is None:
            return None
        return Floor(driver=driver, source=row.sources[0], uncertain=row.uncertain)

    def oldest_driver(self, cuda: Version, system: str) -> Floor | None:
        """The oldest driver that the tables name for programs of this CUDA release.

        That of the release itself can be older than the floor of its major (CUDA 11.0, 12.0). It
        proves that a driver is too old; what is prescribed keeps to the floor.
        """
        floor = self.driver_floor(cuda, system)
        named = (row.on(system) for row in self._covering(cuda))
        own = min((driver for driver in named if driver), default=None)
        if floor is None or own is None or own >= floor.driver:
            return floor
        return replace(floor, driver=own)

    def native_cuda(self, driver: DriverVersion) -> OptVersion:
        """The CUDA version that a driver of this branch reports, None for an unknown branch."""
        for place, row in enumerate(self._drivers.branches):
            if row.branch <= driver.branch:
                # A number just behind the newest branch can be one that the tables do not know yet.
                spread = SPREAD if place else SPREAD - 1
                return row.cuda if driver.branch - row.branch <= spread else None
        return None

    def branch_for(self, cuda: Version) -> OptInt:
        """The oldest current driver branch whose own CUDA level is at least this version."""
        return min(
            (
                row.branch
                for row in self._drivers.branches
                if row.current and row.cuda and row.cuda >= cuda
            ),
            default=None,
        )

    def newest_branch(self) -> int:
        """The newest driver branch in the tables."""
        return self._drivers.branches[0].branch

    def branch_is_current(self, branch: int) -> OptBool:
        """Whether that branch still gets updates, None for one that the tables do not have."""
        return next((row.current for row in self._drivers.branches if row.branch == branch), None)

    def forward_compat(self, cuda: Version, branch: int) -> Compat | None:
        """What the cuda-compat package of a CUDA version is on a driver branch.

        None where NVIDIA's table does not name the pair: an ended branch, which is no target.
        """
        rows = (row.cells for row in self._drivers.forward_compat if row.cuda == cuda)
        return next((_CELLS[cells[str(branch)]] for cells in rows if str(branch) in cells), None)

"""Drivers: the oldest that runs a CUDA version, and the CUDA version that each branch brings."""

from __future__ import annotations

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.model import Compat, Floor
from cudadoctor.knowledge.tables import Row, table, version
from cudadoctor.model.versions import DriverVersion

MINOR_COMPATIBILITY_FROM = 11
SPREAD = 5
"""Windows drivers of one branch count a few hundreds on: 475.14 belongs to branch 470."""

CELLS: dict[str, Compat] = {"C": "compatible", "N": "native", "X": "older"}


class FloorRow(Row, frozen=True):
    major: int
    linux: str
    windows: str
    sources: tuple[str, ...]


class ToolkitRow(Row, frozen=True):
    toolkit: str
    linux: str | None
    windows: str | None
    bundled: str | None
    uncertain: bool
    sources: tuple[str, ...]


class BranchRow(Row, frozen=True):
    branch: int
    cuda: str | None
    note: str | None
    current: bool
    sources: tuple[str, ...]


class WindowsRow(Row, frozen=True):
    driver: str
    cuda: str
    sources: tuple[str, ...]


class CompatRow(Row, frozen=True):
    package: str
    cuda: str
    cells: dict[str, str]


class DriverTable(Row, frozen=True):
    floors: tuple[FloorRow, ...]
    toolkits: tuple[ToolkitRow, ...]
    branches: tuple[BranchRow, ...]
    windows_levels: tuple[WindowsRow, ...]
    forward_compat: tuple[CompatRow, ...]
    forward_compat_sources: tuple[str, ...]


class Drivers:
    """Floors, branches and forward compatibility."""

    def __init__(self) -> None:
        self._table = table("drivers", DriverTable)

    def floor(self, cuda: Version, system: str) -> Floor | None:
        """The floor of the major from CUDA 11 on, the toolkit's own row before."""
        windows = system == "Windows"
        if cuda.major < MINOR_COMPATIBILITY_FROM:
            return self._toolkit_floor(cuda, windows)
        for row in self._table.floors:
            if row.major == cuda.major:
                driver = DriverVersion(row.windows if windows else row.linux)
                return Floor(driver=driver, source=row.sources[0])
        return None

    def oldest(self, cuda: Version, system: str) -> Floor | None:
        """The floor, or the driver of this very release where that is older (CUDA 11.0, 12.0)."""
        floor = self.floor(cuda, system)
        own = self._own_driver(cuda, system == "Windows")
        if floor is None or own is None or own >= floor.driver:
            return floor
        return msgspec.structs.replace(floor, driver=own)

    def _own_driver(self, cuda: Version, windows: bool) -> DriverVersion | None:
        """The oldest driver of this very release: those of CUDA 11.0 are older than 11's floor."""
        rows = [row for row in self._table.toolkits if _covers(row.toolkit, cuda)]
        texts = [row.windows if windows else row.linux for row in rows]
        return min((DriverVersion(text) for text in texts if text), default=None)

    def _toolkit_floor(self, cuda: Version, windows: bool) -> Floor | None:
        """The row of the toolkit's newest update, since a build rarely tells its update."""
        for row in self._table.toolkits:
            if _covers(row.toolkit, cuda):
                text = row.windows if windows else row.linux
                if text is None:
                    return None
                return Floor(
                    driver=DriverVersion(text), source=row.sources[0], uncertain=row.uncertain
                )
        return None

    def shipped_with(self, toolkit: Version) -> ToolkitRow | None:
        """The row of a toolkit: the driver that its release notes and its installer name."""
        return next((row for row in self._table.toolkits if _covers(row.toolkit, toolkit)), None)

    def native(self, driver: DriverVersion) -> Version | None:
        """The CUDA level of the branch that a driver belongs to."""
        rows = self._table.branches
        row = next((row for row in rows if row.branch <= driver.branch), None)
        if row is None or row.cuda is None:
            return None
        # A number just behind the newest branch can be a branch that the tables do not know yet.
        spread = SPREAD - 1 if row is rows[0] else SPREAD
        return version(row.cuda) if driver.branch - row.branch <= spread else None

    def branch_for(self, cuda: Version) -> int | None:
        fitting = [
            row.branch
            for row in self._table.branches
            if row.current and row.cuda is not None and version(row.cuda) >= cuda
        ]
        return min(fitting, default=None)

    def newest_branch(self) -> int:
        return self._table.branches[0].branch

    def is_current(self, branch: int) -> bool | None:
        """Whether a branch still gets updates, None for one that the tables do not have."""
        rows = (row.current for row in self._table.branches if row.branch == branch)
        return next(rows, None)

    def compat(self, cuda: Version, branch: int) -> Compat | None:
        """A cuda-compat package on a branch, None where the guide does not name the pair."""
        for row in self._table.forward_compat:
            if version(row.cuda) == cuda and str(branch) in row.cells:
                return CELLS[row.cells[str(branch)]]
        return None


def _covers(toolkit: str, cuda: Version) -> bool:
    """Whether a toolkit row is of that release, or of that major.minor where no update is named."""
    parts = version(toolkit).release
    return parts == cuda.release or (
        len(cuda.release) < 3 and parts[:2] == (cuda.major, cuda.minor)
    )

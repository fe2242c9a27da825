"""What a GPU can at most, by its name."""

from __future__ import annotations

from cudadoctor.knowledge.gpu_names import spellings
from cudadoctor.knowledge.model import GpuPeaks
from cudadoctor.knowledge.tables import Row, table


class PeakTable(Row, frozen=True):
    rows: tuple[GpuPeaks, ...]
    names: dict[str, int]


class PeakRows:
    """Peaks by name; a name that several boards share has none."""

    def __init__(self) -> None:
        self._table = table("peaks", PeakTable)

    def of(self, name: str) -> GpuPeaks | None:
        for spelling in spellings(name):
            number = self._table.names.get(spelling)
            if number is not None:
                return None if number < 0 else self._table.rows[number]
        return None

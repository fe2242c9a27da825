"""GPUs by name and by PCI id."""

from __future__ import annotations

from typing import Literal, cast

from cudadoctor.knowledge.gpu_names import spellings
from cudadoctor.knowledge.model import GpuModel
from cudadoctor.knowledge.tables import Row, table, version

Modules = Literal["only", "both", "none"]


class ModelRow(Row, frozen=True):
    name: str
    capability: str
    architecture: str
    data_center: bool
    memory_gb: tuple[float, ...]
    tensor_cores: bool | None
    bf16: bool | None
    tf32: bool | None
    open_modules: str
    sources: tuple[str, ...]


class GpuTable(Row, frozen=True):
    models: tuple[ModelRow, ...]
    names: dict[str, int]
    devices: dict[str, tuple[int, ...]]


class Gpus:
    """Models by name and by PCI id."""

    def __init__(self) -> None:
        self._table = table("gpus", GpuTable)

    def by_pci(self, device_id: str) -> tuple[GpuModel, ...]:
        key = device_id.lower().removeprefix("0x")
        return tuple(self._model(number) for number in self._table.devices.get(key, ()))

    def by_name(self, name: str) -> GpuModel | None:
        """The first spelling that the tables know decides; -1 marks one with several chips."""
        for spelling in spellings(name):
            number = self._table.names.get(spelling)
            if number is not None:
                return None if number < 0 else self._model(number)
        return self._cut_off(name) if name.endswith("...") else None

    def _cut_off(self, name: str) -> GpuModel | None:
        """Of a name that a table cut off, the first model, where all that begin so are alike."""
        start = spellings(name.rstrip(". "))[0]
        numbers = {no for one, no in self._table.names.items() if one.startswith(start)}
        if len(start) < 5 or not numbers or min(numbers) < 0:
            return None
        models = [self._table.models[number] for number in sorted(numbers)]
        alike = {(one.capability, one.architecture, one.data_center) for one in models}
        return self._model(min(numbers)) if len(alike) == 1 else None

    def _model(self, number: int) -> GpuModel:
        row = self._table.models[number]
        return GpuModel(
            name=row.name,
            capability=version(row.capability),
            architecture=row.architecture,
            data_center=row.data_center,
            memory_gb=row.memory_gb,
            tensor_cores=row.tensor_cores,
            bf16=row.bf16,
            tf32=row.tf32,
            open_modules=cast("Modules", row.open_modules),
            sources=row.sources,
        )

"""Generations of GPUs with their drivers, and which compiled code serves which GPU."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, cast

from packaging.version import Version

from cudadoctor.knowledge.model import Architecture
from cudadoctor.knowledge.tables import Row, table, version

Served = Literal["native", "ptx"]
Modules = Literal["only", "both", "none"]

_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


class GenerationRow(Row, frozen=True):
    name: str
    capabilities: tuple[str, ...]
    first_branch: int | None
    last_branch: int | None
    open_modules: str
    source: str


class Lifted(Row, frozen=True):
    torch: str
    cuda: str
    code: tuple[str, ...]


class Serving(Row, frozen=True):
    exclusions: dict[str, tuple[str, ...]]
    aliases: dict[str, tuple[str, ...]]
    lifted: Lifted
    sources: tuple[str, ...]


class ArchitectureTable(Row, frozen=True):
    generations: tuple[GenerationRow, ...]
    serving: Serving


class Architectures:
    """Generations, and the rule of compatibility of machine code and PTX."""

    def __init__(self) -> None:
        self._table = table("architectures", ArchitectureTable)
        rows = self._table.generations
        self._by_capability = {text: row for row in rows for text in row.capabilities}
        self._newest = max(version(text) for text in self._by_capability)
        lifted = self._table.serving.lifted
        self._lifted = (version(lifted.torch), version(lifted.cuda))

    def of(self, capability: Version) -> Architecture | None:
        row = self._by_capability.get(f"{capability.major}.{capability.minor}")
        if row is None:
            return None
        return Architecture(
            name=row.name,
            first_branch=row.first_branch,
            last_branch=row.last_branch,
            open_modules=cast("Modules", row.open_modules),
            source=row.source,
        )

    @property
    def capabilities(self) -> tuple[Version, ...]:
        return tuple(sorted(version(text) for text in self._by_capability))

    def newer_than_all(self, capability: Version) -> bool:
        return capability > self._newest

    def serves(
        self, code: str, capability: Version, torch: Version | None, cuda: Version | None
    ) -> Served | None:
        lifted = (
            torch is not None
            and cuda is not None
            and torch >= self._lifted[0]
            and cuda >= self._lifted[1]
        )
        device = (capability.major, capability.minor)
        return _serves(code, device, lifted, self._served_by_name)

    @property
    def _served_by_name(self) -> Serving:
        return self._table.serving


@lru_cache(maxsize=4096)
def _parsed(code: str) -> tuple[bool, int, int, str] | None:
    found = _CODE.fullmatch(code)
    if found is None:
        return None
    kind, major, minor, suffix = found.groups()
    return kind == "compute", int(major), int(minor), suffix


def _serves(code: str, device: tuple[int, int], lifted: bool, rule: Serving) -> Served | None:
    parsed = _parsed(code)
    if parsed is None:
        return None
    ptx, major, minor, suffix = parsed
    if suffix == "a":  # architecture-specific code runs on its own architecture only
        return ("ptx" if ptx else "native") if device == (major, minor) else None
    if ptx and not suffix:
        return "ptx" if device >= (major, minor) else None
    number, name = f"{major}{minor}", f"{device[0]}.{device[1]}"
    if name in rule.aliases.get(number, ()):
        return "native"
    if name in rule.exclusions.get(number, ()) and not (lifted and number in rule.lifted.code):
        return None
    if device[0] != major or device[1] < minor:
        return None
    return "ptx" if ptx else "native"

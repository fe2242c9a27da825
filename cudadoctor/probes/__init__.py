"""What touches the world: one module a thing looked at; each returns facts, never a judgement."""

from __future__ import annotations

from typing import Any

import msgspec

from cudadoctor.model.machine import Gap


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe saw.

    facts: dotted path under Machine -> value ("driver.kernel", "gpus"). origins: path -> source.
    """

    facts: dict[str, Any] = {}
    origins: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()


class Notes:
    """Collects what a probe sees: facts with their origin, and gaps with their reason."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._gaps: list[Gap] = []

    def fact(self, path: str, value: object, source: str | None = None) -> None:
        """Note a known value; None is no value and is left out."""
        if value is None:
            return
        self._facts[path] = value
        if source:
            self._origins[path] = source

    def gap(self, path: str, why: str, asked: bool = True) -> None:
        self._gaps.append(Gap(fact=path, why=why, asked=asked))

    def looked(self) -> Looked:
        return Looked(facts=self._facts, origins=self._origins, gaps=tuple(self._gaps))

"""What touches the world: one module a thing looked at; each returns facts, never a judgement."""

from __future__ import annotations

import re

from msgspec import Struct

from cudadoctor.model.machine import Gap, Json, OptStr


def extract(pattern: str | re.Pattern[str], text: str) -> OptStr:
    """The first group of what a pattern finds in a text; None where it finds nothing."""
    found = re.search(pattern, text)
    return found[1] if found else None


class Looked(Struct, kw_only=True):
    """What one probe saw: it notes facts with their origin, and gaps with their reason.

    facts: dotted path under Machine -> value ("driver.kernel", "gpus"). origins: path -> source.
    """

    facts: Json = {}
    origins: dict[str, str] = {}
    gaps: tuple[Gap, ...] = ()

    def fact(
        self,
        path: str,
        value: object,
        source: OptStr = None,
        why: OptStr = None,
        asked: bool = True,
    ) -> None:
        """Note a known value; None is no value: it is left out, or a gap if it is said why."""
        if value is not None:
            self.facts[path] = value
            self.origins |= {path: source} if source else {}
        elif why:
            self.gap(path, why, asked)

    def section(self, path: str, source: OptStr, /, **values: object) -> None:
        """Note several facts of one section that come from one source."""
        for name, value in values.items():
            self.fact(f"{path}.{name}", value, source)

    def gap(self, path: str, why: str, asked: bool = True) -> None:
        self.gaps += (Gap(fact=path, why=why, asked=asked),)

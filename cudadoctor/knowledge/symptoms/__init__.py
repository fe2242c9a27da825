"""Error texts and what they mean: the table of symptoms.

Each TOML file beside this module holds the symptoms of one family. A symptom is told by words that
stand in the text (in lower case, spaces made one, line breaks taken out), and where words do not
suffice by a pattern. What it means is a list in which the first entry whose conditions hold
decides; a symptom without a meaning is a circumstance that others ask for (`seen:`).
"""

from __future__ import annotations

import re
import sys
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from cudadoctor.knowledge.tables import KnowledgeError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same module under its old name
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent


class Meaning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a symptom means where all conditions of `when` hold.

    confidence: a text alone is never certain; "certain" needs a comparison of facts in `when`.
    shows: fact paths that are shown as evidence beside the text.
    title, why, cure: in place of those of the cause.
    """

    cause: str
    confidence: Literal["certain", "likely", "possible"] = "likely"
    severity: Literal["error", "warning", "info"] | None = None
    when: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    title: str | None = None
    why: str | None = None
    cure: str | None = None


class SymptomRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One error text. of: who prints it. since: the releases it belongs to, as words.

    words: one of them stands in the text (lower case). also: one of these too, anywhere.
    pattern: a regular expression over the text in one line, whose named groups become values.
    next: the command whose output would decide, where the meaning is only possible.
    example: a text that shows it, near: one that does not though it looks alike (for the tests).
    """

    key: str
    of: str
    words: tuple[str, ...]
    also: tuple[str, ...] = ()
    pattern: str | None = None
    since: str | None = None
    means: tuple[Meaning, ...] = ()
    next: tuple[str, ...] = ()
    example: str
    near: str | None = None


class CauseText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of a cause that only a report shows. cure: what to do, as sentences.

    yields_to: causes that explain this one away, beside those that the rules for hosts name.
    """

    title: str
    why: str
    cure: str
    yields_to: tuple[str, ...] = ()
    severity: Literal["error", "warning", "info"] = "error"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    symptom: tuple[SymptomRow, ...] = ()
    cause: dict[str, CauseText] = {}


class Symptoms:
    """All symptoms, and the texts of causes."""

    def __init__(self, rows: tuple[SymptomRow, ...], causes: dict[str, CauseText]) -> None:
        self.rows = rows
        self.causes = causes

    @cached_property
    def by_key(self) -> dict[str, SymptomRow]:
        return {row.key: row for row in self.rows}

    @cached_property
    def meaning(self) -> dict[str, frozenset[str]]:
        """Cause -> keys of the symptoms that can mean it."""
        found: dict[str, set[str]] = {}
        for row in self.rows:
            for one in row.means:
                found.setdefault(one.cause, set()).add(row.key)
        return {cause: frozenset(keys) for cause, keys in found.items()}


@lru_cache(maxsize=1)
def symptoms() -> Symptoms:
    """The whole table. Raises KnowledgeError where a file is damaged."""
    rows: list[SymptomRow] = []
    causes: dict[str, CauseText] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        one = _read(path)
        rows += one.symptom
        causes |= one.cause
    return Symptoms(tuple(rows), causes)


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            return msgspec.convert(tomllib.load(file), _File)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise KnowledgeError(
            f"The table of symptoms {path.name} cannot be read: {error}"
        ) from error


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the table, compiled when its words were seen for the first time."""
    return re.compile(pattern, re.IGNORECASE)

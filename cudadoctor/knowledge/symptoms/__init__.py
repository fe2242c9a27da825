"""Error texts and what they mean: the table of symptoms.

Each TOML file beside this module holds the symptoms of one family. A symptom is told by words that
stand in the text (in lower case, spaces made one, line breaks taken out), and where words do not
suffice by a pattern. What it means is a list in which the first entry whose conditions hold
decides; a symptom without a meaning is a circumstance that others ask for (`seen:`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from cudadoctor.knowledge.patterns import Pattern
from cudadoctor.knowledge.tables import KnowledgeError
from cudadoctor.model.machine import OptStr, Strings

FOLDER = Path(__file__).resolve().parent
MARK = 4
"""Characters of a mark."""
_WORD = re.compile(r"[a-z0-9_]+")


class Meaning(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a symptom means where all conditions of `when` hold.

    confidence: a text alone is never certain; "certain" needs a comparison of facts in `when`.
    "open" makes no finding: the cause is only asked about where nothing else is known.
    shows: fact paths that are shown as evidence beside the text.
    title, why, cure: in place of those of the cause.
    """

    cause: str
    confidence: Literal["certain", "likely", "possible", "open"] = "likely"
    severity: Literal["error", "warning", "info"] | None = None
    when: Strings = ()
    shows: Strings = ()
    title: OptStr = None
    why: OptStr = None
    cure: OptStr = None


class SymptomRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One error text. of: who prints it. since: the releases it belongs to, as words.

    words: one of them stands in the text (lower case). also: one of these too, anywhere.
    mine: whether the words count only where the author says them of his own machine, as it is now.
    pattern: a regular expression over the text in one line, whose named groups become values.
    next: the command whose output would decide, where the meaning is only possible.
    example: a text that shows it, near: one that does not though it looks alike (for the tests).
    """

    key: str
    of: str
    words: Strings
    also: Strings = ()
    pattern: OptStr = None
    since: OptStr = None
    mine: bool = False
    means: tuple[Meaning, ...] = ()
    next: Strings = ()
    example: str
    near: OptStr = None


class CauseText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of a cause that only a report shows. cure: what to do, as sentences.

    yields_to: causes that explain this one away, beside those that the rules for hosts name.
    """

    title: str
    why: str
    cure: str
    yields_to: Strings = ()
    severity: Literal["error", "warning", "info"] = "error"


class _File(Struct, forbid_unknown_fields=True):
    symptom: tuple[SymptomRow, ...] = ()
    cause: dict[str, CauseText] = {}


@dataclass(frozen=True)
class Symptoms:
    """All symptoms, and the texts of causes."""

    rows: tuple[SymptomRow, ...]
    causes: dict[str, CauseText]

    @cached_property
    def by_key(self) -> dict[str, SymptomRow]:
        return {row.key: row for row in self.rows}

    @cached_property
    def search_texts(self) -> dict[str, list[str]]:
        """The different search texts by their mark."""
        return by_mark({text for row in self.rows for text in (*row.words, *row.also)})

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Word -> the places of the rows that it tells."""
        found: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            for word in row.words:
                found.setdefault(word, []).append(place)
        return found

    @cached_property
    def meaning(self) -> dict[str, frozenset[str]]:
        """Cause -> keys of the symptoms that can mean it."""
        found: dict[str, set[str]] = {}
        for row in self.rows:
            for meaning in row.means:
                found.setdefault(meaning.cause, set()).add(row.key)
        return {cause: frozenset(keys) for cause, keys in found.items()}


@cache
def symptoms() -> Symptoms:
    """The whole table. Raises KnowledgeError where a file is damaged."""
    files = [_read(path) for path in sorted(FOLDER.glob("*.toml"))]
    return Symptoms(
        tuple(row for file in files for row in file.symptom),
        {cause: text for file in files for cause, text in file.cause.items()},
    )


def _read(path: Path) -> _File:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_File)
    except (OSError, ValueError) as error:
        raise KnowledgeError(f"The table of symptoms cannot read {path.name}: {error}") from error


def by_mark(texts: Iterable[str]) -> dict[str, list[str]]:
    """Search texts by their mark."""
    found: dict[str, list[str]] = {}
    for text in sorted(texts):
        found.setdefault(mark_of(text), []).append(text)
    return found


def mark_of(text: str) -> str:
    """The first characters of its longest word, the rarest part of most texts; "" if too short."""
    found = max(_WORD.finditer(text), key=lambda word: len(word[0]), default=None)
    place = found.start() if found else 0
    return text[place : place + MARK] if place + MARK <= len(text) else ""


@cache
def pattern_of(text: str) -> Pattern:
    """A pattern of the table, made when its words were seen for the first time."""
    return Pattern(f"(?i){text}")

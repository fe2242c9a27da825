"""The error texts of a report that the table of symptoms knows.

The table holds thousands of search texts and a report a few hundred words: going from the words to
the search texts is some twenty times faster than looking for each of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from cudadoctor.knowledge.symptoms import SymptomRow, Symptoms, compiled
from cudadoctor.model.machine import Symptom
from cudadoctor.reports.document import Document

MOST = 60
"""More symptoms than this come from a log that holds everything; the first ones count."""
_SHOWN = 240
_TRIES = 200
"""Places at which a pattern is tried: words that stand in every line of a log end there."""
_BEFORE, _AFTER = 400, 1200
"""How far around its words a pattern looks."""


def symptoms_of(doc: Document, table: Symptoms) -> tuple[Symptom, ...]:
    """Every known error text, in the order in which they stand."""
    index = Index(doc.low)
    rows = finder(table).found_in(index)
    found = [symptom for row, words in rows if (symptom := _found(row, words, doc, index))]
    return tuple(sorted(found, key=lambda symptom: symptom.line or 0)[:MOST])


def _found(row: SymptomRow, words: list[str], doc: Document, index: Index) -> Symptom | None:
    places = [place for word in words if (place := doc.low.find(word)) >= 0]
    if not places or (
        row.also and not any(index.may_hold(sought(word)) and word in doc.low for word in row.also)
    ):
        return None
    if row.pattern is None:
        return _symptom(row, doc, min(places), {})
    pattern = compiled(row.pattern)
    for start, window in _windows(words, doc):
        if match := pattern.search(window):
            values = {name: value for name, value in match.groupdict().items() if value}
            return _symptom(row, doc, start + match.start(), values)
    return None


def _windows(words: list[str], doc: Document) -> Iterator[tuple[int, str]]:
    """The parts of the text around the search texts, with where they begin; a short text whole."""
    if len(doc.flat) <= _BEFORE + _AFTER:
        yield 0, doc.flat
        return
    places: list[int] = []
    for word in words:
        place = doc.low.find(word)
        while place >= 0 and len(places) < _TRIES:
            if not places or place - places[-1] > _AFTER // 2 or place < places[-1]:
                places.append(place)
            place = doc.low.find(word, place + len(word))
    for place in places:
        start = max(0, place - _BEFORE)
        yield start, doc.flat[start : place + _AFTER]


def _symptom(row: SymptomRow, doc: Document, place: int, values: dict[str, str]) -> Symptom:
    line = doc.line_at(place)
    return Symptom(key=row.key, text=line.text.strip()[:_SHOWN], values=values, line=line.number)


# --- which search texts can stand in a text at all, by its words ---------------------------------

_WORD = re.compile(r"[a-z0-9_]+")


class Sought(NamedTuple):
    """A search text by its words. inner: those that stand in a text as they are.

    first may be the end of a longer word there, last the beginning of one, alone, the only one, a
    part; "" where the search text has no such word.
    """

    alone: str
    first: str
    inner: frozenset[str]
    last: str


@cache
def sought(text: str) -> Sought:
    """The words of a search text."""
    spans = [found.span() for found in _WORD.finditer(text)]
    inner = frozenset(text[a:b] for a, b in spans if a > 0 and b < len(text))
    if spans == [(0, len(text))]:
        return Sought(text, "", inner, "")
    first = text[: spans[0][1]] if spans and spans[0][0] == 0 else ""
    last = text[spans[-1][0] :] if spans and spans[-1][1] == len(text) else ""
    return Sought("", first, inner, last)


class Index:
    """The different words of a text: runs of letters, digits and underscores in lower case."""

    def __init__(self, text: str) -> None:
        self.words = frozenset(_WORD.findall(text))
        self._forward = sorted(self.words)
        self._backward = sorted(word[::-1] for word in self.words)
        self.joined = " ".join(self.words)

    def may_hold(self, sought: Sought) -> bool:
        """False where the search text cannot stand in the text."""
        return (
            sought.alone in self.joined
            and sought.inner <= self.words
            and _any_starts(self._forward, sought.last)
            and _any_starts(self._backward, sought.first[::-1])
        )


def _any_starts(words: list[str], start: str) -> bool:
    place = bisect_left(words, start)
    return not start or (place < len(words) and words[place].startswith(start))


Lead = dict[str, list[tuple[int, str, Sought]]]
"""A word that stands in a text -> row, search text and its words, of what may stand there then."""
_KEY = 4
"""Letters of a word's beginning that lead to search texts whose last word is cut there."""


class Finder:
    """The rows of a table by words that must stand in a text for them."""

    def __init__(self, rows: tuple[SymptomRow, ...]) -> None:
        self._rows = rows
        self._whole: Lead = {}
        self._begun: Lead = {}
        self._alone: Lead = {}
        for number, row in enumerate(rows):
            for text in row.words:
                words = sought(text)
                if words.inner:
                    lead, key = self._whole, max(words.inner, key=len)
                elif words.last:
                    lead, key = self._begun, words.last[:_KEY]
                else:
                    lead, key = self._alone, words.alone
                lead.setdefault(key, []).append((number, text, words))

    def found_in(self, index: Index) -> list[tuple[SymptomRow, list[str]]]:
        """The rows that may stand there with those search texts that may, in the table's order."""
        found: dict[int, list[str]] = {}
        for number, text, words in self._led_to(index):
            if index.may_hold(words):
                found.setdefault(number, []).append(text)
        return [(self._rows[number], found[number]) for number in sorted(found)]

    def _led_to(self, index: Index) -> Iterator[tuple[int, str, Sought]]:
        for word in index.words:
            yield from self._whole.get(word, ())
        beginnings = {word[:length] for word in index.words for length in range(1, _KEY + 1)}
        for beginning in beginnings & self._begun.keys():
            yield from self._begun[beginning]
        for word, those in self._alone.items():
            if word in index.joined:
                yield from those


@lru_cache(maxsize=4)
def finder(table: Symptoms) -> Finder:
    """The finder of a table, made once."""
    return Finder(table.rows)

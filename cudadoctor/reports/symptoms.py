"""The error texts of a report that the table of symptoms knows."""

from __future__ import annotations

from collections.abc import Iterator

from cudadoctor.knowledge.symptoms import SymptomRow, Symptoms, compiled
from cudadoctor.model.machine import Symptom
from cudadoctor.reports.document import Document, sought
from cudadoctor.reports.finder import finder

MOST = 60
"""More symptoms than this come from a log that holds everything; the first ones count."""
_SHOWN = 240
_TRIES = 200
"""Places at which a pattern is tried: words that stand in every line of a log end there."""
_BEFORE, _AFTER = 400, 1200
"""How far around its words a pattern looks."""


def symptoms_of(doc: Document, table: Symptoms) -> tuple[Symptom, ...]:
    """Every known error text, in the order in which they stand."""
    found = []
    for row, words in finder(table).found_in(doc.index):
        if (one := _found(row, words, doc)) is not None:
            found.append(one)
    found.sort(key=lambda one: one.line or 0)
    return tuple(found[:MOST])


def _found(row: SymptomRow, words: list[str], doc: Document) -> Symptom | None:
    places = [place for word in words if (place := doc.low.find(word)) >= 0]
    if not places or (row.also and not any(_stands(word, doc) for word in row.also)):
        return None
    if row.pattern is None:
        return _symptom(row, doc, min(places), {})
    for start, window in _windows(words, doc):
        if match := compiled(row.pattern).search(window):
            values = {name: value for name, value in match.groupdict().items() if value}
            return _symptom(row, doc, start + match.start(), values)
    return None


def _stands(word: str, doc: Document) -> bool:
    return doc.index.may_hold(sought(word)) and word in doc.low


def _windows(words: list[str], doc: Document) -> Iterator[tuple[int, str]]:
    """The parts of the text around the search texts, with where they begin; a short text whole."""
    if len(doc.flat) <= _BEFORE + _AFTER:
        yield 0, doc.flat
        return
    for place in _all_places(words, doc):
        start = max(0, place - _BEFORE)
        yield start, doc.flat[start : place + _AFTER]


def _all_places(words: list[str], doc: Document) -> list[int]:
    places: list[int] = []
    for word in words:
        place = doc.low.find(word)
        while place >= 0 and len(places) < _TRIES:
            if not places or place - places[-1] > _AFTER // 2 or place < places[-1]:
                places.append(place)
            place = doc.low.find(word, place + len(word))
    return places


def _symptom(row: SymptomRow, doc: Document, place: int, values: dict[str, str]) -> Symptom:
    line = doc.line_at(place)
    return Symptom(key=row.key, text=line.text.strip()[:_SHOWN], values=values, line=line.number)

"""The error texts of a report that the table of symptoms knows."""

from __future__ import annotations

from cudadoctor.facts import Symptom
from cudadoctor.knowledge.symptoms import SymptomRow, Symptoms, compiled
from cudadoctor.reports.document import Document, sought

MOST = 60
"""More symptoms than this come from a log that holds everything; the first ones count."""
_SHOWN = 240
_TRIES = 200
"""Places at which a pattern is tried: words that stand in every line of a log end there."""
_BEFORE, _AFTER = 400, 1200
"""How far around its words a pattern looks."""


def symptoms_of(doc: Document, table: Symptoms) -> tuple[Symptom, ...]:
    """Every known error text, in the order in which they stand."""
    found = [one for row in table.rows if (one := _found(row, doc)) is not None]
    found.sort(key=lambda one: one.line or 0)
    return tuple(found[:MOST])


def _stands(word: str, doc: Document) -> int:
    """Where the search text stands in the document, -1 where it does not."""
    return doc.low.find(word) if doc.index.may_hold(sought(word)) else -1


def _found(row: SymptomRow, doc: Document) -> Symptom | None:
    places = [place for word in row.words if (place := _stands(word, doc)) >= 0]
    if not places or (row.also and not any(_stands(word, doc) >= 0 for word in row.also)):
        return None
    if row.pattern is None:
        return _symptom(row, doc, min(places), {})
    for place in _all_places(row, doc):
        window = doc.flat[max(0, place - _BEFORE) : place + _AFTER]
        if match := compiled(row.pattern).search(window):
            values = {name: value for name, value in match.groupdict().items() if value}
            return _symptom(row, doc, max(0, place - _BEFORE) + match.start(), values)
    return None


def _all_places(row: SymptomRow, doc: Document) -> list[int]:
    places: list[int] = []
    for word in row.words:
        place = _stands(word, doc)
        while place >= 0 and len(places) < _TRIES:
            if not places or place - places[-1] > _AFTER // 2 or place < places[-1]:
                places.append(place)
            place = doc.low.find(word, place + len(word))
    return places


def _symptom(row: SymptomRow, doc: Document, place: int, values: dict[str, str]) -> Symptom:
    line = doc.line_at(place)
    return Symptom(key=row.key, text=line.text.strip()[:_SHOWN], values=values, line=line.number)

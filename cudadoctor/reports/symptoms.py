"""The error texts of a report that the table of symptoms knows.

The table holds thousands of search texts: only those are looked for of which a piece of four
characters is among the different pieces of the report.
"""

import re
from collections.abc import Iterator
from itertools import islice

from cudadoctor.knowledge.symptoms import MARK, SymptomRow, Symptoms, pattern_of
from cudadoctor.model.machine import Symptom
from cudadoctor.reports.document import Document
from cudadoctor.reports.mentions import affirmed

MOST = 60
"""More symptoms than this come from a log that holds everything; the first ones count."""
_SHOWN = 240
_TRIES = 200
"""Places at which a pattern is tried: words that stand in every line of a log end there."""
_BEFORE, _AFTER = 400, 1200
"""How far around its words a pattern looks."""


def symptoms_of(doc: Document, table: Symptoms) -> tuple[Symptom, ...]:
    """Every known error text, in the order in which they stand."""
    low = doc.told.lower()
    there = standing(low, table.search_texts)
    places = {place for word in there for place in table.places.get(word, ())}
    rows = (table.rows[place] for place in sorted(places))
    found = [symptom for row in rows if (symptom := _found(row, doc, low, there))]
    keys = {symptom.key for symptom in found}
    if denied := [row for row in table.rows if row.mine and row.key in keys]:
        stays = affirmed(doc).told.lower()
        gone = {row.key for row in denied if not any(word in stays for word in row.words)}
        found = [symptom for symptom in found if symptom.key not in gone]
    return tuple(sorted(found, key=lambda symptom: symptom.line or 0)[:MOST])


def standing(low: str, texts: dict[str, list[str]]) -> frozenset[str]:
    """Those search texts, given by their mark, that stand in a text.

    Most are told absent by their mark, which is not among the pieces of the text.
    """
    pieces = {low[place : place + MARK] for place in range(len(low) - MARK + 1)} | {""}
    marks = pieces & texts.keys()
    return frozenset([text for mark in marks for text in texts[mark] if text in low])


def _found(row: SymptomRow, doc: Document, low: str, there: frozenset[str]) -> Symptom | None:
    words = [word for word in row.words if word in there]
    if row.also and there.isdisjoint(row.also):
        return None
    place, values = min(map(low.find, words)), {}
    if row.pattern is not None:
        pattern = pattern_of(row.pattern)
        match = pattern.search(doc.told, doc.low_told, islice(_spans(words, low), _TRIES))
        if match is None:
            return None
        place = match.start()
        values = {name: value for name, value in match.groupdict().items() if value}
    line = doc.line_at(place)
    return Symptom(key=row.key, text=line.text.strip()[:_SHOWN], values=values, line=line.number)


def _spans(words: list[str], low: str) -> Iterator[tuple[int, int]]:
    """Where the parts of the text around the search texts begin and end; a short text whole."""
    if len(low) <= _BEFORE + _AFTER:
        yield 0, len(low)
        return
    last = -_AFTER
    for word in words:
        for found in re.finditer(re.escape(word), low):
            place = found.start()
            if not last <= place <= last + _AFTER // 2:
                yield max(0, place - _BEFORE), place + _AFTER
                last = place

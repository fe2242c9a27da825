"""The error texts of a report that the table of symptoms knows.

The table holds thousands of search texts, and most words of a report stand in it many times over:
only those whose longest word is among the different words of the report are looked for in it.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

from cudadoctor.knowledge.symptoms import SymptomRow, Symptoms, compiled
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
_WORD = re.compile(r"[a-z0-9_]+")


def symptoms_of(doc: Document, table: Symptoms) -> tuple[Symptom, ...]:
    """Every known error text, in the order in which they stand."""
    low = doc.told.lower()
    stands = searching(low)
    found = [symptom for row in table.rows if (symptom := _found(row, doc, low, stands))]
    keys = {symptom.key for symptom in found}
    if denied := [row for row in table.rows if row.mine and row.key in keys]:
        stays = searching(affirmed(doc).told.lower())
        gone = {row.key for row in denied if not any(map(stays, row.words))}
        found = [symptom for symptom in found if symptom.key not in gone]
    return tuple(sorted(found, key=lambda symptom: symptom.line or 0)[:MOST])


def searching(low: str) -> Callable[[str], bool]:
    """Whether a search text stands in this one, for many of them."""
    words = " ".join(set(_WORD.findall(low)))
    return lambda text: _longest_word(text) in words and text in low


@cache
def _longest_word(text: str) -> str:
    return max(_WORD.findall(text), key=len, default="")


def _found(
    row: SymptomRow, doc: Document, low: str, stands: Callable[[str], bool]
) -> Symptom | None:
    words = [word for word in row.words if stands(word)]
    if not words or (row.also and not any(map(stands, row.also))):
        return None
    place, values = min(map(low.find, words)), {}
    if row.pattern is not None:
        pattern = compiled(row.pattern)
        tries = (pattern.search(doc.told, *span) for span in islice(_spans(words, low), _TRIES))
        match = next(filter(None, tries), None)
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

"""Which symptoms can stand in a text at all, told from its words alone.

The table holds thousands of search texts and a report a few hundred words: going from the words to
the search texts is some twenty times faster than looking for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cudadoctor.knowledge.symptoms import SymptomRow, Symptoms
from cudadoctor.reports.document import Index, Sought, sought

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
        self._always: Lead = {}
        for number, row in enumerate(rows):
            for text in row.words:
                self._add(text, number)

    def _add(self, text: str, number: int) -> None:
        words = sought(text)
        if words.inner:
            lead, key = self._whole, max(words.inner, key=len)
        elif words.last:
            lead, key = self._begun, words.last[:_KEY]
        elif words.alone:
            lead, key = self._alone, words.alone
        else:
            lead, key = self._always, ""
        lead.setdefault(key, []).append((number, text, words))

    def found_in(self, index: Index) -> list[tuple[SymptomRow, list[str]]]:
        """The rows that may stand there with those search texts that may, in the table's order."""
        found: dict[int, list[str]] = {}
        for number, text, words in self._led_to(index):
            if index.may_hold(words):
                found.setdefault(number, []).append(text)
        return [(self._rows[number], found[number]) for number in sorted(found)]

    def _led_to(self, index: Index) -> Iterator[tuple[int, str, Sought]]:
        yield from self._always.get("", ())
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

"""What reports that read like this one were about.

A complement naive Bayes over single words and neighbouring pairs, counted in labelled public
reports and in the examples of the table of symptoms (benchmarks/likeness.py counts them). It ranks
what the rules leave open, and never makes a finding.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from math import log, sqrt

from msgspec import Struct

from cudadoctor.knowledge.tables import table
from cudadoctor.model.machine import Strings

FEWEST = 3
"""A word counts that stands in so many reports: one person's names and paths do not."""
STRANGE = 20
"""Names among words of another language tell nothing: of so many words one has to be known."""
SMOOTHING = 0.3
MOST = 8
"""So many causes are worth ranking."""
_LONGEST_LINE = 2000
_MOST_LINES = 1500
"""What comes later is a log, in which everything stands."""
_WORDS = re.compile(
    r"[a-z0-9_]{2,30}|[\u0400-\u04ff]{2,30}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
_NUMBER = re.compile(r"\d+")


_ASCII = "".join(mark for mark in map(chr, range(32, 127)) if mark not in '0123456789",\\')
_LETTERS = _ASCII + "".join(map(chr, range(0xC0, 0x100)))
"""One letter for each cause, by its place: a table of pairs of numbers would be twice as large."""
_ENTRY = re.compile(r"(\D)(\d*)")


class Counts(Struct, frozen=True, forbid_unknown_fields=True):
    """sums: all counts of each cause together.

    words: word or pair -> the letter of each cause, behind it how many of its texts hold the word,
    if that is not 1.
    """

    causes: Strings
    sums: tuple[int, ...]
    words: dict[str, str]

    def row(self, word: str) -> list[tuple[int, int]]:
        """Place of each cause with the number of its texts that hold the word."""
        found = _ENTRY.findall(self.words.get(word, ""))
        return [(_LETTERS.index(letter), int(number or 1)) for letter, number in found]


def counts_of(rows: Mapping[str, Mapping[str, int]]) -> Counts:
    """The counts of words in texts: word -> cause -> number of its texts that hold the word."""
    causes = sorted({cause for row in rows.values() for cause in row})
    sums = [sum(row.get(cause, 0) for row in rows.values()) for cause in causes]
    letter = dict(zip(causes, _LETTERS, strict=False))
    words = {
        word: "".join(f"{letter[cause]}{number if number > 1 else ''}" for cause, number in row)
        for word, row in ((word, sorted(row.items())) for word, row in sorted(rows.items()))
    }
    return Counts(tuple(causes), tuple(sums), words)


@cache
def counts() -> Counts:
    """The counts of the package."""
    return table("rules/likeness", Counts)


def words_of(text: str) -> frozenset[str]:
    """The different words of a text and its neighbouring pairs, in lower case."""
    found: set[str] = set()
    for line in text.lower().split("\n", _MOST_LINES)[:_MOST_LINES]:
        words = [word for piece in _WORDS.findall(line[:_LONGEST_LINE]) for word in _split(piece)]
        found.update(words)
        found.update(f"{first} {second}" for first, second in pairwise(words))
    return frozenset(found)


def _split(piece: str) -> list[str]:
    """The word; of Chinese, Japanese and Korean, which have no spaces, each two letters."""
    if piece[0] < "\u3040":
        return [] if _NUMBER.fullmatch(piece) else [piece]
    return [piece[place : place + 2] for place in range(max(1, len(piece) - 1))]


def likeness(words: frozenset[str], counted: Counts) -> dict[str, float]:
    """The causes that a report's words speak for, the likeliest first.

    The numbers are weights of evidence in nats, divided by the root of the number of known words:
    0 for a cause that the words say nothing of.
    """
    known = [counted.row(word) for word in words if word in counted.words]
    alone = [word for word in words if " " not in word]
    if STRANGE * sum(word in counted.words for word in alone) < len(alone):
        return {}
    whole = sum(counted.sums) + SMOOTHING * len(counted.words)
    scores = [-len(known) * log(whole / (whole - own)) for own in counted.sums]
    for row in known:
        in_all = sum(number for _, number in row) + SMOOTHING
        for place, number in row:
            scores[place] += log(in_all / (in_all - number))
    ranked = sorted(zip(scores, counted.causes, strict=True), reverse=True)[:MOST]
    return {cause: round(score / sqrt(len(known)), 3) for score, cause in ranked if score > 0}

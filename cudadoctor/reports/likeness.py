"""What reports that read like this one were about.

A complement naive Bayes over single words and neighbouring pairs, counted in labelled public
reports and in the examples of the table of symptoms (benchmarks/likeness.py counts them). It ranks
what the rules leave open, and never makes a finding.
"""

import re
from functools import cache, cached_property
from itertools import pairwise
from math import log, sqrt

from msgspec import Struct

from cudadoctor.knowledge.tables import table
from cudadoctor.model.machine import Strings

FEWEST = 3
"""A word counts that stands in so many reports: one person's names and paths do not."""
STRANGE = 20
"""Names among words of another language tell nothing: of so many words one has to be known."""
SMOOTHING = 1.0
MOST = 8
"""So many causes are worth ranking."""
_LONGEST_LINE = 2000
_MOST_LINES = 1500
"""What comes later is a log, in which everything stands."""
_WORDS = re.compile(
    r"[a-z0-9_]{2,30}|[\u0400-\u04ff]{2,30}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
_NUMBER = re.compile(r"\d+")


class Counts(Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """words: word or pair -> place of each cause in `causes` with the reports that hold it."""

    causes: Strings
    words: dict[str, tuple[tuple[int, int], ...]]

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """All counts of each cause together."""
        sums = [0] * len(self.causes)
        for row in self.words.values():
            for place, number in row:
                sums[place] += number
        return tuple(sums)


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
    known = [row for word in words if (row := counted.words.get(word))]
    alone = [word for word in words if " " not in word]
    if STRANGE * sum(word in counted.words for word in alone) < len(alone):
        return {}
    smoothed = SMOOTHING * len(counted.words)
    whole = sum(counted.sums) + smoothed
    scores = [-len(known) * log(whole / (whole - own)) for own in counted.sums]
    for row in known:
        in_all = sum(number for _, number in row) + SMOOTHING
        for place, number in row:
            scores[place] += log(in_all / (in_all - number))
    ranked = sorted(zip(scores, counted.causes, strict=True), reverse=True)[:MOST]
    return {cause: round(score / sqrt(len(known)), 3) for score, cause in ranked if score > 0}

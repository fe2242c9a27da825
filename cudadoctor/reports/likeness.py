"""What reports that read like this one were about.

A linear model over single words and neighbouring pairs, fitted to reports whose cause is known
(benchmarks/likeness.py fits it). It ranks what the rules leave open, and never makes a finding.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from itertools import pairwise
from math import log, sqrt

from msgspec import Struct

from cudadoctor.knowledge.tables import table
from cudadoctor.model.machine import Strings

FEWEST = 3
"""A word counts that stands in so many texts: one person's names and paths do not."""
STRANGE = 20
"""Names among words of another language tell nothing: of so many words one has to be known."""
_LONGEST_LINE = 2000
_MOST_LINES = 1500
"""What comes later is a log, in which everything stands."""
_WORDS = re.compile(
    r"[a-z0-9_]{2,30}|[\u0400-\u04ff]{2,30}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
_NUMBER = re.compile(r"\d+")


LETTERS = tuple(
    letter
    for letter in map(chr, (*range(32, 127), *range(0xA1, 0x100)))
    if letter not in '",\\\xad'
)
"""Causes and numbers are told by one letter each: pairs of numbers would be twice as large."""
_PLACE = {letter: place for place, letter in enumerate(LETTERS)}
_MIDDLE = 45
"""The letter at this place is the weight 0; those around it are steps up and down."""
_RARENESS = 0.1
"""The step of a word's rareness, in nats."""


class Weights(Struct, frozen=True, forbid_unknown_fields=True):
    """How much words and signs of a report speak for each cause.

    start: what a cause has before any word. step: of a weight. words, signs: word or sign -> the
    letter of its rareness, then for each cause that it tells of the letters of cause and weight.
    heed: how much the signs count beside the words.
    """

    causes: Strings
    start: tuple[float, ...]
    step: float
    heed: float
    words: dict[str, str]
    signs: dict[str, str]


def rareness(texts: int, holding: int) -> float:
    """How rare a word is that so many of the texts hold, as the table has it, in nats."""
    return _RARENESS * round(log((1 + texts) / (1 + holding)) / _RARENESS) + 1


def row_of(rare: float, weights: Mapping[int, float], step: float) -> str:
    """The letters of a word: its rareness, and place of a cause -> weight."""
    told = "".join(
        LETTERS[cause] + LETTERS[_MIDDLE + round(weight / step)]
        for cause, weight in sorted(weights.items())
        if round(weight / step)
    )
    return LETTERS[round((rare - 1) / _RARENESS)] + told


@cache
def weights() -> Weights:
    """The weights of the package."""
    return table("rules/likeness", Weights)


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


def likeness(words: frozenset[str], table: Weights) -> dict[str, float]:
    """How much the words of a report speak for each cause; nothing where hardly one is known.

    Above 0 the words rather speak for the cause, once its start and the signs are added.
    """
    alone = [word for word in words if " " not in word]
    if STRANGE * sum(word in table.words for word in alone) < len(alone):
        return {}
    return spoken(words, table.words, table)


def spoken(found: Collection[str], rows: Mapping[str, str], table: Weights) -> dict[str, float]:
    """What these words (or signs) say of each cause; more of them say it surer, not louder."""
    said = [0.0] * len(table.causes)
    length = 0.0
    for row in filter(None, map(rows.get, found)):
        length += (_RARENESS * _PLACE[row[0]] + 1) ** 2
        for cause, weight in zip(row[1::2], row[2::2], strict=True):
            said[_PLACE[cause]] += _PLACE[weight] - _MIDDLE
    scale = table.step / sqrt(length or 1)
    return {cause: round(scale * sum_, 3) for cause, sum_ in zip(table.causes, said, strict=True)}

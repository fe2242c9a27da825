"""Labels with their values, wherever they stand in a text: `PyTorch version : 2.1.0`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_COLON = re.compile(
    r"['\"]?(?: {1,2}\([^()\n]{1,30}\))?\*{0,2}[ \t]{0,40}"
    r"(?:[:：]|\.{3,40}|=(?=[ \t]))\*{0,2}[ \t]{0,20}"
)
_SPACES = re.compile(r"[ \t]{2,60}(?=\S)")
_MOST_PLACES = 40
LONGEST = 4000
"""Of a value more is not read."""


class Label(NamedTuple):
    """A label. words: as printed, in lower case. sure: only a program prints it.

    field: what its value tells.
    table: in this dump nothing but spaces stands between the label and its value.
    """

    words: str
    field: str
    sure: bool = False
    table: bool = False


class Labelled(NamedTuple):
    """A label that stands in the text, and what follows up to the next one. start: of the value."""

    label: Label
    value: str
    start: int


def lower(text: str) -> str:
    """In lower case and of the same length."""
    return text.replace("İ", "I").lower()


def labelled(text: str, labels: tuple[Label, ...], near: int) -> list[Labelled]:
    """The labels in order. One that is not sure counts only that near to one that is."""
    low = lower(text)
    places = _apart(place for label in labels for place in _places(label, low))
    sure = [start for start, _, label in places if label.sure]
    kept = [one for one in places if any(abs(one[0] - other) < near for other in sure)]
    if not kept:
        return []
    ends = [start for start, _, _ in kept[1:]] + [len(text)]
    return [
        Labelled(label, text[after : min(end, after + LONGEST)], after)
        for (_, after, label), end in zip(kept, ends, strict=True)
    ]


def _apart(places: Iterable[tuple[int, int, Label]]) -> list[tuple[int, int, Label]]:
    """In order; of two at one place the longer."""
    kept: list[tuple[int, int, Label]] = []
    for one in sorted(places, key=lambda place: (place[0], -len(place[2].words))):
        if not kept or one[0] >= kept[-1][1]:
            kept.append(one)
    return kept


def _places(label: Label, low: str) -> Iterator[tuple[int, int, Label]]:
    """Each place of a label: where it begins, where its value begins."""
    place, times = low.find(label.words), 0
    while place >= 0 and times < _MOST_PLACES:
        times += 1
        end = place + len(label.words)
        mark = _COLON.match(low, end) or (_SPACES.match(low, end) if label.table else None)
        if mark and not (place and (low[place - 1].isalnum() or low[place - 1] in "_./")):
            yield place, mark.end(), label
        place = low.find(label.words, end)


def first_line(value: str) -> str:
    """The first line of a value; where it was wrapped behind its label, the next one."""
    first, _, rest = value.partition("\n")
    if first.strip():
        return first.strip()[:400]
    first = rest.partition("\n")[0]
    return "" if ":" in first else first.strip()[:400]

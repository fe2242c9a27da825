"""Which words of a report tell what its author has: mine, affirmed and of now.

People name releases and GPUs that they do not have, that somebody else has, that they want, or that
they had. Words stand for that (mentions.toml); what lies within their reach states nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

from cudadoctor.knowledge.patterns import Alternative, alternatives, lower
from cudadoctor.knowledge.wording import wording
from cudadoctor.reports.document import Document, Line

_TABLE = wording("mentions", dict[str, dict[str, str | list[str]]])
_ENDS = {name: re.compile(str(pattern)) for name, pattern in _TABLE.pop("ends").items()}
_ENDS["part"] = re.compile(f"{_ENDS['clause'].pattern}|{_ENDS['part'].pattern}")
_ENDS["place"] = re.compile(f"{_ENDS['part'].pattern}|{_ENDS['place'].pattern}")
_WITHOUT_SPACES = "\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_SCRIPTS = re.compile(f"[{_WITHOUT_SPACES}]")
_LONGEST = 1000
"""Longer lines are no sentences of a person."""
_CUES = 30
"""Nobody denies more than this in one sentence."""
_WRAPPED = 60
"""A line that is shorter than this ends with a sentence or a heading."""
_HIDDEN = "¦"
"""Stands for every letter that states nothing."""
_NEAR = re.compile(r"(?:\S{1,40}\s){0,3}$")


class _Cues(NamedTuple):
    """The cues of one reach, of every stance and language: all in one pattern, and each alone."""

    pattern: re.Pattern[str]
    each: tuple[Alternative, ...]

    def told(self, low: str) -> tuple[Alternative, ...]:
        """Those whose words stand in a text."""
        return tuple(cue for cue in self.each if cue.may_match(low))


@cache
def _cues() -> dict[str, _Cues]:
    """The cues of each reach."""
    reaches: dict[str, dict[str, list[str]]] = {}
    for stance in _TABLE.values():
        for reach, patterns in stance.items():
            for pattern in patterns:
                begins = "" if _SCRIPTS.search(pattern) else r"\b"
                reaches.setdefault(reach, {}).setdefault(begins, []).append(pattern)
    return {
        reach: _Cues(
            re.compile("|".join(f"{begins}(?:{'|'.join(cues)})" for begins, cues in kinds.items())),
            tuple(each for cues in kinds.values() for cue in cues for each in alternatives(cue)),
        )
        for reach, kinds in reaches.items()
    }


def _end(kind: str, text: str, start: int) -> int:
    found = _ENDS[kind].search(text, start)
    return found.start() if found else len(text)


def _begin(kind: str, text: str, stop: int) -> int:
    return max((found.end() for found in _ENDS[kind].finditer(text, 0, stop)), default=0)


_REACH: dict[str, Callable[[str, re.Match[str]], tuple[int, int]]] = {
    "clause": lambda text, cue: (
        _begin("clause", text, cue.start()),
        _end("clause", text, cue.end()),
    ),
    "far": lambda text, cue: (cue.start(), _end("part", text, cue.end())),
    "after": lambda text, cue: (cue.start(), _end("place", text, cue.end())),
    "before": lambda text, cue: (_begin("part", text, cue.start()), cue.end()),
    "near": lambda text, cue: (_words_before(text, cue.start()), cue.end()),
    "alone": lambda _, cue: cue.span(),
}


def _words_before(text: str, stop: int) -> int:
    found = _NEAR.search(text, max(0, stop - 60), stop)
    return found.start() if found else stop


def _denied(sentence: str, reaches: dict[str, _Cues]) -> Iterator[tuple[int, int]]:
    """Where a sentence in lower case speaks of what is not so, not here or not now."""
    low = lower(sentence)
    for reach, cues in reaches.items():
        if cues.told(low):
            for cue in islice(cues.pattern.finditer(sentence), _CUES):
                yield _REACH[reach](sentence, cue)


def affirmed(doc: Document) -> Document:
    """The document with everything hidden that its author does not say of the machine as it is.

    Lines keep their numbers. Letters of scripts without spaces stand apart from the others.
    """
    text = _joined(doc)
    low, marks, start = text.lower(), list(text), 0
    if len(low) != len(text):
        low = text
    reaches = {
        reach: _Cues(cues.pattern, told)
        for reach, cues in _cues().items()
        if (told := cues.told(lower(low)))
    }
    for stop in (*(end.end() for end in _ENDS["sentence"].finditer(low)), len(low)):
        if 4 < stop - start <= _LONGEST:
            for first, last in _denied(low[start:stop], reaches):
                marks[start + first : start + last] = _hidden(text[start + first : start + last])
        start = stop
    pieces, place = [], 0
    for piece in doc.pieces:
        pieces.append(_spaced("".join(marks[place : place + len(piece)])))
        place += len(piece) + 1
    lines = zip(doc.lines, pieces, strict=True)
    return Document(tuple(Line(line.number, piece) for line, piece in lines), doc.day)


def _hidden(text: str) -> str:
    return re.sub(r"\S", _HIDDEN, text)


def _joined(doc: Document) -> str:
    """The lines with a space after one that goes on in the next, else with a line break."""
    out = []
    for piece, after in zip(doc.pieces, [*doc.pieces[1:], ""], strict=True):
        goes_on = len(piece) >= _WRAPPED and after[:1].islower() and piece[-1:] not in ".:;{}"
        out.append(piece + (" " if goes_on else "\n"))
    return "".join(out)


_BETWEEN = re.compile(
    rf"(?<=[{_WITHOUT_SPACES}])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[{_WITHOUT_SPACES}])"
)
_WIDE = str.maketrans("（）：，", "():,")


def _spaced(text: str) -> str:
    return text if text.isascii() else _BETWEEN.sub(" ", text.translate(_WIDE))

"""Patterns that are tried only on a text that holds the words which their matches contain.

Most patterns find nothing in most texts. A search for words is a hundred times quicker than one for
a pattern, and where it finds none, the pattern need not be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

try:
    from re import _parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as _parser

_FLAGS = re.compile(r"\(\?[im]+\)|")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|[^\\\[()|]+", re.DOTALL)
_REPEATS = (_parser.MAX_REPEAT, _parser.MIN_REPEAT)
Words = str | tuple["Words", ...] | list["Words"]
"""A word; several of which all stand in a match (a tuple), or one at least (a list)."""


class Pattern:
    """A regular expression, of which those alternatives are tried whose words stand in a text.

    Each text is given twice: as it is, and as `lower` makes it.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def of_lines(self) -> bool:
        """Whether it sees where lines begin and end."""
        return "m" in _flags(self.text)

    @cached_property
    def _whole(self) -> Alternative:
        return Alternative(self.text)

    @cached_property
    def _alternatives(self) -> tuple[Alternative, ...]:
        flags = _flags(self.text)
        return tuple(Alternative(flags + text) for text in _split(self.text[len(flags) :]))

    def search(
        self, text: str, low: str, spans: Iterable[tuple[int, int]]
    ) -> re.Match[str] | None:
        """The first match within the first of these parts of a text that holds one."""
        patterns = [each.compiled for each in self._alternatives if each.may_match(low)]
        for span in spans if patterns else ():
            found = filter(None, [pattern.search(text, *span) for pattern in patterns])
            if first := min(found, key=re.Match.start, default=None):
                return first
        return None

    def finditer(self, text: str, low: str) -> Iterator[re.Match[str]]:
        """All matches in a text."""
        may = [each for each in self._alternatives if each.may_match(low)]
        one = may[0] if len(may) == 1 else self._whole
        return one.compiled.finditer(text) if may else iter(())


class Alternative:
    """A regular expression with the words that its matches contain."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.text)

    @cached_property
    def words(self) -> Words:
        return tuple(_words(_parser.parse(self.text)))

    def may_match(self, low: str) -> bool:
        """Whether a text in lower case holds the words of a match."""
        return _hold(self.words, low)


def lower(text: str) -> str:
    """A text in lower case; patterns that ignore case take these two letters for an i and an s."""
    return text.lower().replace("ı", "i").replace("ſ", "s")


def _flags(text: str) -> str:
    found = _FLAGS.match(text)
    return found[0] if found else ""


def _split(text: str) -> Iterator[str]:
    """The alternatives of which a pattern consists."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "|" and not depth:
            yield text[start : token.start()]
            start = token.end()
    yield text[start:]


def _words(parsed: Iterable[tuple[Any, Any]]) -> Iterator[Words]:
    """The words that stand in all that a part of a parsed pattern matches."""
    run = ""
    for code, value in (*parsed, (_parser.ANY, None)):
        if code is _parser.LITERAL:
            run += lower(chr(value))
        elif code is not _parser.AT:  # the end of a word does not end the run
            if len(run) > 1 or not run.isascii():  # a single letter stands in every text
                yield run
            run = ""
            if code is _parser.SUBPATTERN:
                yield from _words(value[-1])
            elif code in _REPEATS and value[0]:
                yield from _words(value[2])
            elif code is _parser.BRANCH:
                branches = [tuple(_words(branch)) for branch in value[1]]
                if all(branches):
                    yield [each[0] if len(each) == 1 else each for each in branches]


def _hold(words: Words, low: str) -> bool:
    if isinstance(words, str):
        return words in low
    whole = isinstance(words, tuple)
    for word in words:  # all() and any() would take three times as long
        if (word in low if isinstance(word, str) else _hold(word, low)) is not whole:
            return not whole
    return whole

"""Patterns that are tried only on a text that holds the words which their matches contain.

Most patterns find nothing in most texts. A search for words is a hundred times quicker than one for
a pattern, and where it finds none, the pattern need not be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

_FLAGS = re.compile(r"\(\?[im]+\)|")
_TOKEN = re.compile(
    r"(?P<run>[^\\()\[\]{}.*+?^$|]+(?![*+?{]))"
    r"|(?P<edge>\\[bBAZ]|[\^$])"
    r"|(?P<aside>\(\?(?:<?[=!]|\(\w+\)))"
    r"|(?P<open>\((?:\?(?:P<\w+>|[a-z-]*:|>))?(?!\?))"
    r"|(?P<branch>\|)"
    r"|(?:(?P<close>\))"
    r"|(?P<any>\\x..|\\u.{4}|\\[A-Za-z0-9]|\.|\(\?P=\w+\)|\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|\\?(?P<mark>.))(?:(?P<times>[*+?]|\{\d*,?\d*\})[+?]?)?",
    re.DOTALL,
)
"""aside: what only looks around. edge: what has no width. any: one of several characters."""
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
    def _whole(self) -> re.Pattern[str]:
        return re.compile(self.text)

    @cached_property
    def _alternatives(self) -> tuple[Alternative, ...]:
        return tuple(alternatives(self.text))

    def search(self, text: str, low: str, spans: Iterable[tuple[int, int]]) -> re.Match[str] | None:
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
        pattern = may[0].compiled if len(may) == 1 else self._whole if may else None
        return pattern.finditer(text) if pattern else iter(())


class Alternative:
    """A regular expression, or a part of one, with the words that stand in all of its matches."""

    def __init__(self, text: str, words: Words) -> None:
        self.text = text
        self.words = words

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.text)

    def may_match(self, low: str) -> bool:
        """Whether a text in lower case holds the words of a match."""
        return _hold(self.words, low)


def lower(text: str) -> str:
    """A text in lower case; patterns that ignore case take these two letters for an i and an s."""
    return text.lower().replace("ı", "i").replace("ſ", "s")


def _flags(text: str) -> str:
    found = _FLAGS.match(text)
    return found[0] if found else ""


def alternatives(text: str) -> Iterator[Alternative]:
    """The alternatives of which a pattern consists."""
    flags = _flags(text)
    start, run = len(flags), ""
    words: list[Words] = []
    branches: list[list[Words]] = []
    outer: list[tuple[list[Words], list[list[Words]], bool]] = []
    for token in _TOKEN.finditer(text, start):
        kind, times = token.lastgroup, token["times"]
        mark = lower(token["run"] or token["mark"] or "")
        optional = times is not None and times.startswith(("*", "?", "{0", "{,"))
        run += "" if optional else mark
        if kind == "edge" or (mark and not times):
            continue
        if len(run) > 1 or not run.isascii():  # a single letter stands in every text
            words.append(run)
        run = ""
        if kind in ("open", "aside"):
            outer.append((words, branches, kind == "aside"))
            words, branches = [], []
        elif kind == "branch" and outer:
            branches.append(words)
            words = []
        elif kind == "branch":
            yield Alternative(flags + text[start : token.start()], tuple(words))
            start, words = token.end(), []
        elif token["close"]:
            group = [*branches, words]
            words, branches, aside = outer.pop()
            if not (aside or optional) and all(group):
                either: list[Words] = [each[0] if len(each) == 1 else tuple(each) for each in group]
                words += either if len(either) == 1 else [either]
    if len(run) > 1 or not run.isascii():
        words.append(run)
    yield Alternative(flags + text[start:], tuple(words))


def _hold(words: Words, low: str) -> bool:
    if isinstance(words, str):
        return words in low
    whole = isinstance(words, tuple)
    for word in words:  # all() and any() would take three times as long
        if (word in low if isinstance(word, str) else _hold(word, low)) is not whole:
            return not whole
    return whole

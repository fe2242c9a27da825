"""A pasted report as lines without their decoration.

People paste through terminals, chats, issue trackers and log collectors: each leaves marks around
the text that a program wrote. They are taken off here, so that no reader has to know of them.
"""

import html
import re
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from cudadoctor.knowledge.patterns import lower

MOST_CHARACTERS = 2 << 20
"""Of a longer document the beginning and the end are read: there the facts and the error stand."""
LONGEST_LINE = 24_000
"""The longest line that a program writes for people: pip's list of versions."""
_UNREADABLE = 0.2
"""Share of characters that no text has, above which a document is none."""


Match = re.Match[str]


class NotTextError(ValueError):
    """The bytes are no text, in one sentence."""


class Line(NamedTuple):
    """A line without its decoration. number: in the document, from 1."""

    number: int
    text: str


class Document:
    """A report: its lines, and the same as one text in which no line break hides a sentence.

    day: the latest day that a line is stamped with (ISO 8601), "" where none is. quoted: the
    numbers of the lines behind a `>`.
    """

    def __init__(
        self, lines: tuple[Line, ...], day: str = "", quoted: frozenset[int] = frozenset()
    ) -> None:
        self.lines = lines
        self.day = day
        self.quoted = quoted

    @cached_property
    def text(self) -> str:
        """The lines as they stand, for readers of tables."""
        return "\n".join(line.text for line in self.lines)

    @cached_property
    def flat(self) -> str:
        """Everything in one line with single spaces: sentences that were wrapped are whole."""
        return " ".join(self.pieces)

    @cached_property
    def low(self) -> str:
        """`flat` in lower case, of the same length."""
        return self.flat.lower()

    @cached_property
    def told(self) -> str:
        """`flat`, of the same length, without links to pages and without conditions in code."""
        text = self.flat
        for mark, pattern in (("http", _PAGE), ("is_available", _CONDITION)):
            if mark in text:
                text = pattern.sub(lambda part: part[1] + "/" * len(part[2]), text)
        return text

    @cached_property
    def low_told(self) -> str:
        """`told` as `Pattern` wants it."""
        return lower(self.told)

    @cached_property
    def low_text(self) -> str:
        """`text` as `Pattern` wants it."""
        return lower(self.text)

    @cached_property
    def pieces(self) -> list[str]:
        """Each line with single spaces."""
        # Only this letter changes its length in lower case.
        return [" ".join(line.text.split()).replace("İ", "I") for line in self.lines]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((len(piece) + 1 for piece in self.pieces), initial=0))

    @cached_property
    def _starts_in_text(self) -> list[int]:
        return list(accumulate((len(line.text) + 1 for line in self.lines), initial=0))

    def line_at(self, position: int) -> Line:
        """The line that holds this position of `flat`."""
        return self.lines[max(0, bisect_right(self._starts, position) - 1)]

    def line_of(self, found: Match) -> int:
        """The number of the line in which a match of `text`, `flat` or `low` begins."""
        start = found.start()
        if found.string is self.text:
            return self.line_in_text(start)
        return self.line_at(start).number

    def line_in_text(self, position: int) -> int:
        """The number of the line that holds this position of `text`."""
        return self.lines[bisect_right(self._starts_in_text, position) - 1].number

    def mentions(self, *words: str) -> bool:
        """Whether one of these words, in lower case, stands in `low`."""
        return any(map(self.low.__contains__, words))

    def rows(self, pattern: re.Pattern[str], mark: str = "") -> list[tuple[int, Match]]:
        """The lines that begin with a pattern: number and match. mark: stands in all of them."""
        matches = ((line, pattern.match(line.text)) for line in self.lines if mark in line.text)
        return [(line.number, found) for line, found in matches if found]


_PAGE = re.compile(
    r"(https?://[\w.-]{1,100}(?::\d{1,5})?/)"
    r"(?!\S{0,300}?(?:whl\b|\.zip|\.conda|\.tar|\bsimple\b|wheel))([^\s\"'<>()\[\]]{1,400})"
)
"""A link to a page, not to a package or an index of them. Groups: up to its host, the rest."""
_CONDITION = re.compile(
    r"\b((?:if|elif|and|or|not|assert) (?:torch\.)?cuda\.)"
    r"(is_available\(\)(?:, ?f?['\"][^'\"\n]{1,80}['\"])?)"
    r"(?!:? ?(?:False|True|is|was|(?:return|print|show|say|report)(?:s|ed|ing)?|gives|giving|gave"
    r"|said|still|always|now|devuelve|retorna|renvoie|gibt|liefert|ist|возвращает|->|→|是|返回|为)"
    r"(?![a-z]))(?!.{0,400}AssertionError)"
)
"""What a program does where there is a GPU, which says nothing of this machine."""
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")


def document(data: bytes | str) -> Document:
    """A document out of bytes of any encoding.

    Raises NotTextError for what is no text.
    """
    text = _cut(data if isinstance(data, str) else decoded(data))
    if not text.isascii():
        # \d finds the digits of every script, and a version takes ours only.
        text = _FOREIGN_DIGIT.sub(lambda digit: str(int(digit[0])), text)
    lines = [_shortened(line) for line in text.split("\n")]
    if _are_numbered(lines):
        lines = [_NUMBERED.sub("", line, count=1) for line in lines]
    numbered = (Line(number, _bare(line)) for number, line in enumerate(lines, start=1))
    quoted = frozenset(number for number, line in enumerate(lines, start=1) if _QUOTED.match(line))
    return Document(tuple(numbered), _day(text), quoted)


def decoded(data: bytes) -> str:
    """The text of bytes in any encoding; of a large one both ends. Raises NotTextError."""
    half = 2 * MOST_CHARACTERS
    data = data if len(data) <= 2 * half else data[:half] + b"\n" + data[-half:]
    text = data.decode(_encoding(data[:4096]), "replace")
    sample = text[:65536]
    unprintable: float = sum(
        1 for mark in sample if mark < " " and mark not in "\t\n\r\x0b\x0c\x08\x1b\x07"
    )
    # Text in an older encoding keeps its ASCII: only where little of that is left is it no text.
    unprintable += sample.count("\ufffd") / 3
    if sample and unprintable > _UNREADABLE * len(sample):
        raise NotTextError("it is no text")
    return text.replace("\ufeff", "")


def _encoding(start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    pairs = max(1, len(start) // 2)
    if start[1::2].count(0) > pairs * 0.3:
        return "utf-16-le"
    if start[::2].count(0) > pairs * 0.3:
        return "utf-16-be"
    return "utf-8"


def _cut(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\x0b", "\n").replace("\x0c", "\n")
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return text[:half] + "\n" + text[-half:]


def _shortened(line: str) -> str:
    if "\r" in line:  # a progress bar painted over itself: the last state is what was seen
        line = line.rstrip("\r").rsplit("\r", 1)[-1]
    if len(line) > LONGEST_LINE:
        return line[: LONGEST_LINE - 4000] + " … " + line[-4000:]
    return line


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DATE = r"(?P<year>20[12]\d)-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])"
_STAMPS = (
    # 2024-12-30 17:06:52, 2024-12-30T17:06:52Z, [2024-12-30 ...
    re.compile(rf"(?m)^\W{{0,8}}{_DATE}[T ]\d\d:\d\d"),
    # nvidia-smi and date: Mon Jul 14 16:25:58 2025; dmesg -T: [Sun May 17 15:55:50 2026] NVRM
    re.compile(
        r"(?mi)^\W{0,8}(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? "
        rf"(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}} {{1,2}}(?P<day>0?[1-9]|[12]\d|3[01]) "
        r"\d\d:\d\d:\d\d (?:[A-Z]{2,5} )?(?P<year>20[12]\d)(?:\]|\s*$)",
    ),
    # systemd: Active: failed since Mon 2024-07-01 14:43:57 UTC
    re.compile(rf"since \w{{3}} {_DATE} \d\d:\d\d"),
)
_STAMPED = 400_000


def _day(text: str) -> str:
    """The latest day among the time stamps: programs of a report were built earlier."""
    days = [""]
    for pattern in _STAMPS:
        for stamp in pattern.finditer(text[:_STAMPED]):
            word = stamp["month"].lower()
            month = _MONTHS.index(word) + 1 if word in _MONTHS else int(word)
            days.append(f"{stamp['year']}-{month:02d}-{int(stamp['day']):02d}")
    return max(days)


# --- taking the decoration off -----------------------------------------------------------------

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\\e|\\x1b|\\033)\[[0-9;?]{0,20}[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?"
)
_BARE_COLOUR = re.compile(r"(?<!\w)\[[0-9]{1,2}(?:;[0-9]{1,3}){0,4}m|\[0m")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_FENCE = re.compile(r"\s{0,8}(?:`{3,}|~{3,})\s*[\w+.-]{0,30}\s*$")
_TAG = re.compile(
    r"(?i)</?(?:details|summary|pre|code|p|br|b|i|em|strong|div|span|ul|ol|li|blockquote|kbd|sub|sup)"
    r"(?:\s[^<>]{0,200})?/?>",
)
_PREFIX = re.compile(
    r"^(?:\s{0,3}>(?!>>) ?|(\s*)(?:"
    # docker compose: webui-docker-auto-1  | text
    r"[A-Za-z0-9][\w.-]{0,80}[-_]\d{1,3}\s{0,20}\| ?"
    # a collector of several programs' output: train.0 [stderr] text
    r"|\S{1,80} \[(?:stderr|stdout)\] ?"
    # torchrun, vLLM, Ray, mpirun: [rank3]: text, (Worker pid=12) text, [1,0]<stderr>: text
    r"|\[(?:rank|default)?\d{1,4}\]:\s?"
    r"|\((?:\w{1,40} )?(?:\w{1,20} )?pid=\d{1,9}(?:, ip=[\d.]{7,15})?\)\s?"
    r"|\[\d{1,4},\d{1,4}\]<std(?:err|out)>:\s?"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]{1,4}"
    r"|[│┃╎▏] ?))"
)
"""A quotation mark with the indentation before it, or what collectors of logs put before a text."""
_QUOTED = re.compile(r"\s{0,3}(?:>(?!>>)|&gt;(?!&gt;&gt;))")
_NUMBERED = re.compile(r"\s{0,8}(\d{1,6})(?:[:.|)]|\t|\s{1,4}[|│])[ \t]?")


def _are_numbered(lines: list[str]) -> bool:
    """Whether an editor's line numbers stand before the lines: most count up by one."""
    found = [_NUMBERED.match(line) for line in lines if line.strip()]
    numbers = [int(number[1]) for number in found if number]
    rising = sum(below == above + 1 for above, below in pairwise(numbers))
    return len(numbers) >= 4 and rising >= 0.8 * (len(found) - 1)


def _bare(text: str) -> str:
    if "\x1b" in text or "^[" in text or "\\" in text:
        text = _COLOUR.sub("", text)
    if "m" in text and "[" in text:
        text = _BARE_COLOUR.sub("", text)
    text = _CONTROL.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub("", text)
    if "`" in text:
        text = (
            "" if _FENCE.fullmatch(text) else text.replace("`", "'") if "``" not in text else text
        )
    text, times = text.translate(_PLAIN), 1
    for _ in range(3):
        if times:
            text, times = _PREFIX.subn(r"\1", text)
    return text.rstrip()


_PLAIN = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ", 0x2010: "-", 0x2011: "-"}

"""Find the causes that a few words mean: an error text, half of one, or its number.

Two voices are added up. What the reader of reports and the rules make of the words counts most:
they know hundreds of error texts, whatever paths and numbers stand in them. Where the words are
only a part of such a text, or misspelled, they are compared with every error text that is known,
by the pieces of three characters that both have in common.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from math import log, sqrt

from msgspec import Struct

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.symptoms import SymptomRow, symptoms
from cudadoctor.knowledge.wording import wording
from cudadoctor.model.catalogue import CATALOGUE, CATCH_ALLS, HARMLESS
from cudadoctor.model.findings import Confidence
from cudadoctor.model.machine import Machine
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.pasted.conditions import refuted

MOST = 5
"""More candidates than this are no answer."""
_PIECE = 3
_LIKE = 0.3
"""Texts that have less in common are not the same text."""
_SURE = 0.58
"""Where no rule knows the words, less than this in common is chance."""
_FINDING = {Confidence.CERTAIN: 1.6, Confidence.LIKELY: 1.4, Confidence.POSSIBLE: 0.9}
_MEANING, _CHANCE, _LIKENESS = 0.8, 0.6, 2.0
_QUOTED, _CATCH_ALL = 1.2, 0.8
_CLEAR = 0.45
"""A cause with a smaller share of the first one's score is not worth reading."""
_PLACES = re.compile(r"(?:[a-z]:)?(?:[\w.~@+-]*[/\\])+")
_ERROR = re.compile(
    r"(?i)(?:(?P<kind>nvml|cuda|nccl) (?:runtime |driver )?)?"
    r"(?:error|err|code)?[ :=#(]*(?P<number>\d{1,3})\)?"
)
_WORDS = re.compile(r"[^\W_]+")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+[.:]\d[\d.:]*|\d{4,}")


class Hit(Struct, frozen=True):
    """A cause that the words may mean. alike: the known error text that is most like them."""

    cause: str
    score: float
    alike: str = ""


def search(text: str, kb: Knowledge) -> tuple[Hit, ...]:
    """The causes that a text may mean, the likeliest first; () where it is like nothing known."""
    text = _spelled(_without_number(text.strip()))
    machine = read_report(text, kb)
    alike, meant, quoted = _alike(text), _meant(machine, kb), _quoted(text)
    most_alike = max((likeness for likeness, _ in alike.values()), default=0.0)
    if not quoted and not meant.keys() - HARMLESS and most_alike < _SURE:
        return ()
    scores: dict[str, float] = defaultdict(float)
    for source in (_judged(machine, kb), meant):
        for cause, score in source.items():
            scores[cause] += score
    for cause, share in quoted.items():
        scores[cause] += _QUOTED * share
    for cause, (likeness, _) in alike.items():
        scores[cause] += _LIKENESS * likeness
    scores.pop("unknown", None)
    for cause in CATCH_ALLS:
        scores[cause] *= _CATCH_ALL
    ranked = sorted(
        filter(scores.get, scores), key=lambda cause: (-scores[cause], CATALOGUE.index(cause))
    )
    best = scores[ranked[0]] if ranked else 0.0
    return tuple(
        Hit(cause, round(scores[cause], 3), alike.get(cause, (0.0, ""))[1])
        for cause in ranked[:MOST]
        if scores[cause] >= _CLEAR * best
    )


def _without_number(text: str) -> str:
    """The text, or what its error number stands for: "NVML error 18", "error 803" or 803 alone."""
    found = _ERROR.fullmatch(" ".join(text.split()))
    if found is None:
        return text
    kind, number = (found["kind"] or "").lower(), found["number"]
    numbers = wording("numbers", dict[str, dict[str, str]])
    names = (kind,) if kind in numbers else tuple(numbers)
    told = [numbers[name][number] for name in names if number in numbers[name]]
    if text.isdecimal() and not told:
        return f"NVRM: Xid (PCI:0000:01:00): {number}"
    return told[0] if told else text


def _spelled(text: str) -> str:
    """The text with words that no error text has written as the one that is nearly the same."""

    def word(found: re.Match[str]) -> str:
        if len(found[0]) < _LONG or found[0].lower() in known:
            return found[0]
        near = get_close_matches(found[0].lower(), known, n=1, cutoff=_NEARLY)
        return near[0] if near else found[0]

    known = _vocabulary()
    return re.sub(r"(?<![\w/.-])[A-Za-z]+(?![\w/.-])", word, text) if len(text) < _FEW else text


_LONG, _NEARLY, _FEW = 5, 0.83, 200
"""Letters of a word that is worth correcting, how like it must be, and what is typed by hand."""


@cache
def _vocabulary() -> frozenset[str]:
    rows = symptoms().rows
    texts = " ".join(text for row in rows for text in (row.example, *row.words)).lower()
    counted = Counter(re.findall(r"[a-z]+", texts))
    return frozenset(word for word, times in counted.items() if times > 1 and len(word) >= _LONG)


def _judged(m: Machine, kb: Knowledge) -> dict[str, float]:
    """What the rules for reports make of the words."""
    diagnosis = diagnose(m, kb)
    found = {candidate.cause: _CHANCE * candidate.score for candidate in diagnosis.candidates}
    for finding in reversed(diagnosis.findings):
        found[finding.cause] = found.get(finding.cause, 0.0) + _FINDING[finding.confidence]
    if diagnosis.primary in found:
        found[diagnosis.primary] += 0.1
    return found


def _meant(m: Machine, kb: Knowledge) -> dict[str, float]:
    """What the error texts in the words can mean at all."""
    found: dict[str, float] = {}
    for symptom in m.symptoms or ():
        row = symptoms().by_key[symptom.key]
        for cause, share in _shares(row, m, kb):
            found[cause] = max(found.get(cause, 0.0), _MEANING * share)
    return found


def _shares(row: SymptomRow, m: Machine, kb: Knowledge) -> Iterable[tuple[str, float]]:
    """The causes of a row; those count most that need nothing beside the text itself."""
    causes: dict[str, float] = {}
    for way in row.means:
        if not refuted(way.when, m, kb):
            share = 0.6 if way.when else 1.0
            causes[way.cause] = max(causes.get(way.cause, 0.0), share)
    return causes.items()


# --- likeness -----------------------------------------------------------------------------------


class _Index(Struct, frozen=True):
    """texts: an error text and its row. holding: piece -> the texts that have it."""

    texts: tuple[tuple[str, SymptomRow], ...]
    holding: Mapping[str, tuple[int, ...]]
    rareness: Mapping[str, float]
    lengths: tuple[float, ...]


def _alike(text: str) -> dict[str, tuple[float, str]]:
    """Cause -> how much the text is like one of its error texts, at most 1, and which."""
    index, wanted = _index(), _pieces(text)
    shared: dict[int, float] = defaultdict(float)
    whole = sum(index.rareness.get(piece, _STRANGE) ** 2 for piece in wanted)
    for piece in wanted:
        for number in index.holding.get(piece, ()):
            shared[number] += index.rareness[piece] ** 2
    found: dict[str, tuple[float, str]] = {}
    for number, common in shared.items():
        likeness = common / (sqrt(whole) * index.lengths[number])
        if likeness < _LIKE:
            continue
        example, row = index.texts[number]
        for cause, share in _told(row):
            if likeness * share > found.get(cause, (0.0, ""))[0]:
                found[cause] = likeness * share, example
    return found


def _told(row: SymptomRow) -> Iterable[tuple[str, float]]:
    causes: dict[str, float] = {}
    for way in row.means:
        causes.setdefault(way.cause, 1.0 if not way.when else 0.85)
    return causes.items()


_STRANGE = 6.0
"""The rareness of a piece that no error text has."""


@cache
def _index() -> _Index:
    rows = [row for row in symptoms().rows if row.means]
    texts = tuple((text, row) for row in rows for text in (row.example, *row.words))
    holding: dict[str, list[int]] = defaultdict(list)
    for number, (text, _) in enumerate(texts):
        for piece in _pieces(text):
            holding[piece].append(number)
    rareness = {piece: log(len(texts) / len(numbers)) for piece, numbers in holding.items()}
    lengths = [0.0] * len(texts)
    for piece, numbers in holding.items():
        for number in numbers:
            lengths[number] += rareness[piece] ** 2
    return _Index(
        texts,
        {piece: tuple(numbers) for piece, numbers in holding.items()},
        rareness,
        tuple(max(sqrt(length), 1.0) for length in lengths),
    )


def _quoted(text: str) -> dict[str, float]:
    """The causes in whose examples the text stands as it is; the fewer they are, the surer."""
    words = _plain(text)
    if len(words.split()) < _PIECE:
        return {}
    rows = [row for example, row in _examples() if words in example]
    causes = {way.cause: not way.when for row in rows for way in row.means}
    share = 1 / sqrt(len(causes) or 1)
    return {cause: share if alone else 0.85 * share for cause, alone in causes.items()}


@cache
def _examples() -> tuple[tuple[str, SymptomRow], ...]:
    rows = [row for row in symptoms().rows if row.means]
    return tuple((_plain(row.example), row) for row in rows)


def _pieces(text: str) -> frozenset[str]:
    words = _plain(text)
    return frozenset(words[place : place + _PIECE] for place in range(len(words) - _PIECE + 1))


def _plain(text: str) -> str:
    """The words of a text without its places and numbers, which differ from host to host."""
    return f" {' '.join(_WORDS.findall(_NUMBERS.sub('0', _PLACES.sub(' ', text.lower()))))} "

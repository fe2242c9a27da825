"""Why an installer found no torch: what the tables say of every Python and system it may run on.

Where the report tells Python and system, the tables decide. Where it does not, each pair that would
have led to what the installer said counts by how well it explains the versions it was offered, and
the cause that most of them share is the likely one.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.demand import PLATFORM_OF, platform_of, python_of
from cudadoctor.facts import Machine
from cudadoctor.findings import Confidence
from cudadoctor.knowledge.offers import PYPI, PYTHON_RELEASED, Offer, Offers
from cudadoctor.rules.asked_index import (
    ALL,
    CONDA,
    NIGHTLY,
    OTHER,
    Searched,
    Wanted,
    nightlies,
    releases,
    searched_by,
    wanted_by,
    without_local,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cudadoctor.facts import Install, Interpreter, Platform
    from cudadoctor.knowledge import Knowledge

PYTHON, INDEX, PLATFORM = "torch-python-unsupported", "torch-index-wrong", "platform-unsupported"


class Refused(NamedTuple):
    """Why a requirement was refused: the cause, how sure that is, and the words for it.

    place: number of the install. dated: the day of the report would decide more. values: python,
    platform, index, variants, pythons ... for the sentence.
    """

    cause: str
    confidence: Confidence
    place: int
    wanted: Wanted
    kind: str
    values: dict[str, object]


class Shown(NamedTuple):
    """What an install was offered: final releases, None where the report does not show them.

    stubs: only source releases of 2016, which PyPI listed for every Python until about 2021.
    pypi: PyPI was asked. asked: the day from which on what was wanted existed.
    """

    seen: frozenset[Version] | None
    stubs: bool
    pypi: bool
    asked: str


class Guess(NamedTuple):
    """A Python on a platform that may have been the one, and how much speaks for it."""

    platform: str
    python: str
    day: str
    weight: float


_PLATFORMS = {
    "linux_x86_64": 0.45,
    "windows_amd64": 0.38,
    "macos_arm64": 0.06,
    "macos_x86_64": 0.06,
    "linux_aarch64": 0.05,
}
"""How often each system is behind a report that does not name it."""
_RARE = {"2.7": 0.03, "3.5": 0.05, "3.6": 0.3, "3.15": 0.3}
"""Pythons that are behind fewer reports than the others."""
_32_BIT = 0.06
_BOTH = 0.25
"""Less for a wrong Python where the index has the release for no Python: one fault suffices."""
_LIKELY = 0.72
"""Share of what speaks for a cause from which on it is likely."""
_NOW = "2026-11-21"


@lru_cache(maxsize=2)
def offers_of(kb: Knowledge) -> Offers:
    return Offers(kb)


def refusals(m: Machine, kb: Knowledge) -> tuple[Refused, ...]:
    """Every refusal of torch or a companion that the report shows, with its cause."""
    return _refusals(m.installs or (), m.platform, m.python, m.date, kb)


@lru_cache(maxsize=32)
def _refusals(
    installs: tuple[Install, ...],
    platform: Platform,
    python: Interpreter,
    day: str | None,
    kb: Knowledge,
) -> tuple[Refused, ...]:
    """Several rules ask for the same: the tables are gone through once."""
    m = Machine(installs=installs, platform=platform, python=python, date=day)
    return tuple(_each(m, kb))


def _each(m: Machine, kb: Knowledge) -> Iterator[Refused]:
    for place, one in enumerate(m.installs or ()):
        wanted = wanted_by(one.refused) if one.refused else None
        if wanted is None or one.tool in CONDA:
            continue
        found = _judged(one, wanted, place, m, offers_of(kb))
        if found is not None:
            yield found


def _judged(one: Install, wanted: Wanted, place: int, m: Machine, offers: Offers) -> Refused | None:
    if not offers.of(wanted.name):
        return None
    if one.lacks == "platform" or (one.tool == "uv" and one.lacks is None and one.offered is None):
        wanted = without_local(wanted)
    searched = searched_by(one)
    values: dict[str, object] = {"wanted": wanted.text, "python": python_of(m) or ""}
    values["index"] = ", ".join(sorted(searched.indexes))
    values["variants"] = _variants(wanted, searched.indexes, m, offers)
    certain = (
        _walled(m)
        or _wrong_wheel(one, m)
        or _withdrawn(one, wanted, searched)
        or _never_built(wanted, searched, offers)
    )
    if certain is not None:
        cause, kind, sure, more = certain
        return Refused(cause, sure, place, wanted, kind, values | more)
    return _weighed(one, wanted, place, (m, offers, searched, values))


Told = tuple[str, str, Confidence, dict[str, object]]


def _walled(m: Machine) -> Told | None:
    """What no Python of the usual kind could cure."""
    here, machine = m.platform, (m.platform.machine or "").lower()
    if here.libc == "musl":
        what = "musl, the C library of Alpine"
    elif m.python.bits == 32 or machine in ("x86", "i686", "i386"):
        what = "32-bit Python"
    elif here.system and machine and (here.system, machine) not in PLATFORM_OF:
        what = f"{here.system} on {machine}"
    elif here.system == "Windows" and machine in ("aarch64", "arm64"):
        return PLATFORM, "wall", Confidence.LIKELY, {"what": "Windows on ARM"}
    else:
        return None
    return PLATFORM, "wall", Confidence.CERTAIN, {"what": what}


def _wrong_wheel(one: Install, m: Machine) -> Told | None:
    """A wheel that was named by its file and is made for another Python or system."""
    pythons = [tag for tag in one.made_for if tag.startswith("cp")]
    if one.tool != "pip" or not pythons:
        return None
    python, tags = m.python.version, ", ".join(one.made_for)
    more: dict[str, object] = {"tags": tags, "pythons": ""}
    if python is None:
        return PYTHON, "wheel", Confidence.LIKELY, more
    if f"cp{python.major}{python.minor}" not in pythons:
        return PYTHON, "wheel", Confidence.CERTAIN, more
    return PLATFORM, "wheel", Confidence.LIKELY, more


def _withdrawn(one: Install, wanted: Wanted, searched: Searched) -> Told | None:
    """A nightly build of a day that the index no longer keeps."""
    day = wanted.nightly
    if day is None:
        return None
    kept = nightlies(one.offered or ())
    if kept and day < kept[0]:
        more: dict[str, object] = {"day": day, "oldest": kept[0]}
        return INDEX, "nightly-deleted", Confidence.CERTAIN, more
    if NIGHTLY in searched.indexes or not searched.told:
        return INDEX, "nightly-deleted", Confidence.LIKELY, {"day": day, "oldest": ""}
    return INDEX, "nightly-elsewhere", Confidence.CERTAIN, {"day": day}


def _never_built(wanted: Wanted, searched: Searched, offers: Offers) -> Told | None:
    """A variant or an index that never was."""
    strange = [name for name in searched.indexes if _never(name, offers)]
    if strange and searched.indexes <= {*strange, PYPI}:
        sure = Confidence.CERTAIN if _past(strange[0], offers) else Confidence.LIKELY
        more: dict[str, object] = {"variant": strange[0]}
        return INDEX, "no-such-index", sure, more
    if wanted.local and _never(wanted.local, offers):
        sure = Confidence.CERTAIN if _past(wanted.local, offers) else Confidence.LIKELY
        return INDEX, "no-such-variant", sure, {"variant": wanted.local}
    if wanted.version is None or _matching(wanted, offers):
        return None
    release = Version(wanted.version.base_version)
    newest = max(one.release for one in offers.of(wanted.name))
    if wanted.version.is_prerelease or release > newest:
        return None
    if _matching(without_local(wanted), offers):
        return INDEX, "no-such-build", Confidence.LIKELY, {}
    return INDEX, "no-such-release", Confidence.LIKELY, {}


def _never(name: str, offers: Offers) -> bool:
    return name.startswith("cu") and name[2:].isdigit() and name not in offers.indexes


def _past(name: str, offers: Offers) -> bool:
    """Whether this variant would be older than the newest one, so that no new one can be meant."""
    return len(name) < 5 or int(name[2:]) <= offers.newest_cuda


def _variants(wanted: Wanted, near: Iterable[str], m: Machine, offers: Offers) -> str:
    """The variants of that release on this system, the oldest CUDA first, nearest to the asked."""
    platform = platform_of(m)
    found = {
        one.place
        for one in _matching(without_local(wanted), offers)
        if platform in (None, one.platform) and one.place.startswith("cu")
    }
    asked = next((name for name in (wanted.local, *near) if name[2:].isdigit()), "")
    names = sorted(found, key=_number)
    if len(names) > _MOST_VARIANTS:
        target = _number(asked) or _number(names[-1])
        names = sorted(sorted(names, key=lambda name: abs(_number(name) - target))[:4], key=_number)
    return ", ".join(names)


_MOST_VARIANTS = 6


def _number(variant: str) -> int:
    """cu92 -> 92, cu118 -> 118, cu100 -> 100, others 0."""
    return int(variant[2:]) if variant[2:].isdigit() else 0


def _matching(wanted: Wanted, offers: Offers) -> tuple[Offer, ...]:
    return tuple(
        one
        for one in offers.of(wanted.name)
        if wanted.specifier.contains(one.version, prereleases=True)
    )


# --- weighing ------------------------------------------------------------------------------------


def _weighed(
    one: Install,
    wanted: Wanted,
    place: int,
    rest: tuple[Machine, Offers, Searched, dict[str, object]],
) -> Refused | None:
    m, offers, searched, values = rest
    matching = _matching(wanted, offers)
    guesses = list(_guesses(one, wanted, m, (offers, searched)))
    known = python_of(m) is not None and platform_of(m) is not None
    if not guesses:  # the list was cut, or is of another day: the tables decide alone
        bare = msgspec.structs.replace(one, offered=None)
        guesses = list(_guesses(bare, wanted, m, (offers, searched)))
    scores, shown = _scores(guesses, one, wanted, (m, searched, matching))
    total = sum(scores.values())
    if not total:
        return _only_said(one, wanted, place, values)
    best = max(scores, key=lambda cause: scores[cause])
    if one.lacks == "python" and scores.get(PYTHON):
        best = PYTHON
    share = max(scores[best] / total, _LIKELY if one.lacks and best != INDEX else 0.0)
    guess = shown.get(best) or next(iter(shown.values()))
    values |= _of_guess(guess, m, matching, best)
    sure = _confidence(share, known, best, searched, wanted)
    return Refused(best, sure, place, wanted, "weighed", values)


def _scores(
    guesses: list[Guess],
    one: Install,
    wanted: Wanted,
    rest: tuple[Machine, Searched, tuple[Offer, ...]],
) -> tuple[dict[str, float], dict[str, Guess]]:
    """How much speaks for each cause, and the guess that speaks most for it."""
    m, searched, matching = rest
    scores: dict[str, float] = {}
    shown: dict[str, Guess] = {}
    for guess in guesses:
        cause, explained = _cause(guess, wanted, matching, searched, one)
        if one.lacks == "platform" and cause == PYTHON:
            continue
        weight = guess.weight * (1.0 if explained else 0.01)
        if cause == PYTHON and searched.told and not _has(searched, matching, guess.platform):
            weight *= _BOTH
        scores[cause] = scores.get(cause, 0.0) + weight
        if cause not in shown or guess.weight > shown[cause].weight:
            shown[cause] = guess
    if scores and _may_be_32_bit(one, m, searched):
        scores[PLATFORM] = scores.get(PLATFORM, 0.0) + _32_BIT * sum(scores.values())
    return scores, shown


def _only_said(
    one: Install, wanted: Wanted, place: int, values: dict[str, object]
) -> Refused | None:
    """What the tool itself says is missing, where the tables have nothing to add."""
    if one.lacks not in ("python", "platform"):
        return None
    cause = PYTHON if one.lacks == "python" else PLATFORM
    return Refused(cause, Confidence.LIKELY, place, wanted, "said", values | {"pythons": ""})


def _confidence(
    share: float, known: bool, cause: str, searched: Searched, wanted: Wanted
) -> Confidence:
    sure = known and (cause != INDEX or searched.told) and OTHER not in searched.indexes
    if share > 0.999 and sure and wanted.name == "torch" and wanted.pinned:
        return Confidence.CERTAIN
    return Confidence.LIKELY if share >= _LIKELY else Confidence.POSSIBLE


def _guesses(
    one: Install, wanted: Wanted, m: Machine, rest: tuple[Offers, Searched]
) -> Iterator[Guess]:
    """Every Python and platform that is not excluded, with what the index would have offered it."""
    offers, searched = rest
    oldest = (1,) if wanted.name == "torch" else (0, 3)
    seen = None if one.offered is None else releases(one.offered, oldest)
    stubs = bool(one.offered) and not seen
    asked = min((offer.released for offer in _matching(wanted, offers)), default="")
    shown = Shown(seen, stubs, PYPI in searched.indexes, asked)
    places = _places(searched, offers)
    python = python_of(m)
    for platform, prior in _platforms(m).items():
        for name in (python,) if python else offers.pythons:
            listed = offers.listed(wanted.name, places, platform, name)
            day, fit = _fit(listed, shown, m, name)
            if fit > 0.004:
                yield Guess(platform, name, day, prior * fit * _common(name))


def _common(python: str) -> float:
    return _RARE.get(python.rstrip("t"), 1.0) * (0.2 if python.endswith("t") else 1.0)


def _places(searched: Searched, offers: Offers) -> frozenset[str]:
    if ALL in searched.indexes:
        return offers.indexes | (searched.indexes & {PYPI})
    return searched.indexes


def _platforms(m: Machine) -> dict[str, float]:
    known = platform_of(m)
    if known:
        return {known: 1.0}
    system = {"Linux": "linux", "Windows": "windows", "Darwin": "macos"}.get(
        m.platform.system or ""
    )
    if system is None:
        return _PLATFORMS
    return {name: weight for name, weight in _PLATFORMS.items() if name.startswith(system)}


def _fit(listed: tuple[Offer, ...], shown: Shown, m: Machine, python: str) -> tuple[str, float]:
    """The day on which the index would have listed what was seen, and how well it does."""
    first = PYTHON_RELEASED.get(python.rstrip("t"), "2016-01-01")
    seen = shown.seen
    if m.date is not None:
        had = frozenset(one.release for one in listed if one.released <= m.date)
        known = 1.0 if seen is None else _likeness(had, seen)
        return m.date, known if m.date >= first else 0.0
    if seen is None:
        return _NOW, 1.0
    if not seen:
        return _empty_until(listed, first, shown)
    newest = max(seen)
    had = frozenset(
        one.release for one in listed if one.release <= newest or one.released <= shown.asked
    )
    days = [one.released for one in listed if one.release == newest]
    return max([*days, shown.asked], default=_NOW), _likeness(had, seen)


_STUBS_UNTIL = "2021-10-01"
"""About when PyPI stopped to list the source releases of 2016."""


def _empty_until(listed: tuple[Offer, ...], first: str, shown: Shown) -> tuple[str, float]:
    """How long since this Python came out the index had nothing for it."""
    end = listed[0].released if listed else _NOW
    until = _STUBS_UNTIL if shown.stubs else _NOW
    start = max(first, "2019-01-01" if shown.stubs or not shown.pypi else _STUBS_UNTIL)
    span = _months(until) - _months(start)
    empty = _months(min(end, until)) - _months(start)
    if empty <= 0 or span <= 0:
        return end, 0.0
    eve = date.fromisoformat(min(end, until)) - timedelta(days=1)
    return eve.isoformat(), min(1.0, 3 * empty / span)


def _months(day: str) -> float:
    return int(day[:4]) * 12 + int(day[5:7]) + int(day[8:10]) / 31


def _likeness(had: frozenset[Version], seen: frozenset[Version]) -> float:
    either = len(had | seen)
    return 1.0 if not either else math.exp(-7 * (1 - len(had & seen) / either))


def _cause(
    guess: Guess, wanted: Wanted, matching: tuple[Offer, ...], searched: Searched, one: Install
) -> tuple[str, bool]:
    """The cause by the tables for one guess, and whether it explains the refusal at all."""
    here = [offer for offer in matching if offer.platform == guess.platform]
    if not wanted.pinned:
        here = [offer for offer in here if offer.released <= guess.day] or here
    if not here:
        return PLATFORM, True
    fitting = [offer for offer in here if guess.python in offer.pythons]
    if not wanted.pinned and not [offer for offer in fitting if offer.released <= guess.day]:
        fitting = []
    if not fitting:
        return PYTHON, True
    had = ALL in searched.indexes or any(offer.place in searched.indexes for offer in fitting)
    explained = not had or one.lacks is not None
    return INDEX, explained


def _has(searched: Searched, matching: tuple[Offer, ...], platform: str) -> bool:
    """Whether an index that was asked has the release for any Python of that platform."""
    if ALL in searched.indexes or OTHER in searched.indexes:
        return True
    return any(o.place in searched.indexes and o.platform == platform for o in matching)


def _may_be_32_bit(one: Install, m: Machine, searched: Searched) -> bool:
    """No index has anything for a 32-bit Python: it gets the oldest source releases or none."""
    if m.python.bits is not None or one.offered is None or releases(one.offered, (0, 3)):
        return False
    return searched.indexes <= {PYPI} and m.platform.system != "Darwin" and one.lacks is None


def _of_guess(
    guess: Guess, m: Machine, matching: tuple[Offer, ...], cause: str
) -> dict[str, object]:
    here = [one for one in matching if one.platform == guess.platform]
    pythons = {name for one in here for name in one.pythons if not name.endswith("t")}
    return {
        "python": python_of(m) or (guess.python if cause == PYTHON else ""),
        "platform": guess.platform,
        "pythons": ", ".join(sorted(pythons, key=Version)),
    }

"""Every Python and system behind an installer's answer that is not excluded, each with a weight.

What an index offers differs from Python to Python, from system to system and from day to day: the
versions that an installer was offered tell which of them it may have been.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from cudadoctor.knowledge.offers import PYPI, PYTHON_RELEASED, Offer, Offers
from cudadoctor.rules.pasted.asked_index import ALL, Searched, Wanted, releases
from cudadoctor.solver.demand import platform_of, python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.machine import Install, Machine


class Shown(NamedTuple):
    """What an install was offered: final releases, None where the report does not show them.

    stubs: only source releases of 2016, which PyPI listed for every Python until about 2021.
    asked: the day from which on what was wanted existed. today: the day of the tables.
    """

    seen: frozenset[Version] | None
    stubs: bool
    asked: str
    today: str


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


def guesses_of(
    one: Install, wanted: Wanted, m: Machine, rest: tuple[Offers, Searched]
) -> Iterator[Guess]:
    """Every Python and platform that is not excluded, with what the index would have offered it."""
    offers, searched = rest
    oldest = (1,) if wanted.name == "torch" else (0, 3)
    seen = None if one.offered is None else releases(one.offered, oldest)
    stubs = bool(one.offered) and not seen
    asked = min((offer.released for offer in builds_asked(wanted, offers)), default="")
    shown = Shown(seen, stubs, asked, offers.today)
    places = _places(searched, offers)
    python = python_of(m)
    for platform, prior in _platforms(m).items():
        for name in (python,) if python else offers.pythons:
            listed = offers.listed(wanted.name, places, platform, name)
            weight = prior * _common(name)
            if shown.seen == frozenset() and m.date is None:
                yield from _empty(listed, Guess(platform, name, "", weight), shown, rest, wanted)
                continue
            day, fit = _fit(listed, shown, m, name)
            if fit > 0.004:
                yield Guess(platform, name, day, weight * fit)


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
        return shown.today, 1.0
    newest = max(seen)
    had = frozenset(
        one.release for one in listed if one.release <= newest or one.released <= shown.asked
    )
    days = [one.released for one in listed if one.release == newest]
    return max([*days, shown.asked], default=shown.today), _likeness(had, seen)


_STUBS_UNTIL = "2021-10-01"
"""About when PyPI stopped to list the source releases of 2016."""
_AFTERGLOW = 9
"""Months for which people still ask an index after its last release."""
_HASTE = 2.0
"""Whoever takes a Python before any build for it is out fails; later on, only some do."""


def _empty(
    listed: tuple[Offer, ...],
    guess: Guess,
    shown: Shown,
    rest: tuple[Offers, Searched],
    wanted: Wanted,
) -> Iterator[Guess]:
    """The times at which the index had nothing: before any index had this Python, and after."""
    offers, searched = rest
    start, end = _asked_between(offers, searched, guess, shown)
    end = min([end, *(one.released for one in listed)])
    anywhere = [
        one.released
        for one in offers.of(wanted.name)
        if one.platform == guess.platform and guess.python in one.pythons
    ]
    first = min(anywhere, default=shown.today)
    for since, until, haste in ((start, min(end, first), _HASTE), (max(start, first), end, 1.0)):
        months = _months(until) - _months(since)
        if months > 0:
            eve = date.fromisoformat(until) - timedelta(days=1)
            yield guess._replace(day=eve.isoformat(), weight=guess.weight * haste * months / 12)


def _asked_between(
    offers: Offers, searched: Searched, guess: Guess, shown: Shown
) -> tuple[str, str]:
    """From when to when this Python may have asked these indexes."""
    start = PYTHON_RELEASED.get(guess.python.rstrip("t"), "2016-01-01")
    if PYPI in searched.indexes or not searched.indexes & offers.indexes:
        until = _STUBS_UNTIL if shown.stubs else shown.today
        return max(start, "2019-01-01" if shown.stubs else _STUBS_UNTIL), until
    days = [one.released for one in offers.torch if one.place in searched.indexes]
    last = date.fromisoformat(max(days)) + timedelta(days=30 * _AFTERGLOW)
    end = min(last.isoformat(), shown.today)
    return (max(start, min(days)), end) if start < end else (start, shown.today)


def _months(day: str) -> float:
    return int(day[:4]) * 12 + int(day[5:7]) + int(day[8:10]) / 31


def _likeness(had: frozenset[Version], seen: frozenset[Version]) -> float:
    either = len(had | seen)
    return 1.0 if not either else math.exp(-7 * (1 - len(had & seen) / either))


def builds_asked(wanted: Wanted, offers: Offers) -> tuple[Offer, ...]:
    return tuple(
        one
        for one in offers.of(wanted.name)
        if wanted.specifier.contains(one.version, prereleases=True)
    )

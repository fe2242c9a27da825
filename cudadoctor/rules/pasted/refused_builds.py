"""Why an installer found no torch: what the tables say of every Python and system it may run on.

Where the report tells Python and system, the tables decide. Where it does not, each pair that would
have led to what the installer said counts by how well it explains the versions it was offered, and
the cause that most of them share is the likely one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.offers import PYPI, Offer, Offers
from cudadoctor.model.findings import Confidence
from cudadoctor.model.machine import Machine
from cudadoctor.model.versions import whole
from cudadoctor.rules.pasted.asked_index import (
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
from cudadoctor.rules.pasted.weighed_guesses import Guess, builds_asked, guesses_of
from cudadoctor.solver.demand import PLATFORM_OF, platform_of, python_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Install, Interpreter, Platform

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


_32_BIT = 0.06
_BOTH = 0.25
"""Less for a wrong Python where the index has the release for no Python: one fault suffices."""
_LIKELY = 0.72
"""Share of what speaks for a cause from which on it is likely."""


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
    searched = searched_by(one)
    if wall := _walled(m, wanted, searched):
        cause, kind, sure, more = wall
        said = {"wanted": wanted.text, "python": python_of(m) or ""}
        return Refused(cause, sure, place, wanted, kind, said | more)
    if one.lacks == "platform" or (one.tool == "uv" and one.lacks is None and one.offered is None):
        wanted = without_local(wanted)
    values: dict[str, object] = {"wanted": wanted.text, "python": python_of(m) or ""}
    values["index"] = ", ".join(sorted(searched.indexes))
    values["variants"] = _variants(wanted, searched.indexes, m, offers)
    certain = (
        _wrong_wheel(one, m)
        or _withdrawn(one, wanted, searched)
        or _never_built(wanted, searched, offers)
        or _other_variants(one, wanted, m)
    )
    if certain is not None:
        cause, kind, sure, more = certain
        return Refused(cause, sure, place, wanted, kind, values | more)
    return _weighed(one, wanted, place, (m, offers, searched, values))


Told = tuple[str, str, Confidence, dict[str, object]]


def _walled(m: Machine, wanted: Wanted, searched: Searched) -> Told | None:
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
    elif here.system == "Darwin" and _cuda_only(wanted, searched):
        what = "macOS with CUDA"
    elif here.system == "Darwin" and machine == "arm64" and wanted.local == "cpu":
        return INDEX, "", Confidence.LIKELY, {"variants": ""}
    else:
        return None
    return PLATFORM, "wall", Confidence.CERTAIN, {"what": what}


def _cuda_only(wanted: Wanted, searched: Searched) -> bool:
    """Whether nothing but builds for CUDA was asked for."""
    variants = [name for name in searched.indexes if _number(name)]
    return bool(_number(wanted.local)) or (bool(variants) and searched.indexes == {*variants})


_SYSTEMS = (
    *(("manylinux", "Linux"), ("musllinux", "Linux"), ("linux", "Linux")),
    *(("win", "Windows"), ("macosx", "Darwin")),
)
"""How the platform tags of wheels begin."""


def _wrong_wheel(one: Install, m: Machine) -> Told | None:
    """A wheel that was named by its file and is made for another Python or system."""
    pythons = [tag for tag in one.made_for if tag.startswith("cp")]
    if one.tool != "pip" or not pythons:
        return None
    python, tags = m.python.version, ", ".join(one.made_for)
    more: dict[str, object] = {"tags": tags, "pythons": ""}
    systems = {name for tag in one.made_for for mark, name in _SYSTEMS if tag.startswith(mark)}
    if m.platform.system and systems and m.platform.system not in systems:
        return PLATFORM, "wheel", Confidence.LIKELY, more
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
    if wanted.version is None or builds_asked(wanted, offers):
        return None
    release = Version(wanted.version.base_version)
    newest = max(one.release for one in offers.of(wanted.name))
    if wanted.version.is_prerelease or release > newest:
        return None
    if builds_asked(without_local(wanted), offers):
        return INDEX, "no-such-build", Confidence.LIKELY, {}
    return INDEX, "no-such-release", Confidence.LIKELY, {}


def _other_variants(one: Install, wanted: Wanted, m: Machine) -> Told | None:
    """The release was offered in other variants than the one that was asked for."""
    if not _number(wanted.local) or wanted.version is None or m.platform.machine == "aarch64":
        return None
    release = wanted.version.public
    had = [text for text in one.offered or () if text.startswith(f"{release}+")]
    if not had:
        return None
    return INDEX, "other-variants", Confidence.LIKELY, {"had": ", ".join(had)}


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
        for one in builds_asked(without_local(wanted), offers)
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
    return whole(variant[2:]) or 0


# --- weighing ------------------------------------------------------------------------------------


def _weighed(
    one: Install,
    wanted: Wanted,
    place: int,
    rest: tuple[Machine, Offers, Searched, dict[str, object]],
) -> Refused | None:
    m, offers, searched, values = rest
    matching = builds_asked(wanted, offers)
    guesses = list(guesses_of(one, wanted, m, (offers, searched)))
    known = python_of(m) is not None and platform_of(m) is not None
    if not guesses:  # the list was cut, or is of another day: the tables decide alone
        bare = msgspec.structs.replace(one, offered=None)
        guesses = list(guesses_of(bare, wanted, m, (offers, searched)))
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


_LEFT = {"platform": (PLATFORM, INDEX), "release": (INDEX,)}
"""What an installer says that is lacking -> the causes that are left."""


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
        if cause not in _LEFT.get(one.lacks or "", (cause,)):
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
    cause = {"python": PYTHON, "platform": PLATFORM, "release": INDEX}.get(one.lacks or "")
    if cause is None:
        return None
    return Refused(cause, Confidence.LIKELY, place, wanted, "said", values | {"pythons": ""})


def _confidence(
    share: float, known: bool, cause: str, searched: Searched, wanted: Wanted
) -> Confidence:
    sure = known and (cause != INDEX or searched.told) and OTHER not in searched.indexes
    if share > 0.999 and sure and wanted.name == "torch" and wanted.pinned:
        return Confidence.CERTAIN
    return Confidence.LIKELY if share >= _LIKELY else Confidence.POSSIBLE


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

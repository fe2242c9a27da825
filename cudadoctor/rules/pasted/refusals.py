"""Why an installer found no torch: what the tables say of every Python and system it may run on.

Where the report tells Python and system, the tables decide. Where it does not, each pair that would
have led to what the installer said counts by how well it explains the versions it was offered, and
the cause that most of them share is the likely one.
"""

import math
import re
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.offers import PYPI, PYTHON_RELEASED, Offer, Offers
from cudadoctor.model.findings import Confidence
from cudadoctor.model.machine import Install, Interpreter, Machine, Platform
from cudadoctor.model.versions import version_of, whole
from cudadoctor.solver.demand import PLATFORM_OF, platform_of, python_of

ALL = "all"
"""The root of torch's index, which lists the builds of every variant."""
NIGHTLY = "nightly"
OTHER = "other"
"""An index of somebody else: what it has is not known."""
CONDA = frozenset({"conda", "mamba", "micromamba"})


class Searched(NamedTuple):
    """indexes: names of variants, "pypi", "all", "nightly", "other".

    told: the report shows them; else they are supposed.
    """

    indexes: frozenset[str]
    told: bool


class Wanted(NamedTuple):
    """A requirement in its parts. local: the variant it names (cu118), "" none."""

    name: str
    specifier: SpecifierSet
    text: str
    local: str

    @property
    def pinned(self) -> bool:
        return any(one.operator in ("==", "===", "~=") for one in self.specifier)

    @property
    def version(self) -> Version | None:
        """The one release that it asks for."""
        for one in self.specifier:
            if one.operator in ("==", "===") and not one.version.endswith("*"):
                return version_of(one.version)
        return None

    @property
    def nightly(self) -> str | None:
        """The day of the nightly build that it asks for."""
        found = re.search(r"dev(\d{8})", self.text)
        return found[1] if found else None


_VARIANT = re.compile(r"(?:^|[/_.=-])(cu\d{2,3}|cpu)(?:$|[/_.-])")
_ROOT = re.compile(
    r"(?:^|//)download\.pytorch\.org/whl/?(?:torch_stable\.html|torch/?)?$|torch_stable\.html$"
)
_PYPI = re.compile(r"pypi|/simple/?$|pythonhosted|mirrors?\.|douban|tuna", re.I)


def index_of(url: str) -> str:
    """The index behind a URL, or the name that uv and poetry give it."""
    url = url.partition("=")[2] if re.match(r"[\w-]{1,40}=https?:", url) else url
    low = url.lower().rstrip("/")
    if "nightly" in low or "/test" in low:
        return NIGHTLY
    if "rocm" in low or "xpu" in low or "jetson" in low or "/lts/" in low:
        return OTHER
    if found := _VARIANT.search(low):
        return found[1]
    if _ROOT.search(low):
        return ALL
    return PYPI if _PYPI.search(low) else OTHER


def searched_by(one: Install) -> Searched:
    """The indexes that an install asked. pip's own report of them counts as it stands."""
    named = frozenset(index_of(url) for url in one.indexes)
    offered = {local for text in one.offered or () if (local := text.partition("+")[2])}
    hinted = frozenset(name for name in offered if re.fullmatch(r"cu\d+|cpu", name))
    if len(hinted) > 2:  # the root of torch's index lists them all
        hinted = frozenset({ALL})
    if not named:
        plain = not offered or not one.offered or any("+" not in text for text in one.offered)
        return Searched(hinted | ({PYPI} if plain else set()), told=bool(offered))
    alone = "--index-url" in one.options or PYPI in named
    return Searched(named | (frozenset() if alone else {PYPI}), told=True)


_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*?)(?:\[[^\]]*\])?\s*@?\s*((?:[=<>~!^].*|\d.*)?)$")


def wanted_by(text: str) -> Wanted | None:
    """A requirement as pip reads it, None for what is none."""
    found = _REQUIREMENT.match(text.strip())
    if found is None:
        return None
    spec = found[2].replace("^", ">=").strip()
    spec = f"=={spec}" if spec[:1].isdigit() else spec
    spec = re.sub(r"^=(?=\d)", "==", spec)
    try:
        specifier = SpecifierSet(spec)
        local = re.search(r"\+(\w+)", spec)
        return Wanted(
            name=re.sub(r"[-_.]+", "-", found[1]).lower(),
            specifier=specifier,
            text=text.strip(),
            local=local[1].lower() if local else "",
        )
    except ValueError:
        return None


def without_local(wanted: Wanted) -> Wanted:
    """The same release in any build."""
    plain = SpecifierSet(re.sub(r"\+\w+", "", str(wanted.specifier)))
    return wanted._replace(specifier=plain, local="")


def releases(versions: tuple[str, ...], oldest: tuple[int, ...] = (1,)) -> frozenset[Version]:
    """The final releases from the oldest on among versions that were offered."""
    found: set[Version] = set()
    for text in versions:
        try:
            one = Version(text)
        except ValueError:
            continue
        if not one.is_prerelease and one.release >= oldest and one.post is None:
            found.add(Version(one.base_version))
    return frozenset(found)


def nightlies(versions: tuple[str, ...]) -> tuple[str, ...]:
    """The days of the nightly builds among versions that were offered."""
    return tuple(sorted(m[1] for text in versions if (m := re.search(r"dev(\d{8})", text))))


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
        offer.released
        for offer in offers.of(wanted.name)
        if offer.platform == guess.platform and guess.python in offer.pythons
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
    days = [offer.released for offer in offers.torch if offer.place in searched.indexes]
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
        offer
        for offer in offers.of(wanted.name)
        if wanted.specifier.contains(offer.version, prereleases=True)
    )


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
    newest = max(offer.release for offer in offers.of(wanted.name))
    if wanted.version.is_prerelease or Version(wanted.version.base_version) > newest:
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
        offer.place
        for offer in builds_asked(without_local(wanted), offers)
        if platform in (None, offer.platform) and offer.place.startswith("cu")
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
    old = m.python.bits is None and one.offered is not None and not releases(one.offered, (0, 3))
    elsewhere = searched.indexes <= {PYPI} and m.platform.system != "Darwin"
    return old and elsewhere and one.lacks is None


def _of_guess(
    guess: Guess, m: Machine, matching: tuple[Offer, ...], cause: str
) -> dict[str, object]:
    here = [offer for offer in matching if offer.platform == guess.platform]
    pythons = {name for offer in here for name in offer.pythons if not name.endswith("t")}
    return {
        "python": python_of(m) or (guess.python if cause == PYTHON else ""),
        "platform": guess.platform,
        "pythons": ", ".join(sorted(pythons, key=Version)),
    }


PYTORCH_CUDA = ("11.6", "11.7", "11.8", "12.1", "12.4")
"""The CUDA versions of the package pytorch-cuda; its channel ended with torch 2.5."""
_CUDA = frozenset({"pytorch-cuda", "cudatoolkit", "cuda-toolkit", "pytorch-gpu", "cuda-version"})

_CUDA |= {"cuda", "cuda-runtime", "cuda-cudart", "cuda-libraries"}

_TORCH = {"pytorch": "torch", "torchvision": "torchvision", "torchaudio": "torchaudio"}


def conda_refusals(m: Machine, kb: Knowledge) -> Iterator[Refused]:
    """Every refusal of torch, or of what selects its CUDA version, by conda or mamba."""
    for place, one in enumerate(m.installs or ()):
        if one.tool not in CONDA or not one.refused:
            continue
        name, version = _parts(one.refused)
        wanted = wanted_by(f"{name}=={version}" if version else name)
        if wanted is None or name not in {*_CUDA, *_TORCH}:
            continue
        cause, sure, kind = _conda_cause(one, name, version, m, kb)
        shown = f"{name}={version}" if version else name
        values: dict[str, object] = {
            "wanted": shown,
            "variants": ", ".join(PYTORCH_CUDA),
            "pythons": "",
            "variant": shown,
        }
        yield Refused(cause, sure, place, wanted, kind, values)


def _parts(text: str) -> tuple[str, str]:
    """Name and version of a conda requirement, without its build."""
    found = re.match(r"(?:[\w.-]+::)?([\w.-]+?)(?:\[[^\]]*\])?[=<>! ]+(\d[\w.]*)", text)
    if found:
        return found[1].lower(), found[2].rstrip(".*")
    return re.split(r"[=<>!\[ ]", text.rpartition("::")[2])[0].lower(), ""


def _conda_cause(
    one: Install, name: str, version: str, m: Machine, kb: Knowledge
) -> tuple[str, Confidence, str]:
    platform = platform_of(m) or ""
    if (m.platform.machine or "") in ("x86", "i686", "armv7l"):
        return PLATFORM, Confidence.LIKELY, "conda-channel"
    if name in _CUDA and (m.platform.system == "Darwin" or platform == "linux_aarch64"):
        return PLATFORM, Confidence.LIKELY, "conda-channel"
    if name == "pytorch-cuda" and version and ".".join(version.split(".")[:2]) not in PYTORCH_CUDA:
        return INDEX, Confidence.CERTAIN, "conda-variant"
    if one.lacks == "python":
        return PYTHON, Confidence.LIKELY, "said"
    if name in _TORCH and version and _not_for_python(_TORCH[name], version, m, kb):
        return PYTHON, Confidence.LIKELY, "said"
    return INDEX, Confidence.LIKELY, "conda-channel"


def _not_for_python(name: str, version: str, m: Machine, kb: Knowledge) -> bool:
    python, platform = python_of(m), platform_of(m)
    try:
        release = Version(version).release
    except ValueError:
        return False
    rows = [
        offer
        for offer in offers_of(kb).of(name)
        if offer.version.release[: len(release)] == release
        and (platform is None or offer.platform == platform)
    ]
    return bool(rows) and python is not None and not any(python in offer.pythons for offer in rows)

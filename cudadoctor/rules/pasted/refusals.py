"""Why an installer found no torch: what the tables say of every Python and system it may run on.

Where the report tells Python and system, the tables decide. Where it does not, each pair that would
have led to what the installer said counts by how well it explains the versions it was offered, and
the cause that most of them share is the likely one.
"""

import math
import re
from collections.abc import Iterator
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.companions import LAST_AUDIO
from cudadoctor.knowledge.offers import PYPI, PYTHON_RELEASED, Offer, Offers
from cudadoctor.model.findings import CERTAIN, LIKELY, POSSIBLE, Confidence
from cudadoctor.model.machine import (
    Install,
    Interpreter,
    Machine,
    OptStr,
    OptVersion,
    Platform,
    Strings,
    StrPair,
)
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

    known: the report shows them; else they are supposed.
    """

    indexes: frozenset[str]
    known: bool


class Wanted(NamedTuple):
    """A requirement in its parts. local: the variant it names (cu118), "" none."""

    name: str
    specifier: SpecifierSet
    text: str
    local: str

    @property
    def pinned(self) -> bool:
        return any(bound.operator in ("==", "===", "~=") for bound in self.specifier)

    @property
    def version(self) -> OptVersion:
        """The one release that it asks for."""
        exact = (
            bound.version
            for bound in self.specifier
            if bound.operator in ("==", "===") and not bound.version.endswith("*")
        )
        return version_of(next(exact, None))

    @property
    def nightly(self) -> OptStr:
        """The day of the nightly build that it asks for."""
        found = re.search(r"dev(\d{8})", self.text)
        return found[1] if found else None


_VARIANT = re.compile(r"(?:^|[/_.=-])(cu\d{2,3}|cpu)(?:$|[/_.-])")
_ROOT = re.compile(
    r"(?:^|//)download\.pytorch\.org/whl/?(?:torch_stable\.html|torch/?)?$|torch_stable\.html$"
)
_PYPI = re.compile(r"(?i)pypi|/simple/?$|pythonhosted|mirrors?\.|douban|tuna")


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


def searched_by(install: Install) -> Searched:
    """The indexes that an install asked. pip's own report of them counts as it stands."""
    named = frozenset(map(index_of, install.indexes))
    if named:
        alone = "--index-url" in install.options or PYPI in named
        return Searched(named | (frozenset() if alone else {PYPI}), known=True)
    offered = {text.partition("+")[2] for text in install.offered or ()}
    hinted = {name for name in offered if re.fullmatch(r"cu\d+|cpu", name)}
    if len(hinted) > 2:  # the root of torch's index lists them all
        hinted = {ALL}
    plain = {PYPI} if "" in offered or not any(offered) else set()
    return Searched(frozenset(hinted | plain), known=any(offered))


_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*?)(?:\[[^\]]*\])?\s*@?\s*((?:[=<>~!^].*|\d.*)?)$")


def wanted_by(text: str) -> Wanted | None:
    """A requirement as pip reads it, None for what is none."""
    found = _REQUIREMENT.match(text.strip())
    if found is None:
        return None
    spec = re.sub(r"^=?(?=\d)", "==", found[2].replace("^", ">=").strip())
    local = re.search(r"\+(\w+)", spec)
    try:
        return Wanted(
            name=canonicalize_name(found[1]),
            specifier=SpecifierSet(spec),
            text=text.strip(),
            local=local[1].lower() if local else "",
        )
    except ValueError:
        return None


def without_local(wanted: Wanted) -> Wanted:
    """The same release in any build."""
    plain = SpecifierSet(re.sub(r"\+\w+", "", str(wanted.specifier)))
    return wanted._replace(specifier=plain, local="")


def releases(versions: Strings, oldest: tuple[int, ...] = (1,)) -> frozenset[Version]:
    """The final releases from the oldest on among versions that were offered."""
    return frozenset(
        Version(version.base_version)
        for version in filter(None, map(version_of, versions))
        if not version.is_prerelease and version.release >= oldest and version.post is None
    )


class Case(NamedTuple):
    """One refused requirement, and what decides why. offers: what the indexes had."""

    install: Install
    place: int
    wanted: Wanted
    searched: Searched
    m: Machine
    offers: Offers

    @property
    def matching(self) -> tuple[Offer, ...]:
        return builds_asked(self.wanted, self.offers)


class Shown(NamedTuple):
    """What an install was offered: final releases, None where the report does not show them.

    stubs: only source releases of 2016, which PyPI listed for every Python until about 2021.
    asked: the day from which on what was wanted existed.
    """

    seen: frozenset[Version] | None
    stubs: bool
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


def guesses_of(case: Case) -> Iterator[Guess]:
    """Every Python and platform that is not excluded, with what the index would have offered it."""
    m, offers, offered = case.m, case.offers, case.install.offered
    oldest = (1,) if case.wanted.name == "torch" else (0, 3)
    seen = None if offered is None else releases(offered, oldest)
    asked = min((offer.released for offer in case.matching), default="")
    shown = Shown(seen, bool(offered) and not seen, asked)
    places = case.searched.indexes
    if ALL in places:
        places = offers.indexes | (places & {PYPI})
    python = python_of(m)
    for platform, prior in _platforms(m).items():
        for name in (python,) if python else offers.pythons:
            listed = offers.listed(case.wanted.name, places, platform, name)
            weight = prior * _RARE.get(name.rstrip("t"), 1.0) * (0.2 if name.endswith("t") else 1.0)
            if seen == frozenset() and m.date is None:
                yield from _empty(listed, Guess(platform, name, "", weight), shown, case)
            else:
                day, fit = _fit(listed, shown, case, name)
                if fit > 0.004:
                    yield Guess(platform, name, day, weight * fit)


def _platforms(m: Machine) -> dict[str, float]:
    known = platform_of(m)
    if known:
        return {known: 1.0}
    system = {"Darwin": "macos"}.get(m.platform.system or "", (m.platform.system or "").lower())
    ours = {name: weight for name, weight in _PLATFORMS.items() if name.startswith(system)}
    return ours or _PLATFORMS


def _fit(listed: tuple[Offer, ...], shown: Shown, case: Case, python: str) -> tuple[str, float]:
    """The day on which the index would have listed what was seen, and how well it does."""
    seen, written = shown.seen, case.m.date
    if written is not None:
        had = frozenset(offer.release for offer in listed if offer.released <= written)
        known = 1.0 if seen is None else _likeness(had, seen)
        return written, known if written >= _first_day(python) else 0.0
    if seen is None:
        return case.offers.today, 1.0
    newest = max(seen)
    had = frozenset(
        offer.release
        for offer in listed
        if offer.release <= newest or offer.released <= shown.asked
    )
    days = [offer.released for offer in listed if offer.release == newest]
    return max([*days, shown.asked]), _likeness(had, seen)


def _first_day(python: str) -> str:
    return PYTHON_RELEASED.get(python.rstrip("t"), "2016-01-01")


_STUBS_UNTIL = "2021-10-01"
"""About when PyPI stopped to list the source releases of 2016."""
_AFTERGLOW = 9
"""Months for which people still ask an index after its last release."""
_HASTE = 2.0
"""Whoever takes a Python before any build for it is out fails; later on, only some do."""


def _empty(listed: tuple[Offer, ...], guess: Guess, shown: Shown, case: Case) -> Iterator[Guess]:
    """The times at which the index had nothing: before any index had this Python, and after."""
    start, end = _asked_between(guess, shown, case)
    end = min([end, *(offer.released for offer in listed)])
    anywhere = (
        offer.released
        for offer in case.offers.of(case.wanted.name)
        if offer.platform == guess.platform and guess.python in offer.pythons
    )
    first = min(anywhere, default=case.offers.today)
    for since, until, haste in ((start, min(end, first), _HASTE), (max(start, first), end, 1.0)):
        months = _months(until) - _months(since)
        if months > 0:
            eve = date.fromisoformat(until) - timedelta(days=1)
            yield guess._replace(day=eve.isoformat(), weight=guess.weight * haste * months / 12)


def _asked_between(guess: Guess, shown: Shown, case: Case) -> StrPair:
    """From when to when this Python may have asked these indexes."""
    start, offers, indexes = _first_day(guess.python), case.offers, case.searched.indexes
    if shown.stubs and (PYPI in indexes or not indexes & offers.indexes):
        return max(start, "2019-01-01"), _STUBS_UNTIL
    if PYPI in indexes or not indexes & offers.indexes:
        return max(start, _STUBS_UNTIL), offers.today
    days = [offer.released for offer in offers.torch if offer.place in indexes]
    last = date.fromisoformat(max(days)) + timedelta(days=30 * _AFTERGLOW)
    end = min(last.isoformat(), offers.today)
    return (max(start, min(days)), end) if start < end else (start, offers.today)


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

    place: number of the install. values: python, platform, index, variants, pythons ... for the
    sentence.
    """

    cause: str
    confidence: Confidence
    place: int
    kind: str
    values: dict[str, str]


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
    day: OptStr,
    kb: Knowledge,
) -> tuple[Refused, ...]:
    """Several rules ask for the same: the tables are gone through once."""
    m = Machine(installs=installs, platform=platform, python=python, date=day)
    offers = offers_of(kb)
    cases = (
        Case(install, place, wanted, searched_by(install), m, offers)
        for place, install in enumerate(installs)
        if install.refused and install.tool not in CONDA
        if (wanted := wanted_by(install.refused))
    )
    return tuple(refused for case in cases if (refused := _judged(case)))


def _judged(case: Case) -> Refused | None:
    if not case.offers.of(case.wanted.name):
        return None
    install = case.install
    values = {"wanted": case.wanted.text, "python": python_of(case.m) or ""}
    reason = _walled(case)
    if reason is None:
        lacks_build = install.tool == "uv" and install.lacks is None and install.offered is None
        if install.lacks == "platform" or lacks_build:
            case = case._replace(wanted=without_local(case.wanted))
        values["index"] = ", ".join(sorted(case.searched.indexes))
        values["variants"] = _variants(case)
        causes = (_wrong_wheel, _withdrawn, _never_built, _other_variants)
        reason = next(filter(None, (judge(case) for judge in causes)), None)
    if reason is None:
        return _weighed(case, values)
    cause, kind, sure, more = reason
    return Refused(cause, sure, case.place, kind, values | more)


Reason = tuple[str, str, Confidence, dict[str, str]]


def _walled(case: Case) -> Reason | None:
    """What no Python of the usual kind could cure."""
    here, machine = case.m.platform, (case.m.platform.machine or "").lower()
    system = here.system
    if here.libc == "musl":
        what = "musl, Alpine's C library"
    elif case.m.python.bits == 32 or machine in ("x86", "i686", "i386"):
        what = "32-bit Python"
    elif system and machine and (system, machine) not in PLATFORM_OF:
        what = f"{system} on {machine}"
    elif system == "Windows" and machine in ("aarch64", "arm64"):
        return PLATFORM, "wall", LIKELY, {"what": "Windows on ARM"}
    elif system == "Darwin" and _cuda_only(case.wanted, case.searched):
        what = "macOS with CUDA"
    elif system == "Darwin" and machine == "arm64" and case.wanted.local == "cpu":
        return INDEX, "", LIKELY, {"variants": ""}
    else:
        return None
    return PLATFORM, "wall", CERTAIN, {"what": what}


def _cuda_only(wanted: Wanted, searched: Searched) -> bool:
    """Whether nothing but builds for CUDA was asked for."""
    variants = [name for name in searched.indexes if _number(name)]
    return bool(_number(wanted.local)) or (bool(variants) and searched.indexes == {*variants})


_SYSTEMS = {
    "manylinux": "Linux",
    "musllinux": "Linux",
    "linux": "Linux",
    "win": "Windows",
    "macosx": "Darwin",
}
"""How the platform tags of wheels begin."""


def _wrong_wheel(case: Case) -> Reason | None:
    """A wheel that was named by its file and is made for another Python or system."""
    made_for, python, system = case.install.made_for, case.m.python.version, case.m.platform.system
    pythons = [tag for tag in made_for if tag.startswith("cp")]
    if case.install.tool != "pip" or not pythons:
        return None
    systems = {_SYSTEMS[mark] for tag in made_for for mark in _SYSTEMS if tag.startswith(mark)}
    other = system and systems and system not in systems
    fits = python is not None and f"cp{python.major}{python.minor}" in pythons
    cause = PLATFORM if other or fits else PYTHON
    sure = CERTAIN if python is not None and cause == PYTHON else LIKELY
    return cause, "wheel", sure, {"tags": ", ".join(made_for), "pythons": ""}


def _withdrawn(case: Case) -> Reason | None:
    """A nightly build of a day that the index no longer keeps."""
    day = case.wanted.nightly
    if day is None:
        return None
    kept = re.findall(r"dev(\d{8})", " ".join(case.install.offered or ()))
    if kept and day < min(kept):
        return INDEX, "nightly-deleted", CERTAIN, {"day": day, "oldest": min(kept)}
    if NIGHTLY in case.searched.indexes or not case.searched.known:
        return INDEX, "nightly-deleted", LIKELY, {"day": day, "oldest": ""}
    return INDEX, "nightly-elsewhere", CERTAIN, {"day": day}


def _never_built(case: Case) -> Reason | None:
    """A variant or an index that never was."""
    wanted, offers, indexes = case.wanted, case.offers, case.searched.indexes
    unknown = [name for name in indexes if _never(name, offers)]
    index = unknown[0] if unknown and indexes <= {*unknown, PYPI} else ""
    variant = index or wanted.local
    if _never(variant, offers):
        # Older than the newest one, no new one can be meant.
        past = len(variant) < 5 or _number(variant) <= offers.newest_cuda
        kind = "no-such-index" if index else "no-such-variant"
        return INDEX, kind, CERTAIN if past else LIKELY, {"variant": variant}
    if wanted.version is None or case.matching:
        return None
    newest = max(offer.release for offer in offers.of(wanted.name))
    ended = wanted.name == "torchaudio" and str(newest) == LAST_AUDIO
    above = wanted.version.major == newest.major and wanted.version.release > newest.release
    if wanted.version.is_prerelease or (above and not ended):
        return None
    built = builds_asked(without_local(wanted), offers)
    return INDEX, "no-such-build" if built else "no-such-release", LIKELY, {}


def _other_variants(case: Case) -> Reason | None:
    """The release was offered in other variants than the one that was asked for."""
    version = case.wanted.version
    if not _number(case.wanted.local) or version is None or case.m.platform.machine == "aarch64":
        return None
    offered = case.install.offered or ()
    had = ", ".join(text for text in offered if text.startswith(f"{version.public}+"))
    return (INDEX, "other-variants", LIKELY, {"had": had}) if had else None


def _never(name: str, offers: Offers) -> bool:
    return name.startswith("cu") and name[2:].isdigit() and name not in offers.indexes


def _variants(case: Case) -> str:
    """The variants of that release on this system, the oldest CUDA first, nearest to the asked."""
    platform = platform_of(case.m)
    found = {
        offer.place
        for offer in builds_asked(without_local(case.wanted), case.offers)
        if platform in (None, offer.platform) and offer.place.startswith("cu")
    }
    names = sorted(found, key=_number)
    if len(names) > _MOST_VARIANTS:
        asked = map(_number, (case.wanted.local, *case.searched.indexes, names[-1]))
        target = next(filter(None, asked))
        names = sorted(sorted(names, key=lambda name: abs(_number(name) - target))[:4], key=_number)
    return ", ".join(names)


_MOST_VARIANTS = 6


def _number(variant: str) -> int:
    """cu92 -> 92, cu118 -> 118, cu100 -> 100, others 0."""
    return whole(variant[2:]) or 0


# --- weighing ------------------------------------------------------------------------------------


def _weighed(case: Case, values: dict[str, str]) -> Refused | None:
    """The cause for which most of the guesses speak."""
    lacks = case.install.lacks
    # Without guesses the list was cut, or is of another day: the tables decide alone.
    unlisted = case._replace(install=replace(case.install, offered=None))
    scores, shown = _scores(list(guesses_of(case)) or list(guesses_of(unlisted)), case)
    total = sum(scores.values())
    if not total:
        cause = _BY_LACK.get(lacks or "")
        if cause is None:
            return None
        return Refused(cause, LIKELY, case.place, "said", values | {"pythons": ""})
    best = max(scores, key=lambda cause: scores[cause])
    if lacks == "python" and scores.get(PYTHON):
        best = PYTHON
    share = max(scores[best] / total, _LIKELY if lacks and best != INDEX else 0.0)
    guess = shown.get(best) or next(iter(shown.values()))
    here = [offer for offer in case.matching if offer.platform == guess.platform]
    pythons = {name for offer in here for name in offer.pythons if not name.endswith("t")}
    values |= {
        "python": python_of(case.m) or (guess.python if best == PYTHON else ""),
        "platform": guess.platform,
        "pythons": ", ".join(sorted(pythons, key=Version)),
    }
    return Refused(best, _confidence(share, best, case), case.place, "weighed", values)


_BY_LACK = {"python": PYTHON, "platform": PLATFORM, "release": INDEX}
"""What an installer says that is lacking -> the cause, where the tables have nothing to add."""
_LEFT = {"platform": (PLATFORM, INDEX), "release": (INDEX,)}
"""What an installer says that is lacking -> the causes that are left."""


def _scores(guesses: list[Guess], case: Case) -> tuple[dict[str, float], dict[str, Guess]]:
    """How much speaks for each cause, and the guess that speaks most for it."""
    scores: dict[str, float] = {}
    shown: dict[str, Guess] = {}
    indexes, matching = case.searched.indexes, case.matching
    # Whether an index that was asked has the release for any Python of a platform.
    asked = {offer.platform for offer in matching if offer.place in indexes}
    anywhere = not indexes.isdisjoint({ALL, OTHER}) or not case.searched.known
    for guess in guesses:
        cause, explained = _cause(guess, matching, case)
        if cause not in _LEFT.get(case.install.lacks or "", (cause,)):
            continue
        weight = guess.weight * (1.0 if explained else 0.01)
        if cause == PYTHON and not anywhere and guess.platform not in asked:
            weight *= _BOTH
        scores[cause] = scores.get(cause, 0.0) + weight
        shown[cause] = max(shown.get(cause, guess), guess, key=lambda guess: guess.weight)
    if scores and _may_be_32_bit(case):
        scores[PLATFORM] = scores.get(PLATFORM, 0.0) + _32_BIT * sum(scores.values())
    return scores, shown


def _confidence(share: float, cause: str, case: Case) -> Confidence:
    known = python_of(case.m) is not None and platform_of(case.m) is not None
    sure = known and (cause != INDEX or case.searched.known) and OTHER not in case.searched.indexes
    if share > 0.999 and sure and case.wanted.name == "torch" and case.wanted.pinned:
        return CERTAIN
    return LIKELY if share >= _LIKELY else POSSIBLE


def _cause(guess: Guess, matching: tuple[Offer, ...], case: Case) -> tuple[str, bool]:
    """The cause by the tables for one guess, and whether it explains the refusal at all."""
    here = [offer for offer in matching if offer.platform == guess.platform]
    if not case.wanted.pinned:
        here = [offer for offer in here if offer.released <= guess.day] or here
    fitting = [offer for offer in here if guess.python in offer.pythons]
    if not case.wanted.pinned and all(offer.released > guess.day for offer in fitting):
        fitting = []
    if not fitting:
        return PYTHON if here else PLATFORM, True
    indexes = case.searched.indexes
    had = ALL in indexes or any(offer.place in indexes for offer in fitting)
    return INDEX, not had or case.install.lacks is not None


def _may_be_32_bit(case: Case) -> bool:
    """No index has anything for a 32-bit Python: it gets the oldest source releases or none."""
    offered, m = case.install.offered, case.m
    old = m.python.bits is None and offered is not None and not releases(offered, (0, 3))
    elsewhere = case.searched.indexes <= {PYPI} and m.platform.system != "Darwin"
    return old and elsewhere and case.install.lacks is None


PYTORCH_CUDA = ("11.6", "11.7", "11.8", "12.1", "12.4")
"""The CUDA versions of the package pytorch-cuda; its channel ended with torch 2.5."""
_CUDA = frozenset({"pytorch-cuda", "cudatoolkit", "cuda-toolkit", "pytorch-gpu", "cuda-version"})
_CUDA |= {"cuda", "cuda-runtime", "cuda-cudart", "cuda-libraries"}
_TORCH = {"pytorch": "torch", "torchvision": "torchvision", "torchaudio": "torchaudio"}


def conda_refusals(m: Machine, kb: Knowledge) -> Iterator[Refused]:
    """Every refusal of torch, or of what selects its CUDA version, by conda or mamba."""
    for place, install in enumerate(m.installs or ()):
        name, version = _parts(install.refused or "")
        known = name in {*_CUDA, *_TORCH} and wanted_by(f"{name}=={version}" if version else name)
        if install.tool in CONDA and known:
            cause, sure, kind = _conda_cause(install, name, version, m, kb)
            shown = f"{name}={version}" if version else name
            values = {"wanted": shown, "variants": ", ".join(PYTORCH_CUDA), "pythons": ""}
            yield Refused(cause, sure, place, kind, values | {"variant": shown})


def _parts(text: str) -> StrPair:
    """Name and version of a conda requirement, without its build."""
    found = re.match(r"(?:[\w.-]+::)?([\w.-]+?)(?:\[[^\]]*\])?[=<>! ]+(\d[\w.]*)", text)
    if found:
        return found[1].lower(), found[2].rstrip(".*")
    return re.split(r"[=<>!\[ ]", text.rpartition("::")[2])[0].lower(), ""


def _conda_cause(
    install: Install, name: str, version: str, m: Machine, kb: Knowledge
) -> tuple[str, Confidence, str]:
    mac_or_arm = m.platform.system == "Darwin" or platform_of(m) == "linux_aarch64"
    if m.platform.machine in ("x86", "i686", "armv7l") or (name in _CUDA and mac_or_arm):
        return PLATFORM, LIKELY, "conda-channel"
    if name == "pytorch-cuda" and version and ".".join(version.split(".")[:2]) not in PYTORCH_CUDA:
        return INDEX, CERTAIN, "conda-variant"
    if install.lacks == "python" or _not_for_python(_TORCH.get(name), version, m, kb):
        return PYTHON, LIKELY, "said"
    return INDEX, LIKELY, "conda-channel"


def _not_for_python(name: OptStr, version: str, m: Machine, kb: Knowledge) -> bool:
    """Whether builds of that release are for other Pythons only."""
    python, platform, release = python_of(m), platform_of(m), version_of(version)
    if name is None or python is None or release is None:
        return False
    rows = [
        offer
        for offer in offers_of(kb).of(name)
        if offer.version.release[: len(release.release)] == release.release
        and platform in (None, offer.platform)
    ]
    return bool(rows) and not any(python in offer.pythons for offer in rows)

"""What each index offers: which release of torch, as which build, for which Python, since when.

An index is named by its variant (cu126, cpu), or "pypi" for the default one. What is older than
the tables is told from general knowledge, not from a primary source, and kept short.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, table
from cudadoctor.model.machine import Strings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge

PYPI = "pypi"
FIRST_WITH_DEFAULT_TAG = Version("1.9")
"""Before it the default build of the torch index had no local version: 1.7.1, never 1.7.1+cu102."""


class Offer(NamedTuple):
    """A build as an index offers it: place names the index.

    version: with its local part, as pip compares it; release: without it.
    """

    name: str
    version: Version
    release: Version
    place: str
    platform: str
    pythons: Strings
    released: str


class EarlyRelease(Row, frozen=True):
    """A release before the tables. default: the variant that bore no local version."""

    torch: str
    torchvision: str
    released: str
    pythons: Strings
    default: str
    others: Strings


class _Early(Row, frozen=True):
    releases: tuple[EarlyRelease, ...]
    pythons: dict[str, str]


_EARLY = table("early", _Early)
PYTHON_RELEASED = _EARLY.pythons
"""When each Python came out: nobody asks for torch with a Python that does not exist yet."""


class Offers:
    """All offers of torch, torchvision and torchaudio."""

    def __init__(self, kb: Knowledge) -> None:
        self._kb = kb
        self.listed = cache(self._listed)

    @property
    def today(self) -> str:
        """The day of the tables: what came later is not known."""
        return self._kb.date

    @cached_property
    def _by_package(self) -> dict[str, tuple[Offer, ...]]:
        return {name: tuple(self._of(name)) for name in ("torch", "torchvision", "torchaudio")}

    @property
    def torch(self) -> tuple[Offer, ...]:
        return self._by_package["torch"]

    def of(self, name: str) -> tuple[Offer, ...]:
        """The offers of a package, () for one that is not known here."""
        return self._by_package.get(name, ())

    def _listed(
        self, name: str, indexes: frozenset[str], platform: str, python: str
    ) -> tuple[Offer, ...]:
        """What these indexes list for a platform and a Python, oldest first."""
        found = (
            offer
            for offer in self.of(name)
            if offer.platform == platform and offer.place in indexes and python in offer.pythons
        )
        return tuple(sorted(found, key=lambda offer: offer.released))

    @cached_property
    def indexes(self) -> frozenset[str]:
        """Every index that ever was: the variants, and "pypi"."""
        return frozenset(offer.place for offer in self.torch) | {"cu75", "cu80", "cu91"}

    @cached_property
    def newest_cuda(self) -> int:
        """The number of the newest variant (132): what is beyond it may be published since."""
        numbers = (index[2:] for index in self.indexes if len(index) == 5)
        return max(int(number) for number in numbers if number.isdigit())

    @cached_property
    def pythons(self) -> Strings:
        return tuple(dict.fromkeys(python for offer in self.torch for python in offer.pythons))

    def _of(self, name: str) -> Iterable[Offer]:
        for build in self._kb.builds:
            text = str(build.torch) if name == "torch" else getattr(build, name)
            if text is None or not build.published:
                continue
            release = Version(text)
            plain = build.platform.startswith("macos")
            plain |= build.default and build.torch < FIRST_WITH_DEFAULT_TAG
            tagged = release if plain else Version(f"{release}+{build.variant}")
            rest = (build.platform, build.pythons, build.released)
            yield Offer(name, tagged, release, build.variant, *rest)
            if build.default:
                yield Offer(name, release, release, PYPI, *rest)
        for early in _EARLY.releases if name in ("torch", "torchvision") else ():
            yield from _early(name, early)


def _early(name: str, early: EarlyRelease) -> Iterable[Offer]:
    plain, rest = Version(getattr(early, name)), (early.pythons, early.released)
    # The early releases had no build for Python 2.7 on Windows.
    windows = tuple(python for python in early.pythons if python != "2.7"), early.released
    for platform, some in (("linux_x86_64", rest), ("windows_amd64", windows)):
        yield Offer(name, plain, plain, early.default, platform, *some)
        for variant in early.others:
            yield Offer(name, Version(f"{plain}+{variant}"), plain, variant, platform, *some)
    for place, platform in (
        (PYPI, "linux_x86_64"),
        (PYPI, "macos_x86_64"),
        ("cpu", "macos_x86_64"),
    ):
        yield Offer(name, plain, plain, place, platform, *rest)

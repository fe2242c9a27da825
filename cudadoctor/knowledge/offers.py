"""What each index offers: which release of torch, as which build, for which Python, since when.

An index is named by its variant (cu126, cpu), or "pypi" for the default one. What is older than
the tables is told from general knowledge, not from a primary source, and kept short.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import Version

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
    pythons: tuple[str, ...]
    released: str


class Early(NamedTuple):
    """A release before the tables. default: the variant that bore no local version."""

    torch: str
    torchvision: str
    released: str
    pythons: str
    default: str
    others: str


EARLY = (
    Early("1.6.0", "0.7.0", "2020-07-28", "3.6 3.7 3.8", "cu102", "cu101 cu92 cpu"),
    Early("1.5.1", "0.6.1", "2020-06-18", "3.5 3.6 3.7 3.8", "cu102", "cu101 cu92 cpu"),
    Early("1.5.0", "0.6.0", "2020-04-21", "3.5 3.6 3.7 3.8", "cu102", "cu101 cu92 cpu"),
    Early("1.4.0", "0.5.0", "2020-01-15", "2.7 3.5 3.6 3.7 3.8", "cu101", "cu92 cu100 cpu"),
    Early("1.3.1", "0.4.2", "2019-11-07", "2.7 3.5 3.6 3.7", "cu101", "cu92 cu100 cpu"),
    Early("1.3.0", "0.4.1", "2019-10-10", "2.7 3.5 3.6 3.7", "cu101", "cu92 cu100 cpu"),
    Early("1.2.0", "0.4.0", "2019-08-08", "2.7 3.5 3.6 3.7", "cu100", "cu92 cpu"),
    Early("1.1.0", "0.3.0", "2019-04-30", "2.7 3.5 3.6 3.7", "cu90", "cu100 cpu"),
    Early("1.0.1", "0.2.2", "2019-02-07", "2.7 3.5 3.6 3.7", "cu90", "cu80 cu100 cpu"),
    Early("1.0.0", "0.2.1", "2018-12-07", "2.7 3.5 3.6 3.7", "cu90", "cu80 cu100 cpu"),
    Early("0.4.1", "0.2.1", "2018-07-26", "2.7 3.5 3.6 3.7", "cu90", "cu80 cu91 cu92 cpu"),
    Early("0.4.0", "0.2.1", "2018-04-24", "2.7 3.5 3.6", "cu90", "cu80 cu91 cpu"),
)
WINDOWS_LACKED = {"2.7"}
"""Pythons for which the early releases had no Windows build."""

PYTHON_RELEASED = {
    "2.7": "2010-07-03",
    "3.5": "2015-09-13",
    "3.6": "2016-12-23",
    "3.7": "2018-06-27",
    "3.8": "2019-10-14",
    "3.9": "2020-10-05",
    "3.10": "2021-10-04",
    "3.11": "2022-10-24",
    "3.12": "2023-10-02",
    "3.13": "2024-10-07",
    "3.14": "2025-10-07",
    "3.15": "2026-10-01",
}
"""When each Python came out: nobody asks for torch with a Python that does not exist yet."""


class Offers:
    """All offers of torch, torchvision and torchaudio."""

    def __init__(self, kb: Knowledge) -> None:
        self._kb = kb
        self._listed: dict[tuple[Any, ...], tuple[Offer, ...]] = {}

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

    def listed(
        self, name: str, indexes: frozenset[str], platform: str, python: str
    ) -> tuple[Offer, ...]:
        """What these indexes list for a platform and a Python, oldest first."""
        key = (name, indexes, platform, python)
        if key not in self._listed:
            found = (
                one
                for one in self.of(name)
                if one.platform == platform and one.place in indexes and python in one.pythons
            )
            self._listed[key] = tuple(sorted(found, key=lambda one: one.released))
        return self._listed[key]

    @cached_property
    def indexes(self) -> frozenset[str]:
        """Every index that ever was: the variants, and "pypi"."""
        return frozenset(one.place for one in self.torch) | {"cu75", "cu80", "cu91"}

    @cached_property
    def newest_cuda(self) -> int:
        """The number of the newest variant (132): what is beyond it may be published since."""
        return max(int(one[2:]) for one in self.indexes if one[2:].isdigit() and len(one) == 5)

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.torch for name in one.pythons))

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
        for early in EARLY if name in ("torch", "torchvision") else ():
            yield from _early(name, early)


def _early(name: str, one: Early) -> Iterable[Offer]:
    text = one.torch if name == "torch" else one.torchvision
    pythons = tuple(one.pythons.split())
    on_windows = tuple(name for name in pythons if name not in WINDOWS_LACKED)
    plain = Version(text)
    for platform, some in (("linux_x86_64", pythons), ("windows_amd64", on_windows)):
        yield Offer(name, plain, plain, one.default, platform, some, one.released)
        for variant in one.others.split():
            version = Version(f"{text}+{variant}")
            yield Offer(name, version, plain, variant, platform, some, one.released)
    yield Offer(name, plain, plain, PYPI, "linux_x86_64", pythons, one.released)
    yield Offer(name, plain, plain, PYPI, "macos_x86_64", pythons, one.released)
    yield Offer(name, plain, plain, "cpu", "macos_x86_64", pythons, one.released)

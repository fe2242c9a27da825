"""Packages that must match torch: which release belongs to which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, minor, version
from cudadoctor.knowledge.torch_builds import TorchBuild, TorchBuilds
from cudadoctor.model.machine import OptStr, OptStrings, OptVersion, Strings, Versions
from cudadoctor.model.requirements import admits, normal
from cudadoctor.model.versions import version_of

PAIRED = ("torchvision", "torchaudio", "torchtext")
"""Packages that are released together with torch: its table names the pair."""

_ON_BOTH = ("torchvision", "torchaudio")
"""Packages of which torch's own index has more wheels than the package index."""

NUMPY_2_SINCE = Version("2.3")
"""The first torch that was compiled for both ABIs of numpy."""

_EXACT = re.compile(r"==([\d.]+)")

LAST_AUDIO = "2.11.0"
"""The last torchaudio declares no torch requirement; others install it beside later releases."""


class _Release(Row, frozen=True):
    """platforms, pythons: of its wheels on the package index ("any", "3.9+"), () source only."""

    package: str
    version: str
    torch: OptStr
    python: OptStr
    platforms: OptStrings
    pythons: OptStrings


class _Pins(Row, frozen=True):
    package: str
    version: str
    requires: Strings


class _Binaries(Row, frozen=True):
    """The CUDA versions of the binaries on some platforms.

    versions: the first and the last of the releases. torch: that they were compiled against.
    indexed: on torch's own index, for each CUDA apart; else in the wheel on the package index.
    """

    versions: Versions
    cuda: Versions
    platforms: Strings
    torch: OptVersion = None
    indexed: bool = False


class _Flash(Row, frozen=True):
    """cuda: the oldest CUDA of torch's builds that the wheels load with, where not all of them do.

    Those for torch 2.6 are made with its build for CUDA 12.6, the first with the new ABI of C++.
    """

    version: Version
    torch: Strings
    cuda_major: int
    python: str
    cuda: OptVersion = None


class _Wheels(Row, frozen=True):
    """Wheels that a project compiled for some builds of torch, of releases that name no torch.

    builds: minor release of torch -> its CUDA versions. page: where they lie, with places for the
    variant and the minor release; "" the package index. tagged: they bear the variant.
    """

    package: str
    versions: Strings
    builds: dict[str, Versions]
    python: str
    platforms: Strings
    page: str
    tagged: bool = False


class _CompanionTable(Row, frozen=True):
    releases: tuple[_Release, ...]
    pins: tuple[_Pins, ...]
    xformers: tuple[_Binaries, ...]
    flash_attn: tuple[_Flash, ...]
    bitsandbytes: tuple[_Binaries, ...]
    triton: dict[str, str]
    triton_windows: dict[str, str]
    torchcodec: dict[str, str]
    torchcodec_binaries: tuple[_Binaries, ...] = ()
    wheels: tuple[_Wheels, ...] = ()


class Companions(TorchBuilds):
    """Requirements and pairs of companion packages."""

    _companions = kept("companions", _CompanionTable)

    @cached_property
    def _companion_releases(self) -> dict[str, dict[str, _Release]]:
        """Package -> release -> its row, newest first: the table has the oldest first."""
        found: dict[str, dict[str, _Release]] = {}
        for row in reversed(self._companions.releases):
            found.setdefault(row.package, {})[row.version] = row
        return found

    @property
    def companion_names(self) -> frozenset[str]:
        """Every package that has a row of its own."""
        return frozenset(self._companion_releases)

    def _release_of(self, package: str, release: str) -> _Release | None:
        rows = self._companion_releases.get(normal(package), {})
        if row := rows.get(release):
            return row
        asked = version_of(release)
        public = Version(asked.public) if asked else None
        return next((row for row in rows.values() if version(row.version) == public), None)

    def companion(self, package: str, torch: Version) -> Strings:
        """Releases of a companion (torchvision, torchaudio, xformers, ...) that match a torch.

        The one released together with that torch comes first, then newest first; () if none is
        known. torchaudio ended with 2.11.0, which declares no torch requirement: it is the answer
        for every later torch.
        """
        name, base = normal(package), torch.base_version
        if name == "xformers":
            releases = (str(row.versions[0]) for row in self._companions.xformers)
            fits = (one for one in releases if self._suits(name, one, version(base)))
            return tuple(dict.fromkeys(fits))
        if name == "flash-attn":
            flash = self._companions.flash_attn
            found = (str(row.version) for row in flash if minor(torch) in row.torch)
            return tuple(dict.fromkeys(found))
        if (known := self._by_torch(name)) is not None:
            return self._among(name, known.get(base) or known.get(minor(torch)))
        pair = self._pair(name, base)
        if name == "torchaudio" and pair is None and base in self._releases:
            return (LAST_AUDIO,)
        if name == "torchtext" and base in self._releases:
            # Its last release declares torch>=2.3, and its library loads with 2.3 alone.
            return (pair,) if pair else ()
        allowed = self._allowed(name, version(base))
        return (*((pair,) if pair else ()), *(release for release in allowed if release != pair))

    def _suits(self, name: str, release: str, torch: Version) -> bool:
        """Whether a release was compiled against a torch, or keeps to a stable ABI that it has."""
        built = self.built_against(name, release)
        asked = self.companion_torch(name, release) or ""
        return built == torch if built else bool(asked) and admits(asked, torch)

    def _by_torch(self, name: str) -> dict[str, str] | None:
        """torch's release or minor -> what belongs to it, of packages that declare no torch."""
        table = self._companions
        return {
            "triton": table.triton,
            "triton-windows": table.triton_windows,
            "torchcodec": table.torchcodec,
        }.get(name)

    def _allowed(self, name: str, torch: Version) -> Iterator[str]:
        """The releases whose requirement admits a torch, newest first.

        What an old release leaves open (vllm 0.2.2: torch>=2.1.0) ends where a later one pins torch
        exactly: its wheels were compiled for the torch of their day.
        """
        fits: dict[str, bool] = {}  # Many releases share one requirement.
        ends = None
        for row in self._companion_releases.get(name, {}).values():
            asked = row.torch or ""
            if exact := _EXACT.fullmatch(asked):
                ends = version(exact[1])
            if asked not in fits:
                # bitsandbytes calls nothing of torch's C++: its early releases ask for any.
                fits[asked] = bool(asked or name == "bitsandbytes") and admits(asked, torch)
            if fits[asked] and (ends is None or torch <= ends):
                yield row.version

    def _pair(self, name: str, torch: str) -> OptStr:
        """The release of a paired package that came out with that torch."""
        row = self._releases.get(torch) if name in PAIRED else None
        return None if row is None else getattr(row, name)

    def _among(self, name: str, specifier: OptStr) -> Strings:
        """The known releases that a specifier admits, else the one that it names."""
        if specifier is None:
            return ()
        from packaging.specifiers import SpecifierSet

        found = SpecifierSet(specifier).filter(self._companion_releases.get(name, ()))
        return tuple(found) or tuple(re.findall(r"^==([\d.]+)$", specifier))

    def companion_torch(self, package: str, release: str) -> OptStr:
        """The torch requirement (a specifier) of that companion release; None not known.

        "" if the release declares none.
        """
        if row := self._release_of(package, release):
            return row.torch
        name, asked = normal(package), version_of(release)
        if asked is None:
            return None
        paired = (torch for torch in self._releases if self._pair(name, torch) == asked.public)
        return next((f"=={torch}" for torch in paired), None)

    def companion_pins(self, package: str, release: str) -> Strings:
        """What a release requires of the other companions, exactly, and of what programs share.

        As lines of its metadata.
        """
        row = self._release_of(package, release)
        own = (row.package, row.version) if row else None
        pins = (pins for pins in self._companions.pins if (pins.package, pins.version) == own)
        return next((found.requires for found in pins), ())

    def _binaries(self, package: str, release: str) -> list[_Binaries]:
        """The rows of a release that say which CUDA its binaries are for."""
        table, asked = self._companions, version_of(release)
        rows = {
            "xformers": table.xformers,
            "bitsandbytes": table.bitsandbytes,
            "torchcodec": table.torchcodec_binaries,
        }.get(normal(package), ())
        if asked is None:
            return []
        public = Version(asked.public)
        return [row for row in rows if row.versions[0] <= public <= row.versions[-1]]

    def built_against(self, package: str, release: str) -> OptVersion:
        """The one torch that a companion release was compiled against; None not known.

        None too for one that keeps to torch's stable ABI: it asks for that torch or a newer one.
        """
        asked = self.companion_torch(package, release) or ""
        for row in self._binaries(package, release):
            if row.torch is not None and not asked.startswith(">="):
                return row.torch
        exact = _EXACT.fullmatch(asked)
        return version(exact[1]) if exact else None

    def on_torch_index(self, package: str, release: str) -> bool:
        """Whether torch's own index has an extension for each of its CUDA versions."""
        return any(row.indexed for row in self._binaries(package, release))

    def companion_cuda(
        self, package: str, release: str, platform: OptStr = None
    ) -> Versions | None:
        """The CUDA versions that a release has binaries for on a platform; None not known."""
        rows = self._binaries(package, release)
        here = (row for row in rows if platform in (None, *row.platforms))
        return tuple(sorted({cuda for row in here for cuda in row.cuda})) if rows else None

    def companion_python(self, package: str, release: str) -> OptStr:
        """Requires-Python of a companion release; None not known."""
        return row.python if (row := self._release_of(package, release)) else None

    def has_wheel(self, package: str, release: str, platform: OptStr, python: OptStr) -> bool:
        """Whether a release has a wheel for that platform and Python ("3.13t"), where known."""
        row = self._release_of(package, release)
        if row is None or row.package in _ON_BOTH:
            return True
        # The package index has xformers for one CUDA, and with it for fewer platforms.
        indexed = [built for built in self._binaries(package, release) if built.indexed]
        places = [place for built in indexed for place in built.platforms] or row.platforms
        pythons = row.pythons
        here = None in (platform, places) or not {platform, "any"}.isdisjoint(places or ())
        return here and (None in (python, pythons) or _serves(pythons or (), python or ""))

    def wheel_on_page(
        self, package: str, release: str, build: TorchBuild, python: OptStr
    ) -> tuple[str, str] | None:
        """A release's wheel for a build of torch: its full version and its page ("" for PyPI).

        None where no wheel is known.
        """
        for row in self._companions.wheels:
            of_it = row.package == package and release in row.versions
            here = build.platform in row.platforms and (not python or _within(python, row.python))
            if of_it and here and build.cuda in row.builds.get(minor(build.torch), ()):
                page = row.page.format(variant=build.variant, torch=minor(build.torch))
                return f"{release}+{build.variant}" if row.tagged else release, page
        return None

    def prebuilt_flash(self, torch: Version, cuda: Version, python: str) -> Strings:
        """The releases of flash-attn that have a Linux wheel for all three, newest first."""
        found = {
            row.version
            for row in self._companions.flash_attn
            if minor(torch) in row.torch
            and row.cuda_major == cuda.major
            and (row.cuda is None or row.cuda <= cuda)
            and _within(python, row.python)
        }
        # A post-release has fewer wheels, and some of them carry the name of the release itself.
        wheels = (one for one in found if not (one.post and Version(one.base_version) in found))
        return tuple(str(release) for release in sorted(wheels, reverse=True))


def _serves(pythons: Strings, python: str) -> bool:
    """Whether wheels for these Pythons serve one: "3.9+" each from 3.9 on with the usual ABI."""
    if "any" in pythons or python in pythons:
        return True
    floors = (version(text[:-1]) for text in pythons if text.endswith("+"))
    return not python.endswith("t") and any(floor <= version(python) for floor in floors)


def _within(python: str, span: str) -> bool:
    """Whether "3.12" lies in "3.9-3.13"; a free-threaded one never does."""
    first, _, last = span.partition("-")
    return not python.endswith("t") and (
        version(first) <= version(python) <= version(last or first)
    )

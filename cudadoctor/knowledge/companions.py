"""Packages that must match torch: which release belongs to which."""

from __future__ import annotations

import operator
import re
from functools import cached_property

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, kept, minor, version
from cudadoctor.knowledge.torch_builds import TorchBuilds
from cudadoctor.model.machine import OptStr, OptStrings, OptVersion, Strings, Versions
from cudadoctor.model.requirements import normal
from cudadoctor.model.versions import version_of

PAIRED = ("torchvision", "torchaudio", "torchtext")
"""Packages that are released together with torch: its table names the pair."""

NUMPY_2_SINCE = Version("2.3")
"""The first torch that was compiled for both ABIs of numpy."""

_CLAUSE = re.compile(r"(==|!=|>=|<=|>|<)([\d.]+)")
_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

LAST_AUDIO = "2.11.0"
"""The last torchaudio declares no torch requirement; others install it beside later releases."""


class _Release(Row, frozen=True):
    package: str
    version: str
    torch: OptStr
    python: OptStr
    platforms: OptStrings = None


class _Xformers(Row, frozen=True):
    version: str
    torch: Version
    cuda: Versions


class _Flash(Row, frozen=True):
    version: Version
    torch: Strings
    cuda_major: int
    python: str


class _Bitsandbytes(Row, frozen=True):
    versions: Versions
    cuda: Versions


class _CompanionTable(Row, frozen=True):
    releases: tuple[_Release, ...]
    xformers: tuple[_Xformers, ...]
    flash_attn: tuple[_Flash, ...]
    bitsandbytes: tuple[_Bitsandbytes, ...]
    triton: dict[str, str]
    triton_windows: dict[str, str]


class Companions(TorchBuilds):
    """Requirements and pairs of companion packages."""

    _companions = kept("companions", _CompanionTable)

    @cached_property
    def _companion_releases(self) -> dict[str, dict[str, _Release]]:
        """Package -> release -> its row, newest first."""
        found: dict[str, dict[str, _Release]] = {}
        for row in sorted(
            self._companions.releases, key=lambda row: version(row.version), reverse=True
        ):
            found.setdefault(row.package, {})[row.version] = row
        return found

    @property
    def companion_names(self) -> frozenset[str]:
        """Every package that has a row of its own."""
        return frozenset(self._companion_releases)

    def _release_of(self, package: str, release: str) -> _Release | None:
        return self._companion_releases.get(normal(package), {}).get(release)

    def companion(self, package: str, torch: Version) -> Strings:
        """Releases of a companion (torchvision, torchaudio, xformers, ...) that match a torch.

        The one released together with that torch comes first, then newest first; () if none is
        known. torchaudio ended with 2.11.0, which declares no torch requirement: it is the answer
        for every later torch.
        """
        name, base = normal(package), torch.base_version
        if name == "xformers":
            return tuple(row.version for row in self._companions.xformers if str(row.torch) == base)
        if name == "flash-attn":
            flash = self._companions.flash_attn
            found = (str(row.version) for row in flash if minor(torch) in row.torch)
            return tuple(dict.fromkeys(found))
        if name == "triton":
            known = self._companions.triton
            return self._among(name, known.get(base) or known.get(minor(torch)))
        if name == "triton-windows":
            return self._among(name, self._companions.triton_windows.get(minor(torch)))
        pair = self._pair(name, base)
        if name == "torchaudio" and pair is None and base in self._releases:
            return (LAST_AUDIO,)
        if name == "torchtext" and base in self._releases:
            # Its last release declares torch>=2.3, and its library loads with 2.3 alone.
            return (pair,) if pair else ()
        allowed = (
            row.version
            for row in self._companion_releases.get(name, {}).values()
            if row.torch and row.version != pair and allows(row.torch, version(base))
        )
        return (*((pair,) if pair else ()), *allowed)

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
        name, asked = normal(package), version_of(release)
        if asked is None:
            return None
        for row in self._companion_releases.get(name, {}).values():
            if version(row.version) == Version(asked.public):
                return row.torch
        paired = (torch for torch in self._releases if self._pair(name, torch) == asked.public)
        return next((f"=={torch}" for torch in paired), None)

    def _xformers(self, package: str, release: str) -> _Xformers | None:
        rows = self._companions.xformers if normal(package) == "xformers" else ()
        return next((row for row in rows if row.version == release), None)

    def built_against(self, package: str, release: str) -> OptVersion:
        """The one torch that a companion release was compiled against; None not known."""
        if row := self._xformers(package, release):
            return row.torch
        exact = re.fullmatch(r"==([\d.]+)", self.companion_torch(package, release) or "")
        return version(exact[1]) if exact else None

    def companion_cuda(self, package: str, release: str) -> Versions | None:
        """The CUDA versions that a companion release has binaries for; None not known."""
        if row := self._xformers(package, release):
            return row.cuda
        asked = version_of(release) if normal(package) == "bitsandbytes" else None
        return next(
            (
                row.cuda
                for row in self._companions.bitsandbytes
                if asked and row.versions[0] <= asked <= row.versions[-1]
            ),
            None,
        )

    def companion_python(self, package: str, release: str) -> OptStr:
        """Requires-Python of a companion release; None not known."""
        return row.python if (row := self._release_of(package, release)) else None

    def companion_platforms(self, package: str, release: str) -> OptStrings:
        """Where a companion release has wheels ("any" everywhere); () source only, None unknown."""
        return row.platforms if (row := self._release_of(package, release)) else None

    def prebuilt_flash(self, torch: Version, cuda: Version, python: str) -> OptStr:
        """The newest flash-attn that has a Linux wheel for all three; None if none is known."""
        found = [
            row.version
            for row in self._companions.flash_attn
            if minor(torch) in row.torch
            and row.cuda_major == cuda.major
            and _within(python, row.python)
        ]
        # A post-release has fewer wheels, and some of them carry the name of the release itself.
        newest = max(found, key=lambda release: (not release.is_postrelease, release), default=None)
        return str(newest) if newest else None


def _within(python: str, span: str) -> bool:
    """Whether "3.12" lies in "3.9-3.13"; a free-threaded one never does."""
    first, _, last = span.partition("-")
    return not python.endswith("t") and (
        version(first) <= version(python) <= version(last or first)
    )


def allows(specifier: str, torch: Version) -> bool:
    """Whether a specifier admits a release; `packaging` is loaded for rare operators only.

    Its grammar of specifiers takes ten times as long to import as this table to read.
    """
    clauses = [_CLAUSE.fullmatch(clause) for clause in specifier.split(",")]
    if all(clauses):
        return all(_COMPARE[found[1]](torch, version(found[2])) for found in clauses if found)
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(torch, prereleases=True)

"""Packages that must match torch: which release belongs to which."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cached_property

from packaging.version import Version

from cudadoctor.knowledge.tables import Row, table, version
from cudadoctor.knowledge.torch_builds import TorchBuilds
from cudadoctor.model.versions import version_of

PAIRED = ("torchvision", "torchaudio", "torchtext")
"""Packages that are released together with torch: its table names the pair."""

NUMPY_2_SINCE = Version("2.3")
"""The first torch that was compiled for both ABIs of numpy."""

_CLAUSE = re.compile(r"(==|!=|>=|<=|>|<)([\d.]+)")
_COMPARE: dict[str, Callable[[Version, Version], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

LAST_AUDIO = "2.11.0"
"""The last torchaudio declares no torch requirement; others install it beside later releases."""


class CompanionRow(Row, frozen=True):
    package: str
    version: str
    torch: str | None
    python: str | None
    sources: tuple[str, ...]
    platforms: tuple[str, ...] | None = None


class XformersRow(Row, frozen=True):
    version: str
    torch: str
    cuda: tuple[str, ...]


class FlashRow(Row, frozen=True):
    version: str
    torch: tuple[str, ...]
    cuda_major: int
    python: str


class BitsandbytesRow(Row, frozen=True):
    versions: tuple[str, ...]
    cuda: tuple[str, ...]


class CompanionTable(Row, frozen=True):
    releases: tuple[CompanionRow, ...]
    xformers: tuple[XformersRow, ...]
    flash_attn: tuple[FlashRow, ...]
    bitsandbytes: tuple[BitsandbytesRow, ...]
    triton: dict[str, str]
    triton_windows: dict[str, str]
    prebuilt_sources: tuple[str, ...]


class Companions:
    """Requirements and pairs of companion packages."""

    def __init__(self, builds: TorchBuilds) -> None:
        self._builds = builds
        self._table = table("companions", CompanionTable)

    @cached_property
    def _releases(self) -> dict[str, tuple[CompanionRow, ...]]:
        found: dict[str, list[CompanionRow]] = {}
        for row in self._table.releases:
            found.setdefault(row.package, []).append(row)
        return {
            name: tuple(sorted(rows, key=lambda row: version(row.version), reverse=True))
            for name, rows in found.items()
        }

    def matching(self, package: str, torch: Version) -> tuple[str, ...]:
        """Releases for that torch: the one released with it first, then newest first."""
        name = normal(package)
        base = torch.base_version
        if name in PAIRED:
            return self._paired(name, base)
        if name == "xformers":
            return tuple(row.version for row in self._table.xformers if row.torch == base)
        if name == "flash-attn":
            return self._flash(torch)
        if name in ("triton", "triton-windows"):
            return self._triton(name, torch)
        return tuple(
            row.version
            for row in self._releases.get(name, ())
            if row.torch and allows(row.torch, version(base))
        )

    @property
    def names(self) -> frozenset[str]:
        """Every package that has a row of its own."""
        return frozenset(row.package for row in self._table.releases)

    def requirement(self, package: str, release: str) -> str | None:
        """The specifier on torch, "" where it declares none, None where that is not known."""
        name, asked = normal(package), version_of(release)
        if asked is None:
            return None
        base = asked.public
        for row in self._releases.get(name, ()):
            if version(row.version) == Version(base):
                return row.torch
        for torch in self._builds.releases() if name in PAIRED else ():
            if self._pair(name, str(torch)) == base:
                return f"=={torch}"
        return None

    def built_against(self, package: str, release: str) -> Version | None:
        """The torch that a release was compiled against, where that is known to be one."""
        if normal(package) == "xformers":
            for row in self._table.xformers:
                if row.version == release:
                    return version(row.torch)
        wanted = self.requirement(package, release) or ""
        exact = re.fullmatch(r"==([\d.]+)", wanted)
        return version(exact.group(1)) if exact else None

    def python(self, package: str, release: str) -> str | None:
        """Requires-Python of a release, None where it is not known."""
        rows = self._releases.get(normal(package), ())
        return next((row.python for row in rows if row.version == release), None)

    def platforms(self, package: str, release: str) -> tuple[str, ...] | None:
        """Where a release has wheels ("any" everywhere), () source only, None not known."""
        rows = self._releases.get(normal(package), ())
        return next((row.platforms for row in rows if row.version == release), None)

    def prebuilt_flash(self, torch: Version, cuda: Version, python: str) -> str | None:
        """The newest flash-attn with a wheel (Linux) for that torch, CUDA major and Python."""
        minor = f"{torch.major}.{torch.minor}"
        found = [
            version(row.version)
            for row in self._table.flash_attn
            if minor in row.torch and row.cuda_major == cuda.major and _within(python, row.python)
        ]
        # A post-release has fewer wheels, and some of them carry the name of the release itself.
        plain = [one for one in found if not one.is_postrelease]
        return str(max(plain or found)) if found else None

    def cuda_builds(self, package: str, release: str) -> tuple[Version, ...] | None:
        """The CUDA versions that a release has binaries for; None where that is not known."""
        name = normal(package)
        if name == "xformers":
            for row in self._table.xformers:
                if row.version == release:
                    return tuple(version(text) for text in row.cuda)
        if name == "bitsandbytes":
            asked = version_of(release)
            for one in self._table.bitsandbytes if asked else ():
                if asked and version(one.versions[0]) <= asked <= version(one.versions[-1]):
                    return tuple(version(text) for text in one.cuda)
        return None

    def _pair(self, name: str, torch: str) -> str | None:
        row = self._builds.release(torch)
        if row is None:
            return None
        pairs = {
            "torchvision": row.torchvision,
            "torchaudio": row.torchaudio,
            "torchtext": row.torchtext,
        }
        return pairs[name]

    def _paired(self, name: str, torch: str) -> tuple[str, ...]:
        pair = self._pair(name, torch)
        if name == "torchaudio" and pair is None and self._builds.release(torch):
            return (LAST_AUDIO,)
        allowed = (
            row.version
            for row in self._releases.get(name, ())
            if row.torch and row.version != pair and allows(row.torch, version(torch))
        )
        return (*((pair,) if pair else ()), *allowed)

    def _flash(self, torch: Version) -> tuple[str, ...]:
        minor = f"{torch.major}.{torch.minor}"
        found = (row.version for row in self._table.flash_attn if minor in row.torch)
        return tuple(dict.fromkeys(found))

    def _triton(self, name: str, torch: Version) -> tuple[str, ...]:
        minor = f"{torch.major}.{torch.minor}"
        if name == "triton":
            wanted = self._table.triton.get(torch.base_version) or self._table.triton.get(minor)
            exact = wanted and "=" not in wanted
            spec = f"=={wanted}" if exact else wanted
        else:
            wanted = self._table.triton_windows.get(minor)
            spec = wanted and f"=={wanted}.*"
        if not spec:
            return ()
        from packaging.specifiers import SpecifierSet

        allowed = SpecifierSet(spec)
        rows = self._releases.get(name, ())
        found = tuple(row.version for row in rows if row.version in allowed)
        return found or ((wanted,) if wanted and name == "triton" and "=" not in wanted else ())


def _within(python: str, span: str) -> bool:
    """Whether "3.12" lies in "3.9-3.13"; a free-threaded one never does."""
    first, _, last = span.partition("-")
    if python.endswith("t"):
        return False
    return version(first) <= version(python) <= version(last or first)


def normal(package: str) -> str:
    """The normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", package).lower()


def allows(specifier: str, torch: Version) -> bool:
    """Whether a specifier admits a release; `packaging` is loaded for rare operators only.

    Its grammar of specifiers takes ten times as long to import as this table to read.
    """
    clauses = [_CLAUSE.fullmatch(clause) for clause in specifier.split(",")]
    if all(clauses):
        return all(_COMPARE[one[1]](torch, version(one[2])) for one in clauses if one)
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(torch, prereleases=True)

"""Releases of packages that must match torch -> rows."""

import re
from collections.abc import Iterable, Mapping
from datetime import date

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge.update.index import IndexFile, release_of, specifier_on, wheel_of
from cudadoctor.knowledge.update.rows import Row, Tables
from cudadoctor.knowledge.update.torch_rows import PACKAGE_INDEX, pinned_version

PAIRED = ("torchvision", "torchaudio")
"""Packages that are released together with torch."""

TOGETHER_DAYS = 5
"""A package without an exact pin belongs to the torch that was uploaded as close as this."""

OWN_BINARIES = ("xformers", "flash-attn", "bitsandbytes")
"""Packages whose binaries have a table of their own: no index says what they were built for."""

_PYTHON = re.compile(r"[0-9a-z.,<>=!~* ]{1,80}")


class Companion(msgspec.Struct, frozen=True):
    """A release of a companion. file: the one whose METADATA speaks for it, None: no wheel.

    platforms: with a wheel, "any" for one without compiled code, () source only.
    """

    package: str
    version: str
    day: str | None
    python: str | None
    yanked: bool
    file: IndexFile | None
    platforms: tuple[str, ...]

    def row(self, values: Mapping[str, object], url: str) -> Row:
        """What the index says of it."""
        key = {"package": self.package, "version": self.version}
        table = "companions.releases"
        return Row(table=table, key=key, values={**values}, source=PACKAGE_INDEX, url=url)


class Paired(msgspec.Struct, frozen=True):
    """One of PAIRED with its requirement on torch ("" none); day: of its upload, None not known."""

    version: str
    torch: str
    day: str | None


def packages(tables: Tables) -> tuple[str, ...]:
    """The companions that the tables have, in their order."""
    return tuple(dict.fromkeys(row["package"] for row in tables["companions"]["releases"]))


def companions_of(package: str, files: Iterable[IndexFile]) -> tuple[Companion, ...]:
    """The final releases of a package, oldest first."""
    found: dict[str, list[IndexFile]] = {}
    for file in files:
        release = release_of(file.filename)
        if release is not None and not release[1].is_prerelease and release[1].local is None:
            found.setdefault(str(release[1]), []).append(file)
    return tuple(_companion(package, name, found[name]) for name in sorted(found, key=Version))


def _companion(package: str, version: str, files: list[IndexFile]) -> Companion:
    wheels = {file.filename: wheel for file in files if (wheel := wheel_of(file.filename))}
    first = [file for file in files if "linux" in file.filename or "-any" in file.filename]
    platforms = {name for wheel in wheels.values() for name in wheel.platforms} - {"macos_x86_64"}
    platforms |= {"any" for name in wheels if name.endswith("-any.whl")}
    return Companion(
        package=package,
        version=version,
        day=min((file.day for file in files if file.day), default=None),
        python=next((file.python for file in files if _PYTHON.fullmatch(file.python or "")), None),
        yanked=all(file.yanked for file in files),
        file=next((file for file in (*first, *files) if file.filename in wheels), None),
        platforms=tuple(sorted(platforms)),
    )


def unknown_companions(
    releases: Iterable[Companion], tables: Tables, package: str
) -> list[Companion]:
    """Those that the tables lack; older ones than the tables begin with are left out on purpose."""
    rows = [row for row in tables["companions"]["releases"] if row["package"] == package]
    known = {Version(row["version"]) for row in rows}
    return [
        release
        for release in releases
        if (version := Version(release.version)) not in known
        and version > min(known)
        and not release.yanked
    ]


def known_platforms(
    releases: Iterable[Companion], known: Mapping[str, Mapping[str, list[str] | None]], url: str
) -> list[Row]:
    """Platforms that a release in the tables has wheels for since; None there stays so.

    known: version -> the row of the tables.
    """
    return [
        release.row({"platforms": sorted({*release.platforms, *platforms})}, url)
        for release in releases
        if (platforms := known.get(release.version, {}).get("platforms")) is not None
    ]


def new_row(release: Companion, requires: tuple[str, ...] | None, url: str) -> Row:
    """The row of a new release. requires: None if nothing could say it."""
    values = {
        "torch": None if requires is None else specifier_on("torch", requires),
        "python": release.python,
        "platforms": list(release.platforms),
    }
    return release.row(values, url)


def pair_for(torch: str, day: str | None, known: Iterable[Paired]) -> str | None:
    """The package that belongs to a torch: pinned to it, else uploaded beside it; None without one.

    day: of torch's upload.
    """
    rows = sorted(known, key=lambda paired: Version(paired.version), reverse=True)
    exact = (paired.version for paired in rows if pinned_version(paired.torch) == torch)
    beside = (
        paired.version
        for paired in rows
        if day
        and paired.day
        and abs((date.fromisoformat(day) - date.fromisoformat(paired.day)).days) <= TOGETHER_DAYS
        and pinned_version(paired.torch) is None
        and SpecifierSet(paired.torch).contains(torch)
    )
    return next(exact, None) or next(beside, None)


def new_pairs(package: str, tables: Tables, known: Iterable[Paired], url: str) -> tuple[Row, ...]:
    """Releases in the tables for which a package with an exact pin came out since."""
    return tuple(
        Row(
            table="torch.releases",
            key={"torch": release["torch"]},
            values={package: found},
            source=PACKAGE_INDEX,
            url=url,
        )
        for release in tables["torch"]["releases"]
        if (found := pair_for(release["torch"], None, known))
        and (release[package] is None or Version(found) > Version(release[package]))
    )

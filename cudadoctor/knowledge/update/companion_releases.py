"""Releases of packages that must match torch -> rows; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge.update.listing import IndexFile
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.knowledge.update.torch_release import SOURCE
from cudadoctor.knowledge.update.wheel_inside import specifier_on
from cudadoctor.knowledge.update.wheel_names import release_of, wheel_of

TOGETHER_DAYS = 5
"""A package without an exact pin belongs to the torch that was uploaded as close as this."""


OWN_BINARIES = ("xformers", "flash-attn", "bitsandbytes")
"""Packages whose binaries have a table of their own: no index says what they were built for."""


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


PAIRED = ("torchvision", "torchaudio")
"""Packages that are released together with torch."""


class Paired(msgspec.Struct, frozen=True):
    """One of them with its requirement on torch ("" none); day: of its upload, None not known."""

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
    wheels = [file for file in files if wheel_of(file.filename)]
    linux = [file for file in wheels if "linux" in file.filename or "-any" in file.filename]
    return Companion(
        package=package,
        version=version,
        day=min((file.day for file in files if file.day), default=None),
        python=next((file.python for file in files if _is_specifier(file.python)), None),
        yanked=all(file.yanked for file in files),
        file=next(iter([*linux, *wheels]), None),
        platforms=_platforms(wheels),
    )


def _platforms(files: list[IndexFile]) -> tuple[str, ...]:
    wheels = [wheel for file in files if (wheel := wheel_of(file.filename))]
    found = {one for wheel in wheels for one in wheel.platforms} - {"macos_x86_64"}
    found |= {"any" for file in files if file.filename.endswith("-any.whl")}
    return tuple(sorted(found))


def unknown(releases: Iterable[Companion], tables: Tables, package: str) -> tuple[Companion, ...]:
    """Those that the tables lack; older ones than the tables begin with are left out on purpose."""
    rows = [row for row in tables["companions"]["releases"] if row["package"] == package]
    known = {Version(row["version"]) for row in rows}
    return tuple(
        one
        for one in releases
        if Version(one.version) not in known
        and Version(one.version) > min(known)
        and not one.yanked
    )


def by_hand(rows: Iterable[Row]) -> tuple[str, ...]:
    """A remark for each new release of a package whose binaries have a table of their own."""
    return tuple(
        f"Which torch and CUDA the binaries of {one.key['package']} {one.key['version']} are for"
        " is to be looked up by hand."
        for one in rows
        if one.key["package"] in OWN_BINARIES and "torch" in one.values
    )


def yanked(releases: Iterable[Companion], tables: Tables, package: str) -> Reading:
    """A remark for each release in the tables that the index has taken back."""
    known = {
        row["version"] for row in tables["companions"]["releases"] if row["package"] == package
    }
    return Reading(
        remarks=tuple(
            f"{package} {one.version} was yanked from the index."
            for one in releases
            if one.yanked and one.version in known
        )
    )


def known_platforms(
    releases: Iterable[Companion], tables: Tables, package: str, url: str
) -> tuple[Row, ...]:
    """Platforms that a release in the tables has wheels for since; None there stays so."""
    there = {
        row["version"]: row["platforms"]
        for row in tables["companions"]["releases"]
        if row["package"] == package and row["platforms"] is not None
    }
    return tuple(
        Row(
            table="companions.releases",
            key={"package": package, "version": one.version},
            values={"platforms": sorted({*one.platforms, *there[one.version]})},
            source=SOURCE,
            url=url,
        )
        for one in releases
        if one.version in there
    )


def row(one: Companion, requires: tuple[str, ...] | None, url: str) -> Row:
    """The row of a new release. requires: None where nothing could say it."""
    return Row(
        table="companions.releases",
        key={"package": one.package, "version": one.version},
        values={
            "torch": None if requires is None else specifier_on("torch", requires),
            "python": one.python,
            "platforms": list(one.platforms),
        },
        source=SOURCE,
        url=url,
    )


def pairs(
    releases: Iterable[Companion], specifiers: Mapping[str, str | None]
) -> tuple[Paired, ...]:
    """The releases whose requirement is known. specifiers: version -> on torch, None not known."""
    found = ((one, specifiers.get(one.version)) for one in releases)
    return tuple(
        Paired(one.version, wanted, one.day) for one, wanted in found if wanted is not None
    )


def pair_for(torch: str, day: str | None, known: Iterable[Paired]) -> str | None:
    """The package that belongs to a torch: pinned to it, else uploaded beside it; None without one.

    day: of torch's upload.
    """
    rows = sorted(known, key=lambda one: Version(one.version), reverse=True)
    exact = next((one.version for one in rows if _pinned(one.torch) == torch), None)
    if exact is not None or day is None:
        return exact
    beside = (
        one.version
        for one in rows
        if one.day and _days_between(day, one.day) <= TOGETHER_DAYS
        if _pinned(one.torch) is None and SpecifierSet(one.torch).contains(torch)
    )
    return next(beside, None)


def new_pairs(package: str, tables: Tables, known: Iterable[Paired], url: str) -> tuple[Row, ...]:
    """Releases in the tables for which a package with an exact pin came out since."""
    rows = []
    for release in tables["torch"]["releases"]:
        found = pair_for(release["torch"], None, known)
        there = release[package]
        if found and (there is None or Version(found) > Version(there)):
            rows.append(
                Row(
                    table="torch.releases",
                    key={"torch": release["torch"]},
                    values={package: found},
                    source=SOURCE,
                    url=url,
                )
            )
    return tuple(rows)


def _is_specifier(text: str | None) -> bool:
    """Whether that is a requirement on a Python and nothing else."""
    return bool(text and re.fullmatch(r"[0-9a-z.,<>=!~* ]{1,80}", text))


def _pinned(specifier: str) -> str | None:
    exact = re.fullmatch(r"==([\d.]+)", specifier)
    return exact[1] if exact else None


def _days_between(one: str, other: str) -> int:
    return abs((date.fromisoformat(one) - date.fromisoformat(other)).days)

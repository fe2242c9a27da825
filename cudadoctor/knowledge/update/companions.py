"""Releases of packages that must match torch, on the package index."""

import re
from collections.abc import Iterable
from datetime import date
from functools import partial

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge.update.index import (
    Release,
    decoded,
    releases_of,
    requirements,
    requirements_of,
    specifier_on,
)
from cudadoctor.knowledge.update.rows import Tables, Update

PAIRED = ("torchvision", "torchaudio")
"""Packages that are released together with torch."""

TOGETHER_DAYS = 5
"""A package without an exact pin belongs to the torch that was uploaded as close as this."""

OWN_BINARIES = ("xformers", "flash-attn", "bitsandbytes")
"""Packages whose binaries have a table of their own: no index says what they were built for."""

_PYTHON = re.compile(r"[0-9a-z.,<>=!~* ]{1,80}")


class Paired(msgspec.Struct, frozen=True):
    """One of PAIRED with its requirement on torch ("" none); day: of its upload, None not known."""

    version: str
    torch: str
    day: str | None


class _Info(msgspec.Struct):
    version: str
    requires_dist: list[str] | None = None


class OldProject(msgspec.Struct):
    """The newest release by `/pypi/NAME/json`: it speaks for one that has no wheel."""

    info: _Info


def packages(tables: Tables) -> tuple[str, ...]:
    """The companions that the tables have, in their order."""
    return tuple(dict.fromkeys(row["package"] for row in tables["companions"]["releases"]))


def enter_companion(update: Update, package: str) -> list[Paired]:
    """Enter what the index says of a package; returns its releases whose requirement is known.

    Those that are older than the tables begin with are left out on purpose. Raises NotRead.
    """
    url = f"{update.index}/{package}/"
    releases = releases_of(package, update.get(url), url)
    rows = [row for row in update.tables["companions"]["releases"] if row["package"] == package]
    known = {row["version"]: row for row in rows}
    enter = partial(update.enter, "pypi", url, "companions.releases")
    for version, release in reversed(releases.items()):
        key = {"package": package, "version": version}
        platforms = {*release.platforms} - {"macos_x86_64"}
        if row := known.get(version):
            if release.yanked:
                update.remarks.append(f"{package} {version} was yanked from the index.")
            if row["platforms"] is not None:
                enter(key, {"platforms": platforms})
        elif not release.yanked and Version(version) > min(map(Version, known)):
            with update.reading(f"{package} {version}"):
                requires = _requires(update, package, release)
                pythons = (file.python or "" for file in release.files)
                known[version] = {
                    "torch": None if requires is None else specifier_on("torch", requires),
                    "python": next(filter(_PYTHON.fullmatch, pythons), None),
                    "platforms": platforms,
                }
                enter(key, known[version])
                if package in OWN_BINARIES:
                    update.remarks.append(
                        f"Which torch and CUDA the binaries of {package} {version} are for"
                        " is to be looked up by hand."
                    )
    return [
        Paired(version, row["torch"], releases[version].day)
        for version, row in known.items()
        if version in releases and row["torch"] is not None
    ]


def _requires(update: Update, package: str, release: Release) -> list[str] | None:
    """What a release requires: its wheel says it, else the index, of the newest release only."""
    wheels = [file for file in release.files if file.filename.endswith(".whl")]
    if wheels:
        usual = (file for file in wheels if re.search("linux|-any", file.filename))
        return requirements_of(update.fetch, next(usual, wheels[0]))
    url = f"{update.index.removesuffix('/simple')}/pypi/{package}/json"
    newest = decoded(update.get(url), OldProject, url).info
    if newest.version != release.version or newest.requires_dist is None:
        return None
    return requirements(newest.requires_dist)


def pair_for(torch: str, day: str | None, known: Iterable[Paired]) -> str | None:
    """The package that belongs to a torch: pinned to it, else uploaded beside it; None without one.

    day: of torch's upload.
    """
    newest = sorted(known, key=lambda paired: Version(paired.version), reverse=True)
    pins = {paired.version: pinned_version(paired.torch) for paired in newest}
    exact = (version for version, pin in pins.items() if pin == torch)
    beside = (
        paired.version
        for paired in newest
        if day
        and paired.day
        and abs((date.fromisoformat(day) - date.fromisoformat(paired.day)).days) <= TOGETHER_DAYS
        and pins[paired.version] is None
        and SpecifierSet(paired.torch).contains(torch)
    )
    return next(exact, None) or next(beside, None)


def pinned_version(specifier: str) -> str | None:
    """The one release that a specifier admits."""
    exact = re.fullmatch(r"==([\d.]+)", specifier)
    return exact[1] if exact else None

"""Releases of torch and of packages that must match it on the package index; torch's own index."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import date
from functools import partial
from urllib.parse import quote

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor.knowledge.offers import FIRST_WITH_DEFAULT_TAG
from cudadoctor.knowledge.renewed import Tables, Values, by_variant, variant_of
from cudadoctor.knowledge.update.fetching import NotRead
from cudadoctor.knowledge.update.index import (
    FileName,
    IndexFile,
    Malformed,
    Release,
    by_python,
    files_of,
    last_name,
    links_of,
    releases_of,
    requirements_of,
    specifier_on,
    torch_inside,
)
from cudadoctor.knowledge.update.rows import Update
from cudadoctor.model.machine import OptStr, Strings, StrPair
from cudadoctor.model.requirements import SHARED, cut

PAIRED = ("torchvision", "torchaudio")
"""Packages that are released together with torch."""

TOGETHER_DAYS = 5
"""A package without an exact pin belongs to the torch that was uploaded as close as this."""

OWN_BINARIES = ("xformers", "flash-attn", "bitsandbytes")
"""Packages whose binaries have a table of their own: no index says what they were built for."""

WATCHED = 3
"""Variants are read for this many of the newest releases, and wherever a row is not known."""

Enter = Callable[[str, Mapping[str, str], Values], None]

_PYTHON = re.compile(r"[0-9a-z.,<>=!~* ]{1,80}")
_LIBRARY = re.compile(r"cuda-|nvidia-|triton\b")


def cuda_of(variant: str) -> OptStr:
    """cu126 is "12.6", cpu has none."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else None


def minor_of(release: str) -> str:
    """2.15.1 is of 2.15."""
    return ".".join(release.split(".")[:2])


# --- packages that must match torch, on the package index --------------------------------------


class Paired(Struct, frozen=True):
    """One of PAIRED with its requirement on torch ("" none); day: of its upload, None not known."""

    version: str
    torch: str
    day: OptStr


def packages(tables: Tables) -> Strings:
    """The companions that the tables have, in their order."""
    return tuple(dict.fromkeys(row["package"] for row in tables["companions"]["releases"]))


def enter_companion(update: Update, package: str) -> list[Paired]:
    """Enter what the index says of a package; returns its releases whose requirement is known.

    What a release requires is read once: it never changes. Raises NotRead.
    """
    url = f"{update.index}/{package}/"
    releases = releases_of(package, update.get(url), url)
    rows = [row for row in update.tables["companions"]["releases"] if row["package"] == package]
    known, names = {row["version"]: row for row in rows}, packages(update.tables)
    enter = partial(update.enter, "pypi", url)
    for version, release in reversed(releases.items()):
        key = {"package": package, "version": version}
        row = known.get(version, {})
        pythons = sorted({*release.pythons, *(row.get("pythons") or ())}, key=by_python)
        listed = {"platforms": {*release.platforms}, "pythons": pythons}
        if row:
            if release.yanked:
                update.remarks.append(f"{package} {version} was yanked from the index.")
            enter("companions.releases", key, listed)
        elif not release.yanked:
            with update.reading(f"{package} {version}"):
                requires = None
                with suppress(Malformed):
                    requires = requirements_of(update.fetch, release)
                takes = (file.python or "" for file in release.files)
                known[version] = {
                    "torch": None if requires is None else specifier_on("torch", requires),
                    "python": next(filter(_PYTHON.fullmatch, takes), None),
                    **listed,
                }
                enter("companions.releases", key, known[version])
                if pins := pins_on({*names} - {package}, requires or ()):
                    enter("companions.pins", key, {"requires": pins})
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


def pins_on(names: Collection[str], requires: Iterable[str]) -> list[str]:
    """The requirements that admit one release of a companion and hold without an extra.

    Of what many programs share, every bound. With the normal name, and without the extras that are
    asked of it.
    """
    return [
        f"{parts.name}{parts.specifier}{parts.marker and f'; {parts.marker}'}"
        for parts in map(cut, requires)
        if parts and "extra" not in parts.marker
        if (parts.name in names and _EXACT.fullmatch(parts.specifier))
        or (parts.name in SHARED and parts.specifier)
    ]


_EXACT = re.compile(r"==[\d.]+(?:\.post\d+)?")


def pair_for(torch: str, day: OptStr, known: Iterable[Paired]) -> OptStr:
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


def pinned_version(specifier: str) -> OptStr:
    """The one release that a specifier admits."""
    exact = re.fullmatch(r"==([\d.]+)", specifier)
    return exact[1] if exact else None


# --- torch on the package index ---------------------------------------------------------------


def package_index(update: Update) -> None:
    """Torch and the packages that must match it. Raises GivenUp."""
    paired = {}
    for package in packages(update.tables):
        if update.wants("pypi", package, *(("torch",) if package in PAIRED else ())):
            failures = len(update.failures)
            with update.reading():
                known = enter_companion(update, package)
                if len(update.failures) == failures:
                    paired[package] = known
    if update.wants("pypi", "torch"):
        with update.reading():
            _torch(update, paired)


def releases_of_torch(update: Update) -> dict[str, Release]:
    """The releases that are on the package index, newest first. Raises NotRead."""
    url = f"{update.index}/torch/"
    return releases_of("torch", update.get(url), url)


def newest_torch(update: Update) -> str:
    """The newest final torch on the index. Raises NotRead."""
    for torch, release in releases_of_torch(update).items():
        if release.platforms and not release.yanked:
            return torch
    raise NotRead(f"'{update.index}/torch/' lists no final release of torch.")


def _torch(update: Update, paired: Mapping[str, list[Paired]]) -> None:
    releases = releases_of_torch(update)
    known = list(update.tables["torch"]["releases"])
    enter = partial(update.enter, "pypi", f"{update.index}/torch/")
    for row in known:
        torch = row["torch"]
        if torch in releases:
            _known_release(update, enter, row, releases[torch])
        else:
            update.remarks.append(f"torch {torch} is in the tables and not on the index.")
        for package, companions in paired.items():
            # One with an exact pin may have come out since.
            found = pair_for(torch, None, companions) if package in PAIRED else None
            if found and (row[package] is None or Version(found) > Version(row[package])):
                url = f"{update.index}/{package}/"
                update.enter("pypi", url, "torch.releases", {"torch": torch}, {package: found})
    for build in list(update.tables["torch"]["builds"]) if update.deep else ():
        unknown = build["default"] and build["cuda"] and build["archs"] is None
        if unknown and (release := releases.get(build["torch"])):
            with update.reading(f"torch {release.version}"):
                file = middle(release, build["platform"])
                if archs := torch_inside(update.fetch, file, deep=True).archs:
                    enter("torch.builds", key_of(build), {"archs": archs})
                else:
                    update.remarks.append(
                        f"No list of GPUs stands in the wheel of torch {release.version}."
                    )
    oldest = min(Version(row["torch"]) for row in known)
    for torch, release in reversed(releases.items()):
        new = Version(torch) > oldest and all(row["torch"] != torch for row in known)
        if new and release.platforms and not release.yanked:
            with update.reading(f"torch {torch}"):
                _new_release(update, enter, release, paired)


def key_of(build: Values) -> dict[str, str]:
    """The columns that make a row that build's."""
    return {column: build[column] for column in ("torch", "variant", "platform")}


def middle(release: Release, platform: str) -> IndexFile:
    """The wheel that stands for a platform: of its middle Python, without a build tag."""

    def odd(file: IndexFile) -> tuple[bool, ...]:
        return bool(file.yanked), file.name.tagged, file.name.pythons[0].endswith("t")

    wheels = sorted(release.on(platform), key=lambda file: by_python(file.name.pythons[0]))
    usual = [file for file in wheels if odd(file) == min(map(odd, wheels))]
    return usual[len(usual) // 2]


def _pythons(release: Release) -> dict[str, list[str]]:
    """Platform -> the Pythons that it has a wheel for."""
    return {
        platform: _sorted(python for file in release.on(platform) for python in file.name.pythons)
        for platform in release.platforms
    }


def _sorted(pythons: Iterable[str]) -> list[str]:
    return sorted({*pythons} - {"any"}, key=by_python)


def _known_release(update: Update, enter: Enter, row: Values, release: Release) -> None:
    """What the index says of a release that the tables have already."""
    torch = release.version
    if release.yanked:
        update.remarks.append(f"torch {torch} was yanked from the index.")
    known, listed = row["pythons"], _pythons(release)
    # A wheel that was there once can still be in a cache: both lists together.
    both = {
        platform: _sorted((*known.get(platform, ()), *listed.get(platform, ())))
        for platform in sorted({*known, *listed})
    }
    enter("torch.releases", {"torch": torch}, {"pythons": both})
    for build in update.tables["torch"]["builds"]:
        default = build["torch"] == torch and build["default"]
        if default and build["bytes"] is None and build["platform"] in release.platforms:
            size = middle(release, build["platform"]).size_bytes
            enter("torch.builds", key_of(build), {"bytes": size})


def _new_release(
    update: Update, enter: Enter, release: Release, paired: Mapping[str, list[Paired]]
) -> None:
    """The rows of a release that the tables lack: what the index and its wheels say, no more.

    It enters whole or not at all: half of it would look like absence. What torch's own index may
    have beside it (a CPU build for Linux, this CUDA build for Windows) is in the rows as not known
    to be published.
    """
    torch = release.version
    if release.day is None:
        raise NotRead("The index does not say when it was uploaded.")
    if missing := [package for package in PAIRED if package not in paired]:
        raise NotRead(f"Which {missing[0]} belongs to it is not known.")
    insides = {
        platform: torch_inside(update.fetch, middle(release, platform), deep=update.deep)
        for platform in release.platforms
    }
    pair = {package: pair_for(torch, release.day, paired[package]) for package in PAIRED}
    values = {"released": release.day, "pythons": _pythons(release), **pair}
    enter("torch.releases", {"torch": torch}, values)

    def build(cuda: OptStr, platform: str, values: Values) -> None:
        key = {"torch": torch, "variant": variant_of(cuda), "platform": platform}
        enter("torch.builds", key, {"cuda": cuda, **values})

    for platform, inside in insides.items():
        wheel = middle(release, platform)
        glibc = {"glibc": wheel.name.glibc}
        default: Values = {"published": True, **glibc, "default": True, "bytes": wheel.size_bytes}
        if inside.cuda is None:
            build(None, platform, {**default, "archs": []})
            for cuda in {inside.cuda for inside in insides.values() if inside.cuda}:
                if platform.startswith("windows"):
                    build(cuda, platform, {})
            continue
        # Project -> the one version that is required of it.
        pins = {
            requirement.name: exact
            for requirement in map(Requirement, reversed(inside.requires))
            if (exact := pinned_version(str(requirement.specifier)))
        }
        default |= {"toolkit": pins.get("cuda-toolkit"), "archs": inside.archs}
        if platform.startswith("linux"):
            default["cudnn"] = _first(pins, "nvidia-cudnn-cu")
        build(inside.cuda, platform, default)
        libraries = [line for line in inside.requires if _LIBRARY.match(line)]
        enter("pins.pins", {"torch": torch, "platform": platform}, {"requires": libraries})
        build(None, platform, {"archs": [], **glibc})
        if platform != "linux_x86_64":
            continue
        if nccl := _first(pins, "nvidia-nccl-cu"):
            nccl_row = {"default_variant": variant_of(inside.cuda), "default": nccl, "variants": {}}
            enter("libraries.nccl", {"torch": torch}, {**nccl_row, "uncertain": False})
        for requirement in map(Requirement, inside.requires):
            if requirement.name == "triton" and requirement.specifier:
                enter("companions.triton", {}, {torch: str(requirement.specifier)})
    if any(inside.cuda and not inside.archs for inside in insides.values()):
        update.remarks.append(
            f"The GPUs that torch {torch} has code for are not known yet, so it is not prescribed:"
            " --deep reads them out of the wheels."
        )


def _first(pins: Mapping[str, str], start: str) -> OptStr:
    return next((version for name, version in pins.items() if name.startswith(start)), None)


# --- torch's own index ------------------------------------------------------------------------
#
# A page that answered and lacks a release proves that it is not there today, unless it also lacks
# what the tables know to be published of that release: then it is not the whole list. A page that
# did not answer proves nothing.


def torch_index(update: Update) -> None:
    """The variants on torch's own index. Raises NotRead, GivenUp."""
    root = f"{update.torch_index}/"
    for variant in variants_to_read(variants_in(update.get(root), root), update.tables):
        with update.reading():
            enter_variant(update, variant, f"{root}{quote(variant)}/torch/")


def variants_in(body: bytes, base: str) -> Strings:
    """The folders of variants (cpu, cu126) that the root of the index lists.

    Raises NotRead if it names none.
    """
    names = {last_name(link) for link in links_of(body, base)}
    found = [name for name in names if re.fullmatch(r"cpu|cu[0-9]{2,3}", name)]
    if not found:
        raise NotRead(f"The page {base!a} lists no variant.")
    return tuple(sorted(found, key=by_variant))


def variants_to_read(listed: Iterable[str], tables: Tables) -> Strings:
    """The variants whose pages can say something new."""
    builds, newest = tables["torch"]["builds"], watched(tables)
    wanted = {
        row["variant"] for row in builds if row["torch"] in newest or row["published"] is None
    }
    newer = max(by_variant(row["variant"]) for row in builds)
    return tuple(name for name in listed if name in wanted or by_variant(name) > newer)


def watched(tables: Tables) -> list[str]:
    """The newest releases."""
    return [row["torch"] for row in tables["torch"]["releases"][:WATCHED]]


def enter_variant(update: Update, variant: str, url: str) -> None:
    """Enter what the page of one variant says; of macOS and of older releases what is asked only.

    Raises NotRead.
    """
    listed = _listed(variant, files_of("torch", update.get(url), url))
    builds = [row for row in update.tables["torch"]["builds"] if row["variant"] == variant]
    known = {(row["torch"], row["platform"]): row for row in builds}
    newest = watched(update.tables)

    def enter(build: StrPair, values: Values) -> None:
        key = {"torch": build[0], "variant": variant, "platform": build[1]}
        update.enter("torch-index", url, "torch.builds", key, values)

    for build, wheel in listed.items():
        if build[1].startswith("macos") or not (build in known or build[0] in newest):
            continue
        values: Values = {"published": True}
        if build not in known:
            values |= {"glibc": wheel.glibc, "cuda": cuda_of(variant)}
            values |= {"archs": []} if variant == "cpu" else {}
        enter(build, values)
    lacking = {key: row for key, row in known.items() if key not in listed and not row["default"]}
    left_out = {torch for (torch, _), row in lacking.items() if row["published"]}
    left_out -= {torch for torch, _ in listed}
    for (torch, platform), row in lacking.items():
        if row["published"] is None and torch not in left_out:
            enter((torch, platform), {"published": False})
        elif row["published"] and torch in newest:
            update.remarks.append(
                f"torch {torch} {variant} for {platform} is no longer on its index."
            )


def _listed(variant: str, files: Iterable[IndexFile]) -> dict[StrPair, FileName]:
    """Release and platform -> a wheel of that variant. Before 1.9 the default one bore no name."""
    found: dict[StrPair, FileName] = {}
    for wheel in (file.name for file in files):
        bare = wheel.version.local is None
        ours = bare and (variant == "cpu" or wheel.version < FIRST_WITH_DEFAULT_TAG)
        if not wheel.version.is_prerelease and (ours or wheel.version.local == variant):
            found |= {(wheel.version.public, platform): wheel for platform in wheel.platforms}
    return found

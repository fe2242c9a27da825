"""Releases of torch on the package index, and builds on torch's own index -> rows."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from cudadoctor.knowledge.offers import FIRST_WITH_DEFAULT_TAG
from cudadoctor.knowledge.update.index import (
    IndexFile,
    Inside,
    Unreadable,
    Wheel,
    last_name,
    links_of,
    python_order,
    wheel_of,
)
from cudadoctor.knowledge.update.rows import Reading, Row, Tables, build_row, variant_order

PACKAGE_INDEX = "pypi"
TORCH_INDEX = "torch-index"
WATCHED = 3
"""Variants are read for this many of the newest releases, and wherever a row is not known."""

_LIBRARIES = ("cuda-", "nvidia-")


def variant_of(cuda: str | None) -> str:
    """12.6 is "cu126", none is "cpu"."""
    return "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"


def cuda_of(variant: str) -> str | None:
    """cu126 is "12.6", cpu has none."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else None


def minor_of(release: str) -> str:
    """2.15.1 is of 2.15."""
    return ".".join(release.split(".")[:2])


# --- the package index ------------------------------------------------------------------------


class Release:
    """The wheels of one release, by platform."""

    def __init__(self, torch: str, wheels: Iterable[tuple[Wheel, IndexFile]]) -> None:
        self.torch = torch
        self.wheels = tuple(wheels)
        self.platforms = sorted({name for wheel, _ in self.wheels for name in wheel.platforms})

    @property
    def day(self) -> str | None:
        """The day of the first upload, None if one is not known."""
        days = [file.day for _, file in self.wheels]
        return min(day for day in days if day) if days and all(days) else None

    @property
    def yanked(self) -> bool:
        return all(file.yanked for _, file in self.wheels)

    @property
    def pythons(self) -> dict[str, list[str]]:
        """Platform -> the Pythons that it has a wheel for."""
        return {
            platform: _sorted(python for wheel, _ in self.on(platform) for python in wheel.pythons)
            for platform in self.platforms
        }

    def middle(self, platform: str) -> tuple[Wheel, IndexFile]:
        """The wheel that stands for a platform: of its middle Python, without a build tag."""
        found = [pair for pair in self.on(platform) if not pair[1].yanked] or self.on(platform)
        plain = [pair for pair in found if not pair[0].tagged] or found
        usual = [pair for pair in plain if not pair[0].pythons[0].endswith("t")] or plain
        usual.sort(key=lambda pair: python_order(pair[0].pythons[0]))
        return usual[len(usual) // 2]

    def on(self, platform: str) -> list[tuple[Wheel, IndexFile]]:
        """The wheels of a platform with their files."""
        return [pair for pair in self.wheels if platform in pair[0].platforms]


def releases_of(files: Iterable[IndexFile]) -> dict[str, Release]:
    """The final releases that have wheels, newest first."""
    found: dict[str, list[tuple[Wheel, IndexFile]]] = {}
    for file in files:
        wheel = wheel_of(file.filename)
        if wheel is not None and not wheel.version.is_prerelease and wheel.platforms:
            found.setdefault(wheel.version.public, []).append((wheel, file))
    return {name: Release(name, found[name]) for name in sorted(found, key=Version, reverse=True)}


def unknown_releases(releases: Mapping[str, Release], tables: Tables) -> list[Release]:
    """The releases that the tables lack and should have, oldest first."""
    known = {row["torch"] for row in tables["torch"]["releases"]}
    oldest = min(map(Version, known))
    wanted = [
        release
        for name, release in releases.items()
        if name not in known and not release.yanked and Version(name) > oldest
    ]
    return wanted[::-1]


def known_releases(releases: Mapping[str, Release], tables: Tables, url: str) -> Reading:
    """What the index says of releases that the tables have already."""
    rows: list[Row] = []
    remarks: list[str] = []
    for there in tables["torch"]["releases"]:
        release = releases.get(there["torch"])
        if release is None:
            remarks.append(f"torch {there['torch']} is in the tables and not on the index.")
            continue
        if release.yanked:
            remarks.append(f"torch {release.torch} was yanked from the index.")
        known, listed = there["pythons"], release.pythons
        gone = [
            f"Python {python} on {platform}"
            for platform, pythons in known.items()
            for python in pythons
            if python not in listed.get(platform, ())
        ]
        if gone:
            remarks.append(f"torch {release.torch} lost its wheels for {', '.join(gone)}.")
        # A wheel that was there once can still be in a cache: both lists together.
        both = {
            platform: _sorted({*known.get(platform, ()), *listed.get(platform, ())})
            for platform in sorted({*known, *listed})
        }
        rows.append(_row("torch.releases", {"torch": release.torch}, {"pythons": both}, url))
        rows += _sizes(release, tables, url)
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _sizes(release: Release, tables: Tables, url: str) -> Iterable[Row]:
    """The size of a default wheel, if the one in the tables is none of them."""
    for build in tables["torch"]["builds"]:
        if build["torch"] == release.torch and build["default"]:
            sizes = {file.size_bytes for _, file in release.on(build["platform"])} - {None, 0}
            if sizes and build["bytes"] not in sizes:
                size = release.middle(build["platform"])[1].size_bytes
                yield known_build(build, {"bytes": size}, url)


def known_build(build: Mapping[str, Any], values: dict[str, Any], url: str) -> Row:
    """What a wheel of the package index says of a build that the tables have."""
    key = (build["torch"], build["variant"], build["platform"])
    return build_row(key, values, PACKAGE_INDEX, url)


def without_code(tables: Tables) -> list[dict[str, Any]]:
    """The default builds whose code list is not known."""
    return [
        row
        for row in tables["torch"]["builds"]
        if row["default"] and row["cuda"] and row["archs"] is None
    ]


def new_release(
    release: Release, insides: Mapping[str, Inside], pair: Mapping[str, str | None], url: str
) -> tuple[Row, ...]:
    """The rows of a release that the tables lack: what the index and its wheels say, no more.

    insides: platform -> what its wheel says; pair: torchvision and torchaudio. What torch's own
    index may have beside it (a CPU build for Linux, this CUDA build for Windows) is in the rows
    as not known to be published.
    """
    torch = release.torch
    values = {"released": release.day, "pythons": release.pythons, "torchtext": None, **pair}
    rows = [_row("torch.releases", {"torch": torch}, values, url)]

    def build(cuda: str | None, platform: str, **values: Any) -> Row:
        key = (torch, variant_of(cuda), platform)
        return build_row(key, {"cuda": cuda, **values}, PACKAGE_INDEX, url, new=True)

    for platform, inside in sorted(insides.items()):
        rows.append(build(inside.cuda, platform, **_default_build(release, platform, inside)))
        if inside.cuda is not None:
            wanted = [line for line in inside.requires if _is_library(line)]
            key = {"torch": torch, "platform": platform}
            rows.append(_row("pins.pins", key, {"requires": wanted}, url))
            rows.append(build(None, platform, archs=[], glibc=release.middle(platform)[0].glibc))
        elif platform.startswith("windows"):
            found = {inside.cuda for inside in insides.values() if inside.cuda}
            rows += [build(cuda, platform) for cuda in sorted(found)]
    linux = insides.get("linux_x86_64")
    return (*rows, *(_libraries(torch, linux, linux.cuda, url) if linux and linux.cuda else ()))


def _default_build(release: Release, platform: str, inside: Inside) -> dict[str, Any]:
    wheel, file = release.middle(platform)
    values = {"published": True, "glibc": wheel.glibc, "default": True, "bytes": file.size_bytes}
    if inside.cuda is None:
        return {**values, "archs": []}
    pinned = pinned_by(inside.requires)
    linux = platform.startswith("linux")
    return {
        **values,
        "toolkit": pinned.get("cuda-toolkit"),
        "cudnn": _first(pinned, "nvidia-cudnn-cu") if linux else None,
        "archs": list(inside.archs) if inside.archs else None,
    }


def _is_library(line: str) -> bool:
    name = Requirement(line).name
    return name.startswith(_LIBRARIES) or name == "triton"


def _libraries(torch: str, inside: Inside, cuda: str, url: str) -> Iterable[Row]:
    """NCCL and Triton, as the CUDA wheel of Linux on x86_64 pins them."""
    if nccl := _first(pinned_by(inside.requires), "nvidia-nccl-cu"):
        values: dict[str, Any] = {
            "default_variant": variant_of(cuda),
            "default": nccl,
            "variants": {},
            "bundled": None,
            "uncertain": False,
        }
        yield _row("libraries.nccl", {"torch": torch}, values, url)
    triton = next((r for r in map(Requirement, inside.requires) if r.name == "triton"), None)
    if triton is not None and triton.specifier:
        exact = str(triton.specifier).removeprefix("==")
        yield _row("companions.triton", {}, {torch: exact}, url)


def pinned_by(requires: Iterable[str]) -> dict[str, str]:
    """Project -> the one version that is required of it."""
    found: dict[str, str] = {}
    for read in map(Requirement, requires):
        if exact := pinned_version(str(read.specifier)):
            found.setdefault(read.name, exact)
    return found


def pinned_version(specifier: str) -> str | None:
    """The one release that a specifier admits."""
    exact = re.fullmatch(r"==([\d.]+)", specifier)
    return exact[1] if exact else None


def _first(pinned: Mapping[str, str], start: str) -> str | None:
    return next((version for name, version in pinned.items() if name.startswith(start)), None)


def _sorted(pythons: Iterable[str]) -> list[str]:
    return sorted({python for python in pythons if python != "any"}, key=python_order)


def _row(table: str, key: dict[str, str], values: dict[str, Any], url: str) -> Row:
    return Row(table=table, key=key, values=values, source=PACKAGE_INDEX, url=url)


# --- torch's own index ------------------------------------------------------------------------
#
# A page that answered and lacks a release proves that it is not there today, unless it also lacks
# what the tables know to be published of that release: then it is not the whole list. A page that
# did not answer proves nothing.


def variants_in(body: bytes, base: str) -> tuple[str, ...]:
    """The folders of variants (cpu, cu126) that the root of the index lists.

    Raises Unreadable if it names none.
    """
    names = {last_name(link.get("href") or "") for link in links_of(body, base)}
    found = [name for name in names if re.fullmatch(r"cpu|cu[0-9]{2,3}", name)]
    if not found:
        raise Unreadable(f"The page {base!a} lists no variant.")
    return tuple(sorted(found, key=variant_order))


def variants_to_read(listed: Iterable[str], tables: Tables) -> tuple[str, ...]:
    """The variants whose pages can say something new."""
    builds = tables["torch"]["builds"]
    newest = [row["torch"] for row in tables["torch"]["releases"]][:WATCHED]
    wanted = {
        row["variant"] for row in builds if row["torch"] in newest or row["published"] is None
    }
    newer = max(variant_order(row["variant"]) for row in builds)
    return tuple(name for name in listed if name in wanted or variant_order(name) > newer)


def variant_rows(variant: str, files: Iterable[IndexFile], tables: Tables, url: str) -> Reading:
    """What the page of one variant says; of macOS and of older releases only what is asked."""
    listed = _listed(variant, files)
    builds = [row for row in tables["torch"]["builds"] if row["variant"] == variant]
    known = {(row["torch"], row["platform"]): row for row in builds}
    newest = {row["torch"] for row in tables["torch"]["releases"][:WATCHED]}
    rows = []
    for (torch, platform), wheel in listed.items():
        there = (torch, platform) in known
        if platform.startswith("macos") or not (there or torch in newest):
            continue
        values: dict[str, Any] = {"published": True}
        if not there:
            values |= {"glibc": wheel.glibc, "cuda": cuda_of(variant)}
            values |= {"archs": []} if variant == "cpu" else {}
        key = (torch, variant, platform)
        rows.append(build_row(key, values, TORCH_INDEX, url, new=not there))
    lacking = {key: row for key, row in known.items() if key not in listed and not row["default"]}
    left_out = {key[0] for key, row in lacking.items() if row["published"]}
    left_out -= {torch for torch, _ in listed}
    rows += [
        build_row((torch, variant, platform), {"published": False}, TORCH_INDEX, url)
        for (torch, platform), row in lacking.items()
        if row["published"] is None and torch not in left_out
    ]
    remarks = [
        f"torch {torch} {variant} for {platform} is no longer on its index."
        for (torch, platform), row in lacking.items()
        if row["published"] and torch in newest
    ]
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _listed(variant: str, files: Iterable[IndexFile]) -> dict[tuple[str, str], Wheel]:
    """Release and platform -> a wheel of that variant. Before 1.9 the default one bore no name."""
    found: dict[tuple[str, str], Wheel] = {}
    for wheel in filter(None, (wheel_of(file.filename) for file in files)):
        bare = wheel.version.local is None
        ours = bare and (variant == "cpu" or wheel.version < FIRST_WITH_DEFAULT_TAG)
        if not wheel.version.is_prerelease and (ours or wheel.version.local == variant):
            found |= {(wheel.version.public, platform): wheel for platform in wheel.platforms}
    return found

"""Releases of torch on the package index -> rows; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from cudadoctor.knowledge.update.listing import IndexFile
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.knowledge.update.wheel_inside import Inside
from cudadoctor.knowledge.update.wheel_names import Wheel, python_order, wheel_of

SOURCE = "pypi"
_LIBRARIES = ("cuda-", "nvidia-")


class Release:
    """The wheels of one release, by platform."""

    def __init__(self, torch: str, wheels: Iterable[tuple[Wheel, IndexFile]]) -> None:
        self.torch = torch
        self.wheels = tuple(wheels)

    @property
    def day(self) -> str | None:
        """The day of the first upload, None where one is not known."""
        days = [file.day for _, file in self.wheels]
        return min(day for day in days if day) if days and all(days) else None

    @property
    def yanked(self) -> bool:
        return all(file.yanked for _, file in self.wheels)

    def pythons(self) -> dict[str, list[str]]:
        """Platform -> the Pythons that it has a wheel for."""
        return {
            name: _sorted(one for wheel, _ in self._on(name) for one in wheel.pythons)
            for name in self.platforms()
        }

    def platforms(self) -> list[str]:
        return sorted({one for wheel, _ in self.wheels for one in wheel.platforms})

    def sizes(self, platform: str) -> set[int]:
        """The sizes of that platform's wheels, in bytes."""
        return {file.size_bytes for _, file in self._on(platform) if file.size_bytes}

    def middle(self, platform: str) -> tuple[Wheel, IndexFile]:
        """The wheel that stands for a platform: of its middle Python, without a build tag."""
        found = [one for one in self._on(platform) if not one[1].yanked] or self._on(platform)
        plain = [one for one in found if not one[0].tagged] or found
        usual = [one for one in plain if not one[0].pythons[0].endswith("t")] or plain
        usual.sort(key=lambda one: python_order(one[0].pythons[0]))
        return usual[len(usual) // 2]

    def _on(self, platform: str) -> list[tuple[Wheel, IndexFile]]:
        return [one for one in self.wheels if platform in one[0].platforms]


def releases_of(files: Iterable[IndexFile]) -> dict[str, Release]:
    """The final releases that have wheels, newest first."""
    found: dict[str, list[tuple[Wheel, IndexFile]]] = {}
    for file in files:
        wheel = wheel_of(file.filename)
        if wheel is not None and not wheel.version.is_prerelease and wheel.platforms:
            found.setdefault(wheel.version.public, []).append((wheel, file))
    return {name: Release(name, found[name]) for name in sorted(found, key=Version, reverse=True)}


def newest_of(files: Iterable[IndexFile]) -> str | None:
    """The newest final release with a wheel that was not taken back."""
    return next((name for name, one in releases_of(files).items() if not one.yanked), None)


def unknown(releases: Mapping[str, Release], tables: Tables) -> list[Release]:
    """The releases that the tables lack and should have, oldest first."""
    known = {row["torch"] for row in tables["torch"]["releases"]}
    oldest = min(known, key=Version)
    wanted = [
        one for name, one in releases.items()
        if name not in known and not one.yanked and Version(name) > Version(oldest)
    ]  # fmt: skip
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
        gone = _gone(there["pythons"], release.pythons())
        if gone:
            remarks.append(f"torch {release.torch} lost its wheels for {', '.join(gone)}.")
        pythons = _added(there["pythons"], release.pythons())
        rows.append(_row("torch.releases", {"torch": release.torch}, {"pythons": pythons}, url))
        rows += _sizes(release, tables, url)
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _sizes(release: Release, tables: Tables, url: str) -> list[Row]:
    """The size of a default wheel, where the one in the tables is none of them."""
    return [
        _row(
            "torch.builds",
            {name: build[name] for name in ("torch", "variant", "platform")},
            {"bytes": release.middle(build["platform"])[1].size_bytes},
            url,
        )
        for build in tables["torch"]["builds"]
        if build["torch"] == release.torch and build["default"]
        and (sizes := release.sizes(build["platform"])) and build["bytes"] not in sizes
    ]  # fmt: skip


def _gone(known: Mapping[str, list[str]], there: Mapping[str, list[str]]) -> list[str]:
    return [
        f"Python {python} on {platform}"
        for platform, pythons in known.items()
        for python in pythons
        if python not in there.get(platform, ())
    ]


def _added(known: Mapping[str, list[str]], there: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Both together: a wheel that was there once can still be in a cache, and is told apart."""
    return {
        platform: _sorted({*known.get(platform, ()), *there.get(platform, ())})
        for platform in sorted({*known, *there})
    }


def without_code(tables: Tables) -> list[tuple[str, str, str]]:
    """Release, variant and platform of default builds whose code list is not known."""
    return [
        (row["torch"], row["variant"], row["platform"])
        for row in tables["torch"]["builds"]
        if row["default"] and row["cuda"] and row["archs"] is None
    ]


def code(build: tuple[str, str, str], archs: tuple[str, ...], url: str) -> Row:
    """The code list of a build that the tables have."""
    key = dict(zip(("torch", "variant", "platform"), build, strict=True))
    return _row("torch.builds", key, {"archs": list(archs)}, url)


def new_release(
    release: Release, insides: Mapping[str, Inside], pair: Mapping[str, str | None], url: str
) -> tuple[Row, ...]:
    """The rows of a release that the tables lack: what the index and its wheels say, no more.

    insides: platform -> what its wheel says; pair: torchvision and torchaudio. What torch's own
    index may have beside it (a CPU build for Linux, this CUDA build for Windows) is in the rows
    as not known to be published.
    """
    values = {
        "released": release.day,
        "pythons": release.pythons(),
        "torchtext": None,
        **pair,
    }
    rows = [_row("torch.releases", {"torch": release.torch}, values, url)]
    for platform, inside in sorted(insides.items()):
        rows.append(_default_build(release, platform, inside, url))
        if inside.cuda is not None:
            rows.append(_pins(release.torch, platform, inside, url))
            rows.append(_cpu_build(release, platform, url))
        elif platform.startswith("windows"):
            rows += _windows_builds(release.torch, platform, insides, url)
    return (*rows, *_libraries(release.torch, insides, url))


def _default_build(release: Release, platform: str, inside: Inside, url: str) -> Row:
    wheel, file = release.middle(platform)
    pinned = pinned_by(inside.requires)
    linux = platform.startswith("linux")
    archs = list(inside.archs) if inside.archs else None
    return _build(
        (release.torch, variant_of(inside.cuda), platform),
        url,
        cuda=inside.cuda,
        toolkit=pinned.get("cuda-toolkit") if inside.cuda else None,
        cudnn=_first(pinned, "nvidia-cudnn-cu") if inside.cuda and linux else None,
        published=True,
        archs=[] if inside.cuda is None else archs,
        glibc=wheel.glibc,
        default=True,
        bytes=file.size_bytes,
    )


def _cpu_build(release: Release, platform: str, url: str) -> Row:
    """The CPU build beside a CUDA default: it lies on torch's own index, and may or may not."""
    glibc = release.middle(platform)[0].glibc
    return _build((release.torch, "cpu", platform), url, archs=[], glibc=glibc)


def _windows_builds(
    torch: str, platform: str, insides: Mapping[str, Inside], url: str
) -> list[Row]:
    """The CUDA builds of the Linux wheels: the package index has none of them for Windows."""
    found = sorted({one.cuda for one in insides.values() if one.cuda})
    return [_build((torch, variant_of(cuda), platform), url, cuda=cuda) for cuda in found]


def variant_of(cuda: str | None) -> str:
    """12.6 is "cu126", none is "cpu"."""
    return "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"


def _build(key: tuple[str, str, str], url: str, **values: Any) -> Row:
    nothing: dict[str, Any] = {
        **dict.fromkeys(("cuda", "toolkit", "cudnn", "published", "archs", "glibc", "bytes")),
        "uncertain": False,
        "contested": [],
        "default": False,
    }
    names = dict(zip(("torch", "variant", "platform"), key, strict=True))
    return _row("torch.builds", names, {**nothing, **values}, url)


def _pins(torch: str, platform: str, inside: Inside, url: str) -> Row:
    wanted = [line for line in inside.requires if _is_library(line)]
    return _row("pins.pins", {"torch": torch, "platform": platform}, {"requires": wanted}, url)


def _is_library(line: str) -> bool:
    name = Requirement(line).name
    return name.startswith(_LIBRARIES) or name == "triton"


def _libraries(torch: str, insides: Mapping[str, Inside], url: str) -> list[Row]:
    """NCCL and Triton, as the CUDA wheel of Linux on x86_64 pins them."""
    inside = insides.get("linux_x86_64")
    if inside is None or inside.cuda is None:
        return []
    rows = []
    nccl = _first(pinned_by(inside.requires), "nvidia-nccl-cu")
    if nccl:
        variant = variant_of(inside.cuda)
        values: dict[str, Any] = {
            "default_variant": variant,
            "default": nccl,
            "variants": {},
            "bundled": None,
        }
        rows.append(_row("libraries.nccl", {"torch": torch}, {**values, "uncertain": False}, url))
    triton = next((r for r in map(Requirement, inside.requires) if r.name == "triton"), None)
    if triton is not None and triton.specifier:
        exact = str(triton.specifier).removeprefix("==")
        rows.append(_row("companions.triton", {}, {torch: exact}, url))
    return rows


def pinned_by(requires: Iterable[str]) -> dict[str, str]:
    """Project -> the one version that is required of it."""
    found: dict[str, str] = {}
    for line in requires:
        read = Requirement(line)
        exact = re.fullmatch(r"==([\d.]+)", str(read.specifier))
        if exact:
            found.setdefault(read.name, exact[1])
    return found


def _first(pinned: Mapping[str, str], start: str) -> str | None:
    return next((version for name, version in pinned.items() if name.startswith(start)), None)


def _sorted(pythons: Iterable[str]) -> list[str]:
    return sorted({one for one in pythons if one != "any"}, key=python_order)


def _row(table: str, key: dict[str, str], values: dict[str, Any], url: str) -> Row:
    return Row(table=table, key=key, values=values, source=SOURCE, url=url)

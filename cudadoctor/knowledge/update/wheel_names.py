"""What the name of a file on an index says: release, Pythons, platform, oldest glibc."""

from __future__ import annotations

import re

import msgspec
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

NAMED_GLIBC = {"manylinux1": "2.17", "manylinux2010": "2.12", "manylinux2014": "2.17"}
"""manylinux1 promises 2.5; the wheels that torch gave that tag were built on a system with 2.17."""

_LONGEST = 300


class Wheel(msgspec.Struct, frozen=True):
    """A wheel by its name. version: with its local part. tagged: it bears a build tag.

    pythons: "3.11", "3.14t"; "any" for a wheel that is made for no Python in particular.
    """

    name: str
    version: Version
    tagged: bool
    pythons: tuple[str, ...]
    platforms: tuple[str, ...]
    glibc: str | None


def wheel_of(filename: str) -> Wheel | None:
    """The wheel of that name, None where it is no wheel."""
    try:
        name, version, build, tags = parse_wheel_filename(filename[:_LONGEST])
    except (InvalidWheelFilename, InvalidVersion, ValueError):
        return None
    return Wheel(
        name=name,
        version=version,
        tagged=bool(build),
        pythons=tuple(sorted({python_of(tag) for tag in tags}, key=python_order)),
        platforms=tuple(sorted({one for tag in tags for one in platforms_of(tag.platform)})),
        glibc=_least_glibc(tag.platform for tag in tags),
    )


def release_of(filename: str) -> tuple[str, Version] | None:
    """The project and release of a wheel or a source archive, None for any other name."""
    wheel = wheel_of(filename)
    if wheel is not None:
        return wheel.name, wheel.version
    try:
        return parse_sdist_filename(filename[:_LONGEST])
    except (InvalidSdistFilename, InvalidVersion, ValueError):
        return None


def python_of(tag: Tag) -> str:
    """cp311-cp311 is "3.11", cp314-cp314t is "3.14t", py3-none is "any"."""
    found = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
    if found is None:
        return "any"
    return f"{found[1]}.{found[2]}{'t' if tag.abi.endswith('t') else ''}"


def python_order(python: str) -> tuple[int, ...]:
    """3.9 before 3.10, 3.14 before 3.14t."""
    numbers = [int(part) for part in re.findall(r"\d+", python)]
    return (*numbers, int(python.endswith("t")))


def platforms_of(tag: str) -> tuple[str, ...]:
    """Our names of the platforms that a tag serves, () for one that the tables do not have."""
    if re.fullmatch(
        r"(many|musl)?linux(_?[\d_]+)?_?\w*_(x86_64|aarch64)|linux_(x86_64|aarch64)", tag
    ):
        return (
            () if tag.startswith("musl") else (f"linux_{'x86_64' if 'x86' in tag else 'aarch64'}",)
        )
    if tag in ("win_amd64", "win_arm64"):
        return (tag.replace("win", "windows"),)
    found = re.fullmatch(r"macosx_\d+_\d+_(arm64|x86_64|universal2)", tag)
    if found is None:
        return ()
    both = ("macos_arm64", "macos_x86_64")
    return both if found[1] == "universal2" else (f"macos_{found[1]}",)


def _least_glibc(tags: object) -> str | None:
    found = [one for tag in tags for one in _glibc(str(tag))]  # type: ignore[attr-defined]
    return min(found, key=Version) if found else None


def _glibc(tag: str) -> tuple[str, ...]:
    exact = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    if exact:
        return (f"{exact[1]}.{exact[2]}",)
    return tuple(floor for name, floor in NAMED_GLIBC.items() if tag.startswith(f"{name}_"))

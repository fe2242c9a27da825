"""nvidia/cuda images that are known to exist, for a build and the driver under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Container

    from cudadoctor.knowledge import Knowledge

Flavour = Literal["base", "devel"]

PLAIN = "ubuntu:24.04"
PYTHON_OF = {"ubuntu24.04": "3.12", "ubuntu22.04": "3.10", "ubuntu26.04": "3.14"}
"""The Python of each distribution, the preferred distribution first."""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image. python: of its distribution; cuda: what it asks a driver for, None for nothing."""

    name: str
    python: str
    cuda: Version | None = None


def image_for(
    kb: Knowledge,
    cuda: Version,
    *,
    runs: Version | None,
    python: str | None = None,
    pythons: Container[str] | None = None,
    flavour: Flavour = "base",
) -> Image | None:
    """The image for a build of this CUDA version, None where the tables have none that suits.

    Not newer than the driver's own CUDA (runs): these images refuse to start on an older driver of
    a GeForce, although the wheels in them would run. Where the driver is not known, the oldest of
    the major that the preferred distribution has. python: the wished one, which decides where an
    image has it; pythons: those that the build is made for, where only the image's own can be used.
    flavour: "devel" has nvcc.
    """
    found = tuple(_all(kb, cuda.major, cuda.minor, flavour))
    if pythons is not None:
        found = tuple(one for one in found if one.python in pythons)
    if python is not None and any(one.python == python for one in found):
        found = tuple(one for one in found if one.python == python)
    if runs is not None and runs.major >= cuda.major:
        found = tuple(one for one in found if one.cuda is not None and one.cuda <= runs)
        return max(found, key=_newness, default=None)
    return min(found, key=_age, default=None)


def _all(kb: Knowledge, major: int, newest: int, flavour: Flavour) -> list[Image]:
    """The newest image of each minor up to the newest, on each distribution."""
    found = []
    for minor in range(newest + 1):
        cuda = Version(f"{major}.{minor}")
        for distro, python in PYTHON_OF.items():
            if tag := kb.newest_docker_tag(cuda, flavour, distro):
                found.append(Image(name=f"nvidia/cuda:{tag}", python=python, cuda=cuda))
    return found


def _rank(image: Image) -> int:
    return list(PYTHON_OF.values()).index(image.python)


def _newness(image: Image) -> tuple[Version, int]:
    return image.cuda or Version("0"), -_rank(image)


def _age(image: Image) -> tuple[int, Version]:
    return _rank(image), image.cuda or Version("0")

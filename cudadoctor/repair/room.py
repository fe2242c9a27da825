"""How much disk an installation takes, and whether it is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping

import msgspec

UNPACKED_MANY = 2.0
"""Installed bytes for each byte of the wheels. Measured for torch 2.14.1 with its CUDA libraries:
3.07 GB of wheels are 5.56 GB installed, 1.81 times."""
UNPACKED_FEW = 4.3
"""The same for single wheels, of which triton (3.8) and sympy (4.2) are the most compressed."""
MANY_BYTES = 1_000_000_000
SPARE_BYTES = 50_000_000
"""For byte code, the journal and the log."""


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """What will be downloaded. known: the sum is exact; otherwise it is at least that much."""

    bytes: int
    known: bool


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a folder's file system must have free, and what for."""

    folder: str
    bytes: int
    what: str


def unpacked(download: int) -> int:
    """Bytes that wheels of so many bytes take when they are installed, estimated from above."""
    factor = UNPACKED_MANY if download >= MANY_BYTES else UNPACKED_FEW
    return int(download * factor)


def needs(
    download: Download | None, prefix: str, temporary: str, cache: str | None, copied_bytes: int
) -> tuple[Need, ...]:
    """What is needed where. cache: pip's, None where it is switched off. copied_bytes: of the
    environment, where the snapshot cannot consist of links."""
    size = download.bytes if download else 0
    found = [Need(folder=prefix, bytes=unpacked(size) + SPARE_BYTES, what="the packages")]
    if copied_bytes:
        found.append(Need(folder=prefix, bytes=copied_bytes, what="a copy of what is there"))
    if size:
        found.append(Need(folder=temporary, bytes=size, what="the downloads"))
        if cache:
            found.append(Need(folder=cache, bytes=size, what="the package cache"))
    return tuple(found)


def lacking(wanted: tuple[Need, ...]) -> str | None:
    """A sentence about the first file system that is too small, None where all fits."""
    systems: dict[object, list[Need]] = {}
    for one in wanted:
        systems.setdefault(_system_of(one.folder), []).append(one)
    for some in systems.values():
        total = sum(one.bytes for one in some)
        free = _free(some[0].folder)
        if free is not None and free < total:
            purposes = " and ".join(dict.fromkeys(one.what for one in some))
            return (
                f"{shown(total)} are needed under {some[0].folder} for {purposes},"
                f" and {shown(free)} are free: make room there first"
            )
    return None


def shown(size: int) -> str:
    """Bytes as people say them."""
    if size >= 1_000_000_000:
        return f"{size / 1e9:.1f} GB"
    return f"{max(1, round(size / 1e6))} MB"


def temporary_folder(env: Mapping[str, str]) -> str:
    """Where pip puts its downloads."""
    return env.get("TMPDIR") or tempfile.gettempdir()


def cache_folder(env: Mapping[str, str]) -> str | None:
    """pip's cache, None where it is switched off."""
    if env.get("PIP_NO_CACHE_DIR", "").lower() in ("1", "true", "yes", "on"):
        return None
    home = os.path.expanduser("~")
    usual = os.path.join(env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "pip")
    return env.get("PIP_CACHE_DIR") or usual


def _there(folder: str) -> str:
    """The nearest folder above that exists."""
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder or os.curdir


def _system_of(folder: str) -> object:
    try:
        return os.stat(_there(folder)).st_dev
    except OSError:
        return folder


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(_there(folder)).free
    except OSError:
        return None

"""The files of conda-forge's pytorch package: which release with which CUDA on which platform."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.build.seen import row_of
from cudadoctor.knowledge.update.pages import Unreadable, decoded
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.model.versions import version_of

SOURCE = "conda-forge"
URL = "https://api.anaconda.org/package/conda-forge/pytorch/files"
TITLE = "Files of pytorch on the conda-forge channel"
PLATFORMS = {"linux-64": "linux_64", "linux-aarch64": "linux_aarch64", "win-64": "win_64"}


class _Attributes(msgspec.Struct):
    subdir: str
    build: str
    depends: list[str] = []


class _File(msgspec.Struct):
    version: str
    attrs: _Attributes


def read(body: bytes, tables: Tables, url: str) -> Reading:
    """Releases and CUDA versions that the tables lack."""
    files = decoded(body, list[_File], f"{url!a}")
    listed: dict[str, set[str]] = {}
    for one in files:
        cuda = _cuda(one.attrs)
        if cuda and one.attrs.subdir in PLATFORMS and _final(one.version):
            listed.setdefault(one.version, set()).add(f"{PLATFORMS[one.attrs.subdir]}:{cuda}")
    if not listed:
        raise Unreadable(f"{url!a} lists no CUDA build of pytorch.")
    oldest = min(Version(row["torch"]) for row in tables["conda"]["conda_forge"])
    found = {torch: cuda for torch, cuda in listed.items() if Version(torch) >= oldest}
    return Reading(rows=tuple(_row(tables, torch, cuda, url) for torch, cuda in found.items()))


def _row(tables: Tables, torch: str, cuda: set[str], url: str) -> Row:
    there = row_of(tables["conda"]["conda_forge"], {"torch": torch})
    known = set(there["cuda"]) if there else set()
    return Row(
        table="conda.conda_forge",
        key={"torch": torch},
        values={"cuda": sorted(known | cuda)},
        source=SOURCE,
        url=url,
    )


def _cuda(attributes: _Attributes) -> str | None:
    """The CUDA version of a build, by its requirement, else by its name; None for a CPU build."""
    if not attributes.build.startswith("cuda"):
        return None
    for wanted in attributes.depends:
        found = re.fullmatch(
            r"cuda-version >=([0-9]{1,2}\.[0-9]{1,2}),<[0-9]{1,2}(?:\.0a0)?", wanted
        )
        if found:
            return found[1]
    named = re.match(r"cuda_?([0-9]{2,3})(?![0-9])", attributes.build)
    return f"{named[1][:-1]}.{named[1][-1]}" if named else None


def _final(version: str) -> bool:
    found = version_of(version)
    return found is not None and not found.is_prerelease

"""Docker Hub's list of tags of nvidia/cuda, page by page."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from cudadoctor.knowledge.build.seen import row_of
from cudadoctor.knowledge.update.pages import Unreadable, decoded
from cudadoctor.knowledge.update.rows import Reading, Row, Tables

SOURCE = "docker-hub"
URL = "https://hub.docker.com/v2/repositories/nvidia/cuda/tags?page_size=100"
TITLE = "Docker Hub, tags of nvidia/cuda"
MOST_PAGES = 60

_TAG = re.compile(
    r"(\d{1,2}\.\d{1,2}\.\d{1,3})"
    r"-((?:cudnn\d?-|tensorrt-)?(?:base|runtime|devel))"
    r"-([a-z]{2,20}\d[\d.]{0,7})",
    re.ASCII,
)


class _Tag(msgspec.Struct):
    name: str


class _Page(msgspec.Struct):
    results: list[_Tag]
    next: str | None = None


class Tags(msgspec.Struct, frozen=True):
    """The names on one page, and the page after it, None for the last."""

    names: tuple[str, ...]
    following: str | None


def page(body: bytes, url: str) -> Tags:
    """One page of tags. Raises Unreadable."""
    found = decoded(body, _Page, f"{url!a}")
    return Tags(tuple(one.name for one in found.results), found.next)


def read(names: tuple[str, ...], tables: Tables, url: str) -> Reading:
    """Tags that the tables lack. names: of all pages. A tag that is gone is only told."""
    listed: dict[tuple[str, str], set[str]] = {}
    for name in names:
        found = _TAG.fullmatch(name)
        if found:
            listed.setdefault((found[1], found[3]), set()).add(found[2])
    if not listed:
        raise Unreadable(f"{url!a} lists no tag of a CUDA release.")
    rows = [
        _row(tables, cuda, distro, flavours, url) for (cuda, distro), flavours in listed.items()
    ]
    newest = max((cuda for cuda, _ in listed), key=Version)
    if Version(newest) > Version(tables["images"]["complete_to"]):
        values = {"complete_to": newest}
        rows.append(Row(table="images", key={}, values=values, source=SOURCE, url=url))
    return Reading(rows=tuple(rows))


def _row(tables: Tables, cuda: str, distro: str, flavours: set[str], url: str) -> Row:
    key = {"cuda": cuda, "distro": distro}
    there = row_of(tables["images"]["tags"], key)
    known = set(there["flavours"]) if there else set()
    values = {"flavours": sorted(flavours | known)}
    return Row(table="images.tags", key=key, values=values, source=SOURCE, url=url)

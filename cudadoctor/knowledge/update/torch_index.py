"""torch's own index -> rows: which variant has which release on which platform; pure.

A page that answered and lacks a release proves that it is not there today; a page that did not
answer proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from cudadoctor.knowledge.update.listing import IndexFile, links_of
from cudadoctor.knowledge.update.pages import Unreadable
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.knowledge.update.wheel_names import Wheel, wheel_of

SOURCE = "torch-index"
WATCHED = 3
"""Variants are read for this many of the newest releases, and wherever a row is not known."""


def variants_in(body: bytes, base: str) -> tuple[str, ...]:
    """The folders of variants (cpu, cu126) that the root of the index lists.

    Raises Unreadable where it names none.
    """
    found = set()
    for link in links_of(body, base):
        name = urlsplit(link.get("href") or "").path.rstrip("/").rpartition("/")[2]
        if re.fullmatch(r"cpu|cu\d{2,3}", name):
            found.add(name)
    if not found:
        raise Unreadable(f"The page {base!a} lists no variant.")
    return tuple(sorted(found, key=_order))


def to_read(listed: Iterable[str], tables: Tables) -> tuple[str, ...]:
    """The variants whose pages can say something new."""
    builds = tables["torch"]["builds"]
    newest = [row["torch"] for row in tables["torch"]["releases"]][:WATCHED]
    wanted = {
        row["variant"] for row in builds if row["torch"] in newest or row["published"] is None
    }
    known = {row["variant"] for row in builds}
    newer = max(map(_order, known))
    return tuple(one for one in listed if one in wanted or _order(one) > newer)


def rows_of(
    variant: str, files: Iterable[IndexFile], tables: Tables, url: str, more: Iterable[str] = ()
) -> Reading:
    """What the page of one variant says. more: releases that the tables are about to get."""
    wheels = [wheel for file in files if (wheel := wheel_of(file.filename))]
    ours = [one for one in wheels if one.version.local in (variant, None) and _final(one)]
    listed: dict[tuple[str, str], Wheel] = {
        (one.version.public, platform): one for one in ours for platform in one.platforms
    }
    builds = [row for row in tables["torch"]["builds"] if row["variant"] == variant]
    known = {(row["torch"], row["platform"]): row for row in builds}
    newest = {row["torch"] for row in tables["torch"]["releases"][:WATCHED]} | set(more)
    rows = [
        _published(variant, key, wheel, known.get(key), url)
        for key, wheel in listed.items()
        if (key in known or key[0] in newest) and not key[1].startswith("macos")
    ]
    absent, remarks = [], []
    for key, row in known.items():
        if key not in listed and row["published"] is None:
            absent.append(_row(key, variant, {"published": False}, url))
        elif key not in listed and row["published"] and key[0] in newest and not row["default"]:
            remarks.append(f"torch {key[0]} {variant} for {key[1]} is no longer on its index.")
    return Reading(rows=(*rows, *absent), remarks=tuple(remarks))


def _published(
    variant: str, key: tuple[str, str], wheel: Wheel, known: dict[str, Any] | None, url: str
) -> Row:
    if known is not None:
        return _row(key, variant, {"published": True}, url)
    nothing = dict.fromkeys(("toolkit", "cudnn", "archs", "bytes"))
    values: dict[str, Any] = {
        **nothing,
        "cuda": cuda_of(variant),
        "published": True,
        "uncertain": False,
        "contested": [],
        "glibc": wheel.glibc,
        "default": False,
    }
    if variant == "cpu":
        values["archs"] = []
    return _row(key, variant, values, url)


def cuda_of(variant: str) -> str | None:
    """cu126 is "12.6", cpu has none."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else None


def _final(wheel: Wheel) -> bool:
    return not wheel.version.is_prerelease


def _order(variant: str) -> int:
    return int(re.sub(r"\D", "", variant) or 0)


def _row(key: tuple[str, str], variant: str, values: dict[str, Any], url: str) -> Row:
    names = {"torch": key[0], "variant": variant, "platform": key[1]}
    return Row(table="torch.builds", key=names, values=values, source=SOURCE, url=url)

"""torch's own index -> rows: which variant has which release on which platform; pure.

A page that answered and lacks a release proves that it is not there today, unless it also lacks
what the tables know to be published of that release: then it is not the whole list. A page that
did not answer proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from cudadoctor.knowledge.offers import FIRST_WITH_DEFAULT_TAG
from cudadoctor.knowledge.update.listing import IndexFile, links_of
from cudadoctor.knowledge.update.pages import Unreadable, last_name
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
        name = last_name(link.get("href") or "")
        if re.fullmatch(r"cpu|cu[0-9]{2,3}", name):
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


def rows_of(variant: str, files: Iterable[IndexFile], tables: Tables, url: str) -> Reading:
    """What the page of one variant says; of macOS and of older releases only what is asked."""
    listed = _listed(variant, files)
    builds = [row for row in tables["torch"]["builds"] if row["variant"] == variant]
    known = {(row["torch"], row["platform"]): row for row in builds}
    newest = {row["torch"] for row in tables["torch"]["releases"][:WATCHED]}
    rows = [
        _published(variant, key, wheel, known.get(key), url)
        for key, wheel in listed.items()
        if (key in known or key[0] in newest) and not key[1].startswith("macos")
    ]
    lacking = {key: row for key, row in known.items() if key not in listed and not row["default"]}
    left_out = {key[0] for key, row in lacking.items() if row["published"]}
    left_out -= {torch for torch, _ in listed}
    rows += [
        _row(key, variant, {"published": False}, url)
        for key, row in lacking.items()
        if row["published"] is None and key[0] not in left_out
    ]
    remarks = [
        f"torch {key[0]} {variant} for {key[1]} is no longer on its index."
        for key, row in lacking.items()
        if row["published"] and key[0] in newest
    ]
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _listed(variant: str, files: Iterable[IndexFile]) -> dict[tuple[str, str], Wheel]:
    """Release and platform -> a wheel of that variant. Before 1.9 the default one bore no name."""
    found: dict[tuple[str, str], Wheel] = {}
    for file in files:
        wheel = wheel_of(file.filename)
        if wheel is None or wheel.version.is_prerelease:
            continue
        bare = wheel.version.local is None
        ours = bare and (variant == "cpu" or wheel.version < FIRST_WITH_DEFAULT_TAG)
        if ours or wheel.version.local == variant:
            found |= {(wheel.version.public, one): wheel for one in wheel.platforms}
    return found


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


def _order(variant: str) -> int:
    return int(re.sub(r"\D", "", variant) or 0)


def _row(key: tuple[str, str], variant: str, values: dict[str, Any], url: str) -> Row:
    names = {"torch": key[0], "variant": variant, "platform": key[1]}
    return Row(table="torch.builds", key=names, values=values, source=SOURCE, url=url)

"""Puts the rows that an update saw into the tables: one function for the update and a rebuild.

A row names its table ("torch.builds"), the columns that make it that row (`key`), the columns that
were seen (`values`), its source and the day. Columns that nobody saw stay as they are; in a row
that was new to the tables (`new`) they are null, which is "not known". The result does not depend
on how often rows are put in.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import Version

Tables = Mapping[str, dict[str, Any]]
PREFIX = "seen"
"""Of the keys of sources that an update named."""


def _newest_first(text: str) -> tuple[int, ...]:
    numbers = [-part for part in Version(text).release]
    return tuple([*numbers, 0, 0, 0, 0][:4])


def _variant(name: str) -> tuple[bool, int]:
    return name == "cpu", int(re.sub(r"\D", "", name) or 0)


ORDER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "torch.releases": lambda row: _newest_first(row["torch"]),
    "torch.builds": lambda row: (
        _newest_first(row["torch"]),
        _variant(row["variant"]),
        row["platform"],
    ),
    "pins.pins": lambda row: (_newest_first(row["torch"]), row["platform"]),
    "companions.releases": lambda row: Version(row["version"]),
    "images.tags": lambda row: (_newest_first(row["cuda"]), row["distro"]),
    "conda.conda_forge": lambda row: Version(row["torch"]),
    "libraries.nccl": lambda row: Version(row["torch"]),
    "drivers.toolkits": lambda row: _newest_first(row["toolkit"]),
}
"""The lists that an update writes, and the order of their rows (companions: within a package)."""

SOURCES = {"conda.conda_forge": "conda_forge_sources", "companions.triton": "prebuilt_sources"}
"""Where the sources stand in a table whose rows have none of their own."""


def merged(tables: Tables, seen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables with the seen rows in them; both arguments stay as they are.

    What was seen before the tables were collected fills gaps and contradicts nothing. Raises
    KeyError for a table that is not there.
    """
    found = copy.deepcopy(dict(tables))
    collected = str(found["torch"]["collected"])
    for row in sorted(seen["rows"], key=lambda one: str(one["seen"])):
        enter(found, row, older=str(row["seen"]) < collected)
    for name, source in seen["_about"]["sources"].items():
        found["sources"]["sources"][f"{PREFIX}.{name}"] = dict(source)
    found["sources"]["sources"] = dict(sorted(found["sources"]["sources"].items()))
    found["torch"]["collected"] = max(collected, str(seen["_about"]["collected"]))
    return found


def enter(tables: dict[str, dict[str, Any]], row: Mapping[str, Any], *, older: bool) -> None:
    """Put one row in. older: it was seen before the tables were collected."""
    full = str(row["table"])
    name, _, part = full.partition(".")
    table = tables[name]
    place = table[part] if part else table
    if isinstance(place, dict):
        changed = _set(place, row["values"], older)
        if part:
            table[part] = dict(sorted(place.items(), key=lambda one: Version(one[0])))
    else:
        if row_of(place, row["key"]) is None and not row["new"]:
            return  # a part of a row that the facts no longer have
        place, changed = _in_list(place, row, older)
        table[part] = _ordered(full, rows=table[part])
    if changed:
        _cite(table, full, place, f"{PREFIX}.{row['source']}")


def row_of(rows: list[dict[str, Any]], key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row with these columns."""
    return next((row for row in rows if all(row[name] == key[name] for name in key)), None)


def _in_list(
    rows: list[dict[str, Any]], row: Mapping[str, Any], older: bool
) -> tuple[dict[str, Any], bool]:
    there = row_of(rows, row["key"])
    if there is not None:
        return there, _set(there, row["values"], older)
    new = {**dict.fromkeys(rows[0]), **row["key"], **row["values"]}
    if "sources" in new:
        new["sources"] = []
    rows.append(new)
    return new, True


def _ordered(name: str, *, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if name != "companions.releases":
        return sorted(rows, key=ORDER[name])
    packages = list(dict.fromkeys(row["package"] for row in rows))
    return sorted(rows, key=lambda row: (packages.index(row["package"]), ORDER[name](row)))


def _set(place: dict[str, Any], values: Mapping[str, Any], older: bool) -> bool:
    """Whether any of these values stands there now. A null is no news: it replaces nothing."""
    for name, value in values.items():
        known = place.get(name) is not None
        if not known or not (older or value is None):
            place[name] = value
    return any(place.get(name) == value for name, value in values.items())


def _cite(table: dict[str, Any], name: str, row: dict[str, Any], source: str) -> None:
    place, column = (table, SOURCES[name]) if name in SOURCES else (row, "sources")
    if column in place and source not in place[column]:
        place[column] = [*place[column], source]

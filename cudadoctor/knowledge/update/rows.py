"""Rows that were seen, and what of them is new against the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cudadoctor.knowledge.build.seen import row_of

Tables = Mapping[str, dict[str, Any]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen: columns of one row of a table, see `knowledge.build.seen`.

    source: short name of where it was seen; url: the page. fills: the values fill gaps only, and
    stay out where the tables know better.
    """

    table: str
    key: dict[str, str]
    values: dict[str, Any]
    source: str
    url: str
    fills: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A row whose values differ. before: what stands there now; None for a new row."""

    row: Row
    before: dict[str, Any] | None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one place gave. remarks: sentences for a person to judge; nothing is written for them.

    failures: what could not be read.
    """

    rows: tuple[Row, ...] = ()
    remarks: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def joined(readings: Iterable[Reading]) -> Reading:
    """All of them as one."""
    found = list(readings)
    return Reading(
        rows=tuple(row for one in found for row in one.rows),
        remarks=tuple(text for one in found for text in one.remarks),
        failures=tuple(text for one in found for text in one.failures),
    )


def difference(tables: Tables, rows: Iterable[Row]) -> tuple[Change, ...]:
    """What is new: of each row the values that the tables have otherwise or not at all."""
    changes = (_change(tables, row) for row in rows)
    return tuple(one for one in changes if one is not None)


def _change(tables: Tables, row: Row) -> Change | None:
    name, _, part = row.table.partition(".")
    place = tables[name][part] if part else tables[name]
    there = row_of(place, row.key) if isinstance(place, list) else place
    if there is None:
        return Change(row=row, before=None)
    differing = {
        column: value
        for column, value in row.values.items()
        if there.get(column) != value
        and (there.get(column) is None or not (row.fills or value is None))
    }
    if not differing:
        return None
    before = {column: there.get(column) for column in differing}
    return Change(row=msgspec.structs.replace(row, values=differing), before=before)


def journal(
    seen: Mapping[str, Any], changes: Iterable[Change], sources: Mapping[str, str], day: str
) -> dict[str, Any]:
    """The journal of seen rows with these changes, one row a table, key and day.

    sources: short name -> title of every place that was asked.
    """
    rows = {_name(row): dict(row) for row in seen["rows"]}
    known = {name: dict(source) for name, source in seen["_about"]["sources"].items()}
    for one in changes:
        row = {**msgspec.to_builtins(one.row), "seen": day, "new": one.before is None}
        del row["fills"]
        old = rows.get(_name(row), {"values": {}, "new": False})
        values = {**old["values"], **row["values"]}
        rows[_name(row)] = {**row, "values": values, "new": row["new"] or old["new"]}
        known[row["source"]] = {
            "title": sources[row["source"]],
            "url": _place(row["url"]),
            "date": day,
        }
    ordered = [row for _, row in sorted(rows.items(), key=lambda item: item[0])]
    return {"_about": {**seen["_about"], "sources": dict(sorted(known.items()))}, "rows": ordered}


def _name(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["seen"], row["table"], json.dumps(row["key"], sort_keys=True), row["source"]


def _place(url: str) -> str:
    """The address of a place without the page of one project."""
    for end in ("/simple/", "/whl/"):
        if end in url:
            return url.partition(end)[0] + end
    return url

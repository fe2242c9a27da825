"""Rows that were read: what of them is new, how it enters the tables, and how a person reads it.

Nothing here touches the network or a file. Columns that nobody read stay as they are; in a new row
they are null, which is "not known".
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from packaging.version import Version

Tables = Mapping[str, dict[str, Any]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one place says of one row.

    table: its name, "torch.builds"; key: the columns that make it that row; values: the columns
    that were read. source: short name of the place; url: the page. fills: the values fill gaps
    only, and stay out if the tables know better.
    """

    table: str
    key: dict[str, str]
    values: dict[str, Any]
    source: str
    url: str
    fills: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A row whose values differ. before: what the table holds now; None for a new row."""

    row: Row
    before: dict[str, Any] | None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one place gave. remarks: sentences for a person to judge; nothing is written for them.

    failures: what could not be read.
    """

    rows: tuple[Row, ...] = ()
    remarks: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def build_row(
    build: tuple[str, str, str], values: dict[str, Any], source: str, url: str, *, new: bool = False
) -> Row:
    """A row of a build. build: release, variant, platform; new: columns not given are unknown."""
    unknown = ("cuda", "toolkit", "cudnn", "published", "archs", "glibc", "bytes")
    if new:
        nothing: dict[str, Any] = {
            **dict.fromkeys(unknown),
            "uncertain": False,
            "contested": [],
            "default": False,
        }
        values = nothing | values
    key = dict(zip(("torch", "variant", "platform"), build, strict=True))
    return Row(table="torch.builds", key=key, values=values, source=source, url=url)


def row_of(rows: Iterable[dict[str, Any]], key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row with these columns."""
    return next((row for row in rows if all(row[name] == key[name] for name in key)), None)


def difference(tables: Tables, rows: Iterable[Row]) -> tuple[Change, ...]:
    """What is new: of each row the values that the tables have otherwise or not at all."""
    return tuple(change for row in rows if (change := _change(tables, row)))


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
    before = {column: there.get(column) for column in differing}
    new = msgspec.structs.replace(row, values=differing)
    return Change(row=new, before=before) if differing else None


# --- into the tables --------------------------------------------------------------------------


def _newest_first(text: str) -> tuple[int, ...]:
    return tuple([*(-part for part in Version(text).release), 0, 0, 0, 0][:4])


def variant_order(variant: str) -> int:
    """cu92 before cu126; cpu has no number."""
    return int(re.sub(r"\D", "", variant) or 0)


PACKAGE_ORDER = "companions.releases"
"""The table whose rows keep their packages together, in the order in which they came."""

ORDER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "torch.releases": lambda row: _newest_first(row["torch"]),
    "torch.builds": lambda row: (
        _newest_first(row["torch"]),
        row["variant"] == "cpu",
        variant_order(row["variant"]),
        row["platform"],
    ),
    "pins.pins": lambda row: (_newest_first(row["torch"]), row["platform"]),
    PACKAGE_ORDER: lambda row: Version(row["version"]),
    "images.tags": lambda row: (_newest_first(row["cuda"]), row["distro"]),
    "conda.conda_forge": lambda row: Version(row["torch"]),
    "libraries.nccl": lambda row: Version(row["torch"]),
    "drivers.toolkits": lambda row: _newest_first(row["toolkit"]),
}
"""The lists that an update writes, and the order of their rows (companions: within a package)."""

SOURCES = {"conda.conda_forge": "conda_forge_sources", "companions.triton": "prebuilt_sources"}
"""Where the sources stand in a table whose rows have none of their own."""


def entered(
    tables: Tables, changes: Iterable[Change], titles: Mapping[str, str], day: str
) -> dict[str, dict[str, Any]]:
    """The tables with these changes in them, each with its source; the arguments stay as they are.

    titles: short name -> title of every place that was read.
    """
    found = copy.deepcopy(dict(tables))
    sources = found["sources"]["sources"]
    for row in (change.row for change in changes):
        name, _, part = row.table.partition(".")
        table = found[name]
        place = _entered(table, part, row) if part else table
        place |= row.values
        if part and isinstance(table[part], dict):
            table[part] = dict(sorted(place.items(), key=lambda item: Version(item[0])))
        elif part:
            table[part] = _ordered(row.table, table[part])
        key = f"seen.{row.source}"
        cited, column = (table, SOURCES[row.table]) if row.table in SOURCES else (place, "sources")
        if column in cited and key not in cited[column]:
            cited[column] = [*cited[column], key]
        sources[key] = {"title": titles[row.source], "url": _place(row.url), "date": day}
    found["sources"]["sources"] = dict(sorted(sources.items()))
    return found


def _entered(table: dict[str, Any], part: str, row: Row) -> dict[str, Any]:
    """The entry of the table that a row speaks of; a new one has null in every column."""
    place: Any = table[part]
    if isinstance(place, dict):
        return place
    entry = row_of(place, row.key)
    if entry is None:
        sources: dict[str, Any] = {"sources": []} if "sources" in place[0] else {}
        entry = {**dict.fromkeys(place[0]), **row.key, **sources}
        place.append(entry)
    return entry


def _ordered(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if name != PACKAGE_ORDER:
        return sorted(rows, key=ORDER[name])
    packages = list(dict.fromkeys(row["package"] for row in rows))
    return sorted(rows, key=lambda row: (packages.index(row["package"]), ORDER[name](row)))


def _place(url: str) -> str:
    """The address of a place without the page of one project."""
    found = re.match(r".*?/(?:simple|whl)/", url)
    return found[0] if found else url


def written(table: dict[str, Any]) -> str:
    """A table as text: one row a line, so that a change shows as the rows that changed."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def rows(value: Any) -> str:
        if value and isinstance(value, list):
            return "[\n" + ",\n".join(map(text, value)) + "\n]"
        if value and isinstance(value, dict):
            return "{\n" + ",\n".join(f"{text(k)}:{text(v)}" for k, v in value.items()) + "\n}"
        return text(value)

    return (
        "{\n" + ",\n".join(f"{text(name)}:{rows(part)}" for name, part in table.items()) + "\n}\n"
    )


# --- as a person reads it: what came from outside is shown as JSON, which is inert --------------

_MOST_LISTED = 12


def shown(changes: tuple[Change, ...], remarks: Iterable[str], day: str) -> str:
    """Each row that is new or differs, with its source, the day, and the remarks."""
    lines = [line for change in changes for line in _shown(change, day)]
    lines += [f"note     {_plain(text)}" for text in remarks]
    count = len(changes)
    differ = {0: "No row differs", 1: "1 row differs"}.get(count, f"{count} rows differ")
    lines.append(f"{differ} from the tables.")
    return "\n".join(lines) + "\n"


def _shown(change: Change, day: str) -> Iterator[str]:
    row, before = change.row, change.before
    title = f"{'new' if before is None else 'changed':8} {row.table} {' '.join(row.key.values())}"
    yield _plain(title.rstrip())
    for column, value in row.values.items():
        if before is not None:
            yield f"         {column}: {_difference(before[column], value)}"
        elif value is not None:
            yield f"         {column}: {json.dumps(value)}"
    yield f"         seen on {_plain(row.url)}, {day}"


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        parts = {key: (old.get(key), value) for key, value in new.items() if old.get(key) != value}
        return "; ".join(f"{json.dumps(key)} {_difference(*both)}" for key, both in parts.items())
    if isinstance(old, list) and isinstance(new, list):
        signs = [f"+{json.dumps(value)}" for value in new if value not in old]
        signs += [f"-{json.dumps(value)}" for value in old if value not in new]
        more = len(signs) - _MOST_LISTED
        return " ".join([*signs[:_MOST_LISTED], f"and {more} more"] if more > 0 else signs)
    return f"{json.dumps(old)} -> {json.dumps(new)}"


def _plain(text: str) -> str:
    """Text that cannot act on a terminal."""
    return json.dumps(text)[1:-1].replace('\\"', '"')

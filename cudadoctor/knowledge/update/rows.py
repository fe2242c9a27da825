"""The tables while they are updated: what a place says enters them, and how a person reads it.

Nothing here touches a file. Columns that nobody read stay as they are; in a new row they are null,
which is "not known".
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from packaging.version import Version

from cudadoctor.knowledge.renewed import Tables, Values, in_order
from cudadoctor.knowledge.torch_builds import TORCH_INDEX
from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, Unreachable

PYPI = "https://pypi.org/simple"
TITLES = {
    "pypi": "Package index: names and upload days of files, and what wheels and sources say",
    "torch-index": "Index of the PyTorch project: names of the wheels of each variant",
    "release-md": "pytorch/pytorch RELEASE.md, release compatibility matrix",
    "docker-hub": "Docker Hub, tags of nvidia/cuda",
    "conda-forge": "Files of pytorch on the conda-forge channel",
    "cuda-notes": "NVIDIA CUDA Toolkit release notes, drivers of each toolkit",
}
"""The places by their short names."""

SOURCES = {"conda.conda_forge": "conda_forge_sources", "companions.triton": "prebuilt_sources"}
"""Where the sources stand in a table whose rows have none of their own."""


class GivenUp(Exception):  # noqa: N818
    """Nobody answered for a page of a place: nor will they for the next one."""


_BLANK = {"torch.builds": {"uncertain": False, "contested": [], "default": False}}
"""What a new row holds where nothing is said, if not null."""


class Update(Struct):
    """The tables with all that was read. only: names of packages and places, () for all of them.

    deep: read the code lists out of the wheels of a new torch. changes: the rows that are new or
    differ, as a person reads them; remarks: sentences for a person to judge, nothing is written for
    them; failures: what could not be read; unread: the places with a failure; reached: whether any
    could be read.
    """

    tables: Tables
    fetch: Fetcher
    day: str = ""
    index: str = PYPI
    torch_index: str = TORCH_INDEX
    only: tuple[str, ...] = ()
    deep: bool = False
    changes: list[str] = []
    remarks: list[str] = []
    failures: list[str] = []
    unread: list[str] = []
    reached: bool = False

    @property
    def newest(self) -> str:
        """The newest torch in the tables."""
        found: str = self.tables["torch"]["releases"][0]["torch"]
        return found

    def wants(self, *names: str) -> bool:
        return not self.only or any(name in self.only for name in names)

    def get(self, url: str) -> bytes:
        """A page. Raises NotRead."""
        return self.fetch.get(url).body

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """One place, by its short name; a failure there makes it one that was not read."""
        failures = len(self.failures)
        try:
            yield
        finally:
            if len(self.failures) > failures:
                self.unread.append(place)

    @contextmanager
    def reading(self, release: str = "") -> Iterator[None]:
        """A page, or what is read of a release: one that fails takes nothing from the others.

        Raises GivenUp where nobody answered for a page.
        """
        try:
            yield
            self.reached = True
        except NotRead as error:
            self.failures.append(f"{release}: {error}" if release else str(error))
            if isinstance(error, Unreachable) and not release:
                raise GivenUp from error

    def enter(
        self,
        source: str,
        url: str,
        table: str,
        key: Mapping[str, str | int],
        values: Mapping[str, object],
        *,
        fills: bool = False,
    ) -> None:
        """What one place says of one row.

        table: its name, "torch.builds"; key: the columns that make it that row; values: the columns
        that were read, a set is added to what is there. fills: the values fill gaps only, and stay
        out if the tables know better.
        """
        self.reached = True
        name, _, part = table.partition(".")
        whole = self.tables[name]
        rows: Any = whole[part] if part else whole
        row = row_of(rows, key) if isinstance(rows, list) else rows
        new = row is None
        if row is None:
            row = {**dict.fromkeys(rows[0]), **key}
            row |= {"sources": []} if "sources" in row else {}
            values = {**_BLANK.get(table, {}), **values}
        before = {column: row.get(column) for column in values}
        values = {
            column: sorted({*value, *(before[column] or ())}) if isinstance(value, set) else value
            for column, value in values.items()
            if before[column] is None or not (fills or value is None)
        }
        values = {name: value for name, value in values.items() if before[name] != value}
        if not (new or values):
            return
        row |= values
        if isinstance(rows, list) and new:
            whole[part] = in_order(table, [*rows, row])
        elif part and rows is row:
            whole[part] = dict(sorted(row.items(), key=lambda item: Version(item[0])))
        self._cite(
            source, url, *((whole, SOURCES[table]) if table in SOURCES else (row, "sources"))
        )
        title = (
            f"{'new' if new else 'changed':8} {table} {' '.join(map(str, key.values()))}".rstrip()
        )
        lines = [
            f"{column}: {json.dumps(value) if new else _difference(before[column], value)}"
            for column, value in values.items()
        ]
        lines.append(f"seen on {_plain(url)}, {self.day}")
        self.changes.append("\n         ".join((_plain(title), *lines)))

    def _cite(self, source: str, url: str, cited: Values, column: str) -> None:
        """Name the source in a row, and in the table of sources."""
        sources = self.tables["sources"]["sources"]
        key = f"seen.{source}"
        if column in cited and key not in cited[column]:
            cited[column] = [*cited[column], key]
        # The address of the place, without the page of one project.
        place = re.sub(r"(/(?:simple|whl)/).*", r"\1", url)
        sources[key] = {"title": TITLES[source], "url": place, "date": self.day}
        self.tables["sources"]["sources"] = dict(sorted(sources.items()))

    def shown(self) -> str:
        """Each row that is new or differs, with its source, the day, and the remarks."""
        count = len(self.changes)
        differ = {0: "No row differs", 1: "1 row differs"}.get(count, f"{count} rows differ")
        remarks = (f"note     {_plain(text)}" for text in self.remarks)
        return "\n".join((*self.changes, *remarks, f"{differ} from the tables.\n"))


def row_of(rows: Iterable[Values], key: Mapping[str, Any]) -> Values | None:
    """The row with these columns."""
    return next((row for row in rows if all(row[name] == key[name] for name in key)), None)


# What came from outside is shown as JSON, which cannot act on a terminal.


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        return "; ".join(
            f"{json.dumps(key)} {_difference(old.get(key), value)}"
            for key, value in new.items()
            if old.get(key) != value
        )
    if isinstance(old, list) and isinstance(new, list):
        signs = [f"+{json.dumps(value)}" for value in new if value not in old]
        return " ".join(signs + [f"-{json.dumps(value)}" for value in old if value not in new])
    return f"{json.dumps(old)} -> {json.dumps(new)}"


def _plain(text: str) -> str:
    return json.dumps(text)[1:-1].replace('\\"', '"')


def written(table: Values) -> str:
    """A table as text: one row a line, so that a change shows as the rows that changed."""
    return f"{_written(table, 2)}\n"


def _written(value: Any, floors: int) -> str:
    """JSON whose outer floors have a line for each item."""
    if not (floors and value and isinstance(value, list | dict)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(_written(item, 0) for item in value) + "\n]"
    items = (f"{_written(name, 0)}:{_written(part, floors - 1)}" for name, part in value.items())
    return "{\n" + ",\n".join(items) + "\n}"

"""NVIDIA's release notes of the CUDA toolkit: the driver that belongs to each release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from cudadoctor.knowledge.update.pages import Unreadable, fed
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.model.versions import DriverVersion

SOURCE = "cuda-notes"
URL = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html"
TITLE = "NVIDIA CUDA Toolkit release notes, drivers of each toolkit"

_RELEASE = re.compile(
    r"CUDA (\d{1,2}\.\d{1,2})(?:\.\d{1,2})?(?: (?:GA|Update (\d{1,2})))?", re.IGNORECASE
)
_FLOOR = re.compile(r">= ?(\d{3}(?:\.\d{1,3}){1,2})", re.ASCII)


class _Rows(HTMLParser):
    """The cells of every row of every table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self._inside = self._inside or tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr", "table"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def read(text: str, tables: Tables, url: str) -> Reading:
    """Drivers of toolkits that the tables lack; where they name another, that is only told."""
    page = _Rows()
    fed(page, text, f"{url!a}")
    listed = dict(_drivers(page.rows))
    if not listed:
        raise Unreadable(f"{url!a} has no table of toolkits and drivers.")
    known = {row["toolkit"]: row for row in tables["drivers"]["toolkits"]}
    minors = {_minor(name) for name in known}
    rows, remarks = [], []
    for toolkit, (linux, windows) in listed.items():
        there = known.get(toolkit)
        if there is None and toolkit.endswith(".0") and _minor(toolkit) in minors:
            continue  # the first release of a minor need not have been its .0
        if there and there["linux"] and DriverVersion(there["linux"]) != DriverVersion(linux):
            remarks.append(
                f"The release notes of CUDA {toolkit} name driver {linux}, "
                f"the tables {there['linux']}."
            )
        rows.append(_row(toolkit, linux, windows, there is None, url))
    return Reading(rows=tuple(rows), remarks=tuple(remarks))


def _row(toolkit: str, linux: str, windows: str | None, new: bool, url: str) -> Row:
    values: dict[str, object] = {"linux": linux}
    if windows or new:
        values["windows"] = windows
    if new:
        values |= {"bundled": None, "uncertain": True}
    return Row(
        table="drivers.toolkits",
        key={"toolkit": toolkit},
        values=values,
        source=SOURCE,
        url=url,
        fills=True,
    )


def _drivers(rows: list[list[str]]) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Toolkit -> oldest driver on Linux and on Windows, None not named; CUDA 12 and later."""
    for cells in rows:
        texts = [" ".join(cell.split()) for cell in cells]
        release = _RELEASE.fullmatch(texts[0]) if len(texts) > 1 else None
        floors = [_FLOOR.fullmatch(text) for text in texts[1:3]]
        if release and floors[0] and int(release[1].partition(".")[0]) > 11:
            windows = floors[1][1] if len(floors) > 1 and floors[1] else None
            yield f"{release[1]}.{release[2] or 0}", (floors[0][1], windows)


def _minor(toolkit: str) -> str:
    return ".".join(toolkit.split(".")[:2])

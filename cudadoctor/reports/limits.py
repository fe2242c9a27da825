"""ulimit, df and free -> limits in bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_OPEN_FILES = re.compile(r"open files \(-n\) (\d{1,9}|unlimited)")
_LOCKED = re.compile(r"max locked memory \(kbytes, -l\) (\d{1,12}|unlimited)")
_ROW = re.compile(
    r"\s{0,4}(?P<source>[\w/.:-]{2,80})\s{1,40}(?P<size>[\d.]{1,14}[KMGT]?)"
    r"\s{1,20}(?P<used>[\d.]{1,14}[KMGT]?)"
    r"\s{1,20}(?P<free>[\d.]{1,14}[KMGT]?)\s{1,20}\d{1,3}%\s{1,10}(?P<mount>/\S{0,80})\s{0,4}$"
)
_MEMORY = re.compile(r"\bMem: ([\d.]{1,14})(Ki|Mi|Gi|Ti|K|M|G|T|B)?\b")
_PLACES = {
    "/": "limits.env_free_bytes",
    "/home": "limits.env_free_bytes",
    "/tmp": "limits.tmp_free_bytes",
}


def read_limits(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Open files, locked memory, shared memory, free space and memory."""
    if "(-n)" in doc.low or "-l)" in doc.low:
        yield from _ulimit(doc)
    if "% /" in doc.low:
        yield from _df(doc)
    if "mem: " in doc.low and "swap: " in doc.low:
        yield from _free(doc)


def _ulimit(doc: Document) -> Iterator[Said]:
    for pattern, path, unit in (
        (_OPEN_FILES, "limits.nofile", 1),
        (_LOCKED, "limits.memlock_bytes", 1024),
    ):
        found = pattern.search(doc.low)
        if found:
            value = -1 if found[1] == "unlimited" else int(found[1]) * unit
            yield Said(path, value, doc.line_at(found.start()).number, Rank.TOOL, "ulimit")


def _df(doc: Document) -> Iterator[Said]:
    """Blocks of 1 KiB where the numbers have no letter: df without -h."""
    for line in doc.lines:
        row = _ROW.match(line.text) if "%" in line.text else None
        if row is None:
            continue
        size, free = _bytes(row["size"]), _bytes(row["free"])
        if row["mount"] == "/dev/shm":
            yield Said("limits.shm_bytes", size, line.number, Rank.TOOL, "df")
            yield Said("limits.shm_free_bytes", free, line.number, Rank.TOOL, "df")
        elif row["mount"] in _PLACES:
            yield Said(_PLACES[row["mount"]], free, line.number, Rank.TOOL, "df")


def _bytes(text: str) -> int:
    unit = text[-1].lower() if text[-1].isalpha() else ""
    figure = re.fullmatch(r"[0-9]{1,14}(?:\.[0-9]{1,6})?", text.rstrip("KMGT"))
    number = float(figure[0]) if figure else 0.0
    return int(number * (_SCALE[unit] if unit else 1024 if number else 1))


def _free(doc: Document) -> Iterator[Said]:
    found = _MEMORY.search(doc.flat)
    if found is None or re.fullmatch(r"[0-9]{1,14}(?:\.[0-9]{1,6})?", found[1]) is None:
        return
    unit = (found[2] or "K")[0].lower()
    value = int(float(found[1]) * _SCALE["" if unit == "b" else unit])
    line = doc.line_at(found.start()).number
    yield Said("limits.memory_bytes", value, line, Rank.TOOL, "free")

"""Lists of packages anywhere in a report -> the distributions of the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from cudadoctor.model.machine import Distribution
from cudadoctor.reports.document import Document, Line
from cudadoctor.reports.packages import (
    KNOWN,
    MOST,
    Row,
    conda_row,
    distribution,
    freeze_row,
    list_row,
    said_of,
)
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_ENOUGH = 4
"""Rows that stand together before they are a list without a head."""
_COMPLETE = 8
"""Rows from which on a list with its head shows that torch is absent."""
_MISSES = 3
"""Lines that are no rows end a list."""
_GATE = ("torch", "nvidia-", "numpy", "package version", "name version build", "triton", "xformers")
_HEAD = re.compile(r"[\s|]{0,8}Package[\s|]{1,60}Version(?:[\s|]{1,60}\w.{0,60})?[\s|]{0,8}$", re.I)
_CONDA_HEAD = re.compile(
    r"#? {0,4}(?:Name\s{1,60}Version\s{1,60}Build|packages in environment at)", re.I
)
_RULE = re.compile(r"[\s|+:─━=-]{3,200}$")
_COMMAND = re.compile(
    r"\b(?:pip3?|uv pip|poetry|conda|mamba|pixi) (?:list|freeze|show|tree)\b", re.I
)
_BUILD = re.compile(r"py\d|cuda|cpu_|gpu_|h[0-9a-f]{6,}|pypi_|<pip>|mkl|nompi|(?:^|_)\d{1,4}$")
_DIGIT = re.compile(r"\d")
_EXPORTED = re.compile(r"\s{0,8}- ([\w.-]{1,80})=([\w.+!]{1,60})=([\w.]{1,80})\s*$")
_TAGGED = re.compile(r"\[(pip3?|conda)\] ([^\[\n]{3,200})")
_SHOWN = re.compile(r"\s{0,8}(Name|Version|Location|Requires|Required-by):\s{0,8}(.{0,2000})$")
_ABSENT = re.compile(r"Package\(s\) not found: ([\w ,.-]{1,200})")


class Lists(NamedTuple):
    """What a walk over the lines has gathered. rows by rank; full: lists with a head."""

    sure: list[Row]
    maybe: list[Row]
    full: list[list[Row]]


def read_packages(doc: Document, _: Knowledge) -> Iterator[Said]:
    """pip list and freeze, uv, poetry, conda list and export, and the lists of collect_env."""
    if not any(word in doc.low for word in _GATE):
        return
    lists = _walked(doc.lines)
    yield from said_of([*_tagged(doc), *lists.sure], doc, Rank.TOOL, "the list of packages")
    rank = Rank.MESSAGE if _COMMAND.search(doc.flat) else Rank.PROSE
    yield from said_of(lists.maybe, doc, rank, "a row of a list of packages")
    for rows in lists.full:
        if _without_torch(rows):
            line = doc.lines[rows[0].place].number
            yield Said("torch.installed", False, line, Rank.TOOL, "the list of packages")


def _tagged(doc: Document) -> Iterator[Row]:
    """[pip3] torch==1.7.1 and [conda] pytorch 1.7.1 py3.8_cuda11.0 pytorch of collect_env."""
    if "[pip" not in doc.low and "[conda]" not in doc.low:
        return
    text = doc.text
    for found in _TAGGED.finditer(text):
        index = text.count("\n", 0, found.start())
        body = found[2].strip()
        row = conda_row(body, index) if found[1] == "conda" else freeze_row(body, index)
        if row is not None or (row := list_row(body, index)) is not None:
            yield row


def _without_torch(rows: list[Row]) -> bool:
    """Whether a list that goes from before to behind torch's place in the alphabet lacks it."""
    names = [row.one.name for row in rows]
    if len(names) < _COMPLETE or names != sorted(names) or "pip" not in names:
        return False
    return names[-1] > "torch" and not any("torch" in name for name in names)


def _walked(lines: tuple[Line, ...]) -> Lists:
    found = Lists([], [], [])
    mode, misses, asked = "", 0, -9
    run: list[Row] = []
    for index, line in enumerate(lines):
        text = line.text
        if not text.strip() or len(text) > 600:
            continue
        head = _head(text)
        if head:
            mode, misses = head, 0
            found.full.append([])
            continue
        if "list" in text or "freeze" in text or "show" in text or "tree" in text:
            asked = index if _COMMAND.search(text) else asked
        row = _row(text, index, mode)
        if mode and row is None:
            misses = 0 if _RULE.match(text) or text.startswith("#") else misses + 1
            mode = "" if misses >= _MISSES or text.startswith(("$", "(")) else mode
        if row is None:
            continue
        misses = 0
        if mode:
            found.full[-1].append(row)
            found.sure.append(row)
            continue
        if run and index - run[-1].place > 2:
            _settle(run, found, asked)
            run = []
        run.append(row)
    _settle(run, found, asked)
    return Lists(found.sure[:MOST], found.maybe[:MOST], [rows for rows in found.full if rows])


def _settle(run: list[Row], found: Lists, asked: int) -> None:
    """Rows without a head: a list where there are several or a command asked for them."""
    if not run:
        return
    listed = len(run) >= _ENOUGH or 0 <= run[0].place - asked <= 3
    wheels = all(row.build or "+" in row.one.version for row in run)
    (found.sure if listed or wheels else found.maybe).extend(run)


def _head(text: str) -> str:
    low = text.lower()
    if "version" in low and _HEAD.match(text):
        return "pip"
    if ("name" in low or "environment at" in low) and _CONDA_HEAD.match(text):
        return "conda"
    return ""


def _row(text: str, index: int, mode: str) -> Row | None:
    """A row in the form of the list that it stands in; without one, only of a known package."""
    if mode == "pip":
        return list_row(text, index) or freeze_row(text, index)
    if mode == "conda":
        return None if text.startswith("#") else conda_row(text, index)
    if "==" in text or " @ " in text:
        return freeze_row(text.lstrip(" -"), index)
    if _DIGIT.search(text) is None:
        return None
    if text.count("=") == 2 and (exported := _EXPORTED.match(text)):
        return conda_row(" ".join(exported.groups()), index)
    return _lone_row(text, index)


def _lone_row(text: str, index: int) -> Row | None:
    words = text.strip(" │├└─|*+-\t").split(None, 3)
    if len(words) < 2 or "." not in words[1] or not KNOWN.fullmatch(words[0].partition("[")[0]):
        return None
    if len(words) >= 3 and len(text.split()) <= 4 and _BUILD.search(words[2]):
        return conda_row(text.strip(), index)
    spaced = "  " in text.strip() or "\t" in text.strip() or "|" in text or words[1].startswith("v")
    return list_row(text, index) if spaced else None


# --- pip show ----------------------------------------------------------------------------------


def read_pip_show(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Blocks of Name, Version, Location and Requires; and what pip did not find."""
    if "not found:" in doc.low:
        for found in _ABSENT.finditer(doc.flat):
            if "torch" in re.split(r"[ ,]+", found[1]):
                line = doc.line_at(found.start()).number
                yield Said("torch.installed", False, line, Rank.MESSAGE, "pip show")
    if "name: " not in doc.low or "version: " not in doc.low:
        return
    rows, places = [], []
    for index, one in _blocks(doc):
        rows.append(one)
        places.append(index)
    shown = [Row(one, index) for one, index in zip(rows, places, strict=True)]
    yield from said_of(shown, doc, Rank.TOOL, "pip show")
    for row in shown:
        if row.one.name == "torch" and row.one.location:
            place = row.one.location.rstrip("/\\")
            sep = "\\" if "\\" in place else "/"
            line = doc.lines[row.place].number
            yield Said("torch.path", f"{place}{sep}torch", line, Rank.TOOL, "pip show")
            yield Said("python.site_packages", place, line, Rank.TOOL, "pip show")


def _blocks(doc: Document) -> Iterator[tuple[int, Distribution]]:
    block: dict[str, str] = {}
    start = 0
    for index, line in enumerate(doc.lines):
        found = _SHOWN.match(line.text) if ":" in line.text else None
        if found is None:
            continue
        if found[1] == "Name":
            yield from _closed(start, block)
            block, start = {}, index
        block.setdefault(found[1], found[2].strip())
    yield from _closed(start, block)


def _closed(start: int, block: dict[str, str]) -> Iterator[tuple[int, Distribution]]:
    name, version = block.get("Name", ""), block.get("Version", "")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,80}", name) and re.match(r"\d[\w.+!-]{0,60}$", version):
        place = block.get("Location", "")
        yield start, distribution(name, version, place or None)

"""Files that say what is to be installed and from where, as people paste parts of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.model.machine import Install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.reports.document import Document

_OPTION = re.compile(
    r"\s{0,8}(?P<option>--index-url|--extra-index-url|--find-links|-i|-f)[ =]"
    r"(?P<url>https?://\S{4,300})\s{0,4}$"
)
_TABLE = re.compile(r"\s{0,8}\[{1,2}(?P<name>[\w.\"'-]{1,80})\]{1,2}\s{0,4}(?:#.{0,80})?$")
_URL = re.compile(
    r"\s{0,8}(?:url|index-url|extra-index-url|find-links)\s?=\s?\[?"
    r"[\"'](?P<url>\S{4,300}?)[\"']"
)
_SOURCE = re.compile(
    r"\s{0,8}(?P<name>torch|torchvision|torchaudio)\s?=\s?\[?\s?\{"
    r"(?:\s?version ?= ?[\"'](?P<version>[\w.^~=<>!*+, -]{1,40})[\"'])?"
    r"[^{}]{0,80}?(?:index|source) ?= ?"
    r"[\"'](?P<index>[^\"']{1,80})[\"']"
)
_NEEDED = re.compile(
    r"\s{0,8}[\"']?(?P<what>torch(?:vision|audio)?(?:\s?[=<>~!]=?[\w.*+,<>= ]{1,40})?)"
    r"[\"']?,?\s{0,4}$"
)
_YAML = re.compile(
    r"\s{0,8}- (?P<what>(?:[\w-]{1,30}::)?[\w.-]{2,40}(?:\s?[=<>]{1,2}[\w.*=<>,]{1,40})?)\s{0,4}$"
)
_OURS = re.compile(r"(?:[\w-]{1,30}::)?(?:py)?torch|cudatoolkit")
_INDEX_TABLES = ("tool.uv.index", "tool.uv.pip", "tool.poetry.source", "tool.uv", "source")


def manifest_installs(doc: Document) -> Iterator[Install]:
    """What such files of the document ask for: one for pip, one for uv or poetry, one for conda."""
    if any(word in doc.low for word in ("[tool.", "[[tool.", "[[source]]")):
        yield from _pyproject(doc)
    if "--index-url" in doc.low or "--extra-index-url" in doc.low or "--find-links" in doc.low:
        yield from _requirements(doc)
    if "dependencies:" in doc.low or "channels:" in doc.low:
        yield from _environment(doc)


def _pyproject(doc: Document) -> Iterator[Install]:
    table, first = "", 0
    indexes: list[str] = []
    sources: list[str] = []
    wanted: list[str] = []
    tool = "poetry" if "[tool.poetry" in doc.low else "uv"
    for line in doc.lines:
        if found := _TABLE.match(line.text):
            table, first = found["name"], first or line.number
        elif table in _INDEX_TABLES and (found := _URL.match(line.text)):
            indexes.append(found["url"])
        elif found := _SOURCE.match(line.text):
            sources.append(found["index"])
            if found["version"]:
                wanted.append(found["name"] + _spec(found["version"]))
        elif first and (found := _NEEDED.match(line.text)):
            wanted.append(found["what"].replace(" ", ""))
    named = [name for name in sources if re.search(r"cu\d{2,3}|cpu", name)]
    if indexes or sources:
        found_here = tuple(dict.fromkeys(indexes or named))
        # A package that is tied to an index is looked for there alone.
        options = ("--index-url",) if sources else ()
        yield Install(
            tool=tool,
            requirements=tuple(dict.fromkeys(wanted)),
            indexes=found_here,
            options=options,
            line=first,
        )


def _spec(text: str) -> str:
    """A version as poetry writes it, as pip does: a caret with a local version means that build."""
    plain = text.replace(" ", "")
    if "+" in plain or plain[:1].isdigit():
        return "==" + plain.lstrip("^~=<>")
    return (
        plain if plain[:1] in "=<>!~^" and not plain.startswith("^") else ">=" + plain.lstrip("^*")
    )


def _requirements(doc: Document) -> Iterator[Install]:
    """Lines of a requirements file: an option that stands alone, and torch below it."""
    first = 0
    indexes: list[str] = []
    options: list[str] = []
    wanted: list[str] = []
    wrapped = False  # an option on the second line of a command belongs to the command
    for line in doc.lines:
        wrapped, before = line.text.rstrip().endswith(("\\", " ^", "`")), wrapped
        if before:
            continue
        if found := _OPTION.match(line.text):
            indexes.append(found["url"])
            first = first or line.number
            if found["option"] in ("--index-url", "-i"):
                options.append("--index-url")
        elif found := _NEEDED.match(line.text):
            wanted.append(found["what"].replace(" ", ""))
    if indexes:
        yield Install(
            tool="pip",
            requirements=tuple(dict.fromkeys(wanted)),
            indexes=tuple(dict.fromkeys(indexes)),
            options=tuple(dict.fromkeys(options)),
            line=first,
        )


def _environment(doc: Document) -> Iterator[Install]:
    """An environment.yml: channels, and what it depends on."""
    part, first = "", 0
    found: dict[str, list[str]] = {"channels": [], "dependencies": []}
    for line in doc.lines:
        if head := re.match(r"\s{0,8}(channels|dependencies):\s{0,4}$", line.text):
            part, first = head[1], first or line.number
        elif part and (entry := _YAML.match(line.text)):
            found[part].append(entry["what"].replace(" ", ""))
        elif line.text.strip() and not line.text.strip().startswith(("#", "-")):
            part = ""
    if any(_OURS.match(one) for one in found["dependencies"]):
        yield Install(
            tool="conda",
            requirements=tuple(found["dependencies"]),
            indexes=tuple(found["channels"]),
            line=first,
        )

"""Evidence as a person reads it: whole tables of facts by what tells of them, the rest as it is."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.findings import Evidence, Finding

LONGEST_VALUE = 120
MOST_ITEMS = 4

_FAULTS = ("remap_failed", "remap_pending", "retired_pending", "ecc_uncorrected")
_TELLING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "build.compiler": (("name", "version"), ("path",)),
    "build.toolkits": (("path",), ("cuda", "origin")),
    "driver.fabric": ((), ("manager", "version", "nvswitches")),
    "driver.module_files": (("version", "flavour"), ("kernel",)),
    "driver.nodes": (("path",), ("errno", "group")),
    "driver.packages": (("name", "version"), ()),
    "driver.xids": (("bus_id",), ("code", "text")),
    "gpus": (("name",), ("capability", "code", "compute_mode", "mig", *_FAULTS)),
    "libraries.mapped": (("path",), ("version", "how")),
    "libraries.predicted": (("path",), ("version", "how")),
    "packages": (("name", "version"), ()),
    "pci": (("address", "vendor", "device_id"), ("bound", "lost", "bars_missing")),
    "smoke.stages": (("name", "status"), ("detail",)),
    "torch.copies": (("version", "path"), ()),
}
"""Fact -> what is shown of each of its items: bare, and by its name. The JSON holds all."""
_USUAL: tuple[object, ...] = (None, False, 0, "", "default", [])
_SYMPTOM = re.compile(r"symptoms\.\d+\.text")
_UNKNOWN = "not known"


class Row(msgspec.Struct, frozen=True):
    """One fact as it is shown. source: "" where it is not known or says the same as the value."""

    fact: str
    value: str
    source: str


def rows(finding: Finding, *, whole: bool = False) -> list[Row]:
    """What a finding rests on, each fact once. whole: nothing is shortened or left out.

    What is not known proves nothing: it is shown only where nothing else is.
    """
    about = f"{finding.title} {finding.why}"
    found = list(dict.fromkeys(_row(one, about, whole=whole) for one in finding.evidence))
    known = [row for row in found if row.value != _UNKNOWN]
    return found if whole else known or found


def _row(one: Evidence, about: str, *, whole: bool) -> Row:
    if _SYMPTOM.fullmatch(one.fact):
        one = msgspec.structs.replace(one, fact="report")
    value = _readable(one, about, whole=whole)
    if len(value) > LONGEST_VALUE and not whole:
        value = value[: LONGEST_VALUE - 3] + "..."
    return Row(one.fact, value, "" if one.source in (None, one.value) else str(one.source))


def _readable(one: Evidence, about: str, *, whole: bool) -> str:
    if one.fact.endswith("_bytes") and one.value.isdigit():
        return _size(int(one.value))
    if not one.value.startswith(("{", "[{")):
        return one.value
    try:
        plain = msgspec.json.decode(one.value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return one.value
    kind = re.sub(r"\.\d+$", "", one.fact)
    items = plain if isinstance(plain, list) else [plain]
    if not all(isinstance(item, dict) for item in items):
        return one.value
    chosen = [item for item in items if _is_named(item, about)] or items
    counted = Counter(_item(item, kind) for item in chosen)
    texts = [f"{count} x {text}" if count > 1 else text for text, count in counted.items()]
    if len(texts) > MOST_ITEMS and not whole:
        texts[MOST_ITEMS:] = [f"{len(texts) - MOST_ITEMS} more"]
    return "; ".join(texts)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _is_named(item: dict[str, Any], about: str) -> bool:
    """Whether the finding speaks of this one, by its name or version."""
    name = str(item.get("name") or "")
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", about) is not None


def _item(item: dict[str, Any], kind: str) -> str:
    if item.get("present") is False:
        return "none"
    bare, named = _TELLING.get(kind, ((), tuple(item)))
    return ", ".join(part for part in (" ".join(_bare(item, bare)), *_named(item, named)) if part)


def _bare(item: dict[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    return (str(item[key]) for key in keys if item.get(key) not in _USUAL)


def _named(item: dict[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        value, word = item.get(key), key.replace("_", " ")
        if value is True:
            yield word
        elif value not in _USUAL:
            yield f"{word} {value}"

"""Environment variables that a report sets or shows, in the words of any shell or program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.model.variables import allowed
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.reports.document import Document

_TELLTALE = ("cuda", "nccl", "gloo", "torch", "nvidia_", "ld_", "omp_", "master_", "pip_", "xla_")
_SET = re.compile(
    r"(?<![\w.$%{])(?:\$env:|environ(?:\.get)?\(?\[?\s?|setenv\(\s?)?[\"']?"
    r"(?P<name>[A-Z][A-Z0-9_]{3,50})[\"']?\]?"
    r"\s{0,2}(?:=|:\s|,(?=\s?[\"'])|\bis set to\b|\bset to:?)\s{0,2}"
    r"(?P<value>\"[^\"\n]{0,400}\"|'[^'\n]{0,400}'|[^\s;&|)]{0,400})"
)
_FISH = re.compile(r"\bset -g?x (?P<name>[A-Z][A-Z0-9_]{3,50}) (?P<value>\S{0,400})")
_ADVICE = re.compile(
    r"(?:consider|try|by|must|can|could|please|need to|rerun|run) "
    r"(?:passing|setting|set|with|to set)[^.=]{0,60}$",
    re.I,
)
"""What stands before a setting that a message only proposes."""
_NO_VALUE = frozenset({"N/A", "None", "not", "=", "==", "!="})


def read_assignments(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Variables of the allow-list: `export X=1`, `X=1 python`, os.environ["X"] = "1", `X: 1` ..."""
    if not any(word in doc.low for word in _TELLTALE):
        return
    before = ""
    for line in doc.lines:
        above, before = before, line.text[-80:]
        if "_" not in line.text or len(line.text) > 2000:
            continue
        found = {
            one["name"]: _bare(one["value"])
            for pattern in (_SET, _FISH)
            for one in pattern.finditer(line.text)
            if one["value"] not in _NO_VALUE and "$" not in one["value"][:1]
            if not _ADVICE.search(f"{above} {line.text[: one.start()]}"[-120:])
        }
        if known := allowed(found):
            yield Said("env", known, line.number, Rank.COMMAND, "a setting in the text")


def _bare(value: str) -> str:
    return value.strip("\"'").rstrip("\\`,")

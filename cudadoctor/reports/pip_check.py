"""Conflicts between installed packages as pip and uv tell them -> the packages with what they need.

pip's resolver tells them behind an installation, `pip check` when it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.machine import Distribution
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.packages import distribution
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_NAME = r"[A-Za-z0-9][\w.-]{0,60}"
_NUMBER = r"\d[\w.+!]{0,40}"
_CONFLICT = re.compile(
    rf"(?<![\w.-])(?P<name>{_NAME}) (?P<version>{_NUMBER}) (?:has requirement|requires)"
    rf" (?P<wanted>{_NAME}(?:\[[\w,]{{1,40}}\])?[^;'\"]{{0,80}}?)(?:;[^;]{{0,120}}?)?,?"
    rf" but you(?:'ll)? have (?P<other>{_NAME}) (?P<there>{_NUMBER})"
)
_ABSENT = re.compile(
    rf"(?<![\w.-])(?P<name>{_NAME}) (?P<version>{_NUMBER}) requires (?P<wanted>{_NAME})"
    r"[^;'\"]{0,80}?, which is not installed"
)
_MOST = 60


def read_pip_check(doc: Document, _: Knowledge) -> Iterator[Said]:
    """torchvision 0.15.2 requires torch==2.0.1, but you have torch 2.1.0 which is incompatible."""
    if not any(words in doc.low for words in ("but you", "which is not installed")):
        return
    found: dict[str, Distribution] = {}
    first = 0
    for number, one in enumerate((*_CONFLICT.finditer(doc.flat), *_ABSENT.finditer(doc.flat))):
        if number >= _MOST:
            break
        first = first or doc.line_at(one.start()).number
        words = one.groupdict()
        wanted = words["wanted"].strip(" ,")
        name = distribution(words["name"], words["version"])
        asked = (*found.get(name.name, name).requires, wanted)
        found[name.name] = msgspec.structs.replace(name, requires=asked)
        if words.get("other"):
            other = distribution(words["other"], words["there"].rstrip("."))
            found.setdefault(other.name, other)
        elif wanted.lower() == "torch":
            yield Said("torch.installed", False, first, Rank.MESSAGE, "pip")
    if found:
        yield Said("packages", tuple(found.values()), first, Rank.MESSAGE, "pip")
        torch = found.get("torch")
        for path, value in values.torch_facts(torch.version) if torch else ():
            yield Said(path, value, first, Rank.MESSAGE, "pip")
        if torch and torch.requires:
            yield Said("torch.requires", torch.requires, first, Rank.MESSAGE, "pip")

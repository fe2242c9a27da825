"""Findings and plan as a person or a program reads them. Each renderer is a pure function."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from cudadoctor.model.findings import Diagnosis, Plan
from cudadoctor.model.machine import Json, Machine, OptFloat

_VISIBLE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Report(Struct, frozen=True, kw_only=True):
    """All that a renderer needs.

    The texts of diagnosis and the plain `facts` are already redacted where they are to be; the plan
    never is, since its commands must run. machine is whole: `shade` redacts what is said of it.
    sources: source key -> what is shown for it.
    """

    machine: Machine
    diagnosis: Diagnosis
    plan: Plan
    version: str
    knowledge: str
    sources: dict[str, str] = {}
    seconds: OptFloat = None
    facts: Json = {}
    shade: Callable[[str], str] = str


def inert(text: str) -> str:
    """Text from outside with every control character made visible.

    Escape codes, newlines and direction marks of a path or a variable cannot act on a terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else _escaped(mark) for mark in text)


def _escaped(mark: str) -> str:
    number = ord(mark)
    return _VISIBLE.get(mark) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")

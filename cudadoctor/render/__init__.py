"""Findings and plan as a person or a program reads them. Each renderer is a pure function."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from cudadoctor.model.findings import Diagnosis, Plan
from cudadoctor.model.machine import Json, Machine, OptFloat, OptInt, OptStr, Strings

_VISIBLE = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Age(Struct, frozen=True, kw_only=True):
    """How far the tables are behind the machine.

    days: since they were collected, None not known. newer: what the machine has that they do not
    know yet ("torch 2.16.0"). renewed: they come from a file of the user's.
    """

    days: OptInt = None
    newer: Strings = ()
    renewed: bool = False

    @property
    def matters(self) -> bool:
        return bool(self.newer) or (self.days or 0) > FRESH_DAYS


FRESH_DAYS = 60
"""Releases come every one or two months: older tables lack one."""


class Report(Struct, frozen=True, kw_only=True):
    """All that a renderer needs.

    The texts of diagnosis and the plain `facts` are already redacted where they are to be; the plan
    never is, since its commands must run. machine is whole: `shade` redacts what is said of it.
    sources: source key -> what is shown for it. age: of the tables.
    """

    machine: Machine
    diagnosis: Diagnosis
    plan: Plan
    version: str
    knowledge: str
    age: Age = Age()
    sources: dict[str, str] = {}
    seconds: OptFloat = None
    facts: Json = {}
    shade: Callable[[str], str] = str


class Checked(Struct, frozen=True, kw_only=True):
    """One of the documents that a command judges: its report, or why there is none.

    name: the file it came from, None for this machine.
    """

    name: OptStr = None
    shown: Report | None = None
    error: OptStr = None


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

"""What the process of a plugin answers, and whether it may say so. Pure."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import Finding, Undecided
from cudadoctor.model.machine import OptStr, Scalar, Strings

RULES, FACTS = "cudadoctor.rules", "cudadoctor.facts"
GROUPS = (RULES, FACTS)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FACT = re.compile(r"[a-z][a-z0-9_]*")
_ENTRY = re.compile(r"([^=\s]+)\s*=\s*([\w.]+)\s*(?::\s*([\w.]+))?\s*(?:\[.*\])?")
MOST_FACTS, LONGEST_FACT = 200, 4096


class EntryPoint(Struct, frozen=True):
    """One entry point of a distribution beside the doctor. attribute: "" the module itself."""

    plugin: str
    group: str
    module: str
    attribute: str
    distribution: str


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one entry point said. errors: what failed, as sentences."""

    findings: tuple[Finding, ...] = ()
    passed: Strings = ()
    undecided: tuple[Undecided, ...] = ()
    facts: dict[str, Scalar] = {}
    errors: Strings = ()


def entry_points(text: str, distribution: str) -> tuple[EntryPoint, ...]:
    """Those of a file entry_points.txt that are for the doctor."""
    found, group = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group in GROUPS and (entry := _ENTRY.fullmatch(line)):
            name, module, attribute = entry.groups(default="")
            found.append(EntryPoint(name, group, module, attribute, distribution))
    return tuple(found)


def is_plugin_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_cause_of(cause: str, plugin: str) -> bool:
    """Whether the plugin may name this cause: one of the doctor's, or one that begins with it."""
    return cause in CATALOGUE or (
        cause.startswith(f"{plugin}-") and _NAME.fullmatch(cause) is not None
    )


def read(line: str, plugin: str) -> tuple[Answer, OptStr]:
    """The answer in a line of JSON, without what the plugin may not say; why some is missing."""
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Answer(), f"its answer cannot be read: {error}"
    causes = [found.cause for found in answer.findings] + [gap.cause for gap in answer.undecided]
    for cause in (*causes, *answer.passed):
        if not is_cause_of(cause, plugin):
            return Answer(), f"the name of its cause '{cause}' does not begin with '{plugin}-'"
    if len(answer.facts) > MOST_FACTS or not all(map(_FACT.fullmatch, answer.facts)):
        return Answer(), "its facts have invalid names, or there are too many of them"
    if any(isinstance(value, str) and len(value) > LONGEST_FACT for value in answer.facts.values()):
        return Answer(), f"a fact is longer than {LONGEST_FACT} characters"
    return answer, "; ".join(answer.errors) or None

"""The schema of the JSON document, from the types that it is made of.

It says what is there, not what may never be: programs must bear fields that are added later.
"""

from __future__ import annotations

import inspect
import json
from typing import Any, Literal

import msgspec
from msgspec import Struct
from packaging.version import Version

from cudadoctor.model.findings import BuildChoice, Candidate, Evidence, NoBuild, Step, Verdict
from cudadoctor.model.machine import Json, Machine, OptInt, OptStr, Smoke, Strings
from cudadoctor.model.trust import Command
from cudadoctor.model.versions import DriverVersion

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Tables(Struct, kw_only=True):
    """The compatibility tables. newer: what the machine has that they do not know yet."""

    renewed: bool
    age_days: OptInt
    newer: Strings


class Finding(Struct, kw_only=True):
    """A cause that fits this machine.

    because_of: causes that explain it. remedies: ids of steps of the plan.
    """

    cause: str
    severity: Literal["error", "warning", "info"]
    confidence: Literal["certain", "likely", "possible"]
    title: str
    why: str
    values: dict[str, str]
    evidence: tuple[Evidence, ...]
    cites: Strings
    because_of: Strings
    remedies: Strings


class Undecided(Struct, kw_only=True):
    """A cause that could not be checked, and the fact that is missing for it."""

    cause: str
    missing: str
    why: str


PlannedStep = msgspec.defstruct(
    "Step",
    [
        (field.name, field.type) if field.name != "resolution" else (field.name, field.type, None)
        for field in msgspec.structs.fields(Step)
        if field.name != "packages"
    ],
    kw_only=True,
    namespace={"__doc__": Step.__doc__},
)


class Plan(Struct, kw_only=True):
    """The fix. no_build: why no build of torch could be chosen."""

    steps: tuple[PlannedStep, ...]  # type: ignore[valid-type]
    build: BuildChoice | None
    no_build: NoBuild | None


class Check(Struct, kw_only=True):
    """What `check --json` prints.

    source: the file that was judged, where there are several. advice: with --advice.
    """

    schema: Literal[1]
    cudadoctor: str
    knowledge: str
    tables: Tables
    verdict: Verdict
    primary: OptStr
    findings: tuple[Finding, ...]
    passed: Strings
    undecided: tuple[Undecided, ...]
    examined: OptStr
    candidates: tuple[Candidate, ...]
    next_command: Command | None
    beside: tuple[Command, ...]
    plan: Plan
    smoke: Smoke | None
    facts: Machine
    source: str = ""
    advice: tuple[dict[str, Any], ...] = ()


class Unreadable(Struct, kw_only=True):
    """A line of several documents, for a file that could not be judged."""

    schema: Literal[1]
    source: str
    error: str


def document() -> Json:
    """The schema as plain data."""
    kinds, components = msgspec.json.schema_components(
        (Check, Unreadable), schema_hook=_as_text, ref_template="#/$defs/{name}"
    )
    for component in components.values():
        component.pop("additionalProperties", None)
        component["description"] = inspect.cleandoc(component.get("description", ""))
    return {
        "$schema": DIALECT,
        "title": "cudadoctor check --json",
        "anyOf": list(kinds),
        "$defs": dict(sorted(components.items())),
    }


def dumps() -> str:
    """The schema as a file."""
    return json.dumps(document(), indent=1) + "\n"


def _as_text(kind: type) -> Json:
    if kind in (Version, DriverVersion):
        return {"type": "string", "description": "A version."}
    raise NotImplementedError

"""The JSON document, version 1: a contract. Fields may be added, none change or go."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec import to_builtins
from msgspec.structs import asdict

from cudadoctor.model import factfile
from cudadoctor.model.findings import Finding, Plan, Step
from cudadoctor.model.machine import Json, Machine
from cudadoctor.model.trust import acting
from cudadoctor.render import Report


def report(shown: Report) -> Json:
    """The whole document as plain data."""
    diagnosis, machine = shown.diagnosis, shown.machine
    return {
        "schema": 1,
        "cudadoctor": shown.version,
        "knowledge": shown.knowledge,
        "tables": {
            "renewed": shown.age.renewed,
            "age_days": shown.age.days,
            "newer": list(shown.age.newer),
        },
        "verdict": diagnosis.verdict,
        "primary": diagnosis.primary,
        "findings": [_finding(finding, shown.plan) for finding in diagnosis.findings],
        "passed": list(diagnosis.passed),
        "undecided": [
            {"cause": undecided.cause, "missing": undecided.missing, "why": undecided.why}
            for undecided in diagnosis.undecided
        ],
        "examined": machine.python.executable and acting(machine).python.executable,
        "candidates": to_builtins(diagnosis.candidates),
        "next_command": list(diagnosis.next_command) if diagnosis.next_command else None,
        "beside": to_builtins(diagnosis.beside),
        "plan": plan(shown.plan),
        "smoke": shown.facts.get("smoke") and smoke(machine, shown.shade),
        "facts": shown.facts,
    }


def plan(plan: Plan) -> Json:
    """The plan as plain data."""
    return {
        "steps": list(map(_step, plan.steps)),
        "build": to_builtins(plan.build),
        "no_build": to_builtins(plan.no_build),
    }


def dumps(document: Json) -> str:
    """Two spaces, one line an entry, plain ASCII: it survives every pipe and locale."""
    return factfile.ascii_json(document, 2)


def line(document: Json) -> str:
    """The same on one line, for JSON Lines."""
    return json.dumps(factfile.json_safe(document)).replace("\x7f", "\\u007f")


def _finding(finding: Finding, of: Plan) -> Json:
    planned = {step.id for step in of.steps}
    return {
        "cause": finding.cause,
        "severity": finding.severity.label,
        "confidence": finding.confidence.label,
        "title": finding.title,
        "why": finding.why,
        "values": finding.values,
        "evidence": to_builtins(finding.evidence),
        "cites": list(finding.cites),
        "because_of": list(finding.because_of),
        "remedies": [remedy.id for remedy in finding.remedies if remedy.id in planned],
        "docs": f"docs/causes/{finding.cause}.md",
    }


def _step(step: Step) -> Json:
    plain: Json = to_builtins(step)
    del plain["packages"]
    if step.resolution is None:
        del plain["resolution"]
    return plain


def smoke(machine: Machine, shade: Callable[[str], str] = str) -> Json | None:
    """The smoke step with every field of every stage, also those that are not known."""
    if machine.smoke is None:
        return None
    stages = [
        asdict(stage) | {"detail": stage.detail and shade(stage.detail)}
        for stage in machine.smoke.stages
    ]
    return asdict(machine.smoke) | {"stages": stages}

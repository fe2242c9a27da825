"""From what the user asked to what is shown: look, judge, plan, redact."""

from __future__ import annotations

import msgspec

from cudadoctor import __version__, factfile, knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.facts import Machine
from cudadoctor.findings import Diagnosis, Finding
from cudadoctor.plan import Plan, Wishes, plan
from cudadoctor.redact import Redactor
from cudadoctor.render import Report

PLACEHOLDER = "$PYTHON"
"""Stands for the examined interpreter in the plan of a redacted document."""

_EXIT = {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 3}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its diagnosis and plan, nothing redacted."""

    machine: Machine
    diagnosis: Diagnosis
    plan: Plan


def judge(machine: Machine, wishes: Wishes | None = None, ignore: tuple[str, ...] = ()) -> Judged:
    """Diagnose a machine and plan its repair."""
    tables = knowledge.load()
    if machine.redacted:
        python = msgspec.structs.replace(machine.python, executable=PLACEHOLDER)
        machine = msgspec.structs.replace(machine, python=python)
    diagnosis = diagnose(machine, tables, ignore=ignore)
    steps = plan(machine, tables, diagnosis, wishes or Wishes())
    return Judged(machine=machine, diagnosis=diagnosis, plan=steps)


def report(judged: Judged, *, full: bool = False, seconds: float | None = None) -> Report:
    """What is shown: redacted unless `full`, with the sources that the findings cite."""
    tables = knowledge.load()
    machine, diagnosis = judged.machine, judged.diagnosis
    redactor = None if full else Redactor(machine)
    if redactor is not None:
        diagnosis = _redacted(diagnosis, redactor)
    keys = dict.fromkeys(key for finding in diagnosis.findings for key in finding.cites)
    return Report(
        machine=machine,
        diagnosis=diagnosis,
        plan=judged.plan,
        version=__version__,
        knowledge=tables.date,
        sources={key: _cited(key) for key in keys},
        seconds=seconds,
        facts=factfile.encode(machine) if redactor is None else redactor.document(machine),
        shade=str if redactor is None else redactor.text,
    )


def exit_code(diagnosis: Diagnosis, *, strict: bool) -> int:
    """0 healthy or warnings, 1 broken (strict: or warnings), 3 undecided."""
    if strict and diagnosis.verdict == "warnings":
        return 1
    return _EXIT[diagnosis.verdict]


def addressed_by_placeholder(steps: Plan, executable: str | None) -> Plan:
    """The plan for a redacted document: `$PYTHON` in place of the interpreter's path."""
    if not executable:
        return steps
    swapped = tuple(
        msgspec.structs.replace(
            step,
            commands=tuple(
                tuple(PLACEHOLDER if word == executable else word for word in argv)
                for argv in step.commands
            ),
        )
        for step in steps.steps
    )
    return msgspec.structs.replace(steps, steps=swapped)


def _cited(key: str) -> str:
    source = knowledge.load().source(key)
    when = f", looked up {source.date}" if source.date else ""
    return f"{source.title}{when}"


def _redacted(diagnosis: Diagnosis, redactor: Redactor) -> Diagnosis:
    findings = tuple(_finding(one, redactor) for one in diagnosis.findings)
    undecided = tuple(
        msgspec.structs.replace(one, why=redactor.text(one.why)) for one in diagnosis.undecided
    )
    return msgspec.structs.replace(diagnosis, findings=findings, undecided=undecided)


def _finding(one: Finding, redactor: Redactor) -> Finding:
    evidence = tuple(
        msgspec.structs.replace(
            seen,
            value=redactor.valued(seen.fact, seen.value),
            source=redactor.text(seen.source) if seen.source else None,
        )
        for seen in one.evidence
    )
    return msgspec.structs.replace(
        one,
        title=redactor.text(one.title),
        why=redactor.text(one.why),
        values={name: redactor.text(value) for name, value in one.values.items()},
        evidence=evidence,
    )

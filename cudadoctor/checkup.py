"""From what the user asked to what is shown: look, judge, plan, redact."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from cudadoctor import __version__, factfile, knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.facts import Machine
from cudadoctor.findings import Diagnosis, Edit, Finding
from cudadoctor.plan import Plan, Step, Wishes, plan
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
    diagnosis = diagnose(machine, tables, ignore=ignore)
    steps = plan(machine, tables, diagnosis, wishes or Wishes())
    judged = Judged(machine=machine, diagnosis=diagnosis, plan=steps)
    return _by_placeholder(judged) if machine.redacted else judged


def _by_placeholder(judged: Judged) -> Judged:
    """The paths of a redacted document exist nowhere: `$PYTHON` is the interpreter's.

    Judged with the path first, since other facts are compared with it.
    """
    change = msgspec.structs.replace
    machine, diagnosis = judged.machine, judged.diagnosis
    path = machine.python.executable

    def named(argv: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(PLACEHOLDER if word == path else word for word in argv)

    command = diagnosis.next_command
    steps = tuple(
        change(step, commands=tuple(named(argv) for argv in step.commands))
        for step in judged.plan.steps
    )
    return Judged(
        machine=change(machine, python=change(machine.python, executable=PLACEHOLDER)),
        diagnosis=change(diagnosis, next_command=command and named(command)),
        plan=change(judged.plan, steps=steps),
    )


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


def shareable(shown: Report) -> Report:
    """The report with its plan redacted too, for others to read: `$PYTHON` is the interpreter."""
    own = {
        shown.machine.python.executable: PLACEHOLDER,
        shown.machine.identity.user: "<user>",
    }
    steps = tuple(_shareable(step, own, shown.shade) for step in shown.plan.steps)
    return msgspec.structs.replace(shown, plan=msgspec.structs.replace(shown.plan, steps=steps))


def _shareable(step: Step, own: dict[str | None, str], shade: Callable[[str], str]) -> Step:
    def word(one: str, first: bool) -> str:
        told = own.get(one) or shade(one)
        # A program whose place is hidden is called by its name.
        hidden = first and one not in own and told != one
        return re.split(r"[/\\]", told)[-1] if hidden else told

    return msgspec.structs.replace(
        step,
        title=shade(step.title),
        commands=tuple(
            tuple(word(one, number == 0) for number, one in enumerate(argv))
            for argv in step.commands
        ),
        manual=step.manual and shade(step.manual),
        note=step.note and shade(step.note),
        resolution=step.resolution and shade(step.resolution),
        variables={name: value and shade(value) for name, value in step.variables.items()},
        edits=tuple(Edit(file=shade(one.file), what=shade(one.what)) for one in step.edits),
    )


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

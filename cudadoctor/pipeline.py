"""From what the user asked to what is shown: look, judge, plan, redact."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from cudadoctor import __version__, knowledge
from cudadoctor.cli.options import Options
from cudadoctor.model import factfile
from cudadoctor.model.findings import Diagnosis, Edit, Finding, Plan, Step, Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import PLACEHOLDER, Command, Foreign, Word, foreign, ours
from cudadoctor.privacy.redact import Redactor
from cudadoctor.render import Report
from cudadoctor.rules.diagnose import diagnose

_EXIT = {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 3}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its diagnosis and plan, nothing redacted."""

    machine: Machine
    diagnosis: Diagnosis
    plan: Plan


def judge(machine: Machine, wishes: Wishes | None = None, ignore: tuple[str, ...] = ()) -> Judged:
    """Diagnose a machine and plan its repair. A redacted one is nobody's own: it was read."""
    tables = knowledge.load()
    machine = foreign(machine) if machine.redacted else machine
    diagnosis = diagnose(machine, tables, ignore=ignore)
    if not diagnosis.roots and not (wishes and wishes.torch):
        return Judged(machine=machine, diagnosis=diagnosis, plan=Plan())
    from cudadoctor.plan.planner import plan  # a healthy machine loads nothing that writes commands

    steps = plan(machine, tables, diagnosis, wishes)
    return Judged(machine=machine, diagnosis=diagnosis, plan=steps)


def with_options(machine: Machine, options: Options) -> Machine:
    """The machine with what only the command line says of it: --compile and --as-of."""
    build = machine.build
    if options.compiles:
        needed = (*(build.needed_by or ()), "--compile")
        build = msgspec.structs.replace(build, needed_by=needed)
    date = options.as_of or machine.date
    return msgspec.structs.replace(machine, build=build, date=date)


def wishes_of(options: Options, machine: Machine) -> Wishes:
    """What the plan is to keep to; the machine's own shell where none is named."""
    shell = options.shell or ("powershell" if machine.platform.system == "Windows" else "bash")
    return Wishes(manager=options.manager, torch=options.torch, shell=shell)


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
    """The report with its plan redacted too, for others to read: `$PYTHON` is the interpreter.

    The commands of a foreign machine hold nothing of it as they are.
    """
    own = {
        shown.machine.python.executable: ours(PLACEHOLDER),
        shown.machine.identity.user: ours("<user>"),
    }

    def word(one: Word, first: bool = False) -> Word:
        if isinstance(shown.machine, Foreign):
            return one
        told = own.get(one) or ours(shown.shade(one))
        # A program whose place is hidden is called by its name.
        hidden = first and one not in own and told != one
        return ours(re.split(r"[/\\]", told)[-1]) if hidden else told

    def words(argv: Command) -> Command:
        return tuple(word(one, number == 0) for number, one in enumerate(argv))

    steps = tuple(_shareable(step, words, word, shown.shade) for step in shown.plan.steps)
    asked = shown.diagnosis.next_command
    return msgspec.structs.replace(
        shown,
        plan=msgspec.structs.replace(shown.plan, steps=steps),
        diagnosis=msgspec.structs.replace(shown.diagnosis, next_command=asked and words(asked)),
    )


def _shareable(
    step: Step,
    words: Callable[[Command], Command],
    word: Callable[[Word], Word],
    shade: Callable[[str], str],
) -> Step:
    return msgspec.structs.replace(
        step,
        title=shade(step.title),
        commands=tuple(map(words, step.commands)),
        manual=step.manual and shade(step.manual),
        note=step.note and shade(step.note),
        resolution=step.resolution and shade(step.resolution),
        variables={name: value and word(value) for name, value in step.variables.items()},
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

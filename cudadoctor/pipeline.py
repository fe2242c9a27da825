"""From what the user asked to what is shown: look, judge, plan, redact."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from cudadoctor import __version__, knowledge
from cudadoctor.cli.options import Options
from cudadoctor.model import factfile
from cudadoctor.model.findings import Diagnosis, Finding, Plan, Step, Wishes
from cudadoctor.model.machine import Machine, OptFloat, Strings
from cudadoctor.model.trust import PLACEHOLDER, USER, Command, Foreign, Word, foreign, ours
from cudadoctor.privacy.redact import Redactor
from cudadoctor.render import Age, Report
from cudadoctor.render.shells import HOME
from cudadoctor.rules.diagnose import diagnose

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_EXIT = {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 3}


class Judged(Struct, frozen=True, kw_only=True):
    """A machine with its diagnosis and plan, nothing redacted."""

    machine: Machine
    diagnosis: Diagnosis
    plan: Plan


def judge(machine: Machine, wishes: Wishes | None = None, ignore: Strings = ()) -> Judged:
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
    build, replace = machine.build, msgspec.structs.replace
    if options.compiles:
        build = replace(build, needed_by=(*(build.needed_by or ()), "--compile"))
    return replace(machine, build=build, date=options.as_of or machine.date)


def wishes_of(options: Options, machine: Machine) -> Wishes:
    """What the plan is to keep to; the machine's own shell where none is named."""
    shell = options.shell or ("powershell" if machine.platform.system == "Windows" else "bash")
    return Wishes(manager=options.manager, torch=options.torch, shell=shell)


def report(judged: Judged, *, full: bool = False, seconds: OptFloat = None) -> Report:
    """What is shown: redacted unless `full`, with the sources that the findings cite."""
    tables = knowledge.load()
    machine, diagnosis = judged.machine, judged.diagnosis
    redactor = None if full else Redactor(machine)
    sources = {}
    for key in (key for finding in diagnosis.findings for key in finding.cites):
        source = tables.source(key)
        sources[key] = source.title + (f", looked up {source.date}" if source.date else "")
    return Report(
        machine=machine,
        diagnosis=_redacted(diagnosis, redactor) if redactor else diagnosis,
        plan=judged.plan,
        version=__version__,
        knowledge=tables.date,
        age=_age(machine, tables),
        sources=sources,
        seconds=seconds,
        facts=redactor.document(machine) if redactor else factfile.encode(machine),
        shade=redactor.text if redactor else str,
    )


def _age(machine: Machine, tables: Knowledge) -> Age:
    """How far the tables are behind a machine, by the day of its facts."""
    torch, driver = machine.torch.version, machine.driver.version
    newer = []
    if torch and not torch.is_prerelease and torch.release > tables.newest_torch.release:
        newer.append(f"torch {torch.public}")
    if driver and driver.branch > tables.newest_branch() and tables.native_cuda(driver) is None:
        newer.append(f"driver {driver}")
    try:
        days = (date.fromisoformat(machine.date or "") - date.fromisoformat(tables.date)).days
    except ValueError:
        days = None
    return Age(days=days, newer=tuple(newer), renewed=tables.is_renewed)


def exit_code(diagnosis: Diagnosis, *, strict: bool) -> int:
    """0 healthy or warnings, 1 broken (strict: or warnings), 3 undecided."""
    if strict and diagnosis.verdict == "warnings":
        return 1
    return _EXIT[diagnosis.verdict]


def shareable(shown: Report) -> Report:
    """The report with its plan redacted too, for others to read: `$PYTHON` is the interpreter.

    The commands of a foreign machine hold nothing of it as they are.
    """
    shade, replace = shown.shade, msgspec.structs.replace
    own = {
        shown.machine.python.executable: ours(PLACEHOLDER),
        shown.machine.identity.user: ours(USER),
    }

    def word(named: Word, first: bool = False) -> Word:
        if isinstance(shown.machine, Foreign):
            return named
        shaded = own.get(named) or ours(re.sub("^~/", HOME, shade(named)))
        # A program whose place is hidden is called by its name.
        hidden = first and named not in own and shaded != named
        return ours(re.split(r"[/\\]", shaded)[-1]) if hidden else shaded

    def words(argv: Command) -> Command:
        return tuple(word(named, number == 0) for number, named in enumerate(argv))

    def step(step: Step) -> Step:
        return replace(
            step,
            title=shade(step.title),
            commands=tuple(map(words, step.commands)),
            manual=step.manual and shade(step.manual),
            note=step.note and shade(step.note),
            resolution=step.resolution and shade(step.resolution),
            variables={name: value and word(value) for name, value in step.variables.items()},
            edits=tuple(
                replace(edit, file=shade(edit.file), what=shade(edit.what)) for edit in step.edits
            ),
        )

    asked = shown.diagnosis.next_command
    return replace(
        shown,
        plan=replace(shown.plan, steps=tuple(map(step, shown.plan.steps))),
        diagnosis=replace(shown.diagnosis, next_command=asked and words(asked)),
    )


def _redacted(diagnosis: Diagnosis, redactor: Redactor) -> Diagnosis:
    text, replace = redactor.text, msgspec.structs.replace

    def finding(found: Finding) -> Finding:
        evidence = tuple(
            replace(
                seen,
                value=redactor.valued(seen.fact, seen.value),
                source=text(seen.source) if seen.source else None,
            )
            for seen in found.evidence
        )
        values = {name: text(value) for name, value in found.values.items()}
        title, why = text(found.title), text(found.why)
        return replace(found, title=title, why=why, values=values, evidence=evidence)

    undecided = tuple(replace(rule, why=text(rule.why)) for rule in diagnosis.undecided)
    return replace(diagnosis, findings=tuple(map(finding, diagnosis.findings)), undecided=undecided)

"""The report as a person reads it on a terminal, in plain words that need no colour."""

from __future__ import annotations

import shlex
import textwrap
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.findings import Severity
from cudadoctor.language import Language
from cudadoctor.render import inert, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cudadoctor.findings import Evidence, Finding
    from cudadoctor.plan import Step
    from cudadoctor.render import Report

MARGIN = 8
LONGEST_VALUE = 120
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "cyan"}
_VERDICT_STYLE = {
    "healthy": "bold green",
    "warnings": "bold yellow",
    "broken": "bold red",
    "undecided": "bold magenta",
}


class Line(msgspec.Struct, frozen=True):
    """A line of output: spans of text with the style of each ("" none)."""

    spans: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns; verbose: evidence of infos and explained findings too."""

    width: int = 80
    verbose: bool = False
    say: Language = Language({})


def report(shown: Report, layout: Layout) -> list[Line]:
    """Every line of the report: what was looked at, each finding, and the verdict."""
    lines = list(_summary(shown, layout))
    told: set[str] = set()
    for finding in shown.diagnosis.findings:
        if finding.because_of and not layout.verbose:
            continue
        lines.append(Line(()))
        lines.extend(_finding(finding, shown, layout, told))
    lines.extend(_explained(shown, layout))
    lines.append(Line(()))
    lines.extend(_conclusion(shown, layout))
    return lines


def not_checked(shown: Report, layout: Layout) -> list[str]:
    """What could not be judged and why, one line a reason; belongs on stderr.

    What no verdict turns on is told only where the user asked for more.
    """
    reasons: dict[str, list[str]] = {}
    for one in shown.diagnosis.undecided:
        if not one.matters and not layout.verbose:
            continue
        reasons.setdefault(one.why, []).append(one.cause)
    label = layout.say("not checked")
    return [
        inert(f"{label}: {', '.join(dict.fromkeys(causes))} ({why})")
        for why, causes in reasons.items()
    ]


def _summary(shown: Report, layout: Layout) -> Iterator[Line]:
    for label, text in summary.rows(shown.machine, layout.say):
        yield from _wrapped(label, inert(text), layout.width, "dim", margin=10)


def _finding(finding: Finding, shown: Report, layout: Layout, told: set[str]) -> Iterator[Line]:
    yield from _headed(finding, layout)
    yield from _wrapped("", inert(finding.why), layout.width)
    if finding.severity is Severity.INFO and not layout.verbose:
        return
    yield from _evidence(finding.evidence, layout)
    for key in finding.cites:
        if cited := shown.sources.get(key):
            yield from _wrapped(f"  {layout.say('known')}", cited, layout.width, "dim")
    steps = [step for step in shown.plan.steps if finding.cause in step.cures]
    for number, step in enumerate(steps):
        word = layout.say("do" if number == 0 or step.group != steps[number - 1].group else "or")
        yield from _step(step, word, layout, told)


def _headed(finding: Finding, layout: Layout) -> Iterator[Line]:
    label = layout.say(finding.severity.label)
    first, *rest = list(_wrapped(label, inert(finding.title), layout.width, margin=MARGIN))
    style = _STYLE[finding.severity]
    text = first.text[MARGIN:]
    room = layout.width - len(first.text) - len(finding.cause)
    tail = (" " * room + finding.cause) if room >= 2 and not rest else ""
    yield Line(((first.text[:MARGIN], style), (text, "bold"), (tail, "dim")))
    for line in rest:
        yield Line(((line.text, "bold"),))
    if not tail:
        yield Line((("        " + finding.cause, "dim"),))


def _evidence(evidence: Iterable[Evidence], layout: Layout) -> Iterator[Line]:
    rows = [(one.fact, _short(one.value, layout), one.source or "") for one in evidence]
    names = max((len(fact) for fact, _, _ in rows), default=0)
    values = max((len(value) for _, value, _ in rows if len(value) < 24), default=0)
    label = f"  {layout.say('seen')}"
    for fact, value, source in rows:
        text = f"{fact:<{names}}  {value:<{values}}  {source}".rstrip()
        if MARGIN + len(text) > layout.width:
            text = f"{fact} = {value}" + (f" ({source})" if source else "")
        yield from _wrapped(label, inert(text), layout.width)
        label = ""


def _short(value: str, layout: Layout) -> str:
    if layout.verbose or len(value) <= LONGEST_VALUE:
        return value
    return value[: LONGEST_VALUE - 3] + "..."


def _step(step: Step, word: str, layout: Layout, told: set[str]) -> Iterator[Line]:
    if step.id in told:
        text = layout.say("{title} (the step above)", title=step.title)
        yield from _wrapped(f"  {word}", inert(text), layout.width)
        return
    told.add(step.id)
    cost = layout.say(summary.cost_of(step))
    yield from _with_tail(f"  {word}", inert(step.title), f"[{cost}]", layout.width)
    if step.manual:
        yield from _wrapped("", inert(step.manual), layout.width, indent=2)
    for name, value in step.variables.items():
        yield _command(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    for argv in step.commands:
        yield _command(("sudo " if step.needs_root else "") + shlex.join(argv))
    for edit in step.edits:
        yield from _wrapped("", inert(f"{edit.file}: {edit.what}"), layout.width, indent=2)
    if step.note:
        yield from _wrapped("", inert(step.note), layout.width, "dim", indent=2)


def _command(text: str) -> Line:
    # Never wrapped: a command must survive being copied.
    return Line((("          ", ""), (inert(text), "green")))


def _explained(shown: Report, layout: Layout) -> Iterator[Line]:
    behind: dict[str, list[str]] = {}
    for finding in shown.diagnosis.findings:
        for cause in finding.because_of[:1]:
            behind.setdefault(cause, []).append(finding.cause)
    for cause, symptoms in behind.items():
        text = layout.say(
            "follows from {cause}: {symptoms}", cause=cause, symptoms=", ".join(symptoms)
        )
        yield Line(())
        yield from _wrapped("", text, layout.width, "dim")


def _conclusion(shown: Report, layout: Layout) -> Iterator[Line]:
    verdict = shown.diagnosis.verdict
    text = summary.conclusion(shown, layout.say)
    lines = list(_wrapped(layout.say(verdict), inert(text), layout.width, margin=10))
    first = lines[0].text
    yield Line(((first[:10], _VERDICT_STYLE[verdict]), (first[10:], "")))
    yield from lines[1:]


def _wrapped(
    label: str,
    text: str,
    width: int,
    style: str = "",
    *,
    margin: int = MARGIN,
    indent: int = 0,
) -> Iterator[Line]:
    """The text behind its label, wrapped into the columns right of the margin."""
    room = max(20, width - margin - indent)
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        left = label if number == 0 else ""
        gap = " " if len(left) >= margin else ""
        yield Line(((f"{left:<{margin}}" + gap + " " * indent + part, style),))


def _with_tail(label: str, text: str, tail: str, width: int) -> Iterator[Line]:
    room = width - MARGIN - len(text) - len(tail)
    if room >= 2:
        yield Line(((f"{label:<{MARGIN}}{text}", ""), (" " * room + tail, "dim")))
    else:
        yield from _wrapped(label, f"{text} {tail}", width)

"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cudadoctor.findings import Severity
from cudadoctor.language import Language
from cudadoctor.render import inert, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.findings import Evidence, Finding
    from cudadoctor.plan import Step
    from cudadoctor.render import Report

_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in r"\`*_{}[]<>()#+!|~"} | {"@": "&#64;"})


def report(shown: Report, say: Language | None = None) -> str:
    """The whole report."""
    say = say or Language({})
    return "\n".join(_lines(shown, say)) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no link, no mention."""
    return inert(text).translate(_SPECIAL)


def code(text: str) -> str:
    """Text as inline code, with a fence that it cannot close."""
    plain = inert(text)
    fence = "`"
    while fence in plain:
        fence += "`"
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _lines(shown: Report, say: Language) -> Iterator[str]:
    verdict = shown.diagnosis.verdict
    yield f"**{say(verdict)}**: {escaped(summary.conclusion(shown, say))}"
    yield ""
    for finding in shown.diagnosis.findings:
        if not finding.because_of:
            yield from _finding(finding, shown, say)
    yield from _machine(shown, say)
    yield ""
    yield f"<sub>cudadoctor {shown.version}, {say('knowledge of')} {shown.knowledge}</sub>"


def _finding(finding: Finding, shown: Report, say: Language) -> Iterator[str]:
    label = say(finding.severity.label)
    yield f"### {label}: {escaped(finding.title)} ({code(finding.cause)})"
    yield ""
    yield escaped(finding.why)
    yield ""
    if finding.severity is Severity.INFO:
        return
    yield from _evidence(finding.evidence, say)
    for key in finding.cites:
        if cited := shown.sources.get(key):
            yield f"{say('known')}: {escaped(cited)}"
            yield ""
    for step in shown.plan.steps:
        if finding.cause in step.cures:
            yield from _step(step, say)


def _evidence(evidence: tuple[Evidence, ...], say: Language) -> Iterator[str]:
    if not evidence:
        return
    yield f"| {say('fact')} | {say('value')} | {say('source')} |"
    yield "| --- | --- | --- |"
    for one in evidence:
        cells = (code(one.fact), _cell(one.value), escaped(one.source or ""))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _cell(value: str) -> str:
    # A bar ends a table cell even inside code.
    return code(value).replace("|", "\\|")


def _step(step: Step, say: Language) -> Iterator[str]:
    yield f"- {escaped(step.title)} ({say(summary.cost_of(step))})"
    if step.manual:
        yield f"  {escaped(step.manual)}"
    lines = [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in step.variables.items()
    ]
    lines += [("sudo " if step.needs_root else "") + shlex.join(argv) for argv in step.commands]
    if lines:
        fence = "```"
        while any(fence in line for line in lines):
            fence += "`"
        yield f"  {fence}sh"
        yield from (f"  {inert(line)}" for line in lines)
        yield f"  {fence}"
    if step.note:
        yield f"  {escaped(step.note)}"
    yield ""


def _machine(shown: Report, say: Language) -> Iterator[str]:
    yield f"<details><summary>{say('the machine')}</summary>"
    yield ""
    for label, text in summary.rows(shown.machine, say):
        yield f"- {label}: {escaped(text)}"
    if shown.diagnosis.undecided:
        causes = ", ".join(dict.fromkeys(one.cause for one in shown.diagnosis.undecided))
        yield f"- {say('not checked')}: {escaped(causes)}"
    yield ""
    yield "</details>"

"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.findings import Severity
from cudadoctor.language import Language
from cudadoctor.render import evidence, inert, pasted, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudadoctor.facts import Machine
    from cudadoctor.findings import Finding
    from cudadoctor.plan import Step
    from cudadoctor.render import Report

_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in r"\`*_{}[]<>()#+!|~&"})
_WORD = re.compile(r"\S+")
_LINKED = re.compile(r"@\w|://|www\.|(?<!\w)#\d|\bGH-\d|:[a-z_+-][a-z0-9_+-]{0,50}:|\$", re.I)
"""What a forge makes a link, a mention, a picture or a formula of, also where escaped."""
_BAR = re.compile(r"(\\*)\|")
_MARKER = re.compile(r"[-=]|\d{1,9}(?=\.)")
"""What makes a list or a heading at the beginning of a line, beside what is always escaped."""


def report(shown: Report, say: Language | None = None) -> str:
    """The whole report."""
    say = say or Language({})
    return "\n".join(_lines(shown, say)) + "\n"


def escaped(text: str, *, cell: bool = False) -> str:
    """Text that Markdown shows as it is: no markup, no link, no mention."""
    return "".join(_escaped(inert(text), _code_in_cell if cell else code))


def code(text: str) -> str:
    """Text as inline code, with a fence that it cannot close."""
    plain = inert(text) or " "
    fence = "`"
    while fence in plain:
        fence += "`"
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _escaped(plain: str, as_code: Callable[[str], str]) -> Iterator[str]:
    """Escapes hold off Markdown, but not the links of forges: those words are shown as code."""
    end = 0
    for found in _WORD.finditer(plain):
        word = found[0]
        if not _LINKED.search(word):
            continue
        bare = word.lstrip("(\"'").rstrip(".,;:)\"'")
        before, _, after = word.partition(bare)
        yield plain[end : found.start()].translate(_SPECIAL) + before.translate(_SPECIAL)
        yield as_code(bare) if bare else ""
        yield after.translate(_SPECIAL)
        end = found.end()
    yield plain[end:].translate(_SPECIAL)


def _paragraph(text: str) -> str:
    """Escaped text that begins a line."""
    plain = escaped(text).strip()
    marker = _MARKER.match(plain)
    if marker is None:
        return plain
    place = 0 if plain[0] in "-=" else marker.end()
    return f"{plain[:place]}\\{plain[place:]}"


def _lines(shown: Report, say: Language) -> Iterator[str]:
    verdict = shown.diagnosis.verdict
    yield f"**{say(verdict)}**: {escaped(summary.conclusion(shown, say))}"
    yield ""
    if command := shown.diagnosis.next_command:
        yield f"{say('run')} {code(shown.shade(pasted.command(command, shown.machine)))}"
        yield ""
    for finding in shown.diagnosis.findings:
        if not finding.because_of:
            yield from _finding(finding, shown, say)
    yield from _explained(shown, say)
    yield from _machine(shown, say)
    yield ""
    yield f"<sub>cudadoctor {shown.version}, {say('knowledge of')} {shown.knowledge}</sub>"


def _finding(finding: Finding, shown: Report, say: Language) -> Iterator[str]:
    label = say(finding.severity.label)
    yield f"### {label}: {escaped(finding.title)} ({code(finding.cause)})"
    yield ""
    yield _paragraph(finding.why)
    yield ""
    if finding.severity is Severity.INFO:
        return
    yield from _evidence(finding, say)
    for key in finding.cites:
        if cited := shown.sources.get(key):
            yield f"{say('known')}: {escaped(cited)}"
            yield ""
    steps = [step for step in shown.plan.steps if finding.cause in step.cures]
    for number, step in enumerate(steps):
        word = "do" if number == 0 or step.group != steps[number - 1].group else "or"
        yield from _step(step, say(word), shown.machine, say)


def _explained(shown: Report, say: Language) -> Iterator[str]:
    folded = [one for one in shown.diagnosis.findings if one.because_of]
    for one in folded:
        text = say("follows from {cause}: {symptoms}", cause=one.because_of[0], symptoms=one.cause)
        yield f"- {escaped(text)}"
    if folded:
        yield ""


def _evidence(finding: Finding, say: Language) -> Iterator[str]:
    found = evidence.rows(finding)
    if not found:
        return
    yield f"| {say('fact')} | {say('value')} | {say('source')} |"
    yield "| --- | --- | --- |"
    for row in found:
        source = escaped(row.source, cell=True)
        yield f"| {_code_in_cell(row.fact)} | {_code_in_cell(row.value)} | {source} |"
    yield ""


def _code_in_cell(text: str) -> str:
    """A bar ends a cell even inside code, unless an odd number of backslashes stands before it."""
    return _BAR.sub(lambda found: found[1] + "\\" * (1 + len(found[1]) % 2) + "|", code(text))


def _step(step: Step, word: str, machine: Machine, say: Language) -> Iterator[str]:
    yield f"- {word}: {escaped(say.spoken(step.title))} ({say(summary.cost_of(step))})"
    yield ""
    if manual := summary.manual_of(step):
        yield f"  {escaped(say.spoken(manual))}"
        yield ""
    for edit in step.edits:
        yield f"  {_paragraph(say('in {file}:', file=edit.file))}"
        yield ""
        yield from _fenced(edit.what.splitlines(), "")
    yield from _fenced(pasted.lines(step, machine), "sh")
    if step.note:
        yield f"  {_paragraph(say.spoken(step.note))}"
        yield ""


def _fenced(lines: list[str], kind: str) -> Iterator[str]:
    """Lines as a block of code inside a list item, with a fence that none of them closes."""
    if not lines:
        return
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    yield f"  {fence}{kind}"
    yield from (f"  {inert(line)}" for line in lines)
    yield f"  {fence}"
    yield ""


def _machine(shown: Report, say: Language) -> Iterator[str]:
    yield f"<details><summary>{say('the machine')}</summary>"
    yield ""
    for label, text in summary.rows(shown.machine, say):
        yield f"- {label}: {escaped(shown.shade(text))}"
    if shown.diagnosis.undecided and shown.machine.look != "report":
        causes = ", ".join(dict.fromkeys(one.cause for one in shown.diagnosis.undecided))
        yield f"- {say('not checked')}: {escaped(causes)}"
    yield ""
    yield "</details>"

"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.render import evidence, inert, pasted, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cudadoctor.model.findings import Finding, Step
    from cudadoctor.model.machine import Machine
    from cudadoctor.render import Report

_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in r"\`*_{}[]<>()#+!|~&"})
_WORD = re.compile(r"\S+")
_LINKED = re.compile(r"@\w|://|www\.|(?<!\w)#\d|\bGH-\d|:[a-z_+-][a-z0-9_+-]{0,50}:|\$", re.I)
"""What a forge makes a link, a mention, a picture or a formula of, also where escaped."""
_CODE = re.compile(r"`([^`]+)`")
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


def _prose(text: str) -> str:
    """A paragraph in which what stands between backticks is code."""
    parts = _CODE.split(inert(text))
    rest = (code(one) if place % 2 else escaped(one) for place, one in enumerate(parts[1:], 1))
    gap = " " if parts[0].endswith(" ") else ""
    return "".join((_paragraph(parts[0]), gap, *rest)).strip()


def _lines(shown: Report, say: Language) -> Iterator[str]:
    yield f"**{escaped(_opening(shown, say))}**{_named(shown, say)}"
    yield ""
    findings = summary.told(shown)
    first = _first(shown)
    if first is not None:
        yield from _body(first, shown, say)
    yield from _asked(shown, say)
    for finding in findings:
        if finding is not first and not finding.because_of:
            yield from _finding(finding, shown, say)
    yield from _explained(shown, say)
    yield from _machine(shown, say)
    yield ""
    yield f"<sub>cudadoctor {shown.version}, {say('knowledge of')} {shown.knowledge}</sub>"


def _first(shown: Report) -> Finding | None:
    """What is told first: the root cause, else what a report shows outside of the environment."""
    sought = shown.diagnosis.primary or summary.outside(shown)
    return next((one for one in summary.told(shown) if one.cause == sought), None)


def _opening(shown: Report, say: Language) -> str:
    """The root cause as a sentence, else what is known instead."""
    diagnosis, root = shown.diagnosis, _first(shown)
    if root is None or diagnosis.primary is None:
        text = summary.conclusion(shown, say)
        return f"{text[0].upper()}{text[1:]}"
    if diagnosis.verdict == "warnings":
        return say("Warning: {title}", title=root.title)
    if root.confidence is Confidence.CERTAIN:
        return say("Root cause: {title}", title=root.title)
    if root.confidence is Confidence.LIKELY:
        return say("Likely root cause: {title}", title=root.title)
    return say("Possible root cause: {title}", title=root.title)


def _named(shown: Report, say: Language) -> str:
    """The names of the root cause and of those that are still possible beside it."""
    diagnosis = shown.diagnosis
    first = _first(shown)
    if first is None:
        return ""
    others = [one.cause for one in diagnosis.candidates if one.cause != first.cause]
    text = f" ({code(first.cause)})"
    if diagnosis.primary and diagnosis.verdict == "undecided" and others:
        causes = ", ".join(map(code, others[:3]))
        text += f". {say('Still possible beside it: {causes}', causes=causes)}"
    return text


def _asked(shown: Report, say: Language) -> Iterator[str]:
    """The one command whose output would decide."""
    if command := shown.diagnosis.next_command:
        yield say("The output of this command would decide it:")
        yield ""
        yield from _fenced(pasted.asked(command, shown.machine), "sh", indent="")


def _finding(finding: Finding, shown: Report, say: Language) -> Iterator[str]:
    label = say(finding.severity.label)
    if sure := summary.sureness(finding, say):
        label += f", {sure}"
    yield f"### {label}: {escaped(finding.title)} ({code(finding.cause)})"
    yield ""
    yield from _body(finding, shown, say)


def _body(finding: Finding, shown: Report, say: Language) -> Iterator[str]:
    yield _prose(finding.why)
    yield ""
    if finding.severity is Severity.INFO and shown.machine.look != "report":
        return
    yield from _evidence(finding, say)
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
        yield f"  {_prose(say.spoken(manual))}"
        yield ""
    for edit in step.edits:
        yield f"  {_paragraph(say('in {file}:', file=edit.file))}"
        yield ""
        yield from _fenced(edit.what.splitlines(), "")
    yield from _fenced(pasted.lines(step, machine), "sh")
    if step.note:
        yield f"  {_prose(say.spoken(step.note))}"
        yield ""


def _fenced(lines: list[str], kind: str, indent: str = "  ") -> Iterator[str]:
    """Lines as a block of code, of a list item if indented, with a fence that none closes."""
    if not lines:
        return
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    yield f"{indent}{fence}{kind}"
    yield from (f"{indent}{inert(line)}" for line in lines)
    yield f"{indent}{fence}"
    yield ""


def _machine(shown: Report, say: Language) -> Iterator[str]:
    yield f"<details><summary>{say('the machine')}</summary>"
    yield ""
    for label, text in summary.rows(shown.machine, say):
        yield f"- {label}: {escaped(shown.shade(text))}"
    if shown.diagnosis.undecided and shown.machine.look != "report":
        causes = ", ".join(dict.fromkeys(one.cause for one in shown.diagnosis.undecided))
        yield f"- {say('not checked')}: {escaped(causes)}"
    keys = dict.fromkeys(key for one in summary.told(shown) for key in one.cites)
    for key in keys:
        if cited := shown.sources.get(key):
            yield f"- {say('known')}: {escaped(cited)}"
    yield ""
    yield "</details>"

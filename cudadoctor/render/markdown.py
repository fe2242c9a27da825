"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Confidence, Finding, Severity, Step
from cudadoctor.model.machine import Machine
from cudadoctor.render import Report, inert, summary
from cudadoctor.render.shells import command_lines, step_lines

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice

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
    rest = (code(part) if place % 2 else escaped(part) for place, part in enumerate(parts[1:], 1))
    gap = " " if parts[0].endswith(" ") else ""
    return "".join((_paragraph(parts[0]), gap, *rest)).strip()


def _lines(shown: Report, say: Language) -> Iterator[str]:
    yield f"**{escaped(_opening(shown, say))}**{_named(shown, say)}"
    yield ""
    findings = summary.shown_findings(shown)
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
    found = summary.shown_findings(shown)
    return next((finding for finding in found if finding.cause == sought), None)


_SURENESS = {
    Confidence.CERTAIN: "Root cause: {title}",
    Confidence.LIKELY: "Likely root cause: {title}",
    Confidence.POSSIBLE: "Possible root cause: {title}",
}


def _opening(shown: Report, say: Language) -> str:
    """The root cause as a sentence, else what is known instead."""
    diagnosis, root = shown.diagnosis, _first(shown)
    if root is None or diagnosis.primary is None:
        text = summary.conclusion(shown, say)
        return f"{text[0].upper()}{text[1:]}"
    if diagnosis.verdict == "warnings":
        return say("Warning: {title}", title=root.title)
    return say(_SURENESS[root.confidence], title=root.title)


def _named(shown: Report, say: Language) -> str:
    """The names of the root cause and of those that are still possible beside it."""
    diagnosis = shown.diagnosis
    first = _first(shown)
    if first is None:
        return ""
    causes = [candidate.cause for candidate in diagnosis.candidates]
    others = [cause for cause in causes if cause != first.cause]
    text = f" ({code(first.cause)})"
    if diagnosis.primary and diagnosis.verdict == "undecided" and others:
        named = ", ".join(map(code, others[:3]))
        text += f". {say('Still possible beside it: {causes}', causes=named)}"
    return text


def _asked(shown: Report, say: Language) -> Iterator[str]:
    """The one command whose output would decide."""
    if command := shown.diagnosis.next_command:
        yield say("The output of this command would decide it:")
        yield ""
        yield from _fenced(command_lines((command,), shown.machine), "sh", indent="")


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
    for word, step in summary.steps_for(finding, shown.plan):
        yield from _step(step, say(word), shown.machine, say)


def _explained(shown: Report, say: Language) -> Iterator[str]:
    folded = [finding for finding in shown.diagnosis.findings if finding.because_of]
    for finding in folded:
        cause, symptoms = finding.because_of[0], finding.cause
        text = say("follows from {cause}: {symptoms}", cause=cause, symptoms=symptoms)
        yield f"- {escaped(text)}"
    if folded:
        yield ""


def _evidence(finding: Finding, say: Language) -> Iterator[str]:
    found = summary.evidence_rows(finding)
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
    yield from _fenced(step_lines(step, machine), "sh")
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
    for label, text in summary.machine_rows(shown.machine, say):
        yield f"- {label}: {escaped(shown.shade(text))}"
    if shown.diagnosis.undecided and shown.machine.look != "report":
        causes = ", ".join(
            dict.fromkeys(undecided.cause for undecided in shown.diagnosis.undecided)
        )
        yield f"- {say('not checked')}: {escaped(causes)}"
    findings = summary.shown_findings(shown)
    for key in dict.fromkeys(key for finding in findings for key in finding.cites):
        if cited := shown.sources.get(key):
            yield f"- {say('known')}: {escaped(cited)}"
    yield ""
    yield "</details>"


def advice_list(advice: tuple["Advice", ...], say: Language) -> str:
    """Advice at the end of a check as a list; "" if there is none."""
    parts = [f"\n### {say('Advice for faster training')}\n\n"] if advice else []
    for piece in advice:
        recipe = f" ({code(piece.recipe)})" if piece.recipe else ""
        expected = "; ".join(escaped(say.spoken(text)) for text in piece.expected)
        parts.append(f"- **{escaped(say.spoken(piece.text))}**{recipe}\n")
        parts.append(f"  {escaped(say.spoken(piece.why))} {expected}\n")
    return "".join(parts)

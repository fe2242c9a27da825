"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Confidence, Finding, Severity, Step
from cudadoctor.render import Report, inert, summary
from cudadoctor.render.shells import command_lines, edits_by_hand, step_lines

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice

_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in r"\`*_{}[]<>()#+!|~&"})
_WORD = re.compile(r"\S+")
_LINKED = re.compile(r"(?i)@\w|://|www\.|(?<!\w)#\d|\bGH-\d|:[a-z_+-][a-z0-9_+-]{0,50}:|\$")
"""What a forge makes a link, a mention, a picture or a formula of, also where escaped."""
_CODE = re.compile(r"`([^`]+)`")
_BAR = re.compile(r"(\\*)\|")
_MARKER = re.compile(r"[-=]|\d{1,9}(?=\.)")
"""What makes a list or a heading at the beginning of a line, beside what is always escaped."""


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


_SURENESS = {
    Confidence.CERTAIN: "Root cause: {title}",
    Confidence.LIKELY: "Likely root cause: {title}",
    Confidence.POSSIBLE: "Possible root cause: {title}",
}


class _Page:
    """The lines of a report, as they are written."""

    def __init__(self, shown: Report, say: Language) -> None:
        self.shown, self.say = shown, say
        self.findings = summary.shown_findings(shown)
        self.lines: list[str] = []
        # What is told first: the root cause, else what a report shows outside of the environment.
        sought = shown.diagnosis.primary or summary.outside(shown)
        self.first = next((finding for finding in self.findings if finding.cause == sought), None)

    def block(self, *lines: str) -> None:
        """Lines that an empty one ends."""
        self.lines += [*lines, ""]

    def opening(self) -> None:
        """The root cause as a sentence, else what is known instead; and its name.

        With it the names of those that are still possible beside it.
        """
        diagnosis, root, say = self.shown.diagnosis, self.first, self.say
        if root is None or diagnosis.primary is None:
            text = summary.conclusion(self.shown, say)
            text = f"{text[0].upper()}{text[1:]}"
        elif diagnosis.verdict == "warnings":
            text = say("Warning: {title}", title=root.title)
        else:
            text = say(_SURENESS[root.confidence], title=root.title)
        text = f"**{escaped(text)}**"
        if root:
            text += f" ({code(root.cause)})"
            causes = (candidate.cause for candidate in diagnosis.candidates)
            others = [code(cause) for cause in causes if cause != root.cause]
            if diagnosis.primary and diagnosis.verdict == "undecided" and others:
                named = ", ".join(others[:3])
                text += f". {say('Still possible beside it: {causes}', causes=named)}"
        self.block(text)

    def finding(self, finding: Finding) -> None:
        label = self.say(finding.severity.label)
        if sure := summary.sureness(finding, self.say):
            label += f", {sure}"
        self.block(f"### {label}: {escaped(finding.title)} ({code(finding.cause)})")
        self.body(finding)

    def body(self, finding: Finding) -> None:
        self.block(_prose(finding.why))
        if finding.severity is Severity.INFO and self.shown.machine.look != "report":
            return
        if rows := summary.evidence_rows(finding):
            columns = " | ".join(map(self.say, ("fact", "value", "source")))
            self.block(f"| {columns} |", "| --- | --- | --- |", *map(_table_row, rows))
        for word, step in summary.steps_for(finding, self.shown.plan):
            self._step(self.say(word), step)

    def _step(self, word: str, step: Step) -> None:
        spoken = self.say.spoken
        cost = self.say(summary.cost_of(step))
        self.block(f"- {word}: {escaped(spoken(step.title))} ({cost})")
        if manual := summary.manual_of(step):
            self.block(f"  {_prose(spoken(manual))}")
        for edit in edits_by_hand(step):
            self.block(f"  {_paragraph(self.say('in {file}:', file=edit.file))}")
            self.fenced(edit.what.splitlines(), "")
        self.fenced(step_lines(step, self.shown.machine), "sh")
        if step.note:
            self.block(f"  {_prose(spoken(step.note))}")

    def fenced(self, lines: list[str], kind: str, indent: str = "  ") -> None:
        """Lines as a block of code, of a list item if indented, with a fence that none closes."""
        fence = "```"
        while any(fence in line for line in lines):
            fence += "`"
        if lines:
            self.block(*(indent + inert(line) for line in (f"{fence}{kind}", *lines, fence)))

    def machine(self) -> None:
        shown, say = self.shown, self.say
        self.block(f"<details><summary>{say('the machine')}</summary>")
        rows = [
            (label, shown.shade(text)) for label, text in summary.machine_rows(shown.machine, say)
        ]
        if shown.diagnosis.undecided and shown.machine.look != "report":
            causes = dict.fromkeys(undecided.cause for undecided in shown.diagnosis.undecided)
            rows.append((say("not checked"), ", ".join(causes)))
        cites = dict.fromkeys(key for finding in self.findings for key in finding.cites)
        rows += [(say("known"), cited) for key in cites if (cited := shown.sources.get(key))]
        self.block(*(f"- {label}: {escaped(text)}" for label, text in rows))
        self.block("</details>")


def report(shown: Report, say: Language | None = None) -> str:
    """The whole report."""
    say = say or Language({})
    page = _Page(shown, say)
    page.opening()
    if page.first:
        page.body(page.first)
    if command := shown.diagnosis.next_command:
        # The one command whose output would decide.
        page.block(say("The output of this command would decide it:"))
        page.fenced(command_lines((command,), shown.machine), "sh", indent="")
    for finding in page.findings:
        if finding is not page.first and not finding.because_of:
            page.finding(finding)
    for finding in shown.diagnosis.findings:
        for cause in finding.because_of[:1]:
            text = say("follows from {cause}: {symptoms}", cause=cause, symptoms=finding.cause)
            page.lines.append(f"- {escaped(text)}")
    if page.lines[-1]:
        page.block()
    page.machine()
    made = f"<sub>cudadoctor {shown.version}, {say('knowledge of')} {shown.knowledge}</sub>"
    return "\n".join((*page.lines, made, ""))


def _table_row(row: summary.EvidenceRow) -> str:
    source = escaped(row.source, cell=True)
    return f"| {_code_in_cell(row.fact)} | {_code_in_cell(row.value)} | {source} |"


def _code_in_cell(text: str) -> str:
    """A bar ends a cell even inside code, unless an odd number of backslashes stands before it."""
    return _BAR.sub(lambda found: found[1] + "\\" * (1 + len(found[1]) % 2) + "|", code(text))


def advice_list(advice: tuple["Advice", ...], say: Language) -> str:
    """Advice at the end of a check as a list; "" if there is none."""
    parts = [f"\n### {say('Advice for faster training')}\n\n"] if advice else []
    for piece in advice:
        recipe = f" ({code(piece.recipe)})" if piece.recipe else ""
        expected = "; ".join(escaped(say.spoken(text)) for text in piece.expected)
        parts.append(f"- **{escaped(say.spoken(piece.text))}**{recipe}\n")
        parts.append(f"  {escaped(say.spoken(piece.why))} {expected}\n")
    return "".join(parts)

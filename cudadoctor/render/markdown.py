"""The report as Markdown, for an issue or a chat. Nothing from outside acts as markup."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Finding, Severity, Step
from cudadoctor.render import Report, inert, summary
from cudadoctor.render.evidence import NBSP, EvidenceRow, evidence_rows
from cudadoctor.render.shells import (
    command_lines,
    edits_by_hand,
    edits_lead,
    is_for_cell,
    step_lines,
)

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


class _Page:
    """The lines of a report, as they are written."""

    def __init__(self, shown: Report, say: Language) -> None:
        self.shown, self.say = shown, say
        self.findings = summary.shown_findings(shown)
        self.lines: list[str] = []
        self.first = summary.first_finding(shown)

    def block(self, *lines: str) -> None:
        """Lines that an empty one ends."""
        self.lines += [*lines, ""]

    def opening(self) -> None:
        """The answer, and the name of its cause; with it those that are still possible."""
        root, say = self.first, self.say
        text = f"**{escaped(summary.headline(self.shown, say).text)}**"
        if root:
            text += f" ({code(root.cause)})"
        told = summary.candidates(
            self.shown, say, lambda cause, title: f"{escaped(title)} ({code(cause)})"
        )
        self.block(f"{text} {told}" if told else text)

    def finding(self, finding: Finding) -> None:
        label = self.say(finding.severity.label)
        title = summary.finding_sentence(finding, self.say)
        self.block(f"### {label}: {escaped(title)} ({code(finding.cause)})")
        self.body(finding)

    def body(self, finding: Finding) -> None:
        """What to type, why, what shows it; then what else would do."""
        steps = list(summary.steps_for(finding, self.shown.plan))
        for step in (step for word, step in steps if word == "do"):
            self._step(step, "")
        self.block(_prose(finding.why))
        build = self.shown.plan.build
        if finding is self.first and build and any(step.packages for _, step in steps):
            self.block(_prose(" ".join(map(self.say.spoken, build.why[:2]))))
        if finding is self.first and (missing := summary.without_build(self.shown, self.say)):
            self.block(_prose(missing))
        if finding.severity is Severity.INFO and self.shown.machine.look != "report":
            return
        if rows := evidence_rows(finding, self.say):
            columns = " | ".join(map(self.say, ("fact", "value", "source")))
            self.block(f"| {columns} |", "| --- | --- | --- |", *map(_table_row, rows))
        for step in (step for word, step in steps if word == "or"):
            self._step(step, self.say("Or"))

    def _step(self, step: Step, word: str) -> None:
        """word: before an alternative."""
        spoken, say = self.say.spoken, self.say
        lines, leads = step_lines(step, self.shown.machine), edits_lead(step)
        if word:
            lead = f"{word}: {spoken(step.title)} ({say(summary.cost_of(step))})"
        else:
            lead = (
                summary.lead_of(step, say, cell=is_for_cell(step, self.shown.machine))
                if lines and not leads
                else spoken(step.title)
            )
        self.block(f"{_paragraph(lead)}{':' if lines or edits_by_hand(step) else '.'}")
        if leads:
            self._edits(step)
        manual, before = summary.manual_of(step), summary.precedes(step)
        if manual and before:
            self.block(_prose(spoken(manual)))
        self.fenced(lines, "sh")
        if manual and not before:
            self.block(_prose(spoken(manual)))
        if not leads:
            self._edits(step)
        for remark in filter(None, (step.note, step.resolution)):
            self.block(_prose(spoken(remark)))

    def _edits(self, step: Step) -> None:
        for edit in edits_by_hand(step):
            self.block(_paragraph(self.say("In {file}:", file=edit.file)))
            self.fenced(edit.what.splitlines(), "")

    def fenced(self, lines: list[str], kind: str) -> None:
        """Lines as a block of code, with a fence that none closes."""
        fence = "```"
        while any(fence in line for line in lines):
            fence += "`"
        if lines:
            self.block(*(inert(line) for line in (f"{fence}{kind}", *lines, fence)))

    def machine(self) -> None:
        shown, say = self.shown, self.say
        self.block(f"<details><summary>{say('machine details')}</summary>")
        rows = [
            (label, shown.shade(text)) for label, text in summary.machine_rows(shown.machine, say)
        ]
        if shown.diagnosis.undecided and shown.machine.look != "report":
            causes = dict.fromkeys(undecided.cause for undecided in shown.diagnosis.undecided)
            rows.append((say("not checked"), ", ".join(causes)))
        cites = dict.fromkeys(key for finding in self.findings for key in finding.cites)
        rows += [(say("Source"), cited) for key in cites if (cited := shown.sources.get(key))]
        self.block(*(f"- {label}: {escaped(text)}" for label, text in rows))
        self.block("</details>")


def report(shown: Report, say: Language | None = None) -> str:
    """The whole report."""
    say = say or Language({})
    page = _Page(shown, say)
    page.opening()
    if commands := shown.diagnosis.next_commands:
        page.block(summary.to_find_out(shown, say))
        page.fenced(command_lines(commands, shown.machine), "sh")
    if page.first:
        page.body(page.first)
    for finding in page.findings:
        if finding is not page.first and not finding.because_of:
            page.finding(finding)
    if behind := [finding for finding in shown.diagnosis.findings if finding.because_of]:
        titles = "; ".join(summary.inside(finding.title) for finding in behind)
        text = say("Also reported, probably caused by the above: {titles}.", titles=titles)
        page.block(_paragraph(text))
    page.machine()
    if stale := summary.stale(shown, say):
        page.block(_paragraph(stale))
    made = f"<sub>cudadoctor {shown.version}, {say('knowledge base of')} {shown.knowledge}</sub>"
    return "\n".join((*page.lines, made, ""))


def _table_row(row: EvidenceRow) -> str:
    label, value, source = (text.replace(NBSP, " ") for text in (row.label, row.value, row.source))
    cells = (escaped(label, cell=True), _code_in_cell(value), escaped(source, cell=True))
    return f"| {' | '.join(cells)} |"


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

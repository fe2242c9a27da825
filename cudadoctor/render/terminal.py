"""The report as a person reads it on a terminal, in plain words that need no colour."""

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Finding, Severity, Step
from cudadoctor.render import Report, inert, summary
from cudadoctor.render.shells import command_line, edits_by_hand, step_lines

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice

MARGIN = 8
VERDICT_MARGIN = 10
LEAST_ROOM = 24
"""Fewer columns than these are too few to read words in."""
_NUMBERED = re.compile(r"(?i)\b(CUDA|GPU|Python|capability|driver|numpy|torch) (?=\d)")
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "cyan"}
_VERDICT_STYLE = {
    "healthy": "bold green",
    "warnings": "bold yellow",
    "broken": "bold red",
    "undecided": "bold magenta",
}


class Line(Struct, frozen=True):
    """A line of output: spans of text with the style of each ("" none)."""

    spans: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


class Layout(Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns; verbose: evidence of infos and explained findings too."""

    width: int = 80
    verbose: bool = False
    say: Language = Language({})


class _Lines:
    """Lines, as they are written. cuts: a word that is too long for a line is cut."""

    cuts = True

    def __init__(self, layout: Layout) -> None:
        self.say, self.verbose, self.width = layout.say, layout.verbose, layout.width
        self.lines: list[Line] = []

    def line(self, *spans: tuple[str, str]) -> None:
        self.lines.append(Line(tuple(span for span in spans if span[0])))

    def text(
        self,
        label: str,
        text: str,
        style: str = "",
        *,
        head: str = "",
        tail: str = "",
        margin: int = MARGIN,
        indent: int = 0,
    ) -> None:
        """The text behind its label, wrapped into the columns right of the margin.

        head: style of the label, if not that of the text. tail: stands at the right end of the
        first line; where that leaves too little room for words, on a line of its own.
        """
        room, taken = self.width - margin - indent, len(tail) + 2 if tail else 0
        apart = room - taken < LEAST_ROOM
        taken = 0 if apart else taken
        for part in self._broken(inert(text), room, taken) or [" " * taken]:
            words = part[taken:]
            left = f"{label:<{margin}}" + " " * ((len(label) >= margin) + indent)
            end = tail.rjust(max(taken, room - len(words))) if taken else ""
            self.line((left, head or style), (words, style), (end, "dim"))
            label, taken = "", 0
        if tail and apart:
            self.line((tail.rjust(max(MARGIN + len(tail), self.width)), "dim"))

    def _broken(self, text: str, room: int, taken: int) -> list[str]:
        """The text in lines of that many columns; "CUDA 13.0" stays together.

        taken: columns of the first line that something else needs.
        """
        lines = textwrap.wrap(
            _NUMBERED.sub("\\1\u00a0", text),
            room,
            initial_indent=" " * taken,
            break_long_words=self.cuts,
            break_on_hyphens=False,
        )
        return [line.replace("\u00a0", " ") for line in lines]


class _Page(_Lines):
    """A report, whose paths stay whole."""

    cuts = False

    def __init__(self, shown: Report, layout: Layout) -> None:
        super().__init__(layout)
        self.shown = shown
        self._shown_steps: set[str] = set()

    def finding(self, finding: Finding) -> None:
        style, sure = _STYLE[finding.severity], summary.sureness(finding, self.say)
        tail = f"{finding.cause}, {sure}" if sure else finding.cause
        self.text(self.say(finding.severity.label), finding.title, "bold", head=style, tail=tail)
        self.text("", finding.why)
        if finding.severity is Severity.INFO and not self.verbose:
            return
        self._evidence(finding)
        cited = [text for key in finding.cites if (text := self.shown.sources.get(key))]
        for text in cited if self.verbose else cited[:1]:
            self.text(f"  {self.say('known')}", text, "dim")
        if len(cited) > 1 and not self.verbose:
            more = self.say("more sources: {count} (-v shows them)", count=len(cited) - 1)
            self.text("", more, "dim")
        for word, step in summary.steps_for(finding, self.shown.plan):
            self._step(f"  {self.say(word)}", step)

    def _evidence(self, finding: Finding) -> None:
        """A grid of fact, value and source; where it is too narrow for that, values under facts."""
        rows = summary.evidence_rows(finding, whole=self.verbose)
        if not rows:
            return
        column = max(len(row.fact) for row in rows) + 2
        room = self.width - MARGIN - column
        words = (word for row in rows for word in (*row.value.split(), f"({row.source})"))
        if stacked := room < max(LEAST_ROOM, *map(len, words)):
            room = self.width - MARGIN - 2
        widest = max((len(row.value) for row in rows if len(row.value) < LEAST_ROOM), default=0)
        label = f"  {self.say('seen')}"
        for row in rows:
            left = row.fact
            if stacked:
                self.line((f"{label:<{MARGIN}}{left}", ""))
                label = left = ""
            for cell in _cells(row, room, widest):
                gap = "  " if stacked else f"{left:<{column}}"
                self.line((f"{label:<{MARGIN}}{gap}", ""), cell)
                label = left = ""

    def _step(self, word: str, step: Step) -> None:
        title = self.say.spoken(step.title)
        if step.id in self._shown_steps:
            self.text(word, self.say("{title} (the step above)", title=title))
            return
        self._shown_steps.add(step.id)
        self.text(word, title, tail=f"[{self.say(summary.cost_of(step))}]")
        if manual := summary.manual_of(step):
            self.text("", self.say.spoken(manual), indent=2)
        for edit in edits_by_hand(step):
            self.text("", self.say("in {file}:", file=edit.file), indent=2)
            for line in edit.what.splitlines():
                # Not wrapped either: TOML takes no break within a value.
                self.line((" " * (MARGIN + 4), ""), (inert(line), ""))
        for line in step_lines(step, self.shown.machine):
            # Never wrapped: a command must survive being copied.
            self.line((" " * (MARGIN + 2), ""), (inert(line), "green"))
        for remark in filter(None, (step.note, step.resolution)):
            self.text("", self.say.spoken(remark), "dim", indent=2)

    def conclusion(self) -> None:
        verdict, text = self.shown.diagnosis.verdict, summary.conclusion(self.shown, self.say)
        self.text(self.say(verdict), text, head=_VERDICT_STYLE[verdict], margin=VERDICT_MARGIN)
        if command := self.shown.diagnosis.next_command:
            run = inert(command_line(command, self.shown.machine))
            self.line((f"{self.say('run'):<{VERDICT_MARGIN}}", ""), (run, "green"))


def _cells(row: summary.EvidenceRow, room: int, widest: int) -> Iterator[tuple[str, str]]:
    """Value and source beside each other where they fit, else below each other."""
    beside = f"{row.value:<{widest}}  {row.source}".rstrip()
    if len(beside) <= room:
        yield beside, ""
        return
    # A path that is longer than the room is cut: nobody pastes evidence.
    for part in textwrap.wrap(row.value, room, break_on_hyphens=False) or [""]:
        yield part, ""
    for part in textwrap.wrap(row.source and f"({row.source})", room, break_on_hyphens=False):
        yield part, "dim"


def report(shown: Report, layout: Layout) -> list[Line]:
    """Every line of the report: what was looked at, each finding, and the verdict."""
    page, diagnosis = _Page(shown, layout), shown.diagnosis
    for label, text in summary.machine_rows(shown.machine, layout.say):
        page.text(label, shown.shade(text), "dim", margin=VERDICT_MARGIN)
    for finding in diagnosis.findings if layout.verbose else summary.shown_findings(shown):
        if layout.verbose or not finding.because_of:
            page.line()
            page.finding(finding)
    behind: dict[str, list[str]] = {}
    for finding in diagnosis.findings:
        for cause in finding.because_of[:1]:
            behind.setdefault(cause, []).append(finding.cause)
    if behind:
        page.line()
    for cause, symptoms in behind.items():
        text = layout.say(
            "follows from {cause}: {symptoms}", cause=cause, symptoms=", ".join(symptoms)
        )
        page.text("", text, "dim")
    page.line()
    page.conclusion()
    return page.lines


def not_checked(shown: Report, layout: Layout) -> list[str]:
    """What could not be judged and why, one line a reason; belongs on stderr.

    What no verdict turns on is told only where the user asked for more.
    """
    reasons: dict[str, list[str]] = {}
    for undecided in shown.diagnosis.undecided:
        if layout.verbose or (undecided.matters and shown.machine.look != "report"):
            reasons.setdefault(undecided.why, []).append(undecided.cause)
    label = layout.say("not checked")
    return [
        inert(f"{label}: {', '.join(dict.fromkeys(causes))} ({why})")
        for why, causes in reasons.items()
    ]


def advice_lines(advice: tuple["Advice", ...], layout: Layout) -> list[Line]:
    """Advice at the end of a check, after the verdict, which it does not touch."""
    page = _Lines(layout)
    for piece in advice:
        page.line()
        page.text(layout.say("info"), layout.say.spoken(piece.text), "bold", head="cyan")
        page.text("", layout.say.spoken(piece.why))
        for expected in piece.expected:
            page.text("", layout.say.spoken(expected), "dim")
        if piece.recipe:
            page.line((" " * MARGIN, ""), (piece.recipe, "green"))
    return page.lines

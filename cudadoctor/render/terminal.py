"""The report as a person reads it on a terminal: the answer, what to type, and why."""

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from cudadoctor.locale.language import Language
from cudadoctor.model.catalogue import AREAS
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

MARGIN = 12
"""Columns left of what stands behind a label."""
INDENT = 6
"""Columns left of a command."""
LEAST_ROOM = 24
"""Fewer columns than these are too few to read words in."""
_UNITS = (
    "GiB|MiB|GB|MB|KB|kB|TB|bytes|°C|W|MHz|GHz|GB/s|s|min|%|GPUs?|processes|files|errors?|warnings?"
    "|causes|rows|links|x|×|ranks|lanes"
)
_NUMBERED = re.compile(
    r"(?i)\b(CUDA|GPU|Python|capability|driver|numpy|torch|error|Xid|PID|branch|version) (?=\d)"
    rf"|(?<=\d) (?=(?:{_UNITS})(?![\w/-]))|(?<=\d) (?=× )|(?<=×) (?=\w)"
)
_INLINE = re.compile(r"`[^`]{1,100}`")
_SIGNS = {"ok": "✓", "error": "✗", "warning": "!", "undecided": "?", "unknown": "–", "info": "·"}
_STYLES = {
    "ok": "green",
    "error": "red",
    "warning": "yellow",
    "undecided": "magenta",
    "unknown": "magenta",
    "info": "cyan",
}
_PLAIN = str.maketrans({"·": ",", "…": "...", "×": "x", "–": "-", "°": ""})


class Line(Struct, frozen=True):
    """A line of output: spans of text with the style of each ("" none)."""

    spans: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)


class Layout(Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns. verbose: all that was checked, and the sources.

    quiet: the answer alone. signs: ✓ and ✗ can be shown; else words stand for them.
    """

    width: int = 80
    verbose: bool = False
    quiet: bool = False
    signs: bool = True
    say: Language = Language({})


class _Lines:
    """Lines, as they are written."""

    def __init__(self, layout: Layout) -> None:
        self.say, self.verbose, self.width = layout.say, layout.verbose, layout.width
        self.signs = layout.signs
        self.lines: list[Line] = []

    def line(self, *spans: tuple[str, str]) -> None:
        """One line; without spans a blank one, of which two never stand together."""
        shown = ((self.plain(text.replace(NBSP, " ")), style) for text, style in spans if text)
        if spans or (self.lines and self.lines[-1].spans):
            self.lines.append(Line(tuple(shown)))

    def plain(self, text: str) -> str:
        """The text without the marks that a plain terminal may not have."""
        return text if self.signs else text.replace(" · ", ", ").translate(_PLAIN)

    def sign(self, name: str) -> str:
        """The sign of an answer, or its word."""
        if self.signs:
            return _SIGNS[name]
        return "-" if name == "unknown" else self.say(name)

    def text(
        self, label: str, text: str, style: str = "", *, margin: int = MARGIN, head: str = "dim"
    ) -> None:
        """The text behind its label, wrapped into the columns right of the margin."""
        for part in self.broken(inert(text), self.width - margin) or [""]:
            self.line((f"{label:<{margin}}", head), (part, style))
            label = ""

    def broken(self, text: str, room: int, hang: int = 0) -> list[str]:
        """The text in lines of that many columns; a number and its unit stay together."""
        text = _NUMBERED.sub(lambda found: f"{found[1] or ''}{NBSP}", text)
        for command in _INLINE.findall(text):
            # A command within a sentence stays on one line if it fits there.
            if len(command) < room - hang:
                text = text.replace(command, command.replace(" ", NBSP))
        lines = textwrap.wrap(
            text,
            room,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [line.replace(NBSP, " ") for line in lines]

    def answer(self, sign: str, text: str, style: str = "bold") -> None:
        """A sentence behind its sign."""
        mark = self.sign(sign) + ("" if self.signs else ":")
        hang = len(mark) + 1
        first, *others = self.broken(f"{mark} {inert(text)}", self.width, hang)
        head = f"bold {_STYLES[sign]}"
        self.line((first[:hang], head), (first[hang:], style))
        for other in others:
            self.line((other, style))


class _Page(_Lines):
    """A report."""

    def __init__(self, shown: Report, layout: Layout) -> None:
        super().__init__(layout)
        self.shown = shown
        self._shown_steps: set[str] = set()

    def first(self, finding: Finding) -> None:
        """The finding that the page is about: its cure, then why and what shows it."""
        self.line()
        steps = list(summary.steps_for(finding, self.shown.plan))
        preferred = [step for word, step in steps if word == "do"]
        for step in preferred:
            self.cure(step, 2)
        self.line()
        self.reasons(finding, preferred)
        self._evidence(finding)
        self._sources(finding)
        for step in (step for word, step in steps if word == "or"):
            self._alternative(step)
        label = f"  {self.say('More'):<{MARGIN - 2}}"
        self.beside(label, f"cudadoctor explain {finding.cause}", "dim")

    def other(self, finding: Finding) -> None:
        """A finding below the first one."""
        self.line()
        if finding.severity is Severity.INFO and not self.verbose:
            self.answer("info", summary.finding_sentence(finding, self.say), "")
            return
        self.answer(finding.severity.label, summary.finding_sentence(finding, self.say))
        steps = list(summary.steps_for(finding, self.shown.plan))
        preferred = [step for word, step in steps if word == "do"]
        new = [step for step in preferred if step.id not in self._shown_steps]
        for step in preferred:
            self.cure(step, 2)
        self.reasons(finding, new, chosen=False)
        if self.verbose:
            self._evidence(finding)
            self._sources(finding)
        for word, step in steps:
            if word == "or":
                self._alternative(step)

    def reasons(self, finding: Finding, steps: list[Step], *, chosen: bool = True) -> None:
        """Why it is so, why this build was chosen, and what the cure costs."""
        label = f"  {self.say('Why')}"
        if finding.why:
            self.text(label, finding.why)
            label = ""
        build = self.shown.plan.build
        if build and chosen and any(step.packages for step in steps):
            reasons = build.why if self.verbose else build.why[:2]
            if reasons:
                self.text(label, " ".join(map(self.say.spoken, reasons)))
        if chosen and (missing := summary.without_build(self.shown, self.say)):
            self.text(f"  {self.say('Note')}", missing)
        for step in steps:
            for remark in filter(None, (step.note, step.resolution)):
                self.text(f"  {self.say('Note')}", self.say.spoken(remark))

    def _evidence(self, finding: Finding) -> None:
        """A grid of fact, value and source; where it is too narrow for that, values under facts."""
        rows = evidence_rows(finding, self.say, whole=self.verbose)
        if not rows:
            return
        column = max(len(row.label) for row in rows) + 2
        room = self.width - MARGIN - column
        words = (len(word) for row in rows for word in row.value.split())
        if stacked := room < max(LEAST_ROOM, *words, 0):
            column, room = 2, self.width - MARGIN - 2
        widest = max((len(row.value) for row in rows if len(row.value) < LEAST_ROOM), default=0)
        label = f"  {self.say('Evidence')}"
        for row in rows:
            if stacked:
                for part in self.broken(row.label, self.width - MARGIN):
                    self.line((f"{label:<{MARGIN}}", "dim"), (part, ""))
                    label = ""
            left = "" if stacked else row.label
            for text, style in self._cells(row, room, widest):
                self.line((f"{label:<{MARGIN}}", "dim"), (f"{left:<{column}}", ""), (text, style))
                label = left = ""

    def _cells(self, row: EvidenceRow, room: int, widest: int) -> Iterator[tuple[str, str]]:
        """Value and source beside each other where they fit, else below each other.

        Of a path that is too long the end is shown, which says most.
        """
        beside = f"{row.value:<{widest}}  {row.source}".rstrip()
        if len(beside) <= room:
            yield beside, ""
            return
        for part in self.broken(row.value, room) or [""]:
            yield part, ""
        source, short = f"({row.source})", row.source
        while len(source) > room and not self.verbose and "/" in short:
            short = short.partition("/")[2]
            source = f"(…/{short})"
        for part in self.broken(source if row.source else "", room):
            yield part, "dim"

    def _sources(self, finding: Finding) -> None:
        """Where the knowledge comes from, for those who ask."""
        if self.verbose:
            label = f"  {self.say('Source')}"
            for key in finding.cites:
                if cited := self.shown.sources.get(key):
                    self.text(label, cited)
                    label = ""

    def cure(self, step: Step, indent: int) -> None:
        """A step with what stands before its commands."""
        say, machine = self.say, self.shown.machine
        if step.id in self._shown_steps:
            title = summary.inside(say.spoken(step.title))
            self.text(
                "", say("The fix above also applies here: {title}.", title=title), margin=indent
            )
            return
        self._shown_steps.add(step.id)
        lines = step_lines(step, machine, self.width - indent - 4)
        if before := lines and summary.precedes(step):
            self.text("", say.spoken(step.manual or ""), margin=indent)
        if lines and not edits_lead(step):
            self.text(
                "",
                f"{summary.lead_of(step, say, cell=is_for_cell(step, machine))}:",
                "bold",
                margin=indent,
            )
            self.commands(lines, indent + 4)
        else:
            self.text("", f"{say.spoken(step.title)}{self._where(step)}:", "bold", margin=indent)
            self._edits(step, indent + 4)
            if lines:
                self.text("", say("Then run this:"), margin=indent)
                self.commands(lines, indent + 4)
        if summary.offers_fix(step, machine):
            text = say("Or let cudadoctor do it (you can undo it):")
            self.beside(f"{' ' * indent}{text}   ", summary.own_fix(machine))
        if (manual := step.manual) and not before:
            # Not where the commands stand: a sentence is not to be pasted.
            self.text("", say.spoken(manual), margin=indent if lines else indent + 4)
        if lines and not edits_lead(step):
            self._edits(step, indent)

    def _edits(self, step: Step, margin: int) -> None:
        """What is changed by hand."""
        for edit in edits_by_hand(step):
            self.text("", self.say("In {file}:", file=edit.file), margin=margin)
            for line in edit.what.splitlines():
                # Not wrapped: TOML and YAML take no break within a value.
                self.line((" " * (margin + 4), ""), (inert(line), ""))

    def _where(self, step: Step) -> str:
        return f" ({self.say(summary.cost_of(step))})" if step.where != "here" else ""

    def commands(self, lines: list[str], indent: int) -> None:
        """Commands, folded already: what can be copied is never wrapped."""
        for line in lines:
            self.line((" " * indent, ""), (inert(line), "green"))

    def beside(self, label: str, command: str, style: str = "") -> None:
        """A command behind its label, or below it where the line is too short."""
        if len(label) + len(command) <= self.width:
            self.line((label, style), (command, "green"))
        else:
            words = label.strip()
            self.text("", words, style, margin=label.index(words))
            self.commands([command], INDENT)

    def _alternative(self, step: Step) -> None:
        """Another way to the same end."""
        if step.id in self._shown_steps:
            return
        self._shown_steps.add(step.id)
        say, machine = self.say, self.shown.machine
        lines = step_lines(step, machine, self.width - MARGIN - 2)
        colon = ":" if lines or edits_by_hand(step) else "."
        cost = say(summary.cost_of(step))
        self.text(f"  {say('Or')}", f"{say.spoken(step.title)} ({cost}){colon}")
        if edits_lead(step):
            self._edits(step, MARGIN)
        remarks = [*filter(None, (summary.manual_of(step), step.note, step.resolution))]
        if lines and summary.precedes(step):
            self.text("", say.spoken(remarks.pop(0)))
        self.commands(lines, MARGIN + 2)
        for remark in remarks:
            self.text("", say.spoken(remark))
        if not edits_lead(step):
            self._edits(step, MARGIN)

    def deciding(self) -> None:
        """What a report leaves open, and the command whose output would decide."""
        diagnosis, machine = self.shown.diagnosis, self.shown.machine
        if machine.look == "report" and (told := summary.candidates(self.shown, self.say)):
            self.line()
            self.text("", told, margin=2)
        if commands := diagnosis.next_commands:
            self.line()
            self.line((f"  {summary.to_find_out(self.shown, self.say)}", "bold"))
            self.commands(command_lines(commands, machine, "", self.width - INDENT), INDENT)

    def open_questions(self, most: int) -> None:
        """What could not be judged and why, one line a reason."""
        reasons: dict[str, list[str]] = {}
        for undecided in self.shown.diagnosis.undecided:
            if self.verbose or (undecided.matters and self.shown.machine.look != "report"):
                reasons.setdefault(undecided.why, []).append(undecided.cause)
        label = f"  {self.say('Not checked')}"
        for why, causes in [*reasons.items()][: None if self.verbose else most]:
            named = ", ".join(cause for cause in dict.fromkeys(causes) if cause != "unknown")
            self.text(label, f"{self.say.spoken(why)}{f' ({named})' if named else ''}", margin=15)
            label = ""

    def status(self) -> None:
        """What is fine and what is not, then what was counted."""
        self.line()
        marks = summary.status_marks(self.shown, self.say)
        self._in_row(
            [
                (self.sign(mark.sign), self.shown.shade(mark.text), _STYLES[mark.sign])
                for mark in marks
            ]
        )
        python = self.shown.machine.python
        for remark in python.passed_over or ():
            self.text("", self.shown.shade(remark), "yellow", margin=2)
        if python.repair == "unfinished":
            text = self.say("A fix was interrupted; undo it first: cudadoctor fix --undo")
            self.text("", text, "yellow", margin=2)
        parts = list(summary.counts(self.shown, self.say))
        room = self.width - 2
        joined = " · ".join(
            part.replace(" ", NBSP) if len(part) <= room else part for part in map(inert, parts)
        )
        for line in self.broken(joined, room):
            self.line((f"  {line.removesuffix(' ·')}", "dim"))
        # Where a quick look is all that is wanted, a long one says it.
        if (stale := summary.stale(self.shown, self.say)) and self.shown.machine.look != "fast":
            self.text("", stale, "yellow", margin=2)

    def _in_row(self, marks: list[tuple[str, str, str]]) -> None:
        """Marks beside each other, none broken at the end of a line if it fits on one."""
        spans: list[tuple[str, str]] = [("  ", "")]
        used = 2
        for sign, text, style in marks:
            long = len(sign) + 1 + len(text)
            if len(spans) > 1 and used + 3 + long > self.width:
                self.line(*spans)
                spans, used = [("  ", "")], 2
            gap = "   " if len(spans) > 1 else ""
            spans += [(gap, ""), (sign, f"bold {style}"), (f" {inert(text)}", "")]
            used += len(gap) + long
        self.line(*spans)

    def checked(self) -> None:
        """Every area that was judged, with what was ruled out there and what was found."""
        diagnosis, say = self.shown.diagnosis, self.say
        self.line()
        found = {finding.cause: finding.severity.label for finding in diagnosis.findings}
        missing = {undecided.cause for undecided in diagnosis.undecided}
        for area, causes in AREAS.items():
            out = [cause for cause in causes if cause in diagnosis.passed]
            here = [cause for cause in causes if cause in found]
            gone = [cause for cause in causes if cause in missing and cause not in found]
            if area == "other" and not here:
                continue  # no part of the machine
            sign = found[here[0]] if here else "ok" if out else "unknown"
            told = (
                (say("found: {causes}", causes=", ".join(here)) if here else ""),
                (say("ruled out: {causes}", causes=", ".join(out)) if out else ""),
                (say("not checked: {causes}", causes=", ".join(gone)) if gone else ""),
            )
            self.answer(sign, f"{say(area)}: {'; '.join(filter(None, told)) or '-'}", "")

    def machine(self) -> None:
        """The machine, fact by fact."""
        self.line()
        for label, text in summary.machine_rows(self.shown.machine, self.say):
            self.text(f"  {label}", self.shown.shade(text))


def report(shown: Report, layout: Layout) -> list[Line]:
    """Every line of the report: the answer, what to type, why, and what else was seen."""
    page, diagnosis = _Page(shown, layout), shown.diagnosis
    sign, text = summary.headline(shown, layout.say)
    page.answer(sign, text)
    if layout.quiet:
        return page.lines
    first = summary.first_finding(shown)
    if diagnosis.verdict == "undecided":
        page.deciding()
    if first is not None:
        page.first(first)
    if diagnosis.verdict == "undecided":
        page.line()
        page.open_questions(3)
    others = diagnosis.findings if layout.verbose else summary.shown_findings(shown)
    for finding in others:
        if finding is not first and (layout.verbose or not finding.because_of):
            page.other(finding)
    behind = [finding for finding in diagnosis.findings if finding.because_of]
    if behind and not layout.verbose:
        page.line()
        titles = "; ".join(summary.inside(finding.title) for finding in behind)
        page.text(
            "",
            layout.say("Also reported, probably caused by the above: {titles}.", titles=titles),
            "dim",
            margin=2,
        )
    page.status()
    if layout.verbose:
        page.checked()
        page.open_questions(0)
        page.machine()
    return page.lines


def advice_lines(advice: tuple["Advice", ...], layout: Layout) -> list[Line]:
    """Advice at the end of a check, after the verdict, which it does not touch."""
    page = _Lines(layout)
    for piece in advice:
        page.line()
        page.answer("info", layout.say.spoken(piece.text))
        page.text("", layout.say.spoken(piece.why))
        for expected in piece.expected:
            page.text("", layout.say.spoken(expected), "dim")
        if piece.recipe:
            page.line((" " * MARGIN, ""), (piece.recipe, "green"))
    return page.lines

"""The report as a person reads it on a terminal, in plain words that need no colour."""

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Finding, Severity, Step
from cudadoctor.model.machine import Machine
from cudadoctor.render import Report, inert, summary
from cudadoctor.render.shells import command_line, step_lines

if TYPE_CHECKING:
    from cudadoctor.bench.advice import Advice

MARGIN = 8
LEAST_ROOM = 24
"""Fewer columns than these are too few to read words in."""
_NUMBERED = re.compile(r"\b(CUDA|GPU|Python|capability|driver|numpy|torch) (?=\d)", re.I)
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
    for finding in shown.diagnosis.findings if layout.verbose else summary.shown_findings(shown):
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
    for undecided in shown.diagnosis.undecided:
        if layout.verbose or (undecided.matters and shown.machine.look != "report"):
            reasons.setdefault(undecided.why, []).append(undecided.cause)
    label = layout.say("not checked")
    return [
        inert(f"{label}: {', '.join(dict.fromkeys(causes))} ({why})")
        for why, causes in reasons.items()
    ]


def _summary(shown: Report, layout: Layout) -> Iterator[Line]:
    for label, text in summary.machine_rows(shown.machine, layout.say):
        yield from _wrapped(label, inert(shown.shade(text)), layout.width, "dim", margin=10)


def _finding(finding: Finding, shown: Report, layout: Layout, told: set[str]) -> Iterator[Line]:
    yield from _headed(finding, layout)
    yield from _wrapped("", inert(finding.why), layout.width)
    if finding.severity is Severity.INFO and not layout.verbose:
        return
    yield from _evidence(finding, layout)
    yield from _known(finding, shown, layout)
    for word, step in summary.steps_for(finding, shown.plan):
        yield from _step(step, layout.say(word), shown.machine, layout, told)


def _headed(finding: Finding, layout: Layout) -> Iterator[Line]:
    label, style = layout.say(finding.severity.label), _STYLE[finding.severity]
    sure = summary.sureness(finding, layout.say)
    tail = f"{finding.cause}, {sure}" if sure else finding.cause
    return _tailed(label, inert(finding.title), tail, layout.width, (style, "bold"))


def _evidence(finding: Finding, layout: Layout) -> Iterator[Line]:
    """A grid of fact, value and source; where it is too narrow for that, values under facts."""
    found = summary.evidence_rows(finding, whole=layout.verbose)
    column = max((len(inert(row.fact)) for row in found), default=0) + 2
    room = layout.width - MARGIN - column
    if stacked := room < max(LEAST_ROOM, *(_longest_word(row) for row in found), 0):
        room = layout.width - MARGIN - 2
    widest = max((len(row.value) for row in found if len(row.value) < LEAST_ROOM), default=0)
    label = f"  {layout.say('seen')}"
    for row in found:
        left = inert(row.fact)
        if stacked:
            yield Line(((f"{label:<{MARGIN}}{left}", ""),))
            label = left = ""
        for text, style in _cells(row, room, widest):
            gap = "  " if stacked else f"{left:<{column}}"
            yield Line(((f"{label:<{MARGIN}}{gap}", ""), (text, style)))
            label = left = ""


def _longest_word(row: summary.EvidenceRow) -> int:
    return max(map(len, (*row.value.split(), f"({row.source})")))


def _cells(row: summary.EvidenceRow, room: int, widest: int) -> Iterator[tuple[str, str]]:
    """Value and source beside each other where they fit, else below each other."""
    value, source = inert(row.value), inert(row.source)
    beside = f"{value:<{widest}}  {source}".rstrip()
    if len(beside) <= room:
        yield beside, ""
        return
    # A path that is longer than the room is cut: nobody pastes evidence.
    for part in textwrap.wrap(value, room, break_on_hyphens=False) or [""]:
        yield part, ""
    for part in textwrap.wrap(source and f"({source})", room, break_on_hyphens=False):
        yield part, "dim"


def _known(finding: Finding, shown: Report, layout: Layout) -> Iterator[Line]:
    cited = [text for key in finding.cites if (text := shown.sources.get(key))]
    for text in cited if layout.verbose else cited[:1]:
        yield from _wrapped(f"  {layout.say('known')}", inert(text), layout.width, "dim")
    if len(cited) > 1 and not layout.verbose:
        more = layout.say("more sources: {count} (-v shows them)", count=len(cited) - 1)
        yield from _wrapped("", more, layout.width, "dim")


def _step(
    step: Step, word: str, machine: Machine, layout: Layout, told: set[str]
) -> Iterator[Line]:
    title = inert(layout.say.spoken(step.title))
    if step.id in told:
        text = layout.say("{title} (the step above)", title=title)
        yield from _wrapped(f"  {word}", text, layout.width)
        return
    told.add(step.id)
    cost = layout.say(summary.cost_of(step))
    yield from _tailed(f"  {word}", title, f"[{cost}]", layout.width)
    if manual := summary.manual_of(step):
        words = inert(layout.say.spoken(manual))
        yield from _wrapped("", words, layout.width, indent=2)
    for edit in step.edits:
        where = layout.say("in {file}:", file=inert(edit.file))
        yield from _wrapped("", where, layout.width, indent=2)
        for line in edit.what.splitlines():
            # Not wrapped either: TOML takes no break within a value.
            yield Line(((" " * (MARGIN + 4), ""), (inert(line), "")))
    for line in step_lines(step, machine):
        # Never wrapped: a command must survive being copied.
        yield Line((("          ", ""), (inert(line), "green")))
    for remark in filter(None, (step.note, step.resolution)):
        yield from _wrapped("", inert(layout.say.spoken(remark)), layout.width, "dim", indent=2)


def _explained(shown: Report, layout: Layout) -> Iterator[Line]:
    behind: dict[str, list[str]] = {}
    for finding in shown.diagnosis.findings:
        for cause in finding.because_of[:1]:
            behind.setdefault(cause, []).append(finding.cause)
    if behind:
        yield Line(())
    for cause, symptoms in behind.items():
        text = layout.say(
            "follows from {cause}: {symptoms}", cause=cause, symptoms=", ".join(symptoms)
        )
        yield from _wrapped("", text, layout.width, "dim")


def _conclusion(shown: Report, layout: Layout) -> Iterator[Line]:
    verdict = shown.diagnosis.verdict
    text = summary.conclusion(shown, layout.say)
    lines = list(_wrapped(layout.say(verdict), inert(text), layout.width, margin=10))
    first = lines[0].text
    yield Line(((first[:10], _VERDICT_STYLE[verdict]), (first[10:], "")))
    yield from lines[1:]
    if command := shown.diagnosis.next_command:
        run = inert(command_line(command, shown.machine))
        yield Line(((f"{layout.say('run'):<10}", ""), (run, "green")))


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
    for number, part in enumerate(_broken(text, room) or [""]):
        left = label if number == 0 else ""
        gap = " " if len(left) >= margin else ""
        yield Line(((f"{left:<{margin}}" + gap + " " * indent + part, style),))


def _tailed(
    label: str, text: str, tail: str, width: int, styles: tuple[str, str] = ("", "")
) -> Iterator[Line]:
    """The text behind its label, and the tail at the right end of its first line.

    Where that leaves too little room for words, the tail has a line of its own. styles: of label
    and text.
    """
    room, taken = width - MARGIN, len(tail) + 2
    if (beside := room - taken >= LEAST_ROOM) is False:
        taken = 0
    first, *rest = _broken(text, room, taken) or [" " * taken]
    words = first[taken:]
    end = " " * max(2, room - len(words) - len(tail)) + tail if beside else ""
    yield Line(((f"{label:<{MARGIN}}", styles[0]), (words, styles[1]), (end, "dim")))
    for part in rest:
        yield Line(((" " * MARGIN + part, styles[1]),))
    if not beside:
        yield Line(((" " * max(MARGIN, width - len(tail)) + tail, "dim"),))


def _broken(text: str, room: int, taken: int = 0) -> list[str]:
    """The text in lines of that many columns; "CUDA 13.0" stays together, and so does a path.

    taken: columns of the first line that something else needs.
    """
    bound = _NUMBERED.sub("\\1\u00a0", text)
    lines = textwrap.wrap(
        bound, room, initial_indent=" " * taken, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\u00a0", " ") for line in lines]


def advice_lines(advice: tuple["Advice", ...], layout: Layout) -> Iterator[Line]:
    """Advice at the end of a check, after the verdict, which it does not touch."""
    say = layout.say
    for piece in advice:
        yield Line(())
        text = inert(say.spoken(piece.text))
        yield from _advised(say("info"), text, layout.width, ("cyan", "bold"))
        yield from _advised("", inert(say.spoken(piece.why)), layout.width)
        for expected in piece.expected:
            yield from _advised("", inert(say.spoken(expected)), layout.width, ("", "dim"))
        if piece.recipe:
            yield Line(((f"{'':<{MARGIN}}", ""), (piece.recipe, "green")))


def _advised(
    label: str, text: str, width: int, styles: tuple[str, str] = ("", "")
) -> Iterator[Line]:
    for part in textwrap.wrap(text, max(20, width - MARGIN), break_on_hyphens=False):
        yield Line(((f"{label:<{MARGIN}}", styles[0]), (part, styles[1])))
        label = ""

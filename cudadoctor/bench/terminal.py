"""A result of the bench as a person reads it on a terminal, in words that need no colour. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import msgspec

from cudadoctor.bench import words
from cudadoctor.bench.results import BenchResult, Gain, WorkloadResult
from cudadoctor.bench.words import Hints
from cudadoctor.render import inert
from cudadoctor.render.terminal import Line

MARGIN = 10
BESIDE = 76
"""From so many columns on the verdict stands beside its bar, else below it."""
MOST_NAME, MOST_BAR = 24, 24
_STYLE = {
    "faster": "bold green",
    "slower": "yellow",
    "same": "dim",
    "loss-differs": "bold red",
    "failed": "red",
}


class Marks(msgspec.Struct, frozen=True):
    """What a bar is made of: sure, between the ends of its interval, and the baseline."""

    sure: str = "="
    between: str = "-"
    baseline: str = "|"


BLOCKS = Marks("\u2588", "\u2592", "\u2502")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns, 40 to 100. blocks: the output can show more than ASCII."""

    width: int = 80
    blocks: bool = False
    hints: Hints = {}

    @property
    def marks(self) -> Marks:
        return BLOCKS if self.blocks else Marks()


def report(result: BenchResult, layout: Layout) -> list[Line]:
    """Every line: the machine, each workload, and what must be known of the figures."""
    lines = [
        line
        for label, text in words.rows(result)
        for line in _labelled(label, text, layout.width, "dim")
    ]
    for workload in result.workloads:
        lines.append(Line(()))
        lines.extend(_workload(workload, layout))
    told = [("nothing", "no workload was measured")] if not result.workloads else []
    told += [("note", text) for text in words.notes(result)]
    if told:
        lines.append(Line(()))
    for label, text in told:
        lines.extend(_labelled(label, text, layout.width))
    return lines


def _workload(one: WorkloadResult, layout: Layout) -> Iterator[Line]:
    width = layout.width
    shape = f": {inert(one.shape)}" if one.shape else ""
    for place, text in enumerate(textwrap.wrap(f"{inert(one.name)}{shape}", width)):
        yield Line(((text, "bold" if place == 0 else ""),))
    yield from _labelled("  baseline", words.step(one.baseline, one.samples_unit), width)
    yield from _labelled("  time", words.bottleneck(one), width)
    if noise := words.noise(one):
        yield from _labelled("  noise", noise, width)
    if words.tried(one):
        yield Line(())
        yield from _bars(one, layout)
        yield Line(())
    yield from _labelled("  best", words.best(one), width, "bold")
    yield from _recipes(one, layout)
    for text in words.not_here(one):
        yield from _labelled("  not here", text, width, "dim")
    if one.ended:
        yield from _labelled("  ended", inert(one.ended), width)


def _recipes(one: WorkloadResult, layout: Layout) -> Iterator[Line]:
    """What to copy. Never wrapped: a path and a line of code must survive being copied."""
    for name, hint in words.taken_over(one, layout.hints):
        yield Line((("  copy      ", ""), (hint.recipe, "green"), (f"  ({name})", "dim")))
        for code in hint.code:
            yield Line((("              ", ""), (code, "green")))
    if chosen := words.settings(one):
        yield from _labelled("  settings", ", ".join(chosen), layout.width)


def _bars(one: WorkloadResult, layout: Layout) -> Iterator[Line]:
    """A bar for each technique alone, and one for the best combination of several."""
    rows = [(inert(gain.technique), gain) for gain in words.tried(one)]
    if len(one.best) > 1 and one.best_gain is not None:
        rows.append(("best together", one.best_gain))
    measured = [gain for _, gain in rows if words.counts(gain)]
    top = max([1.0, *(gain.high or gain.ratio or 1.0 for gain in measured)])
    column = min(MOST_NAME, max(len(name) for name, _ in rows)) + 2
    for name, gain in rows:
        yield from _bar_line(name, gain, top, column, layout)


def _bar_line(name: str, gain: Gain, top: float, column: int, layout: Layout) -> Iterator[Line]:
    style = _STYLE.get(gain.verdict, "")
    text, width = words.verdict(gain), layout.width
    shown = name if len(name) <= column - 2 else name[: column - 4] + ".."
    beside = width >= BESIDE
    room = min(MOST_BAR, (width - 2 - column) // 3 if beside else width - 4)
    drawn = bar(gain, top, room, layout.marks) if words.counts(gain) else ""
    left = f"  {shown:<{column}}"
    if not beside:
        parts = textwrap.wrap(text, width - 4, break_on_hyphens=False)
        yield Line(((f"  {name}", ""),))
        yield from (Line((("    " + part, style),)) for part in [drawn, *parts] if part)
        return
    start = len(left) + room + 2
    for place, part in enumerate(textwrap.wrap(text, width - start, break_on_hyphens=False)):
        if place:
            yield Line(((" " * start + part, style),))
        else:
            yield Line(((left, ""), (f"{drawn:<{room}}  ", style), (part, style)))


def bar(gain: Gain, top: float, room: int, marks: Marks) -> str:
    """Full up to the low end of the interval, light up to the high one; the baseline is marked."""
    ratio = gain.ratio or 0.0
    low = gain.low if gain.low is not None else ratio
    high = gain.high if gain.high is not None else ratio
    cells = [_cell(place + 0.5, low, high, room / top, marks) for place in range(room)]
    one = min(room - 1, max(0, round(room / top) - 1))
    cells[one] = marks.baseline
    return "".join(cells).rstrip()


def _cell(middle: float, low: float, high: float, scale: float, marks: Marks) -> str:
    if middle <= low * scale:
        return marks.sure
    return marks.between if middle <= high * scale else " "


def _labelled(label: str, text: str, width: int, style: str = "") -> Iterator[Line]:
    margin = MARGIN + 2 if label.startswith(" ") else MARGIN
    room = max(20, width - margin)
    for place, part in enumerate(textwrap.wrap(text, room, break_on_hyphens=False)):
        yield Line(((f"{label if place == 0 else '':<{margin}}", ""), (part, style)))

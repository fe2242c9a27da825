"""What the bench measured, as a person reads it: on a terminal, as Markdown, as a chart. Pure.

Rows of a label and a text say what there is to say; each format only lays them out.
"""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from msgspec import Struct

from cudadoctor.bench.results import BenchResult, Conditions, Gain, Measured, WorkloadResult
from cudadoctor.bench.techniques import BY_NAME, TECHNIQUES
from cudadoctor.locale.language import Language
from cudadoctor.render import inert
from cudadoctor.render.markdown import code, escaped
from cudadoctor.render.terminal import Line

ON_A_CPU = "measured on a CPU; the results do not apply to a GPU"
CUT_SHORT = "the benchmark was interrupted; some results are missing"
MARGIN = 10
BESIDE = 76
"""From so many columns on the verdict stands beside its bar, else below it."""
MOST_BAR = 24
PLAIN, BLOCKS = tuple("=-|"), tuple("\u2588\u2592\u2502")
"""What a bar is made of: sure, between the ends of its interval, and the baseline."""
_STYLE = {
    "faster": "bold green",
    "slower": "yellow",
    "same": "dim",
    "undecided": "dim",
    "loss-differs": "bold red",
    "failed": "red",
}
_VERDICTS = {"faster": "{:.2f}x faster", "slower": "slower: {:.2f}x"}
"""Of what has a speed and an interval; what failed or computed something else has neither."""
PROMISING, SHOWN = 1.02, 4
"""So much faster so far, but not decided: worth more time. How many of them are named."""
RECIPES = {technique.name: technique for technique in TECHNIQUES if technique.recipe}
COPIED = "green"
"""The style of paths and code: never wrapped, since they must survive being copied."""


ENGLISH = Language({})


class Row(NamedTuple):
    label: str
    text: str
    style: str = ""


# --- what there is to say -------------------------------------------------------------------------


def about(result: BenchResult) -> Iterator[Row]:
    """What was measured on."""
    capability, driver = (
        _if(result.capability, ", compute capability {}"),
        _if(result.driver, ", driver {}"),
    )
    machine = {"GPU": f"{result.gpu}{capability}{driver}", "CPU": result.cpu}
    if result.gpu is None:
        machine = {"CPU": f"{result.cpu}{_if(result.cores, ', {} cores')}, no GPU used"}
    took = f"time limit {result.minutes:g} min"
    if result.seconds is not None:
        took = f"took {result.seconds / 60:.1f} min (limit {result.minutes:g} min)"
    facts = {
        **machine,
        "torch": f"{result.torch}{_if(result.cuda, ' (CUDA {})')}, Python {result.python}",
        "measured": f"{result.date[:10]}, {took}, cudadoctor {result.cudadoctor}",
    }
    return (Row(label, text, "dim") for label, text in facts.items())


def _if(value: object, text: str) -> str:
    """The text with the value, "" where there is none."""
    return text.format(value) if value else ""


def notes(result: BenchResult) -> Iterator[str]:
    """Sentences that the reader must know, the most important first."""
    if result.gpu is None:
        yield ON_A_CPU
    if not result.complete:
        yield CUT_SHORT
    yield from result.notes


def rows_of(workload: WorkloadResult) -> Iterator[Row]:
    """All that is said of a workload, but for the gains of its techniques."""
    yield Row("baseline", step(workload.baseline, workload.samples_unit))
    kind, why = workload.bottleneck.kind, workload.bottleneck.why
    limit = "not known" if kind == "not known" else f"limited by {kind}"
    yield Row("limit", f"{limit}{_if(why, ': {}')}")
    if workload.noise is not None:
        percent = f"{(workload.noise - 1) * 100:.1f}%"
        yield Row("noise", f"processes that run the same code differ by about {percent}")
    if workload.conditions is not None:
        for place, text in enumerate(_machine(workload.conditions)):
            yield Row("" if place else "machine", text, "dim")
    yield Row("best", best(workload), "bold")
    for technique in (RECIPES[name] for name in workload.best if name in RECIPES):
        yield Row("use", f"{technique.script}  ({technique.name})", COPIED)
        yield from (Row("", f"  {line}", COPIED) for line in technique.code)
    gain = workload.best_gain
    if chosen := gain.measured.settings if gain and gain.measured else {}:
        pairs = (f"{name} = {value}" for name, value in sorted(chosen.items()))
        yield Row("settings", ", ".join(pairs))
    if names := _promising(workload):
        yield Row("next", f"faster so far, but not decided: {', '.join(names)}")
        words = " ".join(f"--only {name}" for name in names)
        yield Row("", f"cudadoctor bench --workload {workload.name} {words}", COPIED)
    reasons: dict[str, list[str]] = {}
    for gain in workload.alone:
        if gain.verdict == "not-here":
            reasons.setdefault(gain.why, []).append(gain.technique)
    for why, names in reasons.items():
        yield Row("skipped", f"{why}: {', '.join(names)}", "dim")
    if workload.ended:
        yield Row("stopped", workload.ended)


def _machine(found: Conditions) -> Iterator[str]:
    """How the machine was while it was measured."""
    if found.busy is not None:
        yield f"other programs used {found.busy:.0%} of the CPU before it began"
    if found.clock_mhz is not None:
        low, high = found.clock_mhz
        yield f"GPU clock: {low} to {high} MHz"
    if found.power_w is not None:
        low, high = found.power_w
        yield f"GPU power: {low} to {high} W"


def _promising(workload: WorkloadResult) -> list[str]:
    """What looks faster and could be decided with more time."""
    open_ = [gain for gain in workload.alone if gain.verdict == "undecided"]
    likely = [gain for gain in open_ if (gain.ratio or 0.0) >= PROMISING]
    likely.sort(key=lambda gain: -(gain.ratio or 0.0))
    return [gain.technique for gain in likely if gain.technique in BY_NAME][:SHOWN]


def gains_of(workload: WorkloadResult) -> list[tuple[str, Gain]]:
    """What was tried alone, what counts first, by its gain; then the best of several together."""
    tried = [gain for gain in workload.alone if gain.verdict != "not-here"]
    tried.sort(key=lambda gain: -(gain.ratio or 0.0) if counts(gain) else 1.0)
    rows = [(inert(gain.technique), gain) for gain in tried]
    if rows and len(workload.best) > 1 and workload.best_gain is not None:
        rows.append(("best combined", workload.best_gain))
    return rows


def verdict(gain: Gain) -> str:
    """The verdict of a gain, with its interval where there is one."""
    if gain.verdict in _VERDICTS and counts(gain):
        text = _VERDICTS[gain.verdict].format(gain.ratio)
        return f"{text} ({between(gain)}){memory(gain)}"
    if gain.verdict == "same":
        return f"{equal(gain)}{memory(gain)}"
    if gain.verdict == "undecided":
        so_far = f"{gain.ratio or 1.0:.2f}x"
        return f"not decided: {so_far} so far, pairs of processes: {len(gain.pairs)}{memory(gain)}"
    return f"{gain.verdict.replace('-', ' ')}{_if(gain.why, ': {}')}"


def equal(gain: Gain) -> str:
    return f"equal within {gain.within:.0%}" if gain.within else "no difference"


def between(gain: Gain) -> str:
    return f"{gain.low:.2f} to {gain.high:.2f}"


def memory(gain: Gain) -> str:
    """Empty below a twentieth: nobody asks about a smaller difference."""
    if gain.memory_ratio is None or abs(gain.memory_ratio - 1) < 0.05:
        return ""
    return f", memory {gain.memory_ratio:.2f}x"


def counts(gain: Gain) -> bool:
    """Whether a bar may show it."""
    return gain.ratio is not None and (gain.verdict in _VERDICTS or gain.verdict == "same")


def figures(value: float) -> str:
    """A number with the figures that count."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{figures(seconds)} s"
    return f"{figures(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{figures(seconds * 1e6)} us"


def step(measured: Measured, unit: str) -> str:
    """The figures of one configuration: a step, samples a second, memory, compiling."""
    if measured.step_s is None:
        return f"not measured: {measured.error or 'no result'}"
    text = f"{duration(measured.step_s)} per step"
    if measured.spread_s is not None:
        low, high = map(duration, measured.spread_s)
        text += f" (interquartile range: {low} to {high})"
    text += f", {figures(measured.samples_a_step / measured.step_s)} {unit}/s"
    if (size := measured.peak_bytes) is not None:
        large = f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
        text += f", peak memory {large}"
    if measured.compile_s:
        text += f", {duration(measured.compile_s)} to compile"
    return text


def best(workload: WorkloadResult) -> str:
    """The best combination and what it is worth."""
    name, gain = " + ".join(workload.best), workload.best_gain
    if gain is not None:
        return f"{name}: {verdict(gain)}"
    if any(one.pairs for one in workload.alone):
        return "no technique was found to be faster than the baseline"
    return "not known: no technique could be measured"


# --- on a terminal --------------------------------------------------------------------------------


class Layout(Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns, 40 to 100. blocks: the output can show more than ASCII.

    copied: with the lines that take over what is best. say: the language of the words.
    """

    width: int = 80
    blocks: bool = False
    copied: bool = True
    say: Language = ENGLISH


def report(result: BenchResult, layout: Layout) -> Iterator[Line]:
    """Every line: the machine, each workload, and what must be known of the figures."""
    say = layout.say
    yield from labelled(about(result), layout.width, say=say)
    for workload in result.workloads:
        yield Line(())
        yield from _workload(workload, layout)
    remarks = [] if result.workloads else [Row("result", "no workload was measured")]
    if remarks := [*remarks, *(Row("note", text) for text in notes(result))]:
        yield Line(())
        yield from labelled(remarks, layout.width, say=say)


def labelled(
    rows: Iterable[Row], width: int, indent: str = "", say: Language = ENGLISH
) -> Iterator[Line]:
    """Rows with the label in a margin, wrapped beside it, in that language."""
    margin = MARGIN + len(indent)
    for label, text, style in (spoken(row, say) for row in rows):
        beside = f"{indent}{label}"
        for part in [inert(text)] if style == COPIED else _wrapped(text, max(20, width - margin)):
            yield Line(((f"{beside:<{margin}}", ""), (part, style)))
            beside = ""


def spoken(row: Row, say: Language) -> Row:
    """The row in that language; what is copied stays as it is."""
    # The names of skipped techniques stand behind their reason.
    parts = row.text.rsplit(": ", 1) if row.label == "skipped" else [row.text]
    text = row.text if row.style == COPIED else ": ".join(map(say.spoken, parts))
    return Row(say(row.label), text, row.style)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(inert(text), width, break_on_hyphens=False)


def _workload(workload: WorkloadResult, layout: Layout) -> Iterator[Line]:
    style = "bold"
    shape = layout.say.spoken(workload.shape)
    for text in _wrapped(f"{workload.name}{_if(shape, ': {}')}", layout.width):
        yield Line(((text, style),))
        style = ""
    gains = gains_of(workload)
    for row in rows_of(workload):
        if row.label == "best" and gains:
            yield from (Line(()), *_bars(gains, layout), Line(()))
        if layout.copied or row.style != COPIED:
            yield from labelled([row], layout.width, "  ", layout.say)


def _bars(gains: list[tuple[str, Gain]], layout: Layout) -> Iterator[Line]:
    """A bar for each technique alone, and one for the best combination of several."""
    top = max([1.0, *(ends(gain)[1] for _, gain in gains if counts(gain))])
    gains = [(layout.say(name), gain) for name, gain in gains]
    column = max(len(name) for name, _ in gains) + 2
    beside = layout.width >= BESIDE
    room = min(MOST_BAR, (layout.width - 2 - column) // 3 if beside else layout.width - 4)
    start = column + room + 4 if beside else 4
    for name, gain in gains:
        style = _STYLE.get(gain.verdict, "")
        drawn = bar(gain, top, room, BLOCKS if layout.blocks else PLAIN) if counts(gain) else ""
        parts = _wrapped(layout.say.spoken(verdict(gain)), layout.width - start)
        if beside:
            drawn = f"{drawn:<{room}}  "
            yield Line(((f"  {name:<{column}}", ""), (drawn, style), (parts.pop(0), style)))
        else:
            yield Line(((f"  {name}", ""),))
            parts = [drawn, *parts] if drawn else parts
        yield from (Line(((" " * start + part, style),)) for part in parts)


def ends(gain: Gain) -> tuple[float, float]:
    """Of a bar: the interval, or between what it is equal to the baseline."""
    if gain.within:
        return 1 / (1 + gain.within), 1 + gain.within
    return gain.low or 0.0, gain.high or 0.0


def bar(gain: Gain, top: float, room: int, marks: tuple[str, ...]) -> str:
    """Full up to the low end of the interval, light up to the high one; the baseline is marked."""
    sure, light, baseline = marks
    low, high = (room / top * end for end in ends(gain))
    middles = (place + 0.5 for place in range(room))
    cells = [sure if at <= low else light if at <= high else " " for at in middles]
    cells[min(room - 1, max(0, round(room / top) - 1))] = baseline
    return "".join(cells).rstrip()


# --- Markdown -------------------------------------------------------------------------------------


def bullets(rows: Iterable[Row], say: Language = ENGLISH) -> list[str]:
    """Rows as a list; what is bold on a terminal is bold here, what is copied stands behind."""
    lines: list[str] = []
    for label, text, style in (spoken(row, say) for row in rows):
        line = f"{label}: {escaped(text)}"
        if style == COPIED and lines:
            lines[-1] += f" ({code(text)})"
        else:
            lines.append(f"- **{line}**" if style == "bold" else f"- {line}")
    return lines


def markdown(result: BenchResult, say: Language = ENGLISH) -> str:
    """The whole report, for an issue or a README."""
    lines = [f"### cudadoctor bench: {escaped(result.hardware)}", "", *bullets(about(result), say)]
    lines += [f"- **{escaped(say.spoken(text))}**" for text in notes(result)]
    for workload in result.workloads:
        shape = _if(escaped(say.spoken(workload.shape)), ": {}")
        shown = bullets((row for row in rows_of(workload) if row.style != COPIED), say)
        lines += ["", f"#### {escaped(workload.name)}{shape}", "", *shown]
        if gains := gains_of(workload):
            head = map(say, ("technique", "speed", "interval", "memory", "result", "recipe"))
            lines += ["", f"| {' | '.join(head)} |", "| --- | ---: | --- | ---: | --- | --- |"]
            lines += [_cells(gain, say) for _, gain in gains]
        if known := [RECIPES[name] for name in workload.best if name in RECIPES]:
            lines += ["", "```python"]
            for technique in known:
                lines += [f"# {technique.name}: {technique.script}", *technique.code]
            lines.append("```")
    if not result.workloads:
        lines += ["", say("No workload was measured.")]
    return "\n".join(lines) + "\n"


def _cells(gain: Gain, say: Language) -> str:
    ratio = span = used = ""
    result = escaped(say.spoken(verdict(gain)), cell=True)
    if counts(gain):
        ratio = f"{gain.ratio:.2f}x"
        used = _if(gain.memory_ratio, "{:.2f}x")
    if gain.verdict in _VERDICTS and counts(gain):
        span = say("{low} to {high}", low=f"{gain.low:.2f}", high=f"{gain.high:.2f}")
        result = say(gain.verdict)
    elif gain.verdict == "same":
        result = escaped(say.spoken(equal(gain)), cell=True)
    recipe = code(RECIPES[gain.technique].script) if gain.technique in RECIPES else ""
    cells = (escaped(gain.technique, cell=True), ratio, span, used, result, recipe)
    return f"| {' | '.join(cells)} |"


# --- a chart: the lines of the terminal as SVG text, or as a PNG ----------------------------------

COLUMNS, CELL, LINE, SIZE = 100, 16, 40, 26
"""Letters in a line; of a PNG the pixels of a letter, of a line, and of the font."""
PAINTS = {"dim": "#57606a", "green": "#1a7f37", "yellow": "#b35900", "red": "#cf222e"}
"""Colours of a PNG, by the last word of a style; all else is black on white."""
_PARTS = re.compile("[{0}]|[^ {0}]+(?: [^ {0}]+)*".format("".join(BLOCKS)))
"""A cell of a bar, or some words."""
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
 viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">
<style>.{unique_id}-matrix{{font:{char_height}px Menlo,Consolas,monospace}}{styles}</style>
<defs>{lines}</defs>{chrome}
<g class="{unique_id}-matrix" transform="translate({terminal_x}, {terminal_y})">{matrix}</g>
</svg>
"""
"""For rich, whose own names a font of the network: who looks at a chart asks no server."""


def _chart(result: BenchResult) -> tuple[str, list[Line]]:
    """The title and the lines of the chart."""
    title = f"cudadoctor bench: {inert(result.hardware)}"
    shown = textwrap.shorten(title, COLUMNS, placeholder="...")
    layout = Layout(width=COLUMNS, blocks=True, copied=False)
    return title, [Line(((shown, "bold"),)), Line(()), *report(result, layout)]


def svg(result: BenchResult) -> str:
    """The chart as SVG text, with all its words for those who do not see it."""
    from rich.console import Console
    from rich.text import Text

    title, lines = _chart(result)
    console = Console(record=True, width=COLUMNS, height=1, file=io.StringIO())
    for line in lines:
        console.print(Text.assemble(*line.spans), no_wrap=True, crop=True)
    drawn = console.export_svg(title="", code_format=SVG, unique_id="bench")
    spoken = escape("\n".join(line.text for line in lines))
    described = f'<title id="t">{escape(title)}</title>\n<desc id="d">{spoken}</desc>\n<style>'
    return drawn.replace("<style>", described, 1)


def png(result: BenchResult) -> bytes:
    """The same lines as a PNG.

    Pillow brings a font, but none whose letters are all as wide: so words are drawn where they
    begin, and bars as boxes. Raises ImportError without Pillow.
    """
    from PIL import Image, ImageDraw, ImageFont

    _, lines = _chart(result)
    image = Image.new("RGB", ((COLUMNS + 2) * CELL, len(lines) * LINE), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(SIZE)
    _, light, baseline = BLOCKS
    for row, line in enumerate(lines):
        column = 1
        for text, style in line.spans:
            paint = PAINTS.get(style.rpartition(" ")[2], "black")
            for part in _PARTS.finditer(text):
                x, y = (column + part.start()) * CELL, row * LINE
                if (mark := part[0]) in BLOCKS:
                    box = (x, y + 4, x + (2 if mark == baseline else CELL - 1), y + SIZE)
                    pen.rectangle(box, fill=None if mark == light else paint, outline=paint)
                else:
                    pen.text((x, y), mark, fill=paint, font=font)
            column += len(text)
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()

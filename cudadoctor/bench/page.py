"""What the bench measured, as a person reads it: on a terminal, as Markdown, as a chart. Pure.

Rows of a label and a text say what there is to say; each format only lays them out.
"""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

import msgspec

from cudadoctor.bench.results import BenchResult, Gain, Measured, WorkloadResult
from cudadoctor.bench.techniques import TECHNIQUES, Technique
from cudadoctor.render import inert
from cudadoctor.render.markdown import code, escaped
from cudadoctor.render.terminal import Line

ON_A_CPU = "measured on a CPU: these figures say nothing about a GPU"
CUT_SHORT = "the bench was cut short: what it did not reach is missing here"
MARGIN = 10
BESIDE = 76
"""From so many columns on the verdict stands beside its bar, else below it."""
MOST_NAME, MOST_BAR = 24, 24
PLAIN, BLOCKS = "=-|", "\u2588\u2592\u2502"
"""What a bar is made of: sure, between the ends of its interval, and the baseline."""
_STYLE = {
    "faster": "bold green",
    "slower": "yellow",
    "same": "dim",
    "loss-differs": "bold red",
    "failed": "red",
}
RECIPES: Mapping[str, Technique] = {known.name: known for known in TECHNIQUES if known.recipe}


COPIED = "green"
"""The style of paths and code: never wrapped, since they must survive being copied."""


class Row(NamedTuple):
    label: str
    text: str
    style: str = ""


# --- what there is to say -------------------------------------------------------------------------


def about(result: BenchResult) -> list[Row]:
    """What was measured on."""
    if result.gpu is None:
        cores = f", {result.cores} cores" if result.cores else ""
        machine = [("machine", f"{result.cpu}{cores}, no GPU was used")]
    else:
        capability = f", capability {result.capability}" if result.capability else ""
        driver = f", driver {result.driver}" if result.driver else ""
        machine = [("machine", f"{result.gpu}{capability}{driver}"), ("host", result.cpu)]
    cuda = f" (CUDA {result.cuda})" if result.cuda else ""
    took = f"within {result.minutes:g} min"
    if result.seconds is not None:
        took = f"in {result.seconds / 60:.1f} min of {result.minutes:g} min"
    rows = [
        *machine,
        ("torch", f"{result.torch}{cuda}, Python {result.python}"),
        ("measured", f"{result.date[:10]} {took}, cudadoctor {result.cudadoctor}"),
    ]
    return [Row(label, text, "dim") for label, text in rows]


def notes(result: BenchResult) -> list[str]:
    """Sentences that the reader must know, the most important first."""
    cpu = [ON_A_CPU] if result.gpu is None else []
    return [*cpu, *([] if result.complete else [CUT_SHORT]), *result.notes]


def rows_of(workload: WorkloadResult, recipes: Mapping[str, Technique]) -> Iterator[Row]:
    """All that is said of a workload, but for the gains of its techniques."""
    yield Row("baseline", step(workload.baseline, workload.samples_unit))
    kind, why = workload.bottleneck.kind, workload.bottleneck.why
    goes = "cannot be told" if kind == "not known" else f"goes to {kind}"
    yield Row("time", f"{goes}{': ' if why else ''}{why}")
    if workload.noise is not None:
        percent = f"{(workload.noise - 1) * 100:.1f} %"
        yield Row("noise", f"less than {percent} is not told from the baseline itself")
    yield Row("best", best(workload), "bold")
    for known in (recipes[name] for name in workload.best if name in recipes):
        yield Row("copy", f"{known.script}  ({known.name})", COPIED)
        yield from (Row("", f"  {line}", COPIED) for line in known.code)
    gain = workload.best_gain or workload.unproven
    if chosen := gain.measured.settings if gain and gain.measured else {}:
        yield Row("settings", ", ".join(f"{name} = {chosen[name]}" for name in sorted(chosen)))
    reasons: dict[str, list[str]] = {}
    for gain in workload.alone:
        if gain.verdict == "not-here":
            reasons.setdefault(gain.why, []).append(gain.technique)
    for why, names in reasons.items():
        yield Row("not here", f"{why}: {', '.join(names)}", "dim")
    if workload.ended:
        yield Row("ended", workload.ended)


def gains_of(workload: WorkloadResult) -> list[tuple[str, Gain]]:
    """What was tried alone, what counts first, by its gain; then the best of several together."""
    tried = [gain for gain in workload.alone if gain.verdict != "not-here"]
    tried.sort(key=lambda gain: -(gain.ratio or 0.0) if counts(gain) else 1.0)
    rows = [(gain.technique, gain) for gain in tried]
    if rows and len(workload.best) > 1 and workload.best_gain is not None:
        rows.append(("best together", workload.best_gain))
    return rows


def verdict(gain: Gain) -> str:
    """The verdict of a gain, with its interval where there is one."""
    known = {"same": "no difference that can be told"}
    if gain.ratio is not None:
        known |= {
            "faster": f"{times(gain.ratio)} faster",
            "slower": f"slower: {times(gain.ratio)}",
        }
    if text := known.get(gain.verdict):
        return f"{text}{f' ({between(gain)})' if between(gain) else ''}{memory(gain)}"
    labels = {"loss-differs": "loss differs", "not-here": "not here"}
    return f"{labels.get(gain.verdict, gain.verdict)}{': ' if gain.why else ''}{gain.why}"


def between(gain: Gain) -> str:
    if gain.low is None or gain.high is None:
        return ""
    return f"{gain.low:.2f} to {gain.high:.2f}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def memory(gain: Gain) -> str:
    """Empty below a twentieth: nobody asks about a smaller difference."""
    if gain.memory_ratio is None or abs(gain.memory_ratio - 1) < 0.05:
        return ""
    return f", memory {times(gain.memory_ratio)}"


def counts(gain: Gain) -> bool:
    """Whether a bar may show it: what failed or computed something else has no speed."""
    return gain.ratio is not None and gain.verdict in ("faster", "slower", "same")


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
        return f"not measured: {measured.error or 'it gave no figures'}"
    text = f"{duration(measured.step_s)} a step"
    if measured.spread_s is not None and len(measured.rounds) > 1:
        low, high = map(duration, measured.spread_s)
        text += f" (half of the rounds: {low} to {high})"
    if measured.samples_s is not None:
        text += f", {figures(measured.samples_s)} {unit}/s"
    if (size := measured.peak_bytes) is not None:
        large = f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
        text += f", peak memory {large}"
    if measured.compile_s:
        text += f", {duration(measured.compile_s)} to compile"
    return text


def best(workload: WorkloadResult) -> str:
    """The best combination and what it is worth."""
    gain, found = workload.best_gain, workload.unproven
    if not workload.best and not any(map(counts, workload.alone)):
        return "not known: no technique could be measured"
    if not workload.best and gain is not None:
        again = f"{gain.technique}, measured again in new processes: {verdict(gain)}"
        return f"none that held: {again}"
    if not workload.best:
        return "the baseline itself: no technique gained more than the noise"
    name = " + ".join(workload.best)
    if gain is not None:
        return f"{name}: {verdict(gain)}"
    if found is None:
        return f"{name}: not measured again"
    reference = found.technique.partition(", against ")[2]
    against = f", against {reference}" if reference else ""
    return f"{name}: {verdict(found)}{against}, where it was found; {found.why}"


# --- on a terminal --------------------------------------------------------------------------------


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How to lay it out. width: columns, 40 to 100. blocks: the output can show more than ASCII.

    recipes: how each technique is taken over.
    """

    width: int = 80
    blocks: bool = False
    recipes: Mapping[str, Technique] = msgspec.field(default_factory=lambda: RECIPES)


def report(result: BenchResult, layout: Layout) -> list[Line]:
    """Every line: the machine, each workload, and what must be known of the figures."""
    lines = list(labelled(about(result), layout.width))
    for workload in result.workloads:
        lines += [Line(()), *_workload(workload, layout)]
    told = [] if result.workloads else [Row("nothing", "no workload was measured")]
    told += [Row("note", text) for text in notes(result)]
    return [*lines, *([Line(())] if told else []), *labelled(told, layout.width)]


def labelled(rows: Iterable[Row], width: int, indent: str = "") -> Iterator[Line]:
    """Rows with the label in a margin, wrapped beside it."""
    margin = MARGIN + len(indent)
    for label, text, style in rows:
        parts = [inert(text)]
        if style != COPIED:
            parts = textwrap.wrap(parts[0], max(20, width - margin), break_on_hyphens=False)
        for place, part in enumerate(parts):
            yield Line(((f"{indent + label if place == 0 else '':<{margin}}", ""), (part, style)))


def _workload(workload: WorkloadResult, layout: Layout) -> Iterator[Line]:
    shape = f": {workload.shape}" if workload.shape else ""
    for place, text in enumerate(textwrap.wrap(inert(workload.name + shape), layout.width)):
        yield Line(((text, "bold" if place == 0 else ""),))
    gains = gains_of(workload)
    for row in rows_of(workload, layout.recipes):
        if row.label == "best" and gains:
            yield from (Line(()), *_bars(gains, layout), Line(()))
        yield from labelled([row], layout.width, "  ")


def _bars(gains: list[tuple[str, Gain]], layout: Layout) -> Iterator[Line]:
    """A bar for each technique alone, and one for the best combination of several."""
    top = max([1.0, *(gain.high or gain.ratio or 1.0 for _, gain in gains if counts(gain))])
    column = min(MOST_NAME, max(len(inert(name)) for name, _ in gains)) + 2
    beside = layout.width >= BESIDE
    room = min(MOST_BAR, (layout.width - 2 - column) // 3 if beside else layout.width - 4)
    start = column + room + 4 if beside else 4
    for technique, gain in gains:
        style, name = _STYLE.get(gain.verdict, ""), inert(technique)
        drawn = bar(gain, top, room, BLOCKS if layout.blocks else PLAIN) if counts(gain) else ""
        parts = textwrap.wrap(inert(verdict(gain)), layout.width - start, break_on_hyphens=False)
        if beside:
            shown = name if len(name) <= column - 2 else name[: column - 4] + ".."
            first = f"{drawn:<{room}}  "
            yield Line(((f"  {shown:<{column}}", ""), (first, style), (parts.pop(0), style)))
        else:
            yield Line(((f"  {name}", ""),))
            parts = [drawn, *parts] if drawn else parts
        yield from (Line(((" " * start + part, style),)) for part in parts)


def bar(gain: Gain, top: float, room: int, marks: str) -> str:
    """Full up to the low end of the interval, light up to the high one; the baseline is marked."""
    sure, light, baseline = list(marks)
    ratio, scale = gain.ratio or 0.0, room / top
    low = scale * (ratio if gain.low is None else gain.low)
    high = scale * (ratio if gain.high is None else gain.high)
    middles = (place + 0.5 for place in range(room))
    cells = [sure if at <= low else light if at <= high else " " for at in middles]
    cells[min(room - 1, max(0, round(scale) - 1))] = baseline
    return "".join(cells).rstrip()


# --- Markdown -------------------------------------------------------------------------------------


def bullets(rows: Iterable[Row]) -> list[str]:
    """Rows as a list; what is bold on a terminal is bold here, what is copied stands behind."""
    lines: list[str] = []
    for label, text, style in rows:
        line = f"{label}: {escaped(text)}"
        if style == COPIED and lines:
            lines[-1] += f" ({code(text)})"
        else:
            lines.append(f"- **{line}**" if style == "bold" else f"- {line}")
    return lines


def markdown(result: BenchResult, recipes: Mapping[str, Technique] = RECIPES) -> str:
    """The whole report, for an issue or a README."""
    lines = [f"### cudadoctor bench: {escaped(result.hardware)}", "", *bullets(about(result))]
    lines += [f"- **{escaped(text)}**" for text in notes(result)]
    for workload in result.workloads:
        shape = f": {escaped(workload.shape)}" if workload.shape else ""
        lines += ["", f"#### {escaped(workload.name)}{shape}", "", *bullets(rows_of(workload, {}))]
        if gains := gains_of(workload):
            lines += [
                "",
                "| technique | times the baseline | interval | memory | verdict | recipe |",
            ]
            lines += ["| --- | ---: | --- | ---: | --- | --- |"]
            lines += [_cells(gain, recipes) for _, gain in gains]
        known = [recipes[name] for name in workload.best if name in recipes]
        if known:
            copied = [line for one in known for line in (f"# {one.name}: {one.script}", *one.code)]
            lines += ["", "```python", *copied, "```"]
    return (
        "\n".join([*lines, *([] if result.workloads else ["", "No workload was measured."])]) + "\n"
    )


def _cells(gain: Gain, recipes: Mapping[str, Technique]) -> str:
    ratio = span = used = ""
    told = escaped(verdict(gain), cell=True)
    if counts(gain) and gain.ratio is not None:
        ratio, span = times(gain.ratio), between(gain)
        used = times(gain.memory_ratio) if gain.memory_ratio is not None else ""
        told = "no difference that can be told" if gain.verdict == "same" else gain.verdict
    recipe = code(recipes[gain.technique].script) if gain.technique in recipes else ""
    cells = (escaped(gain.technique, cell=True), ratio, span, used, told, recipe)
    return f"| {' | '.join(cells)} |"


# --- a chart: the lines of the terminal as SVG text, or as a PNG ----------------------------------

COLUMNS, CELL, LINE, EDGE, SIZE = 100, 8, 20, 24, 13
"""Pixels of a letter, of a line, of the edge, and of the font."""
FONT = "ui-monospace, 'Cascadia Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "dim": "#57606a",
    "green": "#1a7f37",
    "yellow": "#b35900",
    "red": "#cf222e",
}
DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "dim": "#9198a1",
    "green": "#3fb950",
    "yellow": "#e0823d",
    "red": "#ff7b72",
}


def _chart(result: BenchResult) -> list[Line]:
    title = textwrap.shorten(_title(result), COLUMNS, placeholder="...")
    layout = Layout(width=COLUMNS, blocks=True, recipes={})
    return [Line(((title, "bold"),)), Line(()), *report(result, layout)]


def _title(result: BenchResult) -> str:
    return f"cudadoctor bench: {inert(result.hardware)}"


def _placed(lines: list[Line]) -> Iterator[tuple[int, int, str, str]]:
    """Every span by its first column and its line, with its style."""
    for number, line in enumerate(lines):
        column = 0
        for text, style in line.spans:
            if text.strip():
                yield column + len(text) - len(text.lstrip()), number, text.strip(), style or "ink"
            column += len(text)


def _extent(lines: list[Line]) -> tuple[int, int]:
    return COLUMNS * CELL + 2 * EDGE, len(lines) * LINE + 2 * EDGE


def svg(result: BenchResult) -> str:
    """The chart as SVG text that a browser shows in its own light or dark."""
    lines = _chart(result)
    width, height = _extent(lines)
    light, dark = (
        "".join(f".{k}{{fill:{v}}}" for k, v in paints.items()) for paints in (LIGHT, DARK)
    )
    spoken = "\n".join(line.text for line in lines)
    head = f"""\
<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="{width}" height="{height}"
 viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">
<title id="t">{_xml(_title(result))}</title>
<desc id="d">{_xml(spoken)}</desc>
<style>text{{font:{SIZE}px {FONT};fill:{LIGHT["ink"]}}}.bold{{font-weight:600}}
{light}@media (prefers-color-scheme: dark){{text{{fill:{DARK["ink"]}}}{dark}}}</style>
<rect class="ground" width="{width}" height="{height}" rx="6"/>
"""
    texts = [
        f'<text class="{style}" x="{EDGE + column * CELL}" y="{EDGE + number * LINE + SIZE}"'
        f' textLength="{len(text) * CELL}" lengthAdjust="spacingAndGlyphs">{_xml(text)}</text>\n'
        for column, number, text, style in _placed(lines)
    ]
    return f"{head}{''.join(texts)}</svg>\n"


def _xml(text: str) -> str:
    """What XML can hold, and no markup."""
    return escape(
        "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    )


def png(result: BenchResult, scale: int = 2) -> bytes:
    """The same lines as a PNG, light. Pillow brings a font, but none whose letters are all as wide.

    So words are drawn where they begin, and bars as boxes. Raises ImportError without Pillow.
    """
    from PIL import Image, ImageDraw, ImageFont

    lines = _chart(result)
    width, height = _extent(lines)
    image = Image.new("RGB", (width * scale, height * scale), LIGHT["ground"])
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(SIZE * scale)
    for column, number, text, style in _placed(lines):
        paint = LIGHT.get(style.split()[-1], LIGHT["ink"])
        y = (EDGE + number * LINE) * scale
        for run in re.finditer(rf"[{BLOCKS}]|[^\s{BLOCKS}]+(?: [^\s{BLOCKS}]+)*", text):
            x = (EDGE + (column + run.start()) * CELL) * scale
            if run[0] not in BLOCKS:
                pen.text((x, y), run[0], fill=paint, font=font)
                continue
            wide = 2 if run[0] == BLOCKS[2] else CELL * scale - 1
            thin = 4 * scale if run[0] == BLOCKS[1] else 0
            pen.rectangle((x, y + thin, x + wide, y + SIZE * scale - thin), fill=paint)
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()

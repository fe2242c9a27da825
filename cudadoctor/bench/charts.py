"""A chart of a result: shapes first, then SVG text or a PNG of the same shapes.

SVG needs nothing. PNG needs the extra `chart` (Pillow): of the libraries that write PNG it is the
smallest that is well kept, and it brings a font of its own, so that a server without fonts draws
letters too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Literal
from xml.sax.saxutils import escape

import msgspec

from cudadoctor.bench import words
from cudadoctor.bench.results import BenchResult, Gain, WorkloadResult
from cudadoctor.render import inert

EXTRA = "chart"
WIDTH, MARGIN, ROW, BAR = 860, 24, 26, 14
SIZE, SMALL, LARGE = 13, 11, 17
BOLDER = 0.87
"""What of the room a bold text may take by the widths of plain letters."""
MOST_NAME, ROOM_OF_WORDS, MOST_WORDS = 190, 300, 2
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

Paint = Literal["ground", "ink", "quiet", "rule", "faster", "slower", "same", "spread"]
Anchor = Literal["start", "middle", "end"]
LIGHT: dict[Paint, str] = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "quiet": "#57606a",
    "rule": "#8c959f",
    "faster": "#1a7f37",
    "slower": "#b35900",
    "same": "#8c959f",
    "spread": "#1f2328",
}
DARK: dict[Paint, str] = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "quiet": "#9198a1",
    "rule": "#6e7681",
    "faster": "#3fb950",
    "slower": "#e0823d",
    "same": "#6e7681",
    "spread": "#e6edf3",
}
_WIDTHS = {
    28: "'ijlIJ",
    34: " ,./:;\\|",
    40: "f-()[]t!r",
    50: '"*_`sz?',
    58: "cLFkvxyP",
    64: "TYaoeESbdghnpqu$0123456789{}",
    70: "KAVBRXZC",
    79: "UHNDG&OQ",
    86: "w#+<=>^~M",
    100: "%mW@",
}
_WIDTH_OF = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
"""Hundredths of the size, of DejaVu Sans, the widest of the fonts above: nothing runs over."""


class NoPng(Exception):  # noqa: N818 - told in one sentence
    """A PNG cannot be drawn here."""


class Box(msgspec.Struct, frozen=True):
    x: float
    y: float
    width: float
    height: float
    paint: Paint


class Stroke(msgspec.Struct, frozen=True):
    """A straight line. dashed: the baseline's."""

    x: float
    y: float
    to_x: float
    to_y: float
    paint: Paint
    dashed: bool = False


class Words(msgspec.Struct, frozen=True):
    """Text on its base line."""

    x: float
    y: float
    text: str
    paint: Paint = "ink"
    size: int = SIZE
    anchor: Anchor = "start"
    bold: bool = False


class Drawing(msgspec.Struct, frozen=True):
    """Shapes, with what they show in words."""

    width: int
    height: int
    title: str
    described: str
    shapes: tuple[Box | Stroke | Words, ...]


def width_of(text: str, size: int) -> float:
    """The room that a text needs; a letter that is not known counts as a wide one."""
    return sum(_WIDTH_OF.get(letter, 100) for letter in text) * size / 100


def fitted(text: str, room: float, size: int) -> str:
    """The text, cut off with dots where it needs more room."""
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "...", size) > room:
        text = text[:-1]
    return text.rstrip() + "..."


def wrapped(text: str, room: float, size: int, most: int) -> list[str]:
    """The text in at most so many lines; the last is cut off where it is not enough."""
    lines: list[str] = []
    rest = text.split()
    while rest and len(lines) < most - 1:
        count = 1
        while count < len(rest) and width_of(" ".join(rest[: count + 1]), size) <= room:
            count += 1
        lines.append(fitted(" ".join(rest[:count]), room, size))
        rest = rest[count:]
    return [*lines, fitted(" ".join(rest), room, size)] if rest else lines


def drawing(result: BenchResult) -> Drawing:
    """The chart of a result: a bar a technique, the ends of its interval, the baseline's line."""
    shapes: list[Box | Stroke | Words] = []
    room = WIDTH - 2 * MARGIN
    title = f"cudadoctor bench: {inert(result.hardware)}"
    shapes.append(Words(MARGIN, 36, fitted(title, room * BOLDER, LARGE), "ink", LARGE, bold=True))
    y = 36.0
    for text in _under_title(result):
        for line in wrapped(text, room, SMALL, 2):
            y += 18
            shapes.append(Words(MARGIN, y, line, "quiet", SMALL))
    top = _top(result)
    for one in result.workloads:
        y = _workload(one, top, y + 34, shapes)
    return Drawing(WIDTH, int(y) + MARGIN + 4, title, described(result), tuple(shapes))


def _under_title(result: BenchResult) -> Iterator[str]:
    told = dict(words.rows(result))
    yield f"{told['machine']}; torch {told['torch']}; {told['measured']}"
    yield from words.notes(result)
    yield "Samples a second against the baseline of the same workload (1x); lines: the interval."


def described(result: BenchResult) -> str:
    """The whole chart in words, for those who do not see it."""
    parts = list(words.notes(result))
    for one in result.workloads:
        parts.append(f"{inert(one.name)}: {words.step(one.baseline, one.samples_unit)}")
        parts += [f"{inert(gain.technique)}: {words.verdict(gain)}" for gain in one.alone]
        parts.append(f"best: {words.best(one)}")
    return ". ".join(parts)


def _top(result: BenchResult) -> float:
    """The ratio at the right end, one for all workloads, so that bars can be compared."""
    gains = [gain for one in result.workloads for gain in _shown(one) if words.counts(gain)]
    return 1.05 * max([1.0, *(gain.high or gain.ratio or 1.0 for gain in gains)])


def _shown(one: WorkloadResult) -> list[Gain]:
    together = [one.best_gain] if len(one.best) > 1 and one.best_gain is not None else []
    return [*words.tried(one), *together]


def _workload(
    one: WorkloadResult, top: float, y: float, shapes: list[Box | Stroke | Words]
) -> float:
    """Draws one workload from y on; where it ends."""
    room = WIDTH - 2 * MARGIN
    name = f"{inert(one.name)}: baseline {words.brief(one.baseline, one.samples_unit)}"
    shapes.append(Words(MARGIN, y, fitted(name, room * BOLDER, SIZE), "ink", SIZE, bold=True))
    start, y = y + 10, y + 10
    left, scale = MARGIN + MOST_NAME + 10, (room - MOST_NAME - ROOM_OF_WORDS - 24) / top
    for gain in _shown(one):
        y += ROW
        y = _row(one, gain, (left, y, scale), shapes)
    line = left + scale
    shapes.append(Stroke(line, start + 4, line, y + 8, "rule", dashed=True))
    shapes.append(Words(line, y + 20, "1x", "quiet", SMALL, "middle"))
    y += 20
    for text in words.not_here(one):
        for part in wrapped(f"not here, {text}", room, SMALL, 3):
            y += 16
            shapes.append(Words(MARGIN, y, part, "quiet", SMALL))
    return y


def _row(
    one: WorkloadResult,
    gain: Gain,
    place: tuple[float, float, float],
    shapes: list[Box | Stroke | Words],
) -> float:
    left, y, scale = place
    together = gain is one.best_gain
    name = "best together" if together else inert(gain.technique)
    label = fitted(name, MOST_NAME, SIZE)
    shapes.append(Words(left - 10, y, label, "ink", SIZE, "end", bold=together))
    text = words.best(one) if together else words.verdict(gain)
    at, room = WIDTH - MARGIN - ROOM_OF_WORDS, float(ROOM_OF_WORDS)
    if words.counts(gain) and gain.ratio is not None:
        paint: Paint = "faster" if gain.verdict == "faster" else "same"
        paint = "slower" if gain.verdict == "slower" else paint
        shapes.append(Box(left, y - BAR + 3, gain.ratio * scale, BAR, paint))
        shapes.extend(_interval(gain, left, y - BAR / 2 + 3, scale))
    for number, line in enumerate(wrapped(text, room, SMALL, MOST_WORDS)):
        y += 14 if number else 0
        shapes.append(Words(at, y, line, "quiet", SMALL))
    return y


def _interval(gain: Gain, left: float, y: float, scale: float) -> Iterator[Stroke]:
    if gain.low is None or gain.high is None:
        return
    low, high = left + gain.low * scale, left + gain.high * scale
    yield Stroke(low, y, high, y, "spread")
    yield Stroke(low, y - 4, low, y + 4, "spread")
    yield Stroke(high, y - 4, high, y + 4, "spread")


def svg(result: BenchResult) -> str:
    """The chart as SVG text that a browser shows in its own light or dark."""
    drawn = drawing(result)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawn.width}" height="{drawn.height}"'
        f' viewBox="0 0 {drawn.width} {drawn.height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{_text(drawn.title)}</title>',
        f'<desc id="d">{_text(drawn.described)}</desc>',
        f"<style>text{{font-family:{FONT}}}",
        *_colours(LIGHT),
        "@media (prefers-color-scheme: dark){",
        *_colours(DARK),
        "}</style>",
        f'<rect class="ground" width="{drawn.width}" height="{drawn.height}" rx="6"/>',
        *(_shape(one) for one in drawn.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _colours(palette: dict[Paint, str]) -> list[str]:
    return [
        *(f".{name}{{fill:{colour}}}" for name, colour in palette.items()),
        *(f"line.{name}{{stroke:{palette[name]}}}" for name in ("rule", "spread")),
    ]


def _shape(one: Box | Stroke | Words) -> str:
    if isinstance(one, Box):
        return (
            f'<rect class="{one.paint}" x="{one.x:.1f}" y="{one.y:.1f}"'
            f' width="{max(one.width, 1):.1f}" height="{one.height:.1f}" rx="2"/>'
        )
    if isinstance(one, Stroke):
        dashes = ' stroke-dasharray="3 3"' if one.dashed else ""
        return (
            f'<line class="{one.paint}" x1="{one.x:.1f}" y1="{one.y:.1f}" x2="{one.to_x:.1f}"'
            f' y2="{one.to_y:.1f}" stroke-width="1.5"{dashes}/>'
        )
    weight = ' font-weight="600"' if one.bold else ""
    return (
        f'<text class="{one.paint}" x="{one.x:.1f}" y="{one.y:.1f}" font-size="{one.size}"'
        f' text-anchor="{one.anchor}"{weight}>{_text(one.text)}</text>'
    )


def _text(text: str) -> str:
    """What XML can hold, and no markup."""
    return escape("".join(one if one.isprintable() else "?" for one in text))


def why_no_png() -> str:
    """Why no PNG can be drawn here, in one sentence; "" where one can."""
    try:
        import PIL.ImageDraw
        import PIL.ImageFont  # noqa: F401
    except ImportError:
        return f"a PNG needs Pillow: install cudadoctor[{EXTRA}], or name a file that ends in .svg"
    return ""


def png(result: BenchResult, scale: int = 2) -> bytes:
    """The chart as a PNG, light. Raises NoPng, in one sentence, where Pillow is absent."""
    if why := why_no_png():
        raise NoPng(why)
    from PIL import Image, ImageDraw

    drawn = drawing(result)
    image = Image.new("RGB", (drawn.width * scale, drawn.height * scale), LIGHT["ground"])
    pen = ImageDraw.Draw(image)
    for one in drawn.shapes:
        if isinstance(one, Box):
            corner = (one.x + max(one.width, 1)) * scale, (one.y + one.height) * scale
            box = (one.x * scale, one.y * scale, *corner)
            pen.rounded_rectangle(box, 2 * scale, fill=LIGHT[one.paint])
        elif isinstance(one, Stroke):
            _stroke(pen, one, scale)
        else:
            _letters(pen, one, scale)
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def _stroke(pen: object, one: Stroke, scale: int) -> None:
    """A line; dashes are drawn one by one, since Pillow knows none (only the upright baseline)."""
    fill, draw = LIGHT[one.paint], pen.line  # type: ignore[attr-defined]
    if not one.dashed:
        ends = (one.x * scale, one.y * scale, one.to_x * scale, one.to_y * scale)
        draw(ends, fill=fill, width=round(1.5 * scale))
        return
    y = one.y
    while y < one.to_y:
        ends = (one.x * scale, y * scale, one.x * scale, min(y + 3, one.to_y) * scale)
        draw(ends, fill=fill, width=round(1.5 * scale))
        y += 6


def _letters(pen: object, one: Words, scale: int) -> None:
    from PIL import ImageFont

    font = ImageFont.load_default(one.size * scale)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[one.anchor]
    # The font has one weight: bold is drawn with an outline of its own colour.
    outline = {"stroke_width": 1, "stroke_fill": LIGHT[one.paint]} if one.bold else {}
    pen.text(  # type: ignore[attr-defined]
        (one.x * scale, one.y * scale),
        one.text,
        fill=LIGHT[one.paint],
        font=font,
        anchor=anchor,
        **outline,
    )

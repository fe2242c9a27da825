"""Advice as it is shown at the end of a check: info lines, Markdown, plain data. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from cudadoctor.bench.advice import Advice
from cudadoctor.locale.language import Language
from cudadoctor.render import inert
from cudadoctor.render.markdown import code, escaped
from cudadoctor.render.terminal import MARGIN, Layout, Line


def lines(advice: tuple[Advice, ...], layout: Layout) -> Iterator[Line]:
    """Two or three lines each, after the verdict, which they do not touch."""
    say = layout.say
    for one in advice:
        yield Line(())
        label = say("info")
        text = inert(say.spoken(one.text))
        yield from _wrapped(label, text, layout.width, ("cyan", "bold"))
        yield from _wrapped("", inert(say.spoken(one.why)), layout.width)
        for told in one.expected:
            yield from _wrapped("", inert(say.spoken(told)), layout.width, ("", "dim"))
        if one.recipe:
            yield Line(((f"{'':<{MARGIN}}", ""), (one.recipe, "green")))


def _wrapped(
    label: str, text: str, width: int, styles: tuple[str, str] = ("", "")
) -> Iterator[Line]:
    room = max(20, width - MARGIN)
    for place, part in enumerate(textwrap.wrap(text, room, break_on_hyphens=False)):
        left = label if place == 0 else ""
        yield Line(((f"{left:<{MARGIN}}", styles[0]), (part, styles[1])))


def markdown(advice: tuple[Advice, ...], say: Language) -> str:
    """The same as a list; nothing where there is none."""
    parts = [f"\n### {say('Advice for faster training')}\n\n"] if advice else []
    for one in advice:
        recipe = f" ({code(one.recipe)})" if one.recipe else ""
        told = "; ".join(escaped(say.spoken(text)) for text in one.expected)
        parts.append(f"- **{escaped(say.spoken(one.text))}**{recipe}\n")
        parts.append(f"  {escaped(say.spoken(one.why))} {told}\n")
    return "".join(parts)


def plain(advice: tuple[Advice, ...]) -> list[dict[str, Any]]:
    """For the JSON document, whose field `advice` is there only where it was asked for."""
    return [msgspec.to_builtins(one) for one in advice]

"""What starves the GPU of a user's own training, as text, Markdown and JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import msgspec

from cudadoctor.bench.script.samples import Figures
from cudadoctor.bench.script.starved import Starved
from cudadoctor.render import inert
from cudadoctor.render.markdown import code, escaped

MARGIN = 10


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown. code: the script's exit code, None while it runs on. stopped: --stop."""

    figures: Figures
    starved: Starved
    code: int | None = None
    stopped: bool = False


def headline(told: Told) -> str:
    """The judgement in a line."""
    found = told.starved
    if found.by == "not starved":
        return f"not starved: {found.why}"
    if found.by != "not known":
        return f"starved by {found.by}: {found.why}"
    text = f"what starves the GPU is not known: {found.why}"
    return text + (f"; the processes point to {found.likely}" if found.likely else "")


def sampled(told: Told) -> str:
    """For how long, and what became of the script."""
    text = f"{told.figures.seconds:.0f} s"
    if told.code is None:
        return text + (", then the script is ended" if told.stopped else "; the script runs on")
    return f"{text}, to the end of the script (exit code {told.code})"


def lines(told: Told, width: int) -> Iterator[str]:
    """For a terminal, 40 to 100 columns wide."""
    yield from _labelled("sampled", sampled(told), width)
    yield from _labelled("verdict", headline(told), width)
    for place, text in enumerate(told.starved.evidence):
        yield from _labelled("seen" if place == 0 else "", text, width)
    for text, recipe in _settings(told):
        yield from _labelled("try", text, width)
        if recipe:
            yield " " * MARGIN + recipe
    for text in told.starved.notes:
        yield from _labelled("note", text, width)


def _settings(told: Told) -> tuple[tuple[str, str | None], ...]:
    return tuple((one.text, one.recipe) for one in told.starved.settings)


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    wrapped = textwrap.wrap(inert(text), max(20, width - MARGIN), break_on_hyphens=False)
    for place, part in enumerate(wrapped):
        yield f"{label if place == 0 else '':<{MARGIN}}{part}"


def markdown(told: Told) -> str:
    """For an issue."""
    parts = [f"**{escaped(headline(told))}**", "", f"- sampled: {escaped(sampled(told))}"]
    parts += [f"- seen: {escaped(text)}" for text in told.starved.evidence]
    for text, recipe in _settings(told):
        parts.append(f"- try: {escaped(text)}{f' ({code(recipe)})' if recipe else ''}")
    parts += [f"- note: {escaped(text)}" for text in told.starved.notes]
    return "\n".join(parts) + "\n"


def dumps(told: Told) -> str:
    """Schema 1: fields may be added, none change or go."""
    document = {"schema": 1, **msgspec.to_builtins(told)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"

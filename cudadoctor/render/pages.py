"""The pages of `cudadoctor explain`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.render.unjudged import PAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudadoctor.model.rule import Rule


def listing(catalogue: Sequence[str], rules: Sequence[Rule]) -> str:
    """Every cause with the title of its page, or of its first rule."""
    titles = {cause: title for cause, (title, _) in PAGES.items()}
    for rule in rules:
        titles.setdefault(rule.cause, _heading(rule))
    widest = max(map(len, catalogue))
    return "".join(f"{cause:<{widest}}  {titles[cause]}\n" for cause in catalogue)


def page(cause: str, rules: Sequence[Rule]) -> str:
    """What a cause is, how it is told and what cures it."""
    parts = [cause, *PAGES.get(cause, ())]
    for rule in (rule for rule in rules if rule.cause == cause):
        parts += [*_opening(rule), rule.page.strip()]
        if rule.yields_to:
            parts.append(f"Explained away by: {', '.join(rule.yields_to)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(rule: Rule) -> str:
    """The title; where it is made of values alone, what the user reads below it."""
    if rule.title == "{what}":
        return _without_values(rule.why).rstrip(".")
    return _without_values(rule.title)


def _opening(rule: Rule) -> tuple[str, ...]:
    why = _without_values(rule.why)
    return (why,) if rule.title == "{what}" else (_heading(rule), why)


def _without_values(text: str) -> str:
    """Placeholders as words: {driver} reads <driver>; those that may be empty are left out."""
    text = re.sub(r"(?<=[\w}])\{\w+\}", "", text)
    return text.replace("{", "<").replace("}", ">")

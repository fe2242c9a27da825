"""The pages of `cudadoctor explain`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.render.unjudged import PAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudadoctor.model.rule import Rule


def listing(catalogue: Sequence[str], rules: Sequence[Rule]) -> str:
    """Every cause with the title of its first rule; those without a rule are marked."""
    titles: dict[str, str] = {}
    for rule in rules:
        titles.setdefault(rule.cause, _heading(rule))
    widest = max(map(len, catalogue))
    for name, (title, _) in PAGES.items():
        titles[name] = title if name in titles else f"{title} (not judged yet)"
    rows = (f"{name:<{widest}}  {titles.get(name, '(not judged yet)')}\n" for name in catalogue)
    return "".join(rows)


def page(cause: str, rules: Sequence[Rule]) -> str:
    """What a cause is, how it is told and what cures it."""
    own = [rule for rule in rules if rule.cause == cause]
    known = PAGES.get(cause, ())
    if not own:
        return "\n\n".join((cause, *known, "This version has no rule for it.")) + "\n"
    parts = [cause, *known]
    for rule in own:
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

"""What cures a cause that a report shows: the same remedies as on a host, else words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.remedies import by_hand

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import Remedy
    from cudadoctor.knowledge import Knowledge


def cures(cause: str, words: str, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The ways out for this cause. words: the cure as the table of symptoms says it."""
    title, _, rest = words.partition(". ")
    return by_hand(f"cure-{cause}", title.rstrip("."), rest or words)

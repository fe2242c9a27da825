"""What cures a cause that a report shows: the same remedies as on a host, else words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.plan.remedies import by_hand
from cudadoctor.rules.driver_cures import driver_cures
from cudadoctor.rules.install_cures import install_cures

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine


def cures(cause: str, words: str, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The ways out for this cause. words: the cure as the table of symptoms says it."""
    if ways := driver_cures(cause, m, kb) or install_cures(cause, m, kb):
        return ways
    title, _, rest = words.partition(". ")
    return by_hand(f"cure-{cause}", title.rstrip("."), rest or words)

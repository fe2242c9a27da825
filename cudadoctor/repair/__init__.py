"""`fix`: applies the plan to the examined environment as a transaction that can be undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.wrong_use import refuse

if TYPE_CHECKING:
    from cudadoctor.asked import Asked


def fix(asked: Asked) -> int:
    """Apply, resume, undo or forget a repair. 0 cured or nothing to do, 1 not cured."""
    refuse(f"fix prints the repair and does not apply it: add --print{' again' * asked.printed}")

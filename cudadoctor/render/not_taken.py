"""Variants that were passed over, as sentences: those with the same reason together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.model.findings import Rejection

MOST = 6


def sentences(found: Iterable[Rejection]) -> list[str]:
    """At most MOST reasons, each behind its variants, and how many more there are."""
    by: dict[str, list[str]] = {}
    for one in found:
        by.setdefault(one.reason, []).append(one.variant)
    told = [f"{', '.join(variants)}: {reason}" for reason, variants in by.items()]
    more = [f"and {len(told) - MOST} more"] if len(told) > MOST else []
    return told[:MOST] + more

"""The share of a long sweep that the suite takes.

All of it is taken where CUDADOCTOR_TEST_WHOLE is set, as benchmarks/whole_sweeps.py does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")
WHOLE = bool(os.environ.get("CUDADOCTOR_TEST_WHOLE"))


def share(cases: Sequence[Case], step: int, start: int = 0) -> list[Case]:
    """Every so many-th case, at least one; from another first one for each start."""
    if WHOLE or not cases:
        return list(cases)
    return list(cases[start % min(step, len(cases)) :: step])


def share_of_each_cause(names: Iterable[str], step: int, start: int = 0) -> list[str]:
    """The same of the scenarios of each cause: no cause is left out, and none has the same turn."""
    causes: dict[str, list[str]] = {}
    for name in names:
        causes.setdefault(name.partition("--")[0], []).append(name)
    turns = enumerate(causes.values(), start)
    return [name for turn, group in turns for name in share(group, step, turn)]

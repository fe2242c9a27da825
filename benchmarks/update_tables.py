"""`cudadoctor update` on tables without the two newest releases of torch, from PyPI as it is today.

Run: python benchmarks/update_tables.py
Bar: both releases come back from PyPI alone in under 120 s, equal in every column that PyPI says.
What PyPI does not say is counted by its column.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from time import monotonic

import measuring

from cudadoctor.knowledge import renewed
from cudadoctor.knowledge.renewed import KEYS, Tables
from cudadoctor.knowledge.update import places
from cudadoctor.knowledge.update.fetching import Web
from cudadoctor.knowledge.update.rows import Update

LISTS = ("torch.releases", "torch.builds", "pins.pins", "libraries.nccl")
DAY = "2099-01-01"


def without(own: Tables, gone: set[str]) -> Tables:
    """The tables before these releases of torch came out."""
    cut = deepcopy(own)
    for name in LISTS:
        table, _, part = name.partition(".")
        cut[table][part] = [row for row in cut[table][part] if row["torch"] not in gone]
    return cut


def updated(tables: Tables) -> tuple[Update, float]:
    """The tables after PyPI was asked, and how long that took."""
    update = Update(tables=deepcopy(tables), fetch=Web(), day=DAY, only=("pypi",), deep=True)
    started = monotonic()
    places.ask(update)
    return update, monotonic() - started


def main() -> None:
    own = renewed.packaged()
    newest = [row["torch"] for row in own["torch"]["releases"][:2]]
    cut = without(own, set(newest))
    update, seconds = updated(cut)
    renewed.sign(renewed.document(renewed.difference(cut, update.tables), DAY, "0"), cut)
    equal: Counter[str] = Counter()
    differs: list[str] = []
    unknown: Counter[str] = Counter()
    for name in LISTS:
        table, _, part = name.partition(".")
        again = {tuple(row[key] for key in KEYS[name]): row for row in update.tables[table][part]}
        for row in own[table][part]:
            if row["torch"] not in newest:
                continue
            key = tuple(row[key] for key in KEYS[name])
            found = again.get(key)
            if found is None:
                unknown[f"{name} (whole row)"] += 1
                continue
            for column in row.keys() - {"sources", *KEYS[name]}:
                if row[column] == found[column]:
                    equal[name] += 1
                elif not found[column]:
                    unknown[f"{name} {column}"] += 1
                else:
                    differs.append(f"{' '.join(key)} {column}: {row[column]} -> {found[column]}")
    _, again_s = updated(update.tables)
    measuring.saved(
        "update_tables",
        {
            "bar_s": 120,
            "releases": newest,
            "seconds": round(seconds, 1),
            "seconds_nothing_new": round(again_s, 1),
            "cells_equal": dict(equal),
            "cells_that_differ": differs,
            "cells_not_known": dict(unknown),
            "failures": update.failures,
        },
    )


if __name__ == "__main__":
    main()

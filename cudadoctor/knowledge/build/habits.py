"""Faults of driver releases, packages that compile at run time, and indexes of boards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudadoctor.knowledge.build.sources import keys

Facts = Callable[[str], dict[str, Any]]


def driver_faults(read: Facts) -> dict[str, Any]:
    """Known faults of drivers, in the order in which they are told."""
    return {"faults": [_row(read, "faults", row) for row in read("driver_faults")["rows"]]}


def practice(read: Facts) -> dict[str, Any]:
    """Who calls nvcc while a program runs, where a board's builds and PyG's wheels lie, boards."""
    facts = read("practice")
    return {
        "compiles": [_row(read, "practice", row) for row in facts["compiles"]],
        "jetson": [_row(read, "practice", row) for row in facts["jetson"]],
        "pyg": [_row(read, "practice", row) for row in facts["pyg"]],
        "no_wheel": [_row(read, "practice", row) for row in facts["no_wheel"]],
        "boards": [_row(read, "practice", row) for row in facts["boards"]],
    }


def _row(read: Facts, prefix: str, row: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in row.items() if name != "source"}
    return {**rest, "sources": keys(read, prefix, row["source"])}

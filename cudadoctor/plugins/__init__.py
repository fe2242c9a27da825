"""What plugins are written with; docs/plugins.md describes it.

A plugin is a distribution beside the doctor whose entry points name rules (`cudadoctor.rules`) or
functions that read facts (`cudadoctor.facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Edit,
    PackageChange,
    Remedy,
    Risk,
)
from cudadoctor.model.machine import Machine, Scalar
from cudadoctor.model.rule import Found, Rule, need, rule

Facts = Mapping[str, Scalar]
"""What a function of `cudadoctor.facts` returns: names and values, None where one is not known."""
Reader = Callable[[], Facts]

__all__ = [
    *("CERTAIN", "ERROR", "INFO", "LIKELY", "POSSIBLE", "WARNING"),
    *("Edit", "Facts", "Found", "Knowledge", "Machine", "PackageChange", "Reader", "Remedy"),
    *("Risk", "Rule", "need", "rule"),
]

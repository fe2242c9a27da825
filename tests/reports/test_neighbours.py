"""Causes that are easily confused: one report for each side of what separates them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from told_fixtures import root_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPORTS = tomllib.loads(Path(__file__).with_name("neighbours.toml").read_text("utf-8"))["report"]


def named(report: dict[str, str]) -> str:
    return f"{report['cause'] or 'none'}: {' '.join(report['text'].split())[:60]}"


@pytest.mark.parametrize("report", REPORTS, ids=named)
def test_each_side_is_told(report: dict[str, str]) -> None:
    assert root_of(report["text"]) == (report["cause"] or None)

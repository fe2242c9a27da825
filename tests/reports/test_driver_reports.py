"""Reports about the driver, the GPU and the box end in their cause."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudadoctor.diagnose import diagnose
from cudadoctor.knowledge import load
from cudadoctor.reports.reading import read_report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPORTS = tomllib.loads(Path(__file__).with_name("driver_reports.toml").read_text("utf-8"))
HARMLESS = ("not-environment", "torch-bug", None)


def named(report: dict[str, str]) -> str:
    return f"{report['cause']}: {' '.join(report['text'].split())[:60]}"


@pytest.mark.parametrize("report", REPORTS["report"], ids=named)
def test_a_report_ends_in_its_cause(report: dict[str, str]) -> None:
    knowledge = load()
    diagnosis = diagnose(read_report(report["text"], knowledge), knowledge)
    if report["cause"]:
        assert diagnosis.primary == report["cause"]
    else:
        assert diagnosis.primary in HARMLESS

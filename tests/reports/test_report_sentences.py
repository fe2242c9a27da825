"""What a report leads to is said in whole sentences, however little the report tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudadoctor.knowledge import load
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.pipeline import Judged, judge, report
from cudadoctor.render import markdown
from cudadoctor.reports.reading import read_report

LACKING = re.compile(
    r"  |\bNone\b|(?<!\w)\(\)|\b(?:of|is|for|than|CUDA|torch|driver) [,.:]|\{\w*\}|not known"
)
"""What a sentence with missing values contains."""


def test_every_sentence_is_whole() -> None:
    for row in symptoms().rows:
        whole(judge(read_report(row.example, load())))


def whole(judged: Judged) -> None:
    """Fail where a sentence lacks a value."""
    for finding in judged.diagnosis.findings:
        assert not LACKING.search(finding.title), finding.title
        assert not LACKING.search(finding.why), finding.why
    for step in judged.plan.steps:
        assert not LACKING.search(step.title), step.title
        assert not LACKING.search(step.manual or ""), step.manual
    assert markdown.report(report(judged)).startswith("**")


CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
REPORTS = sorted(CASES.glob("*/report.txt"))


@pytest.mark.skipif(not REPORTS, reason="../shared/cases is not beside this checkout")
def test_every_sentence_about_a_real_report_is_whole() -> None:
    for path in REPORTS:
        whole(judge(read_report(path.read_bytes(), load())))

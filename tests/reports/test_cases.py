"""Reports from real threads, where they lie beside this checkout: the causes that experts found."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudadoctor.knowledge import load
from cudadoctor.model.findings import Diagnosis
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
HARMLESS = {"not-environment", "torch-bug"}
LEAST_SHARE = 0.95


def cases() -> list[tuple[dict[str, Any], Diagnosis]]:
    """All reports there are, those that came later too: what holds for any text."""
    if not CASES.is_dir():
        pytest.skip("../shared/cases is not beside this checkout")
    return judged()


def known() -> list[tuple[dict[str, Any], Diagnosis]]:
    """The reports that the readers were made with (`added` is 1)."""
    with (CASES / "index.csv").open(encoding="utf-8") if CASES.is_dir() else io.StringIO() as file:
        first = {row["id"] for row in csv.DictReader(file) if row["added"] == "1"}
    return [(case, said) for case, said in cases() if case["id"] in first]


@cache
def judged() -> list[tuple[dict[str, Any], Diagnosis]]:
    out = []
    for path in sorted(CASES.glob("*/case.json")):
        machine = read_report((path.parent / "report.txt").read_bytes(), load())
        assert not [gap for gap in machine.gaps if "failed" in gap.why], path.parent.name
        out.append((json.loads(path.read_text("utf-8")), diagnose(machine, load())))
    return out


def named_cause(diagnosis: Diagnosis) -> str | None:
    harmless = (finding.cause for finding in diagnosis.findings if finding.cause in HARMLESS)
    return diagnosis.primary or next(harmless, None)


def test_nearly_every_cause_is_told_where_the_report_suffices() -> None:
    sufficient = [(case, named_cause(said)) for case, said in known() if case["report_sufficient"]]
    wrong = {case["id"]: said for case, said in sufficient if said not in case["causes"]}
    assert len(wrong) <= (1 - LEAST_SHARE) * len(sufficient), wrong


def test_what_is_no_fault_of_the_environment_raises_at_most_one_alarm() -> None:
    harmless = [(case, said) for case, said in known() if case["causes"][0] in HARMLESS]
    alarms = {case["id"]: said.primary for case, said in harmless if said.primary is not None}
    assert len(alarms) <= 1, alarms


def test_a_report_with_a_complaint_is_not_called_healthy() -> None:
    """Where the cause lies outside of the environment, healthy is the answer."""
    green = [
        case["id"]
        for case, said in cases()
        if said.verdict == "healthy" and HARMLESS.isdisjoint(case["causes"])
    ]
    assert green == []


def test_a_text_alone_is_never_certain() -> None:
    for case, said in cases():
        for finding in said.findings:
            alone = all(seen.fact.startswith("symptoms.") for seen in finding.evidence)
            assert not alone or finding.confidence > 0, (case["id"], finding.cause)

"""Reports from real threads, where they lie beside this checkout: the causes that experts found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cudadoctor.diagnose import diagnose
from cudadoctor.findings import Diagnosis
from cudadoctor.knowledge import load
from cudadoctor.reports.reading import read_report

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
HARMLESS = {"not-environment", "torch-bug"}
LEAST_SHARE = 0.95


def cases() -> list[tuple[dict[str, Any], Diagnosis]]:
    if not CASES.is_dir():
        pytest.skip("../shared/cases is not beside this checkout")
    return judged()


@cache
def judged() -> list[tuple[dict[str, Any], Diagnosis]]:
    out = []
    for path in sorted(CASES.glob("*/case.json")):
        machine = read_report((path.parent / "report.txt").read_bytes(), load())
        assert not [gap for gap in machine.gaps if "failed" in gap.why], path.parent.name
        out.append((json.loads(path.read_text("utf-8")), diagnose(machine, load())))
    return out


def told(diagnosis: Diagnosis) -> str | None:
    harmless = (one.cause for one in diagnosis.findings if one.cause in HARMLESS)
    return diagnosis.primary or next(harmless, None)


def test_nearly_every_cause_is_told_where_the_report_suffices() -> None:
    sufficient = [(case, told(said)) for case, said in cases() if case["report_sufficient"]]
    wrong = {case["id"]: said for case, said in sufficient if said not in case["causes"]}
    assert len(wrong) <= (1 - LEAST_SHARE) * len(sufficient), wrong


def test_what_is_no_fault_of_the_environment_raises_at_most_one_alarm() -> None:
    harmless = [(case, said) for case, said in cases() if case["causes"][0] in HARMLESS]
    alarms = {case["id"]: said.primary for case, said in harmless if said.primary is not None}
    assert len(alarms) <= 1, alarms


def test_a_text_alone_is_never_certain() -> None:
    for case, said in cases():
        for one in said.findings:
            alone = all(seen.fact.startswith("symptoms.") for seen in one.evidence)
            assert not alone or one.confidence > 0, (case["id"], one.cause)

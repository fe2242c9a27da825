"""Judging as such: explanations, circles, order and verdicts."""

from __future__ import annotations

import msgspec
import pytest
from scenario_reader import healthy_machine, machine_like

from cudadoctor import knowledge
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import Confidence, Diagnosis, Severity
from cudadoctor.model.machine import Gap, Machine
from cudadoctor.model.rule import Found, Rule, need
from cudadoctor.rules.diagnose import diagnose

MACHINE = healthy_machine("rtx4090-linux")


def _rule(
    cause: str,
    *yields_to: str,
    severity: Severity = Severity.ERROR,
    confidence: Confidence = Confidence.CERTAIN,
    missing: bool = False,
) -> Rule:
    def judge(m: Machine, kb: Knowledge) -> Found | None:
        need(None if missing else 1, "driver.kernel")
        return Found(evidence=(), confidence=confidence)

    return Rule(
        name=cause,
        cause=cause,
        title="A title",
        severity=severity,
        judge=judge,
        yields_to=yields_to,
        essential=severity is Severity.ERROR,
        why="A sentence.",
        page="",
    )


def _diagnosed(*rules: Rule) -> Diagnosis:
    return diagnose(MACHINE, knowledge.load(), rules)


def test_a_deeper_cause_explains_and_is_the_root() -> None:
    diagnosis = _diagnosed(_rule("torch-missing"), _rule("driver-too-old", "torch-missing"))
    assert diagnosis.primary == "torch-missing"
    assert [finding.because_of for finding in diagnosis.findings] == [(), ("torch-missing",)]


def test_a_mere_possibility_explains_nothing() -> None:
    shy = _rule("torch-missing", confidence=Confidence.POSSIBLE)
    assert _diagnosed(shy, _rule("driver-too-old", "torch-missing")).primary == "driver-too-old"


def test_what_is_less_grave_explains_nothing() -> None:
    mild = _rule("torch-missing", severity=Severity.INFO)
    assert _diagnosed(mild, _rule("driver-too-old", "torch-missing")).primary == "driver-too-old"


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_circle_of_explanations_keeps_its_first_as_the_root(length: int) -> None:
    names = ("gpu-lost", "gpu-ecc", "ulimit", "numpy-abi")[:length]
    rules = [_rule(name, names[(n + 1) % length]) for n, name in enumerate(names)]
    diagnosis = _diagnosed(*rules)
    assert diagnosis.verdict == "broken"
    assert diagnosis.primary == names[0]


def test_an_unknown_that_matters_makes_the_verdict_undecided() -> None:
    assert _diagnosed(_rule("gpu-lost", missing=True)).verdict == "undecided"
    assert _diagnosed(_rule("ulimit", severity=Severity.WARNING, missing=True)).verdict == "healthy"


@pytest.mark.parametrize(("asked", "verdict"), [(True, "undecided"), (False, "healthy")])
@pytest.mark.parametrize("fact", ["driver", "driver.kernel"])
def test_what_an_option_left_out_is_not_checked_and_decides_nothing(
    fact: str, asked: bool, verdict: str
) -> None:
    gap = Gap(fact=fact, why="--fast leaves it out", asked=asked)
    machine = msgspec.structs.replace(MACHINE, gaps=(gap,))
    diagnosis = diagnose(machine, knowledge.load(), [_rule("gpu-lost", missing=True)])
    assert diagnosis.verdict == verdict
    assert [
        (undecided.missing, undecided.why, undecided.matters) for undecided in diagnosis.undecided
    ] == [("driver.kernel", "--fast leaves it out", asked)]


def test_several_rules_of_a_cause_are_open_once_and_what_matters_is_kept() -> None:
    mild = _rule("gpu-lost", severity=Severity.WARNING, missing=True)
    diagnosis = _diagnosed(mild, _rule("gpu-lost", missing=True), _rule("gpu-lost", missing=True))
    assert [(undecided.cause, undecided.matters) for undecided in diagnosis.undecided] == [
        ("gpu-lost", True)
    ]


def test_a_cause_that_one_rule_finds_is_not_open_for_another() -> None:
    diagnosis = _diagnosed(
        _rule("gpu-lost"), _rule("gpu-lost", missing=True), _rule("gpu-ecc", missing=True)
    )
    assert [undecided.cause for undecided in diagnosis.undecided] == ["gpu-ecc"]


def test_a_possible_error_alone_is_undecided_with_a_candidate() -> None:
    diagnosis = _diagnosed(_rule("gpu-lost", confidence=Confidence.POSSIBLE))
    assert diagnosis.verdict == "undecided"
    assert diagnosis.candidates[0].cause == "gpu-lost"


def test_what_an_ignored_cause_explains_is_not_called_unexplained() -> None:
    changes = {
        "env": {"CUDA_VISIBLE_DEVICES": "-1"},
        "driver": {"libcuda": {"code": 100, "count": None}},
        "torch": {"imported": {"cuda_available": False, "device_count": 0}},
    }
    sick = machine_like("rtx4090-linux", changes, ("smoke",))
    kb = knowledge.load()
    assert diagnose(sick, kb).primary == "visible-devices-hides-gpu"
    diagnosis = diagnose(sick, kb, ignore=("visible-devices-hides-gpu",))
    assert (diagnosis.verdict, diagnosis.findings) == ("undecided", ())


def test_an_ignored_cause_is_not_heard() -> None:
    diagnosis = diagnose(MACHINE, knowledge.load(), [_rule("gpu-lost")], ignore=("gpu-lost",))
    assert diagnosis.verdict == "healthy"

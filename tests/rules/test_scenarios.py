"""Every scenario is told right, and every rule has one that fires it and one that just does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_reader import (
    HERE,
    Expected,
    Scenario,
    healthy_machine,
    read_scenario,
    scenario_paths,
)

from cudadoctor import knowledge
from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import Diagnosis, Severity, Wishes
from cudadoctor.plan.planner import plan
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.registry import PRECEDENCE, RULES, pasted_rules

PATHS = scenario_paths()
MACHINES = sorted(path.stem for path in (HERE / "machines").glob("*.json"))


def _open_causes(diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(
        finding.cause
        for finding in diagnosis.findings
        if not finding.because_of and finding.severity is not Severity.INFO
    )


def _check(scenario: Scenario, expect: Expected) -> None:
    kb = knowledge.load()
    diagnosis = diagnose(scenario.machine, kb)
    folded = {finding.cause for finding in diagnosis.findings if finding.because_of}
    infos = {finding.cause for finding in diagnosis.findings if finding.severity is Severity.INFO}
    open_now = {undecided.cause for undecided in diagnosis.undecided}
    assert _open_causes(diagnosis) == expect.findings
    assert diagnosis.primary == expect.primary
    assert set(expect.folded) <= folded
    assert set(expect.infos) <= infos
    assert set(expect.passes) <= set(diagnosis.passed)
    assert set(expect.undecided) <= open_now
    if expect.verdict is not None:
        assert diagnosis.verdict == expect.verdict
    if expect.plan is not None:
        steps = plan(scenario.machine, kb, diagnosis, Wishes()).steps
        assert tuple(step.id for step in steps)[: len(expect.plan)] == expect.plan


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_scenario_is_told_right(path: Path) -> None:
    scenario = read_scenario(path)
    _check(scenario, scenario.expect)


@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_machine_triggers_nothing(name: str) -> None:
    diagnosis = diagnose(healthy_machine(name), knowledge.load())
    assert _open_causes(diagnosis) == ()
    assert diagnosis.verdict == "healthy", diagnosis.undecided


def test_every_cause_has_a_scenario_and_a_near_miss() -> None:
    expected = [read_scenario(path).expect for path in PATHS]
    fired = {cause for expect in expected for cause in expect.findings + expect.infos}
    near = {expect.near for expect in expected if expect.near not in expect.findings}
    causes = {rule.cause for rule in RULES} - {"unknown"}
    assert (causes - fired, causes - near) == (set(), set())


def test_every_rule_is_documented_and_in_the_catalogue() -> None:
    for rule in (*RULES, *pasted_rules()):
        assert {rule.cause, *rule.yields_to} <= set(CATALOGUE), rule.name
        assert not rule.title.endswith("."), rule.name
        assert rule.why.endswith("."), rule.name
        from_table = rule.name == f"reported-{rule.cause}"
        assert from_table or len(rule.page) > 40, f"{rule.name}: no page for `explain`"


def test_the_names_of_rules_are_unique_and_the_precedence_names_rules() -> None:
    names = [rule.name for rule in (*RULES, *pasted_rules())]
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert PRECEDENCE.keys() <= {*names}, "a rule was renamed and its line was not"
    assert {cause for causes in PRECEDENCE.values() for cause in causes} <= {*CATALOGUE}

"""Findings and wishes -> ordered, merged steps."""

from __future__ import annotations

from typing import Any

import pytest
from printed_scripts import without_printing
from remedy_fixtures import KB, every_machine, every_remedy, machine

from cudadoctor.model.findings import (
    Confidence,
    Diagnosis,
    Finding,
    PackageChange,
    Plan,
    Remedy,
    Risk,
    Severity,
    Wishes,
)
from cudadoctor.model.machine import Machine
from cudadoctor.plan import remedies
from cudadoctor.plan.planner import plan
from cudadoctor.render import json_v1
from cudadoctor.render.script import script

OLD = machine(
    driver={
        "kernel": "535.104.05",
        "reported": "535.104.05",
        "library": "535.104.05",
        "cuda": "12.2",
    }
)


def finding(cause: str, *found: Remedy, **given: Any) -> Finding:
    blank: dict[str, Any] = {
        "cause": cause,
        "rule": cause,
        "severity": Severity.ERROR,
        "confidence": Confidence.CERTAIN,
        "title": cause,
        "why": "Because.",
        "values": {},
        "evidence": (),
        "remedies": found,
    }
    return Finding(**(blank | given))


def planned(m: Machine, *findings: Finding, wishes: Wishes | None = None) -> Plan:
    diagnosis = Diagnosis(
        verdict="broken",
        primary=findings[0].cause if findings else None,
        findings=findings,
        passed=(),
        undecided=(),
    )
    return plan(m, KB, diagnosis, wishes)


def manual(id: str) -> Remedy:  # noqa: A002
    return remedies.by_hand(id, id, "Do it.")[0]


def packages(id: str, *install: str, remove: tuple[str, ...] = ()) -> Remedy:  # noqa: A002
    change = PackageChange(install=install, remove=remove)
    return Remedy(id=id, title=id, risk=Risk.ENVIRONMENT, packages=change)


def test_nothing_wrong_needs_no_step() -> None:
    found = planned(machine())
    assert found.steps == ()
    assert found.build is None


def test_explained_findings_and_information_need_no_step() -> None:
    found = planned(
        machine(),
        finding("a", manual("one")),
        finding("b", manual("two"), because_of=("a",)),
        finding("c", manual("three"), severity=Severity.INFO),
    )
    assert [step.id for step in found.steps] == ["one"]


def test_the_same_step_of_two_causes_cures_both() -> None:
    found = planned(machine(), finding("a", manual("one")), finding("b", manual("one")))
    assert [(step.id, step.cures) for step in found.steps] == [("one", ("a", "b"))]


def test_alternatives_share_a_group_and_follow_the_preferred_step() -> None:
    found = planned(
        machine(),
        finding("a", manual("zeta"), manual("alpha")),
        finding("b", manual("beta")),
    )
    assert [(step.id, step.group) for step in found.steps] == [
        ("zeta", "zeta"),
        ("alpha", "zeta"),
        ("beta", "beta"),
    ]


def test_what_one_cause_prefers_is_nobodys_alternative() -> None:
    found = planned(
        machine(), finding("a", manual("one"), manual("two")), finding("b", manual("two"))
    )
    assert [(step.id, step.group, step.cures) for step in found.steps] == [
        ("one", "one", ("a",)),
        ("two", "two", ("b", "a")),
    ]


def test_an_old_driver_is_cured_by_the_build_for_it_or_by_a_newer_driver() -> None:
    found = planned(
        OLD,
        finding(
            "driver-too-old",
            *remedies.install_torch(OLD, KB),
            *remedies.upgrade_driver(OLD, KB, 580),
        ),
    )
    assert [step.id for step in found.steps] == ["install-torch", "upgrade-driver"]
    first, second = found.steps
    assert first.tool == "pip" and not first.needs_root
    assert second.needs_root and second.reboot
    assert found.build is not None
    assert (found.build.torch, found.build.variant) == ("2.14.1", "cu126")
    assert found.build.python == "3.12"
    assert found.build.index == "https://download.pytorch.org/whl/cu126"


def test_package_changes_become_part_of_the_step_that_installs_torch() -> None:
    found = planned(
        OLD,
        finding("driver-too-old", *remedies.install_torch(OLD, KB)),
        finding("torch-companion-mismatch", packages("install-companion", "torchvision==0.1")),
        finding("numpy-abi", packages("numpy-1", "numpy<2"), manual("newer")),
        finding("pynvml-conflict", packages("remove-pynvml", remove=("pynvml",))),
    )
    assert [(step.id, step.group) for step in found.steps] == [
        ("install-torch", "install-torch"),
        ("newer", "install-torch"),
    ]
    uninstall, install = found.steps[0].commands  # the new torch takes NumPy 2
    assert "pynvml" in uninstall
    assert "torchvision==0.1" not in install
    assert found.steps[0].cures == (
        *("driver-too-old", "torch-companion-mismatch", "numpy-abi", "pynvml-conflict"),
    )


def test_without_torch_package_changes_stay_apart() -> None:
    found = planned(
        machine(),
        finding("numpy-abi", packages("numpy-1", "numpy<2")),
        finding("pynvml-conflict", packages("remove-pynvml", remove=("pynvml",))),
    )
    assert [step.id for step in found.steps] == ["numpy-1", "remove-pynvml"]


def test_a_wish_for_a_release_is_kept_where_it_fits() -> None:
    found = planned(
        OLD,
        finding("driver-too-old", *remedies.install_torch(OLD, KB)),
        wishes=Wishes(torch="2.6"),
    )
    assert found.build is not None and found.build.torch == "2.6.0"
    assert any("torch==2.6.0" in argv for argv in found.steps[0].commands)


def test_a_wish_that_nothing_meets_is_said_to_be_so() -> None:
    found = planned(
        OLD,
        finding("driver-too-old", *remedies.install_torch(OLD, KB)),
        wishes=Wishes(torch="2.15"),
    )
    step, driver = found.steps
    assert step.title == "No build of torch 2.15 is compatible with this machine"
    assert step.commands == ()
    assert "With driver 580 or newer, you can use torch 2.15.0 cu132." in (step.manual or "")
    assert driver.id == "upgrade-driver" and driver.group == step.group and driver.needs_root


@pytest.mark.parametrize("manager", ["pip", "uv", "conda", "pixi", "docker"])
def test_the_wished_manager_writes_the_step(manager: Any) -> None:
    found = planned(
        OLD,
        finding("driver-too-old", *remedies.install_torch(OLD, KB)),
        wishes=Wishes(manager=manager),
    )
    assert found.steps[0].tool == manager
    assert found.steps[0].commands or found.steps[0].edits
    change = found.steps[0].packages
    assert change and (change.download_bytes is not None) is (manager != "conda"), (
        "a channel's packages are no wheels"
    )


def test_a_plan_of_everything_for_every_machine_makes_a_script() -> None:
    for name, m in every_machine():
        findings = [finding(f"c{n}", *found) for n, (_, found) in enumerate(every_remedy(m))]
        steps = planned(m, *findings)
        ids = [step.id for step in steps.steps]
        assert len(ids) == len(set(ids)), name
        groups = list(dict.fromkeys(step.group for step in steps.steps))
        assert [step.group for step in steps.steps] == sorted(
            (step.group for step in steps.steps), key=groups.index
        )
        firsts = {step.group: step.id for step in reversed(steps.steps)}
        assert all(group == first for group, first in firsts.items()), name
        diagnosis = Diagnosis(verdict="broken", primary=None, findings=(), passed=(), undecided=())
        text = script(steps, m, diagnosis, version="0.1.0", knowledge="2026-11-15")
        for line in without_printing(text.splitlines(), "bash"):
            assert line.startswith("#") or "sudo" not in line


def test_a_step_keeps_the_change_behind_it_and_the_contract_does_not_show_it() -> None:
    change = packages("install-packages", "numpy<2")
    found = planned(machine(), finding("a", change))
    assert found.steps[0].packages == change.packages
    assert "packages" not in json_v1.plan(found)["steps"][0]

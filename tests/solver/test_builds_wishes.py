"""A wish for a release: what it allows, when it is met, and the step that it asks for."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version
from remedy_fixtures import KB, machine

from cudadoctor.model.findings import Plan, Wishes
from cudadoctor.model.machine import Machine, Torch
from cudadoctor.plan.planner import plan
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import allowed, constraint_of, is_met

NONE: dict[str, Any] = {
    "installed": False,
    "version": None,
    "text": None,
    "build": None,
    "cuda": None,
    "archs": None,
    "imported": None,
}
OLD_DRIVER = {
    "kernel": "535.183.01",
    "reported": "535.183.01",
    "library": "535.183.01",
    "cuda": "12.2",
}


def planned(m: Machine, torch: str) -> Plan:
    return plan(m, KB, diagnose(m, KB), Wishes(torch=torch))


def torch_of(version: str, build: Any = "cuda", cuda: str | None = "12.6") -> Torch:
    level = Version(cuda) if cuda else None
    return Torch(installed=True, version=Version(version), build=build, cuda=level)


@pytest.mark.parametrize(
    ("wish", "release", "allowed"),
    [
        ("2.6", "2.6.0", True),
        ("2.6", "2.7.0", False),
        ("2.1", "2.10.0", False),
        ("2", "2.10.0", True),
        ("2.6.0", "2.6.0", True),
        (">=2.6,<2.8", "2.7.1", True),
        (">=2.6,<2.8", "2.8.0", False),
        ("~=2.6.0", "2.6.0", True),
        ("!=2.15.0", "2.14.1", True),
        (" 2.6 ", "2.6.0", True),
        ("2.6.0rc1", "2.6.0", False),
    ],
)
def test_a_wish_allows_what_it_says(wish: str, release: str, allowed: bool) -> None:
    found = constraint_of(wish)
    assert found is not None
    assert found.allows(Version(release), "cu126") is allowed


@pytest.mark.parametrize(
    "text", ["", "newest", ">=", "2.6;rm", "2.6,", ">2," * 9 + ">2", "9" * 999]
)
def test_what_is_no_wish_is_none(text: str) -> None:
    assert constraint_of(text) is None
    assert allowed(text, KB.builds_on("linux_x86_64")) == ()


def test_a_wish_can_name_the_variant_and_then_means_only_that() -> None:
    found = allowed("2.6.0+cu124", KB.builds_on("linux_x86_64"))
    assert [build.variant for build in found] == ["cu124"]


@pytest.mark.parametrize(
    ("wish", "torch", "met"),
    [
        ("2.14", torch_of("2.14.1+cu126"), True),
        ("2.14.1+cu126", torch_of("2.14.1+cu126"), True),
        ("2.14.1+cu130", torch_of("2.14.1+cu126"), False),
        ("2.14.1+cu126", torch_of("2.14.1"), True),
        ("2.14.1+cpu", torch_of("2.14.1", "cpu", None), True),
        ("2.6", torch_of("2.14.1+cu126"), False),
        ("2.14", torch_of("2.14.0.dev20260801"), False),
        ("2.6", Torch(installed=False), False),
        ("2.6", Torch(), None),
    ],
)
def test_a_wish_is_met_by_what_it_names(wish: str, torch: Torch, met: bool | None) -> None:
    assert is_met(wish, torch) is met


def test_a_healthy_machine_gets_the_release_that_was_wished_for() -> None:
    found = planned(machine(), "2.6")
    (step,) = found.steps
    assert step.id == "install-torch"
    assert step.cures == ()
    assert step.packages is not None
    assert step.packages.install == ("torch==2.6.0", "torchvision==0.21.0")
    assert found.build is not None
    assert any("Without your version constraint" in text for text in found.build.why)


@pytest.mark.parametrize("wish", ["2.14", "2.14.1", "2.14.1+cu130", ">=2.10"])
def test_a_wish_that_is_met_already_asks_for_nothing(wish: str) -> None:
    found = planned(machine(), wish)
    assert found.steps == ()
    assert found.build is None


def test_a_cure_and_a_wish_are_one_step() -> None:
    found = planned(machine(torch=NONE, packages=[]), "2.6")
    (step,) = [step for step in found.steps if step.id == "install-torch"]
    assert step.cures == ("torch-missing",)
    assert "torch==2.6.0" in (step.packages.install if step.packages else ())


def test_a_wish_that_cannot_be_names_the_nearest_release_and_runs_nothing() -> None:
    found = planned(machine(), "2.6.1")
    (step,) = found.steps
    assert step.commands == ()
    assert "In that minor release series, you can use torch 2.6.0 cu124." in (step.manual or "")


def test_a_wish_that_the_driver_forbids_has_the_driver_as_its_alternative() -> None:
    gpu = {"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "device_id": "2330"}
    base = machine()
    first = {"index": 0, "uuid": base.gpus[0].uuid if base.gpus else None}
    m = machine(driver=OLD_DRIVER, gpus=[first | gpu], pci=[])
    steps = planned(m, "2.15").steps
    assert [step.id for step in steps] == ["install-torch", "upgrade-driver", "cuda-compat"]
    assert len({step.group for step in steps}) == 1
    assert steps[2].needs_root
    assert steps[2].commands[-1] == ("apt-get", "install", "-y", "cuda-compat-13-2")


def test_a_wish_that_the_python_forbids_is_kept_in_a_new_environment() -> None:
    m = machine(python={"version": "3.9.2"}, torch=NONE, packages=[])
    steps = planned(m, "2.12").steps
    made = next(step for step in steps if step.id == "install-python")
    assert "torch==2.12.1" in made.commands[-1]


def test_a_build_for_another_makers_gpu_is_not_replaced() -> None:
    rocm = {"build": "rocm", "cuda": None, "text": "2.8.0+rocm6.4", "imported": None}
    steps = planned(machine(gpus=[], pci=[], torch=rocm), "2.6").steps
    (step,) = [step for step in steps if step.id == "install-torch"]
    assert step.commands == ()
    assert "ROCm" in step.title


def test_what_is_said_without_a_gpu_does_not_contradict_the_wish() -> None:
    m = machine(gpus=[], pci=[], torch=NONE, packages=[])
    found = best_build(m, KB, keep="2.6.0+cu124")
    assert found.build is not None
    assert found.build.variant == "cu124"
    assert "This machine has no NVIDIA GPU; this build also runs on the CPU." in found.why
    assert not any("CPU build is the one" in reason for reason in found.why)


def test_the_release_with_long_term_support_is_in_an_index_of_its_own() -> None:
    choice = best_build(machine(), KB, keep="1.8.2")
    assert choice.build is None
    assert "whl/lts/1.8/cu111" in choice.why[0]
    assert [str(way.build.torch) for way in choice.alternatives if way.build] != []
    other = best_build(machine(), KB, keep="1.8.7")
    assert "There is no known torch release" in other.why[0]

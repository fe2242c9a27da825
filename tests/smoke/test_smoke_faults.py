"""Every stage fails when its fault is planted, and only then."""

from __future__ import annotations

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Smoke, Stage
from cudadoctor.smoke import run_smoke
from cudadoctor.smoke.reading import STAGES

pytestmark = pytest.mark.torch

LATER = STAGES[1:]
ON_CPU = tuple(stage for stage in STAGES if stage != "cuda-graph")
ODD = {
    "matmul": "elsewhere",
    "conv": "elsewhere",
    "train-fp32": "nan",
    "amp-fp16": "nan",
    "amp-bf16": "rising",
    "ddp": "unequal",
    "checkpoint": "corrupt",
}


class Runs:
    """One run with the same fault in many stages, each run made once."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.made: dict[str, Smoke] = {}

    def stage(self, name: str, plant: str) -> Stage:
        if plant not in self.made:
            self.made[plant] = self._run(plant)
        return next(stage for stage in self.made[plant].stages if stage.name == name)

    def _run(self, plant: str) -> Smoke:
        limit = 1.5 if "hang" in plant else None
        looked = run_smoke(
            LocalHost(),
            self.python,
            mode="full",
            device="cpu",
            plant=plant,
            limit=limit,
            timeout_s=60.0,
        )
        smoke = looked.facts["smoke"]
        assert isinstance(smoke, Smoke)
        return smoke


@pytest.fixture(scope="module")
def runs(python_cpu: str) -> Runs:
    return Runs(python_cpu)


def planted(name: str, fault: str) -> str:
    """The fault in all later stages at once, or in the first alone, which all others need."""
    stages = LATER if name in LATER else (name,)
    return ",".join(f"{stage}:{fault}" for stage in stages)


@pytest.mark.parametrize("name", ON_CPU)
def test_a_wrong_number_fails_the_stage(runs: Runs, name: str) -> None:
    stage = runs.stage(name, planted(name, "wrong"))
    assert stage.status == "failed"
    assert stage.detail


@pytest.mark.parametrize("name", STAGES)
def test_an_exception_fails_the_stage_with_its_words(runs: Runs, name: str) -> None:
    stage = runs.stage(name, planted(name, "error"))
    assert stage.status == "failed"
    assert "RuntimeError: a planted error" in (stage.detail or "")


@pytest.mark.parametrize("name", STAGES)
def test_a_crash_names_its_stage_and_its_signal(runs: Runs, name: str) -> None:
    stage = runs.stage(name, planted(name, "crash"))
    assert stage.status == "failed"
    assert "killed by SIGSEGV, in planted (process.py" in (stage.detail or "")


@pytest.mark.parametrize("name", STAGES)
def test_a_hang_names_its_stage_and_where_it_stands(runs: Runs, name: str) -> None:
    stage = runs.stage(name, planted(name, "hang"))
    assert stage.status == "timed-out"
    assert "no response within" in (stage.detail or "")
    assert "in planted (process.py" in (stage.detail or "")


@pytest.mark.parametrize("name", ODD)
def test_what_only_this_stage_can_get_wrong_fails_it(runs: Runs, name: str) -> None:
    plant = ",".join(f"{stage}:{fault}" for stage, fault in ODD.items())
    assert runs.stage(name, plant).status == "failed"
    assert runs.stage("allocate", plant).status == "passed"


def test_when_the_whole_step_runs_out_of_time_the_stage_that_took_it_is_named(
    python_cpu: str,
) -> None:
    stages: dict[str, str | None] = {}
    for limit_s in (6.0, 20.0, 60.0):  # a busy machine needs longer to import torch
        looked = run_smoke(
            LocalHost(), python_cpu, mode="full", plant="conv:hang", timeout_s=limit_s
        )
        stages = {stage.name: stage.status for stage in looked.facts["smoke"].stages}
        others = {stages.get(name) for name in ON_CPU if name != "conv"}
        if stages.get("conv") == "timed-out" and others == {"passed"}:
            break
    else:
        pytest.fail(str(stages))


def test_how_a_worker_was_lost_is_said_of_the_whole_step(runs: Runs) -> None:
    runs.stage("matmul", planted("matmul", "crash"))
    ended = runs.made[planted("matmul", "crash")].ended
    assert ended is not None
    assert ended.startswith("matmul: killed by SIGSEGV")

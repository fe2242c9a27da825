"""What `smoke` prints: how it ended first, then stage by stage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from scenario_reader import healthy_machine

from cudadoctor.locale.language import language
from cudadoctor.model.machine import Gap, Machine, Smoke, Stage
from cudadoctor.render.summary import stage_lines

ENGLISH = language("en")


def ran(device: str, *statuses: str, ended: str | None = None) -> Machine:
    stages = tuple(
        Stage(name=f"s{number}", status=status, seconds=0.5, detail=None)  # type: ignore[arg-type]
        for number, status in enumerate(statuses)
    )
    smoke = Smoke(device=device, stages=stages, ended=ended)
    return replace(healthy_machine("rtx4090-linux"), smoke=smoke)


@pytest.mark.parametrize(
    ("machine", "first", "last"),
    [
        (
            ran("cuda:0", "passed", "passed", "skipped"),
            "Training step on cuda:0: 2 of 2 stages passed.",
            "  skipped    s2            0.50 s",
        ),
        (
            ran("cuda:1", "passed", "failed", "timed-out", "skipped", ended="killed by SIGSEGV"),
            "Training step on cuda:1: failed at s1, s2.",
            "The training step ended early: killed by SIGSEGV",
        ),
        (
            ran("cpu", "passed"),
            "Training step on the CPU: 1 of 1 stages passed.",
            "On the CPU, the training step shows that torch works, but it does not test a GPU.",
        ),
        (
            ran("cpu", "failed"),
            "Training step on the CPU: failed at s0.",
            "  failed     s0            0.50 s",
        ),
    ],
)
def test_the_end_stands_first_and_each_stage_on_a_line(
    machine: Machine, first: str, last: str
) -> None:
    lines = stage_lines(machine, ENGLISH)
    assert (lines[0], lines[-1]) == (first, last)


def test_a_step_that_never_ran_says_why() -> None:
    gap = Gap(fact="smoke", why="torch could not be imported")
    machine = replace(healthy_machine("rtx4090-linux"), smoke=None, gaps=(gap,))
    text = "The training step did not run: torch could not be imported"
    assert stage_lines(machine, ENGLISH) == [text]


def test_it_speaks_spanish() -> None:
    lines = stage_lines(ran("cpu", "passed"), language("es"))
    assert lines[0] == "Paso de entrenamiento en la CPU: superadas 1 de 1 etapas."

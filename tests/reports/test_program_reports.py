"""Errors of programs and questions: no fault of the environment, and no alarm."""

from __future__ import annotations

import pytest
from told_fixtures import HARMLESS, HEALTHY, cases, diagnosis_of, root_of

PROGRAM = [text for _, text in cases("program", "program")]


@pytest.mark.parametrize("text", PROGRAM)
def test_an_error_of_the_program_is_told_as_such(text: str) -> None:
    assert root_of(text) == "not-environment"


@pytest.mark.parametrize("text", PROGRAM)
def test_an_error_of_the_program_beside_a_healthy_environment_is_no_alarm(text: str) -> None:
    assert root_of(text + "\n" + HEALTHY) in HARMLESS


@pytest.mark.parametrize("text", [text for _, text in cases("program", "complaint")])
def test_a_complaint_about_torch_itself_is_told_as_such(text: str) -> None:
    assert root_of(text) == "torch-bug"


@pytest.mark.parametrize("text", [text for _, text in cases("program", "quiet")])
def test_a_thread_about_something_else_is_no_alarm(text: str) -> None:
    assert diagnosis_of(text).primary in (None, *HARMLESS)


def test_a_healthy_report_alone_has_no_root_cause() -> None:
    assert diagnosis_of(HEALTHY).primary is None


def test_the_environment_comes_first_where_both_speak() -> None:
    text = PROGRAM[0] + "\nAssertionError: Torch not compiled with CUDA enabled"
    assert root_of(text) == "torch-cpu-build"

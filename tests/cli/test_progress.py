"""What is said of a wait: one line for each thing, with the call that it waits for."""

from __future__ import annotations

import pytest

from cudadoctor.cli import output
from cudadoctor.cli.output import SHORTER


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> output.Waiting:
    """Everything takes long at once."""
    monkeypatch.setattr(output, "FIRST_S", -1.0)
    monkeypatch.setattr(output, "ANNOUNCE_S", -1.0)
    return output.Waiting(SHORTER)


def said(waiting: output.Waiting, capsys: pytest.CaptureFixture[str]) -> list[str]:
    waiting.once(set(waiting.slow()))
    return capsys.readouterr().err.splitlines()


def test_a_wait_for_the_driver_names_the_call_and_the_option_once(
    waiting: output.Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("the driver", "the driver: nvmlInit", "the driver: cuInit"):
        waiting(what, True)
    [line] = said(waiting, capsys)
    assert line.startswith("waiting for the driver: cuInit (")
    assert "--timeout" in line
    waiting("the driver: cuInit", False)
    assert said(waiting, capsys) == []


def test_another_wait_has_a_line_of_its_own(
    waiting: output.Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting("the driver", True)
    waiting("import torch", True)
    assert len(said(waiting, capsys)) == 2


def test_a_command_without_the_option_does_not_name_it(
    waiting: output.Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting.hint = ""
    waiting("the package resolver", True)
    assert "--timeout" not in said(waiting, capsys)[0]

"""`fix` at a terminal: what it asks, what a Ctrl-C at its questions does, and its language."""

from __future__ import annotations

import pytest
from repair_fixtures import FITTING, STRANGE, Environment
from terminal_fixtures import Shown, in_terminal

ASKED = "Apply these changes? [y/N]"
UNDO = "Undo the last fix? [y/N]"
LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG", "CUDADOCTOR_LANG", "COLUMNS")


def at_terminal(environment: Environment, *options: str, **given: object) -> Shown:
    env = {name: value for name, value in environment.env().items() if name not in LOCALE}
    env |= given.pop("env", {})  # type: ignore[call-overload]
    return in_terminal(*environment.words(*options), env=env, **given)  # type: ignore[arg-type]


def test_a_yes_applies_the_plan_and_the_way_back_stands_last(broken: Environment) -> None:
    shown = at_terminal(broken, answers={ASKED: b"y\n"})
    assert shown.code == 0, shown.text
    assert broken.imports() == FITTING
    lines = [line.strip() for line in shown.text.splitlines() if line.strip()]
    assert "✗" in lines[0]
    assert "To undo: cudadoctor fix --undo" in " ".join(lines[-3:])


@pytest.mark.parametrize("answer", [b"\n", b"n\n", b"\x04", b"\x03"])
def test_anything_else_changes_nothing(broken: Environment, answer: bytes) -> None:
    before = broken.tree()
    shown = at_terminal(broken, answers={ASKED: answer})
    assert shown.code == (130 if answer == b"\x03" else 1), shown.text
    assert broken.tree() == before
    assert not broken.journal.exists()


def test_a_ctrl_c_at_the_question_of_an_undo_ends_at_once_and_leaves_all_as_it_is(
    broken: Environment,
) -> None:
    broken.fix("--yes")
    (broken.site / "mine.py").write_text("MINE = 1\n")
    records = broken.records()
    shown = at_terminal(broken, "--undo", answers={UNDO: b"\x03"}, limit_s=30)
    assert shown.code == 130, shown.text
    assert (broken.imports(), broken.records()) == (FITTING, records)
    assert at_terminal(broken, "--undo", answers={UNDO: b"y\n"}).code == 0
    assert broken.imports() == STRANGE


def test_the_whole_story_is_told_in_spanish(broken: Environment) -> None:
    env = {"LC_ALL": "es_ES.UTF-8"}
    shown = at_terminal(broken, env=env, answers={"¿Aplicar estos cambios? [s/N]": b"s\n"})
    assert shown.code == 0, shown.text
    undone = at_terminal(broken, "--undo", env=env)
    words = f"{shown.text} {undone.text}".split()
    told = " ".join(words)
    assert "Arreglado: el veredicto pasó de averiado a sano." in told
    assert "Deshecho: todo está como antes del arreglo" in told
    english = {"the", "and", "is", "of", "with", "this", "was", "will", "to"}
    assert not english & {word.strip(".,:;()").lower() for word in words}, told

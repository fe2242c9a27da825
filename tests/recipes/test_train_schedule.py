"""Recipes about how long, how fast and with how much at once: and what a step is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from train_fixtures import (
    STRICT,
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    assert_ends,
    assert_says_its_options,
    assert_seen,
    breaches,
    ran,
    ran_as_they_are,
    ran_with,
)

RECIPES = (
    Recipe("early_stopping.py", says=("all epochs      80 epochs", "early stopping")),
    Recipe("one_cycle.py", says=("constant 0.1", "one cycle")),
    Recipe("largest_batch.py", says=("218 samples fit, 219 do not; 0 bytes leaked",)),
    Recipe("profiling.py", says=("calls  aten::addmm", "10 of the 10 most expensive")),
)
SCRIPTS = [recipe.script for recipe in RECIPES]
RAISED = "            raise\n"
BISECTED = """        if fits(step, middle):
            good = middle
        else:
            bad = middle
"""
INSIDE = """        try:
            step(middle)
            good = middle
        except RuntimeError:
            half = (good + middle) // 2
            good, bad = (half, middle) if fits(step, half) else (good, half)
"""
FEW = ("--steps", "3")
MISALIGNED = Mistake(
    "largest_batch.py",
    "another error",
    (("planted: out of memory", "planted: misaligned address"),),
)
MISTAKES = (
    Mistake(
        "early_stopping.py",
        "the best weights are not copied",
        (('tensor.to("cpu", copy=True)', "tensor"),),
        ("--steps", "40"),
    ),
    Mistake(
        "early_stopping.py",
        "the last weights are kept",
        (("        stopping.restore(model)  #", "        pass  #"),),
        ("--steps", "40"),
    ),
    Mistake(
        "early_stopping.py",
        "it never ends",
        (("return self.waited >= self.patience", "return False"),),
        ("--steps", "40"),
    ),
    Mistake(
        "one_cycle.py",
        "one step of the schedule in an epoch",
        (("if scheduler is not None:", "if scheduler is not None and _ % 100 == 99:"),),
        ("--steps", "200"),
    ),
    Mistake(
        "one_cycle.py",
        "the schedule is for twice as many steps",
        (("total_steps=steps", "total_steps=2 * steps"),),
        ("--steps", "200"),
    ),
    Mistake(
        "largest_batch.py",
        "the exception is kept",
        (
            (RAISED, f"{RAISED}        SEEN.append(error)\n"),
            ("WIDTH, MOST =", "SEEN = []\nWIDTH, MOST ="),
        ),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the next size is tried before the exception is left",
        ((BISECTED, INSIDE),),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the one that failed is returned",
        (("    return good\n", "    return bad\n"),),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the search ends at powers of two",
        (("    while bad - good > 1:", "    while False:"),),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the search trains the model",
        (("copy.deepcopy(model)", "model"),),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the search does one step, without moments beside the activations",
        (("x, y, batch, 2)", "x, y, batch, 1)"),),
        FEW,
    ),
    Mistake(
        "largest_batch.py",
        "the parts are not weighed",
        (("(loss * (len(some_x) / len(x))).backward()", "loss.backward()"),),
        FEW,
    ),
    Mistake(
        "profiling.py",
        "the profiler is told of no step",
        (("            profiler.step()  #", "            pass  #"),),
    ),
    Mistake(
        "profiling.py",
        "too few steps for the schedule",
        (("wait=1, warmup=2", "wait=10, warmup=20"),),
    ),
    Mistake(
        "profiling.py",
        "the trace goes nowhere",
        (("on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),", ""),),
    ),
)


@pytest.fixture(scope="module")
def held(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Ran]:
    """What each recipe says as it is."""
    return ran_as_they_are(python_cpu, tmp_path_factory.mktemp("recipes"), RECIPES)


@pytest.fixture(scope="module")
def seen(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What each script says with its mistake."""
    return ran_with(python_cpu, tmp_path_factory.mktemp("mistakes"), (*MISTAKES, MISALIGNED))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.script))
def test_a_recipe_proves_its_claim_on_a_cpu(held: dict[Recipe, Ran], recipe: Recipe) -> None:
    assert_ends(held[recipe], recipe)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.script}: {m.name}")
def test_a_mistake_is_not_proved(seen: dict[Mistake, Ran], mistake: Mistake) -> None:
    assert_seen(seen[mistake])


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_keeps_to_the_conventions(script: str) -> None:
    assert breaches(TRAIN / script) == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_recipe_says_its_options(held: dict[Recipe, Ran], script: str) -> None:
    assert_says_its_options(held, script)


def test_a_trace_is_written_where_it_is_asked_for(python_cpu: str, tmp_path: Path) -> None:
    trace = tmp_path / "mine.json"
    result = ran(python_cpu, TRAIN / "profiling.py", ("--trace", str(trace)), warnings=STRICT)
    assert result.code == 0, result.errors
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward", "backward", "optimizer", "aten::addmm"} <= names


def test_an_error_that_is_not_of_memory_ends_the_search(seen: dict[Mistake, Ran]) -> None:
    result = seen[MISALIGNED]
    assert result.code not in (0, 1)
    assert "planted: misaligned address" in result.errors
    assert not [line for line in result.lines if "proved" in line]

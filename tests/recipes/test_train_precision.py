"""Recipes about numbers and gradients: the same loss as the plain training, and seen where not."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_fixtures import (
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
    Recipe("amp_fp16.py"),
    Recipe("amp_bf16.py"),
    Recipe("tf32.py", says=("highest", "high", "medium", "error of a product")),
    Recipe("gradient_accumulation.py"),
    Recipe("gradient_clipping.py"),
    Recipe("activation_checkpointing.py", says=("saved for backward",)),
    Recipe("activation_checkpointing.py", ("--bf16", "--steps", "20")),
    Recipe("freezing.py", says=("bit for bit",)),
)
SCRIPTS = sorted({recipe.script for recipe in RECIPES})
AUTOCAST = "with torch.autocast(device_type=device, dtype=torch.bfloat16):"
LAST_OF_ALL = "optimizer.step()\n        optimizer.zero_grad()\n        yield total"
MISTAKES = (
    Mistake("amp_fp16.py", "no scaler", (("enabled=scaled", "enabled=False"),)),
    Mistake(
        "amp_bf16.py",
        "the weights are cast instead",
        ((AUTOCAST, "if model.bfloat16() and (x := x.bfloat16()) is not None:"),),
    ),
    Mistake(
        "tf32.py",
        "products lose digits that the setting promises",
        (("(a @ b)", "(a.bfloat16() @ b.bfloat16())"),),
        ("--steps", "5"),
    ),
    Mistake(
        "gradient_accumulation.py",
        "divided by the number of parts",
        (("len(part_x) / len(x) if by_samples else 1 / len(parts)", "1 / len(parts)"),),
    ),
    Mistake(
        "gradient_accumulation.py",
        "gradients of the batch before stay",
        ((LAST_OF_ALL, "optimizer.step()\n        yield total"),),
    ),
    Mistake(
        "gradient_clipping.py",
        "clipped before unscaling",
        (("scaler.unscale_(optimizer)  #", "pass  #"),),
    ),
    Mistake(
        "gradient_clipping.py",
        "not clipped at all",
        (
            (
                "have their real norm\n        torch.nn.utils.clip_grad_norm_",
                "have their real norm\n        (lambda *_: None)",
            ),
        ),
    ),
    Mistake(
        "activation_checkpointing.py",
        "another dropout in the second pass",
        (("preserve_rng_state=True", "preserve_rng_state=False"),),
    ),
    Mistake(
        "activation_checkpointing.py",
        "nothing is checkpointed",
        (("checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)", "layer(x)"),),
    ),
    Mistake("freezing.py", "batch norm goes on counting", (("    backbone.eval()\n", ""),)),
    Mistake(
        "freezing.py",
        "the features of one batch for all",
        (("[(backbone(x), y) for x, y", "[(backbone(epoch[0][0]), y) for _, y"),),
    ),
)


@pytest.fixture(scope="module")
def held(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Ran]:
    """What each recipe says as it is."""
    return ran_as_they_are(python_cpu, tmp_path_factory.mktemp("recipes"), RECIPES)


@pytest.fixture(scope="module")
def seen(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What each script says with its mistake."""
    return ran_with(python_cpu, tmp_path_factory.mktemp("mistakes"), MISTAKES)


@pytest.mark.parametrize(
    "recipe", RECIPES, ids=lambda recipe: " ".join((recipe.script, *recipe.options))
)
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


def test_both_ways_to_set_the_precision_give_the_same_training(
    python_cu130: str, tmp_path: Path
) -> None:
    both = [Recipe("tf32.py", ("--steps", "20", *api)) for api in ((), ("--new-api",))]
    results = ran_as_they_are(python_cu130, tmp_path, both)
    old, new = (results[recipe] for recipe in both)
    assert old.last.startswith("proved: ")
    assert new.last == old.last


def test_a_device_that_is_not_there_is_wrong_usage(python_cpu: str) -> None:
    result = ran(python_cpu, TRAIN / "amp_bf16.py", ("--device", "cuda"))
    assert result.code == 2
    assert "invalid choice: 'cuda'" in result.errors

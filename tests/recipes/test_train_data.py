"""Recipes about data and models: cached, cut, smaller; and in images that others made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from train_fixtures import (
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    answered,
    assert_ends,
    assert_says_its_options,
    assert_seen,
    breaches,
    ran_as_they_are,
    ran_with,
)

RECIPES = (
    Recipe("cached_data.py", says=("256 decoded,", "1280 decoded,")),
    Recipe("sequence_length.py", says=("95% of samples have at most 63 tokens, 99% at most 94",)),
    Recipe("smaller_model.py", says=("student alone", "distilled student")),
    Recipe("notebook_images.py", says=("preinstalled: torch==", "recommended: ")),
)
WORKERS = Recipe(
    "cached_data.py",
    ("--steps", "3", "--epochs", "3", "--workers", "2"),
    ends="proved: no loss of 9 steps",
    warnings=("error::FutureWarning",),  # from Python 3.12 on os.fork() warns
)
SCRIPTS = [recipe.script for recipe in RECIPES]
FEW = ("--steps", "2", "--epochs", "3")
SHORT = ("--steps", "20", "--maximum", "128")
MASKED = "src_key_padding_mask=~real"
MISTAKES = (
    Mistake(
        "cached_data.py",
        "what was augmented is cached",
        (
            ('if self.cache == "augmented" and', 'if self.cache != "no" and'),
            ('if self.cache == "augmented" else', 'if self.cache != "no" else'),
        ),
        FEW,
    ),
    Mistake(
        "cached_data.py",
        "augmentation does not know the epoch",
        (("int(self.epoch) * len(self) + index", "index"),),
        FEW,
    ),
    Mistake(
        "cached_data.py",
        "augmentation writes into the cache",
        ((").float() / 255  # a new tensor", ").sub_(x).float() / 255"),),
        FEW,
    ),
    Mistake(
        "cached_data.py",
        "a cached sample belongs to another",
        (("return self.kept[index]\n", "return self.kept[index // 2]\n"),),
        FEW,
    ),
    Mistake(
        "sequence_length.py",
        "padding is attended to",
        ((f", {MASKED}", ""),),
        SHORT,
    ),
    Mistake(
        "sequence_length.py",
        "padding counts in the mean",
        (("real.sum(1, keepdim=True))", "real.shape[1])"),),
        SHORT,
    ),
    Mistake(
        "sequence_length.py",
        "cut at the mean length",
        (("return sorted(lengths)[needed - 1]", "return sum(lengths) // needed"),),
        SHORT,
    ),
    Mistake(
        "smaller_model.py",
        "the teacher knows nothing",
        (("teacher, train(teacher, many, asked.steps)", "teacher, train(teacher, many, 1)"),),
        ("--steps", "300"),
    ),
    Mistake(
        "smaller_model.py",
        "the teacher is not listened to",
        (("WEIGHT = 2.0, 0.9", "WEIGHT = 2.0, 0.0"),),
        ("--steps", "300"),
    ),
    Mistake(
        "smaller_model.py",
        "the probabilities are no logarithms",
        (("functional.log_softmax(student", "functional.softmax(student"),),
        ("--steps", "300"),
    ),
    Mistake(
        "notebook_images.py",
        "torch is installed in any case",
        (("return [PINS, REST]  # nothing", 'return ["cudadoctor fix", PINS, REST]  #'),),
    ),
    Mistake(
        "notebook_images.py",
        "the rest is installed without constraints",
        (('return ["cudadoctor check", PINS, REST]', 'return ["cudadoctor check", REST]'),),
    ),
    Mistake(
        "notebook_images.py",
        "Kaggle is taken for Colab",
        (("in PLACES:", "in reversed(PLACES):"),),
    ),
    Mistake(
        "notebook_images.py",
        "the moments are not in the checkpoint",
        (('        optimizer.load_state_dict(saved["optimizer"])', "        pass"),),
    ),
    Mistake(
        "notebook_images.py",
        "the random numbers begin again",
        (('        torch.set_rng_state(saved["random"])', "        pass"),),
    ),
)
PLACES: tuple[tuple[dict[str, str], str], ...] = (
    ({}, "unknown image"),
    ({"COLAB_RELEASE_TAG": "release-colab"}, "Google Colab /content/drive/MyDrive (after"),
    (
        {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release-colab"},
        "Kaggle /kaggle/working (with Persistence on, or after Save Version)",
    ),
)
SITUATIONS = (
    ((True, True, True), "python -m pip list"),
    ((True, False, False), "Kaggle: select a GPU"),
    ((True, True, False), "cudadoctor check"),
    ((False, True, False), "cudadoctor fix"),
    ((False, False, False), "python -m pip list"),
)


ANSWERS = f"""
import json
from notebook_images import place_of, steps_for
from sequence_length import covering as c
names = ("cuda_build", "gpu", "works")
print(json.dumps({{
    "lengths": [c(range(1, 101), 0.95), c(range(1, 101), 0.99), c([7], 0.5), c([1, 9], 0.51)],
    "places": [place_of(variables) for variables, _ in {PLACES}],
    "steps": [steps_for("Kaggle", **dict(zip(names, has)))[0] for has, _ in {SITUATIONS}],
}}))
"""


@pytest.fixture(scope="module")
def answers(python_cpu: str) -> dict[str, list[Any]]:
    """What functions of the recipes say; one child, since importing torch is slow."""
    answer: dict[str, list[Any]] = json.loads(answered(python_cpu, ANSWERS))
    return answer


@pytest.fixture(scope="module")
def held(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Ran]:
    """What each recipe says as it is."""
    return ran_as_they_are(python_cpu, tmp_path_factory.mktemp("recipes"), (*RECIPES, WORKERS))


@pytest.fixture(scope="module")
def seen(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What each script says with its mistake."""
    return ran_with(python_cpu, tmp_path_factory.mktemp("mistakes"), MISTAKES)


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


def test_workers_that_stay_fill_one_cache_and_augment_every_epoch_anew(
    held: dict[Recipe, Ran],
) -> None:
    assert_ends(held[WORKERS], WORKERS)


def test_the_covering_length_is_the_shortest_that_covers(answers: dict[str, list[Any]]) -> None:
    assert answers["lengths"] == [95, 99, 7, 9]


def test_an_image_is_known_by_its_variables(answers: dict[str, list[Any]]) -> None:
    for place, (_, wanted) in zip(answers["places"], PLACES, strict=True):
        assert " ".join(place).startswith(wanted)


def test_torch_is_kept_where_another_would_not_help(answers: dict[str, list[Any]]) -> None:
    for step, (_, wanted) in zip(answers["steps"], SITUATIONS, strict=True):
        assert step.startswith(wanted)

"""Recipes about data and models: cached, cut, smaller; and in images that others made."""

from __future__ import annotations

import pytest
from train_fixtures import (
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    answered,
    assert_ends,
    assert_seen,
    breaches,
    help_of,
    ran_as_they_are,
    ran_with,
)

RECIPES = (
    Recipe("cached_data.py", says=("256 decoded here", "1280 decoded here")),
    Recipe("sequence_length.py", says=("95 % have at most 63 tokens, 99 % at most 94",)),
    Recipe("smaller_model.py", says=("student alone", "student taught")),
    Recipe("notebook_images.py", says=("preinstalled: torch==", "would do: ")),
)
WORKERS = Recipe(
    "cached_data.py",
    ("--steps", "3", "--epochs", "3", "--workers", "2"),
    ends="proved: no loss of 9 steps",
    warnings=("error::FutureWarning",),  # from Python 3.12 on os.fork() warns
)
SCRIPTS = [recipe.script for recipe in RECIPES]
FEW = ("--steps", "2", "--epochs", "3")
SHORT = ("--steps", "30", "--maximum", "160")
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
    ({}, "no image that is known here"),
    ({"COLAB_RELEASE_TAG": "release-colab"}, "Google Colab /content/drive/MyDrive (after"),
    (
        {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release-colab"},
        "Kaggle /kaggle/working (with Persistence or Save Version)",
    ),
)
SITUATIONS = (
    ((True, True, True), "python -m pip list"),
    ((True, False, False), "Kaggle: choose an accelerator"),
    ((True, True, False), "cudadoctor check"),
    ((False, True, False), "cudadoctor fix"),
    ((False, False, False), "python -m pip list"),
)


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


def test_every_recipe_says_its_options(python_cpu: str) -> None:
    for script, (code, text) in help_of(python_cpu, SCRIPTS).items():
        assert code == 0, script
        assert "--device" in text, script
        assert "--steps" in text, script


def test_workers_that_stay_fill_one_cache_and_augment_every_epoch_anew(
    held: dict[Recipe, Ran],
) -> None:
    assert_ends(held[WORKERS], WORKERS)


def test_the_covering_length_is_the_shortest_that_covers(python_cpu: str) -> None:
    asked = (
        "from sequence_length import covering as c;"
        "print(c(range(1, 101), 0.95), c(range(1, 101), 0.99), c([7], 0.5), c([1, 9], 0.51))"
    )
    assert answered(python_cpu, asked) == "95 99 7 9"


def test_an_image_is_known_by_its_variables(python_cpu: str) -> None:
    asked = f"import notebook_images as n; [print(*n.place_of(v)) for v, _ in {PLACES}]"
    lines = answered(python_cpu, asked).splitlines()
    for line, (_, place) in zip(lines, PLACES, strict=True):
        assert line.startswith(place)


def test_torch_is_kept_where_another_would_not_help(python_cpu: str) -> None:
    asked = (
        "import notebook_images as n;"
        "names = ('cuda_build', 'gpu', 'works');"
        "told = [n.steps_for('Kaggle', **dict(zip(names, has)))[0] for has, _ in"
        f" {SITUATIONS}]; print(*told, sep='\\n')"
    )
    for line, (_, first) in zip(answered(python_cpu, asked).splitlines(), SITUATIONS, strict=True):
        assert line.startswith(first)

"""Recipes about data and models: cached, cut, smaller; and in images that others made."""

from __future__ import annotations

import subprocess

import pytest
from train_fixtures import (
    LIMIT_S,
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    assert_holds,
    assert_seen,
    breaches,
    help_of,
    ran,
    ran_with,
)

RECIPES = (
    Recipe("cached_data.py", says=("256 images decoded", "1280 images decoded")),
    Recipe("sequence_length.py", says=("95 % have at most 63 tokens, 99 % at most 94",)),
    Recipe("smaller_model.py", says=("student alone", "student taught")),
    Recipe("notebook_images.py", says=("preinstalled: torch==", "would do: ")),
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
        ("--steps", "600"),
    ),
    Mistake(
        "smaller_model.py",
        "the teacher is not listened to",
        (("WEIGHT = 2.0, 0.9", "WEIGHT = 2.0, 0.0"),),
        ("--steps", "600"),
    ),
    Mistake(
        "smaller_model.py",
        "the probabilities are no logarithms",
        (("functional.log_softmax(student", "functional.softmax(student"),),
        ("--steps", "600"),
    ),
    Mistake(
        "notebook_images.py",
        "torch is installed in any case",
        (
            (
                "        return [PINS, REST]  # nothing",
                '        return ["python -m pip install torch", PINS, REST]  #',
            ),
        ),
    ),
    Mistake(
        "notebook_images.py",
        "the rest is installed without constraints",
        (('return ["cudadoctor check", PINS, REST]', 'return ["cudadoctor check", REST]'),),
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
    ({"COLAB_RELEASE_TAG": "release-colab"}, "Google Colab, what stays: /content/drive/MyDrive"),
    ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "Kaggle, what stays: /kaggle/working"),
)


@pytest.fixture(scope="module")
def seen(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What each script says with its mistake."""
    return ran_with(python_cpu, tmp_path_factory.mktemp("mistakes"), MISTAKES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.script))
def test_a_recipe_proves_its_claim_on_a_cpu(python_cpu: str, recipe: Recipe) -> None:
    assert_holds(python_cpu, recipe)


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


def test_workers_that_stay_fill_one_cache_and_augment_every_epoch_anew(python_cpu: str) -> None:
    options = ("--steps", "3", "--epochs", "3", "--workers", "2")
    result = ran(python_cpu, TRAIN / "cached_data.py", options)
    assert result.code == 0, f"{result.lines}\n{result.errors}"
    assert result.last.startswith("proved: no loss of 9 steps"), result.lines


def answered(python: str, question: str) -> str:
    """What a recipe, imported as a module, says to an expression."""
    child = subprocess.run(
        [python, "-B", "-c", question],
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return child.stdout.strip()


def test_the_covering_length_is_the_shortest_that_covers(python_cpu: str) -> None:
    asked = (
        "from sequence_length import covering as c;"
        "print(c(range(1, 101), 0.95), c(range(1, 101), 0.99), c([7], 0.5), c([1, 9], 0.51))"
    )
    assert answered(python_cpu, asked) == "95 99 7 9"


@pytest.mark.parametrize(("variables", "place"), PLACES, ids=lambda one: str(one)[:24])
def test_an_image_is_known_by_its_variables(
    python_cpu: str, variables: dict[str, str], place: str
) -> None:
    result = ran(python_cpu, TRAIN / "notebook_images.py", variables=variables)
    assert result.lines[0].startswith(place), result.lines


@pytest.mark.parametrize(
    ("situation", "first"),
    [
        ("'Kaggle', '2.9.0', True, True, True", "python -m pip freeze"),
        ("'Kaggle', '2.9.0', True, False, False", "Kaggle: choose an accelerator"),
        ("'Kaggle', '2.9.0', True, True, False", "cudadoctor check"),
        ("'Kaggle', '2.9.0', False, True, False", "cudadoctor fix"),
        ("'Kaggle', '2.9.0', False, False, False", "python -m pip freeze"),
        ("'Kaggle', None, False, True, False", "python -m pip install torch"),
    ],
)
def test_torch_is_kept_where_another_would_not_help(
    python_cpu: str, situation: str, first: str
) -> None:
    asked = f"import notebook_images as n; print(n.steps_for(n.Situation({situation}))[0])"
    assert answered(python_cpu, asked).startswith(first)

"""Recipes with Accelerate, pytorch-accelerated, DeepSpeed: proved where they are, else skipped.

CUDADOCTOR_TEST_FRAMEWORKS names a Python with the last two; Accelerate is beside a CUDA build.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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

ABSENT = (
    Recipe("with_accelerate.py", ends="skipped: accelerate is not installed"),
    Recipe("with_pytorch_accelerated.py", ends="skipped: pytorch-accelerated is not installed"),
    Recipe("with_deepspeed.py", ends="skipped: the config was written", says=('"stage": 1',)),
)
SCRIPTS = [recipe.script for recipe in ABSENT]
PRESENT = (
    Recipe("with_pytorch_accelerated.py"),
    Recipe("with_deepspeed.py", ("--stage", "3"), warnings=()),  # deepspeed warns of itself
    Recipe("with_deepspeed.py", ("--stage", "2", "--offload"), warnings=()),
)
FEW = ("--steps", "2")
MISTAKES = (
    Mistake(
        "with_accelerate.py",
        "backward of the loss itself",
        (("accelerator.backward(loss)  #", "loss.backward()  #"),),
        FEW,
    ),
    Mistake(
        "with_accelerate.py",
        "a step for every part",
        (("with accelerator.accumulate(model):", "if True:"),),
        FEW,
    ),
    Mistake(
        "with_accelerate.py",
        "the file says something else than was decided",
        (("ClusterConfig(**config)", "ClusterConfig(**{**config, 'mixed_precision': 'bf16'})"),),
        FEW,
    ),
)


@pytest.fixture(scope="module")
def with_accelerate(python_cu130: str) -> str:
    """The CUDA build's Python, where Accelerate is beside it."""
    argv = [python_cu130, "-c", "import accelerate"]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip(f"{python_cu130} has no accelerate")
    return python_cu130


def framework(name: str) -> str:
    """A Python with a framework, or the test is skipped."""
    python = os.environ.get("CUDADOCTOR_TEST_FRAMEWORKS", "")
    if not python or not Path(python).exists():
        pytest.skip(
            "CUDADOCTOR_TEST_FRAMEWORKS names no Python with pytorch-accelerated, deepspeed"
        )
    child = subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False)
    if child.returncode:
        pytest.skip(f"{python} has no {name}")
    return python


@pytest.mark.parametrize("recipe", ABSENT, ids=lambda recipe: str(recipe.script))
def test_without_its_library_a_recipe_is_skipped(python_cpu: str, recipe: Recipe) -> None:
    assert_holds(python_cpu, recipe)


def test_accelerate_has_the_losses_of_the_loop_by_hand(
    with_accelerate: str, tmp_path: Path
) -> None:
    file = tmp_path / "accelerate.yaml"
    says = (
        "accelerate launch --config_file",
        "matches the config file",
        "'mixed_precision': 'no'",
    )
    recipe = Recipe("with_accelerate.py", ("--config", str(file)), says=says)
    assert_holds(with_accelerate, recipe, {"HF_HOME": str(tmp_path)})
    assert "use_cpu: true" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", PRESENT, ids=lambda recipe: str(recipe.script))
def test_a_framework_has_the_losses_of_the_loop_by_hand(recipe: Recipe) -> None:
    name = recipe.script.removeprefix("with_").removesuffix(".py")
    assert_holds(framework(name), recipe)


@pytest.fixture(scope="module")
def seen(with_accelerate: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Mistake, Ran]:
    """What the script says with each mistake: started by its file where that is what is wrong."""
    *by_hand, of_the_file = MISTAKES
    folders = [tmp_path_factory.mktemp("mistakes") for _ in range(2)]
    found = ran_with(with_accelerate, folders[0], [of_the_file])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ACCELERATE_MIXED_PRECISION", "no")  # as accelerate launch does
        patched.setenv("ACCELERATE_USE_CPU", "true")
        return found | ran_with(with_accelerate, folders[1], by_hand)


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


def test_the_config_of_accelerate_is_of_the_oldest_gpu(python_cpu: str) -> None:
    gpus = "[(), [(6, 1)], [(7, 5)], [(8, 0), (7, 5)], [(9, 0), (8, 0)]]"
    asked = f"import json, with_accelerate as w; print(json.dumps([*map(w.config_for, {gpus})]))"
    found = json.loads(answered(python_cpu, asked))
    assert [config["mixed_precision"] for config in found] == ["no", "no", "fp16", "fp16", "bf16"]
    assert [config["num_processes"] for config in found] == [1, 1, 1, 2, 2]
    assert [config["distributed_type"] for config in found] == ["NO"] * 3 + ["MULTI_GPU"] * 2
    assert [config["use_cpu"] for config in found] == [True, False, False, False, False]


def test_the_config_of_deepspeed_is_a_product_of_its_parts(python_cpu: str) -> None:
    capabilities = [(0, 0), (6, 1), (7, 0), (7, 5), (8, 0), (12, 0)]
    asked = (
        "import itertools, json, with_deepspeed as w; found = []\n"
        f"for world, capability in itertools.product((1, 2, 8), {capabilities}):\n"
        "    found.append([world, capability, w.config_for(world, capability, 2, world > 1)])\n"
        "print(json.dumps(found))"
    )
    found = json.loads(answered(python_cpu, asked))
    assert len(found) == 18
    for world, capability, config in found:
        micro, parts = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
        assert config["train_batch_size"] == config[micro] * config[parts] * world
        assert config["zero_optimization"]["stage"] == 2
        assert ("offload_optimizer" in config["zero_optimization"]) == (world > 1)
        assert config["bf16"]["enabled"] == (capability >= [8, 0])
        assert config["fp16"]["enabled"] == ([7, 0] <= capability < [8, 0])


def test_deepspeed_that_cannot_be_imported_is_named(python_cpu: str, tmp_path: Path) -> None:
    text = "class MissingCUDAException(Exception): ...\nraise MissingCUDAException('CUDA_HOME')"
    (tmp_path / "deepspeed.py").write_text(text, encoding="utf-8")
    file = tmp_path / "zero.json"
    options = ("--stage", "3", "--config", str(file), "--local_rank=0")  # as its launcher adds it
    variables = {"PYTHONPATH": str(tmp_path)}
    result = ran(python_cpu, TRAIN / "with_deepspeed.py", options, variables=variables)
    assert result.code == 0, result.errors
    assert result.last.startswith("skipped: ") and result.last.endswith(" imported: CUDA_HOME")
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["zero_optimization"] == {"stage": 3}

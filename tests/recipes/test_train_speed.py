"""Recipes about time: the same loss as the plain training, and seen where not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from train_fixtures import (
    LIMIT_S,
    STRICT,
    TRAIN,
    Mistake,
    Ran,
    Recipe,
    answered,
    assert_ends,
    assert_says_its_options,
    assert_seen,
    breaches,
    ran,
    ran_as_they_are,
    ran_with,
    with_mistake,
)

# torch's own compiler and, from Python 3.12 on, os.fork() warn of themselves.
RECIPES = (
    Recipe(
        "torch_compile.py",
        says=("1 graph for one shape, 2 for two, 1 with dynamic=True",),
        warnings=("error::FutureWarning",),
    ),
    Recipe("cuda_graphs.py", ends="skipped: "),
    Recipe("channels_last.py", says=("9 of 9 layers",)),
    Recipe("fused_optimizers.py", says=("AdamW fused", "SGD foreach")),
    Recipe("dataloader.py", says=("0 workers", "2 workers"), warnings=("error::FutureWarning",)),
    Recipe("prefetch.py", says=("skipped: the copy stream, ", "100 of 100 batches")),
)
SCRIPTS = [recipe.script for recipe in RECIPES]
COMPILES_NOTHING = ("--backend", "aot_eager", "--steps", "20")
FEW = ("--steps", "10")
LAST_BATCH = """        ahead = started
    if ahead is not None:
        yield arrived(*ahead)
"""
CONVERTED = """    model = model.to(memory_format=torch.channels_last)
    return model, [(x.to(memory_format=torch.channels_last), y) for x, y in batches]"""
ORDERED = "{'forward': lambda _, x: x.contiguous()}"
SHARED = "shuffle=True, generator=torch.Generator().manual_seed(0)"
MISTAKES = (
    Mistake(
        "torch_compile.py",
        "the forward pass asks for a number",
        (("self.head(x + ", "self.head(x * float(x.sum().item() < 1e9) + "),),
        COMPILES_NOTHING,
    ),
    Mistake(
        "channels_last.py", "nothing is converted", ((CONVERTED, "    return model, batches"),), FEW
    ),
    Mistake(
        "channels_last.py",
        "a layer in the middle knows the other order only",
        (
            (
                "torch.nn.BatchNorm2d(leaving),",
                f"type('Old', (torch.nn.Module,), {ORDERED})(),",
            ),
        ),
        FEW,
    ),
    Mistake(
        "fused_optimizers.py",
        "another weight decay",
        (('"fused": {"fused": True}', '"fused": {"fused": True, "weight_decay": 0.1}'),),
    ),
    Mistake(
        "dataloader.py", "another order", (("        sampler=order,\n", "shuffle=True,"),), FEW
    ),
    Mistake(
        "dataloader.py",
        "workers that stay draw the second order from the generator of their seeds",
        (
            ("DataLoader(data, batch, sampler=order)", f"DataLoader(data, batch, {SHARED})"),
            ("        sampler=order,\n", f"{SHARED},"),
        ),
        FEW,
    ),
    Mistake(
        "dataloader.py",
        "augmentation by the worker's generator",
        ((", generator=torch.Generator().manual_seed(index)", ""),),
        FEW,
    ),
    Mistake(
        "prefetch.py", "the last batch is forgotten", ((LAST_BATCH, "        ahead = started\n"),)
    ),
    Mistake(
        "prefetch.py",
        "a batch comes twice",
        (("        ahead = started\n", "        ahead = ahead or started\n"),),
    ),
)
RECORDED = Path(__file__).with_name("recorded_step.py")
KEPT_GRADIENTS = ("optimizer.zero_grad()  #", "optimizer.zero_grad(set_to_none=False)  #")
GRAPH_MISTAKES = (
    KEPT_GRADIENTS,
    ("x.copy_(new_x, non_blocking=True)", "x.clone()"),
    ("y.copy_(new_y, non_blocking=True)", "y.clone()"),
    ("    rewind(model, optimizer, before)\n", ""),
    ("            tensor.zero_()\n", "            pass\n"),
    ("        now.copy_(then)\n", "        pass\n"),
)


@pytest.fixture(scope="module")
def held(python_cpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Ran]:
    """What each recipe says as it is."""
    return ran_as_they_are(python_cpu, tmp_path_factory.mktemp("recipes"), RECIPES)


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


def test_a_cuda_build_without_a_driver_takes_the_cpu(python_cu130: str, tmp_path: Path) -> None:
    some = [recipe for recipe in RECIPES if recipe.warnings == STRICT]
    results = ran_as_they_are(python_cu130, tmp_path, some)
    for recipe in some:
        assert_ends(results[recipe], recipe)


def test_without_a_compiler_the_reason_is_said(python_cpu: str, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "CXX": "g++-that-is-not-there"}
    result = ran(python_cpu, TRAIN / "torch_compile.py", variables=nothing)
    assert result.code == 0
    assert result.last.startswith("skipped: torch.compile needs a compiler, but none of"), (
        result.lines
    )


@pytest.fixture(scope="module")
def recorded(
    python_cpu: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str] | None, list[list[float]]]:
    """The losses of a plain training, of a recorded step and of a recorded model, on a stand-in.

    By the mistake in the script, None without one.
    """
    folders = [tmp_path_factory.mktemp("graphs") for _ in GRAPH_MISTAKES]
    copies = [
        with_mistake(folder, Mistake("cuda_graphs.py", "", (change,)))
        for folder, change in zip(folders, GRAPH_MISTAKES, strict=True)
    ]
    child = subprocess.run(
        [python_cpu, str(RECORDED), str(TRAIN / "cuda_graphs.py"), *map(str, copies)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return dict(zip((None, *GRAPH_MISTAKES), json.loads(child.stdout), strict=True))


ON_A_GPU = """
import os, sys, torch, torch_compile
torch.cuda.get_device_capability = lambda: (6, 1)
print(torch_compile.missing_compiler("cuda"))
torch.cuda.get_device_capability = lambda: (7, 0)
print(torch_compile.missing_compiler("cuda"))
sys.path.append(sys.argv[1])
print(torch_compile.missing_compiler("cuda"))
os.environ["CC"] = sys.executable
print(torch_compile.missing_compiler("cuda"))
"""


def test_on_a_gpu_triton_is_needed_and_a_new_gpu_and_a_c_compiler(
    python_cpu: str, tmp_path: Path
) -> None:
    (tmp_path / "triton.py").touch()
    child = subprocess.run(
        [python_cpu, "-B", "-c", ON_A_GPU, str(tmp_path)],
        cwd=TRAIN,
        env={**os.environ, "PATH": str(tmp_path), "CC": "no-gcc"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert child.stdout.splitlines() == [
        "torch.compile needs a GPU with compute capability 7.0 or higher",
        "torch.compile needs Triton (on Windows: pip install triton-windows)",
        "torch.compile needs a compiler, but none of these is on PATH: no-gcc, clang, cl",
        "None",
    ]


def test_a_recorded_step_trains_as_the_plain_one(recorded: Any) -> None:
    plain, step, model = recorded[None]
    assert len(plain) == 13
    assert step == pytest.approx(plain, abs=1e-5)
    assert model == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("change", GRAPH_MISTAKES, ids=lambda change: str(change[0]).strip())
def test_a_recording_that_is_wrong_trains_otherwise(recorded: Any, change: tuple[str, str]) -> None:
    plain, step, model = recorded[change]
    wrong, right = (model, step) if change == KEPT_GRADIENTS else (step, model)
    assert wrong != pytest.approx(plain, abs=1e-5)
    assert right == pytest.approx(plain, abs=1e-5)


START = 'if __name__ == "__main__":  # spawned workers import this file but must not train'
SPAWN = '    torch.multiprocessing.set_start_method("spawn", force=True)\n'


def test_workers_may_be_spawned_as_on_windows(python_cpu: str, tmp_path: Path) -> None:
    copy = with_mistake(tmp_path, Mistake("dataloader.py", "", ((START, f"{START}\n{SPAWN}"),)))
    result = ran(python_cpu, copy, FEW)
    assert result.last.startswith("proved: "), f"{result.lines}\n{result.errors}"


def test_unguarded_spawned_workers_say_what_the_recipe_quotes(
    python_cpu: str, tmp_path: Path
) -> None:
    copy = with_mistake(tmp_path, Mistake("dataloader.py", "", ((START, f"if True:\n{SPAWN}"),)))
    result = ran(python_cpu, copy, ("--steps", "2", "--workers", "1"))
    assert result.code != 0
    assert "An attempt has been made to start a new process before the" in result.errors


def test_shared_memory_is_too_small_where_the_ready_batches_do_not_fit(python_cpu: str) -> None:
    asked = (
        "from dataloader import too_small;"
        "free = ((None, 8), (1 << 20, 0), (3 * 1024, 1), (3 * 1024 - 1, 1));"
        "print([bool(too_small(left, 1024, workers)) for left, workers in free])"
    )
    assert answered(python_cpu, asked) == "[False, False, False, True]"

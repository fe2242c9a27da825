"""What single recipes decide or start beside their proof."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from recipe_runs import LIMIT_S, QUIET, TRAIN, answered, ran

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
GPUS = [(), [(6, 1)], [(7, 5)], [(8, 0), (7, 5)], [(9, 0), (8, 0)]]
CAPABILITIES = [(0, 0), (6, 1), (7, 0), (7, 5), (8, 0), (12, 0)]
ANSWERS = f"""
import itertools, json
from dataloader import too_small
from notebook_images import place_of, steps_for
from sequence_length import covering as c
import with_accelerate, with_deepspeed
names = ("cuda_build", "gpu", "works")
free = ((None, 8), (1 << 20, 0), (3 * 1024, 1), (3 * 1024 - 1, 1))
print(json.dumps({{
    "lengths": [c(range(1, 101), 0.95), c(range(1, 101), 0.99), c([7], 0.5), c([1, 9], 0.51)],
    "places": [place_of(variables) for variables, _ in {PLACES}],
    "steps": [steps_for("Kaggle", **dict(zip(names, has)))[0] for has, _ in {SITUATIONS}],
    "too small": [bool(too_small(left, 1024, workers)) for left, workers in free],
    "accelerate": [*map(with_accelerate.config_for, {GPUS})],
    "deepspeed": [
        [world, capability, with_deepspeed.config_for(world, capability, 2, world > 1, 64, 4)]
        for world, capability in itertools.product((1, 2, 8), {CAPABILITIES})
    ],
}}))
"""
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


@pytest.fixture(scope="module")
def answers(python_cpu: str) -> dict[str, Any]:
    """What functions of the recipes say; one child, since importing torch is slow."""
    answer: dict[str, Any] = json.loads(answered(python_cpu, ANSWERS))
    return answer


def test_the_covering_length_is_the_shortest_that_covers(answers: dict[str, Any]) -> None:
    assert answers["lengths"] == [95, 99, 7, 9]


def test_an_image_is_known_by_its_variables(answers: dict[str, Any]) -> None:
    for place, (_, wanted) in zip(answers["places"], PLACES, strict=True):
        assert " ".join(place).startswith(wanted)


def test_torch_is_kept_if_another_would_not_help(answers: dict[str, Any]) -> None:
    for step, (_, wanted) in zip(answers["steps"], SITUATIONS, strict=True):
        assert step.startswith(wanted)


def test_shared_memory_is_too_small_if_the_ready_batches_do_not_fit(
    answers: dict[str, Any],
) -> None:
    assert answers["too small"] == [False, False, False, True]


def test_the_config_of_accelerate_is_that_of_the_oldest_gpu(answers: dict[str, Any]) -> None:
    found = answers["accelerate"]
    assert [config["mixed_precision"] for config in found] == ["no", "no", "fp16", "fp16", "bf16"]
    assert [config["num_processes"] for config in found] == [1, 1, 1, 2, 2]
    assert [config["distributed_type"] for config in found] == ["NO"] * 3 + ["MULTI_GPU"] * 2
    assert [config["use_cpu"] for config in found] == [True, False, False, False, False]


def test_the_config_of_deepspeed_is_a_product_of_its_parts(answers: dict[str, Any]) -> None:
    assert len(answers["deepspeed"]) == 18
    for world, capability, config in answers["deepspeed"]:
        micro, parts = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
        assert config["train_batch_size"] == config[micro] * config[parts] * world
        assert config["zero_optimization"]["stage"] == 2
        assert ("offload_optimizer" in config["zero_optimization"]) == (world > 1)
        assert config["bf16"]["enabled"] == (capability >= [8, 0])
        assert config["fp16"]["enabled"] == ([7, 0] <= capability < [8, 0])


def test_deepspeed_that_cannot_be_imported_is_named(python_cpu: str, tmp_path: Path) -> None:
    text = "class MissingCUDAException(Exception): ...\nraise MissingCUDAException('CUDA_HOME')"
    (tmp_path / "deepspeed.py").write_text(text, encoding="utf-8")
    options = ("--stage", "3", "--local_rank=0")  # as its launcher adds it
    result = ran(python_cpu, "with_deepspeed", options, {"PYTHONPATH": str(tmp_path)})
    assert result.code == 0, result.errors
    assert result.last.startswith("skipped: ") and result.last.endswith(" imported: CUDA_HOME")
    assert '"zero_optimization": {"stage": 3}' in result.lines[0]


def test_accelerate_launches_the_script_by_its_config(python_cu130: str, tmp_path: Path) -> None:
    argv = [python_cu130, "-c", "import accelerate"]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip(f"{python_cu130} has no accelerate")
    result = ran(python_cu130, "with_accelerate", ("--small",), {"HF_HOME": str(tmp_path)})
    assert (result.code, result.verdict) == (0, "proved"), (result.lines, result.errors)
    assert result.lines[0].startswith("accelerate launch --config_file ")


def test_torchrun_starts_a_recipe_for_several_processes(python_cpu: str) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    for _ in range(2):
        child = subprocess.run(
            [python_cpu, "-B", *words, str(TRAIN / "ddp.py"), "--small"],
            env={**os.environ, **QUIET},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        # On a machine under load, gloo's threads may outlive their owner: torch's fault at the end.
        if "terminate called without an active exception" not in child.stderr:
            break
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("proved: ") == 1
    assert "3 processes with 16 samples each" in child.stdout


def test_without_a_compiler_the_reason_is_said(python_cpu: str, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "CXX": "g++-that-is-not-there"}
    result = ran(python_cpu, "torch_compile", variables=nothing)
    assert result.code == 0
    wanted = "skipped: torch.compile needs a compiler, but none of"
    assert result.last.startswith(wanted), result.lines


def test_on_a_gpu_torch_compile_needs_triton_a_new_gpu_and_a_c_compiler(
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


def test_a_device_that_is_not_there_is_wrong_usage(python_cpu: str) -> None:
    result = ran(python_cpu, "amp_bf16", ("--device", "cuda"))
    assert result.code == 2
    assert "invalid choice: 'cuda'" in result.errors

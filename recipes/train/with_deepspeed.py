"""DeepSpeed ZeRO: optimiser state, gradients and weights divided among the GPUs, by a config file.

What it does: stage 1 divides the optimiser's moments, 2 also the gradients, 3 also the weights;
offload puts them into main memory. This chooses the config, checks it and trains with it.

When it helps: the model does not fit by DDP, and the code is built on DeepSpeed.

When it hurts: small models; slow links, at stage 3. FSDP2 does most of it without a compiler.

How to see it: `ds_report` says which operators can be built; the losses below.

What goes wrong, and the way out:
- "Installed CUDA version 13.0 does not match the version torch was compiled with": fused optimisers
  and offload are compiled here. nvcc must have torch.version.cuda's major.minor; within 11 and 12
  another minor is taken. Install that toolkit, set CUDA_HOME. DS_SKIP_CUDA_CHECK=1 only hides it.
- "CUDA_HOME does not exist": torch's wheels bring no nvcc. Take an optimiser of torch, as below.
- "Check batch related parameters. train_batch_size is not equal to": compute it, as below.
- Nothing is learned: engine.backward(loss) and engine.step() for every micro-batch, no zero_grad.
- The first start takes minutes: it compiles. Several GPUs: deepspeed with_deepspeed.py
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

TOLERANCE = {"cpu": 1e-4, "cuda": 0.02}  # of the first loss; on a GPU it may be in bf16
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step


def config_for(gpus: int, capability: tuple[int, int], *, fits: bool) -> dict[str, Any]:
    """A ZeRO config. fits: the whole model, with gradients, fits into one GPU."""
    return {
        "train_batch_size": BATCH * max(1, gpus),
        "train_micro_batch_size_per_gpu": BATCH // PARTS,
        "gradient_accumulation_steps": PARTS,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1 if fits else 3},
        "bf16": {"enabled": capability >= (8, 0)},
        "fp16": {"enabled": (7, 0) <= capability < (8, 0)},
        "zero_allow_untested_optimizer": True,  # torch's own AdamW: nothing to compile
    }


def wrong_with(config: dict[str, Any], world: int) -> list[str]:
    """What DeepSpeed would refuse, before it starts."""
    micro, parts = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    found = ["the batch is no product"] * (config["train_batch_size"] != micro * parts * world)
    both = config["bf16"]["enabled"] and config["fp16"]["enabled"]
    return found + ["bf16 and fp16 are both on"] * both


def can_build(nvcc: str, torch_cuda: str | None) -> tuple[bool, str]:
    """Whether DeepSpeed may compile CUDA code, from the text of `nvcc --version`; and why."""
    if torch_cuda is None:
        return False, "this torch was built without CUDA"
    release = re.search(r"release (\d+)\.(\d+)", nvcc)
    own, wanted = release.groups() if release else ("no",), tuple(torch_cuda.split(".")[:2])
    fits = own == wanted or own[0] == wanted[0] in ("11", "12")
    return fits, f"nvcc {'.'.join(own)} {'fits' if fits else 'is not for'} CUDA {torch_cuda}"


def parts(device: str) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 99), torch.nn.Linear(99, 10)).to(device)
    x = torch.randn(BATCH, 64, device=device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), x, x[:, :10].argmax(1)


def train(steps: int, device: str, config: dict[str, Any] | None) -> list[float]:
    """By hand with the whole batch, or by DeepSpeed in its parts; the mean loss of every step."""
    model, optimizer, x, y = parts(device)
    engine, losses, clock = None, list[float](), list[float]()
    if config is not None:
        import deepspeed

        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        x = x.to(next(engine.module.parameters()).dtype)
    count = PARTS if engine else 1
    for _ in range(steps):
        clock.append(time.perf_counter())
        for some_x, some_y in zip(x.chunk(count), y.chunk(count), strict=True):
            scores = (engine or model)(some_x)
            loss = torch.nn.functional.cross_entropy(scores.float(), some_y)
            losses.append(loss.item())
            if engine:
                engine.backward(loss)  # divides it by PARTS
                engine.step()  # a step of the optimiser, and zero_grad, after the last part
                continue
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[len(clock) // 4 :]))
    name = f"{'DeepSpeed' if engine else 'by hand'} loss {losses[-1]:.4f}"
    print(f"{name}, {statistics.median(ms):.2f} ms a step ({ms[0]:.2f} to {ms[-1]:.2f})")
    return [statistics.mean(losses[i : i + count]) for i in range(0, len(losses), count)]


def compare(device: str, steps: int, config: dict[str, Any]) -> int:
    os.environ.setdefault("DS_ACCELERATOR", device)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for name, value in {**alone, "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)  # started without its launcher
    plain, ours = (torch.tensor(train(steps, device, chosen)) for chosen in (None, config))
    off, limit = float((ours - plain).abs().max() / plain[0]), TOLERANCE[device]
    held = off <= limit and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: {PARTS} micro-batches by DeepSpeed have the losses"
        f" of the whole batch by hand within {off:.1e} of the first (tolerance {limit:.0e})"
    )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args(argv)
    capability = torch.cuda.get_device_capability() if asked.device == "cuda" else (0, 0)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    print(json.dumps(config := config_for(world, capability, fits=True)))
    nvcc = [shutil.which("nvcc") or sys.executable, "--version"]
    said = subprocess.run(nvcc, capture_output=True, text=True, check=False).stdout
    print(can_build(said, torch.version.cuda)[1])
    if problems := wrong_with(config, world):
        print(f"not proved: the config is refused: {'; '.join(problems)}")
        return 1
    if importlib.util.find_spec("deepspeed") is None:
        print("skipped: the config was checked; to train, pip install deepspeed")
        return 0
    return compare(asked.device, asked.steps, config)


if __name__ == "__main__":
    raise SystemExit(main())

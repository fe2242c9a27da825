"""DeepSpeed ZeRO: shard optimizer state, gradients and weights across GPUs with a config file.

What it does: ZeRO stage 1 shards the optimizer state, stage 2 also shards the gradients, and stage
3 also shards the weights; offloading moves the optimizer state to main memory. This script writes a
config file from its command-line options and trains with it. On several GPUs, run `deepspeed
with_deepspeed.py --stage 2`.

When it helps: the model does not fit on the GPU with DDP, and your code already uses DeepSpeed. Use
the lowest stage at which the model fits, and offload only if it does not fit at any stage.

When it hurts: small models do not benefit from DeepSpeed, and stage 3 performs poorly over slow
links. FSDP2 can do most of what DeepSpeed does, and it needs no compiler.

How to check: run `ds_report`, which shows the operators that can be built and the CUDA versions of
nvcc and torch.

Troubleshooting:
- "Installed CUDA version 13.0 does not match the version torch was compiled with": DeepSpeed
  compiles its fused optimizers on your machine, and nvcc must have the same major.minor version as
  torch.version.cuda (for CUDA 11 and CUDA 12, the same major version is enough). Install that CUDA
  toolkit and set CUDA_HOME. DS_SKIP_CUDA_CHECK=1 only hides the problem.
- "CUDA_HOME does not exist, unable to compile CUDA op(s)": pip raises this error when it installs
  deepspeed, even though nothing is compiled yet; some versions also raise it when you import
  deepspeed. Install a CUDA toolkit, because torch's wheels do not contain nvcc.
- DeepSpeed uses a different device than the one you chose: set the environment variable
  DS_ACCELERATOR before you import deepspeed.
- "unrecognized arguments: --local_rank=0": the deepspeed launcher adds this option. Accept it in
  your argument parser, as this script does.
- "Check batch related parameters. train_batch_size is not equal to": train_batch_size must be the
  micro-batch size times the accumulation steps times the number of GPUs. Compute the value in your
  code, as this script does.
- The model does not learn with DeepSpeed: call engine.backward(loss) and engine.step() for every
  micro-batch, and do not call zero_grad().
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

TOLERANCE = {"cpu": 1e-4, "cuda": 0.02}  # relative to the first loss; a GPU may use bf16
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # what the launcher would set
ALONE |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def train_by_deepspeed(library: Any, steps: int, device: str, config: Path) -> Iterator[float]:
    """DeepSpeed with micro-batches; yields the mean loss of every step."""
    model, optimizer, x, y = parts(device)
    engine, *_ = library.initialize(model=model, optimizer=optimizer, config=str(config))
    x = x.to(next(engine.module.parameters()).dtype)
    for _ in range(steps):
        losses: list[float] = []
        for some_x, some_y in zip(x.chunk(PARTS), y.chunk(PARTS), strict=True):
            loss = torch.nn.functional.cross_entropy(engine(some_x).float(), some_y)
            engine.backward(loss)  # divides it by PARTS
            engine.step()  # after the last part, an optimizer step and zero_grad
            losses.append(loss.item())
        yield statistics.mean(losses)


def train_plain(steps: int, device: str) -> Iterator[float]:
    """A hand-written loop over whole batches; yields the loss of every step."""
    model, optimizer, x, y = parts(device)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def parts(device: str) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """Model, optimizer and one batch: the same in every process, to compare with one alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 99), torch.nn.Linear(99, 10)).to(device)
    x = torch.randn(BATCH, 64, device=device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), x, x[:, :10].argmax(1)


def config_for(gpus: int, capability: tuple[int, int], stage: int, offload: bool) -> dict[str, Any]:
    moments = {"offload_optimizer": {"device": "cpu"}} if offload else {}
    return {
        "train_batch_size": BATCH * gpus,
        "train_micro_batch_size_per_gpu": BATCH // PARTS,
        "gradient_accumulation_steps": PARTS,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **moments},
        "zero_force_ds_cpu_optimizer": False,  # offload with torch's AdamW: nothing to compile
        "bf16": {"enabled": capability >= (8, 0)},
        "fp16": {"enabled": (7, 0) <= capability < (8, 0)},
    }


def measured(name: str, steps: Iterator[float]) -> torch.Tensor:
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss)
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[len(clock) // 4 :]))
    if os.environ["RANK"] == "0":
        line = f"{name:<9} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
        print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--config", type=Path, help="config file to write (default: in /tmp)")
    parser.add_argument("--local_rank", help="added by the deepspeed launcher")
    asked = parser.parse_args(argv)
    for name, value in {**ALONE, "DS_ACCELERATOR": asked.device}.items():
        os.environ.setdefault(name, value)
    capability = (0, 0)
    if asked.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        capability = torch.cuda.get_device_capability()
    config = config_for(int(os.environ["WORLD_SIZE"]), capability, asked.stage, asked.offload)
    path = asked.config or Path(tempfile.mkdtemp()) / "deepspeed.json"
    path.with_suffix(f".{os.getpid()}").write_text(json.dumps(config), encoding="utf-8")
    path.with_suffix(f".{os.getpid()}").replace(path)  # atomic, even if other processes write it
    print(f"{path}: {json.dumps(config)}")
    try:
        import deepspeed
    except Exception as why:  # MissingCUDAException (no nvcc) is not an ImportError
        print(f"skipped: the config was written, but deepspeed cannot be imported: {why}")
        return 0
    plain = measured("by hand", train_plain(asked.steps, asked.device))
    steps = train_by_deepspeed(deepspeed, asked.steps, asked.device, path)
    ours = measured("DeepSpeed", steps)
    torch.distributed.destroy_process_group()
    off, limit = float((ours - plain).abs().max() / plain[0]), TOLERANCE[asked.device]
    held = off <= limit and bool(plain[-1] < plain[0])
    if os.environ["RANK"] == "0":
        print(
            f"{'proved' if held else 'not proved'}: {PARTS} micro-batches with DeepSpeed match the"
            f" whole batch by hand: losses within {off:.1e}, relative to the first"
            f" (tolerance {limit:.0e})"
        )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

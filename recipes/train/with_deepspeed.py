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

import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from proof import Proof, apart, main, skip

# --- Copy from here ------------------------------------------------------------------------------


def train_by_deepspeed(deepspeed: Any, made: Any, batches: Any, config: Path) -> Iterator[float]:
    """DeepSpeed with micro-batches; yields the loss of every micro-batch.

    made: a model and its optimizer. config: a JSON file like the one that config_for() returns.
    """
    model, optimizer = made
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=str(config))
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)  # divides it by gradient_accumulation_steps
        engine.step()  # after the last micro-batch, an optimizer step and zero_grad
        yield loss.item()


def config_for(
    gpus: int, capability: tuple[int, int], stage: int, offload: bool, batch: int, parts: int
) -> dict[str, Any]:
    moments = {"offload_optimizer": {"device": "cpu"}} if offload else {}
    return {
        "train_batch_size": batch * gpus,
        "train_micro_batch_size_per_gpu": batch // parts,
        "gradient_accumulation_steps": parts,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **moments},
        # Offload with torch's AdamW. DeepSpeed's own compiles itself into ~/.cache/torch_extensions
        # at the first run and needs nvcc and a C++ compiler for that.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": capability >= (8, 0)},
        "fp16": {"enabled": (7, 0) <= capability < (8, 0)},
    }


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-4, "cuda": 0.02}  # relative to the first loss; a GPU may use bf16
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # what the launcher would set
ALONE |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def train_plain(steps: int, device: str) -> Iterator[float]:
    """A hand-written loop over whole batches; yields the loss of every step."""
    (model, optimizer), x, y = parts(device)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def parts(device: str) -> tuple[Any, Any, torch.Tensor]:
    """Model, optimizer and one batch: the same in every process, to compare with one alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 99), torch.nn.Linear(99, 10)).to(device)
    x = torch.randn(BATCH, 64, device=device)
    return (model, torch.optim.AdamW(model.parameters(), lr=3e-3)), x, x[:, :10].argmax(1)


def by_step(losses: Iterator[float]) -> Iterator[float]:
    """The mean over the micro-batches of each step."""
    some: list[float] = []
    for loss in losses:
        some.append(loss)
        if len(some) == PARTS:
            yield statistics.mean(some)
            some.clear()


def prove(proof: Proof) -> None:
    for name, value in {**ALONE, "DS_ACCELERATOR": proof.device}.items():
        os.environ.setdefault(name, value)
    capability = (0, 0)
    if proof.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        capability = torch.cuda.get_device_capability()
    world = int(os.environ["WORLD_SIZE"])
    config = config_for(world, capability, proof.stage, bool(proof.offload), BATCH, PARTS)
    path = Path(tempfile.mkdtemp()) / "deepspeed.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    print(f"{path}: {json.dumps(config)}")
    try:
        import deepspeed
    except Exception as why:  # MissingCUDAException (no nvcc) is not an ImportError
        skip(f"the config was written, but deepspeed cannot be imported: {why}")
    plain = proof.train("by hand", train_plain(proof.steps, proof.device))
    made, x, y = parts(proof.device)
    dtype = torch.bfloat16 if config["bf16"]["enabled"] else torch.float32
    dtype = torch.float16 if config["fp16"]["enabled"] else dtype
    chunks = list(zip(x.to(dtype).chunk(PARTS), y.chunk(PARTS), strict=True)) * proof.steps
    updates: list[int] = []
    made[1].register_step_post_hook(lambda *_: updates.append(1))
    if proof.off:
        ours = proof.train("by hand again", train_plain(proof.steps, proof.device))
    else:
        run = train_by_deepspeed(deepspeed, made, chunks, path)
        ours = proof.train("DeepSpeed", by_step(run))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if os.environ["RANK"] != "0":
        raise SystemExit(0)
    off, limit = apart(ours, plain), TOLERANCE[proof.device]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"{PARTS} micro-batches match the whole batch by hand: losses within {off:.1e}, relative to"
        f" the first (tolerance {limit:.0e})",
    )
    proof.active(
        len(updates) == proof.steps,
        f"DeepSpeed made {len(updates)} updates of {len(chunks)} micro-batches",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(20, 10), stage=1, offload=0)

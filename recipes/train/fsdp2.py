"""FSDP2: the model itself is divided among the processes.

What it does: fully_shard() gives each process a part of every weight, gradient and moment. A
block's weights are gathered before it computes and let go after it.
Started as
    python fsdp2.py                                      # itself, with two processes on a CPU
    torchrun --standalone --nproc-per-node=gpu fsdp2.py  # all GPUs of one machine
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=job1 --rdzv-backend=c10d \\
        --rdzv-endpoint=first-host:29500 fsdp2.py        # on each of two machines

When it helps: weights, gradients and moments (16 bytes a weight with Adam) do not fit into one GPU.

When it hurts: the model fits: DDP sends less. Slow links, small blocks.

How to see it: the weights that each process holds, below; torch.cuda.max_memory_allocated().

What goes wrong, and the way out:
- "cannot import name 'fully_shard'": it is in torch.distributed.fsdp since 2.6. FSDP1, the class
  FullyShardedDataParallel, is another API.
- Memory is not saved: without fully_shard(block) for each block all is gathered at once.
- "got mixed torch.Tensor and DTensor": the model was called by model.forward(x), not by model(x).
- Nothing is learned: the optimiser was made before fully_shard(), and holds the old weights.
- The parts do not fit together: every process had other weights before. Seed all alike.
- Saving hangs, or saves DTensors: all processes call get_model_state_dict(), as below.
- bf16 loses small updates: the model was cast. MixedPrecisionPolicy casts for the arithmetic only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # before 2.6
    fully_shard = None

TOLERANCE, TOLERANCE_BF16 = 1e-3, 0.1  # of the first loss: sums in another order; fewer digits
BATCH, WIDTH = 64, 64


def network(device: str) -> Any:
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(3)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 10)).to(device)


def sharded(model: Any, mesh: Any, dtype: torch.dtype | None) -> Any:
    """Each block by itself, so that only one is whole at a time; then the rest. In place."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy) or model


def train(model: Any, rank: int, world: int, steps: int, device: str) -> torch.Tensor:
    """Train on this process's part of every batch; the mean loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after the sharding
    losses, clock = list[torch.Tensor](), [time.perf_counter()]
    for step in range(steps):
        whole = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step % 8))
        x = whole.chunk(world)[rank]
        scores, y = model(x.to(device)).float(), x[:, :10].argmax(1).to(device)
        loss = torch.nn.functional.cross_entropy(scores, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the whole gradient
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if world > 1:
            dist.all_reduce(losses[-1])  # only to report it
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[4:]))  # the first warm up
    mean = torch.stack(losses).cpu() / world
    if dist.get_rank() == 0:
        line = f"{type(model).__name__:<12} loss {mean[-1]:.4f}, {statistics.median(ms):.2f} ms"
        print(f"{line} a step ({ms[0]:.2f} to {ms[-1]:.2f})")
    return mean


def compare(kind: str, steps: int) -> int:
    """In each process: train alone and whole, then together with a part of the model."""
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(kind, (world,))
    whole = network(kind)
    alone = train(whole, 0, 1, steps, kind)
    model = sharded(network(kind), mesh, None)
    together = train(model, rank, world, steps, kind)
    own = sum(weights.to_local().numel() for weights in model.parameters())
    every = sum(weights.numel() for weights in whole.parameters())
    in_bf16 = train(sharded(network(kind), mesh, torch.bfloat16), rank, world, steps, kind)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_model_state_dict(model, options=options)  # by all processes
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()
    if rank:
        return 0
    off, off_bf16 = (float((run - alone).abs().max() / alone[0]) for run in (together, in_bf16))
    kept = whole.state_dict()
    apart = max(float((saved[name] - kept[name].cpu()).abs().max()) for name in kept)
    held = off <= TOLERANCE and off_bf16 <= TOLERANCE_BF16 and apart <= 0.01
    held = held and own < 0.6 * every and bool(alone[-1] < alone[0])
    print(
        f"{'proved' if held else 'not proved'}: {world} processes, this one with {own} of {every}"
        f" weights, have the losses of one within {off:.1e} of the first ({TOLERANCE:.0e} allowed),"
        f" in bf16 {off_bf16:.1e} ({TOLERANCE_BF16}), and at the end its weights within {apart:.0e}"
    )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args(argv)
    if fully_shard is None:
        print(f"skipped: torch {torch.__version__} has no torch.distributed.fsdp.fully_shard")
        return 0
    if "RANK" in os.environ:  # started by torchrun
        return compare(asked.device, asked.steps)
    count = torch.cuda.device_count() if asked.device == "cuda" else 2
    if count < 2:
        print("skipped: one GPU shares with nobody; --device cpu shows it with two processes")
        return 0
    start = ["--standalone", f"--nproc-per-node={count}", __file__]
    with contextlib.suppress(ChildFailedError):
        torchrun([*start, "--device", asked.device, "--steps", str(asked.steps)])
        return 0
    return 1


if __name__ == "__main__":
    raise SystemExit(main())

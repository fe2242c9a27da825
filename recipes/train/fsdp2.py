"""FSDP2: shard the model itself across processes.

What it does: fully_shard() gives each process a shard of every weight, gradient and optimizer
state. The weights of a block are gathered before the block runs and released when the block is
done. To train on several machines, see ddp.py. On one machine, start the script with one of these
commands:
    python fsdp2.py                       # on all GPUs, or with two processes on a CPU
    torchrun --standalone --nproc-per-node=gpu fsdp2.py  # on all GPUs of one machine

When it helps: weights, gradients and optimizer state (16 bytes per weight with Adam) do not fit on
one GPU.

When it hurts: if the model fits on one GPU, use DDP, which sends less data between GPUs than FSDP2.
FSDP2 performs poorly over slow links and with small blocks.

How to check: this script prints the share of the weights that one process stores. On a GPU, also
compare torch.cuda.max_memory_allocated() with and without sharding.

Troubleshooting:
- "cannot import name 'fully_shard'": torch.distributed.fsdp provides fully_shard only in torch 2.6
  and newer.
- FSDP2 saves no memory: all weights are gathered at once, because fully_shard() was called only on
  the whole model. Call fully_shard() on each block first, then on the model.
- "got mixed torch.Tensor and DTensor": call model(x), not model.forward(x).
- The model does not learn with FSDP2: the optimizer was created before fully_shard() and still
  refers to the old weights. Create the optimizer after fully_shard().
- With FSDP2, the shards of a model do not match: the processes started from different weights. Use
  the same random seed in all processes.
- Saving an FSDP2 checkpoint hangs: all processes must call get_model_state_dict(), not only rank 0.
- To resume FSDP2 training from a checkpoint, use torch.distributed.checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun
from torch.nn import Module

TOLERANCE, TOLERANCE_LOW = 1e-3, 0.1  # relative to the first loss: in fp32, in bf16 or fp16
EACH, WIDTH = 16, 64  # the batch of one process


def sharded(model: Module, mesh: dist.DeviceMesh, dtype: torch.dtype | None) -> Module:
    """Shard each block separately, so that only one is gathered at a time; then the rest."""
    policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model:
        fsdp.fully_shard(block, mesh=mesh, mp_policy=policy)
    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def train(model: Module, batches: list[torch.Tensor]) -> torch.Tensor:
    """Train; returns the loss of every step, averaged over all processes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # only after sharding
    losses, clock = list[float](), [time.perf_counter()]
    for x in batches:
        loss = torch.nn.functional.cross_entropy(model(x).float(), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())  # only to report it
        losses.append(mean.item())  # waits for the device
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[4:]))  # without the warm-up
    if dist.get_rank() == 0:
        line = f"{type(model).__name__:<14} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms"
        print(f"{line} per step ({ms[0]:.2f} to {ms[-1]:.2f})")
    return torch.tensor(losses)


def network(device: str) -> Module:
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(3)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 10)).to(device)


def unfit(device: str, world: int) -> str:
    """Why this system cannot run the comparison; empty if it can."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    shard = torch.zeros(1, device=device)
    with contextlib.suppress(RuntimeError):  # some Gloo versions fail, some sum instead
        scatter(shard, shard.new_ones(world), dist.ReduceOp.AVG)
    wrong = "" if shard.item() == 1 else f"Gloo in torch {torch.__version__} cannot average"
    return wrong if world > 1 else "FSDP2 needs at least two processes; try --device cpu"


def compare(kind: str, epochs: int) -> int:
    """Each process trains the whole model alone, then all train it together, sharded."""
    own, low = None, torch.bfloat16
    if kind == "cuda":
        own = torch.device(kind, int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        old = torch.cuda.get_device_capability() < (7, 0)  # may not support bf16
        low = torch.float16 if old else low
    dist.init_process_group("nccl" if own else "gloo", device_id=own)
    rank, world = dist.get_rank(), dist.get_world_size()
    if why := unfit(kind, world):
        dist.destroy_process_group()
        print(f"skipped: {why}")
        return 0
    mesh, whole = dist.init_device_mesh(kind, (world,)), network(kind)
    batches = [torch.randn(EACH * world, WIDTH).to(kind) for _ in range(8)] * epochs
    parts = [x[EACH * rank : EACH * (rank + 1)] for x in batches]
    alone = train(whole, batches)
    model = sharded(network(kind), mesh, None)
    together = train(model, parts)
    in_low = train(sharded(network(kind), mesh, low), parts)
    mine = sum(weights.to_local().numel() for weights in model.parameters())
    every = sum(weights.numel() for weights in whole.parameters())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_model_state_dict(model, options=options)  # all call it; rank 0 gets the result
    dist.barrier()  # no process may exit while another still needs it
    dist.destroy_process_group()
    if rank:
        return 0
    off, off_low = (float((run - alone).abs().max() / alone[0]) for run in (together, in_low))
    apart = max(float((saved[n] - w.cpu()).abs().max()) for n, w in whole.state_dict().items())
    close = off <= TOLERANCE and off_low <= TOLERANCE_LOW and apart <= 0.01
    held = close and mine < 0.6 * every and bool(alone[-1] < alone[0])
    print(
        f"{'proved' if held else 'not proved'}: {world} processes, this one with {mine} of {every}"
        f" weights, match one process: relative to the first loss, losses are within {off:.1e}"
        f" (tolerance {TOLERANCE:.0e}), in {low} within {off_low:.1e} (tolerance {TOLERANCE_LOW});"
        f" final weights are within {apart:.0e}"
    )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=5, help="epochs (8 steps each)")
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")  # TF32 would exceed the tolerance
    if not hasattr(fsdp, "fully_shard"):
        print(f"skipped: torch {torch.__version__} has no torch.distributed.fsdp.fully_shard")
        return 0
    if "RANK" in os.environ:  # started by torchrun
        return compare(asked.device, asked.steps)
    start = ["--standalone", f"--nproc-per-node={'gpu' if asked.device == 'cuda' else 2}", __file__]
    with contextlib.suppress(ChildFailedError):
        torchrun([*start, "--device", asked.device, "--steps", str(asked.steps)])
        return 0
    return 1


if __name__ == "__main__":
    raise SystemExit(main())

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

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from proof import Proof, apart, in_processes, main, skip
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn import Module

# --- Copy from here ------------------------------------------------------------------------------


def sharded(model: Module, mesh: Any, dtype: torch.dtype | None) -> Module:
    """Shard each block separately, so that only one is gathered at a time; then the rest.

    mesh: dist.init_device_mesh("cuda", (world_size,)). dtype: of the computation, or None.
    """
    policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model:
        fsdp.fully_shard(block, mesh=mesh, mp_policy=policy)
    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def whole_state(model: Module) -> Any:
    """A checkpoint of the whole model; all processes call it, and rank 0 gets the result."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE, TOLERANCE_LOW = 1e-3, 0.1  # relative to the first loss: in fp32, in bf16 or fp16
EACH, WIDTH = 16, 64  # the batch of one process


def train(model: Module, batches: list[torch.Tensor]) -> list[float]:
    """Train; returns the loss of every step, averaged over all processes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # only after sharding
    losses: list[float] = []
    for x in batches:
        loss = torch.nn.functional.cross_entropy(model(x).float(), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())  # only to report it
        losses.append(mean.item())
    return losses


def network(device: str) -> Module:
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(3)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 10)).to(device)


def averages(device: str, world: int) -> bool:
    """Whether this backend can reduce-scatter an average: some Gloo versions fail, some sum."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    shard = torch.zeros(1, device=device)
    with contextlib.suppress(RuntimeError):
        scatter(shard, shard.new_ones(world), dist.ReduceOp.AVG)
    return bool(shard.item() == 1)


def work(rank: int, world: int, device: str, epochs: int, off: bool) -> Any:
    """Each process trains the whole model alone, then all train it together, sharded."""
    torch.set_float32_matmul_precision("highest")  # TF32 would exceed the tolerance
    low = torch.bfloat16
    if device == "cuda" and torch.cuda.get_device_capability() < (7, 0):
        low = torch.float16  # may not support bf16
    if not averages(device, world):
        return None
    mesh, whole = dist.init_device_mesh(device, (world,)), network(device)
    torch.manual_seed(1)
    batches = [torch.randn(EACH * world, WIDTH).to(device) for _ in range(8)] * epochs
    parts = [x[EACH * rank : EACH * (rank + 1)] for x in batches]
    alone = train(whole, batches)
    model = network(device) if off else sharded(network(device), mesh, None)
    together = train(model, parts)
    in_low = together if off else train(sharded(network(device), mesh, low), parts)
    local = [getattr(w, "to_local", lambda w=w: w)() for w in model.parameters()]
    mine, every = (sum(w.numel() for w in some) for some in (local, whole.parameters()))
    saved = whole_state(model)
    apart_by = 0.0
    if not rank:
        state = whole.state_dict().items()
        apart_by = max(float((saved[name] - w.cpu()).abs().max()) for name, w in state)
    return alone, together, in_low, mine, every, apart_by, str(low)


def prove(proof: Proof) -> None:
    if not hasattr(fsdp, "fully_shard"):
        skip(f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard")
    ranks = in_processes(work, proof.device, proof.device, proof.epochs, proof.off)
    if ranks[0] is None:
        skip(f"Gloo in torch {torch.__version__} cannot average gradients")
    alone, together, in_low, _, every, checkpoint, low = ranks[0]
    print(f"loss alone {alone[-1]:.4f}, sharded {together[-1]:.4f}, in {low} {in_low[-1]:.4f}")
    off, off_low = apart(together, alone), apart(in_low, alone)
    proof.same(
        off <= TOLERANCE and off_low <= TOLERANCE_LOW and checkpoint <= 0.01,
        f"losses within {off:.1e} of one process (tolerance {TOLERANCE:.0e}), in {low} within"
        f" {off_low:.1e}; weights of the checkpoint within {checkpoint:.0e}",
    )
    held = [rank[3] for rank in ranks]
    proof.active(
        sum(held) == every and max(held) < 0.6 * every,
        f"each of {len(ranks)} processes holds {max(held)} or fewer of the {every} weights",
    )


if __name__ == "__main__":
    main(__doc__, prove, epochs=(5, 2))

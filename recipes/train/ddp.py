"""DistributedDataParallel (DDP): one process per GPU, each training on part of every batch.

What it does: under DDP, every process has a full copy of the model and processes its part of the
batch. While backward() is still computing, DDP averages the gradients across processes, so all
copies of the model stay identical. Start the script with one of these commands:
    python ddp.py                       # on all GPUs, or with two processes on a CPU
    torchrun --standalone --nproc-per-node=gpu ddp.py  # on all GPUs of one machine
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=job1 --rdzv-backend=c10d \\
        --rdzv-endpoint=first-host:29500 ddp.py        # on each of two machines

When it helps: the model fits on one GPU, and you have several GPUs. DataParallel is slower than
DDP, because DataParallel drives all GPUs from a single Python process, copies the model in every
step and gathers all results on the first GPU.

When it hurts: with small models or slow links, synchronizing gradients can take longer than the
extra GPUs save. A larger total batch size also needs a different learning rate. NCCL is not
available on Windows.

How to check: compare the losses of a single process with the losses under DDP, as this script does;
they should match. To see what NCCL does, set NCCL_DEBUG=INFO. In a profile, all_reduce should
overlap with the backward pass.

Troubleshooting:
- All DDP processes use GPU 0: call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before you
  create the model.
- Under DDP, samples come in the same order in every epoch: call sampler.set_epoch(epoch) at the
  start of each epoch.
- Every DDP process trains on all of the data: pass a DistributedSampler to the DataLoader.
- Under DDP, evaluation counts some samples twice: DistributedSampler pads the data so that every
  process gets the same number of samples.
- Under DDP, BatchNorm computes its statistics from only one process's part of the batch: use
  torch.nn.SyncBatchNorm.
- "Expected to have finished reduction in the prior iteration": some parameters received no
  gradient. If this is intended, pass find_unused_parameters=True to DistributedDataParallel.
- "Watchdog caught collective operation timeout": the code under `if rank == 0:` contains an
  operation that all processes must run. Move that operation out of the `if` block.
- "environment variable RANK expected, but not set": start the script with torchrun.
- Training on several machines hangs at the start: set NCCL_SOCKET_IFNAME to the name of the network
  interface that NCCL should use.
- "use_libuv was requested but PyTorch was build without libuv support": on Windows, set the
  environment variable USE_LIBUV=0.
- Under DDP, each process computes the loss of its own part of the batch: before you print the loss,
  average it across processes with all_reduce.
- To save a checkpoint of a DDP model, save model.module instead of the DDP wrapper, and only on
  rank 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from proof import Proof, apart, in_processes, main
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# --- Copy from here ------------------------------------------------------------------------------


def distributed(model: torch.nn.Module) -> torch.nn.Module:
    """Average the gradients of all processes in backward(); the model is already on its GPU."""
    return DistributedDataParallel(model)


def own_batches(data: Any, batch: int, epochs: int) -> Iterator[Any]:
    """This process's part of the data, in a new order in every epoch."""
    sampler = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # the same order in all processes
        yield from loader


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss; summation order differs
EACH, STEPS_AN_EPOCH, WIDTH = 16, 8, 64  # the batch of one process


def labeled(world: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(EACH * world * STEPS_AN_EPOCH, WIDTH, generator=draw)
    return TensorDataset(x, x[:, :10].argmax(1))


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 99), torch.nn.Linear(99, 10)).to(device)


def train(model: Any, batches: Iterable[Any], device: str) -> Iterator[torch.Tensor]:
    """Train; yields this process's loss of every step. Gradients stay until the next step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()  # with DDP, also averages the gradients of all processes
        optimizer.step()
        yield loss.detach()


def whole_batches(world: int, epochs: int) -> Iterator[Any]:
    """What a single process would see: the same random order, in whole batches."""
    data = labeled(world)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        yield from (data[chosen] for chosen in order.split(EACH * world))


def work(rank: int, world: int, device: str, epochs: int, off: bool) -> Any:
    """Train with whole batches as if alone, then with parts of them together."""
    torch.set_float32_matmul_precision("highest")  # TF32 would exceed the tolerance
    alone = [float(loss) for loss in train(network(device), whole_batches(world, epochs), device)]
    model = network(device) if off else distributed(network(device))
    seen: list[torch.Tensor] = []

    def noted() -> Iterator[Any]:
        for x, y in own_batches(labeled(world), EACH, epochs):
            seen.append(x)
            yield x, y

    together = [float(loss) for loss in train(model, noted(), device)]
    gradients = [weight.grad.flatten().tolist()[:50] for weight in model.parameters()]
    return alone, together, gradients, [float(x.sum()) for x in seen]


def prove(proof: Proof) -> None:
    ranks = in_processes(work, proof.device, proof.device, proof.epochs, proof.off)
    world, (alone, together, gradients, seen) = len(ranks), ranks[0]
    mean = [sum(losses) / world for losses in zip(*(rank[1] for rank in ranks), strict=True)]
    print(f"loss of one process {alone[-1]:.4f}, of {world} together {mean[-1]:.4f}")
    off, limit = apart(mean, alone), TOLERANCE[proof.device]
    proof.same(
        off <= limit and alone[-1] < alone[0],
        f"{world} processes with {EACH} samples each match one with {EACH * world}: losses within"
        f" {off:.1e}, relative to the first (tolerance {limit:.0e})",
    )
    equal = sum(rank[2] == gradients for rank in ranks)
    others = sum(rank[3] == seen for rank in ranks)
    proof.active(
        equal == world and others == 1,
        f"{equal} of {world} processes have the same gradients,"
        f" {'all from different samples' if others == 1 else f'{others} from the same samples'}",
    )
    proof.purpose(
        len(together) == len(alone),
        f"each process computed {len(together) * EACH} samples instead of"
        f" {len(alone) * EACH * world}",
    )


if __name__ == "__main__":
    main(__doc__, prove, epochs=(4, 2))

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

import argparse
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss; summation order differs
EACH, STEPS_AN_EPOCH, WIDTH = 16, 8, 64  # the batch of one process


def labeled(world: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(EACH * world * STEPS_AN_EPOCH, WIDTH, generator=draw)
    return TensorDataset(x, x[:, :10].argmax(1))


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 99), torch.nn.Linear(99, 10)).to(device)


def train(model: Any, batches: Any, device: str) -> Iterator[torch.Tensor]:
    """Train; yields this process's loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()  # with DDP, also averages the gradients of all processes
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def own_batches(world: int, epochs: int) -> Iterator[Any]:
    """This process's part of every batch."""
    data = labeled(world)
    sampler = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, EACH, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # a new order in each epoch, the same in all processes
        yield from loader


def whole_batches(world: int, epochs: int) -> Iterator[Any]:
    """What a single process would see: the same random order, in whole batches."""
    data = labeled(world)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        yield from (data[chosen] for chosen in order.split(EACH * world))


def measured(name: str, steps: Iterator[torch.Tensor]) -> list[float]:
    """The loss of every step, averaged over all processes; rank 0 prints the time per step."""
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        dist.all_reduce(loss)  # only to report it
        losses.append(loss.item() / dist.get_world_size())  # item() waits for the device
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[4:]))  # without the warm-up
    if dist.get_rank() == 0:
        line = f"{name:<8} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
        print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")
    return losses


def compare(kind: str, epochs: int) -> int:
    """Each process trains alone with whole batches, then all train together with parts."""
    own = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else None
    if own:
        torch.cuda.set_device(own)  # before anything else touches a GPU
    dist.init_process_group("nccl" if own else "gloo", device_id=own)
    world, rank = dist.get_world_size(), dist.get_rank()
    alone = measured("alone", train(network(kind), whole_batches(world, epochs), kind))
    model = DistributedDataParallel(network(kind))
    together = measured("together", train(model, own_batches(world, epochs), kind))
    dist.barrier()  # no process may exit while another still needs it
    dist.destroy_process_group()
    off = max(abs(a - b) for a, b in zip(alone, together, strict=False)) / alone[0]
    held = len(together) == len(alone) and off <= TOLERANCE[kind] and alone[-1] < alone[0]
    if rank == 0:
        print(
            f"{'proved' if held else 'not proved'}: {world} processes with {EACH} samples each"
            f" match one process with {EACH * world}: losses within {off:.1e}, relative to the"
            f" first (tolerance {TOLERANCE[kind]:.0e}), {len(together)} of {len(alone)} steps"
        )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=4, help="epochs (8 steps each)")
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")  # TF32 would exceed the tolerance
    if "RANK" in os.environ:  # started by torchrun
        return compare(asked.device, asked.steps)
    count = torch.cuda.device_count() if asked.device == "cuda" else 2
    if count < 2:
        print("skipped: DDP needs at least two GPUs; to try it on the CPU, use --device cpu")
        return 0
    start = ["--standalone", f"--nproc-per-node={count}", __file__]
    with contextlib.suppress(ChildFailedError):
        torchrun([*start, "--device", asked.device, "--steps", str(asked.steps)])
        return 0
    return 1


if __name__ == "__main__":
    raise SystemExit(main())

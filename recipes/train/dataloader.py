"""DataLoader tuning: workers, pinned memory, persistent workers, prefetch_factor.

What it does: worker processes prepare samples while the model trains. Pinned memory lets copies to
the GPU overlap with computation. Persistent workers stay alive between epochs, and prefetch_factor
sets how many batches each worker prepares in advance. The sampler still determines the order of the
samples.

When it helps: preparing a batch takes longer than training on it, because of decoding, augmentation
or a large number of files.

When it hurts: if the data is already in memory, sending it from worker processes to the main
process takes more time than the workers save. Each worker needs memory and takes time to start. If
there are more workers than CPU cores, the workers slow each other down, and also slow down a model
that trains on the CPU.

How to check: measure what share of the total time is spent waiting for batches. If this share is
near zero, the DataLoader does not need tuning.

Troubleshooting:
- "Cannot re-initialize CUDA in forked subprocess": the Dataset uses CUDA in a worker process. Load
  data on the CPU, and copy batches to the GPU in the training loop.
- "An attempt has been made to start a new process before the current process has finished its
  bootstrapping phase": DataLoader workers import your script again (on Windows, on macOS, and on
  Linux with Python 3.14 or newer). Put the code that starts training under `if __name__ ==
  "__main__":`.
- "Can't pickle <function <lambda>": a lambda cannot be sent to a worker process (on Windows, on
  macOS, and on Linux with Python 3.14 or newer). Replace it with a named function.
- "DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's
  workers are out of shared memory", "unable to write to file </torch_...>": /dev/shm is too small
  (64 MB by default in Docker and Kubernetes). In Docker, use docker run --shm-size=8g or
  --ipc=host. In Kubernetes, mount an emptyDir with medium: Memory at /dev/shm. You can also use
  fewer workers.
- "killed by signal: Killed", "[WinError 1455] The paging file is too small": the machine is out of
  memory. Use fewer DataLoader workers.
- "Too many open files": raise the open-file limit with ulimit -n, or call
  torch.multiprocessing.set_sharing_strategy("file_system").
- With persistent_workers=True, the second epoch uses a different sample order than without
  persistent workers: the loader draws worker seeds from its generator only once instead of in every
  epoch. Give the sampler its own generator.
- Random augmentation gives different results if you change the number of DataLoader workers: each
  worker has its own random number generator. Use a separate seed for each sample.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from proof import Proof, main, skip
from torch.utils.data import DataLoader, Dataset, RandomSampler

# --- Copy from here ------------------------------------------------------------------------------


def tuned_loader(data: Any, batch: int, workers: int, device: str) -> Any:
    """Persistent worker processes, and pinned memory if batches go to a GPU."""
    # A separate generator: the loader must not draw the workers' seeds from it.
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return DataLoader(
        data,
        batch,
        sampler=order,
        num_workers=workers,
        pin_memory=device == "cuda",  # without a GPU: one extra copy and a warning
        persistent_workers=workers > 0,  # this and prefetch_factor need workers
        prefetch_factor=2 if workers else None,  # batches ready per worker
    )


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same samples and order; only a GPU may round
WIDTH, SLOW_S, SHM = 64, 0.004, Path("/dev/shm")


class Slow(Dataset[tuple[torch.Tensor, int, int]]):  # type: ignore[misc, unused-ignore]
    """Points that take a moment to arrive, as from a disk; each says which process read it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))  # not the worker's
        time.sleep(SLOW_S)
        return x, int(x[: WIDTH // 2].sum() > x[WIDTH // 2 :].sum()), os.getpid()


def plain_loader(data: Slow, batch: int, workers: int, device: str) -> Any:
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return DataLoader(data, batch, sampler=order)


def train(loader: Any, device: str, readers: set[int]) -> Iterator[torch.Tensor]:
    """Train two epochs; yields the loss of every step and notes which processes read."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for x, y, pids in loader:
            readers.update(pids.tolist())
            scores = model(x.to(device, non_blocking=True))  # returns at once if x is pinned
            loss = torch.nn.functional.cross_entropy(scores, y.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()


def too_small(free_bytes: int | None, batch_bytes: int, workers: int) -> str | None:
    """Why the batches do not fit in /dev/shm; None if they fit or there is no /dev/shm."""
    need = batch_bytes * 3 * workers  # per worker: two ready, one in progress
    if free_bytes is None or need <= free_bytes:
        return None
    return f"/dev/shm has {free_bytes >> 20} MiB free; the workers need {need / 2**20:.0f} MiB"


def prove(proof: Proof) -> None:
    free_bytes = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    if why := too_small(free_bytes, 32 * WIDTH * 4, proof.workers):
        skip(why)
    build = proof.technique(tuned_loader, instead=plain_loader)
    data, runs, seconds, readers = Slow(proof.steps * 32), [], [], []
    for name, make in (("no workers", plain_loader), (f"{proof.workers} workers", build)):
        seen: set[int] = set()
        loader = make(data, 32, proof.workers, proof.device)
        began = time.perf_counter()
        runs.append(proof.train(name, train(loader, proof.device, seen)))
        seconds.append(time.perf_counter() - began)
        readers.append(seen)
    off = max(abs(a - b) for a, b in zip(*runs, strict=True))
    limit = TOLERANCE[proof.device]
    proof.same(
        off <= limit and runs[0][-1] < runs[0][0],
        f"the same samples in the same order: {len(runs[0])} losses differ by at most {off:.1e}",
    )
    proof.active(
        len(readers[1]) == proof.workers and os.getpid() not in readers[1],
        f"over two epochs, {len(readers[1])} processes read the data,"
        f" {'this one' if os.getpid() in readers[1] else 'all of them workers'}",
    )
    proof.purpose(
        seconds[1] < 0.9 * seconds[0],
        f"both epochs took {seconds[1]:.1f} s instead of {seconds[0]:.1f} s: the waits overlap",
    )


if __name__ == "__main__":  # spawned workers import this file but must not train
    main(__doc__, prove, steps=(20, 6), workers=2)

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

import argparse
import itertools
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same samples and order; only a GPU may round
WIDTH, SHM = 512, Path("/dev/shm")


class Augmented(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc, unused-ignore]
    """Noisy points, computed on access, as a real dataset decodes and augments its samples."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))  # not the worker's
        for _ in range(5):  # some work
            x = x + 0.01 * torch.fft.fft(x).real / WIDTH
        return x, int(x[: WIDTH // 2].sum() > x[WIDTH // 2 :].sum())


def plain_loader(data: Augmented, batch: int) -> Any:
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return DataLoader(data, batch, sampler=order)


def tuned_loader(data: Augmented, batch: int, workers: int, device: str) -> Any:
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


def train(loader: Any, device: str) -> Iterator[tuple[torch.Tensor, float]]:
    """Train two epochs; yields the loss of every step and the seconds spent waiting for data."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        asked = time.perf_counter()
        for x, y in loader:
            waited = time.perf_counter() - asked
            scores = model(x.to(device, non_blocking=True))  # returns at once if x is pinned
            loss = torch.nn.functional.cross_entropy(scores, y.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach(), waited
            asked = time.perf_counter()


def too_small(free_bytes: int | None, batch_bytes: int, workers: int) -> str | None:
    """Why the batches do not fit in /dev/shm; None if they fit or there is no /dev/shm."""
    need = batch_bytes * 3 * workers  # per worker: two ready, one in progress
    if free_bytes is None or need <= free_bytes:
        return None
    return f"/dev/shm has {free_bytes >> 20} MiB free; the workers need {need / 2**20:.0f} MiB"


def measured(name: str, steps: Iterator[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    losses, waits = list[float](), list[float]()
    clock = [time.perf_counter()]
    for loss, waited in steps:
        losses.append(loss.item())
        waits.append(waited)
        clock.append(time.perf_counter())
    first = len(losses) // 4  # earlier steps are the warm-up
    ms = sorted(1e3 * (end - start) for start, end in itertools.pairwise(clock[first:]))
    line = f"{name:<10} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    waiting = sum(waits[first:]) / (clock[-1] - clock[first])
    print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f}), {waiting:.0%} of the time waiting for a batch")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=40, help="steps in each of the two epochs")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args(argv)
    data = Augmented(asked.steps * 32)
    free_bytes = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    if why := too_small(free_bytes, 32 * WIDTH * 4, asked.workers):
        print(f"skipped: {why}")
        return 0
    plain = measured("0 workers", train(plain_loader(data, 32), asked.device))
    loader = tuned_loader(data, 32, asked.workers, asked.device)
    tuned = measured(f"{asked.workers} workers", train(loader, asked.device))
    off, limit = float((tuned - plain).abs().max()), TOLERANCE[asked.device]
    held = off <= limit and bool(plain[-1] < plain[0])
    figures = f"{len(plain)} losses differ by at most {off:.1e} (tolerance {limit:.0e})"
    print(f"{'proved' if held else 'not proved'}: same samples, same order: {figures}")
    return 0 if held else 1


if __name__ == "__main__":  # spawned workers import this file but must not train
    raise SystemExit(main())

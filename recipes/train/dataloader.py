"""DataLoader tuning: workers, pinned memory, persistent workers, prefetch_factor.

What it does: workers prepare samples while the model computes. Pinned memory lets copies to the GPU
overlap with computation. Persistent workers survive an epoch; prefetch_factor is the number of
batches that each worker keeps ready. The sampler still decides the order of the samples.

When it helps: preparing a batch takes longer than computing it: decoding, augmentation, many files.

When it hurts: the data is in memory already: sending it between processes costs more. Each worker
costs memory and start-up time. More workers than cores slow each other down, and a CPU model too.

How to see it: the share of time spent waiting for a batch. If it is near zero, change nothing.

Troubleshooting:
- "Cannot re-initialize CUDA in forked subprocess": keep CUDA out of the Dataset; copy in the loop.
- Windows, macOS, Linux from Python 3.14 on: "An attempt has been made to start a new process before
  the current process has finished its bootstrapping phase": workers import your script again. Guard
  it with `if __name__ == "__main__":`. "Can't pickle <function <lambda>": name the function.
- "DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's
  workers are out of shared memory", "unable to write to file </torch_...>": /dev/shm is too small
  (64 MB in Docker and Kubernetes). Use docker run --shm-size=8g or --ipc=host; in Kubernetes, mount
  an emptyDir with medium: Memory on /dev/shm; or use fewer workers.
- "killed by signal: Killed", "WinError 1455" (paging file): out of memory. Use fewer workers.
- "Too many open files": ulimit -n, or torch.multiprocessing.set_sharing_strategy("file_system").
- With persistent_workers the second epoch has a different order: the loader draws worker seeds from
  its generator once instead of in each epoch. Give the sampler its own generator.
- Augmentation depends on the number of workers: each has its own generator. Seed per sample.
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

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same samples in the same order: only a GPU may round
WIDTH, SHM = 512, Path("/dev/shm")


class Augmented(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc, unused-ignore]
    """Noisy points, made when asked for: what decoding and augmenting is in a real data set."""

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
    """Worker processes that stay, and pinned memory where there is a GPU to copy to."""
    # A generator that nobody else draws from: the loader takes its workers' seeds elsewhere.
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    return DataLoader(
        data,
        batch,
        sampler=order,
        num_workers=workers,
        pin_memory=device == "cuda",  # without a GPU it only copies once more, and warns
        persistent_workers=workers > 0,  # this and the next are errors without workers
        prefetch_factor=2 if workers else None,  # ready batches for each worker
    )


def train(loader: Any, device: str) -> Iterator[tuple[torch.Tensor, float]]:
    """Train two epochs; yields the loss of every step and the seconds it waited for the batch."""
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
    """Why the ready batches would not fit into /dev/shm; None where they do, or there is none."""
    need = batch_bytes * 3 * workers  # two ready and one in the making, for each worker
    if free_bytes is None or need <= free_bytes:
        return None
    return f"/dev/shm has {free_bytes >> 20} MiB free, {workers} workers need {need / 2**20:.0f}"


def measured(name: str, steps: Iterator[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    losses, waits = list[float](), list[float]()
    clock = [time.perf_counter()]
    for loss, waited in steps:
        losses.append(loss.item())
        waits.append(waited)
        clock.append(time.perf_counter())
    first = len(losses) // 4  # those before are the warm-up
    ms = sorted(1e3 * (end - start) for start, end in itertools.pairwise(clock[first:]))
    line = f"{name:<10} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    waiting = sum(waits[first:]) / (clock[-1] - clock[first])
    print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f}), {waiting:.0%} of the time waiting for a batch")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=40, help="steps in each of two epochs")
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


if __name__ == "__main__":  # spawned workers import this file, and must not train
    raise SystemExit(main())

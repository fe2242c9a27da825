"""Cache preprocessed data in memory, but augment it again in every epoch.

What it does: deterministic preprocessing (decoding, resizing) runs once per sample, and the result
stays in memory. Random augmentation (flip, crop, noise) is applied to the cached samples, so the
model still sees a different version of each sample in every epoch.

When it helps: decoding takes longer than the training step, and the decoded data fits in memory.

When it hurts: a cache does not help if you train for only one epoch or if the decoded data does not
fit in memory. If memory is short, cache resized images, store the images as uint8, or keep the
cache on disk.

How to check: compare the time per step after the first epoch with and without the cache, and watch
the memory use of the training process.

Troubleshooting:
- The training loss decreases faster with a cache, but the validation loss rises: samples were
  cached after augmentation, so they are the same in every epoch. Cache samples first, then augment
  them. This script prints the share of samples that differ between epochs.
- "worker (pid 123) is killed by signal: Killed": every DataLoader worker has its own copy of the
  cache, and the machine is out of memory. To share one copy among all workers, call share_memory_()
  on the cached tensors.
- With persistent_workers=True, an epoch number that you set on the dataset never reaches the
  workers. Store the epoch number in shared memory, as this script does.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same samples; only a GPU may round differently
STORED, SIZE = 96, 32  # image side in pixels: as stored, as trained


class Files:
    """Compressed images that stand for files; counts how many this process decodes."""

    def __init__(self, samples: int) -> None:
        torch.manual_seed(0)
        self.labels, self.decoded = torch.arange(samples) % 4, 0
        dark = 30 * self.labels.view(-1, 1, 1, 1)  # the four classes differ in brightness
        images = (torch.randint(120, (samples, 3, STORED, STORED)) + dark).to(torch.uint8)
        self.stored = [zlib.compress(bytes(x.flatten().tolist())) for x in images]

    def decode(self, index: int) -> torch.Tensor:
        """Uncompress and resize: slow, with the same result every time."""
        self.decoded += 1
        raw = torch.frombuffer(bytearray(zlib.decompress(self.stored[index])), dtype=torch.uint8)
        image = raw.view(1, 3, STORED, STORED).float()
        small = torch.nn.functional.interpolate(image, SIZE + 8, mode="bilinear", antialias=True)
        return small[0].round().clamp(0, 255).to(torch.uint8)


class Images(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc, unused-ignore]
    """cache: "no", "decoded" (the technique) or "augmented" (the mistake)."""

    def __init__(self, files: Files, cache: str) -> None:
        self.files, self.cache = files, cache
        # One tensor in shared memory: all workers fill it and read it, and none copies it.
        count, side, self.lock = len(files.stored), SIZE + 8, torch.multiprocessing.Lock()
        self.kept = torch.empty(count, 3, side, side, dtype=torch.uint8).share_memory_()
        self.have = torch.zeros(count, dtype=torch.bool).share_memory_()
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self.finished: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.files.stored)

    def decoded(self, index: int) -> torch.Tensor:
        if self.cache != "decoded":
            return self.files.decode(index)
        with self.lock:  # if the flag is set, the pixels are complete
            have = bool(self.have[index])
        if not have:
            self.kept[index] = self.files.decode(index)
            with self.lock:
                self.have[index] = True
        return self.kept[index]

    def augmented(self, index: int) -> torch.Tensor:
        """A random crop, perhaps mirrored: different in every epoch, the same in every run."""
        draw = torch.Generator().manual_seed(int(self.epoch) * len(self) + index)
        top, left, mirror = torch.randint(0, 8, (3,), generator=draw).tolist()
        x = self.decoded(index)[:, top : top + SIZE, left : left + SIZE]
        return (x.flip(-1) if mirror < 4 else x).float() / 255  # a new tensor

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.cache == "augmented" and index not in self.finished:
            self.finished[index] = self.augmented(index)
        x = self.finished[index] if self.cache == "augmented" else self.augmented(index)
        return x, int(self.files.labels[index])


def differing(data: Images) -> float:
    """The share of samples that differ in the next epoch."""
    epochs = list[list[torch.Tensor]]()
    for number in (0, 1):
        data.epoch.fill_(number)
        epochs.append([data[i][0] for i in range(len(data))])
    return statistics.mean(not torch.equal(a, b) for a, b in zip(*epochs, strict=True))


def train(data: Images, epochs: int, workers: int, device: str) -> tuple[torch.Tensor, list[float]]:
    """The loss of every step, and the milliseconds per step of every epoch but the first."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader: Any = DataLoader(data, 32, num_workers=workers, persistent_workers=workers > 0)
    losses, ms = list[float](), list[float]()
    for epoch in range(epochs):
        data.epoch.fill_(epoch)
        started = time.perf_counter()
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())  # waits for the device
        ms.append(1e3 * (time.perf_counter() - started) / len(loader))
    return torch.tensor(losses), sorted(ms[1:])


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=8, help="steps per epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    asked = parser.parse_args(argv)
    losses, differs = dict[str, torch.Tensor](), dict[str, float]()
    for cache in ("no", "decoded", "augmented"):
        data = Images(Files(asked.steps * 32), cache)
        losses[cache], s = train(data, asked.epochs, asked.workers, asked.device)
        line = f"cache: {cache:<9} loss {losses[cache][-1]:.4f}, {data.files.decoded} decoded"
        print(f"{line}, {statistics.median(s):.1f} ms per step ({s[0]:.1f} to {s[-1]:.1f})")
        differs[cache] = differing(data)
    off, limit = float((losses["decoded"] - losses["no"]).abs().max()), TOLERANCE[asked.device]
    held = off <= limit and differs["decoded"] > 0.9 and differs["augmented"] == 0
    held = held and bool(losses["no"][-1] < losses["no"][0])
    print(
        f"{'proved' if held else 'not proved'}: no loss of {len(losses['no'])} steps changes by"
        f" more than {off:.1e} (tolerance {limit:.0e}); {differs['decoded']:.0%} of the samples"
        f" differ between epochs (at least 90%), {differs['augmented']:.0%} if cached after"
        f" augmentation"
    )
    return 0 if held else 1


if __name__ == "__main__":  # spawned workers import this file but must not train
    raise SystemExit(main())

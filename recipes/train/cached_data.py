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
- Every worker fills a cache of its own, so each sample is decoded once per worker: the cache is a
  list or a dict. Keep it in tensors in shared memory, as this script does.
- With persistent_workers=True, an epoch number that you set on the dataset never reaches the
  workers. Store it in shared memory, as torch.zeros((), dtype=torch.int64).share_memory_(), or draw
  the augmentation from torch's own generator, as this script does.
- All workers draw the same augmentation: they use copies of one generator that you created, such as
  np.random.default_rng(0). DataLoader seeds only the global generators of torch, Python and NumPy.
"""

from __future__ import annotations

import multiprocessing
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from proof import Proof, apart, main
from torch.utils.data import DataLoader, Dataset

# --- Copy from here ------------------------------------------------------------------------------


class Cached(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc, unused-ignore]
    """Decodes each sample once, in the worker that needs it first, and augments it every time.

    decode(index) returns a uint8 tensor of always the same shape; it must not be random.
    """

    def __init__(self, decode: Any, augment: Any, labels: list[int], shape: tuple[int, ...]):
        self.decode, self.augment, self.labels = decode, augment, labels
        # One tensor in shared memory: all workers fill it and read it, and none copies it.
        self.kept = torch.empty(len(labels), *shape, dtype=torch.uint8).share_memory_()
        self.ready = torch.zeros(len(labels), dtype=torch.bool).share_memory_()
        self.lock = torch.multiprocessing.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with self.lock:  # if the flag is set, the pixels are complete
            ready = bool(self.ready[index])
        if not ready:
            self.kept[index] = self.decode(index)
            with self.lock:
                self.ready[index] = True
        return self.augment(self.kept[index]), self.labels[index]  # augment after the cache


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same samples; only a GPU may round differently
STORED, SIZE = 96, 32  # image side in pixels: as stored, as trained
SHAPE = (3, SIZE + 8, SIZE + 8)  # as cached: the crop needs a margin


class Files:
    """Compressed images that stand for files; counts how often each of them is decoded."""

    def __init__(self, samples: int) -> None:
        draw = torch.Generator().manual_seed(0)
        labels = torch.arange(samples) % 4
        self.labels: list[int] = labels.tolist()
        dark = 30 * labels.view(-1, 1, 1, 1)  # the four classes differ in brightness
        noise = torch.randint(120, (samples, 3, STORED, STORED), generator=draw)
        images = (noise + dark).to(torch.uint8)
        self.stored: list[bytes] = []
        for image in images.flatten(1):
            raw = bytearray(image.numel())
            torch.frombuffer(raw, dtype=torch.uint8).copy_(image)
            self.stored.append(zlib.compress(raw, 1))
        # Not one of torch's tensors: the cache relies on those, the count must not.
        self.decodes = multiprocessing.Array("i", samples, lock=False)

    def decode(self, index: int) -> torch.Tensor:
        """Uncompress and resize: slow, with the same result every time."""
        self.decodes[index] += 1  # no other process decodes this index now
        raw = torch.frombuffer(bytearray(zlib.decompress(self.stored[index])), dtype=torch.uint8)
        image = raw.view(1, 3, STORED, STORED).float()
        small = torch.nn.functional.interpolate(image, SHAPE[1:], mode="bilinear", antialias=True)
        return small[0].round().clamp(0, 255).to(torch.uint8)


def augment(image: torch.Tensor) -> torch.Tensor:
    """A random crop, perhaps mirrored. DataLoader seeds torch differently in each worker."""
    top, left, mirror = torch.randint(0, 8, (3,)).tolist()
    x = image[:, top : top + SIZE, left : left + SIZE]
    return (x.flip(-1) if mirror < 4 else x).float() / 255  # a new tensor: the cache stays clean


class Uncached(Cached):
    """Decodes every time."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.augment(self.decode(index)), self.labels[index]


class CachedTooLate(Cached):
    """The mistake: a cache of augmented samples, which are then the same in every epoch."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        known = self.__dict__.setdefault("known", {})
        if index not in known:
            known[index] = super().__getitem__(index)
        return known[index]  # type: ignore[no-any-return]


def train(data: Cached, epochs: int, workers: int, device: str) -> Iterator[torch.Tensor]:
    """Yields the loss of every step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    kept = {"num_workers": workers, "persistent_workers": workers > 0}
    loader: Any = DataLoader(data, 32, shuffle=True, **kept)
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()


def differing(data: Cached) -> float:
    """The share of samples that differ in the next epoch."""
    first, second = ([data[i][0] for i in range(len(data))] for _ in range(2))
    return sum(not torch.equal(a, b) for a, b in zip(first, second, strict=True)) / len(data)


def prove(proof: Proof) -> None:
    samples = proof.steps * 32
    runs: list[list[float]] = []
    decodes: list[list[int]] = []
    differs: list[float] = []
    kinds: list[Any] = [Uncached, proof.technique(Cached, instead=Uncached), CachedTooLate]
    for name, kind in zip(("not cached", "cached", "cached too late"), kinds, strict=True):
        files = Files(samples)
        data = kind(files.decode, augment, files.labels, SHAPE)
        steps = train(data, proof.epochs, proof.workers, proof.device)
        runs.append(proof.train(name, steps))
        decodes.append(list(files.decodes))
        differs.append(differing(data))
    (plain, cached, _), limit = runs, TOLERANCE[proof.device]
    off, epoch = apart(cached, plain), proof.steps
    proof.same(
        off <= limit and sum(plain[-epoch:]) < sum(plain[:epoch]),
        f"losses of {proof.epochs} epochs within {off:.1e} of training without a cache (tolerance"
        f" {limit:.0e})",
    )
    times = sorted(set(decodes[1]))
    proof.active(
        times == [1],
        f"decodes of each image, by {proof.workers} workers together:"
        f" {' to '.join(map(str, times))}",
    )
    proof.purpose(
        sum(decodes[1]) == samples < sum(decodes[0]) and differs[1] > 0.9 and differs[2] == 0,
        f"{sum(decodes[1])} decodes instead of {sum(decodes[0])}; {differs[1]:.0%} of the samples"
        f" differ in the next epoch, {differs[2]:.0%} if cached after augmentation",
    )


if __name__ == "__main__":  # spawned workers import this file but must not train
    main(__doc__, prove, steps=(8, 4), epochs=(5, 3), workers=2)

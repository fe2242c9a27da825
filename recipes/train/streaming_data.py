"""Streaming data: read samples from tar shards, and resume in the middle of an epoch.

What it does: the samples lie in a few large tar files (shards), in the layout that WebDataset uses
too, and are read in one go from front to back. The dataset knows how many samples it has handed
out: state_dict() goes into the checkpoint, and load_state_dict() goes on with exactly the samples
that were missing. Samples that were already used are skipped without being read or decoded.

When it helps: the data does not fit on the disk of the machine, is on a network file system or in
a bucket, or consists of millions of small files. A job on a preemptible machine must not start its
epoch over.

When it hurts: there is no random access, so shuffling is only approximate: shards in random order,
plus a buffer if you need more. If the data fits on a local disk as a few files, a Dataset with an
index is simpler.

How to check: note the samples of an epoch that was interrupted and resumed. Each must come exactly
once, as this script checks.

Troubleshooting:
- After a restart, the model sees the first samples of the epoch again: the position was not in the
  checkpoint. A DataLoader has no state of its own.
- With workers, samples are missing after a restart: the workers had read ahead of the training. The
  state of a dataset with workers must be collected by the loader. Use
  torchdata.stateful_dataloader.StatefulDataLoader instead of DataLoader; it calls the state_dict()
  of the dataset in each worker. Tried with torchdata 0.11.
- Each worker yields all of the data: split the shards by get_worker_info().id, and by rank for
  several GPUs, as in this script. There must be at least as many shards as workers.
- "Expected all ranks to run the same number of steps", or DDP hangs at the end of an epoch: shards
  of different sizes give ranks different numbers of batches. Stop all ranks after the same number.
- "ReadError: unexpected end of data", "not a gzip file": the tar file was not written or copied to
  its end. Write to another name first, then rename it.
- Videos: torchcodec decodes single frames (pip install torchcodec; it needs FFmpeg). It is not part
  of this script.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from proof import Proof, calls_seen, main
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

# --- Copy from here ------------------------------------------------------------------------------


class Shards(IterableDataset[Any]):  # type: ignore[misc, unused-ignore]
    """Samples of tar files, each a JSON member; shards in a new order in every epoch.

    Call state_dict() between two batches. With workers, use torchdata's StatefulDataLoader.
    """

    def __init__(self, paths: Sequence[Path], rank: int = 0, world: int = 1) -> None:
        self.paths, self.rank, self.world = paths, rank, world
        self.epoch = self.taken = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.taken = state["epoch"], state["taken"]

    def __iter__(self) -> Iterator[Any]:
        order = list(self.paths)
        random.Random(self.epoch).shuffle(order)  # the same in all workers and on all ranks
        worker = get_worker_info()
        parts = self.world * (worker.num_workers if worker else 1)
        part = self.rank * (worker.num_workers if worker else 1) + (worker.id if worker else 0)
        skip = self.taken
        for path in order[part::parts]:
            with tarfile.open(path) as shard:
                for member in shard:  # reads only the headers of what it skips
                    if skip:
                        skip -= 1
                        continue
                    sample = json.load(shard.extractfile(member))  # type: ignore[arg-type]
                    self.taken += 1
                    yield sample
        self.epoch, self.taken = self.epoch + 1, 0


# --- Copy to here. The rest is the proof. --------------------------------------------------------
BATCH, SHARDS = 8, 6


class Forgetful(Shards):
    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def write_shards(folder: Path, samples: int) -> list[Path]:
    paths = [folder / f"{number:05}.tar" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as shard:
            for sample in range(number, samples, SHARDS):
                text = json.dumps({"number": sample}).encode()
                member = tarfile.TarInfo(f"{sample:08}.json")
                member.size = len(text)
                shard.addfile(member, io.BytesIO(text))
    return paths


def numbers(loader: Any, batches: int | None = None) -> list[int]:
    """The samples of some batches, or of the rest of the epoch."""
    found: list[int] = []
    for count, batch in enumerate(loader, 1):
        found += batch["number"].tolist()
        if count == batches:
            break
    return found


def interrupted(kind: Any, paths: list[Path], loader_of: Any, stop: int) -> tuple[Any, ...]:
    """An epoch without interruption, one up to batch `stop`, the rest of it, and what was read."""
    whole = numbers(loader_of(kind(paths)))
    loader = loader_of(kind(paths))
    first = numbers(loader, stop)
    keeper = loader if hasattr(loader, "state_dict") else loader.dataset
    checkpoint = io.BytesIO()
    torch.save({"data": keeper.state_dict()}, checkpoint)  # next to model and optimizer
    checkpoint.seek(0)
    loader = loader_of(kind(paths))  # as in a new process
    keeper = loader if hasattr(loader, "state_dict") else loader.dataset
    keeper.load_state_dict(torch.load(checkpoint, weights_only=False)["data"])
    with calls_seen(tarfile.TarFile, "extractfile") as read:
        rest = numbers(loader)
    return whole, first, rest, len(read)


def prove(proof: Proof) -> None:
    kind = proof.technique(Shards, instead=Forgetful)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(Path(folder), proof.samples)
        stop = proof.samples // BATCH // 3
        plain = interrupted(kind, paths, lambda data: DataLoader(data, BATCH), stop)
        two_epochs = DataLoader(kind(paths), BATCH)
        orders = numbers(two_epochs), numbers(two_epochs)
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader
        except ImportError:
            print("torchdata is not installed: workers are left out (pip install torchdata)")
            by_workers = None
        else:

            def stateful(data: Any) -> Any:
                return StatefulDataLoader(data, BATCH, num_workers=2)

            by_workers = interrupted(kind, paths, stateful, stop)
    whole, first, rest, read = plain
    proof.same(
        first + rest == whole and sorted(whole) == list(range(proof.samples)),
        f"{len(first)} samples, a restart and {len(rest)} samples are the epoch of"
        f" {len(whole)}, in the same order",
    )
    proof.active(
        read == len(whole) - len(first),
        f"after the restart, {read} samples were read from the tar files",
    )
    again = len(set(first) & set(rest))
    proof.purpose(again == 0, f"{again} of {len(first)} used samples came again")
    proof.purpose(
        orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]),
        "the next epoch has the same samples in another order",
    )
    if by_workers:
        whole, first, rest, _ = by_workers
        proof.same(
            first + rest == whole and sorted(whole) == list(range(proof.samples)),
            f"with two workers that read ahead, too: {len(first)} and {len(rest)} samples",
        )


if __name__ == "__main__":
    main(__doc__, prove, samples=(2400, 480))

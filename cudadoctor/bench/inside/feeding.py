"""Batches on the device, one after the other and without end; how long each was waited for."""

import os
import time
from typing import Any, Dict, Iterator, Tuple

import torch
from torch.utils.data import DataLoader

from . import data, leaving, room
from .order import Order
from .room import AHEAD


class Feed:
    """The loader of an order. wait_s: seconds spent waiting for batches so far.

    stock: batches that may lie ready after a pause, which a measured step must not live on.
    why_no_workers: what keeps from starting those that were asked for, "" where nothing does.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.workers, self.why_no_workers = workers_of(order)
        self.wait_s = 0.0
        self.stock = AHEAD * self.workers
        self.made_s = 0.0
        dataset, collate, lengths = _dataset(order)
        self.loader = _loader(order, dataset, collate, lengths, self.workers)
        if self.workers:
            self.made_s = _seconds_of_a_batch(order, dataset, collate, lengths)
        host = self._waited(iter(self.loader))
        self._batches = _ahead(host, order) if order.settings.prefetch else _plain(host, order)

    def next(self) -> Any:
        return next(self._batches)

    def rest(self) -> None:
        """Let the workers fill their stock: they must not disturb whoever is measured next."""
        if self.workers:
            time.sleep(min(1.0, 0.02 + 1.3 * self.made_s * self.stock / self.workers))

    def _waited(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            began = time.perf_counter()
            batch = next(batches)
            self.wait_s += time.perf_counter() - began
            yield batch


def workers_of(order: Order) -> Tuple[int, str]:
    """How many workers, and why none: as asked, or one a core but one, at most eight.

    Fewer where their batches would fill memory: that ends in a Bus error, or kills a neighbour.
    """
    asked = order.settings.workers
    if asked < 0:
        asked = max(1, min(8, cores() - 1))
    return room.workers_that_fit(
        asked, batch_bytes(order), room.shared_bytes(), room.available_bytes()
    )


def batch_bytes(order: Order) -> int:
    """The size of a batch, as workers hand it over."""
    shape, number = order.shape, 8
    if order.workload == "cnn":
        return int(order.batch * (3 * int(shape["image"]) ** 2 * 4 + number))
    of_a_token = 2 * number if order.workload == "decoder" else number + 1
    return int(order.batch * (int(shape["length"]) * of_a_token + number))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _dataset(order: Order) -> Tuple[Any, Any, Any]:
    """The data set, what puts samples together, and the length of each sample."""
    shape, settings = order.shape, order.settings
    if order.workload == "cnn":
        images = data.Images(shape, settings.cached)
        return images, None, [1] * len(images)
    if order.workload == "decoder":
        windows = data.Windows(shape)
        return windows, None, [1] * len(windows)
    texts = data.Texts(shape, settings.cached)
    bucketed = settings.lengths == "bucketed"
    length = int(shape["length"])
    most = data.covering(texts.lengths, 0.95) if bucketed else length
    return texts, data.Padding(length, bucketed, most), texts.lengths


def _loader(order: Order, dataset: Any, collate: Any, lengths: Any, workers: int) -> Any:
    settings = order.settings
    bucketed = settings.lengths == "bucketed"
    batches = data.Batches(lengths, order.batch, order.seed, bucketed)
    more: Dict[str, Any] = {}
    if workers:
        # Forked also where another way is Python's default: the others cannot find this module.
        # They inherit a CUDA that is in use, and never touch it.
        more = {"persistent_workers": True, "prefetch_factor": AHEAD}
        more["multiprocessing_context"] = "fork"
        more["worker_init_fn"] = leaving.end_with_the_parent
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=order.gpu and (settings.pinned or settings.prefetch),
        collate_fn=collate,
        **more,
    )


def _seconds_of_a_batch(order: Order, dataset: Any, collate: Any, lengths: Any) -> float:
    """How long one batch takes to be made, in this process."""
    batches = iter(_loader(order, dataset, collate, lengths, 0))
    began = time.perf_counter()
    next(batches)
    return time.perf_counter() - began


def _plain(host: Iterator[Any], order: Order) -> Iterator[Any]:
    """Each batch is copied when it is needed."""
    for batch in host:
        yield _moved(batch, order, order.settings.pinned)


def _ahead(host: Iterator[Any], order: Order) -> Iterator[Any]:
    """Each batch is copied while the one before it is in use."""
    side = torch.cuda.Stream() if order.gpu else None
    coming = _copied(next(host), order, side)
    for batch in host:
        ready, coming = coming, _copied(batch, order, side)
        yield _arrived(ready)


def _copied(batch: Any, order: Order, side: Any) -> Tuple[Any, Any]:
    if side is None:
        return _moved(batch, order, False), None
    with torch.cuda.stream(side):
        moved = _moved(batch, order, True)
        return moved, side.record_event()


def _arrived(ready: Tuple[Any, Any]) -> Any:
    """The current stream waits for this copy, and its memory is kept until that stream is done."""
    batch, copied = ready
    if copied is not None:
        current = torch.cuda.current_stream()
        current.wait_event(copied)
        for one in batch:
            one.record_stream(current)
    return batch


def _moved(batch: Any, order: Order, waitless: bool) -> Any:
    tensors = [one.to(order.device, non_blocking=waitless) for one in batch]
    if order.settings.channels_last and order.workload == "cnn":
        tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    return tensors

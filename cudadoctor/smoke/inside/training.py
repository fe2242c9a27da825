"""A training with its settings applied: its batches on the device, its model, and its steps."""

import contextlib
import functools
import inspect
import os
from time import perf_counter, sleep
from typing import Any, Callable, Generator, Iterator, Optional, Tuple

import torch
from torch import cuda
from torch.utils.data import DataLoader

from . import process, room, workloads
from .spec import Fields
from .workloads import Order

Batches = Iterator[Any]
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
RATE_SGD, RATE_ADAMW = 0.004, 3e-4
"""Without a warm-up, and small: where losses jump, they tell rounding from a fault no more."""
GRAPH_WARM_UP = 3
"""Steps on a side stream before a recording: cuBLAS, autograd and the optimiser allocate lazily."""


class Training:
    """One training by the order; `step` takes a batch on the device and gives its loss, detached.

    Losses are tensors: reading one waits for the device, and that is left to the caller. replays:
    whether a recording is replayed, which uses memory and allocates none.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.settings = settings = order.settings
        torch.set_float32_matmul_precision(settings.matmul)
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        torch.manual_seed(order.seed)
        # A model for a GPU is made there, where torch 2.0 or newer can: it need not be copied.
        there = order.gpu and hasattr(torch.device, "__enter__")
        with torch.device(order.device) if there else contextlib.nullcontext():
            model = workloads.build(order.workload, order.shape, order.settings)
        model = model.to(order.device)
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.optimizer = _optimizer(order, model)
        if settings.compile:
            mode = None if settings.compile == "default" else settings.compile
            model = torch.compile(model, mode=mode)
        self.model = model
        self.scaler: Any = None
        if settings.amp == "float16":
            # The usual first scale of 65536 overflows here and leaves out steps until it is halved
            # often enough: each loss after that would be that of an earlier step.
            self.scaler = torch.amp.GradScaler(order.device.split(":")[0], init_scale=2.0**10)
        self.replays = settings.graphs or settings.compile in WITH_GRAPHS
        self.graph = _recorded(self) if settings.graphs else None
        if self.graph is not None:
            next(self.graph)

    def step(self, batch: Any) -> Any:
        """One step of the optimiser."""
        process.planted(self.settings.fault)
        if self.graph is not None:
            return self.graph.send(batch)
        if self.settings.compile in WITH_GRAPHS and self.order.gpu:
            _mark_step()
        return self.eager(batch)

    def eager(self, batch: Any) -> Any:
        """One step, operation by operation."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.settings.accumulate
        loss = self._pass(batch) if parts == 1 else self._in_parts(batch, parts)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def _in_parts(self, batch: Any, parts: int) -> Any:
        """Gradients of a few small batches add up to those of the large one."""
        pieces = zip(*[tensor.chunk(parts) for tensor in batch])
        whole = float(len(batch[0]))
        return torch.stack([self._pass(piece, len(piece[0]) / whole) for piece in pieces]).sum()

    def _pass(self, batch: Any, weight: float = 1.0) -> Any:
        with self._precision():
            loss = workloads.loss_of(self.order.workload, self.model, batch)
        loss = loss if weight == 1.0 else loss * weight
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        # A compiled step with CUDA graphs inside writes over what the one before it gave.
        return loss.detach().clone() if self.settings.compile else loss.detach()

    def _precision(self) -> Any:
        if not self.settings.amp:
            return contextlib.nullcontext()
        kind = getattr(torch, self.settings.amp)
        device = self.order.device.split(":")[0]
        # A recorded step must not read casts that were cached outside of the recording.
        cache = False if self.settings.graphs else None
        return torch.autocast(device, dtype=kind, cache_enabled=cache)


def _recorded(training: Training) -> Generator[Any, Any, None]:
    """The losses of the batches sent to it, the whole step as one CUDA graph.

    The first steps run eagerly on a side stream; the next is recorded, and it and all later are
    replayed: a batch is copied to where the graph reads it.
    """
    side = cuda.Stream()
    batch = yield
    for _ in range(GRAPH_WARM_UP):
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            loss = training.eager(batch)
        cuda.current_stream().wait_stream(side)
        batch = yield loss
    read = [tensor.clone(memory_format=torch.preserve_format) for tensor in batch]
    training.optimizer.zero_grad(set_to_none=True)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, **_this_thread_alone()):
        loss = training.eager(read)
    while True:
        for to, new in zip(read, batch):
            to.copy_(new, non_blocking=True)
        graph.replay()
        batch = yield loss.clone()


def _this_thread_alone() -> Fields:
    """The loader's thread that pins batches calls CUDA too. Before torch 2.1 that is no option."""
    known = inspect.signature(cuda.graph.__init__).parameters
    return {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}


def _mark_step() -> None:
    """Tell the graphs inside a compiled model that a step begins; torch 2.0 asks for no mark."""
    mark = getattr(getattr(torch, "compiler", None), "cudagraph_mark_step_begin", None)
    if mark is not None:
        mark()


def _optimizer(order: Order, model: Any) -> Any:
    more = {order.settings.optimizer: True} if order.settings.optimizer else {}
    if order.workload == "cnn":
        return torch.optim.SGD(model.parameters(), lr=RATE_SGD, momentum=0.9, **more)
    if order.settings.graphs:
        # The count of steps lives on the GPU: a recording cannot count in Python.
        more["capturable"] = True
    # Less for wide models, whose losses would jump in their first steps otherwise.
    rate = float(RATE_ADAMW * min(1.0, (128.0 / order.shape["width"]) ** 3))
    return torch.optim.AdamW(model.parameters(), lr=rate, **more)


# --- batches, one after the other and without end; how long each was waited for ---------------


class Feed:
    """The loader of an order. wait_s: seconds spent waiting for batches so far.

    stock: batches that may lie ready after a pause, which a measured step must not live on.
    why_no_workers: what keeps from starting those that were asked for, "" where nothing does.
    """

    def __init__(self, order: Order) -> None:
        self.workers, self.why_no_workers = workers_of(order)
        self.wait_s = self.made_s = 0.0
        self.stock = AHEAD * self.workers
        loader = _loader(order)
        if self.workers:
            # How long one batch takes to be made, in this process.
            next(self._waited(iter(loader(0))))
            self.made_s, self.wait_s = self.wait_s, 0.0
        host = self._waited(iter(loader(self.workers)))
        if order.settings.prefetch and order.gpu:
            self._batches = _ahead(host, order)
        else:
            self._batches = (_moved(batch, order, order.settings.pinned) for batch in host)

    def next(self) -> Any:
        return next(self._batches)

    def rest(self) -> None:
        """Let the workers fill their stock: they must not disturb whoever is measured next."""
        if self.workers:
            sleep(min(1.0, 0.02 + 1.3 * self.made_s * self.stock / self.workers))

    def _waited(self, batches: Batches) -> Batches:
        while True:
            began = perf_counter()
            batch = next(batches)
            self.wait_s += perf_counter() - began
            yield batch


def workers_of(order: Order) -> Tuple[int, str]:
    """How many workers, and why none: as asked, or one a core but one, at most eight.

    Fewer where their batches would fill memory: that ends in a Bus error, or kills a neighbour.
    """
    asked = order.settings.workers
    if asked < 0:
        asked = max(1, min(8, cores() - 1))
    return workers_that_fit(asked, batch_bytes(order), shared_bytes(), room.available_bytes())


def batch_bytes(order: Order) -> int:
    """The size of a batch, as workers hand it over."""
    shape, number = order.shape, 8
    if order.workload == "cnn":
        return int(order.batch * (3 * shape["image"] ** 2 * 4 + number))
    of_a_token = 2 * number if order.workload == "decoder" else number + 1
    return int(order.batch * (shape["length"] * of_a_token + number))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _loader(order: Order) -> Callable[[int], Any]:
    """Of a number of workers, the loader of the order's batches."""
    shape, settings = order.shape, order.settings
    bucketed = settings.lengths == "bucketed"
    dataset: Any = None
    collate = lengths = None
    if order.workload == "cnn":
        dataset = workloads.images(shape, settings.cached)
    elif order.workload == "decoder":
        dataset = workloads.windows(shape)
    else:
        dataset = workloads.texts(shape, settings.cached)
        lengths = [len(text.split()) for text, _ in dataset.stored]
        # Bucketed, no text is longer than 95 % of them are.
        most = sorted(lengths)[int(0.95 * len(lengths))] if bucketed else shape["length"]
        collate = functools.partial(
            workloads.padded, length=shape["length"], bucketed=bucketed, most=most
        )

    def loader(workers: int) -> Any:
        more = {}
        if workers:
            more = {
                "persistent_workers": True,
                "prefetch_factor": AHEAD,
                # Also where another way is Python's default: the others cannot find this module.
                # Forks inherit a CUDA that is in use, and never touch it.
                "multiprocessing_context": "fork",
                "worker_init_fn": process.end_with_the_parent,
            }
        return DataLoader(
            dataset,
            batch_sampler=workloads.batches(
                lengths or [1] * len(dataset), order.batch, order.seed, bucketed
            ),
            num_workers=workers,
            pin_memory=order.gpu and (settings.pinned or settings.prefetch),
            collate_fn=collate,
            **more,
        )

    return loader


def _ahead(host: Batches, order: Order) -> Batches:
    """Each batch is copied while the one before it is in use."""
    side = cuda.Stream()

    def copied(batch: Any) -> Tuple[Any, Any]:
        with cuda.stream(side):
            return _moved(batch, order, True), side.record_event()

    coming = copied(next(host))
    for batch in host:
        (ready, done), coming = coming, copied(batch)
        # The current stream waits for this copy, and its memory is kept until it is done.
        current = cuda.current_stream()
        current.wait_event(done)
        for tensor in ready:
            tensor.record_stream(current)
        yield ready


def _moved(batch: Any, order: Order, waitless: bool) -> Any:
    tensors = [tensor.to(order.device, non_blocking=waitless) for tensor in batch]
    if order.settings.channels_last and order.workload == "cnn":
        tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    return tensors


# --- room for batches on their way to the device: memory, and /dev/shm ------------------------

SHARED = "/dev/shm"
AHEAD = 2
"""Batches that each worker prepares in advance: the loader's own default."""
IN_USE = 2
"""Batches that have left the workers, and are not given back yet."""
WORKER_BYTES = 128 << 20
"""What a forked worker comes to need of its own, apart from its batches."""
SHARE = 0.25
"""Of what there is: several loaders run side by side, and others are guests too."""


def shared_bytes() -> Optional[int]:
    """What one loader may fill of /dev/shm, through which workers hand over; None not known.

    Mostly a part of the whole, so that loaders side by side get the same number of workers.
    """
    try:
        found = os.statvfs(SHARED)
    except (OSError, AttributeError):
        return None
    whole, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return int(min(SHARE * whole, free / 2.0))


def workers_that_fit(
    asked: int, batch_bytes: int, shared: Optional[int], memory: int
) -> Tuple[int, str]:
    """So many workers at most, and why there are none. memory: 0 where it is not known."""
    of_one = WORKER_BYTES + AHEAD * batch_bytes
    room = {
        SHARED: asked if shared is None else (shared // batch_bytes - IN_USE) // AHEAD,
        "memory": int(SHARE * memory) // of_one if memory else asked,
    }
    fit = max(0, min(asked, *room.values()))
    if fit or not asked:
        return fit, ""
    full = next(where for where, number in room.items() if number < 1)
    text = "%s does not have enough space for workers that prepare %.1f MB batches"
    return 0, text % (full, batch_bytes / 1e6)

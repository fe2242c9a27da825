"""A training with its settings applied: model, optimiser, and what one step does."""

import contextlib
import inspect
import os
import signal
import time
from typing import Any, Dict, List

import torch

from . import models
from .order import Order, Settings

WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
RATE_SGD, RATE_ADAMW = 0.004, 3e-4
"""Without a warm-up, and small: where losses jump, they tell rounding from a fault no more."""
GRAPH_WARM_UP = 3
"""Steps on a side stream before a recording: cuBLAS, autograd and the optimiser allocate lazily."""


class Training:
    """One training by the order; `step` takes a batch on the device and gives its loss, detached.

    Losses are tensors: reading one waits for the device, and that is left to the caller.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.settings = order.settings
        switch(order.settings)
        torch.manual_seed(order.seed)
        with _birthplace(order):
            model = models.build(order.workload, order.shape, order.settings)
        model = model.to(order.device)
        if order.settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.plain = model
        self.optimizer = _optimizer(order, model)
        self.model = _compiled(model, order.settings)
        self.scaler: Any = None
        if order.settings.amp == "float16":
            # The usual first scale of 65536 overflows here and leaves out steps until it is halved
            # often enough: each loss after that would be that of an earlier step.
            self.scaler = torch.amp.GradScaler(order.device.split(":")[0], init_scale=2.0**10)
        self.graph = Recorded(self) if order.settings.graphs else None

    def step(self, batch: Any) -> Any:
        """One step of the optimiser."""
        _planted(self.settings.fault)
        if self.graph is not None:
            return self.graph.step(batch)
        if self.settings.compile in WITH_GRAPHS and self.order.gpu:
            _mark_step()
        return self.eager(batch)

    @property
    def replays(self) -> bool:
        """Whether a recording is replayed, which uses memory and allocates none."""
        return self.graph is not None or self.settings.compile in WITH_GRAPHS

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
        losses: List[Any] = []
        for part in zip(*[one.chunk(parts) for one in batch]):
            losses.append(self._pass(part, len(part[0]) / float(len(batch[0]))))
        return torch.stack(losses).sum()

    def _pass(self, batch: Any, weight: float = 1.0) -> Any:
        with self._precision():
            loss = models.loss_of(self.order.workload, self.model, batch)
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


class Recorded:
    """The whole step as one CUDA graph: a batch is copied to where the graph reads it."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.steps = 0
        self.graph: Any = None
        self.batch: Any = None
        self.loss: Any = None
        self.side = torch.cuda.Stream()

    def step(self, batch: Any) -> Any:
        """The first steps run eagerly on a side stream; the next records, and all later replay."""
        self.steps += 1
        if self.steps <= GRAPH_WARM_UP:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                loss = self.training.eager(batch)
            torch.cuda.current_stream().wait_stream(self.side)
            return loss
        if self.graph is None:
            self._record(batch)
        for to, new in zip(self.batch, batch):
            to.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.loss.clone()

    def _record(self, batch: Any) -> None:
        self.batch = [one.clone(memory_format=torch.preserve_format) for one in batch]
        self.training.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, **_this_thread_alone()):
            self.loss = self.training.eager(self.batch)


def _this_thread_alone() -> Dict[str, Any]:
    """The loader's thread that pins batches calls CUDA too. Before torch 2.1 that is no option."""
    known = inspect.signature(torch.cuda.graph.__init__).parameters
    return {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}


def _mark_step() -> None:
    """Tell the graphs inside a compiled model that a step begins; torch 2.0 asks for no mark."""
    mark = getattr(getattr(torch, "compiler", None), "cudagraph_mark_step_begin", None)
    if mark is not None:
        mark()


def _birthplace(order: Order) -> Any:
    """A model for a GPU is made there, where torch 2.0 or newer can: it need not be copied."""
    if order.gpu and hasattr(torch.device, "__enter__"):
        return torch.device(order.device)
    return contextlib.nullcontext()


def switch(settings: Settings) -> None:
    """What is set for the whole process."""
    torch.set_float32_matmul_precision(settings.matmul)
    torch.backends.cudnn.benchmark = settings.cudnn_benchmark


def _optimizer(order: Order, model: Any) -> Any:
    more = {order.settings.optimizer: True} if order.settings.optimizer else {}
    if order.workload == "cnn":
        return torch.optim.SGD(model.parameters(), lr=RATE_SGD, momentum=0.9, **more)
    if order.settings.graphs:
        # The count of steps lives on the GPU: a recording cannot count in Python.
        more["capturable"] = True
    return torch.optim.AdamW(model.parameters(), lr=_rate(order.shape), **more)


def _rate(shape: Dict[str, Any]) -> float:
    """Of AdamW: less for wide models, whose losses would jump in their first steps otherwise."""
    return float(RATE_ADAMW * min(1.0, (128.0 / int(shape["width"])) ** 3))


def _compiled(model: Any, settings: Settings) -> Any:
    if not settings.compile:
        return model
    mode = None if settings.compile == "default" else settings.compile
    return torch.compile(model, mode=mode)


def _planted(fault: str) -> None:
    """What a test wants to see fail."""
    if fault == "error":
        raise RuntimeError("a planted error")
    if fault == "oom":
        raise MemoryError("CUDA out of memory (planted)")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(1e6)
    if fault == "slow":
        time.sleep(0.02)

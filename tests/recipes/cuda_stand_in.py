"""`cuda_stand_in.py cuda_graphs|prefetch [--off]`: proves a recipe for GPUs on a CPU.

cuda_graphs: a recorder notes every operation of a step with its tensors, and a replay does the same
operations on the same tensors, as a CUDA graph does: whoever passes a new tensor instead of filling
the recorded one, forgets the gradients or leaves the warm-up in the weights gets other losses. A
model that is recorded alone hands out the same buffers as gradients in every step, as torch's does.

prefetch: a copy with non_blocking=True arrives only when a stream waits for its event; until then
the tensor is zero.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

TRAIN = Path(__file__).resolve().parents[2] / "recipes" / "train"
SIZES = {"cuda_graphs": {"steps": 40, "width": 128}, "prefetch": {"steps": 20, "width": 128}}


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), words: Any = None
    ) -> Any:
        for declared, given in zip(operation._schema.arguments, args, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                for tensor in tensors(given):
                    self.before.setdefault(tensor.data_ptr(), (tensor, tensor.clone()))
        result = operation(*args, **(words or {}))
        self.steps.append((operation, args, words or {}, result))
        return result

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def undo(self) -> None:
        """A recording runs nothing: what the step wrote is put back."""
        for tensor, before in self.before.values():
            tensor.copy_(before)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def replay(self) -> None:
        with _disable_current_modes():  # a replay runs no operation that Python could see
            self._again()

    def _again(self) -> None:
        for operation, args, words, result in self.steps:
            again = operation(*args, **words)
            for old, new in zip(tensors(result), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(found: Any) -> list[Any]:
    parts = found if isinstance(found, (tuple, list)) else [found]
    return [part for part in parts if isinstance(part, torch.Tensor)]


@contextlib.contextmanager
def recording(graph: Recorder) -> Iterator[None]:
    with graph:
        yield
    graph.undo()


class Stream:
    """Stands in for a stream: there is one only, so that nothing has to wait."""

    def wait_stream(self, other: object) -> None:
        assert isinstance(other, Stream)


def half_recorded(model: Any, _sample: object) -> Any:
    """Stand-in for torch.cuda.make_graphed_callables: gradients always use the same buffers."""
    weights, inner = tuple(model.parameters()), model.forward
    buffers = [torch.zeros_like(weight) for weight in weights]

    class Graphed(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Any, *_weights: Any) -> Any:
            with _disable_current_modes(), torch.enable_grad():
                ctx.scores = inner(x)
            return ctx.scores.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            with _disable_current_modes():
                new = torch.autograd.grad(ctx.scores, weights, grad)
                for buffer, gradient in zip(buffers, new, strict=True):
                    buffer.copy_(gradient)
            return None, *(buffer.detach() for buffer in buffers)

    model.forward = lambda x: Graphed.apply(x, *weights)
    return model


def stand_in_for_graphs() -> None:
    importlib.import_module("torch._dynamo")  # Adam imports it, and some versions look at Stream
    cuda = torch.cuda
    cuda.Stream, cuda.CUDAGraph, cuda.graph = Stream, Recorder, recording
    cuda.current_stream, cuda.stream = Stream, lambda _: contextlib.nullcontext()
    cuda.make_graphed_callables = half_recorded
    # Adam's arithmetic for capturable=True is the same on every device, and CPUs are kept out.
    adam = importlib.import_module("torch.optim.adam")
    adam._get_capturable_supported_devices = lambda *_, **__: ["cpu"]  # type: ignore[attr-defined]


class Event:
    """What was queued on a stream before it."""

    def __init__(self, queue: list[Any]) -> None:
        self.queue, self.up_to = queue, len(queue)


class Queue:
    """Stands in for a stream whose copies arrive late."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def record_event(self) -> Event:
        return Event(self.queue)

    def wait_event(self, event: Event) -> None:
        with _disable_current_modes():
            for number, arrive in enumerate(event.queue[: event.up_to]):
                if arrive is not None:
                    arrive()
                    event.queue[number] = None


def stand_in_for_copies() -> None:
    current, default = list[Queue](), Queue()

    @contextlib.contextmanager
    def on(stream: Queue) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    cuda = torch.cuda
    cuda.Stream, cuda.stream = Queue, on
    cuda.current_stream = lambda: current[-1] if current else default
    to = torch.Tensor.to

    def late(tensor: Any, device: Any, *args: Any, non_blocking: bool = False) -> Any:
        if args:
            return to(tensor, device, *args)
        result = to(tensor, device, copy=True, non_blocking=non_blocking)
        if non_blocking:
            with _disable_current_modes():
                data = result.clone()
                result.zero_()
            cuda.current_stream().queue.append(lambda: result.copy_(data))
        return result

    def kept(tensor: Any, stream: Queue) -> None:
        for mode in _get_current_dispatch_mode_stack():
            if hasattr(mode, "kept"):
                mode.kept += 1

    torch.Tensor.to, torch.Tensor.record_stream = late, kept
    torch.Tensor.is_pinned = lambda _self: True
    torch.Tensor.pin_memory = lambda self: self


def main(name: str, *options: str) -> int:
    sys.path.insert(0, str(TRAIN))
    (stand_in_for_graphs if name == "cuda_graphs" else stand_in_for_copies)()
    recipe = importlib.import_module(name)
    recipe.skip = lambda _reason: None  # type: ignore[attr-defined]
    asked = argparse.Namespace(device="cpu", off="--off" in options, small=True, **SIZES[name])
    proof = importlib.import_module("proof").Proof(asked)
    recipe.prove(proof)
    return int(proof.verdict())


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

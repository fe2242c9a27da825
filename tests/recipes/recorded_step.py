"""Run in an interpreter with torch: CUDA graphs' recipe on a recorder that a CPU can replay.

The recorder notes every operation of a step with its tensors, and a replay does the same operations
on the same tensors, as a CUDA graph does: whoever passes a new tensor instead of filling the
recorded one, forgets the gradients or leaves the warm-up in the weights gets other losses. A model
that is recorded alone hands out the same buffers as gradients in every step, as torch's does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


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
    weights, forward = tuple(model.parameters()), model.forward
    buffers = [torch.zeros_like(weight) for weight in weights]

    class Graphed(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Any, *_weights: Any) -> Any:
            with torch.enable_grad():
                ctx.scores = forward(x)
            return ctx.scores.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            for buffer, new in zip(
                buffers, torch.autograd.grad(ctx.scores, weights, grad), strict=True
            ):
                buffer.copy_(new)
            return None, *(buffer.detach() for buffer in buffers)

    model.forward = lambda x: Graphed.apply(x, *weights)
    return model


def losses_of(script: str) -> list[list[float]]:
    """Of the plain training, of the recorded step and of the recorded model."""
    spec = importlib.util.spec_from_file_location("cuda_graphs", script)
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    found: list[list[float]] = []
    for train in (recipe.train_plain, recipe.train_graphed, recipe.train_half_graphed):
        model, batches = recipe.network_and_batches(12, 16, "cpu")
        batches.append((batches[0][0][:40], batches[0][1][:40]))  # a smaller last batch
        found.append([float(loss) for loss in train(model, batches)])
    return found


def main(scripts: list[str]) -> None:
    importlib.import_module("torch._dynamo")  # Adam imports it, and some versions look at Stream
    cuda = torch.cuda
    cuda.Stream, cuda.CUDAGraph, cuda.graph = Stream, Recorder, recording
    cuda.current_stream, cuda.stream = Stream, lambda _: contextlib.nullcontext()
    cuda.make_graphed_callables = half_recorded
    # Adam's arithmetic for capturable=True is the same on every device, and CPUs are kept out.
    adam = importlib.import_module("torch.optim.adam")
    adam._get_capturable_supported_devices = lambda *_, **__: ["cpu"]  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps([losses_of(script) for script in scripts]))


if __name__ == "__main__":
    main(sys.argv[1:])

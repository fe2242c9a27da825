"""CUDA graphs: record a whole training step once and replay it.

What it does: a CUDA graph records every kernel of a training step together with its memory
addresses. graph.replay() then launches all recorded kernels with one call, instead of one launch
per kernel from Python.

When it helps: each step runs many short kernels, the GPU waits for the host to launch them, and the
shapes are the same in every step.

When it hurts: shapes change, or a step needs the host (for example, for .item() or a condition on a
computed value). Steps that consist of large kernels do not become faster. A CUDA graph keeps its
memory allocated for as long as it exists.

How to check: compare the time per step with and without a CUDA graph. In a profile, the gaps
between kernels should disappear.

Troubleshooting:
- "operation not permitted when stream is capturing": something in the recorded step synchronizes
  with the host, such as .item(), .cpu(), print, a copy from pageable memory or lazy initialization.
  Run a few warm-up steps before you record, and move everything that still synchronizes out of the
  graph.
- "Attempting CUDA graph capture of step() for an instance of Adam but param_groups' capturable is
  False.": create the optimizer with Adam(..., capturable=True). SGD does not need this option.
- The loss never changes when a CUDA graph is replayed: the graph reads only the tensors that it
  recorded. Use copy_() to copy new data into these tensors instead of passing new ones.
- A learning-rate schedule has no effect on a CUDA graph: the learning rate was recorded as a
  constant. Create the optimizer with a tensor, lr=torch.tensor(1e-3, device="cuda"), and update
  that tensor with fill_().
- Autocast inside a CUDA graph needs cache_enabled=False. Otherwise, every replay reuses casts of
  outdated weights.
- If a CUDA graph contains the whole training step, do not set gradients to None between replays:
  the gradient tensors belong to the graph.
- If a CUDA graph contains only the model, recorded with make_graphed_callables(), set gradients to
  None in each step and do not accumulate them: every backward pass writes to the same buffers
  (pytorch#181723).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 1e-3  # relative to the first loss
WARM_UP = 3  # steps before recording: cuBLAS, autograd and the optimizer allocate lazily


def train_graphed(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train by replaying one recorded step; yields the loss of every step."""
    optimizer = adam(model)
    x, y = (tensor.clone() for tensor in batches[0])  # the graph reads these addresses
    before = [tensor.clone() for tensor in model.state_dict().values()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the default stream cannot be recorded
        for _ in range(WARM_UP):
            one_step(model, optimizer, x, y)
    torch.cuda.current_stream().wait_stream(side)
    rewind(model, optimizer, before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = one_step(model, optimizer, x, y)  # recorded, not run
    for new_x, new_y in batches:
        if new_x.shape == x.shape:
            x.copy_(new_x, non_blocking=True)
            y.copy_(new_y, non_blocking=True)
            graph.replay()
            yield loss  # the same tensor every time: clone() it to keep it
        else:  # a smaller last batch: run this step in Python
            yield one_step(model, optimizer, new_x, new_y)


def one_step(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)  # the graph has recorded the addresses of the gradients
    return loss.detach()


def rewind(model: torch.nn.Module, optimizer: Any, before: list[torch.Tensor]) -> None:
    """Undo the warm-up in place: tensors keep their addresses, which the graph records."""
    for now, then in zip(model.state_dict().values(), before, strict=True):
        now.copy_(then)
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()


def train_half_graphed(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train with only the model recorded, forward and backward; all batches have one shape."""
    recorded = torch.cuda.make_graphed_callables(model, (batches[0][0].clone(),))
    return train_plain(recorded, batches)


def train_plain(model: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train with one launch per kernel; yields the loss of every step."""
    optimizer = adam(model)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # to None: otherwise, a recorded model adds its buffers to themselves
        yield loss.detach()


def adam(model: Any) -> Any:  # capturable: the GPU counts the steps, not Python
    return torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)


def network_and_batches(steps: int, width: int, device: str) -> tuple[Any, list[Batch]]:
    torch.manual_seed(0)
    blocks = [part for _ in range(8) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(width, 10)).to(device)
    teacher = torch.randn(width, 10)
    inputs = ([torch.randn(64, width) for _ in range(8)] * steps)[:steps]
    return model, [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in inputs]


def measured(name: str, steps: Iterator[torch.Tensor]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    torch.cuda.reset_peak_memory_stats()
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<16} loss {losses[-1]:.4f}, {statistics.median(ms):.3f} ms per step ({ms[0]:.3f}"
    print(f"{line} to {ms[-1]:.3f}), peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    asked = parser.parse_args(argv)
    if asked.device == "cpu":
        print("skipped: CUDA graphs need an NVIDIA GPU")
        return 0
    shape = (asked.steps, asked.width, asked.device)
    plain = measured("launch by launch", train_plain(*network_and_batches(*shape)))
    whole = measured("step recorded", train_graphed(*network_and_batches(*shape)))
    half = measured("model recorded", train_half_graphed(*network_and_batches(*shape)))
    off = max(float((losses - plain).abs().max() / plain[0]) for losses in (whole, half))
    held = off <= TOLERANCE and bool(plain[-1] < plain[0])
    figures = f"losses within {off:.1e} of eager, relative to the first (tolerance {TOLERANCE:.0e})"
    print(f"{'proved' if held else 'not proved'}: {figures}; {plain[0]:.3f} -> {plain[-1]:.3f}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

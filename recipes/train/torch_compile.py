"""torch.compile: run the model as generated code, and choose a mode.

What it does: Dynamo turns the Python of the forward pass into graphs; Inductor writes fused kernels
for them and their backward pass: Triton on a GPU, C++ on a CPU. The first steps compile.

When it helps: many small operations in a row; the same shapes for thousands of steps. The mode
"reduce-overhead" adds CUDA graphs (small batches); "max-autotune" tries many kernels, slowly.

When it hurts: short runs that never pay back the compile time; shapes that keep changing.

How to see it: the time of the first step against later ones; the number of graphs. Each print() or
.item() in forward() breaks one: TORCH_LOGS="graph_breaks" shows where, fullgraph=True forbids it.

Troubleshooting:
- "torch._dynamo hit config.recompile_limit" (earlier: cache_size_limit): the shape keeps changing.
  Use drop_last=True, pad to a few lengths, or torch.compile(dynamic=True).
- "No working C++ compiler found", "Compiler: cl is not found": install g++ or clang; on Windows
  start from the command prompt of the C++ build tools.
- "Cannot find a working triton installation", "Failed to find C compiler", "Python.h: No such
  file": Triton needs gcc and python3-dev; on Windows, pip install triton-windows.
- "too old to be supported by the triton GPU compiler": it needs capability 7.0 (not GTX 10, P100).
- "Dynamo is not supported on Python 3.13+", or similar: use a newer torch or an older Python.
- "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run": clone()
  what you keep, or call torch.compiler.cudagraph_mark_step_begin() before each step.
- "Unexpected key(s) in state_dict: "_orig_mod.": save the original model, or use model.compile().
- With dropout the loss differs from eager mode: random numbers are drawn in a different order.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 1e-3  # of the eager loss: fused kernels round in another order
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def train(model: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train the model as it is or compiled: the same lines; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A residual block and a head; one graph, since forward() never leaves the tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + torch.nn.functional.gelu(self.inner(self.norm(x))))


def labeled(steps: int, width: int, device: str) -> list[Batch]:
    torch.manual_seed(0)
    teacher, inputs = torch.randn(width, 10), [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return Network(width).to(device)


def graphs(width: int, device: str, sizes: Sequence[int], *, dynamic: bool) -> int:
    """How many graphs batches of these sizes cost; a backend that only counts compiles nothing."""
    from torch._dynamo.testing import CompileCounter  # not above: it takes long to import

    torch.compiler.reset()
    counter = CompileCounter()
    model = torch.compile(network(width, device), backend=counter, dynamic=dynamic)
    for size in sizes:
        model(torch.randn(size, width, device=device))
    return int(counter.frame_count)


def missing_compiler(device: str) -> str | None:
    """Why Inductor cannot make code here, None where it can or where only a try can tell."""
    if device == "cuda" and torch.cuda.get_device_capability() < (7, 0):
        return "torch.compile needs a GPU of capability 7.0 or newer, and this one is older"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "torch.compile needs Triton (on Windows: pip install triton-windows)"
    cpu = (os.environ.get("CXX", "g++"), "clang++", "cl")
    known = cpu if device == "cpu" else (os.environ.get("CC", "gcc"), "clang", "cl")
    if (device == "cuda" and os.name == "nt") or any(shutil.which(name) for name in known):
        return None  # Triton for Windows has its own
    return f"torch.compile needs a compiler, and PATH has none of {', '.join(known)}"


def measured(name: str, steps: Iterator[torch.Tensor]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[len(clock) // 4 :]))
    line = f"{name:<15} loss {losses[-1]:.5f}, first step {clock[1] - clock[0]:.1f} s, then"
    print(f"{line} {statistics.median(ms):.2f} ms ({ms[0]:.2f} to {ms[-1]:.2f})")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all on a GPU")
    parser.add_argument("--backend", default="inductor", help="aot_eager needs no compiler")
    asked = parser.parse_args(argv)
    if asked.backend == "inductor" and (why := missing_compiler(asked.device)):
        print(f"skipped: {why}")
        return 0
    shape = (asked.width, asked.device)
    one = graphs(*shape, (64, 64, 64), dynamic=False)
    two = graphs(*shape, (64, 64, 44), dynamic=False)  # a smaller last batch
    dyn = graphs(*shape, (64, 64, 44), dynamic=True)
    batches, off = labeled(asked.steps, *shape), 0.0
    plain = measured("eager", train(network(*shape), batches))
    for mode in asked.mode or (MODES if asked.device == "cuda" else MODES[:1]):
        torch.compiler.reset()
        model = torch.compile(network(*shape), backend=asked.backend, mode=mode)
        fused = measured(mode, train(model, batches))
        off = max(off, float((fused - plain).abs().max() / plain[0]))
    held = off <= TOLERANCE and bool(plain[-1] < plain[0] / 2) and (one, two, dyn) == (1, 2, 1)
    figures = f"losses within {off:.1e} of eager, relative to the first (tolerance {TOLERANCE:.0e})"
    graphs_made = f"{one} graph for one shape, {two} for two, {dyn} with dynamic=True"
    print(f"{'proved' if held else 'not proved'}: {figures}; {graphs_made}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

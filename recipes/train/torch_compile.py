"""torch.compile: generate fused kernels for the model, and choose a mode.

What it does: Dynamo turns the Python code of the forward pass into graphs. Inductor generates fused
kernels for these graphs and their backward pass, in Triton on a GPU and in C++ on a CPU. The first
steps are slow, because they compile the model.

When it helps: the model runs many small operations in a row, and the shapes stay the same for
thousands of steps. The "reduce-overhead" mode adds CUDA graphs, which help with small batches;
"max-autotune" tries many kernels, so compilation takes longer.

When it hurts: in short runs, the time saved never makes up for the compile time, and shapes that
keep changing cause recompilation.

How to check: compare the time of the first step with that of later steps, and count the graphs.
Each print() or .item() in forward() splits a graph in two. To see where, set
TORCH_LOGS="graph_breaks"; to turn a graph break into an error, pass fullgraph=True.

Troubleshooting:
- "torch._dynamo hit config.recompile_limit" (cache_size_limit in older versions): the input shape
  keeps changing. Use drop_last=True, pad to a few fixed lengths, or use
  torch.compile(dynamic=True).
- "No working C++ compiler found", "Compiler: cl is not found": install g++ or clang. On Windows,
  start Python from the command prompt of the Visual C++ build tools.
- "Cannot find a working triton installation", "Failed to find C compiler", "Python.h: No such
  file": Triton needs gcc and python3-dev to be installed. On Windows, run pip install
  triton-windows.
- "too old to be supported by the triton GPU compiler": Triton needs compute capability 7.0 or
  higher, so it does not support GTX 10 series GPUs or the P100.
- "Dynamo is not supported on Python 3.13+", or a similar message: use a newer release of torch or
  an older Python version.
- "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run": call
  clone() on the outputs that you keep, or call torch.compiler.cudagraph_mark_step_begin() before
  each step.
- "Unexpected key(s) in state_dict", with keys that start with "_orig_mod.": save the state of the
  original model instead of the compiled one, or compile with model.compile().
- With dropout, the loss of a compiled model differs from the loss in eager mode: compiled code
  draws random numbers in a different order.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, skip

# --- Copy from here ------------------------------------------------------------------------------


def compiled(model: torch.nn.Module, mode: str, backend: str) -> Any:
    """Compile the forward and the backward pass; the first steps of each input shape are slow.

    backend: "inductor" generates code; "aot_eager" only captures the graphs and needs no compiler.
    """
    if backend != "inductor":
        return torch.compile(model, backend=backend)
    return torch.compile(model, mode=mode)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-3  # relative to the first loss: fused kernels round in a different order
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A residual block and a head; one graph, because forward() uses only tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + torch.nn.functional.gelu(self.inner(self.norm(x))))


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return Network(width).to(device)


def train(model: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def eager(model: torch.nn.Module, mode: str, backend: str) -> Any:
    return model


def graphs(width: int, device: str, sizes: tuple[int, ...], *, dynamic: bool) -> int:
    """How many graphs these batch sizes need, with a backend that only counts them."""
    from torch._dynamo.testing import CompileCounter  # here, because the import is slow

    torch.compiler.reset()
    counter = CompileCounter()
    model = torch.compile(network(width, device), backend=counter, dynamic=dynamic)
    for size in sizes:
        model(torch.randn(size, width, device=device))
    return int(counter.frame_count)


def missing_compiler(device: str) -> str | None:
    """Why Inductor cannot generate code here; None if it can, or if only a try can tell."""
    if device == "cuda" and torch.cuda.get_device_capability() < (7, 0):
        return "torch.compile needs a GPU with compute capability 7.0 or higher"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "torch.compile needs Triton (on Windows: pip install triton-windows)"
    cpu = (os.environ.get("CXX", "g++"), "clang++", "cl")
    known = cpu if device == "cpu" else (os.environ.get("CC", "gcc"), "clang", "cl")
    if (device == "cuda" and os.name == "nt") or any(shutil.which(name) for name in known):
        return None  # Triton for Windows includes one
    return f"torch.compile needs a compiler, but none of these is on PATH: {', '.join(known)}"


def prove(proof: Proof) -> None:
    backend = "aot_eager" if proof.small else "inductor"
    if backend == "inductor" and (why := missing_compiler(proof.device)):
        skip(why)
    from torch._dynamo.utils import counters
    from torch._functorch import config as cached_backward
    from torch._inductor import config, metrics

    # Without caches, so that code is generated now and can be counted.
    config.fx_graph_cache = cached_backward.enable_autograd_cache = False
    make = proof.technique(compiled, instead=eager)
    shape = (proof.width, proof.device)
    batches = labeled(proof.steps, *shape)
    plain = proof.train("eager", train(network(*shape), batches))
    for mode in MODES if proof.device == "cuda" and not proof.small else MODES[:1]:
        torch.compiler.reset()
        counters.clear()
        metrics.reset()
        fused = proof.train(mode, train(make(network(*shape), mode, backend), batches))
        off = apart(fused, plain)
        proof.same(
            off <= TOLERANCE and plain[-1] < plain[0],
            f"{mode}: losses within {off:.1e} of eager, relative to the first"
            f" (tolerance {TOLERANCE:.0e})",
        )
        made, breaks = counters["stats"]["unique_graphs"], len(counters["graph_break"])
        written = metrics.generated_kernel_count
        proof.active(
            made == 1 and breaks == 0 and (written > 0 or proof.small),
            f"{mode}: {made} graph with {breaks} graph breaks"
            + (f", {written} generated kernels" if backend == "inductor" else ""),
        )
    one = graphs(*shape, (64, 64, 64), dynamic=False)
    two = graphs(*shape, (64, 64, 44), dynamic=False)  # a smaller last batch
    dyn = graphs(*shape, (64, 64, 44), dynamic=True)
    proof.purpose(
        (one, two, dyn) == (1, 2, 1),
        f"{one} graph for one shape, {two} for two, {dyn} with dynamic=True",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(150, 10), width=128)

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

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, operations_seen, skip

# --- Copy from here ------------------------------------------------------------------------------

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


def adam(model: Any) -> Any:  # capturable: the GPU counts the steps, not Python
    return torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)


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


# --- Copy to here, or from here, if recording the model is enough --------------------------------


def record_model(model: torch.nn.Module, x: torch.Tensor) -> Any:
    """Record only the model, forward and backward; the loss and the optimizer stay in Python."""
    return torch.cuda.make_graphed_callables(model, (x.clone(),))


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = 1e-3  # relative to the first loss


def train_half_graphed(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train with only the model recorded."""
    return train_plain(record_model(model, batches[0][0]), batches)


def train_plain(model: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train with one launch per kernel; yields the loss of every step."""
    optimizer = adam(model)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # to None: otherwise, a recorded model adds its buffers to themselves
        yield loss.detach()


def network_and_batches(steps: int, width: int, device: str) -> tuple[Any, list[Batch]]:
    torch.manual_seed(0)
    blocks = [part for _ in range(8) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(width, 10)).to(device)
    return model, labeled(steps, width, device)


Training = Callable[[torch.nn.Module, list[Batch]], Iterator[torch.Tensor]]


def operations(train: Training, width: int, device: str) -> tuple[Counter[str], int]:
    """What Python runs in four steps after the first, and how much that is per step."""
    steps = train(*network_and_batches(5, width, device))
    next(steps)  # with the warm-up and the recording
    with operations_seen() as seen:
        count = len(list(steps))
    return Counter(name.removeprefix("aten::") for name in seen.names), len(seen.names) // count


def prove(proof: Proof) -> None:
    if proof.device == "cpu":
        skip("CUDA graphs need an NVIDIA GPU")
    train = proof.technique(train_graphed, instead=train_plain)
    train_half = proof.technique(train_half_graphed, instead=train_plain)

    def run(name: str, how: Training) -> list[float]:
        return proof.train(name, how(*network_and_batches(proof.steps, proof.width, proof.device)))

    plain = run("launch by launch", train_plain)
    whole, half = run("step recorded", train), run("model recorded", train_half)
    off, off_half = apart(whole, plain), apart(half, plain)
    proof.same(
        max(off, off_half) <= TOLERANCE and plain[-1] < plain[0],
        f"losses within {off:.1e} of plain training if the step is recorded, within {off_half:.1e}"
        f" if only the model is (tolerance {TOLERANCE:.0e})",
    )
    (_, count_plain), (seen, count), (seen_half, _) = (
        operations(how, proof.width, proof.device) for how in (train_plain, train, train_half)
    )
    proof.active(
        set(seen) == {"copy_"} and seen_half["addmm"] == 0,
        f"if the step is recorded, Python runs only {', '.join(sorted(seen)[:5])}; if the model is,"
        f" addmm {seen_half['addmm']} times",
    )
    proof.purpose(
        count == 2 < count_plain,
        f"operations that Python runs per step: {count} instead of {count_plain}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(200, 40), width=128)

"""Synchronizations: find the lines that make the CPU wait for the GPU, and wait less often.

What it does: the GPU works through a queue while Python goes on. loss.item(), print(loss), `if
tensor > 0`, tensor.cpu(), tensor.tolist() and boolean indexing make Python wait until the queue is
empty, and then the GPU waits for Python. This recipe sums the loss on the GPU and reads it once in
many steps. To find such lines, torch.cuda.set_sync_debug_mode("warn") prints a warning at each of
them, and "error" raises.

When it helps: the steps are short, such as with small models, small batches or many small kernels.

When it hurts: nothing gets slower. The loss that you log is older by some steps, and a NaN is
noticed later.

How to check: run a few steps under torch.cuda.set_sync_debug_mode("warn"). In a profile, look for
cudaStreamSynchronize and for "Memcpy DtoH".

Troubleshooting:
- "called a synchronizing CUDA operation": the warning of set_sync_debug_mode; the line that it
  names waits for the GPU.
- A line that looks cheap takes most of the time in a Python profile: it only waits for kernels that
  were queued before. Measure with torch.cuda.Event or after torch.cuda.synchronize().
- Copies wait although non_blocking=True is set: the source must be in pinned memory. For a copy to
  the CPU, call synchronize() before you read the data.
- GradScaler.step() and clip_grad_norm_(error_if_nonfinite=True) read a number from the GPU in each
  step; that is by design.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, labeled, main, operations_seen, perceptron

# --- Copy from here ------------------------------------------------------------------------------


def train_without_waiting(model: Any, batches: Iterable[Batch], every: int) -> Iterator[float]:
    """Yields the mean loss of every `every` steps: one wait instead of one per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    total = torch.zeros((), device=next(model.parameters()).device)
    for step, (x, y) in enumerate(batches, 1):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()  # stays on the GPU
        if step % every == 0:
            yield total.item() / every  # the only line that waits
            total.zero_()


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-5  # relative to the first loss: the same numbers, summed in fp32
READ = "aten::_local_scalar_dense"  # what item(), float() and `if tensor` call


def train_waiting(model: Any, batches: Iterable[Batch], every: int) -> Iterator[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    total = 0.0
    for step, (x, y) in enumerate(batches, 1):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        if step % every == 0:
            yield total / every
            total = 0.0


def prove(proof: Proof) -> None:
    train = proof.technique(train_without_waiting, instead=train_waiting)
    batches, every = labeled(proof.steps, proof.width, proof.device), 10
    runs, waits = [], []
    for name, way in (("a wait in every step", train_waiting), ("few waits", train)):
        with operations_seen() as seen:
            model = perceptron(proof.width, proof.device)
            runs.append(proof.train(name, way(model, batches, every)))
        waits.append(seen.names.count(READ))
    off = max(abs(a - b) for a, b in zip(*runs, strict=True)) / runs[0][0]
    proof.same(off <= TOLERANCE, f"logged losses within {off:.1e} (tolerance {TOLERANCE:.0e})")
    proof.active(
        waits[1] == proof.steps // every,
        f"Python read {waits[1]} numbers from the device in {proof.steps} steps",
    )
    proof.purpose(waits[1] < waits[0], f"with item() in every step, it read {waits[0]}")


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 40), width=128)

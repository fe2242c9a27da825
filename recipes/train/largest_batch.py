"""The largest batch that fits: search, with safe recovery from out-of-memory.

What it does: one whole step is tried with 1, 2, 4 ... samples until memory ends, then in between,
by halves. What a failed try held is let go before the next. Larger batches are trained in parts.

When it helps: one script for GPUs of different size; a GPU with memory left over.

When it hurts: a larger batch is another training, with another rate. A busy GPU gets no faster.

How to see it: the sizes tried, below; torch.cuda.max_memory_allocated() of one step.

What goes wrong, and the way out:
- "CUDA out of memory. Tried to allocate" again with each smaller batch: the retry runs in `except`,
  where the exception holds the frames and these the tensors. Leave it first, keep nothing.
- It fits in the search and fails in training: the search skipped backward or optimizer.step(), that
  make gradients and moments. Or another process takes memory: leave a margin.
- "1.50 GiB is reserved by PyTorch but unallocated": fragments, of many sizes in turn. Set
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start; empty_cache() after a failure.
- On Windows it becomes slow instead: "CUDA - Sysmem Fallback Policy" in NVIDIA's panel is on.
- The weights have changed after the search: search with a copy, and with the longest samples.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # of the loss: sums in another order
MEMORY_ERRORS = ("out of memory", "can't allocate memory", "_ALLOC_FAILED")
WIDTH, MOST = 256, 1 << 20


class Held:
    """What backward needs: it counts against a planted limit until nobody holds it."""

    used_bytes, limit_bytes = 0, 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.size = tensor.detach(), tensor.numel() * tensor.element_size()
        Held.used_bytes += self.size
        if Held.used_bytes > Held.limit_bytes > 0:
            raise torch.cuda.OutOfMemoryError("planted: out of memory")  # torch.*, from 2.5 on

    def __del__(self) -> None:
        Held.used_bytes -= self.size


def fits(step: Callable[[int], object], batch: int) -> bool:
    """Whether one step with this batch ends; whatever it held is free again afterwards."""
    failed = False
    try:
        step(batch)
    except RuntimeError as error:  # OutOfMemoryError is one
        if not any(part in str(error) for part in MEMORY_ERRORS):
            raise
        failed = True  # no more in here: the exception still holds every tensor of the step
    if failed:
        gc.collect()  # frames in cycles
        torch.cuda.empty_cache()  # does nothing without a GPU
    return not failed


def largest(step: Callable[[int], object]) -> tuple[int, list[int]]:
    """The largest batch whose step fits, 0 where none does, and all that were tried."""
    tried, good, bad = [1], 0, 1
    while bad <= MOST and fits(step, bad):
        good, bad = bad, bad * 2
        tried.append(bad)
    while bad - good > 1:
        tried.append((good + bad) // 2)
        good, bad = (tried[-1], bad) if fits(step, tried[-1]) else (good, tried[-1])
    return good, tried


def network(device: str) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def step_in_parts(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor, part: int) -> float:
    """One whole training step, in parts of this size; the loss of all."""
    total, device = 0.0, next(model.parameters()).device
    for some_x, some_y in zip(x.split(part), y.split(part), strict=True):
        with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
            scores = model(some_x.to(device))  # only this part lies on the device
            loss = torch.nn.functional.cross_entropy(scores, some_y.to(device))
        (loss * (len(some_x) / len(x))).backward()
        total += loss.item() * len(some_x) / len(x)
    optimizer.step()
    optimizer.zero_grad()
    return total


def limit_memory(device: str, limit_bytes: int) -> None:
    """The planted limit of a CPU, a share of a GPU's memory; 0 takes it away."""
    Held.limit_bytes = limit_bytes if device == "cpu" else 0
    if device == "cuda":
        share = limit_bytes / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(share or 1.0)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args(argv)
    device, model = asked.device, network(asked.device)[0]

    def step(batch: int) -> None:
        trial = copy.deepcopy(model)
        x, y = torch.zeros(batch, WIDTH), torch.zeros(batch, dtype=torch.int64)
        step_in_parts(trial, torch.optim.Adam(trial.parameters()), x, y, batch)

    limit_memory(device, (8 if device == "cpu" else 256) << 20)
    started = time.perf_counter()
    found, tried = largest(step)
    print(f"tried {', '.join(map(str, tried))} in {time.perf_counter() - started:.2f} s")
    # A GPU's memory comes in blocks: there the next batch that must fail is a good deal larger.
    larger = found + (1 if device == "cpu" else found // 4)
    if not fits(step, found) or fits(step, larger) or Held.used_bytes:
        print(f"not proved: {found} is not the largest that fits; {Held.used_bytes} bytes are left")
        return 1
    x, optimizer = torch.randn(3 * found + 1, WIDTH), torch.optim.Adam(model.parameters(), lr=1e-3)
    y = x[:, :10].argmax(1)
    parts = [step_in_parts(model, optimizer, x, y, found) for _ in range(asked.steps)]
    too_many = not fits(lambda batch: step_in_parts(*network(device), x, y, batch), len(x))
    limit_memory(device, 0)
    model, optimizer = network(device)
    whole = [step_in_parts(model, optimizer, x, y, len(x)) for _ in range(asked.steps)]
    off, limit = float((torch.tensor(parts) - torch.tensor(whole)).abs().max()), TOLERANCE[device]
    held = too_many and off <= limit and whole[-1] < whole[0]
    print(
        f"{'proved' if held else 'not proved'}: {found} fit, {larger} do not; 0 bytes are left of"
        f" {len(tried)} tries; {len(x)} in parts of {found} have the losses of all at once within"
        f" {off:.1e} (tolerance {limit:.0e}), which fell to {whole[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

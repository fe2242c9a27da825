"""The largest batch that fits: search for it, and recover safely from out-of-memory errors.

What it does: the search runs two training steps with 1, 2, 4 ... samples until memory runs out, and
then bisects to find the largest batch size that fits. After each failed attempt, the search frees
the memory of that attempt. Batches larger than the size found are then split and trained in parts.

When it helps: you run the same script on GPUs with different amounts of memory, or the GPU has
memory to spare.

When it hurts: a larger batch changes how the model trains and needs a different learning rate. If
the GPU is already fully utilized, a larger batch does not make training faster.

How to check: after two training steps, compare torch.cuda.max_memory_allocated() with the total
memory of the GPU.

Troubleshooting:
- "CUDA out of memory. Tried to allocate" appears again, with ever smaller batches: you retry inside
  the `except` block, where the exception keeps the tensors of the failed step alive. Leave the
  block before you retry, and keep no reference to the exception.
- The batch size that the search finds is too large for training: the search must include backward()
  and a second step, because the optimizer state is in memory only from the second step on. Train
  with 90% of the batch size that the search finds.
- "1.50 GiB is reserved by PyTorch but unallocated": the memory is fragmented because blocks of many
  different sizes were allocated. Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before you
  start Python, and call torch.cuda.empty_cache() after a failed attempt.
- On Windows, training gets slow instead of running out of memory: turn off the "CUDA - Sysmem
  Fallback Policy" setting in the NVIDIA Control Panel.
- The batch-size search changes the weights of the model: run the search on a copy of the model.
- If samples differ in length, run the batch-size search with the longest samples, because they need
  the most memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # of the loss; summation order differs
MEMORY_ERRORS = ("out of memory", "not enough memory", "can't allocate memory", "_ALLOC_FAILED")
WIDTH, MOST = 128, 1 << 20


def fits(step: Callable[[int], object], batch: int) -> bool:
    """Whether a step with this batch size succeeds; frees all its memory before returning."""
    try:
        step(batch)
    except RuntimeError as error:  # includes OutOfMemoryError
        if not any(part in str(error) for part in MEMORY_ERRORS):
            raise
    else:
        return True
    # Outside `except`, because the exception keeps every tensor of the step alive.
    gc.collect()  # reference cycles of frames
    torch.cuda.empty_cache()  # does nothing without a GPU
    return False


def largest(step: Callable[[int], object]) -> int:
    """The largest batch whose step fits; 0 if none does."""
    good, bad = 0, 1
    while bad <= MOST and fits(step, bad):
        good, bad = bad, bad * 2
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(step, middle):
            good = middle
        else:
            bad = middle
    return good


def train(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, part: int, steps: int
) -> Iterator[float]:
    """Training steps, each split into parts of this size; yields the loss of each step."""
    optimizer, device = torch.optim.Adam(model.parameters()), next(model.parameters()).device
    for _ in range(steps):
        total = 0.0
        for some_x, some_y in zip(x.split(part), y.split(part), strict=True):
            scores = model(some_x.to(device))  # only this part is on the device
            loss = torch.nn.functional.cross_entropy(scores, some_y.to(device))
            (loss * (len(some_x) / len(x))).backward()
            total += loss.item() * len(some_x) / len(x)
        optimizer.step()
        optimizer.zero_grad()
        yield total


def trial(model: torch.nn.Module, batch: int) -> None:
    """Two steps on a copy: the second needs memory for activations and optimizer state."""
    x, y = torch.zeros(batch, WIDTH), torch.zeros(batch, dtype=torch.int64)
    list(train(copy.deepcopy(model), x, y, batch, 2))


class SmallMemory(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """For this check: a CPU with little memory for tensors, which fails as a GPU does."""

    limit_bytes, sizes = 1_875_000, WeakIdKeyDictionary()

    def __torch_dispatch__(self, function: Any, _: Any, args: Any, kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        known = [tensor.untyped_storage() for tensor in args if torch.is_tensor(tensor)]
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if torch.is_tensor(tensor) and tensor.untyped_storage() not in known:
                self.sizes[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        if sum(self.sizes.values()) > self.limit_bytes:  # entries of freed tensors are gone
            raise torch.cuda.OutOfMemoryError("planted: out of memory")  # since 2.5: torch.*
        return result


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(device)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")  # NVIDIA's images enable TF32
    device, on_gpu, small = asked.device, asked.device == "cuda", SmallMemory()
    used = torch.cuda.memory_allocated if on_gpu else lambda: sum(small.sizes.values())
    x, parts = torch.randn(1 << 18 if on_gpu else 500, WIDTH), list[float]()
    y = x[:, :10].argmax(1)
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction((256 << 20) / torch.cuda.mem_get_info()[1])
    with contextlib.nullcontext() if on_gpu else small:
        model = network(device)
        found = largest(step := functools.partial(trial, model))
        before, larger = used(), found + (found // 2 if on_gpu else 1)  # GPUs allocate blocks
        right = fits(step, found) and not fits(step, larger)
        left = used() - before
        trains = fits(lambda part: parts.extend(train(model, x, y, part, asked.steps)), found)
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(1.0)
    whole = list(train(network(device), x, y, len(x), asked.steps))
    off = max((abs(a - b) for a, b in zip(parts, whole, strict=False)), default=float("nan"))
    held = right and trains and left == 0 and off <= TOLERANCE[device] and whole[-1] < whole[0]
    print(
        f"{'proved' if held else 'not proved'}: {found} samples fit, {larger} do not; {left} bytes"
        f" leaked; losses of {len(x)} samples in parts of {found} are within {off:.1e} of one pass"
        f" (tolerance {TOLERANCE[device]:.0e})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

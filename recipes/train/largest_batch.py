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

import contextlib
import copy
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from proof import Proof, apart, main
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

# --- Copy from here ------------------------------------------------------------------------------

MEMORY_ERRORS = ("out of memory", "not enough memory", "can't allocate memory", "_ALLOC_FAILED")


def fits(step: Callable[[int], object], batch: int) -> bool:
    """Whether a step with this batch size succeeds; frees all its memory before returning.

    The step must include backward() and two updates, on a copy of the model.
    """
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


def largest(step: Callable[[int], object], most: int = 1 << 20) -> int:
    """The largest batch whose step fits; 0 if none does. Train with 90% of it."""
    good, bad = 0, 1
    while bad <= most and fits(step, bad):
        good, bad = bad, bad * 2
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(step, middle):
            good = middle
        else:
            bad = middle
    return good


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # of the loss; summation order differs
WIDTH = 128


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
    """A CPU with little memory for tensors, which fails as a GPU does; counts its errors."""

    limit_bytes = 1_875_000

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.errors = WeakIdKeyDictionary(), 0

    def used(self) -> int:
        return sum(self.sizes.values())  # entries of freed tensors are gone

    def __torch_dispatch__(self, function: Any, _: Any, args: Any, kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        known = [tensor.untyped_storage() for tensor in args if torch.is_tensor(tensor)]
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if torch.is_tensor(tensor) and tensor.untyped_storage() not in known:
                self.sizes[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        if self.used() > self.limit_bytes:
            self.errors += 1
            raise torch.cuda.OutOfMemoryError("planted: out of memory")  # since 2.5: torch.*
        return result


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(device)


def guessed(step: Callable[[int], object]) -> int:
    """The batch size of someone else's GPU."""
    return 64


def prove(proof: Proof) -> None:
    torch.set_float32_matmul_precision("highest")  # NVIDIA's images enable TF32
    search: Any = proof.technique(largest, instead=guessed)
    on_gpu, small = proof.device == "cuda", SmallMemory()
    used = torch.cuda.memory_allocated if on_gpu else small.used

    def errors() -> int:
        return int(torch.cuda.memory_stats()["num_ooms"]) if on_gpu else small.errors

    x = torch.randn(1 << 18 if on_gpu else 500, WIDTH)
    y = x[:, :10].argmax(1)
    parts: list[float] = []
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction((256 << 20) / torch.cuda.mem_get_info()[1])
    with contextlib.nullcontext() if on_gpu else small:
        model = network(proof.device)
        step = functools.partial(trial, model)
        before, errors_before = used(), errors()
        found = search(step)
        left, met = used() - before, errors() - errors_before
        larger = found + (found // 2 if on_gpu else 1)  # GPUs allocate blocks
        right = fits(step, found) and not fits(step, larger)
        at_once = fits(lambda size: list(train(copy.deepcopy(model), x, y, size, 2)), len(x))
        trains = fits(lambda size: parts.extend(train(model, x, y, size, proof.steps)), found)
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(1.0)
    whole = list(train(network(proof.device), x, y, len(x), proof.steps))
    off, limit = apart(parts, whole), TOLERANCE[proof.device]
    proof.same(
        off <= limit and whole[-1] < whole[0],
        f"after the search, losses of {len(x)} samples in parts of {found} are within {off:.1e} of"
        f" one pass (tolerance {limit:.0e})",
    )
    proof.active(
        met > 1 and left == 0,
        f"the search ran out of memory {met} times and left {left} bytes allocated",
    )
    proof.purpose(
        right and trains and not at_once,
        f"{found} samples fit, {larger} {'do not' if right else 'do, too'}; {len(x)} samples"
        f" {'fit' if at_once else 'do not fit'} at once and {'fit' if trains else 'do not fit'} in"
        " parts",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(20, 5))

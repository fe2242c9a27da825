"""Optimizer steps as a for-loop, as a few grouped operations, or as one fused kernel.

What it does: torch can compute an AdamW or SGD update in three ways. The for-loop runs several
small operations per tensor; foreach=True groups the tensors into a few operations; fused=True does
the whole update in one pass over memory. The default is foreach on CUDA and the for-loop on a CPU.

When it helps: the model has many parameter tensors (as transformers do) and the batches are small,
so the optimizer takes up a large part of each step. fused=True also works on CPUs (Adam, AdamW and
SGD; torch 2.4 and newer). With a GradScaler, the fused kernel itself divides the gradients by the
loss scale and skips the update if they overflow, so the host does not have to wait.

When it hurts: foreach=True needs temporary copies as large as the parameters, which may not fit on
a nearly full GPU (in that case, use fused=True or foreach=False). If the model has only a few large
tensors, the gain is small.

How to check: this script prints how many milliseconds optimizer.step() takes in each variant. In a
profile, look for "Optimizer.step".

Troubleshooting:
- "`fused` and `foreach` cannot be `True` together.": set only one of them to True; None lets torch
  choose.
- "`fused=True` requires all the params to be floating point Tensors of supported devices": a
  parameter is complex or on an unsupported device. Move the model to its device before you create
  the optimizer.
- torch.cuda.OutOfMemoryError in optimizer.step(), even though the forward and backward passes fit
  in memory: foreach=True makes temporary copies. Use fused=True, which does not.
- After you load a checkpoint, the optimizer uses a different implementation (`fused`, `foreach` or
  the for-loop): load_state_dict() takes `fused` and `foreach` from the checkpoint. Set both options
  again in optimizer.param_groups.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
Optimizer = Callable[[Any], Any]
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the largest weight; rounding differs
ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01)
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
FORMS: dict[str, dict[str, bool]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def train(
    model: torch.nn.Module, batches: list[Batch], make: Optimizer
) -> Iterator[tuple[torch.Tensor, float]]:
    """Train with an optimizer; yields the loss of every step and the seconds of its update."""
    optimizer = make(model.parameters())
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        started = now(x.device)
        optimizer.step()
        seconds = now(x.device) - started
        optimizer.zero_grad()
        yield loss.detach(), seconds


def now(device: torch.device) -> float:
    """The time after the device has finished: a GPU runs behind Python."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def network(depth: int, width: int, device: str) -> torch.nn.Module:
    """Many small tensors, as in a transformer."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(depth):
        parts += [torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts).to(device)


def waves(steps: int, width: int, device: str) -> list[Batch]:
    torch.manual_seed(0)
    inputs = [torch.randn(16, width) for _ in range(8)]
    return [(x.to(device), (0.5 * x.sin()).to(device)) for x in (inputs * steps)[:steps]]


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def measured(name: str, steps: Iterator[tuple[torch.Tensor, float]]) -> tuple[float, float]:
    """Print the time per update; return the first and the last loss."""
    losses: list[float] = []
    ms: list[float] = []
    for loss, seconds in steps:
        losses.append(loss.item())
        ms.append(1e3 * seconds)
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<15} loss {losses[-1]:.5f}, {statistics.median(ms):.3f} ms per update"
    print(f"{line} ({ms[0]:.3f} to {ms[-1]:.3f})")
    return losses[0], losses[-1]


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    asked = parser.parse_args(argv)
    batches = waves(asked.steps, asked.width, asked.device)
    off: dict[str, float] = {}
    learned = True
    for kind, make in (("AdamW", ADAMW), ("SGD", SGD)):
        plain: torch.Tensor | None = None
        for form, how in FORMS.items():
            model = network(asked.depth, asked.width, asked.device)
            steps = train(model, batches, partial(make, **how))
            first, last = measured(f"{kind} {form}", steps)
            learned = learned and last < first
            if plain is None:
                plain = weights(model)
            off[f"{kind} {form}"] = float((weights(model) - plain).abs().max() / plain.abs().max())
    # A nan compares as False, so it never passes.
    limit = TOLERANCE[asked.device]
    held = learned and all(value <= limit for value in off.values())
    far = ", ".join(f"{name} {value:.1e}" for name, value in off.items() if "for-loop" not in name)
    print(
        f"{'proved' if held else 'not proved'}: after {asked.steps} updates, the largest"
        f" differences from the for-loop's weights, relative to the largest weight, are {far}"
        f" (tolerance {limit:.0e})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

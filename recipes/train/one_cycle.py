"""A learning-rate schedule: one cycle.

What it does: OneCycleLR raises the rate from a small value to max_lr and lowers it to almost zero
at the last step; momentum moves the other way. High rates explore, low rates converge.

When it helps: the number of steps is known, and with a constant rate the noise of small batches
prevents convergence.

When it hurts: training that stops early never reaches the low rates; training that continues after
the end no longer learns. Fine-tuning may need a smaller max_lr than training from scratch.

How to see it: scheduler.get_last_lr() at the first, the highest and the last step, below.

Troubleshooting:
- The loss hardly falls and the rate stays in the warm-up: step() was called once per epoch. Call it
  after every optimizer.step(), and count total_steps in these.
- "Tried to step 101 times. The specified number of total steps is 100": total_steps is less than
  epochs * len(loader), or the loader became longer. With gradient accumulation, count only the
  optimizer's steps, and call it only after them.
- "Detected call of `lr_scheduler.step()` before `optimizer.step()`": the order is wrong, or
  GradScaler skipped its first step: call it only if scaler.get_scale() did not fall.
- The optimizer's lr has no effect: OneCycleLR overwrites it with max_lr / div_factor.
- "optimizer must support momentum or beta1 with `cycle_momentum` option enabled": for SGD without
  momentum, pass cycle_momentum=False.
- After loading a checkpoint the rate starts over: save and load scheduler.state_dict() too.
- The loss is nan near the top: max_lr is too high. Raise it until the loss wobbles, then halve it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

Data = tuple[torch.Tensor, torch.Tensor]
MAX_LR = 0.1
MARGIN = 0.2  # the loss must be lower by this share at least


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).to(device)


def samples(count: int, seed: int, noise: float, device: str) -> Data:
    """A smooth function with noise, so that each small batch points somewhere else."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7)) / 2
    x = torch.randn(count, 16, generator=draw)
    y = torch.tanh(x @ teacher).sum(1, keepdim=True)
    return x.to(device), (y + noise * torch.randn(count, 1, generator=draw)).to(device)


def schedule(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=MAX_LR, total_steps=steps)


def train(
    model: torch.nn.Module, data: Data, steps: int, rate: float | None
) -> tuple[list[float], list[float]]:
    """Train with this rate, or with one cycle; rate and milliseconds of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate or MAX_LR, momentum=0.9)
    scheduler = None if rate else schedule(optimizer, steps)
    draw = torch.Generator().manual_seed(1)
    rates, clock = list[float](), [time.perf_counter()]
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (16,), generator=draw).to(data[0].device)
        loss = torch.nn.functional.mse_loss(model(data[0][chosen]), data[1][chosen])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()  # after each batch: total_steps counts batches
        optimizer.zero_grad()
        loss.item()  # waits for the device
        clock.append(time.perf_counter())
    return rates, sorted(1e3 * (end - start) for start, end in itertools.pairwise(clock))


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: torch.nn.Module, data: Data) -> float:
    """The loss on points that were not learned from."""
    return float(torch.nn.functional.mse_loss(model(data[0]), data[1]))


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=800)
    asked = parser.parse_args(argv)
    data, unseen = samples(20_000, 1, 1.0, asked.device), samples(4000, 2, 0.0, asked.device)
    ways: dict[str, float | None] = {
        f"constant {MAX_LR / divisor:.2g}": MAX_LR / divisor for divisor in (1, 3, 10, 30)
    }
    ways["one cycle"] = None
    losses: dict[str, float] = {}
    for name, rate in ways.items():
        model = network(asked.device)
        rates, ms = train(model, data, asked.steps, rate)
        losses[name] = judged(model, unseen)
        line = f"{name:<14} loss {losses[name]:.4f} on unseen points"
        print(f"{line}, {statistics.median(ms):.2f} ms per step ({ms[0]:.2f} to {ms[-1]:.2f})")
    cycle = losses.pop("one cycle")
    best = min(losses, key=lambda name: losses[name])
    turned = rates[0] < 0.1 * MAX_LR and max(rates) > 0.99 * MAX_LR and rates[-1] < 0.001 * MAX_LR
    held = turned and cycle < losses[best] * (1 - MARGIN)
    print(
        f"{'proved' if held else 'not proved'}: after {asked.steps} steps {cycle:.4f} instead of"
        f" {losses[best]:.4f}, the best of {len(losses)} constant rates ({best}; at least"
        f" {MARGIN:.0%} lower); the rate went from {rates[0]:.3f} through {max(rates):.3f} to"
        f" {rates[-1]:.1e}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

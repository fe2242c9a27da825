"""One-cycle schedule: raise the learning rate, then lower it to almost zero.

What it does: OneCycleLR raises the learning rate from a small value to max_lr and lowers it to
almost zero by the last step; momentum moves in the opposite direction. High learning rates help the
optimizer explore, and low learning rates help it converge.

When it helps: you know the number of training steps in advance, and the noise from small batches
prevents convergence at a constant learning rate.

When it hurts: training that stops early never reaches the low learning rates, and training that
continues past the end of the schedule learns almost nothing more. Fine-tuning may need a smaller
max_lr than training from scratch.

How to check: look at the learning rate at the first step, at its peak and at the last step. This
script prints all three values; in your own code, call scheduler.get_last_lr().

Troubleshooting:
- The loss hardly decreases and the learning rate never leaves the warm-up phase: scheduler.step()
  was called once per epoch. Call it after every optimizer.step(), and set total_steps to the number
  of optimizer steps.
- "Tried to step 101 times. The specified number of total steps is 100": total_steps is less than
  epochs * len(loader), or the number of batches in the loader has increased. With gradient
  accumulation, count only optimizer steps, and call scheduler.step() only after each of them.
- "Detected call of `lr_scheduler.step()` before `optimizer.step()`": the two calls are in the wrong
  order, or GradScaler skipped the first optimizer step. With a GradScaler, call scheduler.step()
  only if scaler.update() has not lowered scaler.get_scale().
- The learning rate that you passed to the optimizer has no effect: OneCycleLR overwrites it with
  max_lr / div_factor.
- "optimizer must support momentum or beta1 with `cycle_momentum` option enabled": for SGD without
  momentum, pass cycle_momentum=False to OneCycleLR.
- The learning-rate schedule starts over after a checkpoint is loaded: save scheduler.state_dict()
  in the checkpoint, and load it when you resume.
- The loss becomes nan near the peak of the learning rate: max_lr is too high. To find a good value,
  raise max_lr until the loss becomes unstable, then halve it.
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
MARGIN = 0.2  # the loss must be lower by at least this share


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).to(device)


def samples(count: int, seed: int, noise: float, device: str) -> Data:
    """A smooth function with noise, so that small batches have noisy gradients."""
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
    """Train with a constant rate, or with one cycle; returns rates and milliseconds per step."""
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
            scheduler.step()  # after each batch, because total_steps counts batches
        optimizer.zero_grad()
        loss.item()  # waits for the device
        clock.append(time.perf_counter())
    return rates, sorted(1e3 * (end - start) for start, end in itertools.pairwise(clock))


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: torch.nn.Module, data: Data) -> float:
    """The loss on points that were not used for training."""
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
        f"{'proved' if held else 'not proved'}: after {asked.steps} steps, the loss is {cycle:.4f}"
        f" instead of {losses[best]:.4f} with {best}, the best of {len(losses)} constant rates"
        f" (required: at least {MARGIN:.0%} lower); the learning rate went from"
        f" {rates[0]:.3f} through {max(rates):.3f} to {rates[-1]:.1e}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

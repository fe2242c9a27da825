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

from collections.abc import Callable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, main, updates_seen

# --- Copy from here ------------------------------------------------------------------------------


def train_one_cycle(
    model: torch.nn.Module, batches: list[Batch], max_lr: float
) -> Iterator[torch.Tensor]:
    """Train with one cycle; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=max_lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=max_lr,
        total_steps=len(batches),  # epochs * len(loader)
    )
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()  # after each batch, because total_steps counts batches
        optimizer.zero_grad()
        yield loss.detach()


# --- Copy to here. The rest is the proof. --------------------------------------------------------

MAX_LR = 0.1
MARGIN = 0.2  # the loss must be lower by at least this share


def train_constant(
    model: torch.nn.Module, batches: list[Batch], rate: float
) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh())
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).to(device)


def points(count: int, seed: int, noise: float, device: str) -> Batch:
    """A smooth function with noise, so that small batches have noisy gradients."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(7)) / 2
    x = torch.randn(count, 16, generator=draw)
    y = torch.tanh(x @ teacher).sum(1, keepdim=True)
    return x.to(device), (y + noise * torch.randn(count, 1, generator=draw)).to(device)


def schedule_of(optimizer: Any) -> tuple[float, float]:
    """The learning rate and the momentum of this update."""
    group = optimizer.param_groups[0]
    return float(group["lr"]), float(group["momentum"])


def prove(proof: Proof) -> None:
    x, y = points(16 * proof.steps, 1, 1.0, proof.device)
    batches = list(zip(x.split(16), y.split(16), strict=True))
    unseen = points(4000, 2, 0.0, proof.device)

    def run(name: str, train: Callable[..., Iterator[torch.Tensor]], rate: float) -> float:
        """The loss on points that are not used for training."""
        model = network(proof.device)
        proof.train(name, train(model, batches, rate))
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(model(unseen[0]), unseen[1]))

    constant = {
        rate: run(f"constant {rate:.2g}", train_constant, rate)
        for rate in (MAX_LR / divisor for divisor in (1, 3, 10, 30))
    }
    train = proof.technique(train_one_cycle, instead=train_constant)
    with updates_seen(schedule_of) as seen:
        cycle = run("one cycle", train, MAX_LR)
    rates, momenta = ([values[i] for values in seen] for i in (0, 1))
    proof.active(
        rates[0] < 0.1 * MAX_LR
        and max(rates) > 0.99 * MAX_LR
        and rates[-1] < 0.001 * MAX_LR
        and momenta[0] > momenta[rates.index(max(rates))] < momenta[-1],
        f"in {len(rates)} updates, the learning rate went from {rates[0]:.3f} through"
        f" {max(rates):.3f} to {rates[-1]:.1e}, the momentum from {momenta[0]:.2f} through"
        f" {min(momenta):.2f} to {momenta[-1]:.2f}",
    )
    best = min(constant, key=lambda rate: constant[rate])
    proof.purpose(
        cycle < constant[best] * (1 - MARGIN),
        f"the loss on unseen points is {cycle:.4f} instead of {constant[best]:.4f} at the constant"
        f" rate {best:.2g}, the best of {len(constant)} (required: at least {MARGIN:.0%} lower)",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(800, 400))

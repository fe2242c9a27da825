"""Learning-rate range test, and scaling the learning rate with the batch size.

What it does: lr_range_test() trains for a few hundred steps while the learning rate rises from very
small to far too large, and notes the loss of each step. A good rate lies clearly below the one at
which the loss is lowest; beyond it, training diverges. The model is unchanged afterwards. When the
batch grows by a factor, the rate grows with it: by the same factor with SGD, by its square root
with Adam.

When it helps: a new model, data set or optimizer, for which you know no rate; or you move to more
GPUs or a larger batch and do not want to search again.

When it hurts: the test sees only the first steps. Rates that are good later, or with warm-up or
weight decay, can be higher or lower by a factor of three. Scaling holds only up to a critical batch
size; above it, more samples per step do not reduce the number of steps. With large factors, add
warm-up.

How to check: plot the losses over the rates, and train with the suggested rate, a third of it and
three times it. For scaling, compare the loss after the same number of samples.

Troubleshooting:
- The range test suggests a rate that diverges: dropout, warm-up or a long training make a smaller
  one necessary. Divide by three.
- The curve of the range test is noisy: use more steps or larger batches; the losses are smoothed
  here.
- The range test shows no minimum: start lower and end higher (1e-7 to 10).
- Training after the range test starts with bad weights: restore the state of the model and create
  a new optimizer, as below. BatchNorm statistics are part of the state.
- The loss is worse with more GPUs: under DDP, the batch of a step is the batch of one process times
  the number of processes. Scale the learning rate.
- A larger batch needs more epochs to the same loss: the rate was not scaled, or the batch is above
  the critical size.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from proof import Batch, Proof, main, perceptron, train_plain

# --- Copy from here ------------------------------------------------------------------------------


def lr_range_test(
    model: torch.nn.Module,
    new_optimizer: Callable[[Any], torch.optim.Optimizer],
    loss_of: Callable[[Any, Any], torch.Tensor],
    batches: Iterable[Any],
    low: float = 1e-5,
    high: float = 10.0,
    steps: int = 200,
) -> tuple[float, list[tuple[float, float]]]:
    """A learning rate to start from, and the smoothed loss at every rate that was tried."""
    before = copy.deepcopy(model.state_dict())
    optimizer, curve, mean = new_optimizer(model.parameters()), list[tuple[float, float]](), 0.0
    for step, batch in enumerate(itertools.islice(itertools.cycle(batches), steps)):
        rate = low * (high / low) ** (step / (steps - 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = 0.9 * mean + 0.1 * loss.item()
        curve.append((rate, mean / (1 - 0.9 ** (step + 1))))
        if not curve[-1][1] < 4 * min(found for _, found in curve):
            break  # it diverges
    model.load_state_dict(before)
    return min(curve, key=lambda tried: tried[1])[0] / 10, curve


def scaled_lr(lr: float, batch: int, new_batch: int, adaptive: bool) -> float:
    """The rate for another batch size. adaptive: Adam and its relatives, instead of SGD."""
    factor = new_batch / batch
    return lr * (math.sqrt(factor) if adaptive else factor)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
GRID = [10.0**power for power in (-4, -3, -2, -1, 0, 1)]
WIDTH, SMALL, LARGE = 64, 16, 64  # batch sizes


def fixed_rate(model: Any, *_: Any, **__: Any) -> Any:
    return 1e-3, [(1e-3, 0.0)]  # the default of many optimizers


def same_rate(lr: float, *_: Any, adaptive: bool) -> float:
    return lr


def stream(samples: int, batch: int, device: str) -> list[Batch]:
    """The same new samples in the same order, in batches of this size."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, WIDTH, generator=draw)
    y = (x @ torch.randn(WIDTH, 10, generator=draw)).argmax(1)
    parts = zip(x.split(batch), y.split(batch), strict=True)
    return [(a.to(device), b.to(device)) for a, b in parts]


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def final(batches: list[Batch], lr: float, device: str) -> float:
    """The mean loss over the last quarter of a training, infinite if it diverges."""
    losses = [float(loss) for loss in train_plain(perceptron(WIDTH, device), batches, lr)]
    tail = losses[-(len(losses) // 4) :]
    mean = sum(tail) / len(tail)
    return mean if math.isfinite(mean) else math.inf


def prove(proof: Proof) -> None:
    device = proof.device
    find: Any = proof.technique(lr_range_test, instead=fixed_rate)
    scale: Any = proof.technique(scaled_lr, instead=same_rate)
    batches = stream(proof.samples, SMALL, device)
    model, used = perceptron(WIDTH, device), list[float]()
    before = copy.deepcopy(model.state_dict())

    class Watched(torch.optim.SGD):  # type: ignore[misc, unused-ignore]
        def step(self, closure: Any = None) -> Any:
            used.append(self.param_groups[0]["lr"])
            return super().step(closure)

    rate, curve = find(model, lambda weights: Watched(weights, lr=0.1), loss_of, batches)
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    proof.same(same, f"the model is {'' if same else 'not '}the same after the test")
    best, last = min(loss for _, loss in curve), curve[-1][1]
    proof.active(
        len(used) > 50 and max(used) > 1e3 * min(used) and last > 1.5 * best,
        f"{len(used)} updates with rates from {min(used, default=0):.0e} to"
        f" {max(used, default=0):.2g}; at the last, the loss is {last:.3g} instead of {best:.3g}",
    )
    reached = {lr: final(batches, lr, device) for lr in GRID}
    print("rate, loss: " + ", ".join(f"{lr:g}, {loss:.3f}" for lr, loss in reached.items()))
    ours = final(batches, rate, device)
    proof.purpose(
        ours <= 1.2 * min(reached.values()),
        f"the suggested rate {rate:.2g} reaches a loss of {ours:.3f}; the best of {len(GRID)} rates"
        f" reaches {min(reached.values()):.3f}",
    )
    start, large = 0.1, stream(proof.samples, LARGE, device)  # below the largest rate that is good
    small = final(batches, start, device)
    bigger = scale(start, SMALL, LARGE, adaptive=False)
    scaled, unscaled = (final(large, lr, device) for lr in (bigger, start))
    proof.purpose(
        abs(scaled - small) < 0.3 * (unscaled - small),
        f"batch {LARGE} instead of {SMALL}, same samples: the loss is {scaled:.3f} with the rate"
        f" {bigger:g} instead of {small:.3f} with {start:g}; unscaled, it is {unscaled:.3f}",
    )


if __name__ == "__main__":
    main(__doc__, prove, samples=(12_800, 6_400))

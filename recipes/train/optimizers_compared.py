"""Optimizers compared fairly: SGD, AdamW, Lion and Muon with the same budget.

What it does: compared() trains every optimizer with the same number of learning rates, steps and
seeds, picks the best rate of each by the validation loss, and reports the loss over seeds that
took no part in the choice. Lion is included, because torch does not have it: it moves every weight
by the same amount, in the direction of the sign of its momentum.

When it helps: you want to replace the optimizer of a training, or you read that a new one is
better. Most such results come from a baseline with an untuned learning rate.

When it hurts: the ranking holds for this model, this budget and this data. A small task says
nothing about a large language model; here, the task only shows how to compare. The tuning costs as
many trainings as there are rates.

How to check: the best rate must lie inside the range that was tried, not at its end. Differences
smaller than the spread between seeds are not decided. Compare time per step and memory too: Lion
and SGD keep one value per weight, AdamW two, and Muon computes more per step.

Troubleshooting:
- A new optimizer is much better than AdamW: check that AdamW got as many learning rates, and the
  same schedule and weight decay.
- Lion diverges: its rate must be 3 to 10 times smaller than AdamW's, and its weight decay larger by
  the same factor.
- SGD does not learn a transformer: without warm-up and a large enough rate, it needs far more steps
  than Adam.
- The result changes with the seed: use more seeds, and report the smallest and the largest loss.
- "module 'torch.optim' has no attribute 'Muon'": it needs torch 2.9 or newer; this script leaves it
  out below.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from proof import Proof, labeled, main, perceptron

# --- Copy from here ------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Every weight moves by lr, in the direction of the sign of a momentum."""

    def __init__(self, weights: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        for group in self.param_groups:
            for weight in (w for w in group["params"] if w.grad is not None):
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * mean.lerp(weight.grad, 0.1).sign())
                mean.lerp_(weight.grad, 0.01)


def compared(
    candidates: Mapping[str, Any],
    rates: Mapping[str, Sequence[float]],
    train: Callable[[Any, float, int], float],
    seeds: int,
) -> dict[str, tuple[float, list[float]]]:
    """Best rate by seed 0, and the loss with the other seeds; the same budget for each.

    train: optimizer, rate and seed -> validation loss.
    """
    if len({len(tried) for tried in rates.values()}) != 1:
        raise ValueError("not the same number of rates for each optimizer")
    found = {}
    for name, make in candidates.items():
        best = min(rates[name], key=lambda rate: train(make, rate, 0))
        found[name] = best, [train(make, best, seed) for seed in range(1, seeds + 1)]
    return found


# --- Copy to here. The rest is the proof. --------------------------------------------------------
SHARED, WIDTH = 1e-3, 64  # the rate that AdamW has by default


def at_one_rate(candidates: Any, rates: Any, train: Any, seeds: int) -> Any:
    """The mistake: the same rate for all."""
    return {
        name: (SHARED, [train(make, SHARED, seed) for seed in range(1, seeds + 1)])
        for name, make in candidates.items()
    }


def sgd(model: Any, lr: float) -> list[Any]:
    return [torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)]


def adamw(model: Any, lr: float) -> list[Any]:
    return [torch.optim.AdamW(model.parameters(), lr=lr)]


def lion(model: Any, lr: float) -> list[Any]:
    return [Lion(model.parameters(), lr=lr)]


def muon(model: Any, lr: float) -> list[Any]:
    rest = [model[0].bias, *model[-1].parameters()]
    hidden = torch.optim.Muon([model[0].weight], lr=lr, adjust_lr_fn="match_rms_adamw")
    return [hidden, torch.optim.AdamW(rest, lr=lr)]


def first_move(make: Any, device: str) -> tuple[float, float]:
    """The cosine of the first update and the gradient; how equal the steps of all weights are."""
    model = perceptron(WIDTH, device)
    x, y = labeled(1, WIDTH, device)[0]
    torch.nn.functional.cross_entropy(model(x), y).backward()
    weight = model[0].weight
    before = weight.detach().clone()
    for optimizer in make(model, 1e-3):
        optimizer.step()
    moved, pulled = before - weight.detach(), weight.grad
    parallel = torch.nn.functional.cosine_similarity(moved.flatten(), pulled.flatten(), dim=0)
    return float(parallel), float(moved.abs().median() / moved.abs().max())


def prove(proof: Proof) -> None:
    device, steps = proof.device, proof.steps
    candidates = {"SGD": sgd, "AdamW": adamw, "Lion": lion}
    if hasattr(torch.optim, "Muon"):
        candidates["Muon"] = muon
    # Each has five rates, a factor of about three apart, around the usual one.
    middle = {"SGD": 0.1, "AdamW": 3e-3, "Lion": 1e-3, "Muon": 1e-2}
    rates = {name: [middle[name] * 10 ** (p / 2) for p in range(-2, 3)] for name in candidates}
    data = labeled(8, WIDTH, device, size=256)
    training, (x, y) = data[:7], data[7]
    runs, updates = Counter[str](), Counter[str]()

    def train(make: Any, lr: float, seed: int) -> float:
        model = perceptron(WIDTH, device, seed=seed)
        optimizers = make(model, lr)
        for step in range(steps):
            own, wanted = training[step % 7]
            torch.nn.functional.cross_entropy(model(own), wanted).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            updates[make.__name__] += 1
        runs[make.__name__] += 1
        loss = float(torch.nn.functional.cross_entropy(model(x), y).detach())
        return loss if math.isfinite(loss) else math.inf

    compare = proof.technique(compared, instead=at_one_rate)
    found = compare(candidates, rates, train, proof.seeds)
    budget, taken = dict(runs), set(updates.values())
    shared = at_one_rate(candidates, rates, train, proof.seeds)
    for name, (rate, losses) in found.items():
        worst = sum(shared[name][1]) / proof.seeds
        print(
            f"{name:<6} best rate {rate:.2g}, validation loss {sum(losses) / len(losses):.3f}"
            f" ({min(losses):.3f} to {max(losses):.3f}); at the rate {SHARED}, {worst:.3f}"
        )
    inner = [name for name in found if min(rates[name]) < found[name][0] < max(rates[name])]
    proof.active(
        set(budget.values()) == {proof.seeds + 5} and len(taken) == 1 and len(inner) >= 2,
        f"each optimizer had {max(budget.values())} runs with {max(taken)} updates; the best rate"
        f" of {', '.join(inner) or 'none'} is inside the range",
    )
    moves = {name: first_move(make, device) for name, make in candidates.items()}
    proof.active(
        moves["SGD"][0] > 0.999 > moves["AdamW"][0] and moves["Lion"][1] > 0.99 > moves["SGD"][1],
        "first updates differ: "
        + ", ".join(f"{name} {p:.0%} along the gradient" for name, (p, _) in moves.items()),
    )
    mean = {name: sum(losses) / len(losses) for name, (_, losses) in found.items()}
    untuned = {name: sum(losses) / len(losses) for name, (_, losses) in shared.items()}
    last = max(untuned, key=lambda name: untuned[name])
    better = sorted(name for name in mean if mean[name] > mean[last])
    proof.purpose(
        better and all(mean[name] <= untuned[name] for name in mean),
        f"at the rate {SHARED}, {last} comes last with {untuned[last]:.3f}; with the best rate of"
        f" each, it reaches {mean[last]:.3f}, better than {', '.join(better) or 'none'}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 40), seeds=(3, 2))

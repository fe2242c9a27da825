"""Freezing layers: train the head, leave the backbone as it is.

What it does: requires_grad=False saves the backbone's gradients and optimizer state, eval() stops
its BatchNorm statistics and dropout, and the optimizer gets only the parameters that learn. If the
inputs are the same in every epoch, you can even compute the backbone's features once.

When it helps: fine-tuning with little data, or a head on a large pretrained model.

When it hurts: the new task needs different features: unfreeze the upper layers, with a small
learning rate. Precomputed features allow no augmentation, unless you augment copies.

How to see it: sum(p.numel() for p in model.parameters() if p.requires_grad), and time per step.

Troubleshooting:
- The frozen part still changes: BatchNorm updates its running statistics in train mode, and
  model.train() switches the backbone back. Call backbone.eval() after every model.train().
- "element 0 of tensors does not require grad and does not have a grad_fn": everything is frozen, or
  the whole forward pass ran under torch.no_grad(). Only the backbone may.
- Unfrozen layers do not learn: the optimizer does not have them. Use optimizer.add_param_group().
- "Precompute the gradients once and reuse them": a gradient belongs to the weights at which it was
  computed. After one step it is a different one, and the old one misleads (shown below). Only the
  features of the frozen part are constant.
- "Expected to have finished reduction in the prior iteration": freeze before DDP wraps the model.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # of the first loss: the same features, computed once


def freeze(backbone: torch.nn.Module) -> None:
    """The technique: no gradients, and nothing in it that moves."""
    backbone.requires_grad_(False)
    backbone.eval()


def train_frozen(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """Train the head behind the frozen backbone; yields the loss of every step."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)  # knows only what learns
    for x, y in epoch * epochs:
        with torch.no_grad():
            features = backbone(x)
        loss = torch.nn.functional.cross_entropy(head(features), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_on_features(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """The features of each batch once, then the head alone; yields the loss of every step."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
    with torch.no_grad():  # an epoch later it is the same batch again
        known = [(backbone(x), y) for x, y in epoch]
    for features, y in known * epochs:
        loss = torch.nn.functional.cross_entropy(head(features), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_on_gradients(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """The mistake: the gradients of each batch once, applied again in every epoch."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
    kept: list[tuple[torch.Tensor, ...]] = []
    for step, (x, y) in enumerate(epoch * epochs):
        loss = torch.nn.functional.cross_entropy(head(backbone(x)), y)
        if step < len(epoch):
            kept.append(torch.autograd.grad(loss, tuple(head.parameters())))
        for weight, gradient in zip(head.parameters(), kept[step % len(epoch)], strict=True):
            weight.grad = gradient
        optimizer.step()
        yield loss.detach()


def parts(width: int, device: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A backbone, as if pretrained, and a fresh head."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(32, width), torch.nn.BatchNorm1d(width)
    backbone = torch.nn.Sequential(linear, norm, torch.nn.ReLU(), torch.nn.Dropout(0.1))
    return backbone.to(device), torch.nn.Linear(width, 10).to(device)


def labeled(device: str) -> list[Batch]:
    """Eight batches with a random linear teacher's labels."""
    torch.manual_seed(0)
    teacher, inputs = torch.randn(32, 10), [torch.randn(64, 32) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in inputs]


def measured(name: str, steps: Iterator[torch.Tensor]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    losses: list[float] = []
    clock = [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<23} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=160, help="eight make an epoch")
    parser.add_argument("--width", type=int, default=256)
    asked = parser.parse_args(argv)
    batches, epochs = labeled(asked.device), max(1, asked.steps // 8)
    runs: list[torch.Tensor] = []
    unchanged = True
    for train in (train_frozen, train_on_features, train_on_gradients):
        backbone, head = parts(asked.width, asked.device)
        freeze(backbone)
        before = [tensor.clone() for tensor in backbone.state_dict().values()]
        runs.append(measured(train.__name__, train(backbone, head, batches, epochs)))
        after = backbone.state_dict().values()
        unchanged &= all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    frozen, *others = runs
    off, off_gradients = (float((run - frozen).abs().max() / frozen[0]) for run in others)
    limit = TOLERANCE[asked.device]
    held = unchanged and off <= limit < off_gradients and bool(frozen[-1] < frozen[0])
    print(
        f"{'proved' if held else 'not proved'}: the frozen part is"
        f" {'unchanged, bit for bit' if unchanged else 'changed'}; with precomputed features no"
        f" loss differs by more than {off:.1e} of the first ({limit:.0e} allowed), with"
        f" precomputed gradients by {off_gradients:.1e}; the loss fell from {frozen[0]:.3f} to"
        f" {frozen[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

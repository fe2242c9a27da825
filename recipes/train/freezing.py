"""Freezing layers: train the head and leave the backbone unchanged.

What it does: with requires_grad=False, the backbone needs no gradients and no optimizer state.
backbone.eval() turns off dropout and stops BatchNorm from updating its statistics. Only the
trainable parameters are passed to the optimizer. If the inputs are the same in every epoch, you can
even compute the backbone's features once and reuse them.

When it helps: you fine-tune with little data, or train a head on a large pretrained model.

When it hurts: the new task needs features that the backbone does not provide. In that case,
unfreeze the upper layers and train them with a small learning rate. Precomputed features also rule
out augmentation, unless you compute them for augmented copies of the data.

How to check: compare the time per step with and without freezing, and count the trainable
parameters with sum(p.numel() for p in model.parameters() if p.requires_grad).

Troubleshooting:
- The frozen part of the model still changes: BatchNorm updates its running statistics in train
  mode, and model.train() switches the frozen backbone back to train mode. Call backbone.eval()
  after every model.train().
- "element 0 of tensors does not require grad and does not have a grad_fn": all layers are frozen,
  or the whole forward pass ran under torch.no_grad(). Keep the head trainable, and run only the
  backbone under torch.no_grad().
- Layers that you unfroze do not learn: their parameters were not passed to the optimizer. Add them
  with optimizer.add_param_group().
- Do not precompute gradients and reuse them: a gradient is valid only for the weights at which it
  was computed, and every optimizer step changes these weights. Only the features of the frozen
  layers are constant. This script shows how reused gradients change the loss.
- "Expected to have finished reduction in the prior iteration": DDP waits for gradients of layers
  that were frozen after the model was wrapped. Freeze the layers before you wrap the model in DDP.
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
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # relative to the first loss: same features, computed once


def freeze(backbone: torch.nn.Module) -> None:
    """The technique: no gradients, and no state that changes."""
    backbone.requires_grad_(False)
    backbone.eval()


def train_frozen(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """Train the head on top of the frozen backbone; yields the loss of every step."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)  # only the parameters that learn
    for x, y in epoch * epochs:
        with torch.no_grad():
            features = backbone(x)
        loss = torch.nn.functional.cross_entropy(head(features), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_on_features(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """Compute the features once, then train only the head; yields the loss of every step."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
    with torch.no_grad():  # the batches are the same in every epoch
        known = [(backbone(x), y) for x, y in epoch]
    for features, y in known * epochs:
        loss = torch.nn.functional.cross_entropy(head(features), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_on_gradients(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """The mistake: compute gradients once per batch and reuse them in every epoch."""
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
    """A backbone, assumed to be pretrained, and a new head."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(32, width), torch.nn.BatchNorm1d(width)
    backbone = torch.nn.Sequential(linear, norm, torch.nn.ReLU(), torch.nn.Dropout(0.1))
    return backbone.to(device), torch.nn.Linear(width, 10).to(device)


def labeled(device: str) -> list[Batch]:
    """Eight batches labeled by a random linear teacher."""
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
    parser.add_argument("--steps", type=int, default=160, help="training steps (8 per epoch)")
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
        f" {'unchanged, bit for bit' if unchanged else 'changed'}; relative to the first loss,"
        f" precomputed features change losses by at most {off:.1e} (tolerance {limit:.0e}),"
        f" precomputed gradients by {off_gradients:.1e}; the loss fell from {frozen[0]:.3f} to"
        f" {frozen[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

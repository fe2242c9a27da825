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

from collections.abc import Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, main

# --- Copy from here ------------------------------------------------------------------------------


def freeze(backbone: torch.nn.Module) -> None:
    """No gradients, and no state that changes; call it again after model.train()."""
    backbone.requires_grad_(False)
    backbone.eval()


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


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # relative to the first loss: same features, computed once


def leave_as_it_is(backbone: torch.nn.Module) -> None:
    pass


def train_whole(backbone: Any, head: Any, epoch: list[Batch], epochs: int) -> Iterator[Any]:
    """Train everything that is not frozen; yields the loss of every step."""
    model = torch.nn.Sequential(backbone, head)
    learns = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(learns, lr=0.2)
    for x, y in epoch * epochs:
        loss = torch.nn.functional.cross_entropy(model(x), y)
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


def prove(proof: Proof) -> None:
    apply = proof.technique(freeze, instead=leave_as_it_is)
    batches, epochs = labeled(proof.device), max(1, proof.steps // 8)
    runs: list[list[float]] = []
    counts: list[int] = []
    changed = 0
    for train in (train_whole, train_on_features, train_on_gradients):
        backbone, head = parts(proof.width, proof.device)
        apply(backbone)
        before = [tensor.clone() for tensor in backbone.state_dict().values()]
        calls: list[int] = []
        backbone.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        runs.append(proof.train(train.__name__, train(backbone, head, batches, epochs)))
        counts.append(len(calls))
        after = backbone.state_dict().values()
        changed += sum(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    frozen, *others = runs
    off, off_gradients = (apart(run, frozen) for run in others)
    limit = TOLERANCE[proof.device]
    proof.same(
        off <= limit < off_gradients and frozen[-1] < frozen[0],
        f"features computed once change losses by at most {off:.1e} (tolerance {limit:.0e}),"
        f" reused gradients by {off_gradients:.1e}",
    )
    proof.active(
        changed == 0, f"{changed} tensors of the backbone changed, bit by bit, in three trainings"
    )
    passes, once = counts[:2]
    proof.purpose(
        once == len(batches) <= passes,
        f"the backbone ran {once} times with its features kept, otherwise {passes} times",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(160, 80), width=256)

"""Gradient accumulation: train on a large batch in several small passes.

What it does: backward() adds the new gradients to the existing ones. If you process several
micro-batches before one optimizer.step() and weight each loss by its share of the samples, you get
the gradient of one large batch.

When it helps: the batch size that you want does not fit in memory, for example because it was
chosen for a larger GPU. Gradient accumulation also lets several GPUs synchronize their gradients
less often.

When it hurts: training does not get faster, because the same amount of arithmetic is merely split
into smaller passes. BatchNorm sees only micro-batches, so its statistics differ from those of the
large batch.

How to check: compare training with micro-batches to training with the large batch. The losses must
match, and the peak memory on a GPU should be lower with micro-batches. On any device, this script
counts the bytes that autograd keeps for the backward pass.

Troubleshooting:
- The gradient is wrong if the last micro-batch is smaller than the others: loss /
  number_of_micro_batches gives the samples of that micro-batch too much weight (this script shows
  the error). Weight each loss by its number of samples, or by its number of target tokens if the
  loss is a mean over tokens.
- With gradient accumulation, the loss explodes, or the learning rate seems too high: the losses of
  the micro-batches were summed without weights. Weight each loss by its share of the samples, and
  use the learning rate of the large batch.
- The last micro-batches of an epoch are never used: `if (i + 1) % n == 0` skips an incomplete group
  at the end. Also call optimizer.step() after the last micro-batch of the epoch.
- "Trying to backward through the graph a second time": inside the loop, you added up the losses and
  called backward() on the sum. Call backward() on each loss instead; this also frees the graph of
  that loss.
- Gradient accumulation is slow under DDP, because every backward pass synchronizes gradients: run
  every micro-batch except the last (both forward and backward) inside a `with model.no_sync():`
  block.
- Gradient accumulation is slow under FSDP2, because every backward pass synchronizes gradients:
  call model.set_requires_gradient_sync(False) for all micro-batches except the last, and
  model.set_requires_gradient_sync(True) for the last.
- If you accumulate gradients with a GradScaler, scale each loss, but call unscale_(), step() and
  update() only once per large batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch
from proof import (
    Batch,
    Proof,
    apart,
    main,
    outputs_seen,
    peak_saved_bytes,
    perceptron,
    updates_seen,
)

# --- Copy from here ------------------------------------------------------------------------------


def train_accumulated(
    model: torch.nn.Module, batches: Iterable[Batch], micro: int
) -> Iterator[torch.Tensor]:
    """Train on micro-batches of at most `micro` samples; yields the loss of every large batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        total = torch.zeros((), device=x.device)
        for part_x, part_y in zip(x.split(micro), y.split(micro), strict=True):
            share = len(part_x) / len(x)  # the last micro-batch may be smaller
            loss = torch.nn.functional.cross_entropy(model(part_x), part_y) * share
            loss.backward()  # adds to .grad, and frees the activations of this micro-batch
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield total


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss; summation order differs


def train_at_once(
    model: torch.nn.Module, batches: Iterable[Batch], micro: int
) -> Iterator[torch.Tensor]:
    """Train on the whole batch in one pass."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_unweighted(
    model: torch.nn.Module, batches: Iterable[Batch], micro: int
) -> Iterator[torch.Tensor]:
    """The mistake: divide each loss by the number of micro-batches, even if one is smaller."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        parts = list(zip(x.split(micro), y.split(micro), strict=True))
        losses = []
        for part_x, part_y in parts:
            loss = torch.nn.functional.cross_entropy(model(part_x), part_y) / len(parts)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        yield torch.stack(losses).sum()


def uneven(steps: int, size: int, width: int, device: str) -> list[Batch]:
    """Epochs of four batches, the last one smaller, as at the end of a real dataset."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(size - (i == 3) * (size // 3), width) for i in range(4)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def prove(proof: Proof) -> None:
    torch.set_float32_matmul_precision("highest")  # NVIDIA's images enable TF32
    batches = uneven(proof.steps, proof.batch, 64, proof.device)
    train = proof.technique(train_accumulated, instead=train_at_once)
    fresh = functools.partial(perceptron, 64, proof.device)
    plain = proof.train("one pass", train_at_once(fresh(), batches, proof.micro))
    wrong = proof.train("equal weights (wrong)", train_unweighted(fresh(), batches, proof.micro))
    model = fresh()
    with outputs_seen(model, torch.nn.GELU) as seen, updates_seen(id) as updates:
        parts = proof.train("micro-batches", train(model, batches, proof.micro))
    (off, off_wrong), limit = (apart(run, plain) for run in (parts, wrong)), TOLERANCE[proof.device]
    proof.same(
        off <= limit < off_wrong and plain[-1] < plain[0],
        f"losses within {off:.1e} of the large batch (tolerance {limit:.0e}), within"
        f" {off_wrong:.1e} if micro-batches of different sizes have equal weights",
    )
    sizes, samples = [len(out) for out in seen], sum(len(x) for x, _ in batches)
    proof.active(
        max(sizes) <= proof.micro and sum(sizes) == samples and len(updates) == len(batches),
        f"{len(updates)} updates from {len(sizes)} passes with at most {max(sizes)} samples each",
    )
    kept: list[int] = []
    for how in (train_at_once, train):
        model = fresh()
        known = (*model.parameters(), *batches[0])
        step = how(model, batches[:1], proof.micro)
        kept.append(peak_saved_bytes(functools.partial(next, step), known))
    proof.purpose(
        kept[1] <= kept[0] * 2 * proof.micro / proof.batch,
        f"at most {kept[1] / 2**10:.0f} KiB kept for backward() at a time instead of"
        f" {kept[0] / 2**10:.0f} KiB",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 12), batch=96, micro=28)

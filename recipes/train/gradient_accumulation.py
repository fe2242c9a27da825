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
match, and the peak memory on a GPU should be lower with micro-batches.

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

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss; summation order differs


def train_plain(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train with the whole batch at once; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_accumulated(
    model: torch.nn.Module, batches: list[Batch], micro: int, *, by_samples: bool = True
) -> Iterator[torch.Tensor]:
    """Train with micro-batches; yields the loss of every large batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        parts = list(zip(x.split(micro), y.split(micro), strict=True))
        total = torch.zeros((), device=x.device)
        for part_x, part_y in parts:
            share = len(part_x) / len(x) if by_samples else 1 / len(parts)
            loss = torch.nn.functional.cross_entropy(model(part_x), part_y) * share
            loss.backward()  # adds to .grad, and frees this part's activations
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield total


def labeled(steps: int, size: int, width: int, device: str) -> list[Batch]:
    """Epochs of four batches, the last one smaller, as at the end of a real dataset."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(size - (i == 3) * (size // 3), width) for i in range(4)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10))
    return torch.nn.Sequential(*layers).to(device)


def measured(name: str, steps: Iterator[torch.Tensor]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    losses: list[float] = []
    clock = [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<24} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument(
        "--micro", type=int, default=28, help="micro-batch size (default: 28, not a divisor)"
    )
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("highest")  # NVIDIA's images enable TF32
    batches = labeled(asked.steps, asked.batch, 64, asked.device)

    def fresh() -> torch.nn.Module:
        return network(64, asked.device)

    plain = measured("one pass", train_plain(fresh(), batches))
    parts = measured("micro-batches", train_accumulated(fresh(), batches, asked.micro))
    naive = train_accumulated(fresh(), batches, asked.micro, by_samples=False)
    wrong = measured("equal weights (wrong)", naive)
    off, off_wrong = (float((losses - plain).abs().max() / plain[0]) for losses in (parts, wrong))
    limit = TOLERANCE[asked.device]
    held = off <= limit < off_wrong and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: relative to the first loss, losses are within"
        f" {off:.1e} of the large batch (tolerance {limit:.0e}), with equal weights for all"
        f" micro-batches within {off_wrong:.1e};"
        f" the loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Gradient clipping under AMP, in the right order.

What it does: clip_grad_norm_ shortens the gradient to a given length where it is longer. Under a
GradScaler the gradients are multiplied by the scale (65536 at first), so that they have to be
unscaled before their length means anything: backward, unscale_, clip, step, update.

When it helps: transformers, recurrent networks, reinforcement learning: rare huge gradients that
would throw the weights away.

When it hurts: a limit below the usual length shortens every step: it is a lower learning rate in
disguise. On a GPU, error_if_nonfinite=True makes the host wait for the length in every step.

How to see it: clip_grad_norm_ returns the length before clipping: log it, and choose the limit so
that only the outliers are cut.

What goes wrong, and the way out:
- Learning nearly stands still, no error: clipped before unscale_. The scaled gradient is cut to the
  limit and then divided by the scale (shown below). Adam hides it, since it divides by the length.
- "unscale_() has already been called on this optimizer since the last update().": once for each
  step; with gradient accumulation only at the last micro-batch. Call update() after each step.
- "unscale_() is being called after step().": the order above.
- "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be
  clipped": with a scaler that is the overflow that it handles: it skips that step. Leave
  error_if_nonfinite at False.
- Each process clips by another length: FSDP1's shards are local to clip_grad_norm_. There:
  model.clip_grad_norm_(). FSDP2 and tensor parallelism keep torch.nn.utils.clip_grad_norm_; what it
  returns is a DTensor: norm.full_tensor() for the log.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 0.02  # of the first loss: fp16 keeps 11 bits
LIMIT = 0.5  # of the gradient's length


def train_plain(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train in fp32 with clipping; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_fp16(model: torch.nn.Module, batches: list[Batch], device: str) -> Iterator[torch.Tensor]:
    """Train in fp16 and clip in the right order; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # from here on the gradients have their real length
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        scaler.step(optimizer)  # knows that they are unscaled, and still skips an overflow
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def train_wrong_order(
    model: torch.nn.Module, batches: list[Batch], device: str
) -> Iterator[torch.Tensor]:
    """The mistake: what is clipped is the scaled gradient; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        scaler.step(optimizer)  # divides by the scale what was already cut
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def labelled(steps: int, width: int, device: str) -> list[Batch]:
    """Points with a teacher's label; now and then a batch of ten times the size, as outliers."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) * (10 if i == 5 else 1) for i in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10))
    return torch.nn.Sequential(*layers).to(device)


def measured(name: str, steps: Iterator[torch.Tensor]) -> torch.Tensor:
    """Run the training and print what a step cost; item() waits until the device has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    losses: list[float] = []
    clock = [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # the first ones warm up
    line = f"{name:<24} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms a step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    asked = parser.parse_args(argv)
    batches = labelled(asked.steps, asked.width, asked.device)

    def fresh() -> torch.nn.Module:
        return network(asked.width, asked.device)

    plain = measured("fp32, clipped", train_plain(fresh(), batches))
    right = measured("fp16, unscale_ then clip", train_fp16(fresh(), batches, asked.device))
    wrong = measured("fp16, clip first (wrong)", train_wrong_order(fresh(), batches, asked.device))
    off, off_wrong = (float((losses - plain).abs().max() / plain[0]) for losses in (right, wrong))
    held = off <= TOLERANCE < off_wrong and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: unscaled before clipping, no step's loss is further"
        f" than {off:.1e} of the first from fp32 (tolerance {TOLERANCE:.0e}); clipped first,"
        f" {off_wrong:.1e}; fp32 fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

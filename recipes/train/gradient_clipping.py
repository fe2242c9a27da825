"""Gradient clipping under AMP, in the right order.

What it does: clip_grad_norm_() scales the gradients down if their norm exceeds a limit. With a
GradScaler, the gradients are multiplied by the loss scale (65536 at first), so you must unscale
them before you clip. The correct order is: backward, unscale_, clip, step, update.

When it helps: training occasionally produces huge gradients that would destroy what the model has
learned, as can happen with transformers, recurrent networks and reinforcement learning.

When it hurts: a limit below the typical gradient norm shrinks every step, which amounts to a lower
learning rate. On a GPU, error_if_nonfinite=True makes the host wait for the norm in every step.

How to check: clip_grad_norm_() returns the norm of the gradients before clipping. Log this norm,
and choose the limit so that only outliers are clipped.

Troubleshooting:
- The model nearly stops learning, without an error: the gradients were clipped before unscale_()
  and then divided by the loss scale (this script shows the effect). Adam hides this mistake,
  because its updates do not depend on the size of the gradients.
- "unscale_() has already been called on this optimizer since the last update().": call unscale_()
  once per step, and call update() after each step. With gradient accumulation, call unscale_() only
  after the last micro-batch.
- "unscale_() is being called after step().": call unscale_() after backward() and before
  clip_grad_norm_(), step() and update().
- "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be
  clipped": with a GradScaler, this means that the gradients overflowed, and the scaler skips that
  step. Leave error_if_nonfinite set to False.
- With FSDP1, each process clips gradients with a different norm: torch.nn.utils.clip_grad_norm_()
  sees only the local shard. Call model.clip_grad_norm_() instead.
- With FSDP2 and tensor parallelism, torch.nn.utils.clip_grad_norm_() works but returns a DTensor.
  To log the norm, use norm.full_tensor().
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 0.02  # relative to the first loss: fp16 has 11 bits of precision
LIMIT = 0.5  # of the gradient norm


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
        scaler.unscale_(optimizer)  # from here on, the gradients have their real norm
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        scaler.step(optimizer)  # does not unscale twice, and still skips overflows
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def train_wrong_order(
    model: torch.nn.Module, batches: list[Batch], device: str
) -> Iterator[torch.Tensor]:
    """The mistake: clip the gradients while scaled; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        scaler.step(optimizer)  # divides the clipped gradients by the scale
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def labeled(steps: int, width: int, device: str) -> list[Batch]:
    """Points labeled by a random teacher; in some batches ten times larger, as outliers."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) * (10 if i == 5 else 1) for i in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10))
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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    asked = parser.parse_args(argv)
    batches = labeled(asked.steps, asked.width, asked.device)

    def fresh() -> torch.nn.Module:
        return network(asked.width, asked.device)

    plain = measured("fp32, clipped", train_plain(fresh(), batches))
    right = measured("fp16, unscale_ then clip", train_fp16(fresh(), batches, asked.device))
    wrong = measured("fp16, clip first (wrong)", train_wrong_order(fresh(), batches, asked.device))
    off, off_wrong = (float((losses - plain).abs().max() / plain[0]) for losses in (right, wrong))
    held = off <= TOLERANCE < off_wrong and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: relative to the first loss, losses are within"
        f" {off:.1e} of fp32 if unscaled before clipping (tolerance {TOLERANCE:.0e}), within"
        f" {off_wrong:.1e} if clipped first;"
        f" the fp32 loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

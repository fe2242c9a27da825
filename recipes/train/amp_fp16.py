"""Mixed precision in fp16, with a gradient scaler.

What it does: torch.autocast runs matrix multiplications and convolutions in fp16; weights,
optimizer state and loss stay in fp32. fp16 cannot represent values below 6e-8, so small gradients
would become zero. GradScaler multiplies the loss by a large factor, divides the gradients by the
same factor before the update, and skips steps in which the gradients overflow.

When it helps: you have a GPU with tensor cores (Volta, Turing or newer), and the layers are wide
enough to keep the GPU busy. Activations take half as much memory in fp16 as in fp32. Turing GPUs
have no fast bf16, so use fp16 on them.

When it hurts: on GPUs without tensor cores (older than Volta, and the GTX 16 series), casting to
fp16 can take more time than fp16 saves. Small models gain little, because they are limited by
Python overhead, not by arithmetic. If bf16 is fast on your GPU (Ampere and newer), use bf16, which
needs no scaler (amp_bf16.py).

How to check: compare the time per step and the peak memory with and without autocast. Also log
scaler.get_scale() over time, and count the gradients that are exactly zero.

Troubleshooting:
- With fp16, the loss is noisy or does not decrease: small gradients underflow. Use GradScaler.
- "Attempting to unscale FP16 gradients.": the model was converted with .half(). Keep the weights in
  fp32 and let autocast do the conversion.
- "No inf checks were recorded for this optimizer.": scaler.step(optimizer) found no gradients. Call
  scaler.scale(loss).backward() first.
- The loss is nan and scaler.get_scale() drops toward zero: an operation in the forward pass
  produces a value above 65504, the largest fp16 value. Run that operation in fp32, under
  torch.autocast(device_type, enabled=False).
- "`torch.cuda.amp.GradScaler(args...)` is deprecated": use torch.amp.GradScaler("cuda"), which is
  available in torch 2.3 and newer.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 0.05  # relative to the fp32 loss: fp16 has 11 bits of precision, and errors add up


def train_plain(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train in fp32; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_fp16(
    model: torch.nn.Module, batches: list[Batch], device: str, *, scaled: bool = True
) -> Iterator[torch.Tensor]:
    """Train in mixed precision; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=scaled)
    for x, y in batches:
        # Only the forward pass and the loss; backward() uses the same types as forward.
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # unscales first, and skips the step if a gradient is inf
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def small_targets(steps: int, width: int, device: str) -> list[Batch]:
    """Targets around 0.0003, averaged over many outputs: gradients too small for fp16."""
    torch.manual_seed(0)
    teacher = torch.randn(width, width) * 3e-4 / width**0.5
    inputs = [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    )
    torch.nn.init.zeros_(model[2].weight)  # start at zero, so that the small targets matter
    torch.nn.init.zeros_(model[2].bias)
    return model.to(device)


def measured(name: str, steps: Iterator[torch.Tensor]) -> list[float]:
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
    line = f"{name:<19} loss {losses[-1]:.3e}, {statistics.median(ms):.2f} ms per step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    asked = parser.parse_args(argv)
    batches = small_targets(asked.steps, asked.width, asked.device)

    def fresh() -> torch.nn.Module:
        return network(asked.width, asked.device)

    plain = measured("fp32", train_plain(fresh(), batches))
    fp16 = measured("fp16 with scaler", train_fp16(fresh(), batches, asked.device))
    bare = train_fp16(fresh(), batches, asked.device, scaled=False)
    unscaled = measured("fp16 without scaler", bare)
    off, off_bare = (abs(losses[-1] - plain[-1]) / plain[-1] for losses in (fp16, unscaled))
    figures = (
        f"the final loss with a scaler is within {off:.1%} of fp32 (tolerance {TOLERANCE:.0%}),"
        f" without a scaler within {off_bare:.1%};"
        f" the fp32 loss fell from {plain[0]:.2e} to {plain[-1]:.2e}"
    )
    held = off <= TOLERANCE < off_bare and plain[-1] < plain[0] / 2
    print(f"{'proved' if held else 'not proved'}: {figures}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

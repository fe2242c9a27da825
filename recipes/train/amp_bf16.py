"""Mixed precision in bf16: autocast without a gradient scaler.

What it does: torch.autocast runs matrix multiplications and convolutions in bf16; weights,
optimizer state and loss stay in fp32. bf16 has the same range as fp32 (down to 1e-38), so gradients
do not underflow and you do not need a GradScaler. However, bf16 has only 8 bits of precision.

When it helps: you have an Ampere or newer GPU, or a CPU with AMX or AVX512-BF16, and the layers are
wide enough to keep the hardware busy. Activations take half as much memory in bf16 as in fp32.

When it hurts: Turing and Volta GPUs emulate bf16, which is slower than fp32; use fp16 on these GPUs
(amp_fp16.py). GPUs older than Volta do not support bf16 at all. Small models gain little, because
they are limited by Python overhead, not by arithmetic. Operations that need more than 8 bits of
precision (long sums, distances, losses) must stay in fp32; autocast keeps the common ones in fp32.

How to check: compare the time per step and the peak memory with and without autocast. A GPU
supports bf16 natively if torch.cuda.get_device_capability() >= (8, 0). Do not rely on
torch.cuda.is_bf16_supported(): it also returns True on GPUs that only emulate bf16.

Troubleshooting:
- "CUBLAS_STATUS_NOT_SUPPORTED": GPUs older than Volta cannot multiply bf16 matrices. This script
  tries such a multiplication first and exits if it fails.
- The loss stops decreasing but never becomes nan: the weights themselves were converted to bf16,
  with model.bfloat16() or model.to(torch.bfloat16), so updates smaller than 1/256 of a weight are
  rounded away. Keep the weights in fp32 and let autocast do the conversion. The third line of this
  script's output shows the effect of bf16 weights.
- "mat1 and mat2 must have the same dtype, but got BFloat16 and Float": a tensor that was computed
  inside the autocast block is used in a matrix multiplication outside the block. Move the
  multiplication into the block, or call .float() on the tensor.
- "Got unsupported ScalarType BFloat16": NumPy has no bf16 type. Call .float() on the tensor before
  you call .numpy().
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 0.02  # relative to the fp32 loss: bf16 has 8 bits of precision, and errors add up


def train_plain(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train in the data type of the weights; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_bf16(model: torch.nn.Module, batches: list[Batch], device: str) -> Iterator[torch.Tensor]:
    """Train in mixed precision; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        # Only the forward pass and the loss; backward() uses the same types as forward.
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def multiplies_bf16(device: str) -> bool:
    """Whether the device supports bf16, natively or emulated; the only way to know is to try."""
    ones = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    try:
        return float((ones @ ones).sum()) == 8**3
    except RuntimeError:
        return False


def labeled(steps: int, width: int, device: str) -> list[Batch]:
    """Points labeled by a random linear teacher; eight batches, repeated."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, 10))
    return torch.nn.Sequential(*layers).to(device)


def measured(name: str, steps: Iterator[torch.Tensor]) -> list[float]:
    """Run the training and print the time per step; item() waits for the device."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<22} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    asked = parser.parse_args(argv)
    if not multiplies_bf16(asked.device):
        print("skipped: this GPU does not support bf16")
        return 0
    batches = labeled(asked.steps, asked.width, asked.device)

    def fresh() -> torch.nn.Module:
        return network(asked.width, asked.device)

    plain = measured("fp32", train_plain(fresh(), batches))
    bf16 = measured("bf16 with autocast", train_bf16(fresh(), batches, asked.device))
    low = [(x.bfloat16(), y) for x, y in batches]
    cast = measured("bf16 weights (wrong)", train_plain(fresh().bfloat16(), low))
    off, off_cast = (abs(losses[-1] - plain[-1]) / plain[-1] for losses in (bf16, cast))
    figures = (
        f"the final loss with autocast is within {off:.1%} of fp32 (tolerance {TOLERANCE:.0%}),"
        f" with bf16 weights within {off_cast:.1%};"
        f" the fp32 loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    held = off <= TOLERANCE < off_cast and plain[-1] < plain[0] / 2
    print(f"{'proved' if held else 'not proved'}: {figures}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

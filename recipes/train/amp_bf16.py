"""Mixed precision in bf16: autocast without a scaler.

What it does: torch.autocast runs matrix products and convolutions in bf16 while the weights, the
optimiser and the loss stay in fp32. bf16 reaches as far as fp32 (1e-38), so nothing underflows and
no GradScaler is needed; it keeps only 8 bits of a number.

When it helps: Ampere and newer GPUs, and CPUs with AMX or AVX512-BF16, on layers wide enough to
feed them; activations take half the memory.

When it hurts: Turing and Volta compute bf16 by detours, slower than fp32, older GPUs not at all:
there fp16 is the one to use (amp_fp16.py). Small models wait for Python, not for arithmetic. What
needs more than 8 bits (long sums, distances, losses) must stay in fp32; autocast leaves the usual
ones there.

How to see it: seconds a step and peak memory below; torch.cuda.get_device_capability() >= (8, 0).
torch.cuda.is_bf16_supported() also says True where bf16 is emulated.

What goes wrong, and the way out:
- "CUBLAS_STATUS_NOT_SUPPORTED": a GPU before Volta multiplies no bf16. It is tried first, below.
- The loss stops falling although nothing is nan: the weights themselves were cast, with
  model.bfloat16() or model.to(torch.bfloat16). An update under 1/256 of a weight is then rounded
  away. Keep the weights in fp32 and let autocast cast (the third line below shows it).
- "mat1 and mat2 must have the same dtype, but got BFloat16 and Float": a product outside of
  autocast with something computed inside. Move it inside, or call .float().
- "Got unsupported ScalarType BFloat16": numpy has no bf16. Call .float() before .numpy().
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 0.02  # of the fp32 loss: bf16 keeps 8 bits, and training adds the errors up


def train_plain(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """Train in the types that the weights have; yields the loss of every step."""
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
        # Only the forward pass and the loss: backward uses the types that forward chose.
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def multiplies_bf16(device: str) -> bool:
    """Whether the device multiplies bf16 at all, by whatever detour; only a try can tell."""
    ones = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    try:
        return float((ones @ ones).sum()) == 8**3
    except RuntimeError:
        return False


def labelled(steps: int, width: int, device: str) -> list[Batch]:
    """Points with the label that a random linear teacher gives them, eight batches in turn."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, 10))
    return torch.nn.Sequential(*layers).to(device)


def measured(name: str, steps: Iterator[torch.Tensor]) -> list[float]:
    """Run the training and print what a step cost; item() waits until the device has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # the first ones warm up
    line = f"{name:<22} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms a step"
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
        print("skipped: this GPU multiplies no bf16")
        return 0
    batches = labelled(asked.steps, asked.width, asked.device)

    def fresh() -> torch.nn.Module:
        return network(asked.width, asked.device)

    plain = measured("fp32", train_plain(fresh(), batches))
    bf16 = measured("bf16 by autocast", train_bf16(fresh(), batches, asked.device))
    low = [(x.bfloat16(), y) for x, y in batches]
    cast = measured("bf16 weights (wrong)", train_plain(fresh().bfloat16(), low))
    off, off_cast = (abs(losses[-1] - plain[-1]) / plain[-1] for losses in (bf16, cast))
    figures = (
        f"bf16 by autocast ends {off:.1%} from the fp32 loss (tolerance {TOLERANCE:.0%}),"
        f" weights cast to bf16 {off_cast:.1%}; fp32 fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    held = off <= TOLERANCE < off_cast and plain[-1] < plain[0] / 2
    print(f"{'proved' if held else 'not proved'}: {figures}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

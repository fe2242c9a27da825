"""TF32 and the precision of fp32 matrix multiplications.

What it does: torch.set_float32_matmul_precision("high") lets tensor cores compute fp32 matrix
multiplications in TF32 (11 bits of precision instead of 24); "medium" lets CPUs use bf16 (8 bits)
and is the same as "high" on CUDA devices. Weights, activations and sums stay in fp32, and the
training code does not change. On CUDA, convolutions use TF32 by default; matrix multiplications do
not.

When it helps: fp32 models with large matrix multiplications run faster on Ampere and newer GPUs. On
most CPUs, set_float32_matmul_precision("high") has no effect, but "medium" uses bf16 if oneDNN
supports it (AMX, AVX512-BF16).

When it hurts: computations that need more than three decimal digits become inaccurate: solvers,
matrix inverses, distances computed from products, long recurrences. Under autocast,
set_float32_matmul_precision() affects only operations that stay in fp32.

How to check: compare the result of a matrix multiplication with the float64 result, as this script
does. Reading back torch's precision settings proves nothing, because they exist on all hardware,
even where they have no effect. The default precision is "highest", or "high" if
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 is set, as in NVIDIA's containers.

Troubleshooting:
- "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. Consider
  setting `torch.set_float32_matmul_precision('high')`": this is only a suggestion from
  torch.compile, not an error.
- "Current status indicate that you have used mix of the legacy and new APIs to set the matmul
  precision": torch 2.9 added a new setting, torch.backends.cuda.matmul.fp32_precision. After you
  set it to "tf32", reading allow_tf32 or get_float32_matmul_precision() raises this error. Use only
  the old API or only the new API in the whole program, including its libraries;
  set_float32_matmul_precision() works in every version.
- torch.set_float32_matmul_precision("high") changes nothing on an Ampere or newer GPU: the
  environment variable NVIDIA_TF32_OVERRIDE=0 turns TF32 off in all NVIDIA libraries.
- Results differ between two GPUs in the third decimal digit: call
  torch.set_float32_matmul_precision("highest"). For convolutions, also set
  torch.backends.cudnn.allow_tf32 = False (in torch 2.9 and newer,
  torch.backends.cudnn.conv.fp32_precision = "ieee").
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
# Two factors, each rounded to the bits of the setting; for fp32, the rounding of the sum.
LIMIT = {"highest": 2.0**-20, "high": 2 * 2.0**-10, "medium": 2 * 2.0**-7}
TOLERANCE = 0.02  # relative to the loss with "highest"


def set_precision(name: str, *, new_api: bool = False) -> None:
    """Set the precision of fp32 matrix multiplications: "highest", "high" or "medium"."""
    if not new_api:
        torch.set_float32_matmul_precision(name)
        return
    # Since torch 2.9, per backend: CUDA has no bf16 setting; the CPU backend is mkldnn (oneDNN).
    torch.backends.cuda.matmul.fp32_precision = "ieee" if name == "highest" else "tf32"
    on_cpu = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[name]
    torch.backends.mkldnn.matmul.fp32_precision = on_cpu


def train(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """The same fp32 loop for every precision; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def error_of_a_product(width: int, device: str) -> float:
    """The largest error of a product, relative to the sum of its absolute terms."""
    torch.manual_seed(1)
    a, b = torch.randn(width, width, device=device), torch.randn(width, width, device=device)
    error = ((a @ b).double() - a.double() @ b.double()).abs()
    return float((error / (a.double().abs() @ b.double().abs())).max())


def has_tf32(device: str) -> bool:
    """Whether the device has TF32 tensor cores: NVIDIA GPUs since Ampere."""
    cuda = device == "cuda" and torch.version.cuda is not None
    return cuda and torch.cuda.get_device_capability() >= (8, 0)


def labeled(steps: int, width: int, device: str) -> list[Batch]:
    """Points labeled by a random linear teacher; eight batches, repeated."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(128, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, 10))
    return torch.nn.Sequential(*layers).to(device)


def measured(name: str, steps: Iterator[torch.Tensor], error: float) -> list[float]:
    """Run the training and print the time per step; item() waits for the device."""
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<8} loss {losses[-1]:.5f}, {statistics.median(ms):.2f} ms per step"
    print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f}), error of a product {error:.1e}")
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--new-api", action="store_true", help="use fp32_precision (torch 2.9 or newer)"
    )
    asked = parser.parse_args(argv)
    if asked.new_api and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        print(f"skipped: fp32_precision needs torch 2.9; this is {torch.__version__}")
        return 0
    batches = labeled(asked.steps, asked.width, asked.device)
    ends: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name in LIMIT:
        set_precision(name, new_api=asked.new_api)
        errors[name] = error_of_a_product(asked.width, asked.device)
        losses = measured(name, train(network(asked.width, asked.device), batches), errors[name])
        ends[name] = losses[-1]
    same = [name for name in ("high", "medium") if errors[name] == errors["highest"]]
    if same:
        print(f"{' and '.join(same)}: no effect on matrix multiplications on this device")
    off = max(abs(end - ends["highest"]) / ends["highest"] for end in ends.values())
    held = off <= TOLERANCE and all(errors[name] <= LIMIT[name] for name in LIMIT)
    if has_tf32(asked.device):
        held = held and errors["high"] > errors["highest"]
    bounds = ", ".join(f"{name} {errors[name]:.1e} <= {LIMIT[name]:.1e}" for name in LIMIT)
    ends_at = f"all losses within {off:.2%} of highest (tolerance {TOLERANCE:.0%})"
    print(f"{'proved' if held else 'not proved'}: {ends_at}; error of a product {bounds}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

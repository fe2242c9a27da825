"""channels-last: store the channels of each pixel next to each other in memory.

What it does: a channels-last tensor keeps the shape (batch, channels, height, width). Only the
memory layout changes, to the one that tensor cores and oneDNN use. You convert only the model and
its input; the layers of the model preserve the layout.

When it helps: convolutional networks run faster under AMP on GPUs with tensor cores, and on many
CPUs.

When it hurts: models without convolutions, with few channels, or with grouped convolutions that
have no fast kernel can become slower. A layer that supports only the contiguous layout forces two
conversions in every step: to the contiguous layout and back.

How to check: call x.is_contiguous(memory_format=torch.channels_last) on the output of each layer
(this script counts the layers for which the result is True), and compare the time per step with and
without channels-last. In a profile, the conversion kernels (nchwToNhwc, nhwcToNchw) should no
longer appear.

Troubleshooting:
- "view size is not compatible with input tensor's size and stride (at least one dimension spans
  across two contiguous subspaces). Use .reshape(...) instead.": replace view() with flatten(1) or
  reshape().
- "required rank 4 tensor to use channels_last format": only image batches (4 dimensions) can use
  channels_last; for volumes (5 dimensions), use torch.channels_last_3d. Convert only the images,
  not the labels.
- Training is no faster with channels-last: you converted the input but not the weights, or a layer
  falls back to the contiguous layout. Convert both the model and the input, then count the
  channels-last layers as this script does.
- A checkpoint that was saved in a different memory layout causes no problem: load_state_dict()
  copies the values but not the layout.
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


def train(model: torch.nn.Module, batches: list[Batch]) -> Iterator[torch.Tensor]:
    """The same loop for both memory layouts; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def channels_last(
    model: torch.nn.Module, batches: list[Batch]
) -> tuple[torch.nn.Module, list[Batch]]:
    """The technique: convert the model and the images. Labels have no such layout."""
    model = model.to(memory_format=torch.channels_last)
    return model, [(x.to(memory_format=torch.channels_last), y) for x, y in batches]


def network(channels: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for entering, leaving in ((3, channels), (channels, channels), (channels, 2 * channels)):
        layers += [
            torch.nn.Conv2d(entering, leaving, 3, padding=1),
            torch.nn.BatchNorm2d(leaving),
            torch.nn.ReLU(),
        ]
    head = torch.nn.Linear(2 * channels, 4)
    pooled = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, *pooled, head).to(device)


def images(steps: int, device: str) -> list[Batch]:
    """Noise with one brighter color; the label depends on the color and the brightness."""
    torch.manual_seed(0)
    batches: list[Batch] = []
    for _ in range(min(steps, 8)):
        x, y = torch.randn(32, 3, 16, 16), torch.randint(0, 4, (32,))
        x[torch.arange(32), y % 3] += 1.0 + y[:, None, None].float() / 3
        batches.append((x.to(device), y.to(device)))
    return (batches * steps)[:steps]


def kept_by(model: torch.nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """How many of the layers' image-shaped outputs are channels-last, and how many exist."""
    orders: list[bool] = []

    def note(_: torch.nn.Module, __: object, result: torch.Tensor) -> None:
        if result.dim() == 4 and result.shape[-1] > 1:  # a single pixel fits both layouts
            orders.append(result.is_contiguous(memory_format=torch.channels_last))

    hooks = [layer.register_forward_hook(note) for layer in model]
    with torch.no_grad():
        model.eval()(x)
    model.train()
    for hook in hooks:
        hook.remove()
    return sum(orders), len(orders)


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
    line = f"{name:<13} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--channels", type=int, default=16)
    asked = parser.parse_args(argv)
    torch.backends.cudnn.allow_tf32 = False  # TF32 would change more than the layout does
    torch.set_float32_matmul_precision("highest")
    batches = images(asked.steps, asked.device)
    plain = measured("contiguous", train(network(asked.channels, asked.device), batches))
    model, moved = channels_last(network(asked.channels, asked.device), batches)
    last = measured("channels-last", train(model, moved))
    kept, of = kept_by(model, moved[0][0])
    off = float((torch.tensor(last) - torch.tensor(plain)).abs().max()) / plain[0]
    limit = TOLERANCE[asked.device]
    held = off <= limit and kept == of > 0 and plain[-1] < plain[0]
    print(
        f"{'proved' if held else 'not proved'}: {kept} of {of} layers keep channels-last, and"
        f" losses are within {off:.1e} of the contiguous layout, relative to the first (tolerance"
        f" {limit:.0e}); the loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

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
(this script counts the outputs for which the result is True), and compare the time per step with
and without channels-last. In a profile, the conversion kernels (nchwToNhwc, nhwcToNchw) should no
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

from collections.abc import Iterable, Iterator

import torch
from proof import Batch, Proof, apart, main

# --- Copy from here ------------------------------------------------------------------------------


def channels_last(
    model: torch.nn.Module, batches: Iterable[Batch]
) -> tuple[torch.nn.Module, Iterator[Batch]]:
    """Convert the model and the images; labels have no such layout."""
    model = model.to(memory_format=torch.channels_last)
    return model, ((x.to(memory_format=torch.channels_last), y) for x, y in batches)


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss; summation order differs


def contiguous(
    model: torch.nn.Module, batches: Iterable[Batch]
) -> tuple[torch.nn.Module, Iterator[Batch]]:
    return model, iter(batches)


def train(model: torch.nn.Module, batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
    """The same loop for both memory layouts; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def network(channels: int, device: str) -> torch.nn.Sequential:
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


def layouts(model: torch.nn.Sequential) -> dict[str, list[bool]]:
    """Collects, from now on, whether what enters and leaves each layer is channels-last."""
    seen: dict[str, list[bool]] = {"inputs": [], "outputs": []}

    def note(_layer: object, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        for kind, tensor in (("inputs", inputs[0]), ("outputs", output)):
            if tensor.dim() == 4 and tensor.shape[-1] > 1:  # a single pixel fits both layouts
                seen[kind].append(tensor.is_contiguous(memory_format=torch.channels_last))

    for layer in model:
        layer.register_forward_hook(note)
    return seen


def prove(proof: Proof) -> None:
    torch.backends.cudnn.allow_tf32 = False  # TF32 would change more than the layout does
    torch.set_float32_matmul_precision("highest")
    batches = images(proof.steps, proof.device)
    plain = proof.train("contiguous", train(network(proof.channels, proof.device), batches))
    convert = proof.technique(channels_last, instead=contiguous)
    model = network(proof.channels, proof.device)
    seen = layouts(model)
    last = proof.train("channels-last", train(*convert(model, batches)))
    off, limit = apart(last, plain), TOLERANCE[proof.device]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"losses within {off:.1e} of the contiguous layout (tolerance {limit:.0e})",
    )
    seen["convolution weights"] = [
        layer.weight.is_contiguous(memory_format=torch.channels_last)
        for layer in model
        if isinstance(layer, torch.nn.Conv2d)
    ]
    counts = ", ".join(f"{sum(found)} of {len(found)} {kind}" for kind, found in seen.items())
    proof.active(all(all(found) and found for found in seen.values()), f"channels-last: {counts}")


if __name__ == "__main__":
    main(__doc__, prove, steps=(30, 10), channels=16)

"""In-place operations and weight initialization: do they matter? Measured in bytes and losses.

What it does: ReLU(inplace=True) writes its result over its input, so that one tensor less exists at
that moment. kaiming_normal_ with nonlinearity="relu" draws weights so that activations keep their
size from layer to layer. With PyTorch's default for Linear and Conv2d, the differences between two
inputs shrink with every layer.

When it helps: initialization decides whether a deep network without normalization and without
residual connections learns at all. In-place ReLU lowers the peak memory of inference, or of
training if your forward() still holds the input of the ReLU in a variable.

When it hurts: in training, in-place ReLU usually saves nothing: autograd does not keep the output
of Linear or Conv2d, so it is freed anyway. In-place SiLU makes autograd keep a copy of its input.
With BatchNorm, LayerNorm or residual connections, initialization matters much less. Never
initialize a pretrained model.

How to check: before training, look at how much the activations of the last layer differ between
inputs; it should not be close to zero. For in-place operations, compare the peak memory of a whole
training step. This script prints both.

Troubleshooting:
- "one of the variables needed for gradient computation has been modified by an inplace operation":
  backward() needs the old value. Remove inplace=True, or write x = x + y instead of x += y.
- "a leaf Variable that requires grad is being used in an in-place operation.": change weights only
  under torch.no_grad(), or with torch.nn.init.
- "a view of a leaf Variable that requires grad is being used in an in-place operation.": clone()
  the tensor first.
- The loss stays near log(number of classes): the activations or gradients vanish. Check the
  initialization, or add normalization.
- The loss is nan or very large from the first step: the weights are too large. Standard normal
  weights, as from torch.randn(), must be divided by the square root of the number of inputs.
- All neurons of a layer learn the same: the layer was initialized with a constant, such as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from proof import Proof, labeled, main, peak_bytes, saved_bytes, train_plain

# --- Copy from here ------------------------------------------------------------------------------


def initialize(model: torch.nn.Module) -> None:
    """For networks of Linear or Conv2d and ReLU: activations keep their size in every layer."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)


def activation() -> torch.nn.Module:
    """In place: only after a layer that does not need its own output in backward()."""
    return torch.nn.ReLU(inplace=True)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
Change = Callable[[torch.nn.Module], None]


def default(model: torch.nn.Module) -> None:
    pass


def drawn(std: float) -> Change:
    def change(model: torch.nn.Module) -> None:
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.normal_(layer.weight, std=std)

    return change


def network(width: int, layers: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(width, 10))


def wide(width: int, act: Callable[[], torch.nn.Module]) -> torch.nn.Sequential:
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(4):
        parts += [torch.nn.Linear(width, 8 * width), act(), torch.nn.Linear(8 * width, width)]
    return torch.nn.Sequential(*parts)


def in_place(proof: Proof) -> None:
    """The memory of the same network with and without in-place activations."""
    ours = proof.technique(activation, instead=torch.nn.ReLU)
    x = torch.randn(256, proof.width, device=proof.device)
    kept, peaks, in_training, results = [], [], [], []
    for name, act in (("ReLU", torch.nn.ReLU), ("ReLU in place", ours)):
        model = wide(proof.width, act).to(proof.device)

        def step(model: torch.nn.Module = model) -> None:
            model(x).square().mean().backward()

        step()  # the gradients exist before we count
        kept.append(saved_bytes(partial(model, x), [x, *model.parameters()]))
        in_training.append(peak_bytes(step, proof.device))
        with torch.no_grad():
            results.append(model(x))
            peaks.append(peak_bytes(partial(model, x), proof.device))
        print(
            f"{name:<14} kept for backward() {kept[-1]} bytes, peak in training"
            f" {in_training[-1]} bytes, without gradients {peaks[-1]} bytes"
        )
    proof.same(torch.equal(*results), "equal outputs with in-place ReLU, bit by bit")
    y = torch.randn(4, device=proof.device)
    z = ours()(y)
    proof.active(z.data_ptr() == y.data_ptr(), "ReLU wrote its result to the memory of its input")
    proof.purpose(
        kept[1] == kept[0] and peaks[1] < 0.7 * peaks[0],
        f"without gradients, in-place ReLU needs {peaks[1]} bytes instead of {peaks[0]}; for"
        f" backward(), the same {kept[1]} bytes are kept",
    )


def prove(proof: Proof) -> None:
    in_place(proof)
    batches = labeled(proof.steps, proof.width, proof.device)
    ways: dict[str, Change] = {
        "default": default,
        "normal, std 0.01": drawn(0.01),
        "normal, std 1": drawn(1.0),
        "Kaiming": proof.technique(initialize, instead=default),
    }
    losses, sizes = {}, {}
    for name, change in ways.items():
        model = network(proof.width, proof.layers)
        change(model)
        model.to(proof.device)
        with torch.no_grad():
            sizes[name] = float(model[:-1](batches[0][0]).std(0).mean())
        losses[name] = proof.train(name, train_plain(model, batches, lr=0.05))[-1]
        print(f"{'':<24} before training, activations differ by {sizes[name]:.1e}")
    chance = math.log(10)
    proof.active(
        0.05 < sizes["Kaiming"] < 10 and sizes["default"] < 0.001,
        f"after {proof.layers} layers, activations of two inputs differ by {sizes['Kaiming']:.2f};"
        f" with PyTorch's default, by {sizes['default']:.1e}",
    )
    others = [loss for name, loss in losses.items() if name != "Kaiming"]
    stuck = sum(not loss < 0.97 * chance for loss in others)  # nan is stuck, too
    proof.purpose(
        losses["Kaiming"] < 0.7 * chance and stuck == len(others),
        f"after {proof.steps} steps, the loss is {losses['Kaiming']:.2f}; with {stuck} of"
        f" {len(others)} other initializations, it is not below chance ({chance:.2f})",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(300, 100), layers=10, width=128)

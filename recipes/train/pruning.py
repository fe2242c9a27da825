"""Pruning: zeros, whole neurons or 2:4 sparsity, and what really gets smaller.

What it does: pruning a trained network and training it a little further keeps most of its accuracy.
There are three kinds. Unstructured pruning sets the smallest weights to zero. 2:4 sparsity sets two
of every four neighboring weights to zero, a pattern that NVIDIA GPUs from Ampere on can use.
Structured pruning removes whole neurons or channels, and the layers become smaller matrices.

When it helps: structured pruning makes files and computation smaller on every device. 2:4 sparsity
halves the arithmetic of large half-precision or int8 matrix products on Ampere and newer, after
torch.sparse.to_sparse_semi_structured(). Unstructured zeros help only if something compresses them:
a zip file, or a runtime with sparse kernels.

When it hurts: zeros in a dense tensor are stored and multiplied like other numbers, so unstructured
pruning saves neither memory nor time in torch. Pruning does not make training faster. Without
further training, accuracy drops.

How to check: count the zeros, look at the size of the saved file, and measure accuracy on data that
was not trained on, before and after. This script prints all three.

Troubleshooting:
- The pruned model is as large and as slow as before: its zeros are stored like other numbers.
  Remove whole neurons, or use 2:4 sparsity on a GPU.
- The state_dict has weight_orig and weight_mask, and the file is larger than before: call
  prune.remove(layer, "weight") before you save.
- Pruned weights are not zero any more: a mask must be applied after every optimizer step. prune
  does it in the forward pass until you call prune.remove().
- "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the
  moment": copy the model before you prune it.
- "is not a supported dtype for", from to_sparse_semi_structured(): convert the weight to fp16 or
  bf16. "Only CUDA tensors are currently supported": this part needs a GPU.
"""

from __future__ import annotations

import copy
import io
import zlib
from typing import Any

import torch
from proof import Proof, labeled, main, train_plain
from torch.nn.utils import prune

# --- Copy from here ------------------------------------------------------------------------------


def zero_smallest(model: torch.nn.Module, amount: float) -> None:
    """Unstructured: masks the smallest weights of all linear layers together."""
    layers = [(layer, "weight") for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=amount)


def zero_two_of_four(layer: torch.nn.Linear) -> None:
    """2:4: masks the two smallest of every four neighboring weights of a row.

    After training, on Ampere or newer, in fp16 or bf16:
    layer.weight = Parameter(torch.sparse.to_sparse_semi_structured(layer.weight))
    """
    fours = layer.weight.detach().abs().reshape(-1, 4)
    mask = torch.zeros_like(fours).scatter_(1, fours.topk(2, dim=1).indices, 1)
    prune.custom_from_mask(layer, "weight", mask.reshape(layer.weight.shape))


def make_permanent(model: torch.nn.Module) -> None:
    """After further training: writes the zeros into the weights and drops the masks."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and prune.is_pruned(layer):
            prune.remove(layer, "weight")


def without_neurons(first: Any, then: Any, keep: int) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    """Structured: two smaller layers that keep the neurons with the largest weights."""
    strength = first.weight.norm(dim=1) * then.weight.norm(dim=0)
    kept = strength.topk(keep).indices.sort().values
    made = torch.nn.Linear(first.in_features, keep), torch.nn.Linear(keep, then.out_features)
    made[0].load_state_dict({"weight": first.weight[kept], "bias": first.bias[kept]})
    made[1].load_state_dict({"weight": then.weight[:, kept], "bias": then.bias})
    return made


# --- Copy to here. The rest is the proof. --------------------------------------------------------
LOST = 0.05  # of the accuracy on points that were not trained on
WIDTH = 32


def network(device: str, hidden: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    return torch.nn.Sequential(*layers).to(device)


def file_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """The saved file, and the same file compressed."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return len(file.getvalue()), len(zlib.compress(file.getvalue()))


def zeros(model: Any) -> float:
    weights = torch.cat([model[0].weight.flatten(), model[2].weight.flatten()])
    return float((weights == 0).float().mean())


def prove(proof: Proof) -> None:
    batches = labeled(8, WIDTH, proof.device, size=256)
    *batches, (held_out, right) = batches
    dense = network(proof.device, proof.hidden)
    list(train_plain(dense, batches * proof.epochs, lr=0.5))
    models = {"dense": dense}

    def tuned(name: str, model: Any) -> None:
        list(train_plain(model, batches * (proof.epochs // 2), lr=0.5))
        make_permanent(model)
        models[name] = model

    some, fours = copy.deepcopy(dense), copy.deepcopy(dense)
    smaller: Any = copy.deepcopy(dense)
    if not proof.off:
        zero_smallest(some, 0.7)
        zero_two_of_four(fours[0])  # type: ignore[arg-type, unused-ignore]
        parts = without_neurons(dense[0], dense[2], proof.hidden // 4)
        smaller = torch.nn.Sequential(parts[0], torch.nn.ReLU(), parts[1]).to(proof.device)
    tuned("70% zeros", some)
    tuned("2:4", fours)
    tuned("a quarter of the neurons", smaller)
    accuracy, sizes = {}, {}
    for name, model in models.items():
        accuracy[name] = float((model(held_out).argmax(1) == right).float().mean())
        sizes[name] = file_bytes(model)
        print(
            f"{name:<24} {zeros(model):.0%} of the weights are zero, accuracy"
            f" {accuracy[name]:.1%}, file {sizes[name][0]} bytes, compressed {sizes[name][1]}"
        )
    worst = min(accuracy.values())
    proof.same(
        worst >= accuracy["dense"] - LOST > 0.5,
        f"on other points, the least accurate is right on {worst:.1%},"
        f" the dense one on {accuracy['dense']:.1%}",
    )
    full_fours = (fours[0].weight.reshape(-1, 4) != 0).sum(1).max()
    proof.active(
        0.69 < zeros(some) < 0.71 and full_fours == 2,
        f"after further training, {zeros(some):.0%} of the weights are zero, and with 2:4 at most"
        f" {int(full_fours)} of four are not",
    )
    proof.purpose(
        sizes["a quarter of the neurons"][0] < 0.4 * sizes["dense"][0] < sizes["70% zeros"][0]
        and sizes["70% zeros"][1] < 0.6 * sizes["dense"][1],
        f"without three quarters of the neurons, the file has"
        f" {sizes['a quarter of the neurons'][0]} bytes instead of {sizes['dense'][0]}; with zeros,"
        f" {sizes['70% zeros'][0]}, and less only if compressed ({sizes['70% zeros'][1]})",
    )


if __name__ == "__main__":
    main(__doc__, prove, epochs=(40, 20), hidden=(512, 256))

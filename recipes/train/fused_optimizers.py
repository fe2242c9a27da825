"""Optimizer steps as a for-loop, as a few grouped operations, or as one fused kernel.

What it does: torch can compute an AdamW or SGD update in three ways. The for-loop runs several
small operations per tensor; foreach=True groups the tensors into a few operations; fused=True does
the whole update in one pass over memory. The default is foreach on CUDA and the for-loop on a CPU.

When it helps: the model has many parameter tensors (as transformers do) and the batches are small,
so the optimizer takes up a large part of each step. fused=True also works on CPUs (Adam, AdamW and
SGD; torch 2.4 and newer). With a GradScaler, the fused kernel itself divides the gradients by the
loss scale and skips the update if they overflow, so the host does not have to wait.

When it hurts: foreach=True needs temporary copies as large as the parameters, which may not fit on
a nearly full GPU (in that case, use fused=True or foreach=False). If the model has only a few large
tensors, the gain is small.

How to check: this script counts the operations of an update in each variant. In a profile, look for
"Optimizer.step" and for the operators below it: "aten::_fused_adamw_" is the fused kernel, and
"aten::_foreach_addcdiv_" is one of the grouped operations.

Troubleshooting:
- "`fused` and `foreach` cannot be `True` together.": set only one of them to True; None lets torch
  choose.
- "`fused=True` requires all the params to be floating point Tensors of supported devices": a
  parameter is complex or on an unsupported device. Move the model to its device before you create
  the optimizer.
- torch.cuda.OutOfMemoryError in optimizer.step(), even though the forward and backward passes fit
  in memory: foreach=True makes temporary copies. Use fused=True, which does not.
- After you load a checkpoint, the optimizer uses a different implementation (`fused`, `foreach` or
  the for-loop): load_state_dict() takes `fused` and `foreach` from the checkpoint. Set both options
  again in optimizer.param_groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from proof import Batch, Proof, apart, main, operations_seen

# --- Copy from here ------------------------------------------------------------------------------


def adamw(weights: Any) -> torch.optim.Optimizer:
    """The whole update of all weights in one kernel; move the model to its device first."""
    return torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.01, fused=True)


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.01, momentum=0.9, fused=True)


def resume(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """load_state_dict() takes `fused` from the checkpoint, so set it again."""
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=None)


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the largest weight; rounding differs
ADAMW: Any = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01)
SGD: Any = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
LOOP = {"foreach": False, "fused": False}


def train(model: torch.nn.Module, batches: list[Batch], optimizer: Any) -> Iterator[torch.Tensor]:
    """Yields the loss of every step."""
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def network(depth: int, width: int, device: str) -> torch.nn.Module:
    """Many small tensors, as in a transformer."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(depth):
        parts += [torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts).to(device)


def waves(steps: int, width: int, device: str) -> list[Batch]:
    torch.manual_seed(0)
    inputs = [torch.randn(16, width) for _ in range(8)]
    return [(x.to(device), (0.5 * x.sin()).to(device)) for x in (inputs * steps)[:steps]]


def update(model: torch.nn.Module, optimizer: Any, batch: Batch) -> Counter[str]:
    """The operations of one update."""
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    with operations_seen() as seen:
        optimizer.step()
    optimizer.zero_grad()
    return Counter(name.removeprefix("aten::") for name in seen.names)


def prove(proof: Proof) -> None:
    batches = waves(proof.steps, proof.width, proof.device)
    limit = TOLERANCE[proof.device]
    kinds = (
        ("AdamW", "_fused_adamw_", ADAMW, adamw),
        ("SGD", "_fused_sgd_", SGD, sgd),
    )
    for kind, kernel, plain, fused in kinds:
        runs: dict[str, list[float]] = {}
        weights: dict[str, torch.Tensor] = {}
        operations: dict[str, Counter[str]] = {}
        forms: dict[str, Any] = {
            "for-loop": partial(plain, **LOOP),
            "foreach": partial(plain, foreach=True),
            "fused": proof.technique(fused, instead=partial(plain, **LOOP)),
        }
        for form, make in forms.items():
            model = network(proof.depth, proof.width, proof.device)
            optimizer = make(model.parameters())
            runs[form] = proof.train(f"{kind} {form}", train(model, batches, optimizer))
            tensors = [weight.detach().flatten() for weight in model.parameters()]
            weights[form] = torch.cat(tensors)
            operations[form] = update(model, optimizer, batches[0])
        loop = weights["for-loop"]
        off = {
            form: float((weights[form] - loop).abs().max() / loop.abs().max()) for form in weights
        }
        proof.same(
            max(off.values()) <= limit
            and apart(runs["fused"], runs["for-loop"]) <= limit
            and runs["fused"][-1] < runs["fused"][0],
            f"{kind}: weights of foreach within {off['foreach']:.1e}, of fused within"
            f" {off['fused']:.1e} of the for-loop's (tolerance {limit:.0e})",
        )
        ran = operations["fused"][kernel]
        proof.active(ran == 1, f"calls of {kernel} per update: {ran}")
        counts = {form: seen.total() for form, seen in operations.items()}
        proof.purpose(
            counts["fused"] <= counts["foreach"] < counts["for-loop"],
            f"operations per {kind} update: {counts['fused']} fused, {counts['foreach']} foreach,"
            f" {counts['for-loop']} in a for-loop",
        )
    # A checkpoint of the for-loop: both `fused` and `foreach` are False in it.
    model = network(proof.depth, proof.width, proof.device)
    old = ADAMW(model.parameters(), **LOOP)
    update(model, old, batches[0])
    new = adamw(model.parameters())
    load: Any = proof.technique(resume, instead=torch.optim.Optimizer.load_state_dict)
    load(new, old.state_dict())
    ran = update(model, new, batches[0])["_fused_adamw_"]
    proof.active(ran == 1, f"calls of _fused_adamw_ after loading a for-loop's checkpoint: {ran}")


if __name__ == "__main__":
    main(__doc__, prove, steps=(30, 10), depth=12, width=64)

"""Activation checkpointing: recompute activations in the backward pass instead of storing them.

What it does: a checkpointed block stores only its input; the backward pass recomputes everything
else by running the forward pass of the block again. Memory therefore contains the inputs of all
blocks and the activations of only one block at a time, instead of the activations of every layer.

When it helps: activations take up most of the memory, as they do with long sequences, large images
or deep networks. Checkpoint the blocks that repeat, such as each transformer layer. Checkpointing
the whole model as a single block would not lower the peak memory use.

When it hurts: each checkpointed block runs its forward pass twice in every step. Checkpointing does
not reduce the memory that weights, gradients and optimizer state use. If you have memory to spare,
do not use activation checkpointing.

How to check: compare the peak memory on a GPU with and without checkpointing. On any device, this
script also counts the bytes that autograd saves for the backward pass, using
torch.autograd.graph.saved_tensors_hooks, and how often each block runs.

Troubleshooting:
- "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly": pass
  use_reentrant=False. The older variant, use_reentrant=True, needs an input that requires gradients
  (otherwise it warns "None of the inputs have requires_grad=True. Gradients will be None") and does
  not support torch.autograd.grad().
- "torch.utils.checkpoint: A different number of tensors was saved during the original forward and
  recomputation.": the block behaves differently when it is recomputed, because it depends on
  something that changed after the forward pass (a counter, a cache, the time). Make the block a
  pure function of its inputs.
- With dropout, activation checkpointing changes the loss: either preserve_rng_state is False, or
  the dropout layer uses its own random number generator. If the layer uses PyTorch's default
  generator and preserve_rng_state is True (the default), the recomputation uses the same dropout
  masks as the original forward pass.
- Activation checkpointing needs no extra code under autocast: the recomputation uses the same
  autocast settings as the original forward pass. This script compares the losses under autocast,
  too.
- With activation checkpointing, BatchNorm updates its running statistics twice per step: once in
  the forward pass and once in the recomputation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, outputs_seen, saved_bytes
from torch.utils.checkpoint import checkpoint

# --- Copy from here ------------------------------------------------------------------------------


def checkpoint_blocks(blocks: Iterable[torch.nn.Module]) -> None:
    """Recompute what these blocks compute during backward(); call it once, before training.

    The names of the weights do not change, so checkpoints of the model stay valid.
    """
    for block in blocks:
        # preserve_rng_state=True, the default: the recomputation draws the same dropout masks.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same operations on the same numbers


class Residual(torch.nn.Sequential):  # type: ignore[misc, unused-ignore]
    """A block of a transformer without its attention; it contains dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def network(width: int, depth: int, device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        Residual(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(4 * width, width),
        )
        for _ in range(depth)
    ]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(width, 10)).to(device)


def train(model: torch.nn.Module, batches: list[Batch], *, bf16: bool) -> Iterator[torch.Tensor]:
    """The same loop with and without checkpointing; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def prove(proof: Proof) -> None:
    batches = labeled(proof.steps, proof.width, proof.device)
    x, y = batches[0]
    runs: dict[str, list[float]] = {}
    passes: dict[str, float] = {}
    saved: dict[str, int] = {}
    names = ("plain", "checkpointed")
    techniques: tuple[Any, ...] = (list, proof.technique(checkpoint_blocks, instead=list))
    for name, technique in zip(names, techniques, strict=True):
        for bf16 in (False, True):
            model = network(proof.width, proof.depth, proof.device)
            technique(layer for layer in model if isinstance(layer, Residual))
            with outputs_seen(model, torch.nn.GELU) as seen:  # one in each block
                torch.manual_seed(1)  # the same dropout in every run
                losses = proof.train(f"{name}{' bf16' * bf16}", train(model, batches, bf16=bf16))
            runs[f"{name}{' bf16' * bf16}"] = losses
            passes[name] = len(seen) / proof.steps / proof.depth
        forward = functools.partial(model, x)
        saved[name] = saved_bytes(forward, (*model.parameters(), x, y))
    limit = TOLERANCE[proof.device]
    off = apart(runs["checkpointed"], runs["plain"])
    off_bf16 = apart(runs["checkpointed bf16"], runs["plain bf16"])
    proof.same(
        max(off, off_bf16) <= limit and runs["plain"][-1] < runs["plain"][0],
        f"with dropout, losses are within {off:.1e} of plain training, and within {off_bf16:.1e}"
        f" under autocast (tolerance {limit:.0e})",
    )
    proof.active(
        passes == {"plain": 1, "checkpointed": 2},
        f"forward passes of each block per step: {passes['checkpointed']:g} instead of"
        f" {passes['plain']:g}",
    )
    proof.purpose(
        saved["checkpointed"] * 2 < saved["plain"],
        f"the forward pass keeps {saved['checkpointed'] / 2**20:.2f} MiB for backward() instead of"
        f" {saved['plain'] / 2**20:.2f} MiB",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(40, 10), width=64, depth=6)

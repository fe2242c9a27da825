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
torch.autograd.graph.saved_tensors_hooks.

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
  autocast settings as the original forward pass. To verify this, run the script with --bf16.
- With activation checkpointing, BatchNorm updates its running statistics twice per step: once in
  the forward pass and once in the recomputation.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch
from torch.utils.checkpoint import checkpoint

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same operations on the same numbers


class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Blocks with dropout; checkpointing changes only how a block is called."""

    def __init__(self, width: int, depth: int, *, saves_memory: bool) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(block(width) for _ in range(depth))
        self.head = torch.nn.Linear(width, 10)
        self.saves_memory = saves_memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.blocks:
            if self.saves_memory:
                x = x + checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)
            else:
                x = x + layer(x)
        return self.head(x)


def block(width: int) -> torch.nn.Module:
    wide = (torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Dropout(0.1))
    return torch.nn.Sequential(torch.nn.LayerNorm(width), *wide, torch.nn.Linear(4 * width, width))


def train(model: torch.nn.Module, batches: list[Batch], bf16: bool) -> Iterator[torch.Tensor]:
    """The same loop with and without checkpointing; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def saved_bytes(model: torch.nn.Module, batch: Batch, bf16: bool) -> int:
    """Bytes that autograd saves in a forward pass, not counting parameters and the batch."""
    known = {tensor.data_ptr() for tensor in (*model.parameters(), *batch)}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:  # two operations can save the same tensor
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    precision = torch.autocast(batch[0].device.type, torch.bfloat16, enabled=bf16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), precision:
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    return sum(held.values())


def labeled(steps: int, width: int, device: str) -> list[Batch]:
    """Points labeled by a random linear teacher; eight batches, repeated."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def measured(name: str, steps: Iterator[torch.Tensor], saved: int) -> torch.Tensor:
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
    line = f"{name:<12} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    line += f" ({ms[0]:.2f} to {ms[-1]:.2f}), saved for backward {saved / 2**20:.2f} MiB"
    if torch.cuda.is_initialized():
        line += f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    print(line)
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--bf16", action="store_true", help="train under autocast")
    asked = parser.parse_args(argv)
    batches = labeled(asked.steps, asked.width, asked.device)
    runs: list[tuple[torch.Tensor, int]] = []
    for name, saves_memory in (("plain", False), ("checkpointed", True)):
        torch.manual_seed(0)
        model = Network(asked.width, asked.depth, saves_memory=saves_memory).to(asked.device)
        saved = saved_bytes(model, batches[0], asked.bf16)
        torch.manual_seed(1)  # the same dropout in both runs
        runs.append((measured(name, train(model, batches, asked.bf16), saved), saved))
    (plain, plain_saved), (again, again_saved) = runs
    off, limit = float((again - plain).abs().max() / plain[0]), TOLERANCE[asked.device]
    held = off <= limit and again_saved * 2 < plain_saved and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: losses with checkpointing and dropout are"
        f" within {off:.1e} of plain training, relative to the first loss (tolerance {limit:.0e});"
        f" {again_saved / plain_saved:.0%} as many bytes are saved for the backward pass;"
        f" the loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

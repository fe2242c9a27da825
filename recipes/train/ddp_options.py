"""DDP's options: compressed gradients, fewer all-reduces, no second copy, a static graph.

What it does: four options of DistributedDataParallel (start with ddp.py).
- no_sync(): with gradient accumulation, only the last micro-batch averages the gradients across
  processes; the others add up locally.
- A communication hook sends gradients in bf16 (fp16 with Gloo) and converts them back.
- gradient_as_bucket_view=True: gradients live in the buffers that are sent, not in a copy of them.
- static_graph=True: DDP notes in the first step which weights get gradients. Without it, a model
  with unused weights needs find_unused_parameters=True, which searches the graph in every step and
  asks all processes which weights they used. Do not combine it with no_sync().

When it helps: the link between the GPUs limits the speed (PCIe, several machines), you accumulate
gradients, or memory is short by the size of the gradients.

When it hurts: gradients in bf16 are rounded to 8 bits of precision, so losses differ slightly. With
NVLink and large batches, DDP already hides communication behind the backward pass. static_graph is
wrong if the model uses other layers from step to step.

How to check: profile a few steps and count the all-reduces and their sizes, as this script does.
TORCH_DISTRIBUTED_DEBUG=DETAIL logs what DDP does.

Troubleshooting:
- "BF16 all reduce communication hook required CUDA 11+ and NCCL 2.10+": Gloo cannot add in bf16.
  Use fp16_compress_hook, as below.
- "expect_autograd_hooks_ INTERNAL ASSERT FAILED": static_graph=True together with no_sync(). This
  is a bug in torch (https://github.com/pytorch/pytorch/issues/143580). Leave out static_graph=True
  if you accumulate gradients.
- "Expected to have finished reduction in the prior iteration": some weights got no gradient. Pass
  static_graph=True if these are the same weights in every step, else find_unused_parameters=True.
- "Your training graph has changed in this iteration": with static_graph=True, the model used other
  layers than in the first step. Use find_unused_parameters=True instead.
- "Expected to mark a variable ready only once": activation checkpointing with use_reentrant=True,
  or a layer used twice. Use use_reentrant=False or static_graph=True.
- "Unexpected hook call" or wrong gradients with no_sync(): the forward pass must run inside
  no_sync() too, not only backward().
- "detach_() cannot be called on a view" or "Can't detach views in-place": with
  gradient_as_bucket_view=True, call zero_grad(set_to_none=True), the default.
- "register_comm_hook can only be called once": one hook per model. Wrap it: bf16_compress_wrapper.
- Small gradients vanish with fp16_compress_hook: 6e-8 is its smallest value. Prefer bf16.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from proof import Proof, apart, in_processes, main
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

# --- Copy from here ------------------------------------------------------------------------------


def distributed(model: torch.nn.Module, static_graph: bool) -> Any:
    """static_graph: only if every step uses the same layers, and never with no_sync()."""
    tuned = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=static_graph)
    bf16 = dist.get_backend() == "nccl"  # Gloo has no sum in bf16
    hook = default_hooks.bf16_compress_hook if bf16 else default_hooks.fp16_compress_hook
    tuned.register_comm_hook(None, hook)
    return tuned


def accumulate(model: Any, loss_of: Any, parts: list[Any]) -> float:
    """The gradients of several micro-batches, averaged across processes only once."""
    total = 0.0
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_of(model, part) / len(parts)  # the forward pass belongs inside, too
            loss.backward()
        total += loss.detach().item()
    return total


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 0.01  # relative to the first loss: gradients are rounded to fp16 or bf16
EACH, PARTS, WIDTH = 16, 4, 64  # samples per micro-batch, micro-batches per step


class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """May have a layer that is not used, as a pretrained model with a head for another task."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.Linear(512, 10))
        self.unused = torch.nn.Linear(WIDTH, 10) if unused else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return, unused-ignore]


def plain(model: torch.nn.Module, unused: bool) -> Any:
    return DistributedDataParallel(model, find_unused_parameters=unused)


def accumulate_plain(model: Any, loss_of: Any, parts: list[Any]) -> float:
    total = 0.0
    for part in parts:
        loss = loss_of(model, part) / len(parts)
        loss.backward()
        total += loss.detach().item()
    return total


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))


def train(rank: int, device: str, steps: int, wrap: Any, sum_up: Any, unused: bool) -> Any:
    """The losses, the all-reduces, and in how many buffers how many gradients lie.

    unused: train a model with an unused layer, without accumulation.
    """
    model = wrap(Network(unused).to(device), unused)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1 + rank)
    losses = []
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(steps):
            x = torch.randn(EACH * PARTS, WIDTH, generator=draw).to(device)
            losses.append(sum_up(model, loss_of, [x] if unused else x.split(EACH)))
            optimizer.step()
            gradients = [w.grad for w in model.parameters() if w.grad is not None]
            buffers = {g.untyped_storage().data_ptr() for g in gradients}
            optimizer.zero_grad()
    return losses, sent(profile), (len(buffers), len(gradients))


def sent(profile: Any) -> list[tuple[str, int]]:
    """The type and number of the values of every all-reduce."""
    return [
        (event.input_dtypes[0], torch.Size(event.input_shapes[0]).numel())
        for event in profile.events()
        if event.name in ("gloo:all_reduce", "nccl:all_reduce")
    ]


def work(rank: int, world: int, device: str, steps: int, off: bool) -> Any:
    ways: list[tuple[Any, Any]] = [(plain, accumulate_plain)]
    ways += ways if off else [(distributed, accumulate)]
    return [train(rank, device, steps, *way, unused) for unused in (False, True) for way in ways]


def in_bytes(reduced: list[tuple[str, int]]) -> int:
    return sum(count * (4 if kind in ("float", "int") else 2) for kind, count in reduced)


def prove(proof: Proof) -> None:
    ranks = in_processes(work, proof.device, proof.device, proof.steps, proof.off)
    (losses, before, copies), (ours, after, views), (some, asked, _), (same, fixed, _) = ranks[0]
    off = max(apart(ours, losses), apart(same, some))
    proof.same(
        off <= TOLERANCE and losses[-1] < losses[0],
        f"losses within {off:.1e} of plain DDP, relative to the first (tolerance {TOLERANCE})",
    )
    proof.active(
        len(after) == proof.steps == len(before) / PARTS,
        f"no_sync: {len(after)} all-reduces in {proof.steps} steps of {PARTS} micro-batches"
        f" instead of {len(before)}",
    )
    types = {kind for kind, _ in after}
    proof.active(
        len(types) == 1 and "float" not in types,
        f"hook: gradients are sent as {', '.join(sorted(types))}",
    )
    proof.active(
        views[0] == 1 < copies[0],
        f"bucket view: {views[1]} gradients lie in {views[0]} buffer; before, {copies[1]} in"
        f" {copies[0]}",
    )
    questions = [sum(kind == "int" for kind, _ in reduced) for reduced in (asked, fixed)]
    proof.active(
        questions[1] <= 1 < questions[0],
        f"static graph: with an unused layer, the processes ask each other {questions[1]} times"
        f" which weights were used instead of {questions[0]} times",
    )
    proof.purpose(
        in_bytes(after) * 2 * PARTS <= in_bytes(before),
        f"{in_bytes(after)} bytes of gradients were sent instead of {in_bytes(before)}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(20, 6))

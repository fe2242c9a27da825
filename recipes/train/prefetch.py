"""Non-blocking copies: copy the next batch to the GPU while the model works on the current one.

What it does: batches are placed in pinned memory, so Python does not have to wait for a copy to the
GPU to finish. Copies are queued on their own CUDA stream, one batch ahead, and an event makes the
model's stream wait only for the copy that it needs.

When it helps: batches are large (images, video, audio), and the GPU waits while they are copied
over PCIe.

When it hurts: pinned memory cannot be swapped out, so too much of it leaves the host short of
memory. Small batches (token IDs) are copied so fast that there is little to gain. Prefetching also
needs GPU memory for one more batch. Training on a CPU does not benefit, because no copy is needed.

How to check: compare the time per step with and without prefetching. In a profile, "Memcpy HtoD
(Pinned -> Device)" should run in parallel with kernels instead of between them. If the profile
shows "Pageable -> Device" instead, non_blocking=True had no effect.

Troubleshooting:
- Values in prefetched batches change at random, but only under load: the memory of the prefetched
  batch was reused while the model was still reading it. Call
  tensor.record_stream(torch.cuda.current_stream()) on every prefetched tensor.
- Values in a prefetched batch are wrong at the start of a step: the model does not wait for the
  copy to the GPU. Call wait_event() on the model's stream, as this script does.
- Values copied from the GPU to the host are wrong: with non_blocking=True, the copy returns before
  the data has arrived. Synchronize before you read the data.
- "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned": the tensor is already
  on the GPU. Pin tensors before you copy them to the GPU.
- With prefetching, the last batch is missing: when the loader is exhausted, the prefetching loop
  must still return the batch that it fetched last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, perceptron, skip, train_plain
from torch.utils._python_dispatch import TorchDispatchMode

# --- Copy from here ------------------------------------------------------------------------------


def prefetched(batches: Iterable[Batch], device: str) -> Iterator[Batch]:
    """Copy each batch while the model works on the one before; the batches must be pinned."""
    side = torch.cuda.Stream()
    ahead: tuple[Batch, Any] | None = None
    for x, y in batches:
        with torch.cuda.stream(side):  # queue the copy, and mark its end
            copies = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            copied = side.record_event()
        if ahead is not None:
            yield arrived(*ahead)
        ahead = copies, copied
    if ahead is not None:
        yield arrived(*ahead)


def arrived(batch: Batch, copied: Any) -> Batch:
    """Make the current stream wait for the copy, and keep the memory until it is done."""
    current = torch.cuda.current_stream()
    current.wait_event(copied)  # wait_stream(side) would wait for the next batch's copy, too
    for tensor in batch:
        tensor.record_stream(current)
    return batch


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = 1e-3  # relative to the first loss; a GPU may round differently


def plain(batches: Iterable[Batch], device: str) -> Iterator[Batch]:
    """Copy each batch when it is needed; the model waits for it."""
    for x, y in batches:
        yield x.to(device), y.to(device)


class Log(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Notes every copy and every pass of the model, in their order."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.default = torch.cuda.current_stream()
        self.copies: list[bool] = []  # from pinned memory, non-blocking and on another stream?
        self.kept = 0  # tensors whose memory waits for the stream of the model
        self.ahead: list[float] = []  # at each pass: batches copied, or queued, beyond its own
        model.register_forward_pre_hook(self.step)

    def step(self, *_: object) -> None:
        self.ahead.append(len(self.copies) / 2 - len(self.ahead) - 1)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        name = operation._schema.name
        if name == "aten::_to_copy":
            aside = torch.cuda.current_stream() != self.default
            self.copies.append(aside and bool(options.get("non_blocking")) and args[0].is_pinned())
        self.kept += name == "aten::record_stream"
        return operation(*args, **options)


def prove(proof: Proof) -> None:
    if proof.device == "cpu":
        skip("prefetching copies batches to an NVIDIA GPU; a CPU needs no copy")
    copy = proof.technique(prefetched, instead=plain)
    batches = labeled(proof.steps, proof.width, "cpu")
    batches[-1] = batches[-1][0][:40], batches[-1][1][:40]  # a smaller last batch
    batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
    model = perceptron(proof.width, proof.device)
    first = proof.train("plain", train_plain(model, plain(batches, proof.device)))
    model = perceptron(proof.width, proof.device)
    ahead = proof.train("prefetched", train_plain(model, copy(batches, proof.device)))
    off = apart(ahead, first)
    proof.same(
        off <= TOLERANCE and first[-1] < first[0],
        f"{len(ahead)} of {len(batches)} batches arrived, and losses are within {off:.1e} of plain"
        f" copies (tolerance {TOLERANCE:.0e})",
    )
    model = perceptron(proof.width, proof.device)
    with Log(model) as log:
        list(train_plain(model, copy(batches, proof.device)))
    proof.active(
        all(log.copies) and len(log.copies) == log.kept == 2 * len(batches),
        f"{sum(log.copies)} of {len(log.copies)} copies were non-blocking, from pinned memory and"
        f" on a stream of their own; the memory of {log.kept} was kept for the model's stream",
    )
    queued = sum(number == 1 for number in log.ahead[:-1])
    proof.purpose(
        queued == len(batches) - 1 and log.ahead[-1] == 0,
        f"before {queued} of {len(batches) - 1} passes, the copy of the next batch was queued",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 20), width=256)

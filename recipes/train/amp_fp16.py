"""Mixed precision in fp16, with a gradient scaler.

What it does: torch.autocast runs matrix multiplications and convolutions in fp16; weights,
optimizer state and loss stay in fp32. fp16 cannot represent values below 6e-8, so small gradients
would become zero. GradScaler multiplies the loss by a large factor, divides the gradients by the
same factor before the update, and skips steps in which the gradients overflow.

When it helps: you have a GPU with tensor cores (Volta, Turing or newer), and the layers are wide
enough to keep the GPU busy. Activations take half as much memory in fp16 as in fp32. Turing GPUs
have no fast bf16, so use fp16 on them.

When it hurts: on GPUs without tensor cores (older than Volta, and the GTX 16 series), casting to
fp16 can take more time than fp16 saves. Small models gain little, because they are limited by
Python overhead, not by arithmetic. If bf16 is fast on your GPU (Ampere and newer), use bf16, which
needs no scaler (amp_bf16.py).

How to check: compare the time per step and the peak memory with and without autocast. Also log
scaler.get_scale() over time, and count the gradients that are exactly zero.

Troubleshooting:
- With fp16, the loss is noisy or does not decrease: small gradients underflow. Use GradScaler.
- "Attempting to unscale FP16 gradients.": the model was converted with .half(). Keep the weights in
  fp32 and let autocast do the conversion.
- "No inf checks were recorded for this optimizer.": scaler.step(optimizer) found no gradients. Call
  scaler.scale(loss).backward() first.
- The loss is nan and scaler.get_scale() drops toward zero: an operation in the forward pass
  produces a value above 65504, the largest fp16 value. Run that operation in fp32, under
  torch.autocast(device_type, enabled=False).
- "`torch.cuda.amp.GradScaler(args...)` is deprecated": use torch.amp.GradScaler("cuda"), which is
  available in torch 2.3 and newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from proof import Batch, Proof, main, outputs_seen

# --- Copy from here ------------------------------------------------------------------------------


def train_fp16(
    model: torch.nn.Module, batches: Iterable[Batch], device: str
) -> Iterator[torch.Tensor]:
    """Train in mixed precision; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        # Only the forward pass and the loss; backward() uses the same types as forward.
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # unscales first, and skips the step if a gradient is inf
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = 0.05  # relative to the fp32 loss: fp16 has 11 bits of precision, and errors add up


def train_fp32(
    model: torch.nn.Module, batches: Iterable[Batch], device: str
) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_unscaled(
    model: torch.nn.Module, batches: Iterable[Batch], device: str
) -> Iterator[torch.Tensor]:
    """The mistake: autocast without a scaler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def small_targets(steps: int, width: int, device: str) -> list[Batch]:
    """Targets around 0.0003, averaged over many outputs: gradients too small for fp16."""
    torch.manual_seed(0)
    teacher = torch.randn(width, width) * 3e-4 / width**0.5
    inputs = [torch.randn(64, width) for _ in range(8)]
    return [(x.to(device), (x @ teacher).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    )
    torch.nn.init.zeros_(model[2].weight)  # start at zero, so that the small targets matter
    torch.nn.init.zeros_(model[2].bias)
    return model.to(device)


def prove(proof: Proof) -> None:
    train = proof.technique(train_fp16, instead=train_fp32)
    batches = small_targets(proof.steps, proof.width, proof.device)

    def run(name: str, how: Any) -> list[float]:
        model = network(proof.width, proof.device)
        return proof.train(name, how(model, batches, proof.device))

    plain, bare = run("fp32", train_fp32), run("fp16 without scaler", train_unscaled)
    model = network(proof.width, proof.device)
    with outputs_seen(model, torch.nn.Linear) as seen:
        fp16 = proof.train("fp16 with scaler", train(model, batches, proof.device))
    off, off_bare = (abs(losses[-1] - plain[-1]) / plain[-1] for losses in (fp16, bare))
    proof.same(off <= TOLERANCE, f"the final loss is within {off:.1%} of fp32")
    types = {str(out.dtype) for out in seen}
    proof.active(types == {"torch.float16"}, f"the linear layers computed in {', '.join(types)}")
    proof.purpose(
        off <= TOLERANCE < off_bare, f"without the scaler, the final loss is {off_bare:.0%} off"
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 40), width=256)

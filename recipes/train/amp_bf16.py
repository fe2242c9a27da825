"""Mixed precision in bf16: autocast without a gradient scaler.

What it does: torch.autocast runs matrix multiplications and convolutions in bf16; weights,
optimizer state and loss stay in fp32. bf16 has the same range as fp32 (down to 1e-38), so gradients
do not underflow and you do not need a GradScaler. However, bf16 has only 8 bits of precision.

When it helps: you have an Ampere or newer GPU, or a CPU with AMX or AVX512-BF16, and the layers are
wide enough to keep the hardware busy. Activations take half as much memory in bf16 as in fp32.

When it hurts: Turing and Volta GPUs emulate bf16, which is slower than fp32; use fp16 on these GPUs
(amp_fp16.py). GPUs older than Volta do not support bf16 at all. Small models gain little, because
they are limited by Python overhead, not by arithmetic. Operations that need more than 8 bits of
precision (long sums, distances, losses) must stay in fp32; autocast keeps the common ones in fp32.

How to check: compare the time per step and the peak memory with and without autocast. A GPU
supports bf16 natively if torch.cuda.get_device_capability() >= (8, 0). Do not rely on
torch.cuda.is_bf16_supported(): it also returns True on GPUs that only emulate bf16.

Troubleshooting:
- "CUBLAS_STATUS_NOT_SUPPORTED": GPUs older than Volta cannot multiply bf16 matrices. This script
  tries such a multiplication first and exits if it fails.
- The loss stops decreasing but never becomes nan: the weights themselves were converted to bf16,
  with model.bfloat16() or model.to(torch.bfloat16), so updates smaller than 1/256 of a weight are
  rounded away. Keep the weights in fp32 and let autocast do the conversion. The third line of this
  script's output shows the effect of bf16 weights.
- "mat1 and mat2 must have the same dtype, but got BFloat16 and Float": a tensor that was computed
  inside the autocast block is used in a matrix multiplication outside the block. Move the
  multiplication into the block, or call .float() on the tensor.
- "Got unsupported ScalarType BFloat16": NumPy has no bf16 type. Call .float() on the tensor before
  you call .numpy().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from proof import (
    Batch,
    Proof,
    labeled,
    main,
    outputs_seen,
    perceptron,
    saved_bytes,
    skip,
    train_plain,
)

# --- Copy from here ------------------------------------------------------------------------------


def train_bf16(
    model: torch.nn.Module, batches: Iterable[Batch], device: str
) -> Iterator[torch.Tensor]:
    """Train in mixed precision; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        # Only the forward pass and the loss; backward() uses the same types as forward.
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 0.02  # relative to the fp32 loss: bf16 has 8 bits of precision, and errors add up


def train_fp32(
    model: torch.nn.Module, batches: Iterable[Batch], device: str
) -> Iterator[torch.Tensor]:
    return train_plain(model, batches)


def multiplies_bf16(device: str) -> bool:
    """Whether the device supports bf16, natively or emulated; the only way to know is to try."""
    ones = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
    try:
        return float((ones @ ones).sum()) == 8**3
    except RuntimeError:
        return False


def prove(proof: Proof) -> None:
    if not multiplies_bf16(proof.device):
        skip("this device cannot multiply in bf16; use fp16 (amp_fp16.py)")
    train = proof.technique(train_bf16, instead=train_fp32)
    batches = labeled(proof.steps, proof.width, proof.device, size=512)
    plain_model, model = (perceptron(proof.width, proof.device) for _ in range(2))
    plain = proof.train("fp32", train_fp32(plain_model, batches, proof.device))
    with outputs_seen(model, torch.nn.Linear) as seen:
        mixed = proof.train("bf16", train(model, batches, proof.device))
    off = abs(mixed[-1] - plain[-1]) / plain[-1]
    proof.same(
        off <= TOLERANCE and plain[-1] < plain[0],
        f"the final loss is within {off:.2%} of fp32 (tolerance {TOLERANCE:.0%})",
    )
    types = {str(out.dtype) for out in seen}
    weights = {str(weight.dtype) for weight in model.parameters()}
    proof.active(
        types == {"torch.bfloat16"} and weights == {"torch.float32"},
        f"the linear layers computed in {', '.join(types)}; the weights are {', '.join(weights)}",
    )
    # One step of each; what autograd keeps for backward() is most of a training's memory.
    one = batches[:1]
    in_fp32 = train_fp32(plain_model, one, proof.device)
    in_bf16 = train(model, one, proof.device)
    full = saved_bytes(lambda: next(in_fp32), (*plain_model.parameters(), *one[0]))
    half = saved_bytes(lambda: next(in_bf16), (*model.parameters(), *one[0]))
    proof.purpose(
        half < 0.8 * full, f"backward() needs {half / 2**10:.0f} KiB instead of {full / 2**10:.0f}"
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 10), width=(256, 128))

"""Attention: scaled_dot_product_attention instead of softmax(q @ k) @ v.

What it does: torch.nn.functional.scaled_dot_product_attention (SDPA) computes attention block by
block and never stores the matrix of scores, which has length x length entries for each head. On a
GPU, it picks one of several kernels: FlashAttention, memory-efficient, cuDNN, or the plain one
("math"). For masks and score changes that no kernel supports, FlexAttention
(torch.nn.attention.flex_attention) compiles one.

When it helps: the sequences are long. Memory grows with the length instead of its square, and the
GPU reads and writes far less. FlashAttention needs fp16 or bf16 and an Ampere or newer GPU; the
memory-efficient kernel also runs in fp32 and on older GPUs.

When it hurts: it does not return attention weights. With some masks or head sizes, only the plain
kernel remains, which saves nothing.

How to check: ask for one kernel with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION); if
it cannot run, you get an error and warnings that say why. In a profile, look for "flash" or
"efficient" in the kernel names.

Troubleshooting:
- "No available kernel. Aborting execution.": the warnings above the error say why: the dtype (fp32
  is not supported by FlashAttention), the mask, the head size, or the GPU.
- "Torch was not compiled with flash attention": this build, often on Windows, has no
  FlashAttention kernel; the memory-efficient one is used instead. It is a warning, not a failure.
- No speedup and no less memory: a mask in attn_mask rules FlashAttention out. For causal attention,
  pass is_causal=True instead of a mask.
- Results differ from the old code: check the scale (SDPA divides by the root of the head size), and
  whether True in your boolean mask means "attend" (as in SDPA) or "hide" (as in
  torch.nn.MultiheadAttention).
- Dropout stays on in eval mode: pass dropout_p=0.0 yourself; SDPA does not know about model.eval().
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from proof import Proof, main, operations_seen, saved_bytes
from torch.nn import functional

# --- Copy from here ------------------------------------------------------------------------------


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Causal attention. q, k, v: (batch, heads, length, head size)."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}  # relative to the largest output; TF32 rounds on a GPU


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


def prove(proof: Proof) -> None:
    attend = proof.technique(attention, instead=by_hand)
    torch.manual_seed(0)
    shape = (proof.batch, 4, proof.length, 32)
    inputs = [torch.randn(shape, device=proof.device, requires_grad=True) for _ in range(3)]
    results, gradients, kept = [], [], []
    operators: list[str] = []
    for way in (by_hand, attend):
        kept.append(saved_bytes(partial(way, *inputs), inputs))
        with operations_seen() as seen:
            out = way(*inputs)
            (gradient,) = torch.autograd.grad(out.square().sum(), inputs[:1])
        operators = seen.names
        results.append(out.detach())
        gradients.append(gradient)
    off = max(
        float((ours - theirs).abs().max() / theirs.abs().max())
        for theirs, ours in (results, gradients)
    )
    limit = TOLERANCE[proof.device]
    proof.same(off <= limit, f"outputs and gradients within {off:.1e} (tolerance {limit:.0e})")
    fused = sorted(
        {name for name in operators if "scaled_dot_product" in name and "math" not in name}
    )
    proof.active(fused, f"a fused kernel ran: {', '.join(fused) or 'none'}")
    proof.purpose(
        kept[1] < kept[0] / 2,
        f"backward() needs {kept[1] / 2**20:.1f} MiB instead of {kept[0] / 2**20:.1f} MiB",
    )


if __name__ == "__main__":
    main(__doc__, prove, batch=2, length=(512, 128))

"""Selective activation checkpointing: recompute the cheap operations and keep the expensive ones.

What it does: torch.utils.checkpoint with a policy decides for each operation whether its result is
kept for backward() or computed again. Keep the matrix products and attention, which take most of
the time; recompute activations, norms and dropout, which take little time but as much memory.

When it helps: the model does not fit, and full checkpointing (activation_checkpointing.py) costs
about a third of the speed. Selective checkpointing saves less memory and costs much less time.

When it hurts: memory is not the limit. Under torch.compile, the compiler already chooses what to
recompute within a graph (torch._functorch.config.activation_memory_budget); use that first.

How to check: compare torch.cuda.max_memory_allocated() and the time per step without
checkpointing, with the policy, and with full checkpointing.

Troubleshooting:
- "Passing `context_fn` or `debug` is only supported when use_reentrant=False.": pass
  use_reentrant=False to checkpoint().
- "Trying to backward an extra time. You are only allowed to backward once": do not use
  retain_graph=True with selective checkpointing.
- "Tensor cached during selective activation checkpoint has been mutated": an in-place operation
  changes a result that the policy keeps. Use the out-of-place form.
- Memory hardly falls: most of it is weights and optimizer state, not activations. See
  fused_optimizers.py and fsdp2.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from proof import Proof, main, operations_seen, saved_bytes, skip
from torch.utils.checkpoint import checkpoint

try:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
except ImportError:
    CheckpointPolicy = None

# --- Copy from here ------------------------------------------------------------------------------
KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def policy(context: Any, operation: Any, *args: Any, **options: Any) -> Any:
    """Keep what is expensive to compute."""
    keep = operation in KEPT
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def selectively(block: torch.nn.Module, x: torch.Tensor) -> Any:
    """Call a block of the model; in backward(), only cheap operations run again."""
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
TOLERANCE = 1e-6  # relative to the largest gradient: the same operations on the same numbers


def plainly(block: torch.nn.Module, x: torch.Tensor) -> Any:
    return block(x)


def fully(block: torch.nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=False)


def network(width: int, device: str) -> torch.nn.ModuleList:
    torch.manual_seed(0)
    wide = [
        torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Tanh(),
            torch.nn.Linear(4 * width, width),
        )
        for _ in range(3)
    ]
    return torch.nn.ModuleList(wide).to(device)


def prove(proof: Proof) -> None:
    if CheckpointPolicy is None:
        skip(f"torch {torch.__version__} has no selective checkpointing; it needs torch 2.4")
    chosen = proof.technique(selectively, instead=plainly)
    model = network(proof.width, proof.device)
    x = torch.randn(64, proof.width, device=proof.device)
    gradients, kept, products, others = {}, {}, {}, {}

    def forward(call: Any) -> Any:
        out = x
        for block in model:
            out = out + call(block, out)
        return out.square().mean()

    for name, call in (("plain", plainly), ("selective", chosen), ("full", fully)):
        weights = list(model.parameters())
        kept[name] = saved_bytes(partial(forward, call), [*weights, x])
        with operations_seen() as seen:
            found = torch.autograd.grad(forward(call), weights)
        gradients[name] = torch.cat([gradient.flatten() for gradient in found])
        products[name] = sum(operator in PRODUCTS for operator in seen.names)
        others[name] = seen.names.count("aten::gelu")
    off = float((gradients["selective"] - gradients["plain"]).abs().max())
    off /= float(gradients["plain"].abs().max())
    proof.same(off <= TOLERANCE, f"gradients within {off:.1e} (tolerance {TOLERANCE:.0e})")
    proof.active(
        others["selective"] == 2 * others["plain"] and products["selective"] == products["plain"],
        f"{others['selective'] - others['plain']} activations and"
        f" {products['selective'] - products['plain']} products were computed again; with full"
        f" checkpointing, {products['full'] - products['plain']} products",
    )


if __name__ == "__main__":
    main(__doc__, prove, width=(128, 32))

"""8-bit AdamW: the optimizer's state in a quarter of the memory.

What it does: Adam keeps two values for every weight, 8 bytes in fp32. 8-bit optimizers store both
in one byte each, in blocks of 256 values with one scale per block, and compute the update in fp32.
Small tensors (fewer than 4096 values) stay in fp32.

When it helps: weights, gradients and optimizer state take most of the memory, as when you fine-tune
a large model with small batches.

When it hurts: if activations take most of the memory, you save little. Updates are rounded, so the
losses differ slightly from those of AdamW. If the model is sharded across GPUs (FSDP2), the state
is sharded too and matters less. If you train only few weights (LoRA, freezing.py), the state is
small anyway.

How to check: add up the bytes in optimizer.state, as this script does, and compare the loss curves
of a short run. This script was tried with bitsandbytes 0.50.2 on a CPU. torchao.optim.AdamW8bit
(tried: torchao 0.18.0, also on a CPU) does the same; it compiles its step, so it needs a working
torch.compile, and the first step takes several seconds.

Troubleshooting:
- "No module named 'bitsandbytes'": pip install bitsandbytes.
- bitsandbytes saves no memory with a small model: tensors with fewer than 4096 values stay in fp32.
  min_8bit_size changes this limit.
- "CUDA Setup failed despite GPU being available", "libbitsandbytes_cuda130.so: cannot open shared
  object file": this version of bitsandbytes was not built for the CUDA version of your torch.
  Upgrade bitsandbytes.
- Training with an 8-bit optimizer becomes unstable: embedding layers often need 32-bit state. Call
  bitsandbytes.optim.GlobalOptimManager.get_instance().register_module_override(layer, "weight",
  {"optim_bits": 32}) before you create the optimizer.
- The checkpoint of an 8-bit optimizer does not load into torch.optim.AdamW: the state has other
  names and types. Go on with the optimizer that you started with.
- "CUDA out of memory" although the optimizer's state is 8-bit: gradients and activations are not
  smaller. Try activation_checkpointing.py, or PagedAdamW8bit, which moves state to the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from proof import Proof, labeled, main, perceptron, skip

# --- Copy from here ------------------------------------------------------------------------------


def adamw_8bit(model: torch.nn.Module, lr: float) -> Any:
    import bitsandbytes  # pip install bitsandbytes

    return bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr, weight_decay=0.01)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 0.05  # final loss, relative to the first: 8-bit state is rounded


def adamw(model: torch.nn.Module, lr: float) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)


def train(model: Any, optimizer: Any, batches: Any) -> Any:
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def state_tensors(optimizer: Any) -> list[torch.Tensor]:
    """What the optimizer keeps, without the tables that all weights share."""
    kept = [value for state in optimizer.state.values() for value in state.values()]
    unique = {v.data_ptr(): v for v in kept if isinstance(v, torch.Tensor)}
    return list(unique.values())


def prove(proof: Proof) -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as missing:
        skip(f"{missing} (pip install bitsandbytes)")
    build = proof.technique(adamw_8bit, instead=adamw)
    batches = labeled(proof.steps, proof.width, proof.device)
    losses, kept = [], []
    for name, make in (("AdamW", adamw), ("8-bit AdamW", build)):
        model = perceptron(proof.width, proof.device)
        optimizer = make(model, 1e-3)
        losses.append(proof.train(name, train(model, optimizer, batches)))
        kept.append(state_tensors(optimizer))
    off = abs(losses[1][-1] - losses[0][-1]) / losses[0][0]
    proof.same(
        off <= TOLERANCE and losses[1][-1] < 0.5 * losses[1][0],
        f"the final loss is within {off:.1%} of AdamW, relative to the first"
        f" (tolerance {TOLERANCE:.0%})",
    )
    weights = sum(w.numel() for w in model.parameters())
    in_bytes = sum(v.numel() for v in kept[1] if v.dtype == torch.uint8)
    proof.active(
        in_bytes > 1.9 * weights,
        f"after {proof.steps} steps, {in_bytes} values of the state have 8 bits, for {weights}"
        " weights",
    )
    sizes = [sum(v.numel() * v.element_size() for v in some) for some in kept]
    proof.purpose(
        sizes[1] < 0.3 * sizes[0],
        f"the state takes {sizes[1] / weights:.2f} bytes per weight instead of"
        f" {sizes[0] / weights:.2f}: {sizes[1]} bytes instead of {sizes[0]}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 30), width=256)

"""Muon: an optimizer for the weight matrices of hidden layers, with AdamW for the rest.

What it does: Muon keeps a momentum of the gradient and replaces it by the nearest orthogonal
matrix: all directions of a weight matrix are updated by the same amount, also those with small
gradients. A few matrix products (Newton-Schulz iterations) compute this in every step. It applies
only to matrices of hidden layers; embeddings, the output layer, biases and norms go to AdamW.
torch.optim.Muon is available in torch 2.9 and newer.

When it helps: transformers and other models in which most weights are matrices; Muon often needs
fewer steps than AdamW to the same loss, and keeps one value per weight instead of two.

When it hurts: every step costs extra matrix products, which matters with small batches. For
convolutions, whose weights have four dimensions, torch.optim.Muon needs a reshape. A model that was
pretrained with AdamW gains little when it is fine-tuned with Muon. With sharded weights (FSDP2), it
needs a version of Muon that gathers each matrix.

How to check: compare the losses at equal steps and at equal time, each optimizer with its own best
learning rate (optimizers_compared.py). This script checks the update itself: its singular values
are all about the same.

Troubleshooting:
- "Muon only supports 2D parameters": pass only weights with two dimensions, as below, and the
  others to AdamW.
- "module 'torch.optim' has no attribute 'Muon'": upgrade to torch 2.9 or newer.
- Muon is worse than AdamW: the learning rates differ. With adjust_lr_fn="match_rms_adamw", updates
  are as large as AdamW's, so that you can start from the learning rate and weight decay of AdamW.
- The loss rises after switching to Muon: check that the embedding and the output layer are not
  among its weights.
- A scheduler changes only one of the two optimizers: create one scheduler for each.
- With GradScaler, call scaler.step(optimizer) for each of the two optimizers, then scaler.update()
  once.
"""

from __future__ import annotations

from typing import Any

import torch
from proof import Proof, labeled, main, skip

# --- Copy from here ------------------------------------------------------------------------------


def muon_and_adamw(model: torch.nn.Module, output: torch.nn.Module, lr: float) -> list[Any]:
    """Muon for hidden matrices, AdamW for the rest; call step() and zero_grad() of both.

    output: the last layer.
    """
    apart = [output, *(part for part in model.modules() if isinstance(part, torch.nn.Embedding))]
    not_hidden = {id(weight) for part in apart for weight in part.parameters()}
    every = list(model.parameters())
    hidden = [w for w in every if w.ndim == 2 and id(w) not in not_hidden]
    chosen = {id(weight) for weight in hidden}
    rest = [w for w in every if id(w) not in chosen]
    # This adjustment makes updates as large as those of AdamW: the same lr serves both.
    muon = torch.optim.Muon(hidden, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=lr, weight_decay=0.01)]


# --- Copy to here. The rest is the proof. --------------------------------------------------------


def only_adamw(model: torch.nn.Module, output: torch.nn.Module, lr: float) -> list[Any]:
    return [torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)]


def network(width: int, device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    hidden = [
        part
        for _ in range(3)
        for part in (torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU())
    ]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, 10)).to(device)


def train(model: Any, optimizers: Any, batches: Any, moved: list[torch.Tensor]) -> Any:
    """Train; yields the loss of every step and notes how the hidden weights moved in each."""
    hidden = [layer.weight for layer in model[:-1] if isinstance(layer, torch.nn.Linear)]
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        before = [weight.detach().clone() for weight in hidden]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        moved[:] = [(old - weight.detach()) for old, weight in zip(before, hidden, strict=True)]
        yield loss.detach()


def evenness(update: torch.Tensor) -> float:
    """The median singular value, relative to the largest: 1 for an orthogonal matrix."""
    values = torch.linalg.svdvals(update.float())
    return float(values.median() / values.max())


def prove(proof: Proof) -> None:
    if not hasattr(torch.optim, "Muon"):
        skip(f"torch {torch.__version__} has no torch.optim.Muon (2.9 and newer have it)")
    build = proof.technique(muon_and_adamw, instead=only_adamw)
    batches = labeled(proof.steps, proof.width, proof.device, size=256)
    finals, even, kept = [], [], []
    for name, make in (("AdamW", only_adamw), ("Muon and AdamW", build)):
        model, moved = network(proof.width, proof.device), list[torch.Tensor]()
        optimizers = make(model, model[-1], 5e-3)
        first, *_, last = proof.train(name, train(model, optimizers, batches, moved))
        finals.append(last)
        even.append(min(evenness(update) for update in moved))
        state = [v for o in optimizers for s in o.state.values() for v in s.values()]
        kept.append(sum(v.numel() * v.element_size() for v in state if torch.is_tensor(v)))
    weights = sum(w.numel() for w in model.parameters())
    proof.active(
        even[1] > 0.6 > even[0],
        f"in the last update of the hidden weights, the median singular value is {even[1]:.0%} of"
        f" the largest or more; with AdamW, it is {even[0]:.0%}",
    )
    proof.purpose(
        kept[1] < 0.65 * kept[0],
        f"the state takes {kept[1] / weights:.1f} bytes per weight instead of"
        f" {kept[0] / weights:.1f}",
    )
    proof.same(
        finals[1] < 0.8 * first,
        f"it learns: the loss falls from {first:.3f} to {finals[1]:.3f}, with AdamW at the same"
        f" learning rate to {finals[0]:.3f} (optimizers_compared.py tunes both)",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(60, 20), width=(128, 64))

"""Gradient clipping under AMP, in the right order.

What it does: clip_grad_norm_() scales the gradients down if their norm exceeds a limit. With a
GradScaler, the gradients are multiplied by the loss scale (65536 at first), so you must unscale
them before you clip. The correct order is: backward, unscale_, clip, step, update.

When it helps: training occasionally produces huge gradients that would destroy what the model has
learned, as can happen with transformers, recurrent networks and reinforcement learning.

When it hurts: a limit below the typical gradient norm shrinks every step, which amounts to a lower
learning rate. On a GPU, error_if_nonfinite=True makes the host wait for the norm in every step.

How to check: clip_grad_norm_() returns the norm of the gradients before clipping. Log this norm,
and choose the limit so that only outliers are clipped.

Troubleshooting:
- The model nearly stops learning, without an error: the gradients were clipped before unscale_()
  and then divided by the loss scale (this script shows the effect). Adam hides this mistake,
  because its updates do not depend on the size of the gradients.
- "unscale_() has already been called on this optimizer since the last update().": call unscale_()
  once per step, and call update() after each step. With gradient accumulation, call unscale_() only
  after the last micro-batch.
- "unscale_() is being called after step().": call unscale_() after backward() and before
  clip_grad_norm_(), step() and update().
- "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be
  clipped": with a GradScaler, this means that the gradients overflowed, and the scaler skips that
  step. Leave error_if_nonfinite set to False.
- With FSDP1, each process clips gradients with a different norm: torch.nn.utils.clip_grad_norm_()
  sees only the local shard. Call model.clip_grad_norm_() instead.
- With FSDP2 and tensor parallelism, torch.nn.utils.clip_grad_norm_() works but returns a DTensor.
  To log the norm, use norm.full_tensor().
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from proof import Batch, Proof, apart, main, updates_seen

# --- Copy from here ------------------------------------------------------------------------------


def train_clipped(
    model: torch.nn.Module, batches: Iterable[Batch], device: str, limit: float
) -> Iterator[torch.Tensor]:
    """Train in fp16 with gradients of at most this norm; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # from here on, the gradients have their real norm
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)  # does not unscale twice, and still skips overflows
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = 0.02  # relative to the first loss: fp16 has 11 bits of precision
LIMIT = 0.5  # of the gradient norm
Training = Callable[..., Iterator[torch.Tensor]]


def train_fp32(
    model: torch.nn.Module, batches: Iterable[Batch], device: str, limit: float
) -> Iterator[torch.Tensor]:
    """Clipping without a scaler, written out."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        factor = min(1.0, limit / norm_of(optimizer))
        for weight in model.parameters():
            weight.grad *= factor
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train_unclipped(
    model: torch.nn.Module, batches: Iterable[Batch], device: str, limit: float
) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def train_wrong_order(
    model: torch.nn.Module, batches: Iterable[Batch], device: str, limit: float
) -> Iterator[torch.Tensor]:
    """The mistake: clip the gradients while they are scaled."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)  # divides the clipped gradients by the scale
        scaler.update()
        optimizer.zero_grad()
        yield loss.detach()


def norm_of(optimizer: torch.optim.Optimizer) -> float:
    """The norm of all gradients together."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return float(torch.cat([weight.grad.detach().flatten() for weight in weights]).norm())


def outliers(steps: int, width: int, device: str) -> list[Batch]:
    """Points labeled by a random teacher; in one of eight batches, they are 4 times larger."""
    torch.manual_seed(0)
    teacher = torch.randn(width, 10)
    inputs = [torch.randn(64, width) * (4 if i == 5 else 1) for i in range(8)]
    return [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in (inputs * steps)[:steps]]


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    return torch.nn.Sequential(*layers).to(device)


def prove(proof: Proof) -> None:
    batches = outliers(proof.steps, proof.width, proof.device)

    def run(name: str, train: Training) -> tuple[list[float], list[float]]:
        """The loss of every step, and the norm of the gradients in every update."""
        with updates_seen(norm_of) as norms:
            model = network(proof.width, proof.device)
            losses = proof.train(name, train(model, batches, proof.device, LIMIT))
        return losses, norms

    train = proof.technique(train_clipped, instead=train_unclipped)
    plain, _ = run("fp32, clipped", train_fp32)
    clipped, norms = run("fp16, unscale_ then clip", train)
    wrong, _ = run("fp16, clip first (wrong)", train_wrong_order)
    free, free_norms = run("fp16, not clipped", train_unclipped)
    off, off_wrong = apart(clipped, plain), apart(wrong, plain)
    proof.same(
        off <= TOLERANCE < off_wrong and plain[-1] < plain[0],
        f"losses within {off:.1e} of clipping in fp32 (tolerance {TOLERANCE:.0e}), within"
        f" {off_wrong:.1e} if clipped before unscale_()",
    )
    at_limit = sum(norm > 0.99 * LIMIT for norm in norms)
    proof.active(
        max(norms) <= 1.001 * LIMIT < max(free_norms) and 0 < at_limit < len(norms),
        f"the gradient norms of {len(norms)} updates are at most {max(norms):.3f}, {at_limit} of"
        f" them at the limit; without clipping, they reach {max(free_norms):.1f}",
    )
    proof.purpose(
        # A nan is not smaller than anything.
        max(clipped[-8:]) < clipped[0] and not all(loss < free[0] for loss in free[-8:]),
        f"despite the outliers, the loss falls from {clipped[0]:.3f} to {clipped[-1]:.3f}; without"
        f" clipping, it ends at {free[-1]:.3g}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 40), width=64)

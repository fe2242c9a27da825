"""linear_cross_entropy: the loss of a language model without all of its logits in memory.

What it does: torch.nn.functional.linear_cross_entropy multiplies the hidden states by the output
layer and computes the cross entropy in one call. With chunking options, it keeps the logits of only
a few tokens at a time, and the full matrix of tokens times vocabulary never exists. It needs torch
2.13 or newer. For older versions, the packages liger-kernel and cut-cross-entropy do the same on a
GPU.

When it helps: the vocabulary is large. For 8 sequences of 4096 tokens and 128,000 words, the logits
alone take 16 GB in fp32, and their gradient takes as much again.

When it hurts: the chunks are computed one after the other. If the vocabulary is not larger than the
hidden size, or there are fewer tokens than hidden units, the plain form is cheaper. The chunked
form does not support double backward or forward-mode AD, and torch.compile runs it in eager mode.

How to check: compare the peak memory of a step with both forms
(torch.cuda.max_memory_allocated()) and the losses, which must agree.

Troubleshooting:
- "module 'torch.nn.functional' has no attribute 'linear_cross_entropy'": install torch 2.13 or
  newer.
- Memory does not go down: pass options=LinearCrossEntropyOptions(). Without options, the call
  computes all logits at once.
- "CUDA out of memory" in cross_entropy, although the forward pass fits: the logits and their
  gradient are the largest tensors of the step. Use this recipe.
- The loss differs slightly from before: the sums are computed in a different order, which matters
  most in bf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from proof import Batch, Proof, apart, main, peak_bytes, skip
from torch.nn import functional

# --- Copy from here ------------------------------------------------------------------------------


def chunked_loss(hidden: torch.Tensor, head: torch.nn.Linear, targets: torch.Tensor) -> Any:
    """The cross entropy of head(hidden), chunk by chunk. hidden: (tokens, width)."""
    options = torch.nn.LinearCrossEntropyOptions()
    return functional.linear_cross_entropy(hidden, head.weight, targets, options=options)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # relative to the first loss; summation order differs


def plain_loss(hidden: torch.Tensor, head: torch.nn.Linear, targets: torch.Tensor) -> Any:
    return functional.cross_entropy(head(hidden), targets)


def parts(width: int, words: int, device: str) -> tuple[torch.nn.Module, torch.nn.Linear]:
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Embedding(words, width), torch.nn.Linear(width, width))
    return body.to(device), torch.nn.Linear(width, words, bias=False).to(device)


def train(body: Any, head: Any, batches: Iterable[Batch], loss_of: Any) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1.0)
    for x, y in batches:
        loss = loss_of(body(x), head, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def step(loss_of: Any, hidden: torch.Tensor, head: Any, targets: torch.Tensor) -> None:
    loss_of(hidden, head, targets).backward()


def prove(proof: Proof) -> None:
    if not hasattr(functional, "linear_cross_entropy"):
        skip(f"torch {torch.__version__} has no linear_cross_entropy; it needs torch 2.13")
    loss_of = proof.technique(chunked_loss, instead=plain_loss)
    torch.manual_seed(1)
    tokens, words = proof.tokens, proof.words
    x = torch.randint(words, (tokens,), device=proof.device)
    batches = [(x, (x * 7 + 1) % words)] * proof.steps
    shape = (proof.width, words, proof.device)
    plain = proof.train("all logits", train(*parts(*shape), batches, plain_loss))
    chunked = proof.train("chunks", train(*parts(*shape), batches, loss_of))
    off, limit = apart(chunked, plain), TOLERANCE[proof.device]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"losses within {off:.1e}, relative to the first (tolerance {limit:.0e})",
    )
    peaks = []
    for way in (plain_loss, loss_of):
        body, head = parts(*shape)
        hidden = body(x).detach().requires_grad_()
        peaks.append(peak_bytes(partial(step, way, hidden, head, batches[0][1]), proof.device))
    logits = 4 * tokens * words
    proof.active(
        peaks[1] < logits,
        f"the peak of the loss is {peaks[1] / 2**20:.1f} MiB; the logits alone have"
        f" {logits / 2**20:.1f} MiB",
    )
    proof.purpose(
        peaks[1] < peaks[0] / 2,
        f"the peak of the loss with all logits is {peaks[0] / 2**20:.1f} MiB",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(10, 4), tokens=(512, 256), words=(4096, 2048), width=64)

"""Sequence packing: train on sequences of different lengths without any padding.

What it does: all sequences of a batch stand one after the other in a single row, and a mask keeps
attention within each of them. FlexAttention compiles the mask into its kernel and skips the blocks
between the sequences. Variable-length kernels do the same from a list of borders
(torch.nn.attention.varlen in torch 2.10 and newer, or flash_attn_varlen_func).

When it helps: the lengths differ a lot, as in chat data. If every sequence is padded to the
longest, most of the computation can be padding. Try sequence_length.py first, which is simpler.

When it hurts: all sequences have about the same length. The batch size is then a number of tokens,
and a loss that was averaged over sequences has to be weighted.

How to check: count the tokens that the model gets and the real ones. The output of a sequence must
be the same whether it is alone or packed with others.

Troubleshooting:
- The loss falls faster than expected, and the model is bad: the sequences see each other. A causal
  mask alone does not separate them.
- Position embeddings are wrong: positions must start at zero in each sequence.
- "FlexAttention does not support backward on CPU": train on a GPU; on a CPU, only the forward pass
  works.
- "flex_attention called without torch.compile()": without compilation, FlexAttention computes all
  scores and saves nothing. Call torch.compile(flex_attention).
- With transformers: use DataCollatorWithFlattening and attn_implementation="flash_attention_2".
- torch.compile recompiles for every batch: pack to a fixed number of tokens, or compile with
  dynamic=True.
"""

from __future__ import annotations

from typing import Any

import torch
from proof import Proof, main, skip

try:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError:
    flex_attention = None

# --- Copy from here ------------------------------------------------------------------------------


def packed(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, Any]:
    """One row with all sequences, and the mask that keeps them apart. Use with flex_attention."""
    row = torch.cat(sequences).unsqueeze(0)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=row.device)
    document = torch.repeat_interleave(torch.arange(len(lengths), device=row.device), lengths)

    def causal_within(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (document[query] == document[key]) & (query >= key)

    length = row.shape[1]
    return row, create_block_mask(causal_within, None, None, length, length, device=row.device)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}  # relative to the largest output
HEADS, WIDTH = 2, 32


def padded(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, Any]:
    rows = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    length = rows.shape[1]

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    return rows, create_block_mask(causal, None, None, length, length, device=rows.device)


class Attention(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(2, 3)
        attend = torch.compile(flex_attention) if x.is_cuda else flex_attention
        return attend(*parts, block_mask=mask).transpose(1, 2).flatten(-2)


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def prove(proof: Proof) -> None:
    if flex_attention is None:
        skip(f"torch {torch.__version__} has no FlexAttention; it needs torch 2.5")
    batch = proof.technique(packed, instead=padded)
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, proof.longest, (16,), generator=draw).tolist()
    lengths[0] = proof.longest
    sequences = [torch.randn(n, WIDTH, generator=draw).to(proof.device) for n in lengths]
    torch.manual_seed(0)
    layer, tokens = Attention().to(proof.device), list[int]()
    alone = [layer(*padded([sequence]))[0] for sequence in sequences]
    layer.qkv.register_forward_hook(lambda *call: tokens.append(call[2][..., 0].numel()))
    rows, mask = batch(sequences)
    together = layer(rows, mask)
    parts = together[0].split(lengths) if len(together) == 1 else together
    off = max(
        float((part[: len(own)] - own).abs().max() / own.abs().max())
        for part, own in zip(parts, alone, strict=True)
    )
    limit, real = TOLERANCE[proof.device], sum(lengths)
    proof.same(
        off <= limit, f"each sequence is as if alone, within {off:.1e} (tolerance {limit:.0e})"
    )
    proof.active(tokens == [real], f"the layer got {sum(tokens)} tokens; {real} of them are real")
    every = len(lengths) * max(lengths)
    proof.purpose(
        sum(tokens) < every, f"padding to the longest sequence would make it {every} tokens"
    )


if __name__ == "__main__":
    main(__doc__, prove, longest=(128, 48))

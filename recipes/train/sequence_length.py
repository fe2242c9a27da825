"""Shorter sequences: find the length that covers 99% of the data, and pad no more than needed.

What it does: this script measures the token length of the samples, truncates them to the length
that covers 99% of them, and pads each batch only to the length of its longest sample.

When it helps: most samples are much shorter than the longest ones. Attention gains the most,
because its cost grows with the square of the sequence length.

When it hurts: truncation removes the end of long samples, which may be the part that matters. With
torch.compile, every new length is a new shape that must be compiled.

How to check: compare the number of tokens and the time per step with and without truncation. To get
the lengths of your own texts, use your tokenizer:
    lengths = [len(ids) for ids in tokenizer(texts, truncation=False)["input_ids"]]

Troubleshooting:
- The output of the model depends on the padding: mask padding tokens in attention, exclude them
  from averages, and set their labels to -100.
- "Token indices sequence length is longer than the specified maximum sequence length", then "index
  out of range in self" or "device-side assert triggered": pass truncation=True and max_length=...
  to the tokenizer.
- Training runs out of memory late in an epoch: it has reached the batch with the longest samples.
  Put that batch first in the epoch, so that the error occurs immediately.
- Batches contain a lot of padding: group samples of similar length into batches, or pack several
  texts into one row, with an attention mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from proof import Proof, main

# --- Copy from here ------------------------------------------------------------------------------
Tokens = list[int]
PAD = 0


def covering(lengths: Sequence[int], share: float) -> int:
    """The shortest length that covers at least this share of the samples."""
    needed = -(-len(lengths) * round(share * 1000) // 1000)  # rounded up, without float errors
    return sorted(lengths)[needed - 1]


def padded(samples: Sequence[Tokens], longest: int) -> torch.Tensor:
    """One row per sample, truncated and padded to this length."""
    return torch.tensor([sample[:longest] + [PAD] * (longest - len(sample)) for sample in samples])


def dynamic(samples: Sequence[Tokens], longest: int) -> torch.Tensor:
    """Pad only to the longest sample of the batch, rounded up to a multiple of 8."""
    return padded(samples, min(longest, -(-max(map(len, samples)) // 8) * 8))


# --- Copy to here. The rest is the proof. --------------------------------------------------------
Padding = Callable[[Sequence[Tokens], int], torch.Tensor]
TOLERANCE, TRAINED = 1e-4, 0.02  # per loss with equal weights; of the mean loss after training
WORDS, WIDTH = 500, 32


class Encoder(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """An encoder that ignores padding, both in attention and in the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer
        self.layer = layer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        real = tokens != PAD
        x = self.layer(self.words(tokens), src_key_padding_mask=~real) * real.unsqueeze(-1)
        return self.head(x.sum(1) / real.sum(1, keepdim=True))


def corpus(samples: int, maximum: int) -> tuple[list[Tokens], torch.Tensor]:
    """Texts, only a few of them long; those with label 1 contain more low word numbers."""
    torch.manual_seed(0)
    lengths = (torch.randn(samples) * 0.5 + 3.3).exp().int().clamp(4, maximum).tolist()
    labels = torch.randint(2, (samples,))
    draws = [torch.rand(n) ** (2.0 if y else 0.5) for n, y in zip(lengths, labels, strict=True)]
    return [(1 + (u * (WORDS - 1)).long()).tolist() for u in draws], labels


def train(
    model: Encoder, texts: list[Tokens], labels: torch.Tensor, steps: int, pad: Callable[..., Any]
) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    device = next(model.parameters()).device
    for step in range(steps):
        chosen = [(32 * step + i) % len(texts) for i in range(32)]
        tokens = pad([texts[i] for i in chosen]).to(device)
        loss = torch.nn.functional.cross_entropy(model(tokens), labels[chosen].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def losses_of(model: Encoder, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each sequence; without dropout, train and eval mode are the same."""
    scores = model(tokens.to(next(model.parameters()).device)).cpu()
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def prove(proof: Proof) -> None:
    pad: Padding = proof.technique(dynamic, instead=lambda some, _: padded(some, proof.maximum))
    texts, labels = corpus(32 * 40, proof.maximum)
    lengths = [*map(len, texts)]
    p95, p99 = covering(lengths, 0.95), covering(lengths, 0.99)
    print(
        f"95% of samples have at most {p95} tokens, 99% at most {p99}, the longest {max(lengths)}"
    )
    models, tokens, widths = list[Encoder](), list[int](), set[int]()
    for name, way in (
        (f"padded to {proof.maximum}", lambda some: padded(some, proof.maximum)),
        (f"cut at {p99}, per batch", lambda some: pad(some, p99)),
    ):
        torch.manual_seed(0)
        models.append(model := Encoder().to(proof.device))
        shapes: list[torch.Size] = []
        model.words.register_forward_pre_hook(
            lambda _, args, shapes=shapes: shapes.append(args[0].shape)
        )
        proof.train(name, train(model, texts, labels, proof.steps, way))
        tokens.append(sum(rows * width for rows, width in shapes))
        widths = {width for _, width in shapes}
    fits = [i for i, length in enumerate(lengths) if length <= p99][:256]
    some = [texts[i] for i in fits]
    whole, short = padded(some, proof.maximum), pad(some, p99)
    padded_loss, cut_loss = (losses_of(models[0], rows, labels[fits]) for rows in (whole, short))
    off = float((padded_loss - cut_loss).abs().max())
    trained = [float(losses_of(m, short, labels[fits]).mean()) for m in models]
    covered, saved = sum(n <= p99 for n in lengths) / len(lengths), 1 - tokens[1] / tokens[0]
    proof.same(
        off <= TOLERANCE and abs(trained[0] - trained[1]) <= TRAINED and covered >= 0.99,
        f"for the {covered:.1%} of samples that fit, losses change by at most {off:.1e}; after"
        f" training, the mean loss is {trained[0]:.3f} padded and {trained[1]:.3f} cut",
    )
    proof.active(
        len(widths) > 1 and max(widths) <= p99,
        f"the model saw batches of {min(widths)} to {max(widths)} tokens per sample",
    )
    proof.purpose(saved > 0.2, f"{saved:.0%} of the tokens were not computed")


if __name__ == "__main__":
    main(__doc__, prove, steps=(40, 15), maximum=256)

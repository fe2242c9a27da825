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

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

Tokens = list[int]
Padding = Callable[[Sequence[Tokens]], torch.Tensor]
TOLERANCE, TRAINED = 1e-4, 0.02  # per loss with equal weights; of the mean loss after training
WORDS, WIDTH, PAD = 500, 32, 0


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
    model: Encoder, texts: list[Tokens], labels: torch.Tensor, steps: int, pad: Padding
) -> Iterator[tuple[float, int]]:
    """Train; yields the loss and the number of tokens of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    device = next(model.parameters()).device
    for step in range(steps):
        chosen = [(32 * step + i) % len(texts) for i in range(32)]
        tokens = pad([texts[i] for i in chosen]).to(device)
        loss = torch.nn.functional.cross_entropy(model(tokens), labels[chosen].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item(), tokens.numel()  # item() waits for the device


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def losses_of(model: Encoder, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each sequence; without dropout, train and eval mode are the same."""
    scores = model(tokens.to(next(model.parameters()).device)).cpu()
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def measured(name: str, steps: Iterator[tuple[float, int]]) -> int:
    """Run the training and print the time per step; returns the number of tokens."""
    done = [(loss, count, time.perf_counter()) for loss, count in steps]
    tokens, clock = sum(count for _, count, _ in done), [moment for *_, moment in done]
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[len(clock) // 4 :]))
    line = f"{name:<22} loss {done[-1][0]:.4f}, {statistics.median(ms):.1f} ms per step"
    print(f"{line} ({ms[0]:.1f} to {ms[-1]:.1f}), {tokens} tokens")
    return tokens


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--maximum", type=int, default=256, help="maximum tokens per sample")
    asked = parser.parse_args(argv)
    texts, labels = corpus(32 * 40, asked.maximum)
    lengths = [*map(len, texts)]
    p95, p99 = covering(lengths, 0.95), covering(lengths, 0.99)
    print(
        f"95% of samples have at most {p95} tokens, 99% at most {p99}, the longest {max(lengths)}"
    )
    ways: dict[str, Padding] = {
        f"padded to {asked.maximum}": lambda some: padded(some, asked.maximum),
        f"cut at {p99}, per batch": lambda some: dynamic(some, p99),
    }
    models, tokens = list[Encoder](), list[int]()
    for name, pad in ways.items():
        torch.manual_seed(0)
        models.append(Encoder().to(asked.device))
        tokens.append(measured(name, train(models[-1], texts, labels, asked.steps, pad)))
    fits = [i for i, length in enumerate(lengths) if length <= p99][:256]
    whole, short = (pad([texts[i] for i in fits]) for pad in ways.values())
    padded_loss, cut_loss = (losses_of(models[0], rows, labels[fits]) for rows in (whole, short))
    off = float((padded_loss - cut_loss).abs().max())
    trained = [float(losses_of(m, short, labels[fits]).mean()) for m in models]
    covered, saved = sum(n <= p99 for n in lengths) / len(lengths), 1 - tokens[1] / tokens[0]
    held = off <= TOLERANCE and abs(trained[0] - trained[1]) <= TRAINED
    held = held and covered >= 0.99 and saved > 0 and trained[0] < 0.6  # starts at ln 2
    print(
        f"{'proved' if held else 'not proved'}: {p99} tokens cover {covered:.1%} of the samples and"
        f" save {saved:.0%} of the tokens; the loss of samples that fit changes by at most"
        f" {off:.1e} (tolerance {TOLERANCE:.0e}); after training, the mean loss is"
        f" {trained[0]:.3f} padded and {trained[1]:.3f} cut (tolerance {TRAINED})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

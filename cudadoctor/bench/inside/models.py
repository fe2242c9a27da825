"""The three models, each in its usual form: nothing in them is made for the bench but the sizes.

No dropout: its random numbers differ from technique to technique, and losses could not be compared.
"""

import math
from typing import Any, Dict, List

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .order import Settings


class Residual(nn.Module):  # type: ignore[misc,unused-ignore]
    """Two convolutions and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super(Residual, self).__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.past = nn.Sequential()
        if stride != 1 or before != after:
            self.past = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.past(x))


class ResNet(nn.Module):  # type: ignore[misc,unused-ignore]
    """An image classifier: stages of residual blocks, each half as wide and twice as deep."""

    def __init__(self, shape: Dict[str, Any], checkpointing: bool) -> None:
        super(ResNet, self).__init__()
        width = int(shape["width"])
        large = int(shape["image"]) > 64
        first = [nn.Conv2d(3, width, 7 if large else 3, 2 if large else 1, 3 if large else 1)]
        first += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*(first + ([nn.MaxPool2d(3, 2, 1)] if large else [])))
        blocks: List[Any] = []
        before = width
        for stage, number in enumerate(shape["blocks"]):
            after = width * 2**stage
            for place in range(number):
                blocks.append(Residual(before, after, 2 if place == 0 and stage else 1))
                before = after
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(before, int(shape["classes"]))
        self.checkpointing = checkpointing

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = _through(block, (x,), self.checkpointing)
        return self.head(x.mean((2, 3)))


class Layer(nn.Module):  # type: ignore[misc,unused-ignore]
    """A transformer layer, normalised before its parts."""

    def __init__(self, shape: Dict[str, Any], attention: str, causal: bool) -> None:
        super(Layer, self).__init__()
        width = int(shape["width"])
        self.heads = int(shape["heads"])
        self.attention = attention
        self.causal = causal
        self.before = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any, mask: Any) -> Any:
        x = x + self.out(self._attended(self.before(x), mask))
        return x + self.body(self.between(x))

    def _attended(self, x: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        parts = self.into(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.attention == "sdpa":
            if self.causal:
                seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
            seen = functional.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v
        return seen.transpose(1, 2).reshape(batch, length, width)


class Transformer(nn.Module):  # type: ignore[misc,unused-ignore]
    """An encoder with a head for classes, or a decoder that names the next token."""

    def __init__(self, shape: Dict[str, Any], settings: Settings, causal: bool) -> None:
        super(Transformer, self).__init__()
        width, length = int(shape["width"]), int(shape["length"])
        vocabulary = int(shape["vocabulary"])
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            [Layer(shape, settings.attention, causal) for _ in range(int(shape["layers"]))]
        )
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary if causal else 2, bias=not causal)
        self.causal = causal
        self.checkpointing = settings.checkpointing
        self.apply(_small)
        triangle = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("triangle", triangle, persistent=False)

    def forward(self, tokens: Any, kept: Any = None) -> Any:
        length = tokens.shape[1]
        mask = self.triangle[:length, :length] if self.causal else kept[:, None, None, :]
        x = self.words(tokens) + self.places.weight[:length]
        for layer in self.layers:
            x = _through(layer, (x, mask), self.checkpointing)
        x = self.last(x)
        return self.head(x if self.causal else x[:, 0])


def build(workload: str, shape: Dict[str, Any], settings: Settings) -> Any:
    """The model of a workload, by the seed that was set."""
    if workload == "cnn":
        return ResNet(shape, settings.checkpointing)
    return Transformer(shape, settings, workload == "decoder")


def loss_of(workload: str, model: Any, batch: Any) -> Any:
    """The loss of a batch: (images, labels), (tokens, kept, labels) or (tokens, next tokens)."""
    if workload == "decoder":
        scores = model(batch[0])
        return functional.cross_entropy(scores.flatten(0, 1).float(), batch[1].flatten())
    return functional.cross_entropy(model(*batch[:-1]).float(), batch[-1])


def _through(part: Any, values: Any, checkpointing: bool) -> Any:
    """Through a part, kept or computed again in the backward pass."""
    if checkpointing:
        return checkpoint(part, *values, use_reentrant=False)
    return part(*values)


def _small(module: Any) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)

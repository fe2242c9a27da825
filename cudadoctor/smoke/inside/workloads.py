"""What is trained: an order's settings, synthetic data of real shape, and the three models.

The data must be decoded, augmented and put together by a DataLoader. It is made without torch, so
that the parent of all runners makes it once and starts no thread. What a sample looks like depends
on its number and on the epoch alone: every loader yields the same.

The models have their usual form: nothing in them is made for the bench but the sizes. No dropout:
its random numbers differ from technique to technique, and losses could not be compared.
"""

import itertools
import math
import random
import zlib
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch.nn import (
    GELU,
    BatchNorm2d,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    MaxPool2d,
    Module,
    ModuleList,
    ReLU,
    Sequential,
    functional,
    init,
)
from torch.utils.checkpoint import checkpoint

MEAN, SPREAD = 118.0, 64.0
PAD = 0


Shape = Dict[str, Any]


class Settings:
    """How to train; the defaults are torch's own, and stand for the baseline.

    amp: "", bfloat16 or float16. matmul: precision of fp32 products. compile: "" or a mode.
    graphs: the whole step as one CUDA graph. optimizer: "", fused or foreach. workers: of the
    loader, -1 as many as fit. pinned: page-locked batches, copied without waiting. prefetch: the
    next batch is copied on a stream of its own. cached: decoded samples stay in memory.
    batch: a factor, 0 the largest that fits. lengths: padded or bucketed. attention: eager or
    sdpa. accumulate: micro-batches of a step. fault: for tests.
    """

    amp = compile = optimizer = fault = ""
    graphs = channels_last = pinned = prefetch = cached = checkpointing = cudnn_benchmark = False
    workers = 0
    batch = accumulate = 1
    matmul = "highest"
    lengths = "padded"
    attention = "eager"

    def __init__(self, given: Shape) -> None:
        self.__dict__.update(given)


class Order:
    """One training. shape: sizes of model and data. factor: how many times the usual batch.

    alone: it has a process of its own that was not forked, and makes its data itself. nvml: the
    folder of a pynvml, "" none.
    """

    id = 0
    workload = "cnn"
    device = "cpu"
    seed = 0
    loss_steps = 6
    warm_s = 4.0
    share = 0.9
    alone = False
    nvml = ""

    def __init__(self, given: Shape) -> None:
        self.__dict__.update(given)
        self.shape: Shape = dict(given.get("shape") or {})
        self.settings = Settings(given.get("settings") or {})
        self.factor = max(1, self.settings.batch)

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def batch(self) -> int:
        return int(self.shape["batch"]) * self.factor


# --- data -------------------------------------------------------------------------------------


class Samples(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """What is stored, decoded each time or, cached, once. augment: of a sample and its number."""

    def __init__(self, stored: Any, cached: bool, decode: Any, augment: Any = None) -> None:
        self.stored = stored
        self.decode = decode
        self.augment = augment
        self.cache = [decode(packed) for packed, _ in stored] if cached else []

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, number: int) -> Tuple[Any, int]:
        packed, label = self.stored[number]
        sample = self.cache[number] if self.cache else self.decode(packed)
        return self.augment(sample, number) if self.augment else sample, label


def images(shape: Shape, cached: bool) -> Samples:
    """Compressed images, which brightness and stripes tell apart; cropped, flipped, normalised."""
    size = shape["image"]

    def decode(packed: bytes) -> Any:
        flat = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)
        return flat.view(3, size, size)

    def augment(image: Any, number: int) -> Any:
        down, right = number % 5, number // 5 % 5
        image = functional.pad(image, (2, 2, 2, 2))[:, down : down + size, right : right + size]
        image = image.flip(2) if number % 2 else image
        return (image.float() - MEAN) / SPREAD

    # Augmentation by number, also of what is cached: it is never frozen into the cache.
    return Samples(made("cnn", shape), cached, decode, augment)


def texts(shape: Shape, cached: bool) -> Samples:
    """Texts of very different length, as bytes that must be made into tokens; two classes."""

    def decode(packed: bytes) -> Any:
        return torch.tensor([int(word[1:]) for word in packed.split()], dtype=torch.int64)

    return Samples(made("encoder", shape), cached, decode)


def windows(shape: Shape) -> List[Tuple[Any, Any]]:
    """Pieces of one long row of tokens in which the last token often tells the next, and those."""
    length, row = shape["length"], torch.tensor(made("decoder", shape), dtype=torch.int64)
    begins = range(0, len(row) - length, length)
    return [(row[at : at + length], row[at + 1 : at + length + 1]) for at in begins]


def padded(
    samples: List[Tuple[Any, int]], length: int, bucketed: bool, most: int
) -> Tuple[Any, Any, Any]:
    """Texts put together: to one length for all, or to the longest of this batch."""
    rows = [tokens[:most] for tokens, _ in samples]
    width = length
    if bucketed:
        # A multiple of 32: few different shapes for what compiles or tunes per shape.
        width = min(length, -(-max(map(len, rows)) // 32) * 32)
    batch = torch.full((len(rows), width), PAD, dtype=torch.int64)
    for place, row in enumerate(rows):
        batch[place, : len(row)] = row
    labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
    return batch, batch != PAD, labels


def batches(lengths: List[int], batch: int, seed: int, bucketed: bool) -> Iterator[List[int]]:
    """Numbers in batches, without end; shuffled by seed and epoch, so that all loaders agree.

    bucketed: samples of like length share a batch.
    """
    waiting = []
    for epoch in itertools.count():
        chance = random.Random(seed * 1000 + epoch)
        order = list(range(len(lengths)))
        chance.shuffle(order)
        waiting += order
        whole = len(waiting) // batch * batch
        ready, waiting = waiting[:whole], waiting[whole:]
        if bucketed:
            ready.sort(key=lengths.__getitem__)
        cut = [ready[at : at + batch] for at in range(0, whole, batch)]
        if bucketed:
            chance.shuffle(cut)
        for numbers in cut:
            yield numbers


_MADE: Dict[str, Any] = {}


def made(workload: str, shape: Shape) -> Any:
    """What is stored of a workload, made once a process and shared with every fork."""
    key = workload + repr(sorted(shape.items()))
    if key not in _MADE:
        _MADE[key] = {"cnn": _images, "encoder": _texts, "decoder": _row}[workload](shape)
    return _MADE[key]


def _images(shape: Shape) -> List[Tuple[bytes, int]]:
    chance = random.Random(1)
    size, classes = shape["image"], shape["classes"]
    noise = bytes([chance.randrange(32) for _ in range(4096)])
    tones = [
        noise.translate(bytes([min(255, label * 200 // classes + tone) for tone in range(256)]))
        for label in range(classes)
    ]
    stored = []
    for number in range(shape["samples"]):
        label = number % classes
        begins = [chance.randrange(4096 - size) for _ in range(size)]
        plane = b"".join([tones[label][begin : begin + size] for begin in begins])
        stored.append((zlib.compress(plane * 3, 1), label))
    return stored


def _texts(shape: Shape) -> List[Tuple[bytes, int]]:
    chance = random.Random(2)
    most, vocabulary = shape["length"], shape["vocabulary"]
    stored = []
    for number in range(shape["samples"]):
        # Most texts are short and a few long, as reviews, messages and sentences are.
        length = max(4, min(most, int(most * 0.30 * chance.lognormvariate(0.0, 0.6))))
        label = number % 2
        words = [2 + label + 2 * chance.randrange(vocabulary // 2 - 2) for _ in range(length)]
        stored.append((b" ".join([b"w%d" % word for word in words]), label))
    return stored


def _row(shape: Shape) -> List[int]:
    chance = random.Random(3)
    vocabulary, token, row = shape["vocabulary"], 1, []
    for _ in range(shape["samples"] * shape["length"] + 1):
        known = chance.random() < 0.8
        token = (token * 7 + 3) % vocabulary if known else chance.randrange(vocabulary)
        row.append(token)
    return row


# --- models -----------------------------------------------------------------------------------


class Residual(Module):  # type: ignore[misc,unused-ignore]
    """Two convolutions and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = Sequential(
            Conv2d(before, after, 3, stride, 1, bias=False),
            BatchNorm2d(after),
            ReLU(inplace=True),
            Conv2d(after, after, 3, 1, 1, bias=False),
            BatchNorm2d(after),
        )
        same = stride == 1 and before == after
        past = [] if same else [Conv2d(before, after, 1, stride, bias=False), BatchNorm2d(after)]
        self.past = Sequential(*past)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.past(x))


class ResNet(Module):  # type: ignore[misc,unused-ignore]
    """An image classifier: stages of residual blocks, each half as wide and twice as deep."""

    def __init__(self, shape: Shape, settings: Settings) -> None:
        super().__init__()
        before, large = shape["width"], shape["image"] > 64
        self.stem = Sequential(
            Conv2d(3, before, *((7, 2, 3) if large else (3, 1, 1))),
            BatchNorm2d(before),
            ReLU(inplace=True),
            *([MaxPool2d(3, 2, 1)] if large else []),
        )
        self.layers = ModuleList()
        for stage, number in enumerate(shape["blocks"]):
            after = shape["width"] * 2**stage
            for place in range(number):
                self.layers.append(Residual(before, after, 2 if place == 0 and stage else 1))
                before = after
        self.head = Linear(before, shape["classes"])
        self.checkpointing = settings.checkpointing

    def forward(self, images: Any) -> Any:
        x = self.stem(images)
        for layer in self.layers:
            x = _through(layer, (x,), self.checkpointing)
        return self.head(x.mean((2, 3)))


class Layer(Module):  # type: ignore[misc,unused-ignore]
    """A transformer layer, normalised before its parts."""

    def __init__(self, shape: Shape, attention: str, causal: bool) -> None:
        super().__init__()
        width = shape["width"]
        self.heads = shape["heads"]
        self.attention = attention
        self.causal = causal
        self.before = LayerNorm(width)
        self.into = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.between = LayerNorm(width)
        self.body = Sequential(Linear(width, 4 * width), GELU(), Linear(4 * width, width))

    def forward(self, x: Any, mask: Any) -> Any:
        x = x + self.out(self._attended(self.before(x), mask))
        return x + self.body(self.between(x))

    def _attended(self, x: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        parts = self.into(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.attention == "sdpa":
            seen_by: Dict[str, Any] = {"is_causal": True} if self.causal else {"attn_mask": mask}
            seen = functional.scaled_dot_product_attention(q, k, v, **seen_by)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
            seen = functional.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v
        return seen.transpose(1, 2).reshape(batch, length, width)


class Transformer(Module):  # type: ignore[misc,unused-ignore]
    """An encoder with a head for classes, or a decoder that names the next token."""

    def __init__(self, shape: Shape, settings: Settings, causal: bool) -> None:
        super().__init__()
        width, length, vocabulary = shape["width"], shape["length"], shape["vocabulary"]
        self.words = Embedding(vocabulary, width)
        self.places = Embedding(length, width)
        self.layers = ModuleList(
            [Layer(shape, settings.attention, causal) for _ in range(shape["layers"])]
        )
        self.last = LayerNorm(width)
        self.head = Linear(width, vocabulary if causal else 2, bias=not causal)
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


def build(workload: str, shape: Shape, settings: Settings) -> Any:
    """The model of a workload, by the seed that was set."""
    if workload == "cnn":
        return ResNet(shape, settings)
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
    if isinstance(module, (Linear, Embedding)):
        init.normal_(module.weight, std=0.02)

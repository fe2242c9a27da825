"""What is trained: an order's settings, synthetic data of real shape, and the three models.

The data must be decoded, augmented and put together by a DataLoader. It is made without torch, so
that the parent of all runners makes it once and starts no thread. What a sample looks like depends
on its number and on the epoch alone: every loader yields the same.

The models have their usual form: nothing in them is made for the bench but the sizes. No dropout:
its random numbers differ from technique to technique, and losses could not be compared.
"""

import math
import random
import zlib
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MEAN, SPREAD = 118.0, 64.0
PAD = 0


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

    def __init__(self, given: Dict[str, Any]) -> None:
        self.__dict__.update(given)


class Order:
    """One training. shape: sizes of model and data. factor: how many times the usual batch.

    alone: it has a process of its own that was not forked, and makes its data itself.
    """

    id = 0
    workload = "cnn"
    device = "cpu"
    seed = 0
    loss_steps = 6
    warm_s = 4.0
    share = 0.9
    alone = False

    def __init__(self, given: Dict[str, Any]) -> None:
        self.__dict__.update(given)
        self.shape: Dict[str, Any] = dict(given.get("shape") or {})
        self.settings = Settings(given.get("settings") or {})
        self.factor = max(1, self.settings.batch)

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def batch(self) -> int:
        return int(self.shape["batch"]) * self.factor


# --- data -------------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """Compressed images, which brightness and stripes tell apart; cropped, flipped, normalised."""

    def __init__(self, shape: Dict[str, Any], cached: bool) -> None:
        self.size = int(shape["image"])
        self.stored = made("cnn", shape)
        self.cache: Any = [self._decoded(one) for one, _ in self.stored] if cached else []

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, number: int) -> Tuple[Any, int]:
        packed, label = self.stored[number]
        image = self.cache[number] if self.cache else self._decoded(packed)
        # Augmentation by number, also of what is cached: it is never frozen into the cache.
        down, right = number % 5, number // 5 % 5
        image = functional.pad(image, (2, 2, 2, 2))
        image = image[:, down : down + self.size, right : right + self.size]
        if number % 2:
            image = image.flip(2)
        return (image.float() - MEAN) / SPREAD, label

    def _decoded(self, packed: bytes) -> Any:
        flat = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)
        return flat.view(3, self.size, self.size)


class Texts(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """Texts of very different length, as bytes that must be made into tokens; two classes."""

    def __init__(self, shape: Dict[str, Any], cached: bool) -> None:
        self.stored, self.lengths = made("encoder", shape)
        self.cache: Any = [self._tokens(one) for one, _ in self.stored] if cached else []

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, number: int) -> Tuple[Any, int]:
        text, label = self.stored[number]
        return (self.cache[number] if self.cache else self._tokens(text)), label

    def _tokens(self, text: bytes) -> Any:
        return torch.tensor([int(word[1:]) for word in text.split()], dtype=torch.int64)


class Windows(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """Pieces of one long row of tokens in which the last token often tells the next."""

    def __init__(self, shape: Dict[str, Any]) -> None:
        self.length = int(shape["length"])
        self.row = torch.tensor(made("decoder", shape), dtype=torch.int64)

    def __len__(self) -> int:
        return (len(self.row) - 1) // self.length

    def __getitem__(self, number: int) -> Tuple[Any, Any]:
        begin = number * self.length
        piece = self.row[begin : begin + self.length + 1]
        return piece[:-1], piece[1:]


class Padding:
    """Puts texts together: to one length for all, or to the longest of this batch."""

    def __init__(self, length: int, bucketed: bool, most: int) -> None:
        self.length = length
        self.bucketed = bucketed
        self.most = most

    def __call__(self, samples: List[Tuple[Any, int]]) -> Tuple[Any, Any, Any]:
        rows = [tokens[: self.most] for tokens, _ in samples]
        width = self.length
        if self.bucketed:
            # A multiple of 32: few different shapes for what compiles or tunes per shape.
            width = min(self.length, -(-max([len(row) for row in rows]) // 32) * 32)
        batch = torch.full((len(rows), width), PAD, dtype=torch.int64)
        for place, row in enumerate(rows):
            batch[place, : len(row)] = row
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return batch, batch != PAD, labels


class Batches:
    """Numbers in batches, without end; shuffled by seed and epoch, so that all loaders agree.

    bucketed: samples of like length share a batch. Lists of numbers, as a batch_sampler yields.
    """

    def __init__(self, lengths: List[int], batch: int, seed: int, bucketed: bool) -> None:
        self.lengths = lengths
        self.batch = batch
        self.seed = seed
        self.bucketed = bucketed

    def __iter__(self) -> Iterator[List[int]]:
        epoch = 0
        waiting: List[int] = []
        while True:
            chance = random.Random(self.seed * 1000 + epoch)
            order = list(range(len(self.lengths)))
            chance.shuffle(order)
            waiting += order
            whole = len(waiting) // self.batch * self.batch
            ready, waiting = waiting[:whole], waiting[whole:]
            for batch in self._cut(ready, chance):
                yield batch
            epoch += 1

    def _cut(self, order: List[int], chance: random.Random) -> List[List[int]]:
        if self.bucketed:
            order = sorted(order, key=self.lengths.__getitem__)
        batches = [order[at : at + self.batch] for at in range(0, len(order), self.batch)]
        if self.bucketed:
            chance.shuffle(batches)
        return batches


def covering(lengths: List[int], share: float) -> int:
    """The length that covers this share of the texts."""
    ordered = sorted(lengths)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_MADE: Dict[str, Any] = {}


def made(workload: str, shape: Dict[str, Any]) -> Any:
    """What is stored of a workload, made once a process and shared with every fork."""
    key = workload + repr(sorted(shape.items()))
    if key not in _MADE:
        _MADE[key] = {"cnn": _images, "encoder": _texts, "decoder": _row}[workload](shape)
    return _MADE[key]


def _images(shape: Dict[str, Any]) -> List[Tuple[bytes, int]]:
    chance = random.Random(1)
    size, classes = int(shape["image"]), int(shape["classes"])
    noise = bytes([chance.randrange(32) for _ in range(4096)])
    tones = [
        noise.translate(bytes([min(255, label * 200 // classes + one) for one in range(256)]))
        for label in range(classes)
    ]
    stored = []
    for number in range(int(shape["samples"])):
        label = number % classes
        begins = [chance.randrange(4096 - size) for _ in range(size)]
        plane = b"".join([tones[label][begin : begin + size] for begin in begins])
        stored.append((zlib.compress(plane * 3, 1), label))
    return stored


def _texts(shape: Dict[str, Any]) -> Tuple[List[Tuple[bytes, int]], List[int]]:
    chance = random.Random(2)
    most, vocabulary = int(shape["length"]), int(shape["vocabulary"])
    stored, lengths = [], []
    for number in range(int(shape["samples"])):
        # Most texts are short and a few long, as reviews, messages and sentences are.
        length = max(4, min(most, int(most * 0.30 * chance.lognormvariate(0.0, 0.6))))
        label = number % 2
        words = [2 + label + 2 * chance.randrange(vocabulary // 2 - 2) for _ in range(length)]
        stored.append((b" ".join([b"w%d" % word for word in words]), label))
        lengths.append(length)
    return stored, lengths


def _row(shape: Dict[str, Any]) -> List[int]:
    chance = random.Random(3)
    vocabulary, token, row = int(shape["vocabulary"]), 1, []
    for _ in range(int(shape["samples"]) * int(shape["length"]) + 1):
        known = chance.random() < 0.8
        token = (token * 7 + 3) % vocabulary if known else chance.randrange(vocabulary)
        row.append(token)
    return row


# --- models -----------------------------------------------------------------------------------


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

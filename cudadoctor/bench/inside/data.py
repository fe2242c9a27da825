"""Synthetic data of real shape: it must be decoded, augmented and put together by a DataLoader.

Made without torch, so that the parent of all runners makes it once and starts no thread. What a
sample looks like depends on its number and on the epoch alone: every loader yields the same.
"""

import random
import zlib
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch.nn import functional

MEAN, SPREAD = 118.0, 64.0
PAD = 0


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
    tones = [_toned(noise, label * 200 // classes) for label in range(classes)]
    stored = []
    for number in range(int(shape["samples"])):
        label = number % classes
        begins = [chance.randrange(4096 - size) for _ in range(size)]
        plane = b"".join([tones[label][begin : begin + size] for begin in begins])
        stored.append((zlib.compress(plane * 3, 1), label))
    return stored


def _toned(noise: bytes, tone: int) -> bytes:
    return noise.translate(bytes([min(255, tone + one) for one in range(256)]))


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

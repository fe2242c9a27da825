"""How CUDA reads CUDA_VISIBLE_DEVICES: a pure function of its value and the GPUs that are there."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

_NUMBER = re.compile(r"\s*([+-]?\d{1,18})")

Stop = Literal[
    "", "empty", "negative", "out of range", "unknown", "ambiguous", "twice", "no number"
]


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """What remains visible, in the order of the variable.

    stopped_at: the entry that ended the list, "" where all were read; stop: what is wrong with it.
    """

    indexes: tuple[int, ...]
    stopped_at: str = ""
    stop: Stop = ""


def read_visible(value: str, uuids: tuple[str, ...]) -> Visible:
    """The GPUs that a CUDA program sees under this value.

    uuids: one for each device in CUDA's order, "" where it is not known. The list ends at the first
    invalid entry; a device named twice leaves none at all; a number is read as far as it goes
    ("1gpu" is 1); a UUID may be shortened while it stays unique.
    """
    indexes: list[int] = []
    for entry in value.split(","):
        index, stop = _device(entry, uuids)
        if index is None:
            return Visible(indexes=tuple(indexes), stopped_at=entry.strip(), stop=stop)
        if index in indexes:
            return Visible(indexes=(), stopped_at=entry.strip(), stop="twice")
        indexes.append(index)
    return Visible(indexes=tuple(indexes))


def _device(entry: str, uuids: tuple[str, ...]) -> tuple[int | None, Stop]:
    if not entry.strip():
        return None, "empty"
    if entry.strip().startswith(("GPU-", "MIG-", "<gpu-", "<mig-")):
        return _by_uuid(entry.strip(), uuids)
    number = _NUMBER.match(entry)
    if number is None:
        return None, "no number"
    index = int(number[1])
    if index < 0:
        return None, "negative"
    return (index, "") if index < len(uuids) else (None, "out of range")


def _by_uuid(prefix: str, uuids: tuple[str, ...]) -> tuple[int | None, Stop]:
    named = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(prefix.lower())]
    if len(named) == 1:
        return named[0], ""
    if "" in uuids and not named and len(uuids) == 1:
        return 0, ""
    return None, "ambiguous" if named else "unknown"

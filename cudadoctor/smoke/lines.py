"""The shapes of the child's lines: what the examined interpreter prints beside them is not ours."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class _Start(msgspec.Struct):
    stage: str
    rank: int | None = None


class _Torch(msgspec.Struct):
    ok: bool
    error: str
    seconds: float
    shadows: tuple[str, ...] | None = None


class _Device(msgspec.Struct):
    capability: str


class _Cuda(msgspec.Struct):
    available: bool
    count: int
    error: str
    devices: tuple[_Device, ...]


class _Libraries(msgspec.Struct):
    nccl: str | None
    cudnn: str | None
    cudnn_error: str


class _Error(msgspec.Struct):
    error: str


class _Companion(msgspec.Struct):
    name: str
    error: str


class _Maps(msgspec.Struct):
    paths: tuple[str, ...]
    torch: str
    prefix: str
    conda: bool


class _Chosen(msgspec.Struct):
    device: str
    skipped: tuple[tuple[int, str], ...]


class _End(msgspec.Struct):
    stage: str
    status: Literal["passed", "failed", "skipped", "timed-out"]
    seconds: float | None
    detail: str
    figures: dict[str, float | int | str | bool]
    rank: int | None = None
    signal: int | None = None


_SHAPES: dict[str, type] = {
    "start": _Start,
    "torch": _Torch,
    "cuda": _Cuda,
    "libraries": _Libraries,
    "numpy": _Error,
    "companion": _Companion,
    "maps": _Maps,
    "device": _Chosen,
    "end": _End,
    "broken": _Error,
}


def read_line(text: str) -> dict[str, Any] | None:
    """The line that a text is; None where it is none of ours, or not whole."""
    if not text.startswith("{"):
        return None
    try:
        # Unlike the library's own reader it refuses NaN and 1e999, which no document can hold.
        line = msgspec.json.decode(text)
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            return None
        shaped: Any = msgspec.convert(line, _SHAPES.get(line["kind"], dict[str, Any]))
    except (ValueError, RecursionError):
        return None
    if getattr(shaped, "seconds", None) is not None:
        line["seconds"] = shaped.seconds
    return line

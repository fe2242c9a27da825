"""Libraries beside torch: cuDNN, NCCL, and the wheels of each toolkit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cudadoctor.knowledge.build.sources import keys

Facts = Callable[[str], dict[str, Any]]


def libraries(read: Facts) -> dict[str, Any]:
    """Rules of cuDNN, NCCL per release of torch, versions of nvidia-* wheels per toolkit."""
    return {
        "cudnn": [_cudnn(read, row) for row in read("cudnn")["rules"]],
        "cudnn_yanked": [
            row["version"]
            for row in read("cudnn")["pypi_releases"]
            if any(one["yanked"] for one in row["packages"].values())
        ],
        "nccl": [_nccl(read, row) for row in read("nccl")["torch"]],
        "wheels": [_wheels(read, row) for row in read("cuda_components")["toolkits"]],
    }


def _cudnn(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    first, last = _range(row["range"])
    number = re.match(r"[\d.]+", row["cc_max"])
    return {
        "first": first,
        "last": last,
        "cuda_majors": row["cuda_majors"],
        "lowest": row["cc_min"],
        "highest": number.group().rstrip(".") if number else None,
        "sources": keys(read, "cudnn", row["source"]),
    }


def _range(text: str) -> tuple[str, str | None]:
    """The first release of a range and its last; None where it has no end yet."""
    if text.endswith("and later"):
        return text.split(maxsplit=1)[0], None
    first, _, last = text.partition(" to ")
    last = last or first
    return first.replace(".x", ".0"), last.replace(".x", ".999")


def _nccl(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "torch": row["torch"],
        "default_variant": row["default_variant"],
        "default": row["nccl_pin_default"],
        "variants": row["nccl_by_variant"] or {},
        "bundled": row["bundled_statically"],
        "uncertain": row["bundled_unverified"],
        "sources": keys(read, "nccl", row["source"]),
    }


def _wheels(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "toolkit": row["toolkit"],
        "packages": row["packages"],
        "ranges": row["ranges"],
        "sources": keys(read, "wheels", row["source"]),
    }

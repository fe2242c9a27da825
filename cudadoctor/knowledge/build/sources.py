"""Where the numbers come from: keys that are unique over all tables, and honest titles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

FILES = {
    "torch": "torch_releases",
    "archs": "arch_lists",
    "drivers": "cuda_driver",
    "wheels": "cuda_components",
    "nvcc": "cuda_arch_support",
    "gpus": "gpus",
    "pci": "gpus_pci",
    "peaks": "gpu_peaks",
    "cudnn": "cudnn",
    "nccl": "nccl",
    "images": "docker_tags",
    "conda": "conda",
    "companions": "companions",
    "faults": "driver_faults",
    "practice": "practice",
}
"""Prefix of a source key -> the collected file that it comes from."""

OWN = {
    "torch.reports": {
        "title": "machines that report this build of torch",
        "url": None,
        "date": "2026-10",
    },
    "drivers.jetson": {
        "title": "machines with Linux for Tegra R36: driver 540 with the CUDA level of JetPack",
        "url": None,
        "date": "2026-11",
    },
}


def collected(read: Callable[[str], dict[str, Any]]) -> str:
    """The day of the newest collected file."""
    return max(str(read(name)["_about"]["collected"]) for name in FILES.values())


def all_sources(read: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every source by its unique key, sorted."""
    found: dict[str, dict[str, Any]] = dict(OWN)
    for prefix, name in FILES.items():
        for key, source in read(name)["_about"]["sources"].items():
            found[f"{prefix}.{key}"] = {
                "title": _title(source["title"]),
                "url": source["url"],
                "date": source["date"],
            }
    return dict(sorted(found.items()))


def keys(
    read: Callable[[str], dict[str, Any]], prefix: str, texts: str | Iterable[str] | None
) -> list[str]:
    """The unique keys that a row's own words name: "prev+pub" names two of them."""
    known = read(FILES[prefix])["_about"]["sources"]
    parts = [texts] if isinstance(texts, str) else list(texts or ())
    found: list[str] = []
    for text in parts:
        found += [f"{prefix}.{key}" for key in known if _names(text, key)]
        if prefix == "torch" and text.startswith("user reports"):
            found.append("torch.reports")
    return sorted(set(found))


def _names(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(key)}(?![\w.-])", text) is not None


def _title(text: str) -> str:
    """The title without words for where a copy was read."""
    text = text.replace("as mirrored in", "as kept in").replace("through the mirror", "as kept in")
    return text.replace("(mirror ", "(copy in ")

"""torch: releases, builds and the pins of the default wheels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from cudadoctor.knowledge.build.sources import keys

Facts = Callable[[str], dict[str, Any]]

CONTESTED = {
    ("1.8.0", "cu111", "linux_x86_64"): ["sm_37", "sm_60", "sm_75"],
    ("2.4.0", "cu124", "linux_aarch64"): ["sm_90"],
    ("2.4.1", "cu124", "linux_aarch64"): ["sm_90"],
    ("2.5.0", "cu124", "linux_aarch64"): ["sm_90"],
    ("2.5.1", "cu124", "linux_aarch64"): ["sm_90"],
    ("2.6.0", "cu118", "linux_x86_64"): ["sm_37"],
    ("2.8.0", "cu129", "windows_amd64"): ["sm_70"],
    ("2.9.0", "cu129", "windows_amd64"): ["sm_70"],
}
"""Code that one source lists and another does not: the notes of the collected rows, by hand."""

OLD_TAG_GLIBC = "2.17"
"""The tag manylinux1 promises glibc 2.5; those wheels were built on a system with 2.17."""

CUDA_GLIBC = {("2.6.0", "cu126", "linux_x86_64"): "2.28"}
"""Builds whose release notes name a newer glibc than the wheels of the default index need."""

UNREAD_INDEX = ("2.15.0",)
"""Releases whose own index could not be read: what stands there only is not known."""


def torch(read: Facts) -> dict[str, Any]:
    """Releases and builds, newest release first."""
    rows = read("torch_releases")["releases"]
    newest_first = sorted(rows, key=lambda row: _order(row["torch"]), reverse=True)
    archs = {
        (row["torch"], row["variant"], row["platform"]): row for row in read("arch_lists")["rows"]
    }
    return {
        "releases": [_release(read, row) for row in newest_first],
        "builds": [
            one for row in newest_first for one in (*_cuda(read, row, archs), *_cpu(read, row))
        ],
    }


def pins(read: Facts) -> dict[str, Any]:
    """What the wheel of the default index requires, per release and platform."""
    rows = read("torch_releases")["releases"]
    return {
        "pins": [
            {
                "torch": row["torch"],
                "platform": platform,
                "requires": [_requirement(name, pin) for name, pin in wanted.items()],
                "sources": ["torch.pypi"],
            }
            for row in sorted(rows, key=lambda row: _order(row["torch"]), reverse=True)
            for platform, wanted in sorted(row["pypi_pins"].items())
        ]
    }


def _release(read: Facts, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "torch": row["torch"],
        "released": row["released"],
        "pythons": dict(sorted(row["python"].items())),
        "torchvision": row["companions"]["torchvision"],
        "torchaudio": row["companions"]["torchaudio"],
        "torchtext": row["companions"]["torchtext"],
        "sources": keys(read, "torch", row["source"]),
    }


def _cuda(
    read: Facts, row: dict[str, Any], archs: dict[tuple[str, str, str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for variant, facts in sorted(row["variants"].items(), key=lambda one: _number(one[0])):
        for platform, state in sorted(facts["platforms"].items()):
            key = (row["torch"], variant, platform)
            code = archs.get(key)
            default = row["pypi_default"].get(platform, {})
            ours = default.get("variant") == variant
            sources = keys(read, "torch", state["evidence"]) or keys(read, "torch", row["source"])
            yield {
                "torch": row["torch"],
                "variant": variant,
                "platform": platform,
                "cuda": facts["cuda"],
                "toolkit": facts["cuda_full"],
                "cudnn": facts["cudnn_linux"] if platform.startswith("linux") else None,
                "published": state["published"],
                "archs": None if code is None else code["sass"] + code["ptx"],
                "uncertain": bool(code and code["uncertain"]),
                "contested": CONTESTED.get(key, []),
                "glibc": CUDA_GLIBC.get(key) or _glibc(row, platform),
                "default": ours,
                "bytes": default["wheel_bytes"] if ours else None,
                "sources": sources + (keys(read, "archs", code["source"]) if code else []),
            }


def _cpu(read: Facts, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for platform in sorted(row["python"]):
        default = row["pypi_default"].get(platform, {})
        ours = default.get("variant") == "cpu"
        yield {
            "torch": row["torch"],
            "variant": "cpu",
            "platform": platform,
            "cuda": None,
            "toolkit": None,
            "cudnn": None,
            "published": None if row["torch"] in UNREAD_INDEX and not ours else True,
            "archs": [],
            "uncertain": False,
            "contested": [],
            "glibc": _glibc(row, platform),
            "default": ours,
            "bytes": default["wheel_bytes"] if ours else None,
            "sources": ["torch.pypi"] if ours else keys(read, "torch", row["source"]),
        }


def _glibc(row: dict[str, Any], platform: str) -> str | None:
    tag = row["glibc"].get(platform)
    if tag is None:
        return None
    return OLD_TAG_GLIBC if tag["tag"].startswith("manylinux1_") else str(tag["tag_glibc"])


def _requirement(name: str, pin: dict[str, Any]) -> str:
    marker = f"; {pin['marker']}" if pin["marker"] else ""
    return f"{name}{pin['spec'] or ''}{marker}"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _number(variant: str) -> int:
    return int(re.sub(r"\D", "", variant))

"""Packages around torch: companions, container images, conda."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from cudadoctor.knowledge.build.sources import keys

Facts = Callable[[str], dict[str, Any]]

_GLIBC = re.compile(r"CUDA ([\d.]+) builds (?:need glibc )?([\d.]+\d)")
_PLATFORMS = {"win_amd64": "windows_amd64", "win_arm64": "windows_arm64"}


def companions(read: Facts) -> dict[str, Any]:
    """Requirements of companion releases, and what they were built against."""
    facts = read("companions")
    built = facts["prebuilt"]
    return {
        "releases": [_release(row) for row in facts["releases"]],
        "xformers": [
            {"version": row["version"], "torch": row["torch_built_against"], "cuda": row["cuda"]}
            for row in built["xformers"]
        ],
        "flash_attn": [
            {
                "version": row["version"],
                "torch": row["torch"],
                "cuda_major": row["cuda_major"],
                "python": row["python"],
            }
            for row in built["flash-attn_linux_github_wheels"]
        ],
        "bitsandbytes": [
            {"versions": row["versions"].split(" to "), "cuda": row["cuda"]}
            for row in built["bitsandbytes_cuda_binaries"]
        ],
        "triton": built["triton_per_torch"],
        "triton_windows": built["triton_windows_minor_per_torch"],
        "prebuilt_sources": keys(read, "companions", built["source"]),
    }


def images(read: Facts) -> dict[str, Any]:
    """Tags of nvidia/cuda images: per CUDA release and distribution, its flavours."""
    facts = read("docker_tags")
    listed = [row["cuda"] for row in facts["tags"] if "nvidia-docs" in row["seen_in"]]
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for row in facts["tags"]:
        one = grouped.setdefault(
            (row["cuda"], row["distro"]),
            {"cuda": row["cuda"], "distro": row["distro"], "flavours": [], "sources": []},
        )
        one["flavours"].append(row["flavour"])
        one["sources"] += keys(read, "images", row["seen_in"])
    rows = [
        {**one, "flavours": sorted(set(one["flavours"])), "sources": sorted(set(one["sources"]))}
        for one in grouped.values()
    ]
    rows.sort(key=lambda one: one["distro"])
    rows.sort(key=lambda one: Version(one["cuda"]), reverse=True)
    return {"complete_to": max(listed, key=Version), "tags": rows}


def conda(read: Facts) -> dict[str, Any]:
    """Which torch with which CUDA the conda channels have."""
    facts = read("conda")
    channel, forge = facts["pytorch_channel"], facts["conda_forge"]
    return {
        "pytorch": [{"torch": row["torch"], "cuda": row["cuda"]} for row in channel["versions"]],
        "pytorch_sources": keys(read, "conda", channel["source"]),
        "conda_forge": [{"torch": row["torch"], "cuda": row["cuda"]} for row in forge["versions"]],
        "conda_forge_archs": {
            name: re.split(r";", codes) for name, codes in forge["arch_lists"].items()
        },
        "conda_forge_glibc": dict(_GLIBC.findall(forge["virtual_packages"]["__glibc"])),
        "conda_forge_sources": keys(read, "conda", forge["source"]),
    }


def _release(row: dict[str, Any]) -> dict[str, Any]:
    wanted = row["torch_requirement"] if row["metadata_known"] else None
    return {
        "package": row["package"],
        "version": row["version"],
        "torch": None if wanted is None else _specifier(wanted),
        "python": row["requires_python"],
        "platforms": _platforms(row),
        "sources": ["companions.pypi"],
    }


def _platforms(row: dict[str, Any]) -> list[str] | None:
    """Platforms with a wheel, "any" for one without compiled code; [] source only, None unknown."""
    if row["platforms"] is None:
        return None
    named = {_PLATFORMS.get(one, one) for one in row["platforms"] if "macosx" not in one}
    mac = {"macos_arm64" for one in row["platforms"] if one.startswith("macosx") and "arm" in one}
    return sorted(named | mac)


def _specifier(requirements: list[str]) -> str:
    """The specifier of the first requirement on torch that holds without an extra."""
    plain = [one for one in requirements if "extra ==" not in one]
    if not plain:
        return ""
    text = plain[0].partition(";")[0].strip().removeprefix("torch")
    return text.strip(" ()").replace(" ", "")

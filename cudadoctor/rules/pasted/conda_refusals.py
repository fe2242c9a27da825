"""Why conda found no torch: channels, and the few CUDA versions that their packages exist for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.findings import Confidence
from cudadoctor.rules.pasted.asked_index import CONDA, wanted_by
from cudadoctor.rules.pasted.refused_builds import INDEX, PLATFORM, PYTHON, Refused, offers_of
from cudadoctor.solver.demand import platform_of, python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Install, Machine

PYTORCH_CUDA = ("11.6", "11.7", "11.8", "12.1", "12.4")
"""The CUDA versions of the package pytorch-cuda; its channel ended with torch 2.5."""
_CUDA = frozenset({"pytorch-cuda", "cudatoolkit", "cuda-toolkit", "pytorch-gpu", "cuda-version"})
_CUDA |= {"cuda", "cuda-runtime", "cuda-cudart", "cuda-libraries"}
_TORCH = {"pytorch": "torch", "torchvision": "torchvision", "torchaudio": "torchaudio"}


def conda_refusals(m: Machine, kb: Knowledge) -> Iterator[Refused]:
    """Every refusal of torch, or of what selects its CUDA version, by conda or mamba."""
    for place, one in enumerate(m.installs or ()):
        if one.tool not in CONDA or not one.refused:
            continue
        name, version = _parts(one.refused)
        wanted = wanted_by(f"{name}=={version}" if version else name)
        if wanted is None or name not in {*_CUDA, *_TORCH}:
            continue
        cause, sure, kind = _cause(one, name, version, m, kb)
        shown = f"{name}={version}" if version else name
        values: dict[str, object] = {
            "wanted": shown,
            "variants": ", ".join(PYTORCH_CUDA),
            "pythons": "",
            "variant": shown,
        }
        yield Refused(cause, sure, place, wanted, kind, values)


def _parts(text: str) -> tuple[str, str]:
    """Name and version of a conda requirement, without its build."""
    found = re.match(r"(?:[\w.-]+::)?([\w.-]+?)(?:\[[^\]]*\])?[=<>! ]+(\d[\w.]*)", text)
    if found:
        return found[1].lower(), found[2].rstrip(".*")
    return re.split(r"[=<>!\[ ]", text.rpartition("::")[2])[0].lower(), ""


def _cause(
    one: Install, name: str, version: str, m: Machine, kb: Knowledge
) -> tuple[str, Confidence, str]:
    platform = platform_of(m) or ""
    if (m.platform.machine or "") in ("x86", "i686", "armv7l"):
        return PLATFORM, Confidence.LIKELY, "conda-channel"
    if name in _CUDA and (m.platform.system == "Darwin" or platform == "linux_aarch64"):
        return PLATFORM, Confidence.LIKELY, "conda-channel"
    if name == "pytorch-cuda" and version and _minor(version) not in PYTORCH_CUDA:
        return INDEX, Confidence.CERTAIN, "conda-variant"
    if one.lacks == "python":
        return PYTHON, Confidence.LIKELY, "said"
    if name in _TORCH and version and _not_for_python(_TORCH[name], version, m, kb):
        return PYTHON, Confidence.LIKELY, "said"
    return INDEX, Confidence.LIKELY, "conda-channel"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _not_for_python(name: str, version: str, m: Machine, kb: Knowledge) -> bool:
    python, platform = python_of(m), platform_of(m)
    try:
        release = Version(version).release
    except ValueError:
        return False
    rows = [
        one
        for one in offers_of(kb).of(name)
        if one.version.release[: len(release)] == release
        and (platform is None or one.platform == platform)
    ]
    return bool(rows) and python is not None and not any(python in one.pythons for one in rows)

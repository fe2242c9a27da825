"""Which build of torch an install command gives, where nothing refused it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from cudadoctor.knowledge.offers import PYPI
from cudadoctor.model.findings import Confidence
from cudadoctor.rules.evidence.signs import gpu_present
from cudadoctor.rules.pasted.asked_index import CONDA, index_of, searched_by, wanted_by
from cudadoctor.rules.pasted.refused_builds import offers_of
from cudadoctor.solver.demand import platform_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Install, Machine

CUDA_ON_ARM = Version("2.11")
"""The first release whose Linux wheel for ARM on PyPI is a CUDA build."""
CUDA_ON_ARM_SINCE = "2026-03-23"

_WANTED_CUDA = frozenset(
    {"torch-not-compiled-with-cuda", "cuda-not-available-plain", "cuda-is-not-available"}
    | {"no-nvidia-packages", "cpu-torch-in-prose"}
)
_CPU_SEEN = frozenset({"no-nvidia-packages", "cpu-torch-in-prose", "torch-not-compiled-with-cuda"})
"""Symptoms that show a CPU build, whatever the day of the report."""
_COMPLAINTS = ("compiled with cuda", "cuda is not available", "is_available() false")


_OF_A_VARIANT = re.compile(r"/whl/(?P<name>(?P<nightly>nightly/)?cu\d{2,3})\b")
_PLAIN = re.compile(r"torch==\d[\d.]*")
"""torch as PyPI names it: the builds of torch's own indexes carry their variant, or a day."""


class Chosen(NamedTuple):
    """An install that gives a CPU build, and how that is known.

    strange: an index it names that never was.
    """

    place: int
    command: str
    why: str
    confidence: Confidence
    evidence: tuple[str, ...]
    strange: str = ""


def cpu_chosen(m: Machine, kb: Knowledge) -> Chosen | None:
    """The last install of torch, where it gives a CPU build and CUDA was wanted."""
    if m.torch.build not in (None, "cpu") or not (m.installs and _cuda_wanted(m)):
        return None
    for place in range(len(m.installs) - 1, -1, -1):
        one = m.installs[place]
        asked = [text for text in (*one.requirements, *one.installed) if _is_torch(text)]
        if not asked or one.failed or _unsolved(one, m):
            continue
        found = _outright(one, place) or _by_index(one, place, asked[0], m, kb)
        if found is not None and m.torch.build == "cpu":
            return found._replace(confidence=min(found.confidence, Confidence.LIKELY))
        return found
    return None


def fallen_back(m: Machine, kb: Knowledge) -> tuple[int, str] | None:
    """The last install that named a variant and got PyPI's torch, and that variant."""
    for place in range(len(m.installs or ()) - 1, -1, -1):
        one = (m.installs or ())[place]
        if not any(_PLAIN.fullmatch(text) for text in one.installed):
            continue
        for found in filter(None, map(_OF_A_VARIANT.search, one.indexes)):
            if found["nightly"] or found["name"] not in offers_of(kb).indexes:
                return place, found["name"]
    return None


def _unsolved(one: Install, m: Machine) -> bool:
    """Whether conda found no solution: then nothing of that command came in."""
    said = any(symptom.key == "conda-cannot-install" for symptom in m.symptoms or ())
    return said and one.tool in ("conda", "mamba", "micromamba") and not one.installed


def _cuda_wanted(m: Machine) -> bool:
    """Whether the report shows that CUDA was looked for and not found, or a GPU beside it."""
    seen = m.torch.imported
    if seen is not None and seen.cuda_available is not None:
        return not seen.cuda_available
    if gpu_present(m) is True and m.torch.build == "cpu":
        return True
    return any(
        one.key in _WANTED_CUDA or any(words in one.text.lower() for words in _COMPLAINTS)
        for one in m.symptoms or ()
    )


def _is_torch(text: str) -> bool:
    return re.match(r"(?:[\w.-]+::)?(?:py)?torch(?:-cpu|-gpu)?(?![\w-])", text) is not None


def _outright(one: Install, place: int) -> Chosen | None:
    """CPU builds that were named as such."""
    words = (*one.requirements, *one.installed)
    if any(re.match(r"(?:[\w.-]+::)?(?:cpuonly|pytorch-cpu)\b", text) for text in words):
        return _said(one, place, _BY_NAME)
    if any(_is_torch(text) and re.search(r"\+cpu|[=_*]cpu[_*]", text) for text in words):
        return _said(one, place, _BY_NAME)
    if any(index_of(url) == "cpu" for url in one.indexes) or "--torch-backend=cpu" in one.options:
        return _said(one, place, _CPU_INDEX)
    return None


_BY_NAME = "It asks for the build without CUDA by its name."
_CPU_INDEX = "The index /whl/cpu holds builds without CUDA only."
_WINDOWS = "The builds of torch that PyPI has for Windows are made without CUDA."


def _said(one: Install, place: int, why: str) -> Chosen:
    evidence = (f"installs.{place}.indexes",) if one.indexes else ()
    return Chosen(place, _command(one), why, Confidence.LIKELY, evidence)


def _by_index(one: Install, place: int, asked: str, m: Machine, kb: Knowledge) -> Chosen | None:
    """What PyPI gives on this platform, where pip fell back on it or was given nothing else."""
    searched = searched_by(one)
    offers = offers_of(kb)
    known = searched.indexes - {PYPI}
    strange = sorted(name for name in known if name[2:].isdigit() and name not in offers.indexes)
    backend = any(option.startswith("--torch-backend") for option in one.options)
    if one.tool in CONDA or PYPI not in searched.indexes or known - set(strange) or backend:
        return None
    platform = platform_of(m) or {"Windows": "windows_amd64"}.get(m.platform.system or "")
    first = strange[0] if strange else ""
    if platform == "windows_amd64":
        evidence = ("platform.system",)
        return Chosen(place, _command(one), _WINDOWS, Confidence.LIKELY, evidence, first)
    if platform == "linux_aarch64":
        return _on_arm(one, place, asked, m, first)
    return None


def _on_arm(one: Install, place: int, asked: str, m: Machine, strange: str) -> Chosen | None:
    wanted = wanted_by(asked)
    version = wanted.version if wanted else None
    why = _ARM
    sure = Confidence.LIKELY
    if version is not None:
        if version.release >= CUDA_ON_ARM.release:
            return None
    elif m.date is not None:
        if m.date >= CUDA_ON_ARM_SINCE:
            return None
    elif not any(symptom.key in _CPU_SEEN for symptom in m.symptoms or ()):
        why, sure = _ARM_UNDATED, Confidence.POSSIBLE
    evidence = ("platform.machine",)
    return Chosen(place, _command(one), why, sure, evidence, strange)


_ARM = "Before torch 2.11 (March 2026) the builds that PyPI had for Linux on ARM were without CUDA."
_ARM_UNDATED = (
    "Before torch 2.11 (March 2026) the builds that PyPI had for Linux on ARM were without CUDA, "
    "and the report does not say when it was written."
)


def _command(one: Install) -> str:
    words = " ".join(one.requirements[:3]) or "torch"
    return f"{one.tool} install {words}"

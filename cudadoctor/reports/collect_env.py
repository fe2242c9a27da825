"""Dumps of an environment that label each value: torch's collect_env and its descendants.

The labels are looked for anywhere, so that a dump whose line breaks were lost is read too. A value
ends at its line's end or at the next label. Three answers mean different things: "N/A" that torch
could not be asked, "Could not collect" that the program gave nothing, and "No CUDA" that torch sees
no GPU and nvidia-smi and nvcc gave nothing. None of them proves that there is no hardware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.fields import FIELDS
from cudadoctor.reports.labels import Label, Labelled, labelled
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

SOURCE = "collect_env"
_NEAR = 3000
"""How far from a label that only a dump has, a common label still belongs to the dump."""


LABELS = (
    Label("pytorch version", "torch", sure=False),
    Label("is debug build", "", sure=True),
    Label("cuda used to build pytorch", "torch.cuda", sure=True),
    Label("rocm used to build pytorch", "torch.hip", sure=True),
    Label("xpu used to build pytorch", "torch.xpu", sure=True),
    Label("os", "os", sure=False),
    Label("gcc version", "gcc", sure=False),
    Label("clang version", "", sure=False),
    Label("cmake version", "", sure=False),
    Label("libc version", "libc", sure=True),
    Label("python version", "python", sure=False),
    Label("python platform", "platform", sure=True),
    Label("is cuda available", "available", sure=True),
    Label("cuda runtime version", "nvcc", sure=True),
    Label("cuda_module_loading set to", "", sure=True),
    Label("gpu models and configuration", "gpus", sure=True),
    Label("nvidia driver version", "driver", sure=True),
    Label("cudnn version", "cudnn", sure=False),
    Label("hip runtime version", "", sure=True),
    Label("miopen runtime version", "", sure=True),
    Label("is xnnpack available", "", sure=True),
    Label("is xpu available", "", sure=True),
    Label("caching allocator config", "allocator", sure=True),
    Label("architecture", "machine", sure=False),
    Label("hypervisor vendor", "hypervisor", sure=False),
    Label("cpu", "", sure=False),
    Label("cpu(s)", "cpus", sure=False),
    Label("versions of relevant libraries", "", sure=True),
    Label("rocm version", "", sure=False),
    Label("neuron sdk version", "", sure=True),
    Label("vllm version", "vllm", sure=False),
    Label("vllm build flags", "", sure=True),
    Label("gpu topology", "", sure=False),
)
_GATE = tuple(label.words for label in LABELS if label.sure)


def read_collect_env(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Everything that torch's collect_env, or vLLM's or another that is made after it, says."""
    if not any(words in doc.low for words in _GATE):
        return
    text = doc.text
    rank = Rank.PROSE if _by_hand(doc.low) else Rank.TOOL
    known: set[str] = set()
    yield from _without_torch(doc)
    for one in labelled(text, LABELS, _NEAR):
        for path, value in _facts(one):
            if path == "torch.build" and path in known and value == "cpu":
                continue  # no CUDA version is no build for the CPU where another was named
            known.add(path)
            line = text.count("\n", 0, one.start)
            weight = Rank.COMMAND if path == "build.used" else rank
            yield Said(path, value, doc.lines[line].number, weight, SOURCE)


_UNASKED = re.compile(r"pytorch version ?: n/a\b")
_LISTED = re.compile(r"\[(?:pip3?|conda)\] (torch==|pytorch )?")


def _without_torch(doc: Document) -> Iterator[Said]:
    """Where torch could not be imported, the lists of packages tell whether it is there at all."""
    unasked = _UNASKED.search(doc.low)
    listed = [one[1] for one in _LISTED.finditer(doc.low)] if unasked else []
    if unasked is None or not listed or "[pip3] could not collect" in doc.low:
        return
    line = doc.line_at(unasked.start()).number
    path = "torch.imported.ok" if any(listed) else "torch.installed"
    yield Said(path, False, line, Rank.TOOL, SOURCE)


def _by_hand(low: str) -> bool:
    """Whether the labels are those of an issue form, which a person fills in."""
    form = "(e.g., " in low or "how you installed" in low
    programs = ("is debug build", "cuda used to build", "libc version")
    return form and not any(words in low for words in programs)


def _facts(one: Labelled) -> values.Pairs:
    reader = FIELDS.get(one.label.field)
    return reader(one.value) if reader else ()

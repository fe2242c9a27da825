"""The doctor from Python: a report of this interpreter, a gate, and the cause of an exception.

Nothing here initialises CUDA in the caller: whoever forks or calls `set_device` later still can.
"""

from __future__ import annotations

import html
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Literal

from cudadoctor import knowledge
from cudadoctor.pipeline import judge, report
from cudadoctor.probes.streamed import no_progress
from cudadoctor.render import Report as Shown
from cudadoctor.render import json_v1, terminal

if TYPE_CHECKING:
    from cudadoctor.model.machine import Gpu, Machine


class RequirementError(RuntimeError):
    """What the script needs is not there; the text says which need, and what to do."""


class Report:
    """What the doctor found, redacted as the report of `cudadoctor check` is.

    A notebook shows it as HTML; `str` gives the same text.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    @property
    def verdict(self) -> str:
        """healthy, warnings, broken or undecided."""
        return self._shown.diagnosis.verdict

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of the causes found, the gravest first."""
        return tuple(finding.cause for finding in self._shown.diagnosis.findings)

    def to_json(self) -> dict[str, Any]:
        """The document that `cudadoctor check --json` prints."""
        return json_v1.report(self._shown)

    def __str__(self) -> str:
        lines = terminal.report(self._shown, terminal.Layout())
        return "\n".join(line.text for line in lines).strip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def check(
    *,
    python: str | None = None,
    depth: Literal["fast", "no-smoke", "full"] = "no-smoke",
    timeout_s: float | None = None,
) -> Report:
    """Examine an interpreter, by default the one that runs this, from child processes.

    depth: fast imports no torch; full also takes a training step. timeout_s: for each probe.
    Raises ValueError where `python` names no Python.
    """
    from cudadoctor.probes import examine

    look = examine.Look(python=python or sys.executable, depth=depth, timeout_s=timeout_s)
    return Report(report(judge(examine.examine(look, no_progress))))


def explain(error: BaseException) -> Report:
    """The cause of an exception, by its traceback and what this process knows without CUDA."""
    return Report(report(judge(_described(error))))


def _described(error: BaseException) -> Machine:
    """The exception as a report of it would read."""
    from cudadoctor.reports.reading import read_report

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    torch = sys.modules.get("torch")
    facts = [f"Python version: {sys.version.split()[0]}"]
    if torch is not None:
        facts.append(f"PyTorch version: {getattr(torch, '__version__', 'N/A')}")
        built = getattr(getattr(torch, "version", None), "cuda", None)
        facts.append(f"CUDA used to build PyTorch: {built or 'None'}")
    return read_report("\n".join([text, *facts, ""]), knowledge.load())


def require(
    *,
    cuda: bool = True,
    min_memory_gb: float | None = None,
    bf16: bool = False,
    ddp: bool = False,
    torch: str | None = None,
) -> None:
    """Raise RequirementError unless this interpreter has what a script needs.

    torch: a version specifier (">=2.4"). min_memory_gb: GiB, of the largest visible GPU. bf16:
    in hardware. ddp: torch.distributed has NCCL and a GPU is usable; nothing is communicated.
    What cannot be known does not fail.
    """
    unmet = _unmet_of_torch(cuda or ddp or bf16, ddp, torch)
    if not unmet and (cuda or bf16 or ddp or min_memory_gb is not None):
        unmet = unmet_of_gpus(
            _gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"), min_memory_gb, bf16=bf16
        )
    if unmet:
        raise RequirementError(f"{unmet}. To see the cause and the cure, run: cudadoctor check")


def _unmet_of_torch(cuda: bool, ddp: bool, wanted: str | None) -> str | None:
    try:
        import torch
    except Exception as error:  # a broken library raises more than ImportError
        return f"torch cannot be imported ({type(error).__name__}: {error})"
    if wanted is not None:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(wanted).contains(str(torch.__version__), prereleases=True):
            return f"torch{wanted} is needed; this is torch {torch.__version__}"
    if cuda and torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if ddp and not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return f"torch {torch.__version__} has no NCCL"
    return None


def unmet_of_gpus(
    gpus: tuple[Gpu, ...] | None,
    visible: str | None,
    min_memory_gb: float | None = None,
    *,
    bf16: bool = False,
) -> str | None:
    """What the GPUs lack, in one sentence without its stop; None where nothing is known to lack.

    gpus: as NVML lists them, None not known. visible: CUDA_VISIBLE_DEVICES, None not set. Its
    numbers are CUDA's order, not NVML's: they hide GPUs from view, but choose none here.
    """
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    if gpus is None:
        return None
    usable = [gpu for gpu in gpus if gpu.code is None]
    if not usable:
        return "The driver sees no usable NVIDIA GPU"
    sizes = [gpu.memory_bytes for gpu in usable]
    known = [size for size in sizes if size is not None]
    if min_memory_gb is not None and len(known) == len(sizes):
        largest = max(known) / 2**30
        if largest < min_memory_gb:
            return f"{min_memory_gb:g} GiB of GPU memory are needed; the largest has {largest:.1f}"
    if bf16 and all(gpu.capability is not None and gpu.capability.major < 8 for gpu in usable):
        return "bfloat16 needs a GPU of compute capability 8.0 or newer; there is none"
    return None


def _gpus() -> tuple[Gpu, ...] | None:
    """The GPUs by NVML, asked in its own child; None where it does not tell."""
    from cudadoctor.host import local
    from cudadoctor.probes.examine import assembled
    from cudadoctor.probes.nvml import read_nvml
    from cudadoctor.probes.streamed import Patience

    try:
        return assembled([read_nvml(local.this_host(), Patience())]).gpus
    finally:
        local.close_host()

"""The gate at the top of a training script: one clear error where it cannot run here.

CUDA is never initialized in the caller: whoever forks or calls `set_device` later still can.
"""

from __future__ import annotations

import sys
from typing import Any

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis, Finding, Severity, Wishes
from cudadoctor.model.machine import Gpu, Machine, OptBool, OptFloat, OptStr
from cudadoctor.probes import examine
from cudadoctor.probes.streamed import no_progress
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.evidence.signs import live_gpus
from cudadoctor.rules.process import visible

_PROBE_S = 10.0
_OF_OTHER_PACKAGES = ("torch-companion-mismatch", "numpy-abi")
"""Causes that stop a program only where it imports the package that they are about."""


class RequirementError(RuntimeError):
    """What the script needs is not there; the text says which need, and what to do."""


class Needs(Struct, frozen=True, kw_only=True):
    """What a script needs; `require` says what each means."""

    cuda: bool = True
    min_memory_gb: OptFloat = None
    bf16: bool = False
    ddp: bool = False
    torch: OptStr = None

    @property
    def gpu(self) -> bool:
        """Whether one of them is a GPU."""
        return self.cuda or self.bf16 or self.ddp or self.min_memory_gb is not None


def require(
    *,
    cuda: bool = True,
    min_memory_gb: float | None = None,
    bf16: bool = False,
    ddp: bool = False,
    torch: str | None = None,
) -> None:
    """Raise RequirementError unless this interpreter has what a script needs.

    torch: a version specifier (">=2.4"). min_memory_gb: GiB, of the largest GPU that the script
    sees. bf16: in hardware. ddp: torch.distributed has NCCL and a GPU is usable; nothing is
    communicated. What cannot be known does not fail. Raises ValueError where `torch` is no
    specifier.
    """
    needs = Needs(cuda=cuda, min_memory_gb=min_memory_gb, bf16=bf16, ddp=ddp, torch=torch)
    _specifiers(torch)
    look = examine.Look(python=sys.executable, depth="fast", timeout_s=_PROBE_S)
    machine = examine.examine(look, no_progress)
    said = unmet(machine, diagnose(machine, knowledge.load()), needs, nccl=_has_nccl())
    if said is not None:
        raise RequirementError(f"{said}.\n{_cure(machine, needs)}")


def unmet(machine: Machine, diagnosis: Diagnosis, needs: Needs, *, nccl: OptBool = None) -> OptStr:
    """The first need that a machine lacks, in one sentence without its stop.

    None where nothing is known to lack. nccl: whether torch says that it has NCCL.
    """
    return (
        _unmet_of_torch(machine, needs)
        or (_unmet_of_machine(machine, diagnosis, needs) if needs.gpu else None)
        or ("This torch is built without NCCL" if needs.ddp and nccl is False else None)
    )


def _unmet_of_torch(machine: Machine, needs: Needs) -> OptStr:
    torch = machine.torch
    if torch.installed is False:
        return f"torch is not installed for {machine.python.executable}"
    wanted = _specifiers(needs.torch)
    if wanted and torch.version and not wanted.contains(torch.version, prereleases=True):
        return f"torch{wanted} is needed, and this is torch {torch.text or torch.version}"
    return None


def _unmet_of_machine(machine: Machine, diagnosis: Diagnosis, needs: Needs) -> OptStr:
    cause = _cause(diagnosis)
    if cause is not None:
        return cause.title
    if machine.torch.build == "cpu":
        return f"torch {machine.torch.text or machine.torch.version} is built without CUDA"
    seen = _seen(machine)
    if seen is None:
        return None
    if seen:
        return _unmet_of_gpus(seen, needs)
    hidden = live_gpus(machine) and "CUDA_VISIBLE_DEVICES hides every GPU"
    return hidden or "There is no usable NVIDIA GPU"


def _cause(diagnosis: Diagnosis) -> Finding | None:
    """The root cause for which no training runs on a GPU here."""
    for finding in diagnosis.findings:
        graver = finding.severity is Severity.ERROR or finding.cause == "gpu-not-detected"
        if graver and not finding.because_of and finding.cause not in _OF_OTHER_PACKAGES:
            return finding
    return None


def _seen(machine: Machine) -> tuple[Gpu, ...] | None:
    """The GPUs that the script may see; None where they are not known.

    Numbers in CUDA_VISIBLE_DEVICES are CUDA's order, fastest first: they choose a GPU only where
    the order is NVML's, or all are alike.
    """
    if machine.gpus is None:
        return None
    live, chosen = live_gpus(machine), visible(machine)
    if chosen is None:
        return live
    env = machine.env or {}
    value = env.get("CUDA_VISIBLE_DEVICES", "")
    alike = len({(gpu.name, gpu.memory_bytes) for gpu in machine.gpus}) < 2
    if not chosen.indexes or "MIG-" in value:
        return live if chosen.indexes else ()
    if not (alike or "GPU-" in value or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"):
        return live
    return tuple(gpu for gpu in live if gpu.index in chosen.indexes)


def _unmet_of_gpus(gpus: tuple[Gpu, ...], needs: Needs) -> OptStr:
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    if needs.min_memory_gb is not None and len(sizes) == len(gpus):
        largest = max(sizes) / 2**30
        if largest < needs.min_memory_gb:
            wanted = f"{needs.min_memory_gb:g} GiB of GPU memory"
            return f"{wanted} are needed, and the largest GPU has {largest:.1f} GiB"
    if needs.bf16 and all(gpu.capability and gpu.capability.major < 8 for gpu in gpus):
        have = max(gpu.capability for gpu in gpus if gpu.capability)
        return f"bfloat16 needs compute capability 8.0 or newer, and the GPU has {have}"
    return None


def _has_nccl() -> OptBool:
    """What the torch of this process says; None where the script has not imported it yet."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None:
        return None
    return bool(distributed.is_available() and distributed.is_nccl_available())


def _specifiers(torch: OptStr) -> SpecifierSet | None:
    if torch is None:
        return None
    try:
        return SpecifierSet(torch)
    except InvalidSpecifier:
        raise ValueError(
            f"torch={torch!r} is no version specifier; write it as in torch='>=2.4'"
        ) from None


def _cure(machine: Machine, needs: Needs) -> str:
    """The first step of the plan, or how to see more. Loads what writes commands."""
    from cudadoctor.pipeline import judge
    from cudadoctor.render.shells import step_lines

    of_torch = _unmet_of_torch(machine, needs) is not None
    steps = judge(machine, Wishes(torch=needs.torch) if of_torch else None).plan.steps
    wished = [step for step in steps if step.id == "install-torch" or not of_torch]
    lines = step_lines(wished[0], machine) if wished else []
    if lines:
        return "\n".join(("To fix it, run:", *(f"    {line}" for line in lines)))
    more = f"To see the evidence, run: cudadoctor check --python {sys.executable}"
    return f"To fix it: {wished[0].title}.\n{more}" if wished else more

"""The gate at the top of a training script: one clear error where it cannot run here.

CUDA is never initialised in the caller: whoever forks or calls `set_device` later still can.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudadoctor.model.machine import Gpu


class RequirementError(RuntimeError):
    """What the script needs is not there; the text says which need, and what to do."""


def require(
    *,
    cuda: bool = True,
    min_memory_gb: float | None = None,
    bf16: bool = False,
    ddp: bool = False,
    torch: str | None = None,
) -> None:
    """Raise RequirementError unless this interpreter has what a script needs.

    torch: a version specifier (">=2.4"). min_memory_gb: GiB, of the largest GPU. bf16:
    in hardware. ddp: torch.distributed has NCCL and a GPU is usable; nothing is communicated.
    What cannot be known does not fail.
    """
    unmet = _unmet_of_torch(cuda or ddp or bf16, ddp, torch)
    if not unmet and (cuda or bf16 or ddp or min_memory_gb is not None):
        gpus, driver = _gpus()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        unmet = unmet_of_gpus(gpus, visible, min_memory_gb, bf16=bf16, driver=driver)
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
    driver: bool = True,
) -> str | None:
    """What the GPUs lack, in one sentence without its stop; None where nothing is known to lack.

    gpus: as NVML lists them, None not known. visible: CUDA_VISIBLE_DEVICES, None not set. driver:
    NVML's library loads, or the machine is one that has none. The variable's
    numbers are CUDA's order, not NVML's: they hide GPUs from view, but choose none here.
    """
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    if gpus is None:
        return None if driver else "There is no NVIDIA driver here: NVML cannot be loaded"
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


def _gpus() -> tuple[tuple[Gpu, ...] | None, bool]:
    """The GPUs by NVML, asked in its own child, and whether there is a driver to ask."""
    from cudadoctor.host import local
    from cudadoctor.probes.examine import assembled
    from cudadoctor.probes.nvml import read_nvml
    from cudadoctor.probes.streamed import Patience

    try:
        machine = assembled([read_nvml(local.this_host(), Patience())])
    finally:
        local.close_host()
    nvml = machine.driver.nvml
    # A Jetson has no NVML of its own before JetPack 6.
    missing = nvml is not None and nvml.loads is False and not Path(_TEGRA).exists()
    return machine.gpus, not missing


_TEGRA = "/etc/nv_tegra_release"

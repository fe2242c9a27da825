"""Forward compatibility: NVIDIA's cuda-compat packages, which lift an older driver's CUDA level.

They are made for data-centre GPUs and some branches of the driver only; everywhere else the
program ends with CUDA error 804 or 803.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version

    from cudadoctor.knowledge import GpuModel, Knowledge
    from cudadoctor.model.machine import Machine


def compat_lifts(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether the compat package of that CUDA release runs on this driver and these GPUs."""
    here, driver = m.platform, m.driver.version
    if here.system != "Linux" or here.wsl or here.jetson or m.container.dxg or driver is None:
        return False
    if any(gpu.virtualization == "vgpu" for gpu in m.gpus or ()):
        return False
    return kb.forward_compat(cuda, driver.branch) == "compatible" and _data_center_only(m, kb)


def _data_center_only(m: Machine, kb: Knowledge) -> bool:
    """Whether every GPU here is known to be one that NVIDIA allows the packages on."""
    found = [_models(gpu.device_id, gpu.name, kb) for gpu in m.gpus or ()]
    if not found:
        found = [kb.gpus_by_pci(one.device_id) for one in m.pci or () if one.vendor == "nvidia"]
    return bool(found) and all(
        models and all(model.data_center for model in models) for models in found
    )


def _models(device_id: str | None, name: str | None, kb: Knowledge) -> tuple[GpuModel, ...]:
    """The models that a GPU may be: by its PCI id, else by its name."""
    by_id = kb.gpus_by_pci(device_id) if device_id else ()
    by_name = kb.gpu_by_name(name) if name and not by_id else None
    return by_id or ((by_name,) if by_name else ())

"""What keeps a build of torch from fitting a machine: the first thing that does, and in words."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from cudadoctor.model.versions import whole

if TYPE_CHECKING:
    from cudadoctor.knowledge import GpuModel, Knowledge, TorchBuild
    from cudadoctor.model.machine import Machine
    from cudadoctor.solver.demand import Demand, Drive

Block = Literal[
    "absent", "announced", "python", "glibc", "tegra", "no-gpu", "cpu", "archs", "contested",
    "driver", "ptx", "cudnn",
]  # fmt: skip
"""absent: never published. no-gpu: a CUDA build where no GPU is. ptx: the driver is too old for
the PTX that this GPU would need. cudnn: torch has code for the GPU, its own cuDNN has not."""


NO_GPU = "No NVIDIA GPU is there, so no CUDA is needed."


def block(
    build: TorchBuild,
    demand: Demand,
    knowledge: Knowledge,
    *,
    trusting: bool = False,
    ignoring: frozenset[Block] = frozenset(),
) -> Block | None:
    """The first thing that keeps a build from fitting, None where it fits.

    trusting: a last resort counts too: contested code, a cuDNN that refuses the GPU, and the
    platform's default build where no GPU is. ignoring: what is supposed to be cured.
    """
    if build.published is False:
        return "absent"
    if build.published is None and "announced" not in ignoring:
        return "announced"
    if demand.python not in (None, *build.pythons) and "python" not in ignoring:
        return "python"
    if build.glibc and demand.glibc and demand.glibc < build.glibc and "glibc" not in ignoring:
        return "glibc"
    if demand.gpus == "none":
        return None if build.cuda is None or (build.default and trusting) else "no-gpu"
    if build.cuda is None:
        return "cpu"
    if demand.tegra is not None:
        return "tegra"
    return _hardware(build, demand, knowledge, trusting, ignoring)


def _hardware(
    build: TorchBuild,
    demand: Demand,
    knowledge: Knowledge,
    trusting: bool,
    ignoring: frozenset[Block],
) -> Block | None:
    if build.archs is None:
        return "archs"
    codes = build.archs
    if build.contested and not trusting:
        codes = tuple(code for code in codes if code not in build.contested)
    how = [served(codes, one, build.torch, build.cuda, knowledge) for one in demand.capabilities]
    if not all(how):
        return (
            "contested"
            if codes != build.archs and _served_at_all(build, demand, knowledge)
            else "archs"
        )
    trusting = trusting or "cudnn" in ignoring
    if "driver" in ignoring:
        return None if trusting or not cudnn_refuses(build, demand, knowledge) else "cudnn"
    if build.cuda is not None and not runs(build.cuda, demand, knowledge):
        return "driver"
    level = demand.drive.cuda
    if any(one and one[0] == "ptx" for one in how) and (
        level is None or build.cuda is None or level < build.cuda
    ):
        return "ptx"
    return None if trusting or not cudnn_refuses(build, demand, knowledge) else "cudnn"


def cudnn_refuses(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> tuple[Version, ...]:
    """The GPUs that the build's own cuDNN has no code for: convolutions fail on them."""
    release = own_cudnn(build, knowledge)
    if release is None:
        return ()
    cudnn = Version(release)
    return tuple(one for one in demand.capabilities if _refuses(cudnn, one, knowledge))


@lru_cache(maxsize=1024)
def _refuses(cudnn: Version, capability: Version, knowledge: Knowledge) -> bool:
    return knowledge.cudnn_refuses(cudnn, capability) is True


@lru_cache(maxsize=1024)
def own_cudnn(build: TorchBuild, knowledge: Knowledge) -> str | None:
    """The cuDNN inside a build; where its own is not known, that of the Linux build beside it."""
    if build.cudnn is not None or build.cuda is None:
        return build.cudnn
    beside = knowledge.build_of(build.torch, build.variant, "linux_x86_64")
    return beside.cudnn if beside is not None else None


def on_ptx(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> tuple[Version, ...]:
    """The GPUs that this build serves by PTX alone, which the driver compiles at first use."""
    codes = build.archs or ()
    how = {
        one: served(codes, one, build.torch, build.cuda, knowledge) for one in demand.capabilities
    }
    return tuple(one for one, code in how.items() if code is not None and code[0] == "ptx")


def _served_at_all(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> bool:
    codes = build.archs or ()
    return all(
        served(codes, one, build.torch, build.cuda, knowledge) for one in demand.capabilities
    )


@lru_cache(maxsize=8192)
def served(
    archs: tuple[str, ...],
    capability: Version,
    torch: Version | None,
    cuda: Version | None,
    knowledge: Knowledge,
) -> tuple[Literal["native", "ptx"], str] | None:
    """How compiled code serves a GPU and which code does; machine code before PTX.

    PTX of an older architecture than the build's newest code does not count.
    """
    newest = max((_number(code) for code in archs), default=0)
    found: dict[Literal["native", "ptx"], str] = {}
    for code in sorted(archs, key=_number):
        how = knowledge.serves(code, capability, torch, cuda)
        if how == "native" or (how == "ptx" and _number(code) == newest):
            found[how] = code
    if "native" in found:
        return "native", found["native"]
    return ("ptx", found["ptx"]) if "ptx" in found else None


def _number(code: str) -> int:
    """The architecture of a code as a number: 86 for sm_86, 90 for sm_90a."""
    return whole(code.partition("_")[2].rstrip("abcdef")) or 0


def runs(cuda: Version, demand: Demand, knowledge: Knowledge) -> bool:
    """Whether the driver runs a build of this CUDA version."""
    drive = demand.drive
    if drive.cuda is not None and not _level_runs(drive, cuda):
        return False
    if drive.decides or drive.version is None:
        return drive.cuda is not None
    floor = knowledge.driver_floor(cuda, drive.numbers)
    return floor is not None and drive.version >= floor.driver


def _level_runs(drive: Drive, cuda: Version) -> bool:
    """From CUDA 11 on any minor of the driver's major runs; before it the driver must be as new."""
    if drive.cuda is None:
        return False
    return drive.cuda >= cuda if cuda.major < 11 else drive.cuda.major >= cuda.major


def reason(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> str | None:
    """Why a build does not fit, as a sentence with its values; None where it fits."""
    why = block(build, demand, knowledge)
    if why is None:
        return None
    texts = {
        "absent": f"It was not published for {build.platform}.",
        "announced": f"It was not seen published for {build.platform}, only announced.",
        "python": f"It has no wheel for Python {demand.python}, only for {_listed(build.pythons)}.",
        "glibc": f"It needs glibc {build.glibc}; this system has {demand.glibc}.",
        "tegra": f"It is made for servers: {demand.tegra}.",
        "no-gpu": NO_GPU,
        "cpu": "It has no code for GPUs.",
        "contested": "Sources disagree on whether it has code for this GPU.",
    }
    if why in texts:
        return texts[why]
    if why == "cudnn":
        lost = _listed([str(one) for one in cudnn_refuses(build, demand, knowledge)])
        return f"Its cuDNN {own_cudnn(build, knowledge)} refuses capability {lost}."
    if why == "archs":
        return _archs_text(build, demand, knowledge)
    return _driver_text(build, demand, knowledge, why)


def _archs_text(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> str:
    if build.archs is None:
        return "Which GPUs it has code for is not known."
    codes = build.archs
    unserved = [
        str(one)
        for one in demand.capabilities
        if not served(codes, one, build.torch, build.cuda, knowledge)
    ]
    return f"It has no code for capability {_listed(unserved)}, only {_listed(codes)}."


def _driver_text(build: TorchBuild, demand: Demand, knowledge: Knowledge, why: Block) -> str:
    drive, cuda = demand.drive, build.cuda
    if why == "ptx":
        return f"Its PTX of CUDA {cuda} is too new for a driver of CUDA {drive.cuda}."
    floor = knowledge.driver_floor(cuda, drive.numbers) if cuda else None
    here = f"driver {drive.version}" if drive.version else "the driver"
    level = f" runs CUDA {drive.cuda} at most" if drive.cuda else " is older"
    if floor is None:
        return f"No driver is known for CUDA {cuda}."
    return f"CUDA {cuda} needs driver {floor.driver} or newer; {here}{level}."


def _listed(items: tuple[str, ...] | list[str]) -> str:
    return ", ".join(items) or "none"


_STRICTEST_GLIBC = Version("2.28")
"""What counts where the glibc of a build is not known: no build of conda-forge asks for more."""


def forge_cuda(torch: Version, demand: Demand, knowledge: Knowledge) -> Version | None:
    """The CUDA of conda-forge's build of that torch which serves every GPU as machine code.

    None where there is none, or where the tables do not prove it.
    """
    made = knowledge.conda_cuda("conda-forge", torch, demand.platform) or ()
    for cuda in sorted(made, reverse=True):
        if _serves(torch, cuda, demand, knowledge):
            return cuda
    return None


def _serves(torch: Version, cuda: Version, demand: Demand, knowledge: Knowledge) -> bool:
    codes = knowledge.conda_archs(cuda, demand.platform) or ()
    how = [served(codes, one, torch, cuda, knowledge) for one in demand.capabilities]
    if not codes or not all(one is not None and one[0] == "native" for one in how):
        return False
    if demand.system == "Linux" and demand.glibc is not None:
        known = knowledge.conda_glibc(cuda) if demand.platform == "linux_x86_64" else None
        if demand.glibc < (known or _STRICTEST_GLIBC):
            return False
    return runs(cuda, demand, knowledge)


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

"""Whether a build of torch fits a machine: the first thing that keeps it from fitting, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import Machine, Release, Text, Texts
from cudadoctor.solver.demand import Demand, served

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
    ignoring: Collection[Block] = (),
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
    ignoring: Collection[Block],
) -> Block | None:
    codes = build.archs
    if codes and build.contested and not trusting:
        codes = tuple(code for code in codes if code not in build.contested)
    how = _served(build, demand, knowledge, codes)
    if not all(how):
        at_all = codes != build.archs and all(_served(build, demand, knowledge, build.archs))
        return "contested" if at_all else "archs"
    if "driver" not in ignoring:
        if build.cuda is not None and not runs(build.cuda, demand, knowledge):
            return "driver"
        level = demand.drive.cuda
        new = level is None or build.cuda is None or level < build.cuda
        if new and any(code and code[0] == "ptx" for code in how):
            return "ptx"
    trusting = trusting or "cudnn" in ignoring
    return None if trusting or not cudnn_refuses(build, demand, knowledge) else "cudnn"


def _served(
    build: TorchBuild, demand: Demand, knowledge: Knowledge, codes: Texts
) -> list[tuple[str, str] | None]:
    return [
        served(codes or (), one, build.torch, build.cuda, knowledge) for one in demand.capabilities
    ]


def cudnn_refuses(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> tuple[Version, ...]:
    """The GPUs that the build's own cuDNN has no code for: convolutions fail on them."""
    release = own_cudnn(build, knowledge)
    return tuple(
        one for one in demand.capabilities if release and _refuses(release, one, knowledge)
    )


@lru_cache(maxsize=1024)
def _refuses(release: str, capability: Version, knowledge: Knowledge) -> bool:
    return knowledge.cudnn_refuses(Version(release), capability) is True


@lru_cache(maxsize=1024)
def own_cudnn(build: TorchBuild, knowledge: Knowledge) -> Text:
    """The cuDNN inside a build; where its own is not known, that of the Linux build beside it."""
    if build.cudnn is not None or build.cuda is None:
        return build.cudnn
    beside = knowledge.build_of(build.torch, build.variant, "linux_x86_64")
    return beside.cudnn if beside is not None else None


def on_ptx(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> tuple[Version, ...]:
    """The GPUs that this build serves by PTX alone, which the driver compiles at first use."""
    how = zip(demand.capabilities, _served(build, demand, knowledge, build.archs), strict=True)
    return tuple(one for one, code in how if code is not None and code[0] == "ptx")


def runs(cuda: Version, demand: Demand, knowledge: Knowledge) -> bool:
    """Whether the driver runs a build of this CUDA version."""
    drive, level = demand.drive, demand.drive.cuda
    # From CUDA 11 on any minor of the driver's major runs; before it the driver must be as new.
    if level and not (level >= cuda if cuda.major < 11 else level.major >= cuda.major):
        return False
    if drive.decides or drive.version is None:
        return level is not None
    floor = knowledge.driver_floor(cuda, drive.numbers)
    return floor is not None and drive.version >= floor.driver


def reason(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> Text:
    """Why a build does not fit, as a sentence with its values; None where it fits."""
    why = block(build, demand, knowledge)
    if why is None:
        return None
    drive, cuda = demand.drive, build.cuda
    served_by = zip(
        demand.capabilities, _served(build, demand, knowledge, build.archs), strict=True
    )
    unserved = _listed(capability for capability, code in served_by if not code)
    refused = _listed(cudnn_refuses(build, demand, knowledge))
    floor = knowledge.driver_floor(cuda, drive.numbers) if cuda else None
    here = f"driver {drive.version}" if drive.version else "the driver"
    level = f" runs CUDA {drive.cuda} at most" if drive.cuda else " is older"
    pythons = _listed(build.pythons)
    return {
        "absent": f"It was not published for {build.platform}.",
        "announced": f"It was not seen published for {build.platform}, only announced.",
        "python": f"It has no wheel for Python {demand.python}, only for {pythons}.",
        "glibc": f"It needs glibc {build.glibc}; this system has {demand.glibc}.",
        "tegra": f"It is made for servers: {demand.tegra}.",
        "no-gpu": NO_GPU,
        "cpu": "It has no code for GPUs.",
        "contested": "Sources disagree on whether it has code for this GPU.",
        "cudnn": f"Its cuDNN {own_cudnn(build, knowledge)} refuses capability {refused}.",
        "archs": "Which GPUs it has code for is not known."
        if build.archs is None
        else f"It has no code for capability {unserved}, only {_listed(build.archs)}.",
        "ptx": f"Its PTX of CUDA {cuda} is too new for a driver of CUDA {drive.cuda}.",
        "driver": f"CUDA {cuda} needs driver {floor.driver} or newer; {here}{level}."
        if floor
        else f"No driver is known for CUDA {cuda}.",
    }[why]


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"


# --- the best of several ------------------------------------------------------------------------


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the solver.

    builds: all of the platform, newest first. keep: the constraint on the release. asked: builds
    that it allows. free: what would be chosen without it. whole: what the machine demands, where
    the constraint leaves out its GPUs.
    """

    machine: Machine
    demand: Demand
    knowledge: Knowledge
    builds: tuple[TorchBuild, ...]
    asked: tuple[TorchBuild, ...]
    keep: Text
    free: TorchBuild | None = None
    whole: Demand | None = None


_RESORTS: tuple[tuple[bool, tuple[Block, ...]], ...] = (
    (False, ()),
    (False, ("cudnn",)),
    (True, ()),
)
"""What is counted on, in turn: all that is sound, a cuDNN that refuses a GPU, contested code."""


def newest(
    builds: tuple[TorchBuild, ...], case: Case, *, desperate: bool = True
) -> TorchBuild | None:
    """The best build of the newest release with one that fits.

    desperate: where none does, take what is a last resort (see `block`).
    """
    for trusting, ignoring in _RESORTS if desperate else _RESORTS[:1]:
        fitting: list[TorchBuild] = []
        for build in builds:
            if fitting and build.torch != fitting[0].torch:
                break
            why = block(build, case.demand, case.knowledge, trusting=trusting, ignoring=ignoring)
            if why is None:
                fitting.append(build)
        if fitting:
            return min(fitting, key=lambda build: _rank(build, case))
    return None


def _rank(build: TorchBuild, case: Case) -> tuple[bool, bool, bool, bool, float]:
    """What is preferred within a release: lower is better."""
    slow = build.cuda is not None and bool(on_ptx(build, case.demand, case.knowledge))
    level = case.demand.drive.cuda
    native = build.cuda is not None and level is not None and build.cuda <= level
    number = 0.0 if build.cuda is None else build.cuda.major + build.cuda.minor / 100
    # Where no GPU is, the CPU build comes first, also where CUDA is the default of the platform.
    default = build.default if case.demand.gpus == "some" else build.cuda is None
    here = build.cuda is not None and is_installed(build, case.machine)
    return slow, not here, not default, not native, -number if native else number


def is_installed(build: TorchBuild, machine: Machine) -> bool:
    """Whether the examined environment holds exactly this CUDA build."""
    torch = machine.torch
    if torch.version is None or torch.version.release != build.torch.release:
        return False
    return torch.build in (None, "cuda") and torch.cuda == build.cuda


# --- other publishers' code -------------------------------------------------------------------


_STRICTEST_GLIBC = Version("2.28")
"""What counts where the glibc of a build is not known: no build of conda-forge asks for more."""


def conda_forge_cuda(torch: Version, demand: Demand, knowledge: Knowledge) -> Release:
    """The CUDA of conda-forge's build of that torch which serves every GPU as machine code.

    Other compilers, other lists of GPUs. None where there is none, or the tables do not prove it.
    """
    made = knowledge.conda_cuda("conda-forge", torch, demand.platform) or ()
    fitting = [cuda for cuda in made if _serves(torch, cuda, demand, knowledge)]
    return max(fitting, default=None)


def _serves(torch: Version, cuda: Version, demand: Demand, knowledge: Knowledge) -> bool:
    codes = knowledge.conda_archs(cuda, demand.platform) or ()
    how = [served(codes, one, torch, cuda, knowledge) for one in demand.capabilities]
    if not codes or not all(code is not None and code[0] == "native" for code in how):
        return False
    if demand.system == "Linux" and demand.glibc is not None:
        known = knowledge.conda_glibc(cuda) if demand.platform == "linux_x86_64" else None
        if demand.glibc < (known or _STRICTEST_GLIBC):
            return False
    return runs(cuda, demand, knowledge)


def compat_lifts(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether NVIDIA's cuda-compat package of that CUDA release runs on this driver and these GPUs.

    It is made for data-centre GPUs and some branches of the driver only; everywhere else the
    program ends with CUDA error 804 or 803.
    """
    here, driver = m.platform, m.driver.version
    if here.system != "Linux" or here.wsl or here.jetson or m.container.dxg or driver is None:
        return False
    if any(gpu.virtualization == "vgpu" for gpu in m.gpus or ()):
        return False
    seen = [(gpu.device_id, gpu.name) for gpu in m.gpus or ()]
    seen = seen or [(device.device_id, None) for device in m.pci or () if device.vendor == "nvidia"]
    models = [
        kb.gpus_by_pci(device_id or "") or (kb.gpu_by_name(name or ""),) for device_id, name in seen
    ]
    allowed = all(model is not None and model.data_center for found in models for model in found)
    return kb.forward_compat(cuda, driver.branch) == "compatible" and bool(models) and allowed

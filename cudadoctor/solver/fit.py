"""Whether a build of torch fits a machine: the first thing that keeps it from fitting, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Literal

from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge, TorchBuild
from cudadoctor.model.machine import Machine, OptStr, OptStrings, OptVersion, Strings, Versions
from cudadoctor.solver.demand import Demand, served

Block = Literal[
    "absent", "announced", "python", "glibc", "tegra", "no-gpu", "cpu", "archs", "contested",
    "driver", "ptx", "cudnn", "gap",
]  # fmt: skip
"""absent: never published. no-gpu: a CUDA build where no GPU is. ptx: the driver is too old for
the PTX that this GPU would need. cudnn: torch has code for the GPU, its own cuDNN has not. gap:
what the build needs of this machine is not known."""


NO_GPU = "This machine has no NVIDIA GPU, so the CPU build is the right one."


def block(
    build: TorchBuild, demand: Demand, *, trusting: bool = False, ignoring: Collection[Block] = ()
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
    if gap_of(build, demand):
        return "gap"
    if demand.gpus == "none":
        return None if build.cuda is None or (build.default and trusting) else "no-gpu"
    if build.cuda is None:
        return "cpu"
    if demand.tegra is not None:
        return "tegra"
    return next(_of_hardware(build, build.cuda, demand, trusting, ignoring), None)


def gap_of(build: TorchBuild, demand: Demand) -> OptStr:
    """What nobody knows of a build although this machine turns on it; an update can leave such."""
    if not build.platform.startswith("linux"):
        return None
    if build.glibc is None:
        return "glibc"
    below = demand.knowledge.cudnn_below
    return (
        "cuDNN" if build.cuda and not build.cudnn and any(map(below, demand.capabilities)) else None
    )


def _of_hardware(
    build: TorchBuild, cuda: Version, demand: Demand, trusting: bool, ignoring: Collection[Block]
) -> Iterator[Block]:
    codes = build.archs
    if codes and build.contested and not trusting:
        codes = tuple(code for code in codes if code not in build.contested)
    ways = ways_of(build, demand, codes)
    if not all(ways.values()):
        yield (
            "archs"
            if codes == build.archs or not all(ways_of(build, demand).values())
            else "contested"
        )
    if "driver" not in ignoring:
        if not runs(cuda, demand):
            yield "driver"
        level = demand.drive.cuda
        if (level is None or level < cuda) and "ptx" in ways.values():
            yield "ptx"
    if not trusting and "cudnn" not in ignoring and cudnn_refuses(build, demand):
        yield "cudnn"


def ways_of(build: TorchBuild, demand: Demand, codes: OptStrings = None) -> dict[Version, OptStr]:
    """GPU -> how a build serves it: native, ptx, or None not at all. codes: in place of its own."""
    archs = (build.archs if codes is None else codes) or ()
    cuda, knowledge = build.cuda, demand.knowledge
    return {
        gpu: (how := served(archs, gpu, build.torch, cuda, knowledge)) and how[0]
        for gpu in demand.capabilities
    }


def cudnn_refuses(build: TorchBuild, demand: Demand) -> Versions:
    """The GPUs that the build's own cuDNN has no code for: convolutions fail on them."""
    release, knowledge = own_cudnn(build, demand.knowledge), demand.knowledge
    return tuple(
        capability
        for capability in demand.capabilities
        if release and _refuses(release, capability, knowledge)
    )


@lru_cache(maxsize=1024)
def _refuses(release: str, capability: Version, knowledge: Knowledge) -> bool:
    return knowledge.cudnn_refuses(Version(release), capability) is True


@lru_cache(maxsize=1024)
def own_cudnn(build: TorchBuild, knowledge: Knowledge) -> OptStr:
    """The cuDNN inside a build; where its own is not known, that of the Linux build beside it."""
    if build.cudnn is not None or build.cuda is None:
        return build.cudnn
    beside = knowledge.build_of(build.torch, build.variant, "linux_x86_64")
    return beside.cudnn if beside else None


def on_ptx(build: TorchBuild, demand: Demand) -> Versions:
    """The GPUs that this build serves by PTX alone, which the driver compiles at first use."""
    return tuple(gpu for gpu, how in ways_of(build, demand).items() if how == "ptx")


def runs(cuda: Version, demand: Demand) -> bool:
    """Whether the driver runs a build of this CUDA version."""
    drive, level = demand.drive, demand.drive.cuda
    # From CUDA 11 on any minor of the driver's major runs; before it the driver must be as new.
    if level and not (level >= cuda if cuda.major < 11 else level.major >= cuda.major):
        return False
    if drive.decides or drive.version is None:
        return level is not None
    floor = demand.knowledge.driver_floor(cuda, drive.numbers)
    return floor is not None and drive.version >= floor.driver


def reason(build: TorchBuild, demand: Demand) -> OptStr:
    """Why a build does not fit, as a sentence with its values; None where it fits."""
    why, drive, cuda = block(build, demand), demand.drive, build.cuda
    match why:
        case "python":
            return f"It has no wheel for Python {demand.python}, only for {_listed(build.pythons)}."
        case "archs" if build.archs is not None:
            unserved = _listed(gpu for gpu, how in ways_of(build, demand).items() if not how)
            return (
                f"It has no code for compute capability {unserved}, only for "
                f"{_listed(build.archs)}."
            )
        case "driver" if cuda and (floor := demand.knowledge.driver_floor(cuda, drive.numbers)):
            level = f"supports CUDA up to {drive.cuda}" if drive.cuda else "is older"
            here = f"is {drive.version}" if drive.version else level
            return f"CUDA {cuda} needs driver {floor.driver} or newer; yours {here}."
        case "gap":
            return f"It is not known which {gap_of(build, demand)} this build needs."
        case "cudnn":
            refused = _listed(cudnn_refuses(build, demand))
            release = own_cudnn(build, demand.knowledge)
            return f"Its cuDNN {release} does not support compute capability {refused}."
    return (
        why
        and {
            "absent": f"It was not published for {build.platform}.",
            "announced": (
                f"It has only been announced for {build.platform}; there is no known "
                "published wheel."
            ),
            "glibc": f"It needs glibc {build.glibc} or newer; this system has {demand.glibc}.",
            "tegra": f"It is built for servers: {demand.tegra}.",
            "no-gpu": NO_GPU,
            "cpu": "It cannot use a GPU.",
            "contested": "It may not have code for this GPU: sources disagree.",
            "archs": "It is not known which GPUs this build has code for.",
            "ptx": f"Its PTX (CUDA {cuda}) is too new for your driver (CUDA {drive.cuda}).",
            "driver": f"It needs CUDA {cuda}, for which the minimum driver version is unknown.",
        }[why]
    )


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"


# --- the best of several ------------------------------------------------------------------------


class Case(Demand, frozen=True, kw_only=True):
    """One question to the solver: what the machine demands, and what was asked for.

    builds: all of the platform, newest first. keep: the constraint on the release. asked: builds
    that it allows. free: what would be chosen without it. whole: what the machine demands, where
    the constraint leaves out its GPUs. nearer: a build closer to the installed one that also fits;
    costs: the installed packages that would be lost with it.
    """

    builds: tuple[TorchBuild, ...]
    asked: tuple[TorchBuild, ...]
    keep: OptStr
    free: TorchBuild | None = None
    whole: Demand | None = None
    nearer: TorchBuild | None = None
    costs: Strings = ()


RESORTS: tuple[tuple[bool, tuple[Block, ...]], ...] = (
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
    for trusting, ignoring in RESORTS if desperate else RESORTS[:1]:
        fitting: list[TorchBuild] = []
        for build in builds:
            if fitting and build.torch != fitting[0].torch:
                break
            if block(build, case, trusting=trusting, ignoring=ignoring) is None:
                fitting.append(build)
        if fitting:
            return min(fitting, key=lambda build: rank(build, case))
    return None


def rank(build: TorchBuild, case: Case) -> tuple[bool, bool, bool, bool, float]:
    """What is preferred within a release: lower is better."""
    cuda, level = build.cuda, case.drive.cuda
    # Where no GPU is, the CPU build comes first, also where CUDA is the default of the platform.
    default = build.default if case.gpus == "some" else cuda is None
    if cuda is None:
        return False, True, not default, True, 0.0
    native = level is not None and cuda <= level
    number = cuda.major + cuda.minor / 100
    here, slow = is_installed(build, case.machine), bool(on_ptx(build, case))
    return slow, not here, not default, not native, -number if native else number


def is_installed(build: TorchBuild, machine: Machine) -> bool:
    """Whether the examined environment holds exactly this CUDA build."""
    torch = machine.torch
    same = torch.version is not None and torch.version.release == build.torch.release
    return same and torch.build in (None, "cuda") and torch.cuda == build.cuda


# --- other publishers' code -------------------------------------------------------------------


_STRICTEST_GLIBC = Version("2.28")
"""What counts where the glibc of a build is not known: no build of conda-forge asks for more."""


def conda_forge_cuda(torch: Version, demand: Demand) -> OptVersion:
    """The CUDA of conda-forge's build of that torch which serves every GPU as machine code.

    Other compilers, other lists of GPUs. None where there is none, or the tables do not prove it.
    """
    made = demand.knowledge.conda_cuda("conda-forge", torch, demand.platform) or ()
    return max((cuda for cuda in made if _serves(torch, cuda, demand)), default=None)


def _serves(torch: Version, cuda: Version, demand: Demand) -> bool:
    knowledge = demand.knowledge
    codes = knowledge.conda_archs(cuda, demand.platform) or ()
    ways = (served(codes, gpu, torch, cuda, knowledge) for gpu in demand.capabilities)
    if not codes or not all(how and how[0] == "native" for how in ways):
        return False
    known = knowledge.conda_glibc(cuda) if demand.platform == "linux_x86_64" else None
    # Linux alone has a glibc.
    old = demand.glibc is not None and demand.glibc < (known or _STRICTEST_GLIBC)
    return not old and runs(cuda, demand)


def compat_lifts(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether NVIDIA's cuda-compat package of that CUDA release runs on this driver and these GPUs.

    It is made for data center GPUs and some branches of the driver only; everywhere else the
    program ends with CUDA error 804 or 803.
    """
    here, driver = m.platform, m.driver.version
    if here.system != "Linux" or here.wsl or here.jetson or m.container.dxg or driver is None:
        return False
    seen = [(gpu.device_id, gpu.name) for gpu in m.gpus or ()]
    seen = seen or [(device.device_id, None) for device in m.pci or () if device.vendor == "nvidia"]
    models = [model for device_id, name in seen for model in _models(device_id, name, kb)]
    allowed = all(model is not None and model.data_center for model in models)
    possible = bool(models) and allowed and not has_virtual_gpu(m)
    return possible and kb.forward_compat(cuda, driver.branch) == "compatible"


def _models(device_id: OptStr, name: OptStr, kb: Knowledge) -> tuple[GpuModel | None, ...]:
    """The models that a GPU may be: several share a device id, and the name tells which it is."""
    named = kb.gpu_by_name(name or "")
    return (named,) if named else tuple(kb.gpus_by_pci(device_id or "")) or (None,)


def has_virtual_gpu(m: Machine) -> bool:
    """Whether a GPU is a share that a hypervisor gives out: those need the provider's driver."""
    return any(gpu.virtualization == "vgpu" for gpu in m.gpus or ())

"""The reasons for and against a build of torch, as sentences with their values."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import Machine
from cudadoctor.solver.demand import Demand
from cudadoctor.solver.refusals import NO_GPU, block, cudnn_refuses, on_ptx, reason, served

VISION_REFUSES_PYTHON = (3, 14, 1)
"""torchvision excludes one release of Python that breaks it; torch does not."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the solver.

    builds: all of the platform, newest first. asked: those that the wish allows. free: what would
    be chosen without the wish. whole: what the machine demands, where a wish leaves out its GPUs.
    """

    machine: Machine
    demand: Demand
    knowledge: Knowledge
    builds: tuple[TorchBuild, ...]
    asked: tuple[TorchBuild, ...]
    wish: str | None
    free: TorchBuild | None = None
    whole: Demand | None = None


def why_this(build: TorchBuild, case: Case) -> Iterator[str]:
    """Why this build: its release, its code, its driver, and what was supposed."""
    from cudadoctor.solver.passed_over import announced

    demand = case.demand
    waiting = announced(build, case)
    yield _release(build, case, waits=waiting is not None)
    if case.wish is not None:
        from cudadoctor.solver.wish_costs import costs

        yield from costs(build, case.free, case)
    if waiting is not None:
        yield waiting
    if demand.gpus == "none":
        yield _without_gpu(build, case)
    elif build.cuda is not None:
        yield _code(build, case)
        yield _driver(build, case)
        yield from _minor(build, case)
        yield from _compiled(build, case)
        if off := without_cudnn(build, demand, case.knowledge):
            yield off
    if demand.drive.supposed and demand.gpus == "some":
        yield demand.drive.supposed
    yield from _left_out(build, case)
    if build.archs_uncertain:
        yield "Its list of architectures comes from build scripts, not from the wheel."
    if demand.python is None:
        yield f"The Python version is not known; it exists for {', '.join(build.pythons)}."
    python = case.machine.python.version
    refusing = build.torchvision is not None and build.torch.release >= (2, 11)
    if refusing and python is not None and python.release == VISION_REFUSES_PYTHON:
        yield f"torchvision {build.torchvision} refuses Python {python}."


def without_cudnn(build: TorchBuild, demand: Demand, knowledge: Knowledge) -> str | None:
    """That its own cuDNN refuses a GPU which the build has code for, and what keeps it away."""
    refused = cudnn_refuses(build, demand, knowledge)
    codes = build.archs or ()
    had = (one for one in refused if served(codes, one, build.torch, build.cuda, knowledge))
    lost = ", ".join(map(str, had))
    if not lost:
        return None
    off = "torch.backends.cudnn.enabled = False keeps convolutions off it"
    return f"Its cuDNN refuses capability {lost}: {off}."


def _without_gpu(build: TorchBuild, case: Case) -> str:
    if case.whole is not None and case.whole.gpus == "some":
        return "The wish names the CPU build: no GPU is used, and none counts."
    if build.cuda is not None:
        return "No NVIDIA GPU is there; this build runs on the CPU too."
    return NO_GPU


def _release(build: TorchBuild, case: Case, *, waits: bool) -> str:
    """Why this release. waits: a newer one that would fit was announced."""
    version = case.machine.torch.version
    if case.wish is not None:
        return f"torch {build.torch} is the newest that fits the wish for {case.wish}."
    if version is not None and version.release == build.torch.release:
        return f"torch {build.torch} is installed and is kept."
    if waits:
        return f"torch {build.torch} is the newest published release with a build that fits."
    newer = [one for one in case.builds if one.torch > build.torch and one.cuda is not None]
    if not newer or case.demand.gpus == "none":
        return f"torch {build.torch} is the newest release with a build that fits."
    # Of the release that came next, a variant that was published says most.
    closest = [one for one in newer if one.torch == newer[-1].torch]
    nearest = next((one for one in closest if one.published), closest[0])
    passed = reason(nearest, case.demand, case.knowledge) or ""
    return f"It is the newest that fits; {nearest.torch} {nearest.variant} does not: {passed}"


def _code(build: TorchBuild, case: Case) -> str:
    parts = []
    for one in case.demand.capabilities:
        how = served(build.archs or (), one, build.torch, build.cuda, case.knowledge)
        parts.append(f"{one} ({how[1] if how else 'not known'})")
    return f"It has code for capability {', '.join(parts)}."


def _driver(build: TorchBuild, case: Case) -> str:
    drive, cuda = case.demand.drive, build.cuda
    floor = case.knowledge.driver_floor(cuda, drive.numbers) if cuda else None
    if drive.decides or floor is None or drive.version is None:
        return f"It needs CUDA {cuda}; the driver runs CUDA {drive.cuda}."
    return f"CUDA {cuda} needs driver {floor.driver} or newer; here it is {drive.version}."


def _minor(build: TorchBuild, case: Case) -> Iterator[str]:
    """That the driver's own CUDA is older than the build's, and what does not work then."""
    own, cuda = case.demand.drive.cuda, build.cuda
    if own is None or cuda is None or cuda <= own or cuda.major != own.major:
        return
    yield (
        f"A driver of CUDA {own} runs {cuda} by minor-version compatibility; PTX of {cuda} does "
        "not load on it."
    )


def _compiled(build: TorchBuild, case: Case) -> Iterator[str]:
    """What PTX costs, and whether another release has machine code."""
    slow = on_ptx(build, case.demand, case.knowledge)
    if not slow:
        return
    names = ", ".join(str(one) for one in slow)
    yield (
        f"Capability {names} is served by PTX: the driver compiles the kernels at first use, which "
        "takes minutes; they are kept in ~/.nv/ComputeCache (CUDA_CACHE_MAXSIZE sets its size)."
    )
    native = next((one for one in case.asked if _is_native(one, case)), None)
    if native is None:
        yield f"No build that fits has machine code for capability {names}."
    else:
        yield f"torch {native.torch} {native.variant} has machine code for it."


def _is_native(one: TorchBuild, case: Case) -> bool:
    fits = block(one, case.demand, case.knowledge) is None
    return fits and not on_ptx(one, case.demand, case.knowledge)


def _left_out(build: TorchBuild, case: Case) -> Iterator[str]:
    """GPUs that the build does not serve; and what an old one keeps from coming."""
    demand = case.demand
    if len(demand.capabilities) + len(demand.aside) < 2 or build.cuda is None:
        return
    from cudadoctor.solver.mixed_gpus import named, of_capability, seen_gpus

    gpus = seen_gpus(case.machine, case.knowledge)
    if demand.aside:
        names = ", ".join(str(one) for one in demand.aside)
        which = named(of_capability(gpus, demand.aside))
        yield f"No torch for {demand.platform} has code for capability {names}: left out."
        yield f"To hide {which} from programs, set CUDA_VISIBLE_DEVICES to the others."
    if len(demand.capabilities) < 2:
        return
    newer = _newer_without_oldest(build, case)
    if newer is not None:
        which = named(of_capability(gpus, demand.capabilities[:1]))
        yield f"Without {which}, torch {newer.torch} {newer.variant} would fit."


def _newer_without_oldest(build: TorchBuild, case: Case) -> TorchBuild | None:
    rest = msgspec.structs.replace(case.demand, capabilities=case.demand.capabilities[1:])
    for one in case.asked:
        if one.torch <= build.torch:
            return None
        if block(one, rest, case.knowledge) is None:
            return one
    return None


def why_none(case: Case) -> Iterator[str]:
    """Why nothing fits, in general; the variants say more."""
    demand, newest, oldest = case.demand, case.asked[0].torch, case.asked[-1].torch
    known = f"torch {newest}" if newest == oldest else f"torch {oldest} to {newest}"
    yield f"No build of {known} for {demand.platform} fits {_described(demand)}."
    if demand.tegra:
        yield f"{demand.tegra[0].upper()}{demand.tegra[1:]}."
    if demand.drive.supposed and demand.gpus == "some":
        yield demand.drive.supposed
    if len(case.asked) < len(case.builds):
        yield f"Only torch {case.wish} was asked for."
    if demand.gpus == "some" and any(one.variant == "cpu" for one in case.builds):
        yield "A CPU build would run, without the GPU."


def _described(demand: Demand) -> str:
    parts = ["this machine"]
    if demand.gpus == "some":
        names = ", ".join(str(one) for one in demand.capabilities)
        parts = [f"GPUs of capability {names}"]
        parts += [f"driver {demand.drive.version}"] if demand.drive.version else []
    parts += [f"Python {demand.python}"] if demand.python else []
    parts += [f"glibc {demand.glibc}"] if demand.glibc else []
    return ", ".join(parts)

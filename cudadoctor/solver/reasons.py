"""The reasons for and against a build of torch, as sentences with their values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import Refusal
from cudadoctor.model.machine import Machine
from cudadoctor.solver.demand import Demand
from cudadoctor.solver.fit import NO_GPU, block, cudnn_refuses, on_ptx, reason, served

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import TorchBuild

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
    demand = case.demand
    waiting = announced(build, case)
    yield _release(build, case, waits=waiting is not None)
    if case.wish is not None:
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
    from cudadoctor.solver.demand import named, of_capability, seen_gpus

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


def passed_over(chosen: TorchBuild, case: Case) -> tuple[Refusal, ...]:
    """Each other variant once, with its reason in the chosen release and in its newest release."""
    # The builds come newest first.
    since = list(takewhile(lambda one: one.torch >= chosen.torch, case.builds))
    same = {one.variant: one for one in since if one.torch == chosen.torch}
    newer = _newest_of_each(
        one for one in since if one.variant not in same or one.torch > chosen.torch
    )
    texts: dict[str, list[str]] = {}
    for variant, one in same.items():
        texts[variant] = [_of_same(one, chosen, case)]
    for variant, one in newer.items():
        text = _of_newer(one, case)
        said = texts.setdefault(variant, [])
        if not said or text != said[0]:
            said.append(_with_release(text, one))
    texts.pop(chosen.variant, None)
    return tuple(Refusal(variant=name, reason=" ".join(said)) for name, said in texts.items())


def none_taken(case: Case) -> tuple[Refusal, ...]:
    """Where nothing fits: each variant that was asked for once, by its newest release.

    Of the newest release that was asked for, all variants: a wish may have named one only.
    """
    newest = case.asked[0].torch
    named = _newest_of_each(case.asked)
    beside = {one.variant: one for one in case.builds if one.torch == newest}
    return tuple(
        Refusal(
            variant=variant,
            reason=_of_newer(one, case)
            if one.torch == newest
            else _with_release(_of_newer(one, case), one),
        )
        for variant, one in (beside | named).items()
    )


def announced(chosen: TorchBuild, case: Case) -> str | None:
    """That something newer would fit and was only announced; None where nothing was."""
    waiting = [
        one
        for one in case.asked
        if one.torch > chosen.torch and one.published is None and not _unfit_anyway(one, case)
    ]
    if not waiting:
        return None
    newest = [one for one in waiting if one.torch == waiting[0].torch]
    names = " and ".join(one.variant for one in newest)
    verb = "is" if len(newest) == 1 else "are"
    past = "was" if len(newest) == 1 else "were"
    return (
        f"torch {newest[0].torch} {names} {verb} announced and {past} not seen published: "
        "what exists for certain comes first."
    )


def _unfit_anyway(one: TorchBuild, case: Case) -> bool:
    return block(one, case.demand, case.knowledge, ignoring=frozenset({"announced"})) is not None


def _newest_of_each(builds: Iterable[TorchBuild]) -> dict[str, TorchBuild]:
    """Variant -> its newest release that was published, else the newest that is spoken of."""
    found: dict[str, TorchBuild] = {}
    for one in builds:
        known = found.setdefault(one.variant, one)
        if one.published and not known.published:
            found[one.variant] = one
    return found


def _of_same(one: TorchBuild, chosen: TorchBuild, case: Case) -> str:
    why = _against(one, case)
    if why is not None:
        return why
    if one not in case.asked:
        return f"It fits, and the wish is for {case.wish}."
    better = "the default of this platform" if chosen.default else "preferred"
    return f"It fits too; {chosen.variant} is {better}."


def _of_newer(one: TorchBuild, case: Case) -> str:
    why = _against(one, case)
    if why is not None:
        return why
    if case.wish is not None:
        return f"It fits, and the wish is for {case.wish}."
    return "It fits too; the installed release is kept."


def _against(one: TorchBuild, case: Case) -> str | None:
    """Why it does not fit; a build for GPUs is held against them, also where none is to be used."""
    demand = case.demand if one.cuda is None else case.whole or case.demand
    return reason(one, demand, case.knowledge)


def _with_release(text: str, one: TorchBuild) -> str:
    """The sentence with the release in place of "It"."""
    if text.startswith("It "):
        return f"torch {one.torch} {text.removeprefix('It ')}"
    if text.startswith("Its "):
        return f"torch {one.torch}: its {text.removeprefix('Its ')}"
    return f"torch {one.torch}: {text}"


_ALWAYS = ("torchvision", "torchaudio")
_WHERE_INSTALLED = ("torchtext", "xformers", "flash-attn", "triton-windows", "vllm")


def costs(build: TorchBuild, free: TorchBuild | None, case: Case) -> Iterator[str]:
    """What is given up for the wish. free: what would be chosen without it."""
    if free is None or (free.torch, free.variant) == (build.torch, build.variant):
        yield "The wish costs nothing: without it the same build would be chosen."
        return
    yield f"Without the wish it would be torch {free.torch} {free.variant}."
    lost = [text for text in (_releases(build, free, case), *_lost(build, free, case)) if text]
    yield from lost
    if not lost:
        yield "The wish gives up nothing that the tables know of."


def _releases(build: TorchBuild, free: TorchBuild, case: Case) -> str | None:
    """How many releases are given up."""
    passed = {
        one.torch for one in case.builds if build.torch < one.torch <= free.torch and one.published
    }
    if not passed:
        return None
    many = f"{len(passed)} newer releases" if len(passed) > 1 else "one newer release"
    since = f"{build.released} to {free.released}"
    return f"The wish gives up {many}, up to torch {free.torch} ({since})."


def _lost(build: TorchBuild, free: TorchBuild, case: Case) -> Iterator[str]:
    here, there = (on_ptx(one, case.demand, case.knowledge) for one in (build, free))
    slow = [str(one) for one in here if one not in there]
    if slow and build.cuda is not None:
        yield (
            f"The wish costs machine code: capability {', '.join(slow)} runs on PTX, where torch "
            f"{free.torch} {free.variant} has code of its own."
        )
    for name in (*_ALWAYS, *_installed(case)):
        has, had = (_companion(name, one, case.knowledge) for one in (build, free))
        if had is not None and has is None:
            yield f"No {name} is known for torch {build.torch}; torch {free.torch} has {had}."
    if build.archs_uncertain and not free.archs_uncertain:
        yield f"What torch {build.torch} has code for is less certain than for {free.torch}."


def _installed(case: Case) -> tuple[str, ...]:
    names = {one.name for one in case.machine.packages or ()}
    return tuple(name for name in _WHERE_INSTALLED if name in names)


def _companion(name: str, build: TorchBuild, knowledge: Knowledge) -> str | None:
    if name == "torchvision":
        return build.torchvision
    if name == "torchaudio":
        return build.torchaudio
    return next(iter(knowledge.companion(name, build.torch)), None)

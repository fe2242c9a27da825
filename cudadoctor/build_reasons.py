"""The reasons for and against a build of torch, as sentences with their values."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cudadoctor.demand import Demand
from cudadoctor.facts import Machine
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.plan import Refusal
from cudadoctor.refusals import reason, served

VISION_REFUSES_PYTHON = (3, 14, 1)
"""torchvision excludes one release of Python that breaks it; torch does not."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the solver.

    builds: all of the platform, newest first. asked: those that the wish allows.
    """

    machine: Machine
    demand: Demand
    knowledge: Knowledge
    builds: tuple[TorchBuild, ...]
    asked: tuple[TorchBuild, ...]
    wish: str | None


def refusals(
    others: tuple[TorchBuild, ...], case: Case, chosen: TorchBuild | None = None
) -> tuple[Refusal, ...]:
    """Why each of these was passed over."""
    also = "It fits too."
    if chosen is not None:
        better = "the default of this platform" if chosen.default else "preferred"
        also = f"It fits too; {chosen.variant} is {better}."
    return tuple(
        Refusal(variant=one.variant, reason=reason(one, case.demand, case.knowledge) or also)
        for one in others
    )


def why_this(build: TorchBuild, case: Case) -> Iterator[str]:
    """Why this build: its release, its code, its driver, and what was supposed."""
    demand = case.demand
    yield _release(build, case)
    if demand.gpus == "none":
        yield "No NVIDIA GPU is there, so no CUDA is needed."
    elif build.cuda is not None:
        yield _code(build, case)
        yield _driver(build, case)
    if demand.drive.supposed and demand.gpus == "some":
        yield demand.drive.supposed
    if demand.aside:
        names = ", ".join(str(one) for one in demand.aside)
        yield f"No torch for {demand.platform} has code for capability {names}: left out."
    if build.archs_uncertain:
        yield "Its list of architectures comes from build scripts, not from the wheel."
    if demand.python is None:
        yield f"The Python version is not known; it exists for {', '.join(build.pythons)}."
    python = case.machine.python.version
    refusing = build.torchvision is not None and build.torch.release >= (2, 11)
    if refusing and python is not None and python.release == VISION_REFUSES_PYTHON:
        yield f"torchvision {build.torchvision} refuses Python {python}."


def _release(build: TorchBuild, case: Case) -> str:
    version = case.machine.torch.version
    if case.wish is not None:
        return f"torch {build.torch} is the newest that fits the wish for {case.wish}."
    if version is not None and version.release == build.torch.release:
        return f"torch {build.torch} is installed and is kept."
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

"""Which build of torch fits a machine.

A build fits where it is known to be published, exists for the Python and the platform, needs no
newer glibc, has code for every GPU that counts and runs with the driver. Of these the user's own
release is kept, else the newest is taken; within a release the installed variant, else the default
of the platform, else the newest CUDA that the driver brings itself, else the oldest.

- A variant that was only announced never fits.
- PTX counts where the driver's own CUDA level is at least the build's, and only PTX of the build's
  newest architecture: compute_37 beside sm_90 is made for the GPUs in between.
- A machine that is known to have no NVIDIA GPU gets the CPU build.
- Where the driver is not known, the choice counts on an old one (CUDA 12), and says so; where none
  is installed, on a current one. Where the GPUs are not known, nothing is chosen.
- A GPU that no build of the platform serves does not count beside others that are served.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.build_reasons import Case, refusals, why_none, why_this
from cudadoctor.demand import (
    Demand,
    capabilities_of,
    drive_of,
    platform_of,
    python_of,
    tegra_wall,
    wall_of,
)
from cudadoctor.plan import Refusal
from cudadoctor.refusals import block, served
from cudadoctor.ways_out import WayOut, ways_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.facts import Machine
    from cudadoctor.knowledge import Knowledge, TorchBuild

__all__ = [
    "Choice",
    "Refusal",
    "WayOut",
    "best_build",
    "capabilities_of",
    "demand_of",
    "platform_of",
    "python_of",
    "serves_all",
]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The build that fits, or why none does.

    why: short sentences. why_not: every other variant of the same release (where none fits: of the
    newest release that was asked for). ways_out: where none fits, what would let one fit.
    """

    build: TorchBuild | None
    why: tuple[str, ...]
    why_not: tuple[Refusal, ...] = ()
    ways_out: tuple[WayOut, ...] = ()


def best_build(machine: Machine, knowledge: Knowledge, *, keep: str | None = None) -> Choice:
    """The build of torch that fits this machine best, with the reasons.

    keep: a wish such as "2.6", "2.6.0" or "2.6.0+cu124". Without one the installed release is
    kept where any build of it fits.
    """
    wall = wall_of(machine)
    if wall is not None:
        return Choice(build=None, why=(f"{wall[0].upper()}{wall[1:]}.",))
    demand = demand_of(machine, knowledge)
    if demand.gpus == "unknown":
        return Choice(build=None, why=("Which NVIDIA GPU this is, if any, is not known.",))
    builds = knowledge.builds_on(demand.platform)
    if not builds:
        return Choice(build=None, why=(f"No build of torch is known for {demand.platform}.",))
    case = Case(
        machine=machine, demand=demand, knowledge=knowledge, builds=builds, asked=builds, wish=keep
    )
    return _kept(case) if keep is None else _wished(case, keep)


def demand_of(machine: Machine, knowledge: Knowledge) -> Demand:
    """What this machine demands of a build. It must have a platform that wheels exist for."""
    platform, system = platform_of(machine), machine.platform.system
    if platform is None or system is None:
        raise ValueError("a machine without a platform demands nothing of a build")
    found = capabilities_of(machine, knowledge) if system != "Darwin" else ()
    capabilities = tuple(sorted(set(found or ())))
    counting = tuple(one for one in capabilities if _ever_served(one, platform, knowledge))
    counting = counting or capabilities
    return Demand(
        platform=platform,
        system=system,
        python=python_of(machine),
        glibc=machine.platform.glibc if system == "Linux" else None,
        gpus="unknown" if found is None else "some" if found else "none",
        capabilities=counting,
        aside=tuple(one for one in capabilities if one not in counting),
        drive=drive_of(machine, counting, knowledge),
        tegra=tegra_wall(machine),
    )


def serves_all(
    archs: Iterable[str],
    capabilities: Iterable[Version],
    torch: Version | None,
    cuda: Version | None,
    knowledge: Knowledge,
) -> bool:
    """Whether compiled code serves every one of these GPUs, as machine code or as PTX.

    Whether the driver can compile the PTX is another question.
    """
    codes = tuple(archs)
    return all(served(codes, one, torch, cuda, knowledge) for one in capabilities)


@lru_cache(maxsize=512)
def _ever_served(capability: Version, platform: str, knowledge: Knowledge) -> bool:
    return any(
        serves_all(build.archs, (capability,), build.torch, build.cuda, knowledge)
        for build in knowledge.builds_on(platform)
        if build.archs and build.published
    )


def _kept(case: Case) -> Choice:
    """The installed release where any build of it fits, else the newest that fits."""
    version = case.machine.torch.version
    if version is not None and not version.is_prerelease:
        same = tuple(one for one in case.builds if one.torch.release == version.release)
        # What another release has for certain is better than contested code of the installed one.
        found = _newest(same, case, desperate=case.demand.gpus == "none")
        if found is not None:
            return _chosen(found, case)
    found = _newest(case.builds, case)
    return _none(case) if found is None else _chosen(found, case)


def _wished(case: Case, keep: str) -> Choice:
    """The newest build that the wish allows."""
    wanted = _matching(keep, case.builds)
    if not wanted:
        text = f"No torch {keep} is known for {case.demand.platform}."
        return Choice(build=None, why=(text,))
    case = msgspec.structs.replace(case, asked=wanted)
    found = _newest(wanted, case)
    return _none(case) if found is None else _chosen(found, case)


def _matching(keep: str, builds: tuple[TorchBuild, ...]) -> tuple[TorchBuild, ...]:
    try:
        wish = Version(keep)
    except ValueError:
        return ()
    named = wish.release
    return tuple(
        build
        for build in builds
        if build.torch.release[: len(named)] == named and wish.local in (None, build.variant)
    )


def _newest(
    builds: tuple[TorchBuild, ...], case: Case, *, desperate: bool = True
) -> TorchBuild | None:
    """The best build of the newest release with one that fits.

    desperate: where none does, take what is a last resort (see `block`).
    """
    for trusting in (False, True) if desperate else (False,):
        fitting: list[TorchBuild] = []
        for build in builds:
            if fitting and build.torch != fitting[0].torch:
                break
            if block(build, case.demand, case.knowledge, trusting=trusting) is None:
                fitting.append(build)
        if fitting:
            return min(fitting, key=lambda build: _rank(build, case))
    return None


def _rank(build: TorchBuild, case: Case) -> tuple[bool, bool, bool, float]:
    """What is preferred within a release: lower is better."""
    level = case.demand.drive.cuda
    native = build.cuda is not None and level is not None and build.cuda <= level
    number = 0.0 if build.cuda is None else build.cuda.major + build.cuda.minor / 100
    # Where no GPU is, the CPU build comes first, also where CUDA is the default of the platform.
    default = build.default if case.demand.gpus == "some" else build.cuda is None
    here = build.cuda is not None and _is_installed(build, case.machine)
    return not here, not default, not native, -number if native else number


def _is_installed(build: TorchBuild, machine: Machine) -> bool:
    torch = machine.torch
    if torch.version is None or torch.version.release != build.torch.release:
        return False
    return torch.build in (None, "cuda") and torch.cuda == build.cuda


def _chosen(build: TorchBuild, case: Case) -> Choice:
    others = tuple(one for one in case.builds if one.torch == build.torch and one is not build)
    return Choice(
        build=build, why=tuple(why_this(build, case)), why_not=refusals(others, case, build)
    )


def _none(case: Case) -> Choice:
    """Why nothing fits: each variant of the newest release asked for, and what would help."""
    newest = tuple(one for one in case.asked if one.torch == case.asked[0].torch)
    return Choice(
        build=None,
        why=tuple(why_none(case)),
        why_not=refusals(newest, case),
        ways_out=ways_out(case.asked, case.demand, case.knowledge),
    )

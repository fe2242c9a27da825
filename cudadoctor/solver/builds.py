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
- A build whose own cuDNN refuses a GPU is a last resort, as contested code is.
- Within a release, machine code for every GPU comes before PTX.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.model.findings import Refusal
from cudadoctor.solver.demand import (
    Demand,
    capabilities_of,
    drive_of,
    platform_of,
    python_of,
    tegra_wall,
    wall_of,
    without_gpus,
)
from cudadoctor.solver.fit import Block, block, on_ptx, served
from cudadoctor.solver.reasons import Case, why_none, why_this

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.machine import Machine
    from cudadoctor.solver.alternatives import WayOut

__all__ = [
    "Choice",
    "Refusal",
    "best_build",
    "capabilities_of",
    "demand_of",
    "is_installed",
    "platform_of",
    "python_of",
    "serves_all",
]


_RESORTS: tuple[tuple[bool, frozenset[Block]], ...] = (
    (False, frozenset()),
    (False, frozenset({"cudnn"})),
    (True, frozenset()),
)
"""What is counted on, in turn: all that is sound, a cuDNN that refuses a GPU, contested code."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The build that fits, or why none does.

    why: short sentences. why_not: every other variant of the same release and of newer ones (where
    none fits: every variant that was asked for). ways_out: where none fits, what would let one fit,
    the least change first.
    """

    build: TorchBuild | None
    why: tuple[str, ...]
    why_not: tuple[Refusal, ...] = ()
    ways_out: tuple[WayOut, ...] = ()


def best_build(machine: Machine, knowledge: Knowledge, *, keep: str | None = None) -> Choice:
    """The build of torch that fits this machine best, with the reasons.

    keep: a wish such as "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8". Without one the installed
    release is kept where any build of it fits.
    """
    wall = wall_of(machine)
    if wall is not None:
        return _walled(machine, knowledge, keep, wall)
    demand = demand_of(machine, knowledge)
    if demand.gpus == "unknown":
        return Choice(build=None, why=("Which NVIDIA GPU this is, if any, is not known.",))
    builds = tuple(_as_read(one, machine) for one in knowledge.builds_on(demand.platform))
    if not builds:
        text = f"No build of torch is known for {demand.platform}."
        near = "The nearest way is Linux on the same processor." if "arm64" in text else None
        return Choice(build=None, why=(text, near) if near else (text,))
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
    found = _free(case)
    return _none(case) if found is None else _chosen(found, case)


def _free(case: Case) -> TorchBuild | None:
    """What is chosen where nothing is wished."""
    version = case.machine.torch.version
    if version is not None and not version.is_prerelease:
        same = tuple(one for one in case.builds if one.torch.release == version.release)
        # What another release has for certain is better than contested code of the installed one.
        found = _newest(same, case, desperate=case.demand.gpus == "none")
        if found is not None:
            return found
    return _newest(case.builds, case)


def _walled(machine: Machine, knowledge: Knowledge, keep: str | None, wall: str) -> Choice:
    """No wheel can be installed at all: the nearest change of the environment that cures it."""
    from cudadoctor.solver.alternatives import WayOut

    why = [f"{wall[0].upper()}{wall[1:]}."]
    past = past_the_wall(machine, knowledge)
    if past is None:
        why += [word] if (word := last_word(machine)) else []
        return Choice(build=None, why=tuple(why))
    changed, change = past
    beyond = best_build(changed, knowledge, keep=keep)
    if beyond.build is None:
        return Choice(build=None, why=(*why, *beyond.why), ways_out=beyond.ways_out)
    text = f"{change}, torch {beyond.build.torch} {beyond.build.variant} fits."
    way = WayOut(kind="platform", text=text, build=beyond.build)
    return Choice(build=None, why=tuple(why), ways_out=(way,))


def _wished(case: Case, keep: str) -> Choice:
    """The newest build that the wish allows."""
    from cudadoctor.solver.alternatives import nearest_release
    from cudadoctor.solver.constraint import wished

    wanted = wished(keep, case.builds)
    free = _free(case)
    case = msgspec.structs.replace(case, asked=wanted, free=free)
    if wanted and all(one.cuda is None for one in wanted):
        # Who names the CPU build wants that one: GPUs, driver and JetPack do not count.
        case = msgspec.structs.replace(case, demand=without_gpus(case.demand), whole=case.demand)
    if not wanted:
        text = f"No torch {keep} is known for {case.demand.platform}."
        text += f" The newest in the tables is {case.builds[0].torch}."
        return Choice(build=None, why=(text,), ways_out=nearest_release(case, _newest))
    found = _newest(wanted, case)
    return _none(case) if found is None else _chosen(found, case)


def _newest(
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


def _as_read(build: TorchBuild, machine: Machine) -> TorchBuild:
    """The build with the code that was read from it, where the tables are not sure of it."""
    if not build.archs_uncertain or not machine.torch.archs or not is_installed(build, machine):
        return build
    return msgspec.structs.replace(build, archs=machine.torch.archs, archs_uncertain=False)


def _chosen(build: TorchBuild, case: Case) -> Choice:
    from cudadoctor.solver.reasons import passed_over

    return Choice(build=build, why=tuple(why_this(build, case)), why_not=passed_over(build, case))


def _none(case: Case) -> Choice:
    """Why nothing fits: each variant that was asked for, and what would help."""
    from cudadoctor.solver.alternatives import ways_out
    from cudadoctor.solver.reasons import none_taken

    return Choice(
        build=None,
        why=tuple(why_none(case)),
        why_not=none_taken(case),
        ways_out=ways_out(case, _newest),
    )


_ORDINARY = ("CPython", "cpython", None)


def past_the_wall(m: Machine, kb: Knowledge) -> tuple[Machine, str] | None:
    """The same hardware without the wall, and the change in words; None where none is known."""
    words: list[str] = []
    if m.platform.libc == "musl":
        m = _replaced(m, "platform", libc="glibc", glibc=None)
        words.append("in a container with glibc, such as python:3.12-slim")
    if platform_of(m) is None:
        return None
    python = m.python
    if python.bits == 32:
        words.append("with a 64-bit Python")
        m = _replaced(m, "python", bits=64)
    if python.implementation not in _ORDINARY:
        words.append("with CPython")
        m = _replaced(m, "python", implementation="CPython")
    if not words:
        return None
    if (newest := _newest_python(m, kb)) is not None:
        # That Python is yet to be installed: any version will do.
        words[-1] += f" ({newest})" if not words[-1].endswith("slim") else ""
        m = _replaced(m, "python", version=Version(newest), free_threaded=False)
    text = " and ".join(words)
    return m, f"{text[0].upper()}{text[1:]}"


def last_word(m: Machine) -> str | None:
    """What is nearest where no other environment of the same system helps; None for no word."""
    if m.platform.system is None or m.platform.machine is None or platform_of(m) is not None:
        return None
    return (
        "Nobody publishes one: torch would have to be built from source, and the nearest way is a "
        "64-bit system on an x86-64 or ARM processor."
    )


def _newest_python(m: Machine, kb: Knowledge) -> str | None:
    """The Python to take in place of one that no build is made for; None where its own will do."""
    platform, version = platform_of(m), m.python.version
    builds = kb.builds_on(platform) if platform else ()
    known = {name for one in builds for name in one.pythons if not name.endswith("t")}
    present = f"{version.major}.{version.minor}" if version else None
    if present in known or not known:
        return None
    return max(known, key=Version)


def _replaced(m: Machine, part: str, **values: object) -> Machine:
    changed = msgspec.structs.replace(getattr(m, part), **values)
    return msgspec.structs.replace(m, **{part: changed})

"""Where no build of torch fits a machine: the nearest change that would let one fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from packaging.version import Version

from cudadoctor.refusals import Block, block

if TYPE_CHECKING:
    from cudadoctor.demand import Demand
    from cudadoctor.knowledge import Knowledge, TorchBuild

Kind = Literal["driver", "python", "glibc", "one-gpu"]


class WayOut(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would let a build fit.

    kind: "one-gpu" is to use only the GPUs of one capability. branch: the driver branch to go to.
    pythons: versions with which it would fit. build: what would fit then.
    """

    kind: Kind
    text: str
    build: TorchBuild
    branch: int | None = None
    pythons: tuple[str, ...] = ()
    capability: Version | None = None


def ways_out(
    builds: tuple[TorchBuild, ...], demand: Demand, knowledge: Knowledge
) -> tuple[WayOut, ...]:
    """The single changes that help, the least first; else two of them together; () none."""
    if demand.tegra is not None:
        return ()
    found = (
        _python(builds, demand, knowledge),
        _driver(builds, demand, knowledge),
        _glibc(builds, demand, knowledge),
        *_one_gpu(builds, demand, knowledge),
    )
    single = tuple(one for one in found if one is not None)
    if single:
        return single
    both = _driver(builds, demand, knowledge, also=frozenset({"python"}))
    return () if both is None else (both,)


def _first(
    builds: tuple[TorchBuild, ...],
    demand: Demand,
    knowledge: Knowledge,
    ignoring: frozenset[Block],
) -> TorchBuild | None:
    for build in builds:
        if block(build, demand, knowledge, ignoring=ignoring) is None:
            return build
    return None


def _python(builds: tuple[TorchBuild, ...], demand: Demand, knowledge: Knowledge) -> WayOut | None:
    build = _first(builds, demand, knowledge, frozenset({"python"}))
    if build is None or demand.python is None:
        return None
    plain = [one for one in build.pythons if not one.endswith("t")]
    text = f"With Python {plain[0]} to {plain[-1]}, torch {build.torch} {build.variant} fits."
    return WayOut(kind="python", text=text, build=build, pythons=build.pythons)


def _driver(
    builds: tuple[TorchBuild, ...],
    demand: Demand,
    knowledge: Knowledge,
    also: frozenset[Block] = frozenset(),
) -> WayOut | None:
    """A newer driver that still supports the GPUs, and the newest build that it would run."""
    if demand.gpus != "some":
        return None
    last = _last_branch(demand, knowledge)
    for build in builds:
        if block(build, demand, knowledge, ignoring=also | {"driver"}) is not None:
            continue
        branch = _branch(build, last, knowledge)
        if branch is None:
            continue
        plain = [one for one in build.pythons if not one.endswith("t")]
        python = f" and Python {plain[-1]}" if also else ""
        driver = (
            f"driver {branch} or newer"
            if branch != last
            else f"driver {branch}, the last for this GPU"
        )
        text = f"With {driver}{python}, torch {build.torch} {build.variant} fits."
        pythons = build.pythons if also else ()
        return WayOut(kind="driver", text=text, build=build, branch=branch, pythons=pythons)
    return None


def _branch(build: TorchBuild, last: int | None, knowledge: Knowledge) -> int | None:
    """The branch to go to for a build: a current one, or the last that supports the GPUs."""
    if build.cuda is None:
        return None
    floor = knowledge.driver_floor(build.cuda, "Linux")
    needed = None if floor is None else floor.driver.branch
    if needed is None or (last is not None and needed > last):
        return None
    major = Version(f"{build.cuda.major}.0")
    current = knowledge.branch_for(major) or needed
    return current if last is None else min(current, last)


def _last_branch(demand: Demand, knowledge: Knowledge) -> int | None:
    known = (knowledge.architecture(one) for one in demand.capabilities)
    return min((one.last_branch for one in known if one and one.last_branch), default=None)


def _glibc(builds: tuple[TorchBuild, ...], demand: Demand, knowledge: Knowledge) -> WayOut | None:
    if demand.glibc is None:
        return None
    build = _first(builds, demand, knowledge, frozenset({"glibc"}))
    if build is None:
        return None
    text = f"On a system (or in a container) with glibc {build.glibc}, torch {build.torch} fits."
    return WayOut(kind="glibc", text=text, build=build)


def _one_gpu(
    builds: tuple[TorchBuild, ...], demand: Demand, knowledge: Knowledge
) -> tuple[WayOut, ...]:
    """Each capability of a mixed machine on its own."""
    if len(demand.capabilities) < 2:
        return ()
    found = []
    for one in demand.capabilities:
        alone = msgspec.structs.replace(demand, capabilities=(one,))
        build = _first(builds, alone, knowledge, frozenset())
        if build is not None:
            text = (
                f"For the GPU of capability {one} alone, torch {build.torch} {build.variant} fits."
            )
            found.append(WayOut(kind="one-gpu", text=text, build=build, capability=one))
    return tuple(found)

"""Where no build of torch fits a machine: the nearest change that would let one fit."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Literal

import msgspec
from packaging.version import Version

from cudadoctor.solver.constraint import wish_of
from cudadoctor.solver.demand import named, of_capability, seen_gpus, without_gpus
from cudadoctor.solver.fit import Block, block, compat_lifts

if TYPE_CHECKING:
    from typing import Protocol

    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.solver.demand import Demand
    from cudadoctor.solver.reasons import Case

    class Pick(Protocol):
        """The solver, for one question: the best of these builds, None where none fits."""

        def __call__(
            self, builds: tuple[TorchBuild, ...], case: Case, *, desperate: bool = True
        ) -> TorchBuild | None: ...


Kind = Literal[
    "driver",
    "python",
    "glibc",
    "one-gpu",
    "compat",
    "conda",
    "release",
    "platform",
    "jetson",
    "cpu",
]

_OLDEST_FOR_CUDNN = Version("7.5")
"""cuDNN 9.11 and later refuse older GPUs; conda chooses a cuDNN of its own."""


class WayOut(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would let a build fit.

    kind: "one-gpu" is to leave some GPUs out (hidden: their capabilities), "compat" NVIDIA's
    forward-compatibility package beside the present driver, "conda" conda-forge's build (cuda: its
    CUDA), "release" another release than the wished one, "platform" another system or interpreter,
    "jetson" NVIDIA's own build, "cpu" to do without the GPU. branch: the driver branch to go to.
    pythons: versions with which it would fit. build: what would fit then, None for a build that is
    not in the tables. capability: where one alone remains.
    """

    kind: Kind
    text: str
    build: TorchBuild | None
    branch: int | None = None
    pythons: tuple[str, ...] = ()
    capability: Version | None = None
    hidden: tuple[Version, ...] = ()
    cuda: Version | None = None


def ways_out(case: Case, pick: Pick) -> tuple[WayOut, ...]:
    """The single changes that help, the least first; else two of them together, or what is left.

    pick: the solver itself, for another question.
    """
    builds, demand, knowledge = case.asked, case.demand, case.knowledge
    if demand.tegra is not None:
        return _jetson(case)
    python = _python(builds, demand, knowledge)
    found = (
        python,
        _conda(case) if python is None else None,
        _driver(builds, demand, knowledge),
        _compat(case),
        _glibc(builds, demand, knowledge),
        *_some_gpus(case, pick),
    )
    single = tuple(one for one in found if one is not None)
    if not single:
        both = _driver(builds, demand, knowledge, also=frozenset({"python"}))
        single = () if both is None else (both,)
    other = nearest_release(case, pick) if case.wish is not None else ()
    return (*single, *other) or _cpu(case, pick)


def nearest_release(case: Case, pick: Pick) -> tuple[WayOut, ...]:
    """Where a wish cannot be: the release closest to it with a build that fits."""
    order = list(dict.fromkeys(one.torch for one in case.builds))
    wanted = _wanted(case, order)
    if wanted is None:
        return ()
    place = {torch: number for number, torch in enumerate(order)}
    here = place.get(wanted, sum(one > wanted for one in order) - 0.5)
    near = sorted(order, key=lambda one: _distance(one, wanted, place[one], here))
    for torch, desperate in ((one, last) for last in (False, True) for one in near):
        of_it = tuple(one for one in case.builds if one.torch == torch)
        build = pick(of_it, case, desperate=desperate)
        if build is not None:
            same = torch.release[:2] == wanted.release[:2]
            words = "Of that minor release" if same else "Nearest to it"
            text = f"{words}, torch {build.torch} {build.variant} fits."
            return (WayOut(kind="release", text=text, build=build),)
    return ()


def _wanted(case: Case, order: list[Version]) -> Version | None:
    """The release that was wished for, or what comes closest to saying it."""
    if case.asked:
        return case.asked[0].torch
    wish = wish_of(case.wish or "")
    if wish is None:
        return None
    return Version(".".join(map(str, wish.release))) if wish.release else order[0]


def _distance(
    torch: Version, wanted: Version, there: float, here: float
) -> tuple[bool, float, float]:
    """How far a release is from the wished one: the same minor first, then the fewest between."""
    return torch.release[:2] != wanted.release[:2], abs(there - here), there


def _jetson(case: Case) -> tuple[WayOut, ...]:
    """NVIDIA's own builds for a JetPack before 7."""
    l4t = case.machine.platform.l4t
    found = case.knowledge.jetson_build(l4t.major) if l4t else None
    if found is None:
        text = "NVIDIA's own wheel or container for this JetPack has code for this board."
    else:
        text = f"NVIDIA's own builds for JetPack {found.jetpack} (Python {found.python}) lie at "
        text += f"{found.index}."
    return (WayOut(kind="jetson", text=text, build=None),)


def _cpu(case: Case, pick: Pick) -> tuple[WayOut, ...]:
    """What is left where nothing else helps: to do without the GPU."""
    demand = case.demand
    if demand.gpus != "some":
        return ()
    builds = tuple(one for one in case.asked if one.cuda is None)
    build = pick(builds, msgspec.structs.replace(case, demand=without_gpus(demand)))
    if build is None:
        return ()
    text = f"Without the GPU, the CPU build of torch {build.torch} fits."
    return (WayOut(kind="cpu", text=text, build=build),)


def _compat(case: Case) -> WayOut | None:
    """NVIDIA's forward-compatibility package beside the present driver."""
    for build in case.asked:
        if build.cuda is None or not compat_lifts(case.machine, case.knowledge, build.cuda):
            continue
        ignoring: frozenset[Block] = frozenset({"driver"})
        if block(build, case.demand, case.knowledge, ignoring=ignoring) is None:
            package = f"cuda-compat-{build.cuda.major}-{build.cuda.minor}"
            text = f"With NVIDIA's package {package} beside driver {case.machine.driver.version}, "
            text += f"torch {build.torch} {build.variant} fits."
            return WayOut(kind="compat", text=text, build=build)
    return None


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
        driver = (
            f"driver {branch}, the last for this GPU"
            if branch == last
            else f"driver {branch} or newer"
        )
        comma = "," if branch == last else ""
        python = f"{comma} and Python {plain[0]} to {plain[-1]}" if also else ""
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


def _conda(case: Case) -> WayOut | None:
    """conda-forge's own build, where the tables prove that it has code for all these GPUs."""
    from cudadoctor.solver.fit import forge_cuda

    torch = case.knowledge.newest_on_conda("conda-forge")
    wish = wish_of(case.wish) if case.wish is not None else None
    if case.demand.gpus != "some" or (wish is not None and not wish.allows(torch, None)):
        return None
    cuda = forge_cuda(torch, case.demand, case.knowledge)
    if cuda is None:
        return None
    text = f"conda-forge's torch {torch} with CUDA {cuda} has code for all GPUs here."
    old = [str(one) for one in case.demand.capabilities if one < _OLDEST_FOR_CUDNN]
    if old:
        text += f" Whether its cuDNN still serves capability {', '.join(old)} is not in the tables."
    return WayOut(kind="conda", text=text, build=None, cuda=cuda)


def _some_gpus(case: Case, pick: Pick) -> tuple[WayOut, ...]:
    """A mixed machine without some of its GPUs: the fewest left out, the newest build first."""
    demand, all_of = case.demand, case.demand.capabilities
    for many in range(1, len(all_of)):
        found = []
        for hidden in combinations(all_of, many):
            rest = tuple(one for one in all_of if one not in hidden)
            alone = msgspec.structs.replace(demand, capabilities=rest)
            build = pick(case.asked, msgspec.structs.replace(case, demand=alone))
            if build is not None:
                found.append(_without(case, build, hidden, rest))
        if found:
            return tuple(sorted(found, key=_age, reverse=True))
    return ()


def _age(way: WayOut) -> tuple[Version, Version]:
    torch = way.build.torch if way.build else Version("0")
    return torch, way.capability or Version("0")


def _without(
    case: Case, build: TorchBuild, hidden: tuple[Version, ...], rest: tuple[Version, ...]
) -> WayOut:
    gpus = seen_gpus(case.machine, case.knowledge)
    which = named(of_capability(gpus, hidden)) or f"capability {', '.join(map(str, hidden))}"
    text = f"Without {which}, torch {build.torch} {build.variant} fits."
    alone = rest[0] if len(rest) == 1 else None
    return WayOut(kind="one-gpu", text=text, build=build, capability=alone, hidden=hidden)

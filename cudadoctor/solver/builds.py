"""Which build of torch fits a machine.

A build fits where it is known to be published, exists for the Python and the platform, needs no
newer glibc, has code for every GPU that counts and runs with the driver. Of these the one is taken
that changes least: it keeps what can be kept of the installed packages, then the installed release,
its minor release, the next ones. Where no torch is installed, the newest is taken. Within a release
it is the installed variant, else the default of the platform, else the newest CUDA that the driver
brings itself, else the oldest.

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

import re
from collections.abc import Callable
from itertools import chain, combinations, product
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import Rejection
from cudadoctor.model.machine import Machine, OptInt, OptStr, OptVersion, Strings, Versions
from cudadoctor.model.requirements import admits
from cudadoctor.model.rule import remembered
from cudadoctor.solver.companions import JUDGED, GivenUp, asked_by, given_up
from cudadoctor.solver.demand import (
    NO_GPUS,
    Demand,
    allowed,
    constraint_of,
    demand_of,
    named,
    of_capability,
    platform_blocker,
    platform_of,
    seen_gpus,
)
from cudadoctor.solver.fit import (
    RESORTS,
    Block,
    Case,
    block,
    compat_lifts,
    conda_forge_cuda,
    is_installed,
    newest,
    on_ptx,
    rank,
)
from cudadoctor.solver.reasons import every_rejection, is_replaced, rejections, why_none, why_this
from cudadoctor.solver.supposed import ASK_GPU, ASK_SYSTEM, supposed, unlisted

# --- where none fits: the nearest change that would let one fit ---------------------------------

Kind = Literal[
    "driver", "python", "glibc", "one-gpu", "compat", "conda", "release", "platform", "jetson",
    "cpu",
]  # fmt: skip

_OLDEST_FOR_CUDNN = Version("7.5")
"""cuDNN 9.11 and later refuse older GPUs; conda chooses a cuDNN of its own."""


class Alternative(Struct, frozen=True, kw_only=True):
    """A change that would let a build fit.

    kind: "one-gpu" is to leave some GPUs out (hidden: their capabilities), "compat" NVIDIA's
    forward-compatibility package beside the present driver, "conda" conda-forge's build (cuda: its
    CUDA), "release" another release than the one asked for, "platform" another system or
    interpreter, "jetson" NVIDIA's own build, "cpu" to do without the GPU. branch: the driver branch
    to go to. pythons: versions with which it would fit. build: what would fit then, None for a
    build that is not in the tables.
    """

    kind: Kind
    text: str
    build: TorchBuild | None
    branch: OptInt = None
    pythons: Strings = ()
    hidden: Versions = ()
    cuda: OptVersion = None


def alternatives(case: Case) -> tuple[Alternative, ...]:
    """The single changes that help, the least first; else two of them together, or what is left."""
    if case.tegra is not None:
        return _jetson(case)
    python = _python(case)
    found = (
        python,
        _conda(case) if python is None else None,
        _driver(case),
        _compat(case),
        _glibc(case),
        *_some_gpus(case),
    )
    if not any(found):
        found = (_driver(case, "python"),)
    if not any(found) and not any(build.published for build in case.asked):
        # Of a variant that nobody published, another one of the same release.
        asked = {build.torch for build in case.asked}
        same = tuple(build for build in case.builds if build.torch in asked)
        found = (_driver(replace(case, asked=same)),)
    other = nearest_release(case) if case.keep is not None else ()
    return (*filter(None, found), *other) or _cpu(case)


def fitting(kind: Kind, change: str, build: TorchBuild, **more: Any) -> Alternative:
    """The alternative that a change lets that build fit."""
    text = f"{change}, you can use torch {build.torch} {build.variant}."
    return Alternative(kind=kind, text=text, build=build, **more)


def nearest_release(case: Case) -> tuple[Alternative, ...]:
    """Where the release that was asked for cannot be: the closest to it with a build that fits."""
    order = list(dict.fromkeys(build.torch for build in case.builds))
    constraint = constraint_of(case.keep or "")
    if case.asked:
        wanted = case.asked[0].torch
    elif constraint is None:
        return ()
    else:
        release = ".".join(map(str, constraint.release))
        wanted = Version(release) if release else order[0]
    newer = sum(torch > wanted for torch in order)
    here = newer if wanted in order else newer - 0.5

    def distance(torch: Version) -> tuple[bool, float, float]:
        """The same minor first, then the fewest releases between."""
        there = order.index(torch)
        return torch.release[:2] != wanted.release[:2], abs(there - here), there

    for desperate, torch in product((False, True), sorted(order, key=distance)):
        of_it = tuple(build for build in case.builds if build.torch == torch)
        if build := newest(of_it, case, desperate=desperate):
            same = torch.release[:2] == wanted.release[:2]
            change = "In that minor release series" if same else "As the closest alternative"
            return (fitting("release", change, build),)
    return ()


def _jetson(case: Case) -> tuple[Alternative, ...]:
    """NVIDIA's own builds for a JetPack before 7."""
    l4t = case.machine.platform.l4t
    found = case.knowledge.jetson_build(l4t.major) if l4t else None
    text = "NVIDIA's own wheel or container for this JetPack supports this board."
    if found is not None:
        text = (
            f"NVIDIA's own builds for JetPack {found.jetpack} (Python {found.python}) are at "
            f"{found.index}."
        )
    return (Alternative(kind="jetson", text=text, build=None),)


def _cpu(case: Case) -> tuple[Alternative, ...]:
    """What is left where nothing else helps: to do without the GPU."""
    builds = tuple(build for build in case.asked if build.cuda is None)
    build = newest(builds, replace(case, **NO_GPUS))
    if build is None or case.gpus != "some":
        return ()
    text = f"Without the GPU, you can use the CPU build of torch {build.torch}."
    if case.machine.torch.version and case.machine.torch.installed is not False:
        text = f"The installed torch {case.machine.torch.version.public} also runs on the CPU."
    return (Alternative(kind="cpu", text=text, build=build),)


def _first(case: Case, *ignoring: Block) -> TorchBuild | None:
    """The newest build that would fit without these reasons against it."""
    return next((build for build in case.asked if not block(build, case, ignoring=ignoring)), None)


def _compat(case: Case) -> Alternative | None:
    """NVIDIA's forward-compatibility package beside the present driver."""
    machine, kb = case.machine, case.knowledge
    lifts = (build for build in case.asked if build.cuda and compat_lifts(machine, kb, build.cuda))
    build = _first(replace(case, asked=tuple(lifts)), "driver")
    if build is None or build.cuda is None:
        return None
    package = f"cuda-compat-{build.cuda.major}-{build.cuda.minor}"
    change = f"With NVIDIA's {package} package and driver {machine.driver.version}"
    return fitting("compat", change, build)


def _python(case: Case) -> Alternative | None:
    build = _first(case, "python")
    if build is None or case.python is None:
        return None
    return fitting("python", f"With {_pythons(build)}", build, pythons=build.pythons)


def _pythons(build: TorchBuild) -> str:
    plain = [python for python in build.pythons if not python.endswith("t")]
    return f"Python {plain[0]} to {plain[-1]}"


def _driver(case: Case, *also: Block) -> Alternative | None:
    """A newer driver that still supports the GPUs, and the newest build that it would run."""
    kb = case.knowledge
    known = (kb.architecture(capability) for capability in case.capabilities)
    last = min((era.last_branch for era in known if era and era.last_branch), default=None)
    for build in case.asked if case.gpus == "some" else ():
        cuda = build.cuda
        if cuda is None or block(build, case, ignoring=("driver", *also)) is not None:
            continue
        floor = kb.driver_floor(cuda, "Linux")
        if floor is None or (last is not None and floor.driver.branch > last):
            continue
        # A current branch, or the last that supports the GPUs.
        branch = kb.branch_for(Version(f"{cuda.major}.0")) or floor.driver.branch
        change = f"With driver {branch} or newer"
        if last is not None and last <= branch:
            branch = last
            change = f"With driver {branch}, the last one that supports this GPU"
        if also:
            change += f"{',' if branch == last else ''} and {_pythons(build)}"
        return fitting(
            "driver", change, build, branch=branch, pythons=build.pythons if also else ()
        )
    return None


def _glibc(case: Case) -> Alternative | None:
    build = _first(case, "glibc") if case.glibc else None
    if build is None:
        return None
    text = (
        f"On a system (or in a container) with glibc {build.glibc}, you can use torch "
        f"{build.torch}."
    )
    return Alternative(kind="glibc", text=text, build=build)


def _conda(case: Case) -> Alternative | None:
    """conda-forge's own build, where the tables prove that it has code for all these GPUs."""
    torch = case.knowledge.newest_on_conda("conda-forge")
    constraint = constraint_of(case.keep or "")
    refused = constraint and not constraint.allows(torch, None)
    if case.gpus != "some" or case.aside or refused:
        return None
    cuda = conda_forge_cuda(torch, case)
    if cuda is None:
        return None
    text = f"conda-forge's torch {torch} with CUDA {cuda} supports all GPUs in this machine."
    if old := ", ".join(str(gpu) for gpu in case.capabilities if gpu < _OLDEST_FOR_CUDNN):
        text += f" That build's cuDNN may no longer support compute capability {old}."
    return Alternative(kind="conda", text=text, build=None, cuda=cuda)


def _some_gpus(case: Case) -> list[Alternative]:
    """A mixed machine without some of its GPUs: the fewest left out, the newest build first."""
    gpus, every = seen_gpus(case.machine, case.knowledge), case.capabilities
    for many in range(1, len(every)):
        found = []
        for hidden in combinations(every, many):
            rest = tuple(capability for capability in every if capability not in hidden)
            if build := newest(case.asked, replace(case, capabilities=rest)):
                without = named(of_capability(gpus, hidden))
                without = without or f"capability {', '.join(map(str, hidden))}"
                change = fitting("one-gpu", f"Without {without}", build, hidden=hidden)
                alone = rest[0] if len(rest) == 1 else Version("0")
                found.append(((build.torch, alone), change))
        if found:
            return [change for _, change in sorted(found, key=lambda entry: entry[0], reverse=True)]
    return []


# --- the choice ---------------------------------------------------------------------------------

_NOBODY = (
    "No torch build is published for this system: build torch from source, or use a 64-bit "
    "system with an x86-64 or ARM processor."
)


_LTS = r"(?:==)?1\.8\.2(?:\+|$)"
_OF_LTS = (
    "torch 1.8.2 is a long-term support release in an index of its own: run `python -m pip install "
    "torch==1.8.2 torchvision==0.9.2 torchaudio==0.8.2 --extra-index-url "
    "https://download.pytorch.org/whl/lts/1.8/cu111` (or cu102, or cpu). cudadoctor only has data "
    "about torch 1.8.1, which it continues."
)
"""The tables hold what PyPI and torch's usual index have."""


class Choice(Struct, frozen=True, kw_only=True):
    """The build that fits, or why none does.

    why: short sentences. why_not: every other variant of the same release and of newer ones (where
    none fits: every variant that was asked for). alternatives: where none fits, what would let one
    fit, the least change first. newest: where the installed release cannot stay, the newest build
    that fits, if it is another one.
    """

    build: TorchBuild | None
    why: Strings
    why_not: tuple[Rejection, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    asks: Strings = ()
    newest: TorchBuild | None = None


def best_build(machine: Machine, knowledge: Knowledge, *, keep: OptStr = None) -> Choice:
    """The build of torch that fits this machine best, with the reasons.

    keep: a constraint such as "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8"; the newest release
    that it allows is taken. Without one the build is taken that changes least.
    """
    return _unasked(machine, knowledge) if keep is None else _chosen(machine, knowledge, keep)


@remembered
def _unasked(machine: Machine, knowledge: Knowledge) -> Choice:
    return _chosen(machine, knowledge, None)


def _chosen(machine: Machine, knowledge: Knowledge, keep: OptStr) -> Choice:
    guess = supposed(machine, knowledge)
    choices = [_best(possible, knowledge, keep) for possible in guess.machines]
    builds = [choice.build for choice in choices]
    if len({build and (build.torch, build.variant) for build in builds}) > 1:
        return Choice(
            build=None, why=(guess.differ or unlisted(machine, knowledge),), asks=guess.asks
        )
    # An index that is named serves wherever the default one does.
    choice = min(choices, key=lambda choice: bool(choice.build and choice.build.default))
    first, *more = choice.why
    return replace(choice, why=(first, *guess.said, *more)) if choice.build else choice


def _best(machine: Machine, knowledge: Knowledge, keep: OptStr) -> Choice:
    """The same for a machine of which all is known that can be."""
    blocker = platform_blocker(machine)
    if blocker is not None:
        return _blocked(machine, knowledge, keep, _sentence(blocker))
    demand = demand_of(machine, knowledge)
    if demand.gpus == "unknown":
        if demand.tegra:
            return Choice(build=None, why=(_sentence(demand.tegra),))
        return Choice(build=None, why=(unlisted(machine, knowledge),), asks=ASK_GPU)
    builds = _published(machine, knowledge, demand)
    if not builds:
        text = f"There is no known torch build for {demand.platform}."
        near = (
            ("There are torch builds for Linux on this CPU architecture.",)
            if "arm64" in text
            else ()
        )
        return Choice(build=None, why=(text, *near))
    case = Case(**asdict(demand), builds=builds, asked=builds, keep=keep)
    if keep is not None:
        return _constrained(case, keep)
    return _answer(*_unconstrained(case))


class Wanted(NamedTuple):
    """A build, and the installed packages that work beside it but not beside the installed one."""

    build: TorchBuild
    packages: Strings


def wanted_torch(machine: Machine, knowledge: Knowledge) -> Wanted | None:
    """The nearest build that all those packages require which refuse the installed torch.

    None where nothing refuses it, or no build that fits the machine serves all of them. A compiled
    package counts only where its own metadata names a torch.
    """
    (machine, *_) = supposed(machine, knowledge).machines
    installed = machine.torch.version
    if installed is None or platform_of(machine) is None or platform_blocker(machine):
        return None
    demand = demand_of(machine, knowledge)
    builds = _published(machine, knowledge, demand)
    same = [build for build in builds if build.torch.release == installed.release]
    untold = (build for build in same if build.default and machine.torch.cuda is None)
    here = next((build for build in same if is_installed(build, machine)), next(untold, None))
    refusing = here and _refusing(here, machine, knowledge)
    if not refusing:
        return None
    case = Case(**asdict(demand), builds=builds, asked=builds, keep=None)
    distance = _distance(installed, case)
    fits = (build for build in builds if block(build, case) is None)
    near = sorted(fits, key=lambda build: (*distance(build), *rank(build, case)))
    serving = (build for build in near if not _refusing(build, machine, knowledge))
    build = next(serving, None)
    return Wanted(build, refusing) if build else None


def _refusing(build: TorchBuild, machine: Machine, knowledge: Knowledge) -> Strings:
    return tuple(
        name
        for name in chain.from_iterable(given_up(build, machine, knowledge))
        if name not in JUDGED
        or any(
            not admits(asked.specifier, build.torch)
            for package in filter(None, [machine.package(name)])
            for asked in asked_by(package, ("torch",), machine)
        )
    )


def _published(machine: Machine, knowledge: Knowledge, demand: Demand) -> tuple[TorchBuild, ...]:
    return tuple(_as_read(build, machine) for build in knowledge.builds_on(demand.platform))


def _unconstrained(case: Case) -> tuple[Case, TorchBuild | None]:
    """The build that changes least, or the newest where no torch is installed."""
    torch = case.machine.torch
    if torch.version is None or torch.installed is False:
        order = {build.torch: place for place, build in enumerate(case.builds)}
        return _keeping_most(case, lambda build: (order[build.torch],))
    if case.gpus == "none":
        same = tuple(build for build in case.builds if build.torch.release == torch.version.release)
        if build := newest(same, case):
            return case, build
    return _closest(torch.version, case)


def _closest(installed: Version, case: Case) -> tuple[Case, TorchBuild | None]:
    """Of the builds that keep most of what is installed, the one of the nearest release."""
    return _keeping_most(case, _distance(installed, case))


def _distance(installed: Version, case: Case) -> Callable[[TorchBuild], tuple[int, ...]]:
    """How far a build is: the same release, the same minor release, the next above, the next below.

    Of one minor release its newest patch.
    """
    order = sorted({build.torch.release[:2] for build in case.builds} | {installed.release[:2]})
    here = order.index(installed.release[:2])

    def distance(build: TorchBuild) -> tuple[int, ...]:
        steps = order.index(build.torch.release[:2]) - here
        other = build.torch.release != installed.release
        # Another release is taken for machine code, never for PTX alone while there is a choice.
        slow = other and bool(on_ptx(build, case))
        return other, slow, steps != 0, steps < 0, abs(steps), -build.torch.micro

    return distance


def _keeping_most(
    case: Case, distance: Callable[[TorchBuild], tuple[int, ...]]
) -> tuple[Case, TorchBuild | None]:
    """The build that keeps most of what is installed, of those the least distant one.

    The case then tells what a less distant build would have cost.
    """
    for trusting, ignoring in RESORTS:
        fits = [
            build
            for build in case.builds
            if not block(build, case, trusting=trusting, ignoring=ignoring)
        ]
        fits.sort(key=lambda build: (*distance(build), *rank(build, case)))
        costs = {}
        for build in fits:
            # What does not work with the installed build did not work before.
            here = is_installed(build, case.machine)
            costs[build] = GivenUp() if here else given_up(build, case.machine, case.knowledge)
            if not any(costs[build]):
                break
        if fits:
            best = min(costs, key=lambda build: tuple(map(len, costs[build])))
            kept = {*sum(costs[fits[0]], ())}.difference(*costs[best])
            return replace(case, nearer=fits[0], costs=tuple(sorted(kept))), best
    return case, None


def _constrained(case: Case, keep: str) -> Choice:
    """The newest build that the constraint allows."""
    case = replace(case, asked=allowed(keep, case.builds), free=_unconstrained(case)[1])
    if not case.asked and re.match(_LTS, keep):
        return Choice(build=None, why=(_OF_LTS,), alternatives=nearest_release(case))
    if not case.asked:
        text = (
            f"There is no known torch release for {case.platform} that matches {keep}. The "
            f"newest release that cudadoctor knows of is {case.builds[0].torch}."
        )
        return Choice(build=None, why=(text,), alternatives=nearest_release(case))
    if all(build.cuda is None for build in case.asked):
        # Who names the CPU build wants that one: GPUs, driver and JetPack do not count.
        case = replace(case, **NO_GPUS, whole=case)
    return _answer(case, newest(case.asked, case))


def _answer(case: Case, build: TorchBuild | None) -> Choice:
    """The choice with its reasons: why not each other variant, or what would help."""
    if build is None:
        return Choice(
            build=None,
            why=tuple(why_none(case)),
            why_not=every_rejection(case),
            alternatives=alternatives(case),
        )
    last = newest(case.asked, case, desperate=False)
    return Choice(
        build=build,
        why=tuple(why_this(build, case)),
        why_not=rejections(build, case),
        newest=last if last and last.torch > build.torch and is_replaced(build, case) else None,
    )


def _as_read(build: TorchBuild, machine: Machine) -> TorchBuild:
    """The build with the code that was read from it, where the tables are not sure of it."""
    if not build.archs_uncertain or not machine.torch.archs or not is_installed(build, machine):
        return build
    return replace(build, archs=machine.torch.archs, archs_uncertain=False)


# --- where no wheel can be installed at all: the nearest environment where one can ----------------


def _blocked(machine: Machine, knowledge: Knowledge, keep: OptStr, why: str) -> Choice:
    """No wheel can be installed at all: the nearest change of the environment that cures it."""
    here = machine.platform
    changed, change = _unblocked(machine, knowledge)
    if not change:
        known = here.system is not None and here.machine is not None
        more = (_NOBODY,) if known and platform_of(machine) is None else ()
        return Choice(build=None, why=(why, *more), asks=() if known else ASK_SYSTEM)
    beyond = best_build(changed, knowledge, keep=keep)
    if beyond.build is None:
        return Choice(build=None, why=(why, *beyond.why), alternatives=beyond.alternatives)
    return Choice(build=None, why=(why,), alternatives=(fitting("platform", change, beyond.build),))


def _unblocked(m: Machine, kb: Knowledge) -> tuple[Machine, str]:
    """The same hardware without the blocker, and the change in words; "" where none is known."""
    words = []
    if m.platform.libc == "musl":
        m = replace(m, platform=replace(m.platform, libc="glibc", glibc=None))
        words.append("in a container with glibc, such as python:3.12-slim")
    platform = platform_of(m)
    if platform is None:
        return m, ""
    python = m.python
    if python.bits == 32:
        words.append("with a 64-bit Python")
        python = replace(python, bits=64)
    if python.implementation not in ("CPython", "cpython", None):
        words.append("with CPython")
        python = replace(python, implementation="CPython")
    builds, version = kb.builds_on(platform), python.version
    known = {name for build in builds for name in build.pythons if not name.endswith("t")}
    present = f"{version.major}.{version.minor}" if version else None
    if words and known and present not in known:
        # That Python is yet to be installed: any version will do.
        newest_python = max(known, key=Version)
        words[-1] += "" if words[-1].endswith("slim") else f" ({newest_python})"
        python = replace(python, version=Version(newest_python), free_threaded=False)
    return replace(m, python=python), _sentence(" and ".join(words), "")


def _sentence(text: str, end: str = ".") -> str:
    return f"{text[:1].upper()}{text[1:]}{end}"

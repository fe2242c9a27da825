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

import msgspec
from msgspec.structs import asdict, replace
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import Rejection
from cudadoctor.model.machine import Machine, Strings, Text
from cudadoctor.solver.alternatives import Alternative, alternatives, fitting, nearest_release
from cudadoctor.solver.constraint import allowed
from cudadoctor.solver.demand import NO_GPUS, demand_of, platform_blocker, platform_of
from cudadoctor.solver.fit import Case, is_installed, newest
from cudadoctor.solver.reasons import every_rejection, rejections, why_none, why_this

_NOBODY = (
    "Nobody publishes one: torch would have to be built from source, and the nearest way is a "
    "64-bit system on an x86-64 or ARM processor."
)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The build that fits, or why none does.

    why: short sentences. why_not: every other variant of the same release and of newer ones (where
    none fits: every variant that was asked for). alternatives: where none fits, what would let one
    fit, the least change first.
    """

    build: TorchBuild | None
    why: Strings
    why_not: tuple[Rejection, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


def best_build(machine: Machine, knowledge: Knowledge, *, keep: Text = None) -> Choice:
    """The build of torch that fits this machine best, with the reasons.

    keep: a constraint such as "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8". Without one the
    installed release is kept where any build of it fits.
    """
    blocker = platform_blocker(machine)
    if blocker is not None:
        return _blocked(machine, knowledge, keep, _sentence(blocker))
    demand = demand_of(machine, knowledge)
    if demand.gpus == "unknown":
        return Choice(build=None, why=("Which NVIDIA GPU this is, if any, is not known.",))
    builds = tuple(_as_read(build, machine) for build in knowledge.builds_on(demand.platform))
    if not builds:
        text = f"No build of torch is known for {demand.platform}."
        near = ("The nearest way is Linux on the same processor.",) if "arm64" in text else ()
        return Choice(build=None, why=(text, *near))
    case = Case(**asdict(demand), builds=builds, asked=builds, keep=keep)
    if keep is not None:
        return _constrained(case, keep)
    return _answer(case, _unconstrained(case))


def _unconstrained(case: Case) -> TorchBuild | None:
    """The installed release where any build of it fits, else the newest that fits."""
    version = case.machine.torch.version
    found = None
    if version is not None and not version.is_prerelease:
        same = tuple(build for build in case.builds if build.torch.release == version.release)
        # What another release has for certain is better than contested code of the installed one.
        found = newest(same, case, desperate=case.gpus == "none")
    return found or newest(case.builds, case)


def _constrained(case: Case, keep: str) -> Choice:
    """The newest build that the constraint allows."""
    case = replace(case, asked=allowed(keep, case.builds), free=_unconstrained(case))
    if not case.asked:
        text = (
            f"No torch {keep} is known for {case.platform}. "
            f"The newest in the tables is {case.builds[0].torch}."
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
    return Choice(build=build, why=tuple(why_this(build, case)), why_not=rejections(build, case))


def _as_read(build: TorchBuild, machine: Machine) -> TorchBuild:
    """The build with the code that was read from it, where the tables are not sure of it."""
    if not build.archs_uncertain or not machine.torch.archs or not is_installed(build, machine):
        return build
    return replace(build, archs=machine.torch.archs, archs_uncertain=False)


# --- where no wheel can be installed at all: the nearest environment where one can ----------------


def _blocked(machine: Machine, knowledge: Knowledge, keep: Text, why: str) -> Choice:
    """No wheel can be installed at all: the nearest change of the environment that cures it."""
    here = machine.platform
    changed, change = _unblocked(machine, knowledge)
    if not change:
        known = here.system is not None and here.machine is not None
        more = (_NOBODY,) if known and platform_of(machine) is None else ()
        return Choice(build=None, why=(why, *more))
    beyond = best_build(changed, knowledge, keep=keep)
    if beyond.build is None:
        return Choice(build=None, why=(why, *beyond.why), alternatives=beyond.alternatives)
    found = fitting("platform", change, beyond.build)
    return Choice(build=None, why=(why,), alternatives=(found,))


def _unblocked(m: Machine, kb: Knowledge) -> tuple[Machine, str]:
    """The same hardware without the blocker, and the change in words; "" where none is known."""
    words: list[str] = []
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

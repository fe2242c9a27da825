"""What a machine demands of a build of torch: platform, Python, C library, GPUs and driver.

And what a user does, who names a release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import (
    Gpu,
    Json,
    Machine,
    OptBool,
    OptDriverVersion,
    OptStr,
    OptVersion,
    PciGpu,
    Strings,
    Torch,
    Versions,
)
from cudadoctor.model.requirements import admits
from cudadoctor.model.versions import DriverVersion, version_of, whole

_X86, _ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
PLATFORM_OF = {
    (system, machine): platform
    for system, machines, platform in (
        ("Linux", _X86, "linux_x86_64"),
        ("Linux", _ARM, "linux_aarch64"),
        ("Windows", _X86, "windows_amd64"),
        ("Windows", _ARM, "windows_arm64"),
        ("Darwin", _ARM, "macos_arm64"),
        ("Darwin", ("x86_64",), "macos_x86_64"),
    )
    for machine in machines
}

SERVER_BUILDS_FROM_L4T = 38
"""From Linux for Tegra R38 (JetPack 7) on, a Jetson runs the builds that are made for servers."""

SUPPOSED_CUDA = Version("12.0")
"""An unknown driver is supposed to run CUDA 12, as drivers since the end of 2022 do."""

PLANNED_CUDA = Version("13.0")
"""A driver that is yet to be installed will run CUDA 13: all current branches do."""


class Drive(Struct, frozen=True, kw_only=True):
    """The driver that a build must run with.

    version: None not known. cuda: newest CUDA that it runs, None not known; decides: only `cuda`
    counts (WSL and Jetson, whose driver numbers follow other lists, and compat libraries).
    numbers: whose list of driver releases the version is from; WSL has the driver of Windows.
    supposed: a sentence where this is not the driver that was found.
    """

    version: OptDriverVersion = None
    cuda: OptVersion = None
    decides: bool = False
    numbers: Literal["Linux", "Windows"] = "Linux"
    supposed: OptStr = None


class UsableGpu(Struct, frozen=True, kw_only=True):
    """One GPU that programs can use. index: in PCI bus order, from 0. name: without its maker."""

    index: int
    name: str
    capability: OptVersion
    uuid: OptStr = None


class Demand(Struct, frozen=True, kw_only=True):
    """All that a build is held against.

    python, glibc: None not known. gpus: whether there are NVIDIA GPUs. capabilities: of those
    that count, each once, lowest first; aside: of those that no build of this platform serves
    while others are there. tegra: why builds for servers do not run on this Jetson.
    """

    machine: Machine
    knowledge: Knowledge
    platform: str
    python: OptStr
    glibc: OptVersion
    gpus: Literal["some", "none", "unknown"]
    capabilities: Versions = ()
    aside: Versions = ()
    drive: Drive = Drive()
    tegra: OptStr = None


NO_GPUS: Json = {"gpus": "none", "capabilities": (), "aside": (), "tegra": None}
"""What differs in a demand where no GPU is to be used."""


def platform_of(machine: Machine) -> OptStr:
    """The platform as wheels name it, None where there are none for it or it is not known."""
    here = machine.platform
    if here.system is None or here.machine is None or here.libc == "musl":
        return None
    return PLATFORM_OF.get((here.system, here.machine.lower()))


def python_of(machine: Machine) -> OptStr:
    """The examined Python as wheels name it: "3.11", "3.14t" for a free-threaded one."""
    found = machine.python.version
    if found is None:
        return None
    return f"{found.major}.{found.minor}{'t' if machine.python.free_threaded else ''}"


def seen_gpus(machine: Machine, knowledge: Knowledge) -> list[UsableGpu]:
    """The usable GPUs whose capability is known."""
    return [gpu for gpu in usable_gpus(machine, knowledge) if gpu.capability is not None]


def usable_gpus(machine: Machine, knowledge: Knowledge) -> tuple[UsableGpu, ...]:
    """The usable NVIDIA GPUs as the driver describes them, else as the PCI bus shows them.

    Their capability is the reported one, else that of the PCI id, else of a name of one chip.
    """
    if machine.gpus:
        usable = [gpu for gpu in machine.gpus if not gpu.code] or machine.gpus
        seen = [(gpu.index, gpu.name, capability_of(gpu, knowledge), gpu.uuid) for gpu in usable]
    else:
        seen = []
        for index, device in enumerate(nvidia_devices(machine)):
            models = knowledge.gpus_by_pci(device.device_id)
            name = models[0].name if models else None
            seen.append((index, name, capability_by_pci(device.device_id, knowledge), None))
    return tuple(
        UsableGpu(
            index=index,
            name=(name or "GPU").removeprefix("NVIDIA "),
            capability=capability,
            uuid=uuid,
        )
        for index, name, capability, uuid in seen
    )


def capabilities_of(machine: Machine, knowledge: Knowledge) -> Versions | None:
    """The compute capabilities of all usable NVIDIA GPUs, () where there is none.

    None where any of them, or whether there is a GPU, is not known.
    """
    found = [gpu.capability for gpu in usable_gpus(machine, knowledge)]
    known = tuple(capability for capability in found if capability is not None)
    seen = machine.torch.imported.capabilities if machine.torch.imported else None
    if found:
        if len(known) == len(found):
            return known
        return seen if seen and len(seen) == len(found) else None
    if seen:
        return seen
    # A virtual bus does not show every GPU.
    hidden = machine.platform.wsl or machine.platform.jetson or machine.container.dxg
    none = machine.gpus is not None or machine.platform.system == "Darwin"
    return () if none or (machine.pci is not None and not hidden) else None


def nvidia_devices(machine: Machine) -> tuple[PciGpu, ...]:
    """NVIDIA's devices on the PCI bus that this system may use."""
    found = tuple(device for device in machine.pci or () if device.vendor == "nvidia")
    return tuple(device for device in found if device.bound != "vfio-pci") or found


def capability_of(gpu: Gpu, knowledge: Knowledge) -> OptVersion:
    """The compute capability of one GPU: reported, else by PCI id, else by a name of one chip.

    Of a name of several chips the newest, where no build of torch serves any of them.
    """
    by_pci = capability_by_pci(gpu.device_id, knowledge) if gpu.device_id else None
    known = gpu.capability or by_pci
    if known or not gpu.name:
        return known
    chips = {model.capability for model in knowledge.gpus_by_name(gpu.name)}
    if len(chips) > 1 and any(ever_served(chip, knowledge) for chip in chips):
        return None
    return max(chips, default=None)


def ever_served(capability: Version, knowledge: Knowledge) -> bool:
    """Whether a published build of any platform has code for that capability."""
    return any(_ever_served(capability, platform, knowledge) for platform in PLATFORM_OF.values())


def capability_by_pci(device_id: str, knowledge: Knowledge) -> OptVersion:
    """The compute capability behind a PCI id, None where several or none are known."""
    found = {model.capability for model in knowledge.gpus_by_pci(device_id)}
    return found.pop() if len(found) == 1 else None


def of_capability(gpus: Iterable[UsableGpu], capabilities: Iterable[Version]) -> list[UsableGpu]:
    """Those of the GPUs that have one of these capabilities."""
    wanted = set(capabilities)
    return [gpu for gpu in gpus if gpu.capability in wanted]


def named(gpus: Iterable[UsableGpu]) -> str:
    """The GPUs in a sentence: "the Tesla K80 (GPU 0) and the Tesla T4 (GPU 1)"."""
    return listed([f"the {gpu.name} (GPU {gpu.index})" for gpu in gpus])


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: "a, b and c"."""
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def variables_for(staying: Iterable[UsableGpu], *, redacted: bool) -> dict[str, OptStr]:
    """What leaves all other GPUs out: by UUID where each is known, else by its place on the bus."""
    stay = list(staying)
    uuids = [gpu.uuid for gpu in stay if gpu.uuid and not redacted]
    if len(uuids) == len(stay):
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    places = ",".join(str(gpu.index) for gpu in stay)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": places}


# --- the driver -----------------------------------------------------------------------------------


def drive_of(machine: Machine, capabilities: Iterable[Version], knowledge: Knowledge) -> Drive:
    """The driver that a build must run with: the one found, or the one that has to come."""
    driver, native_cuda = machine.driver, knowledge.native_cuda
    numbers: Literal["Linux", "Windows"] = "Linux"
    if machine.platform.system == "Windows" or machine.platform.wsl:
        numbers = "Windows"
    found, drive = driver.version or driver.library, partial(Drive, numbers=numbers)
    # The oldest and the newest branch that support all these GPUs; None no bound.
    eras = [era for gpu in capabilities if (era := knowledge.architecture(gpu))]
    low = max((era.first_branch for era in eras if era.first_branch), default=None)
    high = min((era.last_branch for era in eras if era.last_branch), default=None)
    planned = max(low or 0, knowledge.branch_for(PLANNED_CUDA) or 0)
    branch, why = min(planned, high or planned), ""
    if found is None and driver.cuda is None:
        why = "No driver is installed yet"
        if driver.installed is not False:
            floor = knowledge.driver_floor(_supposed_cuda(machine), numbers)
            version = floor.driver if floor else DriverVersion("525")
            usual = version.branch
            branch = low if low and low > usual else min(high or usual, usual)
            why = "The driver version is unknown"
            if branch == usual:
                text = f"{why}; this recommendation assumes {version} or newer."
                return drive(version=version, cuda=native_cuda(version), supposed=text)
    elif found is not None and not machine.gpus:
        # The branch that these GPUs need in place of the driver found, and why.
        own, last = native_cuda(found), native_cuda(DriverVersion(str(high))) if high else None
        if high and own and last and own > last:
            branch = high
            why = (
                f"Driver {found} no longer supports this GPU; branch {high} is the last one that "
                "does"
            )
        elif low and found.branch < low:
            why = (
                f"Driver {found} does not support this GPU yet; the GPU needs branch {low} or newer"
            )
    if not why:
        return _found(found, machine, knowledge, partial(drive, version=found))
    # A driver of that branch, new enough for the branch's own CUDA level.
    version = DriverVersion(str(branch))
    native = native_cuda(version)
    floor = knowledge.driver_floor(native, numbers) if native else None
    if floor is not None and floor.driver.branch == branch:
        version = max(version, floor.driver)
    text = f"{why}. This recommendation assumes driver {branch}."
    return drive(version=version, cuda=native, supposed=text)


def _supposed_cuda(machine: Machine) -> Version:
    """What an unknown driver runs: what torch was built with, where torch found a GPU with it."""
    seen, built = machine.torch.imported, machine.torch.cuda
    works = seen and (seen.cuda_available or seen.device_count)
    return max(built, SUPPOSED_CUDA) if works and built else SUPPOSED_CUDA


def _found(
    found: OptDriverVersion, machine: Machine, knowledge: Knowledge, step: Callable[..., Drive]
) -> Drive:
    """The driver that is there, by its number, by its CUDA level, or by both."""
    driver = machine.driver
    native = None if found is None else knowledge.native_cuda(found)
    # Under WSL the reported number is that of the Windows driver; a library's is of another list.
    foreign = machine.platform.wsl and driver.cuda and driver.reported is None
    if found is None or machine.platform.jetson or foreign:
        return step(cuda=driver.cuda or native, decides=True)
    if driver.cuda is None:
        return step(cuda=native)
    works = driver.libcuda.code in (None, 0)
    forward = native is not None and driver.cuda.major > native.major
    # A compat library that starts lifts the driver's level; one that does not start lifts nothing.
    return step(cuda=driver.cuda if works or not forward else native, decides=forward and works)


def driver_level(machine: Machine, knowledge: Knowledge) -> OptVersion:
    """The newest CUDA of the driver itself: no newer than its branch brings.

    A compat library, or the table of another machine, may name a newer one.
    """
    version, told = machine.driver.version, machine.driver.cuda
    native = knowledge.native_cuda(version) if version else None
    return min(filter(None, (native, told)), default=None)


def tegra_wall(machine: Machine) -> OptStr:
    """Why builds for servers do not run on this Jetson, None where they do or it is none."""
    l4t, cuda = machine.platform.l4t, machine.driver.cuda
    for_servers = l4t.major >= SERVER_BUILDS_FROM_L4T if l4t else cuda and cuda >= PLANNED_CUDA
    if not machine.platform.jetson or for_servers:
        return None
    release = f"Linux for Tegra R{l4t}" if l4t is not None else "this JetPack release"
    return f"a Jetson with {release} needs a torch build that NVIDIA made for JetPack"


def platform_blocker(machine: Machine) -> OptStr:
    """Why no wheel of torch can be installed there at all, None where one can."""
    here, python = machine.platform, machine.python
    if here.libc == "musl":
        return "torch has no wheels for musl (Alpine): it needs glibc"
    if here.system is None or here.machine is None:
        return "the operating system or the processor is unknown"
    if platform_of(machine) is None:
        return f"torch has no wheels for {here.system} on {here.machine}"
    if python.implementation not in (None, "CPython", "cpython"):
        return f"torch has wheels for CPython, not for {python.implementation}"
    return "torch has no wheels for 32-bit Python" if python.bits == 32 else None


def demand_of(machine: Machine, knowledge: Knowledge) -> Demand:
    """What this machine demands of a build. It must have a platform that wheels exist for."""
    platform, system = platform_of(machine), machine.platform.system
    if platform is None:
        raise ValueError("a machine without a platform demands nothing of a build")
    found = capabilities_of(machine, knowledge) if system != "Darwin" else ()
    every = sorted(set(found or ()))
    counting = [gpu for gpu in every if _ever_served(gpu, platform, knowledge)] or every
    return Demand(
        machine=machine,
        knowledge=knowledge,
        platform=platform,
        python=python_of(machine),
        glibc=machine.platform.glibc if system == "Linux" else None,
        gpus="unknown" if found is None else "some" if found else "none",
        capabilities=tuple(counting),
        aside=tuple(gpu for gpu in every if gpu not in counting),
        drive=drive_of(machine, counting, knowledge),
        tegra=tegra_wall(machine),
    )


# --- compiled code ----------------------------------------------------------------------------


def serves_all(
    archs: Iterable[str],
    capabilities: Iterable[Version],
    torch: OptVersion,
    cuda: OptVersion,
    knowledge: Knowledge,
) -> bool:
    """Whether compiled code serves every one of these GPUs, as machine code or as PTX.

    Whether the driver can compile the PTX is another question.
    """
    codes = tuple(archs)
    return all(served(codes, capability, torch, cuda, knowledge) for capability in capabilities)


@lru_cache(maxsize=512)
def _ever_served(capability: Version, platform: str, knowledge: Knowledge) -> bool:
    return any(
        serves_all(build.archs, (capability,), build.torch, build.cuda, knowledge)
        for build in knowledge.builds_on(platform)
        if build.archs and build.published
    )


@lru_cache(maxsize=8192)
def served(
    archs: Strings,
    capability: Version,
    torch: OptVersion,
    cuda: OptVersion,
    knowledge: Knowledge,
) -> tuple[Literal["native", "ptx"], str] | None:
    """How compiled code serves a GPU and which code does; machine code before PTX.

    PTX of an older architecture than the build's newest code does not count.
    """
    newest = max((_number(code) for code in archs), default=0)
    found = [
        (how, code)
        for code in sorted(archs, key=_number)
        if (how := knowledge.serves(code, capability, torch, cuda)) == "native"
        or (how == "ptx" and _number(code) == newest)
    ]
    return min(reversed(found), key=itemgetter(0), default=None)


def _number(code: str) -> int:
    """The architecture of a code as a number: 86 for sm_86, 90 for sm_90a."""
    return whole(code.partition("_")[2].rstrip("abcdef")) or 0


# --- a constraint on the release: "2.6", "2.6.0", "2.6.0+cu124" or ">=2.6,<2.8" ----------------

_CLAUSE = re.compile(r"(==|!=|>=|<=|~=|>|<)\s*[0-9]{1,9}(\.[0-9]{1,9}){0,5}(\.\*)?")
_MOST_CLAUSES = 6


class Constraint(Struct, frozen=True, kw_only=True):
    """What releases are allowed. Of `release` and `specifier` one is set.

    release: as far as it was given ("2.6" is any 2.6.x). variant: None any.
    """

    text: str
    release: tuple[int, ...] = ()
    variant: OptStr = None
    specifier: str = ""

    def allows(self, version: Version, variant: OptStr) -> bool:
        """Whether that release, in that variant, is what was asked for. variant None: not known."""
        if self.specifier:
            return admits(self.specifier, Version(version.public))
        # A release of two parts is one with a zero behind them.
        have = version.release + (0,) * len(self.release)
        same = have[: len(self.release)] == self.release and not version.is_prerelease
        return same and self.variant in (None, variant)


def constraint_of(text: str) -> Constraint | None:
    """The constraint that a text is; None where it is none."""
    text = text.strip()
    clauses = [clause.strip() for clause in text.split(",")]
    if len(clauses) <= _MOST_CLAUSES and all(map(_CLAUSE.fullmatch, clauses)):
        return Constraint(text=text, specifier=",".join(clauses))
    version = version_of(text)
    if version is None:
        return None
    if version.is_prerelease:  # The tables hold none; only the very same one would do.
        return Constraint(text=text, specifier=f"=={version.public}")
    return Constraint(text=text, release=version.release, variant=version.local)


def allowed(text: str, builds: tuple[TorchBuild, ...]) -> tuple[TorchBuild, ...]:
    """Those of the builds that the constraint allows."""
    constraint = constraint_of(text)
    return tuple(
        build for build in builds if constraint and constraint.allows(build.torch, build.variant)
    )


def is_met(text: str, torch: Torch) -> OptBool:
    """Whether the installed torch is what was asked for, None where it is not known."""
    constraint = constraint_of(text)
    if torch.installed is False or constraint is None:
        return False
    if torch.version is None:
        return None
    variant = torch.version.local
    if variant is None and torch.build in ("cuda", "cpu"):
        cuda = str(torch.cuda).replace(".", "")
        variant = "cpu" if torch.build == "cpu" else f"cu{cuda}" if torch.cuda else None
    return constraint.allows(torch.version, variant)

"""What a machine demands of a build of torch: platform, Python, C library, GPUs and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from packaging.version import Version

from cudadoctor.model.versions import DriverVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Gpu, Machine, PciGpu

PLATFORM_OF = {
    ("Linux", "x86_64"): "linux_x86_64",
    ("Linux", "amd64"): "linux_x86_64",
    ("Linux", "aarch64"): "linux_aarch64",
    ("Linux", "arm64"): "linux_aarch64",
    ("Windows", "x86_64"): "windows_amd64",
    ("Windows", "amd64"): "windows_amd64",
    ("Windows", "aarch64"): "windows_arm64",
    ("Windows", "arm64"): "windows_arm64",
    ("Darwin", "arm64"): "macos_arm64",
    ("Darwin", "aarch64"): "macos_arm64",
    ("Darwin", "x86_64"): "macos_x86_64",
}

SERVER_BUILDS_FROM_L4T = 38
"""From Linux for Tegra R38 (JetPack 7) on, a Jetson runs the builds that are made for servers."""

SUPPOSED_CUDA = Version("12.0")
"""An unknown driver is supposed to run CUDA 12, as drivers since the end of 2022 do."""

PLANNED_CUDA = Version("13.0")
"""A driver that is yet to be installed will run CUDA 13: all current branches do."""


class Drive(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that a build must run with.

    version: None not known. cuda: newest CUDA that it runs, None not known; decides: only `cuda`
    counts (WSL and Jetson, whose driver numbers follow other lists, and compat libraries).
    numbers: whose list of driver releases the version is from; WSL has the driver of Windows.
    supposed: a sentence where this is not the driver that was found.
    """

    version: DriverVersion | None = None
    cuda: Version | None = None
    decides: bool = False
    numbers: Literal["Linux", "Windows"] = "Linux"
    supposed: str | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """All that a build is held against.

    wall: why no wheel can be installed at all, None where one can. python, glibc: None not known.
    gpus: whether there are NVIDIA GPUs. capabilities: of those that count, each once, lowest
    first; aside: of those that no build of this platform serves while others are there.
    tegra: why builds for servers do not run on this Jetson.
    """

    platform: str
    system: Literal["Linux", "Windows", "Darwin"]
    python: str | None
    glibc: Version | None
    gpus: Literal["some", "none", "unknown"]
    capabilities: tuple[Version, ...] = ()
    aside: tuple[Version, ...] = ()
    drive: Drive = Drive()
    tegra: str | None = None
    wall: str | None = None


def without_gpus(demand: Demand) -> Demand:
    """The same demand where no GPU is to be used."""
    return msgspec.structs.replace(demand, gpus="none", capabilities=(), aside=(), tegra=None)


def platform_of(machine: Machine) -> str | None:
    """The platform as wheels name it, None where there are none for it or it is not known."""
    here = machine.platform
    if here.system is None or here.machine is None or here.libc == "musl":
        return None
    return PLATFORM_OF.get((here.system, here.machine.lower()))


def python_of(machine: Machine) -> str | None:
    """The examined Python as wheels name it: "3.11", "3.14t" for a free-threaded one."""
    found = machine.python.version
    if found is None:
        return None
    return f"{found.major}.{found.minor}{'t' if machine.python.free_threaded else ''}"


def capabilities_of(machine: Machine, knowledge: Knowledge) -> tuple[Version, ...] | None:
    """The compute capabilities of all usable NVIDIA GPUs, () where there is none.

    As the driver reports them, else by PCI id, else by a name that means one chip. None where any
    of them, or whether there is a GPU, is not known.
    """
    if machine.gpus:
        usable = [gpu for gpu in machine.gpus if not gpu.code] or list(machine.gpus)
        return _all_or_none([capability_of(gpu, knowledge) for gpu in usable], machine)
    devices = nvidia_devices(machine)
    if devices:
        return _all_or_none(
            [capability_by_pci(one.device_id, knowledge) for one in devices], machine
        )
    seen = machine.torch.imported.capabilities if machine.torch.imported else None
    if seen:
        return seen
    return () if _known_without_gpu(machine) else None


def nvidia_devices(machine: Machine) -> tuple[PciGpu, ...]:
    """NVIDIA's devices on the PCI bus that this system may use."""
    found = tuple(one for one in machine.pci or () if one.vendor == "nvidia")
    return tuple(one for one in found if one.bound != "vfio-pci") or found


def _all_or_none(found: list[Version | None], machine: Machine) -> tuple[Version, ...] | None:
    known = tuple(one for one in found if one is not None)
    if len(known) == len(found):
        return known
    seen = machine.torch.imported.capabilities if machine.torch.imported else None
    return seen if seen and len(seen) == len(found) else None


def capability_of(gpu: Gpu, knowledge: Knowledge) -> Version | None:
    """The compute capability of one GPU: reported, else by PCI id, else by a name of one chip."""
    if gpu.capability is not None:
        return gpu.capability
    by_pci = capability_by_pci(gpu.device_id, knowledge) if gpu.device_id else None
    if by_pci is not None or gpu.name is None:
        return by_pci
    model = knowledge.gpu_by_name(gpu.name)
    return None if model is None else model.capability


def capability_by_pci(device_id: str, knowledge: Knowledge) -> Version | None:
    """The compute capability behind a PCI id, None where several or none are known."""
    found = {model.capability for model in knowledge.gpus_by_pci(device_id)}
    return found.pop() if len(found) == 1 else None


def _known_without_gpu(machine: Machine) -> bool:
    """Whether it is known that there is no NVIDIA GPU: a virtual bus does not show them all."""
    if machine.gpus is not None:
        return True
    if machine.platform.system == "Darwin":
        return True
    hidden = machine.platform.wsl or machine.platform.jetson or machine.container.dxg
    return machine.pci is not None and not hidden


def drive_of(machine: Machine, capabilities: tuple[Version, ...], knowledge: Knowledge) -> Drive:
    """The driver that a build must run with: the one found, or the one that has to come."""
    driver = machine.driver
    found = driver.version or driver.library
    if found is None and driver.cuda is None:
        return _supposed(machine, capabilities, knowledge)
    if found is not None and not machine.gpus:
        low, high = _branches(capabilities, knowledge)
        unfit = _unfit(found, low, high, knowledge)
        if unfit:
            return _of_branch(*unfit, machine, knowledge)
    return _found(found, machine, knowledge)


def _found(found: DriverVersion | None, machine: Machine, knowledge: Knowledge) -> Drive:
    """The driver that is there, by its number, by its CUDA level, or by both."""
    driver, numbers = machine.driver, _list_of(machine)
    native = None if found is None else knowledge.native_cuda(found)
    # Under WSL the reported number is that of the Windows driver; a library's is of another list.
    foreign = machine.platform.wsl and driver.cuda and driver.reported is None
    if found is None or machine.platform.jetson or foreign:
        return Drive(version=found, cuda=driver.cuda or native, decides=True, numbers=numbers)
    if driver.cuda is None:
        return Drive(version=found, cuda=native, numbers=numbers)
    works = driver.libcuda.code in (None, 0)
    forward = native is not None and driver.cuda.major > native.major
    # A compat library that starts lifts the driver's level; one that does not start lifts nothing.
    level = driver.cuda if works or not forward else native
    return Drive(version=found, cuda=level, decides=forward and works, numbers=numbers)


def _branches(
    capabilities: tuple[Version, ...], knowledge: Knowledge
) -> tuple[int | None, int | None]:
    """The oldest and the newest branch that support all these GPUs; None no bound."""
    known = [knowledge.architecture(one) for one in capabilities]
    first = [one.first_branch for one in known if one and one.first_branch]
    last = [one.last_branch for one in known if one and one.last_branch]
    return max(first, default=None), min(last, default=None)


def _unfit(
    found: DriverVersion, low: int | None, high: int | None, knowledge: Knowledge
) -> tuple[int, str] | None:
    """The branch that these GPUs need in place of the driver found, and why."""
    own = knowledge.native_cuda(found)
    if high is not None and own is not None:
        newest = knowledge.native_cuda(DriverVersion(str(high)))
        if newest is not None and own > newest:
            return high, f"Driver {found} no longer supports this GPU: branch {high} is the last"
    if low is not None and found.branch < low:
        branch = max(low, knowledge.branch_for(PLANNED_CUDA) or low)
        branch = branch if high is None else min(branch, high)
        return branch, f"Driver {found} does not support this GPU yet: it needs branch {low}"
    return None


def _supposed(machine: Machine, capabilities: tuple[Version, ...], knowledge: Knowledge) -> Drive:
    """What to count on where no driver's version is known."""
    low, high = _branches(capabilities, knowledge)
    if machine.driver.installed is False:
        branch = max(low or 0, knowledge.branch_for(PLANNED_CUDA) or 0)
        branch = branch if high is None else min(branch, high)
        return _of_branch(branch, "No driver is installed", machine, knowledge)
    floor = knowledge.driver_floor(_proven_cuda(machine), _list_of(machine))
    wanted = floor.driver if floor else DriverVersion("525")
    if low is not None and low > wanted.branch:
        return _of_branch(low, "The driver's version is not known", machine, knowledge)
    if high is not None and high < wanted.branch:
        return _of_branch(high, "The driver's version is not known", machine, knowledge)
    text = f"The driver's version is not known: this counts on {wanted} or newer."
    native = knowledge.native_cuda(wanted)
    return Drive(version=wanted, cuda=native, numbers=_list_of(machine), supposed=text)


def _proven_cuda(machine: Machine) -> Version:
    """The CUDA version that the unknown driver is known to run, since torch found a GPU with it."""
    seen, built = machine.torch.imported, machine.torch.cuda
    works = seen is not None and bool(seen.cuda_available or seen.device_count)
    return max(built, SUPPOSED_CUDA) if works and built is not None else SUPPOSED_CUDA


def _of_branch(branch: int, why: str, machine: Machine, knowledge: Knowledge) -> Drive:
    """A driver of that branch, new enough for the branch's own CUDA level."""
    version = DriverVersion(str(branch))
    native = knowledge.native_cuda(version)
    floor = knowledge.driver_floor(native, _list_of(machine)) if native else None
    if floor is not None and floor.driver.branch == branch:
        version = max(version, floor.driver)
    text = f"{why}; this counts on a driver of branch {branch}."
    return Drive(version=version, cuda=native, numbers=_list_of(machine), supposed=text)


def _list_of(machine: Machine) -> Literal["Linux", "Windows"]:
    """Which list of driver numbers counts: WSL has the driver of Windows."""
    windows = machine.platform.system == "Windows" or machine.platform.wsl
    return "Windows" if windows else "Linux"


def tegra_wall(machine: Machine) -> str | None:
    """Why builds for servers do not run on this Jetson, None where they do or it is none."""
    if not machine.platform.jetson:
        return None
    l4t, cuda = machine.platform.l4t, machine.driver.cuda
    if l4t is not None and l4t.major >= SERVER_BUILDS_FROM_L4T:
        return None
    if l4t is None and cuda is not None and cuda >= PLANNED_CUDA:
        return None
    release = f"Linux for Tegra R{l4t}" if l4t is not None else "this release of JetPack"
    return f"a Jetson with {release} needs NVIDIA's own build for its JetPack"


def wall_of(machine: Machine) -> str | None:
    """Why no wheel of torch can be installed there at all, None where one can."""
    here, python = machine.platform, machine.python
    if here.libc == "musl":
        return "torch has no wheels for musl (Alpine): it needs glibc"
    if platform_of(machine) is None:
        if here.system is None or here.machine is None:
            return "the operating system or the processor is not known"
        return f"torch has no wheels for {here.system} on {here.machine}"
    if python.implementation not in (None, "CPython", "cpython"):
        return f"torch has wheels for CPython, not for {python.implementation}"
    if python.bits == 32:
        return "torch has no wheels for a 32-bit Python"
    return None


class SeenGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One usable GPU. index: in PCI bus order, from 0. name: without its maker."""

    index: int
    name: str
    capability: Version
    uuid: str | None = None


def seen_gpus(m: Machine, kb: Knowledge) -> tuple[SeenGpu, ...]:
    """The usable GPUs whose capability is known, as the driver tells of them or else the bus."""
    if m.gpus:
        usable = [gpu for gpu in m.gpus if not gpu.code] or list(m.gpus)
        asked = [(gpu.index, gpu.name, capability_of(gpu, kb), gpu.uuid) for gpu in usable]
    else:
        asked = [
            (index, _model(one.device_id, kb), capability_by_pci(one.device_id, kb), None)
            for index, one in enumerate(nvidia_devices(m))
        ]
    return tuple(
        SeenGpu(index=index, name=_short(name), capability=capability, uuid=uuid)
        for index, name, capability, uuid in asked
        if capability is not None
    )


def _model(device_id: str, kb: Knowledge) -> str | None:
    found = kb.gpus_by_pci(device_id)
    return found[0].name if found else None


def _short(name: str | None) -> str:
    """The name as people say it: "GeForce GTX 1080"."""
    return (name or "GPU").removeprefix("NVIDIA ")


def of_capability(gpus: Iterable[SeenGpu], capabilities: Collection[Version]) -> list[SeenGpu]:
    """Those of the GPUs that have one of these capabilities."""
    return [one for one in gpus if one.capability in capabilities]


def named(gpus: Iterable[SeenGpu]) -> str:
    """The GPUs in a sentence: "the Tesla K80 (GPU 0) and the Tesla T4 (GPU 1)"."""
    words = [f"the {one.name} (GPU {one.index})" for one in gpus]
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def variables_for(staying: Iterable[SeenGpu], *, redacted: bool | None) -> dict[str, str | None]:
    """What leaves all other GPUs out: by UUID where each is known, else by its place on the bus."""
    stay = list(staying)
    uuids = [one.uuid for one in stay if one.uuid and not redacted]
    if len(uuids) == len(stay):
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    places = ",".join(str(one.index) for one in stay)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": places}

"""What is supposed where a machine does not name its system, processor, GPU's chip or torch build.

Each of these has few possibilities. Where all of them lead to one build, or to one finding, that is
given; where they differ, none is, and the one command is named that decides.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.model.machine import Gpu, Machine, OptStr, OptVersion, Strings
from cudadoctor.model.rule import remembered
from cudadoctor.solver.demand import (
    PLATFORM_OF,
    SUPPOSED_CUDA,
    capability_of,
    listed,
    nvidia_devices,
    platform_of,
    python_of,
)

ASK_GPU = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv")
ASK_SYSTEM = ("python", "-m", "platform")

_WITH_ARM = re.compile(r"(?:NVIDIA )?(?:G[HB]\d|Thor|Orin|Xavier|Tegra|Jetson|DRIVE)")
"""GPUs that share a package or a board with an ARM processor."""


class Supposed(Struct, frozen=True, kw_only=True):
    """What a machine may be. said: what that assumes; differ: what is said if the builds differ.

    asks: the command that tells.
    """

    machines: tuple[Machine, ...]
    said: Strings = ()
    differ: OptStr = None
    asks: Strings = ()


@remembered
def supposed(machine: Machine, knowledge: Knowledge) -> Supposed:
    """The machine with what it does not tell, once for each possibility; itself if all is known."""
    here, gpus = machine.platform, machine.gpus or ()
    systems, said, differ, asks = [here], [], None, ASK_GPU
    if here.system is None and here.machine is None and gpus:
        systems = [replace(here, system=name, machine="x86_64") for name in ("Linux", "Windows")]
        said = ["The operating system is unknown; the build is the same for Linux and Windows."]
        differ = "The operating system is unknown, and Linux and Windows need different builds."
        asks = ASK_SYSTEM
    elif here.machine is None and here.system in ("Linux", "Windows"):
        boards = (knowledge.gpu_by_name(gpu.name or "") for gpu in gpus)
        arm = here.jetson or any(board and _WITH_ARM.match(board.name) for board in boards)
        processor = "ARM" if arm and here.system == "Linux" else "x86-64"
        systems = [replace(here, machine="aarch64" if processor == "ARM" else "x86_64")]
        said = [f"The processor is unknown; this recommendation assumes {processor}."]
    machines = [replace(machine, platform=platform) for platform in systems]
    for number, gpu in enumerate(gpus):
        models = () if capability_of(gpu, knowledge) else knowledge.gpus_by_name(gpu.name or "")
        if not models:
            continue
        chips = list({model.capability: model for model in models}.values())
        if knowledge.is_usual(models[0]):
            chips = chips[:1]
            said.append(
                f"{models[0].name} is the name of several chips; this recommendation assumes the "
                f"most common one (compute capability {models[0].capability})."
            )
        else:
            differ, asks = _several(gpu.name or "", chips), ASK_GPU
        machines = [_with_chip(known, number, chip) for known in machines for chip in chips]
        if len(machines) > _MOST:
            return Supposed(machines=(machine,), asks=asks)
    return Supposed(machines=tuple(machines), said=tuple(said), differ=differ, asks=asks)


@remembered
def as_listed(machine: Machine, knowledge: Knowledge) -> Machine:
    """A report's machine with what its list of NVIDIA's wheels shows where it does not say so.

    torch requires such wheels on Linux only; where most of those listed are the ones that PyPI's
    build of that release pins, that build is installed.
    """
    wheels = [found for found in machine.packages or () if found.name.startswith("nvidia-")]
    here, torch = machine.platform, machine.torch
    if machine.look != "report" or not wheels or here.system not in (None, "Linux"):
        return machine
    linux = replace(machine, platform=replace(here, system="Linux"))
    (linux, *_) = supposed(linux, knowledge).machines
    platform = PLATFORM_OF.get(("Linux", linux.platform.machine or ""))
    listed_as = replace(machine, platform=linux.platform)
    if torch.build is not None or torch.version is None or torch.version.local or not platform:
        return listed_as
    pins = knowledge.default_pins(torch.version, platform) or ()
    pinned = {
        name: pin for name, _, pin in (line.partition(";")[0].partition("==") for line in pins)
    }
    same = [pinned.get(wheel.name) == wheel.version for wheel in wheels if wheel.name in pinned]
    builds = (build for build in knowledge.builds_on(platform) if build.torch == torch.version)
    usual = next((build for build in builds if build.default), None)
    if usual is None or usual.cuda is None or sum(same) < _FEW or 2 * sum(same) < len(same):
        return listed_as
    return replace(listed_as, torch=replace(torch, build="cuda", cuda=usual.cuda))


def torches(machine: Machine, knowledge: Knowledge) -> tuple[Machine, ...]:
    """A report's machine with each published CUDA build that its torch may be, oldest CUDA first.

    () where the tables know that very build, where it may as well be the one for the CPU, and of
    what is no release of PyTorch's own (a nightly, a vendor's or the author's build).
    """
    here, torch = machine.platform, machine.torch
    release, cuda, imported = torch.version, torch.cuda, torch.imported
    if machine.look != "report" or torch.installed is False or here.jetson:
        return ()
    foreign = release and (release.is_prerelease or (release.local and cuda is None))
    if foreign or (release or cuda) is None or torch.build not in (None, "cuda"):
        return ()
    of_it = [
        build
        for platform in _platforms(machine, knowledge)
        for build in knowledge.builds_on(platform)
        if build.published is not False and begins(build.torch, release)
    ]
    own = [build for build in of_it if build.cuda and begins(build.cuda, cuda)]
    plain = here.system and any(build.default and build.cuda is None for build in of_it)
    for_cpu = plain or (imported is not None and imported.cuda_available is False)
    named = cuda and release and Version(release.base_version) in {build.torch for build in own}
    if named or (torch.build is None and for_cpu):
        return ()
    python = python_of(machine)
    own = [build for build in own if python in build.pythons] or own
    return tuple(
        replace(
            machine,
            torch=replace(
                torch,
                version=build.torch,
                build="cuda",
                cuda=build.cuda,
                archs=None if build.archs_uncertain else build.archs,
            ),
        )
        for build in sorted(own, key=lambda build: build.cuda or SUPPOSED_CUDA)
    )


def _platforms(machine: Machine, knowledge: Knowledge) -> list[str]:
    """The platforms that the machine may be of: those of a PC where it names no system."""
    here = machine.platform
    known = {platform_of(possible) for possible in supposed(machine, knowledge).machines}
    if here.system is None and known == {None}:
        known = {PLATFORM_OF.get((name, here.machine or "x86_64")) for name in ("Linux", "Windows")}
    return sorted(filter(None, known))


def begins(whole: Version, said: OptVersion) -> bool:
    """Whether a version is the one that was said, or one of that minor release or major."""
    return said is None or whole.release[: len(said.release)] == said.release


_FEW = 2
"""So many wheels as pinned show the build; one may be another program's."""
_MOST = 8
"""Of more possibilities none is tried."""


def _several(name: str, chips: list[GpuModel]) -> str:
    numbers = listed([str(chip.capability) for chip in sorted(chips, key=lambda c: c.capability)])
    return (
        f"{name.removeprefix('NVIDIA ')} is the name of several chips (compute capability "
        f"{numbers}), which need different builds."
    )


def _with_chip(machine: Machine, number: int, chip: GpuModel) -> Machine:
    gpus: list[Gpu] = list(machine.gpus or ())
    gpus[number] = replace(gpus[number], capability=chip.capability)
    return replace(machine, gpus=tuple(gpus))


def unlisted(machine: Machine, knowledge: Knowledge) -> str:
    """Why nothing can be said of the GPUs, as a sentence."""
    for gpu in machine.gpus or ():
        if gpu.name and capability_of(gpu, knowledge) is None:
            name = gpu.name.removeprefix("NVIDIA ")
            return f"The compute capability of the {name} is unknown."
    for device in () if machine.gpus else nvidia_devices(machine):
        if not knowledge.gpus_by_pci(device.device_id):
            return (
                f"The NVIDIA GPU at {device.address} is an unknown model (device "
                f"{device.device_id})."
            )
    return "cudadoctor could not determine which NVIDIA GPU this machine has, if any."

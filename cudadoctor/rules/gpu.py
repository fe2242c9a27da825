"""Is there an NVIDIA GPU, does this driver support it, and is it set up for computing?"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.model.findings import (
    ERROR,
    INFO,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Machine, ModuleFile, OptDriverVersion, OptInt, OptStr, PciGpu
from cudadoctor.model.rule import Answer, Found, NotKnown, need, rule
from cudadoctor.plan.remedies import (
    by_hand,
    grant_gpu,
    guest_driver,
    install_driver,
    kernel_option,
    larger_window,
    open_modules,
    proprietary_modules,
    switch_graphics,
    upgrade_driver,
)
from cudadoctor.plan.remedies.process import indexes_of, keeper_of, notebook_of
from cudadoctor.rules.evidence.signs import (
    bare,
    bus_key,
    cpu_on_purpose,
    gpu_present,
    live_gpus,
    log_text,
    on_linux,
    on_the_bus,
    silent_gpus,
    torch_works,
    wait_for_answer,
    wait_for_table,
)
from cudadoctor.solver.demand import serves_all

LAST_BRANCH = "Driver branch {branch} is the last one that supports this GPU."
FIRST_BRANCH = "Support for this GPU starts with driver branch {branch}."
_LEGACY = re.compile(r"supported through the nvidia (\d+)\.xx legacy drivers")
_NOT_SUPPORTED = re.compile(r"is not supported by the nvidia [\d.]+ driver release")
_OTHER_GUEST = "guest driver is incompatible with host driver"
_NEEDS_OPEN = "requires use of the nvidia open kernel modules"
_NEEDS_PROPRIETARY = (
    "is not supported by open nvidia.ko",
    # The first branches with open modules served data center GPUs only.
    "open nvidia.ko is only ready for use on data center gpus",
)
_NO_BAR = (
    "this pci i/o region assigned to your nvidia device is invalid",
    "bar1 is 0m",
)


_AT_BOOT = re.compile(r"\[10de:[0-9a-f]{4}\]")
"""What the kernel says of an NVIDIA device when it finds it."""


@rule(
    "gpu-not-detected",
    title="No NVIDIA GPU found in this system",
)
def gpu_not_detected(m: Machine) -> Answer:
    """The installed torch is a CUDA build, but without an NVIDIA GPU it runs only on the CPU.

    `torch.cuda.is_available()` is False, and `lspci | grep -i nvidia` prints nothing. No driver or
    torch build can make a missing GPU appear.

    Look-alikes: if the PCI bus shows a GPU, the cause is driver-not-installed or driver-not-loaded.
    In a container, which sees the host's PCI bus, the cause is container-no-gpu. If the GPU was
    visible earlier and has disappeared, the cause is gpu-lost.

    Fix: in the cloud or in a virtual machine, choose an instance with an NVIDIA GPU or pass a GPU
    through to the virtual machine. On a laptop, hybrid graphics may have turned the GPU off (on
    Ubuntu, check with `prime-select query`). On your own computer, check the PCIe slot, the power
    cables and the BIOS. If torch is a CPU build or was built for another vendor's GPU, nothing is
    wrong and this finding is for information only.
    """
    present = gpu_present(m)
    if present is None:
        need(m.pci, "pci")
    if present is not False:
        return None
    wait_for_answer(m)
    wait_for_table(m)
    fine, mac = cpu_on_purpose(m), m.platform.system == "Darwin"
    if not fine and m.torch.installed is not False and (m.look != "report" or m.pci or mac):
        need(m.torch.build, "torch.build")
    why = "torch can use only the CPU on this system." if m.torch.installed is False else None
    switched = switch_graphics(m) if m.driver.blacklisted_by else ()
    if switched:
        why = "This laptop's graphics setting turns the NVIDIA GPU off to save power."
    logged = bool(switched and _AT_BOOT.search(log_text(m)))
    looked = m.pci is not None
    # A torch for Apple's, AMD's or Intel's GPU serves: nobody misses NVIDIA's.
    served = mac or any(device.vendor == "amd" for device in m.pci or ())
    return Found(
        evidence=(
            "pci" if looked else "driver.nvml.why",
            *(("driver.blacklisted_by",) if switched else ()),
            *(("driver.log",) if logged else ()),
            "torch.build",
        ),
        title="The NVIDIA GPU is turned off in the graphics settings" if switched else None,
        why="This torch was not built for CUDA, so it does not need an NVIDIA GPU."
        if fine
        else why,
        yields_to=("torch-missing",) if served else (),
        severity=INFO if fine else ERROR,
        sure=looked or mac,
        remedies=() if fine else switched or _bring_a_gpu(m),
    )


def _bring_a_gpu(m: Machine) -> Remedies:
    """A job or a pod may land on another machine; a container shows what its host has."""
    lent = m.container.scheduler or m.container.kind == "kubernetes" or notebook_of(m)
    granted = grant_gpu(m) if m.pci is None or lent else ()
    title, text = _NEW_INSTANCE if m.platform.virtual else _OWN_MACHINE
    if m.platform.system == "Windows" and m.driver.installed is False and not granted:
        # Windows does not list the bus: without a driver a GPU may well be there.
        text = f"{_IN_DEVICE_MANAGER} {text}"
    if not m.platform.virtual and on_linux(m):
        text += " The command `lspci | grep -i nvidia` must list the GPU."
    return granted or by_hand("gpu-into-machine", title, text, keeper_of(m))


_NEW_INSTANCE = (
    "Get an instance with an NVIDIA GPU",
    "In the cloud, choose an instance type with an NVIDIA GPU. If you run the virtual machine "
    "yourself, pass the GPU through from the host.",
)
_OWN_MACHINE = (
    "Check that the GPU is connected and enabled",
    "Check the PCIe slot, the power cables and the BIOS settings. On a laptop, also check the "
    "hybrid graphics setting.",
)


_IN_DEVICE_MANAGER = (
    "Open Device Manager and look under Display adapters. If it lists an NVIDIA GPU or Microsoft "
    "Basic Display Adapter, install the latest driver from nvidia.com/drivers."
)


@rule(
    "driver-unsupported-gpu",
    title="NVIDIA driver {driver} does not support the {gpu}",
)
def driver_unsupported_gpu(m: Machine, kb: Knowledge) -> Answer:
    """The kernel log shows that the driver does not support this GPU and ignores it.

    Each GPU generation is supported by a range of driver branches. Branch 470 is the last for
    Kepler (K80), 580 is the last for Maxwell, Pascal and Volta (GTX 900 and 10 series, V100), and
    570 is the first for Blackwell (RTX 50 series). `nvidia-smi` says "No devices were found", or
    that it cannot communicate with the driver, because the module unloads if it finds no supported
    GPU. `sudo dmesg | grep NVRM` shows the kernel module's message. This problem usually appears
    after a driver update.

    Look-alikes: if the branch is right and only the type of kernel module (open or proprietary) is
    wrong, the cause is driver-wrong-flavour.

    Fix: install a driver branch that supports the GPU. An old GPU may need an older branch than the
    installed one.
    """
    if not bare(m) or m.driver.installed is False:
        return None
    log, silent = log_text(m), silent_gpus(m)
    legacy, refused = _LEGACY.search(log), _NOT_SUPPORTED.search(log)
    logged = legacy or refused
    version = m.driver.version or next((module.version for module in _files(m)), None)
    if not (silent or (logged and m.pci is None and not live_gpus(m))) or not (version or logged):
        return None
    wanted = int(legacy[1]) if legacy else _branch_for(silent, version, bool(refused), kb)
    if silent and version and m.platform.virtual and _OTHER_GUEST in log:
        return Found(
            evidence=("driver.log", *on_the_bus(m, silent)),
            title="The vGPU driver {driver} in this virtual machine does not work with the host's "
            "vGPU driver",
            values={"driver": version},
            why="A vGPU needs a guest driver (GRID) from a release that the host's vGPU software "
            "supports. When the host is upgraded, an old guest driver stops working (Xid 78).",
            sure=True,
            remedies=guest_driver(m),
        )
    if wanted is None and not refused:
        return None
    if wanted is None and silent and version and m.platform.virtual:
        return Found(
            evidence=("driver.log", *on_the_bus(m, silent)),
            title="This virtual machine's {gpu} is a vGPU, and driver {driver} does not support it",
            values={"gpu": _name(silent, kb), "driver": version},
            why="This driver supports this model as a whole GPU, but it rejected this vGPU. A "
            "share of a GPU needs NVIDIA's vGPU guest driver (GRID).",
            sure=False,
            remedies=guest_driver(m),
        )
    older = wanted is not None and version is not None and version.branch > wanted
    newer = wanted is not None and version is not None and version.branch < wanted
    shown = "driver.kernel" if m.driver.kernel else "driver.module_files"
    return Found(
        evidence=(*on_the_bus(m, silent), shown) if silent and version else ("driver.log",),
        values={
            "driver": version or "in use",
            "gpu": _name(silent, kb),
            "branch": "" if wanted is None else wanted,
        },
        why=None if wanted is None else LAST_BRANCH if older or version is None else FIRST_BRANCH,
        sure=logged or older,
        severity=WARNING if live_gpus(m) and torch_works(m) else ERROR,
        remedies=_beside_another(
            m,
            kb,
            silent,
            wanted if older else None,
            upgrade_driver(m, kb, wanted)
            if wanted is not None and newer
            else install_driver(m, kb),
        ),
    )


def _beside_another(
    m: Machine, kb: Knowledge, silent: tuple[PciGpu, ...], wanted: OptInt, ways: Remedies
) -> Remedies:
    """The same, with what a user of the other GPU has to know first."""
    live, archs = live_gpus(m), m.torch.archs
    # The reason already names the branch's end.
    bare = (way.note and _ENDED.sub("", way.note).strip() for way in ways)
    ways = tuple(replace(way, note=note or None) for way, note in zip(ways, bare, strict=True))
    if not live or not ways:
        return ways
    name = (live[0].name or "other GPU").removeprefix("NVIDIA ")
    said = (
        f"PyTorch already works on the {name}. Change the driver only if you also need the other "
        "GPU."
    )
    missed = {model.capability for device in silent for model in kb.gpus_by_pci(device.device_id)}
    if archs and missed and not serves_all(archs, missed, m.torch.version, m.torch.cuda, kb):
        said += f" torch {m.torch.named} was not built for the other GPU. To "
        said += "use both GPUs, you also need a build that supports them."
    cuda = m.torch.cuda
    floor = kb.oldest_driver(cuda, "Linux") if cuda else None
    if wanted and cuda and floor and (floor.driver.branch or 0) > wanted:
        # Its last driver would take the working GPU away from this torch.
        lost = f"With this driver, PyTorch will no longer work on the {name}."
        title = f"Leave the driver as it is and use the {name}"
        text = (
            f"CUDA {cuda.major} builds of torch do not run with driver {wanted}, the last one "
            "that supports the other GPU."
        )
        kept = by_hand("keep-driver", title, text)
        return (*kept, *(replace(way, note=lost) for way in ways))
    return tuple(replace(way, note=said) for way in ways)


_ENDED = re.compile(r"Branch \d+ is the last one that supports this GPU\.")


def _branch_for(
    silent: tuple[PciGpu, ...], version: OptDriverVersion, refused: bool, kb: Knowledge
) -> OptInt:
    """The branch that would do: the last one for an older GPU, the first one for a newer."""
    if version is None or (refused and not silent):
        return None
    for family in (kb.architecture(model.capability) for model in _models(silent, kb)):
        last, first = (family.last_branch, family.first_branch) if family else (None, None)
        if last is not None and version.branch > last:
            return last
        if first is not None and version.branch < first:
            return first
    return None


@rule(
    "driver-wrong-flavour",
    title="The {gpu} needs the open kernel modules, not the proprietary ones",
)
def driver_wrong_flavour(m: Machine, kb: Knowledge) -> Answer:
    """Blackwell and newer GPUs work only with the open kernel modules, GPUs older than Turing only
    with the proprietary ones. The driver version itself is correct.

    Blackwell (RTX 50 series) and newer GPUs, and Grace Hopper, need the open kernel modules. GPUs
    older than Turing (GTX 10 series and older) need the proprietary ones. `nvidia-smi` says "No
    devices were found". /proc/driver/nvidia/version shows which modules are loaded, and `sudo
    dmesg | grep NVRM` shows the error ("requires use of the NVIDIA open kernel modules").

    Look-alikes: if neither the open nor the proprietary modules in this driver branch support the
    GPU, the cause is driver-unsupported-gpu.

    Fix: install the other type of kernel module (open or proprietary) from the same branch, then
    restart the machine.
    """
    if not bare(m) or m.driver.installed is False or (m.driver.loaded is False and not _files(m)):
        return None
    logged = needed = _logged_flavour(m)
    silent = silent_gpus(m)
    if not silent and not (needed and m.pci is None and not live_gpus(m)):
        return None
    flavour = m.driver.flavour or next((module.flavour for module in _files(m)), None)
    if needed is None:
        kind = "none" if need(flavour, "driver.flavour") == "open" else "only"
        needed = "open" if flavour == "proprietary" else "proprietary"
        if kind not in {model.open_modules for model in _models(silent, kb)}:
            return None
    facts = {"driver.flavour": m.driver.flavour, "driver.log": logged}
    shown = [path for path, known in facts.items() if known]
    return Found(
        evidence=(*on_the_bus(m, silent), *shown),
        values={"gpu": _name(silent, kb)},
        title=None
        if needed == "open"
        else "The {gpu} needs the proprietary kernel modules, not the open ones",
        sure=silent,
        severity=WARNING if live_gpus(m) and torch_works(m) else ERROR,
        remedies=open_modules(m, kb) if needed == "open" else proprietary_modules(m, kb),
    )


def _files(m: Machine) -> list[ModuleFile]:
    return [file for file in m.driver.module_files or () if file.kernel == m.platform.kernel]


def _logged_flavour(m: Machine) -> OptStr:
    log = log_text(m)
    if _NEEDS_OPEN in log:
        return "open"
    return "proprietary" if any(words in log for words in _NEEDS_PROPRIETARY) else None


def _models(devices: tuple[PciGpu, ...], kb: Knowledge) -> list[GpuModel]:
    """The models behind these devices; the end of the rule where the tables know none of them."""
    known = [model for device in devices for model in kb.gpus_by_pci(device.device_id)]
    if devices and not known:
        raise NotKnown(
            "pci", f"the GPU {devices[0].device_id} is not in cudadoctor's built-in GPU list"
        )
    return known


def _name(devices: Iterable[PciGpu], kb: Knowledge) -> str:
    models = (model for device in devices for model in kb.gpus_by_pci(device.device_id))
    return next((model.name.removeprefix("NVIDIA ") for model in models), "GPU")


@rule(
    "pci-bar-bios",
    title="The BIOS assigned no address space (BAR) to the {gpu}",
)
def pci_bar_bios(m: Machine, kb: Knowledge) -> Answer:
    """Without a PCI address range of {size}, the driver cannot initialize the GPU.

    `nvidia-smi` says "No devices were found". `sudo dmesg | grep NVRM` prints "This PCI I/O region
    assigned to your NVIDIA device is invalid" or "BAR1 is 0M".

    Look-alikes: the cause driver-wrong-flavour also produces the message "No devices were found",
    but in that case `lspci -v` shows all memory regions of the GPU.

    Fix: enable "Above 4G decoding" in the BIOS setup, and "Resizable BAR" as well if the
    motherboard supports it. In a virtual machine, the hypervisor has to provide enough address
    space: use UEFI (OVMF) and a large enough 64-bit PCI window.
    """
    silent = silent_gpus(m)
    missing = [device for device in silent if device.bars_missing]
    logged = any(words in log_text(m) for words in _NO_BAR)
    if not bare(m) or not silent or not (missing or logged):
        return None
    without, live = missing or silent, live_gpus(m)
    line, size = _no_room(m, without)
    # The list of the bus would bury the one that it is about.
    seen = [f"pci.{n}" for n, device in enumerate(m.pci or ()) if device in missing]
    works = live and torch_works(m)
    beside = works and not m.platform.virtual
    return Found(
        evidence=(
            *((seen if live else ["pci"]) if missing else []),
            line or (None if missing else "driver.log"),
        ),
        values={
            "gpu": _name(without, kb),
            "size": f"{size >> 30} GiB" if size else "several gigabytes",
            "addresses": [device.address for device in without],
            "live": indexes_of(live),
        },
        title=_BY_VM[bool(live)]
        if m.platform.virtual
        else "The BIOS assigned no address space (BAR) to the {gpu} at {addresses}"
        if live
        else None,
        why=None
        if not works
        else "PyTorch works on GPU {live}. Without a PCI address range of {size}, the driver "
        "cannot initialize the other GPU."
        if len(live) == len(without) == 1
        else "PyTorch works on the other GPUs ({live}). A GPU without a PCI address range of "
        "{size} cannot be initialized.",
        sure=missing and logged,
        severity=WARNING if works else ERROR,
        remedies=larger_window(m, size * len(without))
        if m.platform.virtual
        else by_hand("firmware-bar", *(_BIOS_BESIDE if beside else _BIOS), keeper_of(m))
        + (
            kernel_option(m, "pci-realloc", "Let Linux reassign PCI addresses", *_REALLOC)
            if beside
            else ()
        ),
    )


def _no_room(m: Machine, devices: Iterable[PciGpu]) -> tuple[OptStr, int]:
    """The kernel's line about their largest range that found no space, and its size in bytes."""
    places = {bus_key(device.address) for device in devices}
    log = m.driver.log or ()
    found = ((n, _NO_SPACE.search(line)) for n, line in enumerate(log))
    sizes = [(int(size[2], 16), -n) for n, size in found if size and bus_key(size[1]) in places]
    if not sizes:
        return None, 0
    size, n = max(sizes)
    return f"driver.log.{-n}", size if size >= 1 << 30 else 0


_NO_SPACE = re.compile(
    r"([0-9a-f:.]{7,}): BAR \d+:? \[mem size 0x([0-9a-f]+)[^]]*\]: (?:no space|can't|failed to)",
    re.I,
)
_BIOS = (
    "Enable Above 4G Decoding in the BIOS",
    "Reboot into the BIOS setup (`sudo systemctl reboot --firmware-setup`). Enable Above 4G "
    "Decoding and Resizable BAR, usually found under PCI, Advanced or Boot. Disable CSM (legacy "
    "boot). If there is no Above 4G Decoding setting, update the BIOS.",
)
_BIOS_BESIDE = (
    "Enlarge the PCI address space in the BIOS",
    "Update the BIOS. Then reboot into the BIOS setup (`sudo systemctl reboot --firmware-setup`), "
    "enable Above 4G Decoding and disable CSM (legacy boot). If there is an MMIO High Size or "
    "MMIO Size setting, choose the largest value.",
)
_REALLOC = (
    "pci=realloc",
    "This can help if the BIOS has no setting that gives the GPU more space.",
)
_BY_VM = (
    "The virtual machine's firmware assigned no address space (BAR) to the {gpu}",
    "The virtual machine's firmware assigned no address space (BAR) to the {gpu} at {addresses}",
)

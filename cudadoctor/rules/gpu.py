"""Is there an NVIDIA GPU, does this driver support it, and is it set up for computing?"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.model.findings import (
    ERROR,
    INFO,
    Remedies,
)
from cudadoctor.model.machine import Machine, ModuleFile, OptDriverVersion, OptInt, OptStr, PciGpu
from cudadoctor.model.rule import Answer, Found, NotKnown, need, rule
from cudadoctor.plan.remedies import (
    by_hand,
    grant_gpu,
    install_driver,
    open_modules,
    proprietary_modules,
    upgrade_driver,
)
from cudadoctor.plan.remedies.process import keeper_of, notebook_of
from cudadoctor.rules.evidence.signs import (
    bare,
    cpu_on_purpose,
    gpu_present,
    live_gpus,
    log_text,
    silent_gpus,
    wait_for_answer,
    wait_for_table,
)

_LEGACY = re.compile(r"supported through the nvidia (\d+)\.xx legacy drivers")
_NOT_SUPPORTED = re.compile(r"is not supported by the nvidia [\d.]+ driver release")
_NEEDS_OPEN = "requires use of the nvidia open kernel modules"
_NEEDS_PROPRIETARY = (
    "is not supported by open nvidia.ko",
    # The first branches with open modules served data-centre GPUs only.
    "open nvidia.ko is only ready for use on data center gpus",
)
_NO_BAR = (
    "this pci i/o region assigned to your nvidia device is invalid",
    "bar1 is 0m",
)


@rule(
    "gpu-not-detected",
    title="No NVIDIA GPU is visible to this system",
)
def gpu_not_detected(m: Machine) -> Answer:
    """The torch here was built for CUDA, and there is no NVIDIA GPU that it could use.

    Told from driver-not-loaded by the PCI bus, which shows a GPU without any driver. A container
    sees the bus of its host, so a GPU there means container-no-gpu instead. A GPU that was there
    earlier and is gone is gpu-lost.

    In a virtual machine or the cloud, the instance has no GPU or it was not passed through. On a
    laptop, the hybrid graphics switch may be off. Otherwise: slot, power cables, firmware. No
    driver and no torch build makes a GPU appear. A torch for the CPU, or one for the accelerator of
    another vendor, is fine without it, and then this is information only.
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
    why = "A torch for the CPU is what this system can run." if m.torch.installed is False else None
    looked = m.pci is not None
    # A torch for Apple's, AMD's or Intel's GPU serves: nobody misses NVIDIA's.
    served = mac or any(device.vendor == "amd" for device in m.pci or ())
    return Found(
        evidence=("pci" if looked else "driver.nvml.why", "torch.build"),
        why="The torch here was not built for CUDA, so this is no NVIDIA matter." if fine else why,
        yields_to=("torch-missing",) if served else (),
        severity=INFO if fine else ERROR,
        sure=looked or mac,
        remedies=() if fine else _bring_a_gpu(m),
    )


def _bring_a_gpu(m: Machine) -> Remedies:
    """A job or a pod may land on another machine; a container shows what its host has."""
    lent = m.container.scheduler or m.container.kind == "kubernetes" or notebook_of(m)
    granted = grant_gpu(m) if m.pci is None or lent else ()
    return granted or by_hand(
        "gpu-into-machine",
        "Give this system an NVIDIA GPU",
        "In a virtual machine or the cloud, choose an instance with an NVIDIA GPU or pass one "
        "through. On a computer of your own, look at the slot, the power cables and the "
        "firmware's settings; `echo 1 > /sys/bus/pci/rescan` as root looks again.",
        keeper_of(m),
    )


@rule(
    "driver-unsupported-gpu",
    title="NVIDIA driver {driver} does not support the {gpu}",
)
def driver_unsupported_gpu(m: Machine, kb: Knowledge) -> Answer:
    """{reason}, so the driver ignores this GPU.

    Each generation has a first and a last driver branch: 470 is the last for Kepler, 580 the last
    for Maxwell, Pascal and Volta; Blackwell begins with 570. The kernel log names the refusal, and
    nvidia-smi says that no devices were found, or that there is no driver, because a module without
    a single GPU to serve does not stay loaded.

    Cured by the right branch, which for an older GPU means an older driver. A driver update is the
    usual way into this state.
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
    if wanted is None and not refused:
        return None
    older = wanted is not None and version is not None and version.branch > wanted
    newer = wanted is not None and version is not None and version.branch < wanted
    last = "last" if older or version is None else "first"
    limit = f"Branch {wanted} is the {last} one for its generation"
    shown = "driver.kernel" if m.driver.kernel else "driver.module_files"
    return Found(
        evidence=("pci", shown) if silent and version else ("driver.log",),
        values={
            "driver": version or "in use",
            "gpu": _name(silent, kb),
            "reason": limit if wanted is not None else "This driver release does not list the GPU",
        },
        sure=logged or older,
        remedies=upgrade_driver(m, kb, wanted)
        if wanted is not None and newer
        else install_driver(m, kb),
    )


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
    title="The {gpu} does not start with the {flavour} kernel modules",
)
def driver_wrong_flavour(m: Machine, kb: Knowledge) -> Answer:
    """Of the driver's two flavours, open and proprietary, this GPU takes the {other} one only.

    Blackwell and newer, and Grace Hopper, work with the open kernel modules only; GPUs before
    Turing with the proprietary ones only. The flavour of the loaded module stands in
    /proc/driver/nvidia/version, and the kernel log names the refusal. nvidia-smi says that no
    devices were found.

    Told from driver-unsupported-gpu by the branch: there no flavour of that release would do. The
    right flavour of the same branch and a reboot cure it.
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
    facts = {"driver.flavour": m.driver.flavour, "pci": m.pci, "driver.log": logged}
    return Found(
        evidence=tuple(path for path, known in facts.items() if known),
        values={"gpu": _name(silent, kb), "flavour": flavour or "loaded", "other": needed},
        sure=silent,
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
        raise NotKnown("pci", f"no table knows the GPU {devices[0].device_id}")
    return known


def _name(devices: Iterable[PciGpu], kb: Knowledge) -> str:
    models = (model for device in devices for model in kb.gpus_by_pci(device.device_id))
    return next((model.name for model in models), "GPU")


@rule(
    "pci-bar-bios",
    title="The firmware gave the {gpu} no address space",
)
def pci_bar_bios(m: Machine, kb: Knowledge) -> Answer:
    """A GPU maps gigabytes into the PCI address space; the firmware gave it none, so it is off.

    The kernel log speaks of an invalid I/O region or of a BAR of 0M, the driver answers that no
    devices were found. The firmware has the settings "Above 4G decoding" and "Resizable BAR"; both
    on cures it. In a virtual machine, the hypervisor has to offer the space.

    Told from driver-wrong-flavour, whose log looks alike, by the address ranges that are missing.
    """
    silent = silent_gpus(m)
    missing = [device for device in silent if device.bars_missing]
    logged = any(words in log_text(m) for words in _NO_BAR)
    if not bare(m) or not silent or not (missing or logged):
        return None
    return Found(
        evidence=("pci",) if missing else ("driver.log",),
        values={"gpu": _name(missing or silent, kb)},
        sure=missing and logged,
        remedies=by_hand(
            "firmware-bar",
            "Give the GPU address space in the firmware",
            "Switch on Above 4G decoding and Resizable BAR in the firmware (BIOS) settings.",
            "admin",
        ),
    )

"""Does each GPU answer, and is its hardware sound?"""

from __future__ import annotations

import re

from cudadoctor.model.findings import (
    ERROR,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Gpu, Machine, OptStr, Strings, Xid, is_start
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import by_hand, reboot, reset_gpu
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.evidence.signs import (
    LOST,
    RESET_REQUIRED,
    UNKNOWN,
    bus_key,
    code_path,
    driver_code,
    host_error_with,
    is_fenced,
    live_gpus,
    log_text,
    nvidia_pci,
)

_FELL_OFF = 79
_FELL_OFF_WORDS = "fallen off the bus"
_ECC_WORDS = ("uncorrectable ecc error",)
_ECC_FATAL, _ECC_PENDING = frozenset({48, 64, 95, 140, 171, 172}), frozenset({63, 94})
NO_POWER, NO_INTERRUPTS = 8, 11
_RECOVERY_CHANGED = 154
_RECOVERY = re.compile(r"(?i)recovery action changed from .* to 0x[0-9a-f]+ \(([^)]{1,60})\)")
_SWITCH = re.compile(r"SXid \([^)]*\): (\d{1,6}), Fatal\b")
_DEVICE = frozenset({54, 61, 62, 74, 110, 119, 120, 136, 143, 158, 167, 169})
"""Xids that NVIDIA's catalogue lays at the door of the device, not of a program."""


@rule(
    "gpu-lost",
    title="GPU {which} no longer answers",
)
def gpu_lost(m: Machine) -> Answer:
    """It fell off the PCI bus or waits for a reset; often no CUDA program starts while that lasts.

    NVML gives code 15 (lost) or 16 (reset required) for it, the kernel log has Xid 79 or "fallen
    off the bus", and its PCI configuration reads all ones. nvidia-smi prints one line for it and no
    table for the healthy ones. The text "Unknown Error" right at the start of NVML in a container
    means something else: container-gpu-lost. A job's device rules may hide GPUs with code 4 or 999,
    which is no fault.

    A reboot brings it back, a cold one (power off) more surely. Where it returns: power cables,
    riser, power supply, temperature, slot, then the warranty.
    """
    code = driver_code(m)
    gone = [
        # 999 for one GPU means a dead one, but in a job it can be one that belongs to others.
        gpu
        for gpu in m.gpus or ()
        if gpu.code in (LOST, RESET_REQUIRED) or (gpu.code == UNKNOWN and not is_fenced(gpu, m))
    ]
    dead = [
        device
        for device in nvidia_pci(m)
        if device.lost and device.power in (None, "D0", "unknown")
    ]
    fell, refused = _fell_off(m), code in (LOST, RESET_REQUIRED)
    if not (gone or dead or fell or refused):
        if m.pci is None and m.driver.log is None and code is None:
            need(m.gpus, "gpus")
        return None
    which = [str(gpu.index) for gpu in gone] or [device.address for device in dead]
    only_unknown = gone and not refused and all(gpu.code == UNKNOWN for gpu in gone)
    return Found(
        evidence=_evidence(m, bool(gone), bool(dead), fell),
        values={"which": which or fell or ""},
        title=None if which or ":" in (fell or "") else "A GPU no longer answers",
        sure=not (only_unknown or fell),
        remedies=_bring_back(m, gone),
    )


def _fell_off(m: Machine) -> OptStr:
    """The bus address of a GPU that the kernel log calls lost and that does not answer since."""
    alive = {bus_key(gpu.bus_id or "") for gpu in live_gpus(m)}
    for xid in m.driver.xids or ():
        if xid.code == _FELL_OFF and not _among(bus_key(xid.bus_id), alive):
            return xid.bus_id
    few = len(alive) < max(1, len(nvidia_pci(m)))
    return "named in the kernel log" if few and _FELL_OFF_WORDS in log_text(m) else None


def _among(key: tuple[int, ...] | None, alive: set[tuple[int, ...] | None]) -> bool:
    return any(key and other and other[-2:] == key[-2:] and other[0] == key[0] for other in alive)


def _evidence(m: Machine, gone: bool, dead: bool, fell: OptStr) -> Strings:
    gpus = enumerate(m.gpus or () if gone else ())
    seen = [f"gpus.{number}.code" for number, gpu in gpus if gpu.code not in (None, 0)]
    shown = {"pci": dead, "driver.xids" if m.driver.xids else "driver.log": fell}
    return (*seen, *(path for path, known in shown.items() if known)) or (code_path(m),)


def _bring_back(m: Machine, gone: list[Gpu]) -> Remedies:
    waiting = [gpu.index for gpu in gone if gpu.code == RESET_REQUIRED]
    return (
        *(reset_gpu(m, waiting[0]) if waiting else ()),
        *reboot(m),
        *by_hand(
            "gpu-hardware",
            "Check the GPU's hardware",
            "Where it is lost again after a cold start: look at its power cables, riser, power "
            "supply, temperature and slot, and at PCIe errors in the kernel log; then the "
            "warranty.",
            keeper_of(m),
        ),
    )


@rule(
    "gpu-ecc",
    title="The memory of GPU {which} has uncorrectable errors",
    essential=False,
)
def gpu_ecc(m: Machine) -> Answer:
    """{what}.

    Only what is open counts: a remapping that failed, one that waits for a reset, and uncorrected
    errors since the driver was loaded. Errors of the GPU's whole life and finished remappings are
    history. A GPU without ECC has nothing to report, which is no fault.

    Cured by a reset of the GPU while nothing uses it, or by a reboot; only a failed remapping, or
    errors that return, mean a replacement. Switching ECC off hides wrong results.
    """
    message = host_error_with(m, *_ECC_WORDS)
    bad = [(gpu.index, what, grave) for gpu in live_gpus(m) for what, grave in _ecc(gpu)]
    bad = bad or [(-1, what, grave) for what, grave in _logged(m)]
    if not bad and message is None:
        return None
    index, what, _ = (*bad, (-1, "A program ended with an uncorrectable ECC error", True))[0]
    worn_out = any(gpu.index == index and gpu.remap_failed for gpu in live_gpus(m))
    # A log names an address: with several GPUs none is reset on a guess.
    sure = index >= 0 or len(m.gpus or nvidia_pci(m)) == 1
    return Found(
        evidence=(message or ("gpus" if index >= 0 else "driver.xids"),),
        values={"which": index, "what": what},
        title=None if index >= 0 else "The memory of a GPU has uncorrectable errors",
        severity=ERROR if message or any(grave for _, _, grave in bad) else WARNING,
        sure=index >= 0 or message,
        remedies=_replace(m, index)
        if worn_out
        else (reset_gpu(m, max(index, 0)) if sure else ()) + reboot(m),
    )


def _replace(m: Machine, index: int) -> Remedies:
    return by_hand(
        "replace-gpu",
        f"Have GPU {index} replaced",
        (
            f"Leave GPU {index} out of your programs until then. The seller may ask for a proof: "
            "NVIDIA's DCGM (`dcgmi diag -r 3`) or its field diagnostics give it."
        ),
        keeper_of(m),
    )


def _ecc(gpu: Gpu) -> list[tuple[str, bool]]:
    """What is open in a GPU's memory, and whether it is beyond a reset."""
    found = []
    if gpu.remap_failed:
        found = [("A row of memory could not be remapped: the GPU has to be replaced", True)]
    if count := gpu.ecc_uncorrected:
        found.append((f"{count} uncorrected errors since the driver was loaded", True))
    if gpu.remap_pending or gpu.retired_pending:
        found.append(("A faulty part of memory is taken out of use at the next reset", False))
    return found


def _logged(m: Machine) -> list[tuple[str, bool]]:
    """ECC events of this boot, where NVML does not tell the state they led to."""
    if m.gpus and all(gpu.remap_pending is False and gpu.ecc_uncorrected == 0 for gpu in m.gpus):
        return []
    return [
        (f"The kernel log has Xid {xid.code} for {xid.bus_id}", xid.code in _ECC_FATAL)
        for xid in m.driver.xids or ()
        if xid.code in _ECC_FATAL | _ECC_PENDING
    ]


@rule(
    "gpu-unhealthy-hardware",
    title="The driver hangs: {call} gives no answer",
    essential=False,
)
def driver_hangs(m: Machine) -> Answer:
    """A call into the driver did not return within a minute, which no healthy GPU needs.

    Without persistence mode the first call starts every GPU and can take half a minute on a machine
    with eight, so slowness alone is not a fault, and `check --fast` draws no conclusion from it. A
    driver that has started has no such excuse: a later call has ten seconds, and where it is about
    one GPU, that GPU is named. A GPU that stopped answering its firmware (Xid 119, 120), a reset
    under way or a process stuck in the kernel (state D) make calls that never return; such a
    process cannot be killed either.

    A reset of the GPU or a reboot ends it. Where it returns, a newer driver of the same branch,
    then the hardware.
    """
    nvml, libcuda, torch = m.driver.nvml, m.driver.libcuda, m.torch.imported
    hung = {"driver.nvml.hung": nvml.hung, "driver.libcuda.hung": libcuda.hung}
    calls = [(path, call) for path, call in hung.items() if call]
    if not calls or m.look in ("fast", "report"):
        return None
    later = [(path, call) for path, call in calls if not is_start(call)]
    where, call = (later or calls)[0]
    if not later and live_gpus(m) and not libcuda.hung:
        return None
    proof = m.driver.stuck or _of_the_device(m)
    sure = later or proof or m.driver.smi.hung or (torch and torch.hung) or len(calls) > 1
    values: dict[str, object] = {"call": call}
    if call == nvml.hung and nvml.hung_gpu is not None:
        # By its index, and by its place on the bus if that is known.
        index = nvml.hung_gpu
        bus = next((gpu.bus_id for gpu in m.gpus or () if gpu.index == index), None)
        values["gpu"] = f"{index} ({bus})" if bus else index
    return Found(
        evidence=(where, "driver.stuck", "driver.xids") if proof else (where,),
        values=values,
        title="GPU {gpu} hangs: {call} does not return" if "gpu" in values else None,
        why=_AFTER_THE_START if later else None,
        confidence=LIKELY if sure else POSSIBLE,
        remedies=reboot(m),
    )


def _of_the_device(m: Machine) -> list[Xid]:
    return [xid for xid in m.driver.xids or () if xid.code in _DEVICE]


_AFTER_THE_START = (
    "The driver had started, and then a call into it did not return within ten seconds; no healthy "
    "GPU needs that long."
)


@rule(
    "gpu-unhealthy-hardware",
    title="The kernel log has a hardware fault of GPU {bus}: Xid {code}",
    severity=WARNING,
)
def xid_of_the_device(m: Machine) -> Answer:
    """The driver blames the GPU, its firmware or its links for this error, not a program.

    Xids such as 13, 31, 43 or 45 come from programs and are not counted. Without readable log lines
    nothing is said, and a clean log proves nothing.

    A reset of the GPU or a reboot, then a newer driver of the same branch; where it returns, the
    hardware. It follows from gpu-lost only where the driver no longer lists that GPU.
    """
    bad = _of_the_device(m)
    if not bad:
        return None
    bad = [xid for xid in bad if not _with_the_lost(xid, m)] or bad
    newest = min(bad, key=lambda xid: xid.age_s or 0.0)
    return Found(
        evidence=("driver.xids",),
        values={"bus": newest.bus_id, "code": newest.code},
        sure=False,
        yields_to=_with_the_lost(newest, m),
        remedies=reboot(m),
    )


@rule(
    "gpu-unhealthy-hardware",
    title="The driver asks for a recovery of GPU {bus}: {action}",
    severity=WARNING,
)
def recovery_wanted(m: Machine) -> Answer:
    """It has counted up what happened to this GPU and says so itself in the kernel log (Xid 154).

    The newest line counts: after the recovery the driver takes its wish back. Until then programs
    may fail on this GPU, or on all that share its NVLinks.

    A reset of the GPU while nothing uses it, or a reboot; where it returns, the hardware.
    """
    for xid in m.driver.xids or ():
        asked = _RECOVERY.search(xid.text or "") if xid.code == _RECOVERY_CHANGED else None
        action = asked[1].strip() if asked else ""
        if action.lower() not in ("", "none"):
            hurt = [gpu.index for gpu in live_gpus(m) if _is(gpu, xid)]
            reset = reset_gpu(m, hurt[0]) if hurt and "reset" in action.lower() else ()
            return Found(
                evidence=("driver.xids",),
                values={"bus": xid.bus_id, "action": action},
                sure=False,
                yields_to=_with_the_lost(xid, m),
                remedies=reset + reboot(m),
            )
    return None


def _with_the_lost(xid: Xid, m: Machine) -> Strings:
    """A GPU that the driver still lists has a fault of its own; another's went with the GPU."""
    return () if any(_is(gpu, xid) for gpu in live_gpus(m)) else ("gpu-lost",)


def _is(gpu: Gpu, xid: Xid) -> bool:
    return _among(bus_key(xid.bus_id), {bus_key(gpu.bus_id or "")})


@rule(
    "gpu-unhealthy-hardware",
    title="The kernel log has a fatal fault of an NVSwitch: SXid {code}",
    severity=WARNING,
)
def fault_of_a_switch(m: Machine) -> Answer:
    """The switch between the GPUs failed, and all of them that it connects may lose their links.

    Lines of the switches read "SXid", are theirs and not those of a GPU, and count only where they
    are called fatal. The fabric manager's own log names the link.

    A reboot trains the links anew; where it returns, the hardware.
    """
    fatal = [found[1] for found in map(_SWITCH.search, m.driver.log or ()) if found]
    if not fatal:
        return None
    return Found(
        evidence=("driver.log",),
        values={"code": fatal[-1]},
        sure=False,
        remedies=reboot(m),
    )


@rule(
    "gpu-unhealthy-hardware",
    title="GPU {which} gets no power from its external cables",
)
def gpu_not_started(m: Machine) -> Answer:
    """The driver counts the GPU and cannot start it, and names what the board denies it.

    NVML answers the first question about it with code 8 (external power missing) or 11 (its
    interrupts do not arrive). Code 4 there means no permission and in a job often the GPU of
    somebody else, which is no fault.

    Cables first; for interrupts a newer firmware (BIOS) of the board, then another slot.
    """
    codes = [gpu.code for gpu in m.gpus or () if gpu.code in (NO_POWER, NO_INTERRUPTS)]
    if not codes:
        return None
    power = codes[0] == NO_POWER
    text = "Connect every power socket of the GPU to the supply, each with a cable of its own."
    if not power:
        text = "Update the firmware (BIOS) of the board, and put the GPU into another slot."
    alike = [(n, gpu.index) for n, gpu in enumerate(m.gpus or ()) if gpu.code == codes[0]]
    return Found(
        evidence=tuple(f"gpus.{n}.code" for n, _ in alike),
        values={"which": [index for _, index in alike]},
        title=None if power else "The interrupts of GPU {which} do not reach the driver",
        remedies=by_hand("gpu-on-its-board", "Check the GPU's place", text, keeper_of(m)),
    )

"""Does each GPU answer, and is its hardware sound?"""

from __future__ import annotations

import re

from cudadoctor.installers.tool import joined
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    ERROR,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Gpu, Machine, OptInt, OptStr, Strings, Xid, is_start
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    by_hand,
    move_vm,
    on_hardware,
    replace_gpus,
    reset_gpus,
    reset_or_restart,
    restart,
    upgrade_driver,
)
from cudadoctor.plan.remedies.process import (
    indexes_of,
    keeper_of,
    notebook_of,
    smi_ids,
)
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
    on_linux,
    on_the_bus,
)

_FELL_OFF = 79
_FELL_OFF_WORDS = "fallen off the bus"
_ECC_WORDS = ("uncorrectable ecc error",)
_ECC_FATAL, _ECC_PENDING = frozenset({48, 64, 95, 140, 171, 172}), frozenset({63, 94})
NO_POWER, NO_INTERRUPTS = 8, 11
_RECOVERY_CHANGED = 154
_RECOVERY = re.compile(r"(?i)recovery action changed from .* to 0x[0-9a-f]+ \(([^)]{1,60})\)")
_SWITCH = re.compile(r"SXid \([^)]*\): (\d{1,6}), Fatal\b")
_UNPOWERED = 54
_DEVICE = {
    _UNPOWERED: "auxiliary power not connected",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    74: "NVLink error",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    143: "GPU initialization error",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    169: "SEC2 halt",
}
"""Xids that NVIDIA's catalog lays at the door of the device, not of a program."""
_UNCONTAINED, _CONTAINED = frozenset({48, 95}), 94
_RETIRE = (
    "GPU {which} must be reset to retire faulty memory",
    "The next reset swaps in spare memory. Until then, programs can still hit the faulty memory.",
)
_REMAP = (
    "A row remapping is pending on GPU {which}, which needs a reset",
    "The next reset or restart replaces the faulty row of memory with a spare one. Running "
    "programs are not harmed and can finish first.",
)
_ONE_HURT = (
    "The error was contained (Xid 94): it stopped only the program that used the faulty memory."
)
_REMAPPED = (
    "Afterward, `nvidia-smi -q -i {which} -d ROW_REMAPPER` must show No after Pending and after "
    "Remapping Failure Occurred. If it does not, the GPU must be replaced."
)


@rule(
    "gpu-lost",
    title="No response from GPU {which}",
)
def gpu_lost(m: Machine) -> Answer:
    """While a GPU is missing, CUDA often fails in every program. Installing a different driver or
    torch build does not help.

    The GPU has fallen off the PCI bus or is waiting for a reset. `nvidia-smi` prints "Unable to
    determine the device handle for GPU ...: GPU is lost. Reboot the system to recover this GPU" and
    does not list any GPUs, not even the healthy ones. The kernel log shows Xid 79 or "GPU has
    fallen off the bus" (`sudo dmesg | grep -i xid`). NVML returns error 15 (lost) or 16 (reset
    required).

    Look-alikes: if every GPU in a container reports "Failed to initialize NVML: Unknown Error", the
    cause is container-gpu-lost, and restarting the container fixes it. In a scheduler job, NVML
    errors 4 and 999 can come from GPUs that belong to other jobs, in which case they do not
    indicate a fault.

    Fix: restart the machine. If the GPU does not come back, shut down the machine and disconnect
    its power for a minute. If the GPU disappears again, check its power cables, riser, slot, power
    supply and temperature, and look for PCIe (AER) errors in `dmesg`. If none of this helps,
    request a warranty replacement.
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
    which = ", ".join(device.address for device in dead) if dead and not gone else indexes_of(gone)
    which = which or (fell if ":" in (fell or "") else "") or ""
    only_unknown = gone and not refused and all(gpu.code == UNKNOWN for gpu in gone)
    codes = {gpu.code for gpu in gone} or ({code} if refused else {LOST})
    title = _GONE.get(codes.pop() if len(codes) == 1 else None, _GONE[None])[not which]
    waits = title in _GONE[RESET_REQUIRED]
    return Found(
        evidence=_evidence(m, bool(gone), on_the_bus(m, dead), fell),
        values={"which": which},
        title=title,
        why="The driver accepts no more work for this GPU until the GPU is reset."
        if waits
        else None,
        sure=not (only_unknown or fell),
        remedies=_bring_back(m, gone),
    )


_GONE: dict[OptInt, tuple[str, str]] = {
    LOST: ("GPU {which} fell off the PCI bus", "A GPU fell off the PCI bus"),
    RESET_REQUIRED: ("GPU {which} must be reset", "A GPU must be reset"),
    None: ("No response from GPU {which}", "No response from a GPU"),
}
"""NVML's code of all that are gone -> the title, and the one where nobody knows which they are."""


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


def _evidence(m: Machine, gone: bool, dead: Strings, fell: OptStr) -> Strings:
    gpus = enumerate(m.gpus or () if gone else ())
    seen = [f"gpus.{number}.code" for number, gpu in gpus if gpu.code not in (None, 0)]
    told = ("driver.xids" if m.driver.xids else "driver.log",) if fell else ()
    return (*seen, *dead, *told) or (code_path(m),)


def _bring_back(m: Machine, gone: list[Gpu]) -> Remedies:
    waiting = [gpu for gpu in gone if gpu.code == RESET_REQUIRED]
    if notebook_of(m):
        return restart(m)
    if waiting and waiting == gone:
        return reset_or_restart(m, *waiting)
    if m.platform.virtual and on_linux(m):
        return restart(m, None if (moved := move_vm(m)) else _RENTED) + moved
    # A lost GPU comes back with a restart only, which resets the others too.
    return restart(m, _COLD) + by_hand("gpu-hardware", *_DROPS_OUT, keeper_of(m))


_COLD = (
    "If the GPU is still missing, shut down, disconnect the power for a minute, and start the "
    "machine again."
)
_DROPS_OUT = (
    "Check the GPU's hardware",
    "If the GPU disappears again after a cold boot, check its power cables, riser, slot and "
    "temperature. If the problem persists, request a warranty replacement (RMA).",
)
_RENTED = (
    "If the GPU is still missing, stop the virtual machine and start it again; in the cloud, "
    "this usually moves it to another host."
)


@rule(
    "gpu-ecc",
    title="GPU {which} has uncorrectable memory errors ({count} since the driver loaded)",
    essential=False,
)
def gpu_ecc(m: Machine) -> Answer:
    """Results can be wrong, and programs stop with "uncorrectable ECC error encountered".

    Resetting the GPU or restarting the machine makes the GPU use spare memory in place of faulty
    memory. If the errors return after the reset or restart, the GPU must be replaced. CUDA reports
    uncorrectable memory errors as error 214; the kernel log shows Xid 48, 63, 64, 94 or 95.

    cudadoctor counts only unresolved errors: a failed row remapping, a row remapping that is
    waiting for a reset, and uncorrected errors since the driver was loaded. Old totals
    ("aggregate") and completed remappings do not count. `nvidia-smi -q -d ECC,ROW_REMAPPER` shows
    all of these counters. Most GeForce cards do not support ECC and report no ECC errors.

    Fix: stop the programs that use the GPU, then reset the GPU. If the row remapping itself failed,
    a reset does not help, and the GPU must be replaced. Do not turn ECC off: that would hide wrong
    results.
    """
    message = host_error_with(m, *_ECC_WORDS)
    live = live_gpus(m)
    contained = [gpu for gpu in live if _is_contained(gpu, m)]
    waiting = [gpu for gpu in contained if gpu.remap_pending]
    for state, (title, reason, grave) in _MEMORY.items():
        counts = state == "ecc_uncorrected"
        at_fault = (gpu for gpu in live if getattr(gpu, state))
        if bad := [gpu for gpu in at_fault if not counts or gpu not in waiting]:
            values: dict[str, object] = {"which": indexes_of(bad)}
            values |= {"count": bad[0].ecc_uncorrected} if "{count}" in title else {}
            harmless = counts and all(gpu in contained for gpu in bad)
            first = harmless or (state == "remap_pending" and bool(waiting))
            why = joined(_ONE_HURT if first else None, reason)
            return Found(
                evidence=(message or "gpus", *("driver.xids",) * bool(_memory_xids(m))),
                values=values,
                title=title,
                why=why,
                severity=ERROR if message or (grave and not harmless) else WARNING,
                remedies=replace_gpus(m, *bad)
                if state == "remap_failed"
                else reset_or_restart(m, *bad, note=_after_reset(m, bad)),
            )
    logged = _logged(m)
    if not logged and message is None:
        return None
    # A log names an address, an error text none: with several GPUs none is reset on a guess.
    hurt = [gpu for gpu in live if logged and _is(gpu, logged[0])]
    hurt = hurt or [gpu for gpu in live if len(m.gpus or ()) == 1]
    codes = {xid.code for xid in logged}
    values = {"code": logged[0].code, "which": _called(logged[0], m)} if logged else {}
    return Found(
        evidence=(message or "driver.xids",),
        values=values,
        title="GPU {which} reported a memory error (Xid {code})"
        if logged
        else "A program stopped with an uncorrectable GPU memory error (ECC)",
        why=_ONE_HURT
        if _CONTAINED in codes and not codes & _UNCONTAINED
        else _REMAP[1]
        if codes == {63}
        else None,
        severity=ERROR if message or any(x.code in _ECC_FATAL for x in logged) else WARNING,
        sure=message,
        remedies=reset_or_restart(m, *hurt, note=_after_reset(m, hurt)),
    )


def _is_contained(gpu: Gpu, m: Machine) -> bool:
    """Whether the log says that the GPU's errors hurt one program alone."""
    codes = {xid.code for xid in _memory_xids(m) if _is(gpu, xid)}
    return _CONTAINED in codes and not codes & _UNCONTAINED


def _after_reset(m: Machine, gpus: list[Gpu]) -> OptStr:
    """How to see that a reset helped; None for GPUs that do not remap rows."""
    if not gpus or any(gpu.remap_pending is None for gpu in gpus):
        return None
    return _REMAPPED.format(which=smi_ids(m, gpus))


_MEMORY: dict[str, tuple[str, OptStr, bool]] = {
    "remap_failed": (
        "Faulty memory on GPU {which} cannot be repaired",
        "No spare memory is left to replace a faulty row, so neither a reset nor a new driver "
        "will help.",
        True,
    ),
    "ecc_uncorrected": (
        "GPU {which} has uncorrectable memory errors ({count} since the driver loaded)",
        None,
        True,
    ),
    "remap_pending": (*_REMAP, False),
    "retired_pending": (*_RETIRE, False),
}
"""Fact of a GPU -> title and why of that state, and whether it breaks programs; gravest first."""


def _logged(m: Machine) -> list[Xid]:
    """ECC events of this boot, where NVML does not tell the state they led to."""
    if m.gpus and all(gpu.remap_pending is False and gpu.ecc_uncorrected == 0 for gpu in m.gpus):
        return []
    return _memory_xids(m)


def _memory_xids(m: Machine) -> list[Xid]:
    return [xid for xid in m.driver.xids or () if xid.code in _ECC_FATAL | _ECC_PENDING]


def _called(xid: Xid, m: Machine) -> str:
    """The GPU of an Xid: by its index if the driver lists it, else by its address."""
    return next((str(gpu.index) for gpu in live_gpus(m) if _is(gpu, xid)), xid.bus_id)


@rule(
    "gpu-unhealthy-hardware",
    title="The NVIDIA driver hangs ({call} does not return)",
    essential=False,
)
def driver_hangs(m: Machine, kb: Knowledge) -> Answer:
    """cudadoctor gave up after a minute; a healthy driver responds within seconds.

    If the driver hangs, `nvidia-smi` and every CUDA program hang too. The usual causes are a GPU
    whose firmware (GSP) stopped responding (Xid 119 or 120 in the kernel log), a reset in progress,
    or a process stuck in the kernel. A process stuck in the kernel is shown in state D by `ps` and
    cannot be killed.

    Look-alikes: without persistence mode, the first driver call initializes every GPU and can take
    half a minute on a machine with eight GPUs. A slow first call is therefore not a fault, and
    `check --fast` does not report it. Once the driver is initialized, a call must return within ten
    seconds.

    Fix: restart the machine. If a normal restart hangs too, use the power button or the management
    controller (BMC). If the driver hangs again, install a newer driver from the same branch. If a
    newer driver does not help, have the hardware checked.
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
    moved = move_vm(m)
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
        title="GPU {gpu} hangs ({call} does not return)" if "gpu" in values else None,
        why=_AFTER_THE_START if later else None,
        confidence=LIKELY if sure else POSSIBLE,
        remedies=restart(m, None if moved else _HUNG_RENTED if m.platform.virtual else _HUNG)
        + _past_gsp(m, kb)
        + moved,
    )


def _of_the_device(m: Machine) -> list[Xid]:
    return [xid for xid in m.driver.xids or () if xid.code in _DEVICE]


_GSP = frozenset({119, 120})
_SINCE_GSP_HOLDS = 570


def _past_gsp(m: Machine, kb: Knowledge) -> Remedies:
    """A newer branch, where the firmware (GSP) of an old one stopped answering."""
    version = m.driver.version
    if version is None or version.branch >= _SINCE_GSP_HOLDS:
        return ()
    timed_out = any(xid.code in _GSP for xid in m.driver.xids or ())
    return upgrade_driver(m, kb, _SINCE_GSP_HOLDS) if timed_out else ()


_HUNG_RENTED = (
    "If this virtual machine also hangs while rebooting, stop and start it in your "
    "provider's console."
)
_HUNG = (
    "If the machine also hangs while restarting, use the power button or the management "
    "controller (BMC)."
)
_AFTER_THE_START = (
    "The driver started, but this call did not return within ten seconds. A healthy GPU responds "
    "immediately."
)


@rule(
    "gpu-unhealthy-hardware",
    title="GPU {which} reports a hardware error: Xid {code} ({meaning})",
    severity=WARNING,
)
def xid_of_the_device(m: Machine) -> Answer:
    """NVIDIA's Xid catalog attributes this error to the GPU, its firmware or its links, not to a
    program.

    GPU errors are recorded in the kernel log; `sudo dmesg | grep -i xid` lists them. Programs on an
    affected GPU can crash or hang until the GPU is reset. Xids such as 13, 31, 43 or 45 are caused
    by programs, so cudadoctor ignores them. If cudadoctor cannot read the kernel log, it reports no
    Xids. An empty log does not prove that the GPU is healthy.

    Look-alikes: if the driver no longer lists the GPU, the cause is gpu-lost.

    Fix: reset the GPU or restart the machine. For Xid 54, make sure that all of the GPU's power
    cables are connected. For Xid 119 and 120 (GSP firmware), a newer driver from the same branch
    often fixes the problem. If the error returns, have the hardware checked.
    """
    bad = _of_the_device(m)
    if not bad:
        return None
    bad = [xid for xid in bad if not _with_the_lost(xid, m)] or bad
    newest = min(bad, key=lambda xid: xid.age_s or 0.0)
    live = live_gpus(m)
    # Beside a lost GPU a restart is due anyway.
    hurt = [gpu for gpu in live if _is(gpu, newest)] if len(live) == len(m.gpus or ()) else []
    code, meaning = newest.code, _DEVICE[newest.code]
    cables = code == _UNPOWERED
    return Found(
        evidence=("driver.xids",),
        values={"which": _called(newest, m), "code": code, "meaning": meaning},
        sure=False,
        yields_to=_with_the_lost(newest, m),
        remedies=_plug_in(m, _CABLES) if cables else reset_or_restart(m, *hurt),
    )


@rule(
    "gpu-unhealthy-hardware",
    title="The driver requests recovery of GPU {which}: {action} (Xid 154)",
    severity=WARNING,
)
def recovery_wanted(m: Machine) -> Answer:
    """Xid 154 is the driver's own assessment of the errors on this GPU.

    Until the GPU has recovered, programs may fail on it or on all GPUs connected to it by NVLink.
    The kernel log shows the driver's request for a recovery action as "GPU recovery action
    changed"; newer versions of `nvidia-smi -q` show it as "GPU Recovery Action". Only the latest
    message counts, because the driver withdraws its request after the recovery.

    Fix: carry out the recovery action that the driver reports. A GPU can be reset only while no
    program is using it. If the driver still reports a recovery action after the recovery attempt,
    have the hardware checked.
    """
    for xid in m.driver.xids or ():
        asked = _RECOVERY.search(xid.text or "") if xid.code == _RECOVERY_CHANGED else None
        action = asked[1].strip() if asked else ""
        if action.lower() not in ("", "none"):
            hurt = [gpu for gpu in live_gpus(m) if _is(gpu, xid)]
            resets = bool(hurt) and "reset" in action.lower()
            first = reset_gpus(m, *hurt) if resets else ()
            if "p2p" in action.lower():
                first = by_hand("drain-p2p", *_DRAIN, keeper_of(m))
            return Found(
                evidence=("driver.xids",),
                values={"which": _called(xid, m), "action": action},
                sure=False,
                yields_to=_with_the_lost(xid, m),
                remedies=first + restart(m),
            )
    return None


_DRAIN = (
    "Stop all jobs that use multiple GPUs",
    "Then check again which recovery action the driver requests: `nvidia-smi -q | grep -i "
    "recovery`. The driver may then request a GPU reset.",
)


def _with_the_lost(xid: Xid, m: Machine) -> Strings:
    """A GPU that the driver still lists has a fault of its own; another's went with the GPU."""
    return () if any(_is(gpu, xid) for gpu in live_gpus(m)) else ("gpu-lost",)


def _is(gpu: Gpu, xid: Xid) -> bool:
    return _among(bus_key(xid.bus_id), {bus_key(gpu.bus_id or "")})


@rule(
    "gpu-unhealthy-hardware",
    title="An NVSwitch reports a fatal error: SXid {code}",
    severity=WARNING,
)
def fault_of_a_switch(m: Machine) -> Answer:
    """All GPUs connected to this switch may lose their NVLink connections, in which case NCCL jobs
    fail or hang.

    NVSwitch errors are recorded in the kernel log; `sudo dmesg | grep SXid` lists them. cudadoctor
    counts only messages marked "Fatal". /var/log/fabricmanager.log shows which NVLink is affected.
    GPU errors are logged as "Xid", not "SXid".

    Fix: restart the machine to retrain the NVLink links. If the error returns, have the hardware
    checked.
    """
    fatal = [found[1] for found in map(_SWITCH.search, m.driver.log or ()) if found]
    if not fatal:
        return None
    return Found(
        evidence=("driver.log",),
        values={"code": fatal[-1]},
        sure=False,
        remedies=restart(m),
    )


@rule(
    "gpu-unhealthy-hardware",
    title="GPU {which} cannot be initialized: an external power cable is missing",
)
def gpu_not_started(m: Machine) -> Answer:
    """The driver finds the GPU on the bus but cannot initialize it.

    `nvidia-smi` lists fewer GPUs than the machine has. NVML returns error 8 if external power is
    missing, and error 11 if the GPU's interrupts are not being delivered.

    Look-alikes: NVML error 4 means that access was denied. In a scheduler job, this error usually
    comes from a GPU that belongs to another user, so it does not indicate a fault.

    Fix: for NVML error 8, shut down the machine and plug in every power cable of the GPU. For NVML
    error 11, update the motherboard's BIOS, then try another slot.
    """
    codes = [gpu.code for gpu in m.gpus or () if gpu.code in (NO_POWER, NO_INTERRUPTS)]
    if not codes:
        return None
    power = codes[0] == NO_POWER
    alike = [(n, gpu.index) for n, gpu in enumerate(m.gpus or ()) if gpu.code == codes[0]]
    return Found(
        evidence=tuple(f"gpus.{n}.code" for n, _ in alike),
        values={"which": [index for _, index in alike]},
        title=None
        if power
        else "GPU {which} cannot be initialized: its interrupts are not being delivered",
        remedies=_plug_in(m, _CABLES if power else _INTERRUPTS),
    )


_CABLES = (
    "Connect the GPU's power cables",
    "Shut down the machine, then connect each of the GPU's power connectors to the power supply "
    "with a separate cable.",
)
_INTERRUPTS = (
    "Update the motherboard BIOS",
    "Install the latest BIOS from the motherboard vendor. If that does not help, move the GPU to "
    "another slot.",
)


def _plug_in(m: Machine, step: tuple[str, str]) -> Remedies:
    return on_hardware(m, "gpu-on-its-board", *step)

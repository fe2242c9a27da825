"""Is the GPU open for computing: fabric, compute mode, MIG?"""

from __future__ import annotations

import re

from msgspec.structs import replace

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
    Remedy,
)
from cudadoctor.model.machine import Gpu, Machine
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.plan.remedies import (
    busy_gpus,
    by_hand,
    grant_gpu,
    held_back,
    mig_instances,
    nvlink_off,
    reset_gpus,
    restart,
    set_gpus,
    set_variables,
)
from cudadoctor.plan.remedies import fabric_manager as fabric_commands
from cudadoctor.plan.remedies.process import (
    has_nvlink_5,
    indexes_of,
    keeper_of,
    lasting,
    notebook_of,
)
from cudadoctor.rules.evidence.signs import (
    NOT_READY,
    NOT_READY_WORDS,
    cuda_works,
    gpu_nodes,
    has_fabric,
    host_error_with,
    live_gpus,
    on_linux,
    variable,
)

_BUSY = ("devices are busy or unavailable", "device(s) is/are busy or unavailable")


@rule(
    "fabric-manager",
    title="The NVSwitch fabric is not ready (CUDA error 802)",
)
def fabric_manager(m: Machine, kb: Knowledge) -> Answer:
    """On machines with NVSwitch, CUDA cannot initialize until the fabric manager is ready, even
    though nvidia-smi works.

    torch says "Unexpected error from cudaGetDeviceCount() ... Error 802: system not yet
    initialized". The nvidia-fabricmanager service must be running, and its version must exactly
    match the driver version. Check with `systemctl status nvidia-fabricmanager` and `journalctl -u
    nvidia-fabricmanager`. On Hopper and newer GPUs, `nvidia-smi -q | grep -A3 Fabric` shows the
    state of each GPU, which should be "Completed".

    Look-alikes: without NVSwitch, error 802 has other causes: the GPUs' confidential-computing
    ready state has not been set, a MIG change is in progress, a vGPU has no license, or the machine
    has just booted. In a container, or in a virtual machine that has only some of the host's GPUs,
    the fabric manager runs on the host.

    Fix: install the fabric manager at the same version as the driver, then start the fabric
    manager. Machines with NVLink 5 (B200, B300) also need the nvlsm package and the ib_umad kernel
    module. Do not restart the fabric manager while jobs are running, because they would fail.
    """
    message, joined = host_error_with(m, *NOT_READY_WORDS), has_fabric(m, kb)
    if cuda_works(m) or (m.driver.libcuda.code != NOT_READY and not message) or joined is False:
        return None
    fabric, driver = m.driver.fabric, m.driver.version
    differs = None not in (fabric.version, driver) and fabric.version != driver
    sure = fabric.nvswitches and (fabric.manager != "active" or differs)
    evidence = (message or "driver.libcuda.code", "driver.fabric")
    if _is_guest(m):
        return Found(
            evidence=evidence,
            confidence=LIKELY if joined else POSSIBLE,
            title="The host has not set up NVLink for this virtual machine (CUDA error 802)",
            why="This virtual machine has GPUs from an NVSwitch system but no NVSwitch. The "
            "fabric manager runs on the host, which must activate the partition with these "
            "GPUs.",
            remedies=_partition(m),
        )
    if not fabric.nvswitches and any(_OF_A_RACK.search(gpu.name or "") for gpu in m.gpus or ()):
        return Found(
            evidence=evidence,
            confidence=LIKELY,
            title="The rack's NVLink fabric is not ready (CUDA error 802)",
            why="In a GB200 or GB300 rack, the NVLink switches are in separate trays. Until "
            "NMX-Controller has set up the fabric there, CUDA cannot initialize.",
            remedies=by_hand("fabric-of-rack", *_SWITCH_TRAYS, keeper_of(m)),
        )
    state = "differs" if differs and fabric.manager != "absent" else fabric.manager
    return Found(
        evidence=evidence,
        values={"version": fabric.version, "driver": driver} if state == "differs" else {},
        # What a container does not show may be on its host.
        title=None if state == "absent" and m.container.kind else _FABRIC.get(state or ""),
        why="The fabric manager and the driver must be exactly the same version, or CUDA cannot "
        "initialize."
        if state == "differs"
        else "With NVLink 5, the fabric manager needs the nvlsm daemon and the ib_umad kernel "
        "module."
        if state == "failed" and has_nvlink_5(m)
        else None,
        confidence=CERTAIN if sure else LIKELY if joined else POSSIBLE,
        remedies=start_fabric(m),
    )


def _is_guest(m: Machine) -> bool:
    """A virtual machine with some GPUs of a host that keeps the switches."""
    switches = m.driver.fabric.nvswitches
    return bool(m.platform.virtual) and switches == 0 and not has_nvlink_5(m)


def _partition(m: Machine) -> Remedies:
    note = (
        "In the list, find the partition that contains these GPUs, activate it with `fmpm -a "
        "ID`, and restart the virtual machine. If a provider runs the host, contact the "
        "provider's support team."
    )
    activate = Remedy(
        id="fabric-partition",
        title="List the NVLink partitions",
        where="host",
        needs_root=True,
        commands=(("fmpm", "-l"),),
        note=note,
    )
    return activate, *nvlink_off(m)


_OF_A_RACK = re.compile(r"\bGB[23]00\b")
_SWITCH_TRAYS = (
    "Bring up the rack's NVLink switch trays",
    "Check that the switch trays are on and that NMX-Controller is running on them. Then restart "
    "this compute tray. `nvidia-smi -q | grep -A3 Fabric` must show Completed and Success.",
)
_START = "Start the fabric manager"
_FABRIC = {
    "absent": "The fabric manager is not installed (CUDA error 802)",
    "inactive": "The fabric manager is not running (CUDA error 802)",
    "failed": "The fabric manager has failed (CUDA error 802)",
    "differs": "The fabric manager ({version}) does not match driver {driver} (CUDA error 802)",
}


def start_fabric(m: Machine) -> Remedies:
    """The service in the driver's version. From inside a container the host's tools are unknown."""
    if not on_linux(m):
        return ()
    driver, state = m.driver.version or "", m.driver.fabric.manager
    commands = fabric_commands(m) if not m.container.kind else ()
    text, title = None, _START
    if not commands:
        commands = (("systemctl", "enable", "--now", "nvidia-fabricmanager"),)
        package = f"nvidia-fabricmanager {driver}" if driver else "nvidia-fabricmanager"
        text = f"First install {package}: it must be exactly the same version as the driver."
    elif len(commands) > 1:
        title = f"Install and start fabric manager {driver}"
        if m.driver.fabric.version == m.driver.version:
            title = "Install nvlsm (required for NVLink 5) and start the fabric manager"
    elif state == "active":
        title = "Restart the fabric manager"
    notes = ["Stop all CUDA programs first, and restart them when you are done."]
    if text and (state is None or m.container.kind):
        notes.insert(0, text)
        text = None
    if state == "failed":
        notes.append("If the service fails again, `journalctl -u nvidia-fabricmanager` shows why.")
    behind = m.driver.fabric.version not in (None, m.driver.version)
    if behind and not text and keeper_of(m) == "here":
        notes.append(held_back(m) or "")
    step = Remedy(id="fabric-manager", title=title, where=keeper_of(m), needs_root=True)
    return (replace(step, commands=commands, manual=text, note=" ".join(filter(None, notes))),)


@rule(
    "confidential-computing",
    title="Confidential computing is on, but the GPUs' ready state is not set (error 802)",
)
def confidential_computing(m: Machine) -> Answer:
    """Until the GPUs' confidential-computing ready state is set, CUDA programs fail with error 802,
    even though nvidia-smi works.

    With confidential computing, a GPU accepts no work until it has been attested. A service in the
    virtual machine then sets the GPU's confidential-computing ready state. `nvidia-smi conf-compute
    -grs` shows whether the ready state is set.

    Look-alikes: on machines with NVSwitch, the cause of error 802 can also be fabric-manager. To
    tell the two causes apart, check whether NVML reports that confidential computing is on.

    Fix: run GPU attestation. If you do not need attestation, set the GPUs' confidential-computing
    ready state by hand: `nvidia-smi conf-compute -srs 1` as root.
    """
    if (
        m.driver.confidential is not True
        or m.driver.confidential_ready is not False
        or cuda_works(m)
    ):
        return None
    return Found(
        evidence=("driver.confidential", "driver.confidential_ready"),
        remedies=set_gpus(
            m,
            "Set the GPUs' confidential-computing state to ready until the next reboot",
            "nvidia-smi conf-compute -srs 1",
            (),
            id="confidential-ready",
            note="This command skips attestation. If you rely on attestation, start the "
            "attestation service instead.",
        ),
    )


@rule("gpu-excluded", title="The driver setting NVreg_ExcludedGpus hides {count} GPUs")
def gpu_excluded(m: Machine) -> Answer:
    """The kernel module ignores these GPUs, so neither CUDA nor nvidia-smi shows them.

    Someone set NVreg_ExcludedGpus on purpose, usually because a GPU is broken or reserved. If other
    GPUs are still available, this finding is for information only. NVML still counts the excluded
    GPUs.

    Fix: find the setting with `grep -rs ExcludedGpus /etc/modprobe.d /proc/cmdline`. Remove the
    setting, rebuild the initramfs (`update-initramfs -u` on Debian and Ubuntu, `dracut --force` on
    Red Hat and SUSE) and restart the machine. If the GPU is broken, keep the setting.
    """
    if not m.driver.excluded:
        return None
    left = live_gpus(m) or cuda_works(m)
    remedies = by_hand(
        "include-gpus",
        "Remove the NVreg_ExcludedGpus setting",
        "Find the setting with `grep -rs ExcludedGpus /etc/modprobe.d /proc/cmdline` and remove "
        "it. Then rebuild the initramfs (`update-initramfs -u` or `dracut --force`) and restart.",
        keeper_of(m),
        note="Keep the setting if the GPU was excluded because it is faulty.",
    )
    return Found(
        title="The driver setting NVreg_ExcludedGpus hides a GPU"
        if m.driver.excluded == 1
        else None,
        evidence=("driver.excluded",),
        values={"count": m.driver.excluded},
        severity=INFO if left else ERROR,
        remedies=remedies if not left and on_linux(m) else (),
    )


@rule("compute-mode", title="The GPU is busy or unavailable (CUDA error 46)")
def compute_mode(m: Machine) -> Answer:
    """The GPU accepts no new CUDA programs: either its compute mode forbids them, or something is
    still using the GPU.

    torch says "CUDA error: CUDA-capable device(s) is/are busy or unavailable" (error 46), even
    though it reports the right number of GPUs. `nvidia-smi -q -d COMPUTE` shows the compute mode:
    Prohibited allows no CUDA programs, Exclusive_Process allows one at a time, and Default allows
    any number.

    Look-alikes: if the GPU's memory is full, the error is "out of memory" instead. Clusters set
    exclusive mode on purpose: use the GPU that the scheduler gave you, with one process per GPU.

    Fix: set the compute mode of GPU 0 to Default with `nvidia-smi -i 0 -c 0` as root. If the mode
    is already Default, stop the program that is using the GPU. If no program is using the GPU,
    reset it.
    """
    message, gpus = host_error_with(m, *_BUSY), live_gpus(m)
    prohibited = [gpu for gpu in gpus if gpu.compute_mode == "prohibited"]
    exclusive = [gpu for gpu in gpus if gpu.compute_mode == "exclusive"]
    # An MPS server is what lets several programs share a GPU in this mode.
    taken = [gpu for gpu in exclusive if any(p.name != _SERVER for p in gpu.processes or ())]
    if message is None and not (gpus and len(prohibited) + len(taken) == len(gpus)):
        return None
    shut = prohibited or taken or exclusive
    values: dict[str, object] = {"which": indexes_of(shut)} if shut else {}
    title, why = (_PROHIBITED if prohibited else _EXCLUSIVE) if shut else (None, _HELD)
    if taken and not prohibited:
        held = [process for gpu in taken for process in gpu.processes or ()]
        values["process"] = f"{held[0].name or 'a process'} (pid {held[0].pid})"
        values["which"] = taken[0].index
        title = "GPU {which} allows only one process at a time and is in use by {process}"
    return Found(
        evidence=(message, "gpus") if message else ("gpus.0.compute_mode", "gpus.0.processes"),
        values=values,
        title=title,
        why=why,
        sure=prohibited,
        remedies=_admit(m, shut) if shut else _free(m, gpus),
    )


_SERVER = "nvidia-cuda-mps-server"
_HELD = (
    "Possible causes are a process that is still exiting, a dead MPS daemon, or a GPU that needs "
    "a reset."
)
_PROHIBITED = (
    "GPU {which} is in Prohibited compute mode, so no CUDA program can use it",
    "Prohibited is not the default mode; someone set it. In Default mode, all programs can "
    "use the GPU.",
)
_EXCLUSIVE = (
    "GPU {which} allows only one process at a time and is in use",
    "The GPU's compute mode is exclusive. On shared machines, administrators set this mode on "
    "purpose so that jobs do not interfere with each other.",
)


_OF_JOB = (
    "Other jobs are using the busy GPUs. In the job script, set CUDA_VISIBLE_DEVICES to this "
    "job's GPUs. Slurm does this automatically; PBS lists the GPUs in a file, so use `export "
    "CUDA_VISIBLE_DEVICES=$(sed 's/.*gpu//' $PBS_GPUFILE | paste -sd,)`."
)


def _admit(m: Machine, shut: list[Gpu]) -> Remedies:
    """Another GPU first; a running job keeps its GPU, and the mode is the administrator's."""
    exclusive = any(gpu.compute_mode == "exclusive" for gpu in shut)
    if exclusive and m.container.scheduler in ("slurm", "lsf", "pbs"):
        return by_hand("gpu-of-job", "Use the GPU that the scheduler gave this job", _OF_JOB)
    running = [process for gpu in shut for process in gpu.processes or ()]
    note = "This mode protects a running job; wait until that job finishes." if exclusive else None
    title = f"Set the compute mode of GPU {indexes_of(shut)} to Default"
    mode = set_gpus(m, title, "nvidia-smi -i {gpus} -c 0", shut, id="compute-mode", note=note)
    if exclusive and running:
        mode = tuple(replace(way, where="admin") for way in mode)
    return busy_gpus(m, shut) + mode if exclusive else mode


_MPS = "If you use MPS, restart its daemon: `nvidia-cuda-mps-control -d`."


def _free(m: Machine, gpus: tuple[Gpu, ...]) -> Remedies:
    if notebook_of(m):
        return restart(m)
    nodes = gpu_nodes(m) or tuple(f"/dev/nvidia{gpu.index}" for gpu in gpus)
    known = on_linux(m) and bool(nodes)
    look = Remedy(
        id="free-gpu",
        title="Find out what is using the GPU",
        where=keeper_of(m),
        needs_root=known,
        commands=(("fuser", "-v", *nodes) if known else ("nvidia-smi",),),
        note=f"If your own programs are listed, stop them. {_MPS}"
        if known
        else "If your own programs are listed, stop them.",
    )
    return look, *(reset_gpus(m, *gpus) if gpus else ())


@rule(
    "mig-misconfigured",
    title="CUDA does not see GPU {indexes}: MIG mode is on, but no MIG instance exists",
)
def mig_misconfigured(m: Machine) -> Answer:
    """In MIG mode, programs can use only MIG instances. Restarting the machine removes all
    instances.

    CUDA finds no devices ("No CUDA GPUs are available"), and `nvidia-smi` prints "No MIG devices
    found". `nvidia-smi -L` lists the MIG instances with their UUIDs. An instance gets a new UUID
    when it is recreated, so a UUID stored in CUDA_VISIBLE_DEVICES may no longer exist.

    A process can use only one MIG instance, and NCCL does not work between instances of the same
    GPU.

    Fix: set CUDA_VISIBLE_DEVICES to an existing MIG instance. If there is no instance, create one
    (`nvidia-smi mig -cgi ... -C`), or turn MIG mode off while the GPU is idle (`nvidia-smi -i 0
    -mig 0`). Run these commands as root.
    """
    live = live_gpus(m)
    empty = [gpu for gpu in live if gpu.mig and gpu.mig_devices == ()]
    # Where CUDA works on another GPU, this one is missing unless somebody chose the GPUs.
    chosen = variable(m, "CUDA_VISIBLE_DEVICES") or m.container.scheduler or m.container.kind
    if not any(gpu.mig for gpu in live) or (cuda_works(m) and (chosen or not empty)):
        return None
    asked = variable(m, "CUDA_VISIBLE_DEVICES").partition(",")[0].strip()
    known = [uuid for gpu in m.gpus or () for uuid in gpu.mig_devices or ()]
    named = asked.startswith(("MIG-", "<mig-"))
    stale = named and not any(uuid.startswith(asked) for uuid in known)
    if not empty and not stale:
        return None
    living = [uuid for gpu in live for uuid in gpu.mig_devices or ()] if stale else []
    wrong_name = living or not empty
    chose_empty = not cuda_works(m) and asked in {str(gpu.index) for gpu in empty}
    title = "CUDA_VISIBLE_DEVICES refers to a MIG instance that does not exist"
    why = "MIG instances get new UUIDs when they are recreated, for example after a restart."
    return Found(
        title=title
        if wrong_name
        else "CUDA does not see GPUs {indexes}: MIG mode is on, but there are no MIG instances"
        if len(empty) > 1
        else None,
        why=why if wrong_name else None,
        evidence=("env.CUDA_VISIBLE_DEVICES", "gpus")
        if wrong_name
        else tuple(f"gpus.{gpu.index}.mig_devices" for gpu in empty[:4]),
        values={"indexes": indexes_of(empty)},
        severity=ERROR if stale or len(empty) == len(live) or chose_empty else WARNING,
        remedies=_name_a_living(m, living)
        if living
        else mig_instances(m, empty, leave_first=any(gpu.mig is False for gpu in live)),
    )


def _name_a_living(m: Machine, living: list[str]) -> Remedies:
    """The variable with an instance that is there; a job's own list is the scheduler's to make."""
    if m.container.scheduler or m.container.kind == "kubernetes":
        return grant_gpu(m)
    values = {"CUDA_VISIBLE_DEVICES": living[0]}
    (named,) = set_variables("mig-uuid", "Use an existing MIG instance", values)
    others = (
        f"A process can use only one MIG instance. Other MIG instances: {', '.join(living[1:])}."
    )
    permanent = lasting(m, "CUDA_VISIBLE_DEVICES")
    return (replace(named, note=f"{others} {permanent}" if living[1:] else permanent),)

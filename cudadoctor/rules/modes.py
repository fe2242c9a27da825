"""Is the GPU open for computing: fabric, compute mode, MIG?"""

from __future__ import annotations

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
)
from cudadoctor.model.machine import Machine
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.plan.remedies import by_hand, grant_gpu, set_variables
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.evidence.signs import (
    NOT_READY,
    NOT_READY_WORDS,
    cuda_works,
    has_fabric,
    host_error_with,
    live_gpus,
    variable,
)

_BUSY = ("devices are busy or unavailable", "device(s) is/are busy or unavailable")


@rule(
    "fabric-manager",
    title="The NVSwitch fabric is not ready (CUDA error 802)",
)
def fabric_manager(m: Machine, kb: Knowledge) -> Answer:
    """On machines with NVSwitch CUDA waits for the fabric manager, while nvidia-smi looks fine.

    The daemon nvidia-fabricmanager must run, in exactly the driver's version. On Hopper and newer
    each GPU also tells its fabric state. In a container or a virtual machine the host runs the
    daemon. Without any NVSwitch the same error has other reasons, and this is not said:
    confidential computing that is not set ready, a MIG change under way, a vGPU without its
    licence, or a machine that has only now booted.

    Cured by installing the fabric manager of the driver's version and starting it. Restarting it
    while jobs run breaks them.
    """
    message, joined = host_error_with(m, *NOT_READY_WORDS), has_fabric(m, kb)
    if cuda_works(m) or (m.driver.libcuda.code != NOT_READY and not message) or joined is False:
        return None
    fabric, driver, keeper = m.driver.fabric, m.driver.version, keeper_of(m)
    differs = None not in (fabric.version, driver) and fabric.version != driver
    sure = fabric.nvswitches and (fabric.manager != "active" or differs)
    return Found(
        evidence=(message or "driver.libcuda.code", "driver.fabric"),
        confidence=CERTAIN if sure else LIKELY if joined else POSSIBLE,
        remedies=by_hand(
            "fabric-manager",
            "Start the fabric manager of this driver",
            f"Install nvidia-fabricmanager of exactly version {driver or 'of the driver'}, "
            "then run, as root, `systemctl enable --now nvidia-fabricmanager` and start the "
            "CUDA programs again.",
            keeper if keeper != "here" else "admin",
        ),
    )


@rule("confidential-computing", title="Confidential computing is on and takes no work yet")
def confidential_computing(m: Machine) -> Answer:
    """Until somebody sets the GPUs ready, every CUDA program ends in error 802; nvidia-smi works.

    In this mode a GPU waits until its attestation was checked; a service of the virtual machine
    then sets it ready. Told from fabric-manager, which gives the same error where there are
    NVSwitches, by NVML's own word on both.

    Cured by the attestation service, or by hand where none is wanted.
    """
    if (
        m.driver.confidential is not True
        or m.driver.confidential_ready is not False
        or cuda_works(m)
    ):
        return None
    return Found(
        evidence=("driver.confidential", "driver.confidential_ready"),
        remedies=by_hand(
            "confidential-ready",
            "Set the GPUs ready",
            (
                "After the attestation, as root: `nvidia-smi conf-compute -srs 1`. "
                "`nvidia-smi conf-compute -grs` shows the state."
            ),
            "admin",
        ),
    )


@rule("gpu-excluded", title="A setting of the driver keeps GPUs from use: {count}")
def gpu_excluded(m: Machine) -> Answer:
    """The module was told to leave them alone (NVreg_ExcludedGpus), so no program sees them.

    Somebody set it on purpose, mostly for a GPU that is broken or meant for another use: where
    others are left it is information. NVML counts them; nvidia-smi does not show them.

    Cured by taking the setting out of modprobe.d and a reboot, if they are wanted.
    """
    if not m.driver.excluded:
        return None
    left = live_gpus(m) or cuda_works(m)
    remedies = by_hand(
        "include-gpus",
        "Include the GPUs",
        "Take NVreg_ExcludedGpus out of the files in /etc/modprobe.d and off the kernel's "
        "command line, make the initial ramdisk anew and reboot, if they are wanted.",
        "admin",
    )
    return Found(
        evidence=("driver.excluded",),
        values={"count": m.driver.excluded},
        severity=INFO if left else ERROR,
        remedies=() if left else remedies,
    )


@rule("compute-mode", title="The compute mode of the GPU keeps this program out ({modes})")
def compute_mode(m: Machine) -> Answer:
    """In mode prohibited a GPU takes no CUDA program, in mode exclusive only one at a time.

    Creating a context then ends in "busy or unavailable" (CUDA error 46), while cuInit and the
    number of devices look fine. Clusters set exclusive on purpose: then the GPU that the scheduler
    gave is the one to use. On a GPU in default mode the same error means a process that is ending,
    a dead MPS daemon or a GPU that needs a reset.
    """
    message, gpus = host_error_with(m, *_BUSY), live_gpus(m)
    modes = {gpu.compute_mode for gpu in gpus if gpu.compute_mode}
    shut = [
        gpu.compute_mode == "prohibited" or (gpu.compute_mode == "exclusive" and gpu.processes)
        for gpu in gpus
    ]
    if message is None and not (gpus and all(shut)):
        return None
    return Found(
        evidence=(message, "gpus") if message else ("gpus.0.compute_mode", "gpus.0.processes"),
        values={"modes": sorted(modes) or "not known"},
        sure="prohibited" in modes,
        remedies=by_hand(
            "compute-mode",
            "Set the compute mode to default",
            "As root: `nvidia-smi -i INDEX -c DEFAULT`. On a cluster, use the GPU of the "
            "job, and MPS where several ranks share it.",
            "admin",
        ),
    )


@rule("mig-misconfigured", title="MIG is on and no instance exists on GPU {indexes}")
def mig_misconfigured(m: Machine) -> Answer:
    """A GPU in MIG mode can be used through its instances only; without one CUDA sees no device.

    nvidia-smi -L lists the instances with their UUIDs, which change whenever they are made anew, so
    a UUID kept in CUDA_VISIBLE_DEVICES can be stale. A process sees one MIG instance at a time, and
    NCCL does not work between instances of one GPU.

    Cured by naming an instance that exists, by making instances (nvidia-smi mig -cgi ... -C), or by
    leaving MIG mode while the GPU is idle; the last two need root.
    """
    live = live_gpus(m)
    if cuda_works(m) or not any(gpu.mig for gpu in live):
        return None
    empty = [gpu.index for gpu in live if gpu.mig and gpu.mig_devices == ()]
    asked = variable(m, "CUDA_VISIBLE_DEVICES").partition(",")[0].strip()
    known = [uuid for gpu in m.gpus or () for uuid in gpu.mig_devices or ()]
    named = asked.startswith(("MIG-", "<mig-"))
    stale = named and not any(uuid.startswith(asked) for uuid in known)
    if not empty and not stale:
        return None
    living = [uuid for gpu in live for uuid in gpu.mig_devices or ()] if stale else []
    wrong_name = living or not empty
    made = by_hand(
        "mig-instances",
        "Make MIG instances or leave MIG mode",
        "As root: `nvidia-smi mig -cgi PROFILE -C` (`nvidia-smi mig -lgip` lists the profiles), "
        "or `nvidia-smi -i INDEX -mig 0` while the GPU is idle. `nvidia-smi -L` lists the UUIDs.",
        "admin",
    )
    title = "CUDA_VISIBLE_DEVICES names a MIG instance that does not exist"
    return Found(
        title=title if wrong_name else None,
        evidence=("env.CUDA_VISIBLE_DEVICES", "gpus") if wrong_name else ("gpus.0.mig_devices",),
        values={"indexes": empty},
        severity=ERROR if stale or len(empty) == len(live) else WARNING,
        remedies=_name_a_living(m, living) if living else made,
    )


def _name_a_living(m: Machine, living: list[str]) -> Remedies:
    """The variable with an instance that is there; a job's own list is the scheduler's to make."""
    if m.container.scheduler or m.container.kind == "kubernetes":
        return grant_gpu(m)
    values = {"CUDA_VISIBLE_DEVICES": living[0]}
    (named,) = set_variables("mig-uuid", "Name a MIG instance that exists", values)
    others = f"A process uses one instance. The others here: {', '.join(living[1:])}."
    return (replace(named, note=others) if living[1:] else named,)

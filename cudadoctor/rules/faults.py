"""Does this release of the driver have a fault that is known?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.model.rule import Found, rule
from cudadoctor.plan.remedies import by_hand, upgrade_driver
from cudadoctor.rules.evidence.signs import answered, cuda_works, live_gpus, log_text

if TYPE_CHECKING:
    from cudadoctor.knowledge import DriverFault, Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine

_GRAVE = {"error": Severity.ERROR, "warning": Severity.WARNING, "info": Severity.INFO}


@rule(
    "driver-bug",
    title="Driver {driver} has a known fault",
    severity=Severity.WARNING,
    yields_to=("gpu-lost", "driver-unsupported-gpu"),
)
def driver_bug(m: Machine, kb: Knowledge) -> Found | None:
    """A fault of this release is known, and this machine is of the kind that meets it.

    Told by the release where the source names the first and the last with the fault, and by its
    signs (words in the kernel log, the code of cuInit) where it does not hang on the release. A
    fault between GPUs is told only where there are several, and one of P2P only where the driver
    offers it. An information means that it was seen on such machines, not on this one.

    Told from driver-too-old by the CUDA version, which fits, and from torch-bug, where another
    torch cures it. Cured by the release that its source names; HMM, where that is the fault, is
    switched off by an option of the module.
    """
    for fault in kb.driver_faults if _on_linux(m) else ():
        seen = _signs(fault, m) if fault.log else _of_release(fault, m, kb)
        if seen:
            return _told(fault, seen, m, kb)
    return None


def _on_linux(m: Machine) -> bool:
    """On Windows and in WSL the driver counts its releases otherwise, and a Jetson has its own."""
    return m.platform.system in (None, "Linux") and not (m.platform.wsl or m.platform.jetson)


def _signs(fault: DriverFault, m: Machine) -> tuple[str, ...]:
    """The facts that show it: the words in the log, and the code of cuInit where one is named."""
    log = log_text(m)
    if not any(words in log for words in fault.log):
        return ()
    code = m.driver.libcuda.code
    if fault.cuinit is None:
        return ("driver.log",)
    if cuda_works(m) or code not in (None, fault.cuinit) or not answered(m):
        return ()
    return ("driver.log", *(("driver.libcuda.code",) if code is not None else ()))


def _of_release(fault: DriverFault, m: Machine, kb: Knowledge) -> tuple[str, ...]:
    """The facts that show it: the release, and what else the fault hangs on."""
    version, gpus = m.driver.version, live_gpus(m)
    if version is None or fault.first is None or fault.below is None:
        return ()
    if not fault.first <= version < fault.below or (fault.several and len(gpus) < 2):
        return ()
    if fault.flavour and m.driver.flavour != fault.flavour:
        return ()
    named = [gpu for gpu in gpus if fault.gpus is None or fault.gpus in (gpu.name or "")]
    if len(named) < 1 + fault.several or (fault.p2p and not _offered(m, {g.index for g in named})):
        return ()
    models = [kb.gpu_by_name(gpu.name) for gpu in named if gpu.name]
    if fault.data_center and not any(one is not None and one.data_center for one in models):
        return ()
    release = "driver.kernel" if m.driver.kernel else "driver.reported"
    return (release, *(("driver.pairs",) if fault.p2p else ()), *(("gpus",) if fault.gpus else ()))


def _offered(m: Machine, indexes: set[int]) -> bool:
    """Whether the driver offers P2P between two of these GPUs."""
    pairs = m.driver.pairs or ()
    return any(one.p2p == "ok" and {one.first, one.second} <= indexes for one in pairs)


def _told(fault: DriverFault, seen: tuple[str, ...], m: Machine, kb: Knowledge) -> Found:
    return Found(
        title=fault.title,
        why=fault.why,
        evidence=seen,
        values={"driver": m.driver.version or ""},
        cites=fault.sources,
        severity=_GRAVE[fault.severity],
        confidence=Confidence.POSSIBLE if fault.uncertain else Confidence.LIKELY,
        remedies=_cure(fault, m, kb),
    )


def _cure(fault: DriverFault, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    if fault.cure == "upgrade":
        return upgrade_driver(m, kb, fault.fixed_branch) if fault.fixed_branch else ()
    text = "As root, write `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/uvm.conf, "
    text += "then reboot. A newer kernel may do as well. Only programs that let the GPU read "
    text += "ordinary memory of the host need HMM, and torch does not."
    return by_hand("hmm-off", "Switch HMM off in the module nvidia_uvm", text, "admin")


RULES = (driver_bug,)

"""What remains: something failed that ought to work, and no other rule says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.catalogue import CATALOGUE
from cudadoctor.findings import Confidence
from cudadoctor.remedies import by_hand, reload_uvm
from cudadoctor.rule import Found, need, rule
from cudadoctor.rules.signs import (
    NO_LIBRARY,
    NOT_FOUND,
    NOT_READY,
    NOT_READY_WORDS,
    SUCCESS,
    UNKNOWN,
    UNKNOWN_WORDS,
    answered,
    code_path,
    cuda_works,
    driver_code,
    gpu_present,
    has_fabric,
    heard,
    uvm_missing,
)

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import Remedy
    from cudadoctor.knowledge import Knowledge

_EXPLAINS_NO_FAILURE = frozenset(
    {
        "wrong-interpreter",
        "torch-index-wrong",
        "build-isolation",
        "pynvml-conflict",
        "toolkit-missing",
        "toolkit-torch-mismatch",
        "toolkit-env-wrong",
        "host-compiler-unsupported",
        "arch-list-wrong",
        "amp-no-benefit",
        "tf32-off",
        "slow-dataloader",
        "pcie-degraded",
        "thermal-throttle",
        "clocks-capped",
        "gpu-topology",
        "p2p-not-possible",
        "cpu-bound",
        "not-environment",
        "unknown",
    }
)
_EXPLAINED_BY = tuple(cause for cause in CATALOGUE if cause not in _EXPLAINS_NO_FAILURE)
"""Every cause that can make training fail. An explanation counts only where it is as grave."""

_NOT_READY = "CUDA answers 802 (system not yet initialized), and there is no NVSwitch here."
_STUCK_UVM = "CUDA fails to start (error 999), though the module nvidia_uvm is loaded"
_AFTER_SUSPEND = "After a suspend this module can stop working until it is loaded again."
_WAIT = (
    "The driver may still be starting, or a MIG change may be under way. If it stays: a vGPU needs "
    "its licence service, and confidential computing its attestation (`nvidia-smi conf-compute "
    "-grs` shows that state)."
)


@rule("unknown", title="{what}, and no known cause explains it", yields_to=_EXPLAINED_BY)
def unknown(m: Machine, kb: Knowledge) -> Found | None:
    """Something that ought to work on this machine failed; the evidence shows its own words.

    It is said only where the driver and the GPU answer, or where torch itself fails, and where no
    other cause is at least likely. A look with all probes (without --fast and --no-smoke) and the
    first error of the program's own log decide most of these. `cudadoctor facts` keeps what
    is known of this machine for a bug report.
    """
    failure = _failure(m)
    if failure is None:
        if m.torch.installed and m.look in ("full", "no-smoke"):
            need(m.torch.imported, "torch.imported")
        return None
    what, path = failure
    # A report that hints at a cause is worth more than one that only shows a failure.
    sure = Confidence.POSSIBLE if m.look == "report" else Confidence.LIKELY
    title, why, remedies = _hint(m, kb)
    return Found(
        evidence=(path,),
        values={"what": what},
        confidence=sure,
        title=title,
        why=why,
        remedies=remedies,
    )


def _hint(m: Machine, kb: Knowledge) -> tuple[str | None, str | None, tuple[Remedy, ...]]:
    """Title, why and what to try, where the code that CUDA answers leaves only a few reasons."""
    codes = (m.driver.libcuda.code, m.driver.libcuda.clean_code)
    if has_fabric(m, kb) is False and (NOT_READY in codes or heard(m, *NOT_READY_WORDS)):
        return None, _NOT_READY, by_hand("wait-for-driver", "Wait a minute and check again", _WAIT)
    if uvm_missing(m) is False and (UNKNOWN in codes or heard(m, *UNKNOWN_WORDS)):
        return _STUCK_UVM, _AFTER_SUSPEND, reload_uvm(m)
    return None, None, ()


def _failure(m: Machine) -> tuple[str, str] | None:
    """What failed, and the fact that shows it."""
    torch = m.torch.imported
    if torch is not None and torch.hung:
        return "torch does not come back from its import or first look", "torch.imported.hung"
    if torch is not None and torch.ok is False:
        return "torch cannot be imported", "torch.imported.error"
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        if stage.status in ("failed", "timed-out"):
            return f"The stage {stage.name} of the training step failed", f"smoke.stages.{number}"
    if m.smoke and m.smoke.ended:
        return "The training step ended early", "smoke.ended"
    if m.torch.build != "cuda" or not (gpu_present(m) or answered(m)):
        return None
    if torch is not None and torch.cuda_available is False:
        shown = "torch.imported.cuda_error" if torch.cuda_error else "torch.imported.cuda_available"
        return "torch does not see the GPU", shown
    if m.driver.libcuda.code not in (None, SUCCESS):
        return f"CUDA does not start (cuInit: {m.driver.libcuda.code})", "driver.libcuda.code"
    # NVML only watches: where CUDA reaches a GPU, no training fails for its silence.
    code = SUCCESS if cuda_works(m) else driver_code(m)
    if code == NOT_FOUND:
        return "The driver started no GPU", code_path(m)
    if code not in (None, SUCCESS, NO_LIBRARY):
        return f"The driver refuses to answer (NVML: {code})", code_path(m)
    return None


RULES = (unknown,)

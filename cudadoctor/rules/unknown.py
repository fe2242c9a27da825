"""What remains: something failed that ought to work, and no other rule says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.findings import Confidence
from cudadoctor.model.rule import Found, rule
from cudadoctor.plan.remedies import by_hand, reload_uvm
from cudadoctor.rules.evidence.signs import (
    NOT_READY,
    NOT_READY_WORDS,
    UNKNOWN,
    UNKNOWN_WORDS,
    has_fabric,
    heard,
    uvm_missing,
)
from cudadoctor.rules.healthy import shortfalls

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine

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
    failures, _ = shortfalls(m, kb)
    if not failures:
        return None
    # A report that hints at a cause is worth more than one that only shows a failure.
    sure = Confidence.POSSIBLE if m.look == "report" else Confidence.LIKELY
    title, why, remedies = _hint(m, kb)
    return Found(
        evidence=(failures[0].fact,),
        values={"what": failures[0].what},
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


RULES = (unknown,)

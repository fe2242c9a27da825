"""What remains: something failed that ought to work, and no other rule says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.catalogue import CATALOGUE
from cudadoctor.findings import Confidence
from cudadoctor.rule import Found, need, rule
from cudadoctor.rules.signs import (
    NO_LIBRARY,
    NOT_FOUND,
    SUCCESS,
    answered,
    code_path,
    cuda_works,
    driver_code,
    gpu_present,
)

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
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
    return Found(evidence=(path,), values={"what": what}, confidence=sure)


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
    count_code = m.driver.libcuda.count_code
    if count_code not in (None, SUCCESS):
        failed = f"CUDA does not count the GPUs (cuDeviceGetCount: {count_code})"
        return failed, "driver.libcuda.count_code"
    # NVML only watches: where CUDA reaches a GPU, no training fails for its silence.
    code = SUCCESS if cuda_works(m) else driver_code(m)
    if code == NOT_FOUND:
        return "The driver started no GPU", code_path(m)
    if code not in (None, SUCCESS, NO_LIBRARY):
        return f"The driver refuses to answer (NVML: {code})", code_path(m)
    return None


RULES = (unknown,)

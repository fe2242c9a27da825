"""What remains: something failed that ought to work, and no other rule says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.catalogue import CATALOGUE
from cudadoctor.findings import Confidence
from cudadoctor.rule import Found, rule
from cudadoctor.rules.healthy import shortfalls

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
    failures, _ = shortfalls(m, kb)
    if not failures:
        return None
    # A report that hints at a cause is worth more than one that only shows a failure.
    sure = Confidence.POSSIBLE if m.look == "report" else Confidence.LIKELY
    return Found(evidence=(failures[0].fact,), values={"what": failures[0].what}, confidence=sure)


RULES = (unknown,)

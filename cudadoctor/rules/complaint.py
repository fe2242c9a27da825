"""What a report complains of, where that is no matter of its environment.

A log holds warnings and hints beside the error that its author asks about, and a table of versions
holds oddities that have done nobody any harm. Where the complaint itself is likely to be the
program's own error or a bug of torch, such things are no root cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Confidence, Severity

if TYPE_CHECKING:
    from cudadoctor.model.findings import Finding
    from cudadoctor.model.machine import Machine

HARMLESS = ("not-environment", "torch-bug")
"""Causes that are no fault of an environment."""
_ONLY_NO_GPU = frozenset(
    {
        "torch-cpu-build",
        "driver-too-old",
        "driver-not-installed",
        "driver-not-loaded",
        "gpu-not-detected",
        "container-no-gpu",
        "toolkit-missing",
        "toolkit-env-wrong",
        "toolkit-torch-mismatch",
    }
)
"""Causes that keep torch from a GPU, or a compiler from its work, and change no result."""
_PASSING = (
    "userwarning", "warning:", "warning[", "[warning", "[w ", "[w0", "[w1", " w tensorflow",
    " e tensorflow", "w0000", "e0000", "you can ignore", "proceeding without", "processing without",
    "not installed", "will not be enabled", "will not be available", "are unavailable",
    "is unavailable", "without gpu support", "for better performance", "fallback", "falling back",
    "nvcc: not found", "nvcc: command not found", "could not load dynamic library", "can't load",
    "binary at", "consider", " info ", "that has tensor cores", "does not have many workers",
)  # fmt: skip
"""How a line speaks after which its program went on."""


_COMPLAINS = frozenset({"traceback", "called-a-bug"})
"""Symptoms that show that the author asks about an error, not about a hint."""


def outweighed(roots: list[Finding], findings: tuple[Finding, ...], machine: Machine) -> bool:
    """Whether the complaint of a report is no matter of its environment, and its roots pass by."""
    told = [f for f in findings if f.cause in HARMLESS]
    likely = {f.cause for f in told if f.confidence <= Confidence.LIKELY}
    failed = any(one.key in _COMPLAINS for one in machine.symptoms or ())
    if not likely:
        bug = any(f.cause == "torch-bug" for f in told)
        return bool(told) and (bug or failed) and all(_about_speed(f) for f in roots)
    return all(
        f.confidence is Confidence.POSSIBLE
        or _in_passing(f)
        or (f.severity is Severity.WARNING and not _reported(f))
        or ("torch-bug" in likely and f.cause in _ONLY_NO_GPU and not _reported(f))
        for f in roots
    )


def _reported(finding: Finding) -> bool:
    """Whether a text of the report names it, not the facts of the machine alone."""
    return finding.rule == f"reported-{finding.cause}"


def _about_speed(finding: Finding) -> bool:
    """Whether it is a hint that a program prints about its speed, and nobody's complaint."""
    return finding.severity is Severity.WARNING and _in_passing(finding)


def _in_passing(finding: Finding) -> bool:
    """Whether only warnings tell it."""
    lines = [one.value for one in finding.evidence if one.fact.startswith("symptoms.")]
    return bool(lines) and all(
        any(word in f" {line.lower()}" for word in _PASSING) for line in lines
    )

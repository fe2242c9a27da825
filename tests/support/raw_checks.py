"""What a test of a raw host demands: one root, on evidence that was seen, or nothing at all."""

from __future__ import annotations

from typing import Literal

from raw_hosts import RawHost

from cudadoctor.model.findings import Diagnosis, Finding, Severity


def told_as(
    host: RawHost,
    cause: str,
    *,
    verdict: str = "broken",
    folded: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    depth: Literal["fast", "no-smoke"] = "fast",
) -> Finding:
    """The cause is the only root, each piece of its evidence was seen, and nothing else is found.

    folded: what must also be reported, as a consequence. beside: a second fault that is present.
    """
    found = host.diagnosed(depth)
    assert (found.primary, found.verdict) == (cause, verdict), shown(found)
    assert standing(found) == [cause, *beside], shown(found)
    assert set(folded) <= {finding.cause for finding in found.findings if finding.because_of}, (
        shown(found)
    )
    first = next(finding for finding in found.findings if finding.cause == cause)
    assert first.evidence
    assert not [evidence.fact for evidence in first.evidence if evidence.value == "not known"]
    assert "{" not in first.title + first.why
    assert first.remedies
    return first


def told_nothing(host: RawHost, *, depth: Literal["fast", "no-smoke"] = "fast") -> None:
    """No error and no warning, and everything that matters was decided."""
    found = host.diagnosed(depth)
    assert standing(found) == [], shown(found)
    assert found.verdict == "healthy", shown(found)


def standing(found: Diagnosis) -> list[str]:
    """The errors and warnings that nothing explains, in order."""
    return [f.cause for f in found.findings if not f.because_of and f.severity < Severity.INFO]


def shown(found: Diagnosis) -> str:
    """The diagnosis in brief, for the message of a failing test."""
    findings = [(f.cause, f.severity.name, f.because_of, f.evidence) for f in found.findings]
    undecided = [cause for cause in found.undecided if cause.matters]
    return f"{found.verdict}: {findings}; open: {undecided}"

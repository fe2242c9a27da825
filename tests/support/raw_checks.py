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
    """That cause is the one root, each piece of its evidence was seen, and nothing stands beside.

    folded: what has to be told too, as a consequence. beside: a second fault that is really there.
    """
    found = host.diagnosed(depth)
    assert (found.primary, found.verdict) == (cause, verdict), shown(found)
    assert standing(found) == [cause, *beside], shown(found)
    assert set(folded) <= {one.cause for one in found.findings if one.because_of}, shown(found)
    first = next(one for one in found.findings if one.cause == cause)
    assert first.evidence
    assert not [one.fact for one in first.evidence if one.value == "not known"]
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
    """The diagnosis in short, for a test that fails."""
    told = [(f.cause, f.severity.name, f.because_of, f.evidence) for f in found.findings]
    return f"{found.verdict}: {told}; open: {[one for one in found.undecided if one.matters]}"

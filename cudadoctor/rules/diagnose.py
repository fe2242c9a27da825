"""Judge a machine: all rules run, what explains what is sorted out, and the verdict is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import (
    Candidate,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Severity,
    Undecided,
    Verdict,
)
from cudadoctor.model.machine import gap_of, lookup, origin_of
from cudadoctor.model.rule import Found, NotKnown, Rule
from cudadoctor.model.trust import acting, typed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine


def diagnose(
    machine: Machine,
    knowledge: Knowledge,
    rules: Iterable[Rule] | None = None,
    ignore: Collection[str] = (),
) -> Diagnosis:
    """What is wrong with this machine, in causal order, and what could not be told.

    ignore: causes that the user does not want to hear of.
    """
    if rules is None:
        from cudadoctor.rules.registry import rules_for

        rules = rules_for(machine)
    found: list[tuple[tuple[str, ...], Finding]] = []
    passed: list[str] = []
    undecided: list[Undecided] = []
    unheard = False  # whether an ignored cause was found: then what failed is not unexplained
    for one in rules:
        try:
            answer = one.judge(machine, knowledge)
        except NotKnown as missing:
            if one.cause not in ignore:
                undecided.append(_undecided(one, missing, machine))
            continue
        if one.cause in ignore or (one.cause == "unknown" and unheard):
            unheard = unheard or answer is not None
        elif answer is None:
            passed.append(one.cause)
        else:
            deeper = (*one.yields_to, *answer.yields_to)
            found.append((deeper, _finding(one, answer, machine)))
    explained = _rooted(_explained(found))
    findings = _in_order([one for one in explained if not _needless(one)])
    passed += [one.cause for one in explained if _needless(one)]
    causes = {finding.cause for finding in findings}
    diagnosis = _concluded(
        findings,
        passed=tuple(dict.fromkeys(cause for cause in passed if cause not in causes)),
        undecided=_one_a_cause(one for one in undecided if one.cause not in causes),
        machine=machine,
        knowledge=knowledge,
    )
    if not ignore:
        return diagnosis
    kept = tuple(one for one in diagnosis.candidates if one.cause not in ignore)
    return msgspec.structs.replace(diagnosis, candidates=kept)


def _finding(one: Rule, found: Found, machine: Machine) -> Finding:
    values = {name: _text(value) for name, value in found.values.items()}
    templates = (found.title or one.title, found.why or one.why)
    return Finding(
        cause=one.cause,
        rule=one.name,
        severity=one.severity if found.severity is None else found.severity,
        confidence=found.confidence,
        title=_filled(templates[0], values),
        why=_filled(templates[1], values),
        templates=templates,
        values=values,
        evidence=tuple(_evidence(path, machine) for path in found.evidence),
        cites=found.cites,
        remedies=found.remedies,
    )


def _filled(text: str, values: dict[str, str]) -> str:
    return text.format_map(values) if "{" in text else text


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(_text(one) for one in value)
    return str(value).replace("`", "'")  # our sentences mark code by it


def _evidence(path: str, machine: Machine) -> Evidence:
    value = lookup(machine, path)
    if isinstance(value, (msgspec.Struct, dict)) or (
        isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct)
    ):
        from cudadoctor.model import factfile

        shown = factfile.compact(value)
    elif value == "" and path.startswith("env."):
        shown = '""'  # set and empty, which is not the same as not set
    else:
        shown = _shown(value)
    return Evidence(fact=path, value=shown, source=origin_of(machine, path))


def _shown(value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in ((), ""):
        return "none"
    return _text(value)


def _undecided(one: Rule, missing: NotKnown, machine: Machine) -> Undecided:
    gap = gap_of(machine, missing.fact)
    asked = gap is None or gap.asked
    return Undecided(
        cause=one.cause,
        missing=missing.fact,
        why=_why(missing, machine),
        matters=one.essential and asked,
    )


def _why(missing: NotKnown, machine: Machine) -> str:
    gap = gap_of(machine, missing.fact)
    return missing.why or (gap.why if gap else f"{missing.fact} is not known")


def _one_a_cause(undecided: Iterable[Undecided]) -> tuple[Undecided, ...]:
    """Of several rules of a cause, the first that the verdict turns on; else the first."""
    kept: dict[str, Undecided] = {}
    for one in undecided:
        if one.matters > kept.setdefault(one.cause, one).matters:
            kept[one.cause] = one
    return tuple(kept.values())


def _explained(found: list[tuple[tuple[str, ...], Finding]]) -> list[Finding]:
    """Mark what a deeper cause explains away.

    A mere possibility explains nothing, and neither does what is less grave: an error stays an
    error beside a piece of information.
    """
    gravest: dict[str, Severity] = {}
    for _, f in found:
        if f.confidence <= Confidence.LIKELY:
            gravest[f.cause] = min(f.severity, gravest.get(f.cause, Severity.INFO))
    return [
        msgspec.structs.replace(
            finding,
            because_of=tuple(
                cause
                for cause in dict.fromkeys(deeper)
                if gravest.get(cause, 9) <= finding.severity and cause != finding.cause
            ),
        )
        for deeper, finding in found
    ]


def _rooted(findings: list[Finding]) -> list[Finding]:
    """Break circles of explanations: whoever stands first in them is the root.

    Rules name their deeper causes each for itself; in a circle nobody would be left to cure.
    """
    rooted = {f.cause for f in findings if not f.because_of}
    out = list(findings)
    while open_ones := [f for f in out if f.cause not in rooted]:
        reached = {f.cause for f in open_ones if rooted.intersection(f.because_of)}
        if not reached:
            first = out.index(open_ones[0])
            out[first] = msgspec.structs.replace(out[first], because_of=())
            reached = {out[first].cause}
        rooted |= reached
    return out


def _needless(finding: Finding) -> bool:
    """What is explained is not unknown any more."""
    return finding.cause == "unknown" and bool(finding.because_of)


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """By severity, then confidence, then the order of the catalogue. One finding a cause."""
    from cudadoctor.model.catalogue import CATALOGUE

    place = {cause: index for index, cause in enumerate(CATALOGUE)}
    ranked = sorted(
        findings,
        key=lambda f: (f.severity, f.confidence, bool(f.because_of), place.get(f.cause, 999)),
    )
    first: dict[str, Finding] = {}
    for finding in ranked:
        there = first.setdefault(finding.cause, finding)
        if finding.remedies and not there.remedies:
            # The gravest finding tells the cause; another of the same cause may know the cure.
            first[finding.cause] = msgspec.structs.replace(there, remedies=finding.remedies)
    return tuple(first.values())


def _concluded(
    findings: tuple[Finding, ...],
    passed: tuple[str, ...],
    undecided: tuple[Undecided, ...],
    machine: Machine,
    knowledge: Knowledge,
) -> Diagnosis:
    roots = [f for f in findings if not f.because_of and f.severity < Severity.INFO]
    if roots and machine.look == "report":
        from cudadoctor.rules.complaint import outweighed

        roots = [] if outweighed(roots, findings, machine) else roots
    unearned = _unearned(machine, knowledge)
    verdict = _verdict(roots, undecided, unearned, machine)
    if verdict == "undecided" and not any(one.matters for one in undecided):
        undecided += unearned[:1]
    if verdict == "healthy" and machine.look == "report":
        from cudadoctor.rules.complaint import HARMLESS

        # What a dump may be pasted for, nobody has complained of.
        findings = tuple(finding for finding in findings if finding.cause not in HARMLESS)
    # A catch-all stands last, however sure it is.
    named = [one.cause for one in roots if one.cause != "unknown"] or ["unknown"] * len(roots)
    primary = named[0] if named else None
    candidates: tuple[Candidate, ...] = ()
    asked: tuple[str, ...] | None = None
    if verdict == "undecided" and machine.look == "report":
        from cudadoctor.rules.pasted.reported import candidates_in, commands_in
        from cudadoctor.rules.undecided import command_after

        candidates = candidates_in(machine, knowledge, findings)
        asked = command_after(machine, candidates, commands_in(machine, knowledge))
    elif verdict == "undecided":
        from cudadoctor.rules.undecided import candidates_of, command_for

        candidates = candidates_of(findings, undecided)
        asked = command_for(acting(machine), undecided)
    return Diagnosis(
        verdict=verdict,
        primary=primary,
        findings=findings,
        passed=passed,
        undecided=undecided,
        candidates=candidates,
        next_command=typed(*asked) if asked else None,
    )


def _unearned(machine: Machine, knowledge: Knowledge) -> tuple[Undecided, ...]:
    """What keeps this machine from being called healthy: see rules/healthy.py.

    What contradicts is a finding of the rule `unknown`, unless the user ignores that.
    """
    from cudadoctor.rules.healthy import shortfalls

    found, missing = shortfalls(machine, knowledge)
    missing += tuple(NotKnown(one.fact, one.what) for one in found)
    return tuple(
        Undecided(cause="unknown", missing=gap.fact, why=_why(gap, machine), matters=True)
        for gap in missing
    )


def _verdict(
    roots: list[Finding],
    undecided: tuple[Undecided, ...],
    unearned: tuple[Undecided, ...],
    machine: Machine,
) -> Verdict:
    from cudadoctor.rules.healthy import is_doctors_own

    if is_doctors_own(machine):
        return "undecided"
    likely = [f for f in roots if f.confidence <= Confidence.LIKELY]
    if any(f.severity is Severity.ERROR for f in likely):
        return "broken"
    # A report shows its complaint, and never all that the rules ask for.
    reported = machine.look == "report"
    if likely and reported and likely[0] is roots[0]:
        return "warnings"
    if unearned or any(f.severity is Severity.ERROR for f in roots):
        return "undecided"
    if not reported and any(one.matters for one in undecided):
        return "undecided"
    return "warnings" if roots else "healthy"

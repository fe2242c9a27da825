"""What a pasted report is about: the chance of every cause. The one ranking of candidates.

Three voices are weighed together: the words of the report (reports/likeness.py), its signs (the
error texts that it holds and the circumstances that its facts show), and what the rules found.
How much each voice counts was fitted to reports whose cause is known and that no rule was made for
(benchmarks/likeness.py), so that a chance of 0.9 is right about nine times in ten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from math import exp

from msgspec import Struct

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.symptoms import symptoms
from cudadoctor.knowledge.tables import table
from cudadoctor.model.catalogue import CATALOGUE, HARMLESS
from cudadoctor.model.findings import ERROR, POSSIBLE, Finding
from cudadoctor.model.machine import Machine, OptStr, lookup
from cudadoctor.reports.likeness import Weights, spoken
from cudadoctor.reports.likeness import weights as words_table
from cudadoctor.rules.pasted.conditions import CIRCUMSTANCES, FACTS, holds, refuted
from cudadoctor.rules.pasted.reported import complains_of_something_else, contradicted
from cudadoctor.rules.registry import stated_rules

_SHOWN = ("platform.system", "torch.build", "torch.cuda", "torch.version", "python.version")
"""Facts that are signs by their values, of a version its first two numbers."""
_HEAVIEST = 20
"""No words weigh more: what a document claims beyond that is made up."""
_KNEE = -0.5
"""Beyond this, more words hardly make a cause surer; below it they make it less likely."""


class Voices(Struct, frozen=True, forbid_unknown_fields=True):
    """counts: how much a voice counts, in nats, by its name (see `voices`)."""

    counts: dict[str, float]


def chances(
    m: Machine, kb: Knowledge, findings: Collection[Finding], first: OptStr
) -> dict[str, float]:
    """The chance of each cause, the likeliest first; together they are 1.

    That of `unknown` is the chance that the report tells too little for any. findings: of the rules
    alone. first: the cause that the rules name first.
    """
    heard = voices(m, kb, findings, first, words_table())
    if not m.likeness:  # then only what rules or error texts tell is worth comparing
        told = {finding.cause for finding in findings}
        told |= {cause for cause, of in heard.items() if "meaning of a text" in of}
        heard = {cause: of for cause, of in heard.items() if cause in told | {"unknown"}}
    return weighed(heard, _counted().counts)


def weighed(
    heard: Mapping[str, Mapping[str, float]], counts: Mapping[str, float]
) -> dict[str, float]:
    """The chance of each cause, by what speaks for it and how much each voice counts."""
    weights = {
        cause: sum(counts.get(voice, 0.0) * value for voice, value in of.items())
        for cause, of in heard.items()
    }
    most = max(weights.values())
    shares = {cause: exp(weight - most) for cause, weight in weights.items()}
    whole = sum(shares.values())
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return {cause: share / whole for cause, share in ranked}


def voices(
    m: Machine,
    kb: Knowledge,
    findings: Collection[Finding],
    first: OptStr,
    known: Weights,
) -> dict[str, dict[str, float]]:
    """Cause -> what speaks for or against it, by name -> how loud."""
    stated = {rule.name for rule in stated_rules()}
    heard: dict[str, dict[str, float]] = {cause: defaultdict(float) for cause in CATALOGUE}
    for cause, said in _words_and_signs(m, kb, known).items():
        if cause in heard:
            heard[cause]["words, against"] = min(said, _KNEE)
            heard[cause]["words, for"] = max(said, _KNEE)
    for finding in findings:
        if finding.cause == "unknown":
            continue
        of_text = finding.rule == f"reported-{finding.cause}"
        kind = "text" if of_text else "statement" if finding.rule in stated else "fact"
        confidence = finding.confidence.name.lower()
        heard[finding.cause][f"{kind}, {confidence}"] = 1
        heard[finding.cause][f"{finding.severity.name.lower()}, {confidence}"] = 1
        if finding.because_of:
            heard[finding.cause]["explained"] = 1
    if first is not None:
        heard[first]["first of the rules"] = 1
    for symptom in m.symptoms or ():
        row = symptoms().by_key.get(symptom.key)
        still = [way for way in row.means if not refuted(way.when, m, kb)] if row else []
        for number, cause in enumerate(dict.fromkeys(way.cause for way in still), 1):
            if cause in heard:
                heard[cause]["meaning of a text"] += 1 / number
    heard["unknown"]["too little is told"] = 1
    heard["unknown"]["something is found"] = any(f.confidence is not POSSIBLE for f in findings)
    errors = any(finding.severity is ERROR for finding in findings)
    for cause in HARMLESS:
        heard[cause]["beside errors"] = errors
        heard[cause]["something else is asked"] = complains_of_something_else(m, kb)
    for cause, voices_of in heard.items():
        if contradicted(cause, m, kb):
            voices_of["contradicted"] = 1
    return heard


def _words_and_signs(m: Machine, kb: Knowledge, known: Weights) -> Mapping[str, float]:
    start = dict(zip(known.causes, known.start, strict=True))
    of_signs = spoken(signs(m, kb), known.signs, known)
    words = m.likeness or {}
    told = {cause: words.get(cause, 0.0) for cause in known.causes}
    return {
        cause: start[cause]
        + known.heed * of_signs[cause]
        + (told[cause] if abs(told[cause]) < _HEAVIEST else 0.0)
        for cause in known.causes
    }


def signs(m: Machine, kb: Knowledge) -> frozenset[str]:
    """The error texts of the table that the report holds, and the circumstances that it shows."""
    found = set()
    for symptom in m.symptoms or ():
        found.add(f"text {symptom.key}")
        if symptom.line == 1:
            found.add(f"title {symptom.key}")
    for name in (*FACTS, *CIRCUMSTANCES):
        if holds(name, m, kb):
            found.add(name)
        elif refuted((name,), m, kb):
            found.add(f"not {name}")
    for path in _SHOWN:
        if (value := lookup(m, path)) is not None:
            found.add(f"{path} {'.'.join(str(value).split('.')[:2])}")
    found.update(f"variable {name}" for name in m.env or ())
    if any(install.failed for install in m.installs or ()):
        found.add("install failed")
    return frozenset(found)


@cache
def _counted() -> Voices:
    return table("rules/voices", Voices)

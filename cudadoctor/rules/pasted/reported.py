"""Rules out of the table of symptoms: one for each cause that an error text can mean.

They judge pasted reports only. A text alone is likely or possible; where the facts of the report
prove the same cause, the rule that judges hosts finds it too, and says it with certainty.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from cudadoctor.knowledge.symptoms import CauseText, Meaning, SymptomRow, symptoms
from cudadoctor.model.findings import Candidate, Confidence, Severity
from cudadoctor.model.rule import Found, Judge, Rule
from cudadoctor.rules.complaint import HARMLESS
from cudadoctor.rules.evidence.conditions import holds
from cudadoctor.rules.evidence.refuted import refuted
from cudadoctor.rules.pasted.reported_cures import cures

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Finding
    from cudadoctor.model.machine import Machine, Symptom


VERDICT = "cudadoctor-verdict"
"""The symptom that is a verdict of this doctor; its cause stands among its values."""


class Seen(NamedTuple):
    """A symptom of the report with the meaning that fits. place: its number in the machine."""

    place: int
    symptom: Symptom
    row: SymptomRow
    meaning: Meaning


@lru_cache(maxsize=1)
def reported_rules(deeper: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> tuple[Rule, ...]:
    """One rule a cause of the table. deeper: cause -> causes that explain it away."""
    over = dict(deeper)
    table = symptoms()
    return tuple(
        Rule(
            name=f"reported-{cause}",
            cause=cause,
            title=text.title,
            severity=Severity[text.severity.upper()],
            judge=_judge(cause, text),
            yields_to=tuple(dict.fromkeys((*over.get(cause, ()), *text.yields_to))),
            why=text.why,
            page="",
            silent=True,
        )
        for cause, text in table.causes.items()
    )


def _judge(cause: str, text: CauseText) -> Judge:
    keys = symptoms().meaning.get(cause, frozenset())

    def judge(m: Machine, kb: Knowledge) -> Found | None:
        seen = [one for one in _seen(keys, m, kb) if one.meaning.cause == cause]
        seen += _retold(cause, m)
        if not seen:
            return None
        best = min(seen, key=_worth)
        return _found(best, seen, text, m, kb)

    return judge


def _worth(one: Seen) -> tuple[Confidence, int, bool, int]:
    """The surest text counts, of equals the first; of one line what has words of its own."""
    sure = Confidence[one.meaning.confidence.upper()]
    return sure, one.symptom.line or 0, one.meaning.title is None, one.place


def _seen(keys: frozenset[str], m: Machine, kb: Knowledge) -> list[Seen]:
    table = symptoms().by_key
    out = []
    for place, symptom in enumerate(m.symptoms or ()):
        if symptom.key in keys:
            row = table[symptom.key]
            meaning = meaning_of(row, m, kb)
            if meaning is not None:
                out.append(Seen(place, symptom, row, meaning))
    return out


def _retold(cause: str, m: Machine) -> list[Seen]:
    """What this doctor itself said of that machine, in a text that somebody pasted."""
    row = symptoms().by_key[VERDICT]
    return [
        Seen(place, one, row, Meaning(cause=cause, confidence=_sureness(one.values)))
        for place, one in enumerate(m.symptoms or ())
        if one.key == VERDICT and one.values.get("cause") == cause
    ]


def _sureness(values: dict[str, str]) -> Literal["likely", "possible"]:
    return "possible" if values.get("sure", "").strip().lower() == "possible" else "likely"


def meaning_of(row: SymptomRow, m: Machine, kb: Knowledge) -> Meaning | None:
    """The first meaning whose conditions all hold."""
    for one in row.means:
        if all(holds(condition, m, kb) for condition in one.when):
            return one
    return None


def candidates_in(
    m: Machine, kb: Knowledge, findings: tuple[Finding, ...]
) -> tuple[Candidate, ...]:
    """The causes that a report leaves open, the likeliest first.

    score: 0.6 for what is likely to be no matter of the environment, 0.5 for what was found to be
    possible; below it what the same error texts mean in other circumstances, in the order of the
    table.
    """
    scores = {
        one.cause: 0.5 if one.confidence is Confidence.POSSIBLE else 0.6
        for one in findings
        if not one.because_of and one.cause != "unknown"
    }
    table = symptoms().by_key
    for symptom in m.symptoms or ():
        row = table.get(symptom.key)
        still = [one for one in row.means if not refuted(one.when, m, kb)] if row else []
        for number, meaning in enumerate(still):
            scores.setdefault(meaning.cause, round(0.3 / (number + 1), 2))
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    return tuple(Candidate(cause=cause, score=score) for cause, score in ranked)


def complaints(m: Machine, kb: Knowledge) -> tuple[Symptom, ...]:
    """The error texts that mean something here: dumps hold other words, too, that mean nothing."""
    table = symptoms().by_key
    return tuple(
        symptom
        for symptom in m.symptoms or ()
        if (row := table.get(symptom.key))
        and (meaning := meaning_of(row, m, kb))
        and (meaning.cause not in HARMLESS or meaning.confidence != "possible")
    )


def commands_in(m: Machine, kb: Knowledge) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Causes that the report's error texts can mean, each with the command that would tell."""
    table = symptoms().by_key
    rows = [row for symptom in m.symptoms or () if (row := table.get(symptom.key)) and row.next]
    meant = [(meaning_of(row, m, kb), row.next) for row in rows]
    return tuple((meaning.cause, command) for meaning, command in meant if meaning)


def _found(best: Seen, seen: list[Seen], text: CauseText, m: Machine, kb: Knowledge) -> Found:
    meaning = best.meaning
    return Found(
        evidence=(*_lines((best, *seen)), *meaning.shows),
        values=dict(best.symptom.values),
        confidence=Confidence[meaning.confidence.upper()],
        severity=Severity[meaning.severity.upper()] if meaning.severity else None,
        title=meaning.title,
        why=meaning.why,
        remedies=cures(meaning.cause, meaning.cure or text.cure, m, kb),
    )


def _lines(seen: tuple[Seen, ...]) -> tuple[str, ...]:
    """The texts that are shown, of each line one: a sentence often holds several symptoms."""
    first: dict[object, str] = {}
    for one in seen:
        first.setdefault(one.symptom.line or one.place, f"symptoms.{one.place}.text")
    return tuple(first.values())[:3]

"""SARIF 2.1.0, for code scanning: a run for each document, a result for each finding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Confidence, Finding, Severity
from cudadoctor.model.machine import Json
from cudadoctor.render import Checked, Report, inert, summary
from cudadoctor.render.json_v1 import dumps
from cudadoctor.render.pages import title_of

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PRECISIONS = {
    Confidence.CERTAIN: "very-high",
    Confidence.LIKELY: "high",
    Confidence.POSSIBLE: "low",
}
_LINE = re.compile(r"(?:.*, )?line (\d+)")
_PATH = re.compile(r"(?:[A-Za-z]:[/\\]|[~/]).+")
_ENGLISH = Language({})


def report(checks: Sequence[Checked]) -> str:
    """The whole log."""
    runs = [_run(checked) for checked in checks]
    return dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": runs}) + "\n"


def _run(checked: Checked) -> Json:
    shown = checked.shown
    driver: Json = {"name": "cudadoctor", "rules": []}
    run: Json = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": []}
    if checked.name is not None:
        run["automationDetails"] = {"id": f"cudadoctor/{_uri(checked.name)}/"}
    if shown is None:
        told = [_notification("unreadable", "error", checked.error or "")]
        run["invocations"] = [
            {"executionSuccessful": False, "toolExecutionNotifications": told},
        ]
        driver["notifications"] = [_notified("unreadable", "The document cannot be read")]
        return run
    driver["version"] = shown.version
    diagnosis = shown.diagnosis
    causes = list(dict.fromkeys(finding.cause for finding in diagnosis.findings))
    driver["rules"] = [_rule(cause, shown) for cause in causes]
    run["results"] = [
        _result(finding, causes.index(finding.cause), checked, shown)
        for finding in diagnosis.findings
    ]
    missing = {undecided.cause: undecided.why for undecided in diagnosis.undecided}
    told = [
        _notification("not-checked", "note", f"{cause} was not checked: {why}.")
        for cause, why in missing.items()
    ]
    driver["notifications"] = [_notified("not-checked", "A cause could not be checked")]
    run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": told}]
    run["properties"] = {
        "verdict": diagnosis.verdict,
        "primary": diagnosis.primary,
        "answer": summary.headline(shown, _ENGLISH).text,
        "tables": shown.knowledge,
        "ruledOut": list(diagnosis.passed),
    }
    return run


def _notified(name: str, text: str) -> Json:
    told = {"text": f"{text}."}
    return {"id": name, "shortDescription": told, "fullDescription": told, "help": told}


def _notification(name: str, level: str, text: str) -> Json:
    return {"descriptor": {"id": name}, "level": level, "message": {"text": inert(text)}}


def _rule(cause: str, shown: Report) -> Json:
    """The cause, as the gravest finding of it has it."""
    finding = next(found for found in shown.diagnosis.findings if found.cause == cause)
    more = f"To read more about this cause, run: cudadoctor explain {cause}"
    return {
        "id": cause,
        "shortDescription": {"text": _sentence(title_of(cause, _ENGLISH))},
        "fullDescription": {"text": inert(finding.why) or _sentence(finding.title)},
        "help": {"text": more, "markdown": more.replace("cudadoctor", "`cudadoctor") + "`"},
        "defaultConfiguration": {"level": _LEVELS[finding.severity]},
        "properties": {
            "precision": _PRECISIONS[finding.confidence],
            "problem.severity": {"note": "recommendation"}.get(
                _LEVELS[finding.severity], _LEVELS[finding.severity]
            ),
            "tags": ["pytorch", "cuda"],
        },
    }


def _sentence(text: str) -> str:
    plain = inert(text)
    return plain if plain.endswith((".", "?", "!")) else f"{plain}."


def _result(finding: Finding, index: int, checked: Checked, shown: Report) -> Json:
    lines = summary.finding_text(finding, shown, _ENGLISH).splitlines()
    return {
        "ruleId": finding.cause,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": "\n".join(map(inert, lines))},
        "locations": list(_locations(finding, checked, shown)),
        # Of a cause, not of its words: another driver version is no other alert.
        "partialFingerprints": {"cause/v1": f"{finding.cause}:{finding.rule}"},
        "properties": {
            "confidence": finding.confidence.label,
            "becauseOf": list(finding.because_of),
            "evidence": {seen.fact: inert(seen.value) for seen in finding.evidence if seen.value},
        },
    }


def _locations(finding: Finding, checked: Checked, shown: Report) -> Iterator[Json]:
    """The line of the document that shows it; of a host, the file that a fact was read from.

    Code scanning asks for one place each, with a line.
    """
    executable = shown.machine.python.executable
    artifact = checked.name or (executable and shown.shade(executable)) or "."
    region: Json = {"startLine": 1}
    for source in (seen.source for seen in finding.evidence if seen.source):
        line = _LINE.fullmatch(source)
        if line and checked.name:
            region = {"startLine": max(1, int(line[1]))}
            break
        if not checked.name and _PATH.fullmatch(source):
            artifact = source
            break
    place: Json = {"artifactLocation": {"uri": _uri(artifact)}, "region": region}
    facts = dict.fromkeys(seen.fact for seen in finding.evidence)
    location: Json = {"physicalLocation": place}
    if facts:
        location["logicalLocations"] = [
            {"fullyQualifiedName": fact, "kind": "member"} for fact in facts
        ]
    yield location


def _uri(path: str) -> str:
    """A reference that holds whatever stands in a path."""
    plain = inert(path).replace("\\", "/")
    drive = re.match(r"[A-Za-z]:/", plain)
    absolute = "file:///" if drive else "file://" if plain.startswith("/") else ""
    return absolute + quote(plain, safe="/~:" if drive else "/~")

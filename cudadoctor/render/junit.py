"""JUnit's XML, as CI systems read it: a suite for each document, a test for each cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from cudadoctor.locale.language import Language
from cudadoctor.model.catalogue import CATALOGUE, area_of
from cudadoctor.model.findings import Finding, Severity
from cudadoctor.model.machine import Stage
from cudadoctor.render import Checked, Report, inert, summary
from cudadoctor.render.shells import command_lines

_FAILS = {False: (Severity.ERROR,), True: (Severity.ERROR, Severity.WARNING)}
_ENDS = {"failed": "failure", "timed-out": "failure", "skipped": "skipped"}


def report(checks: Sequence[Checked], *, strict: bool = False) -> str:
    """The whole file. strict: warnings are failures too.

    A cause that facts rule out passes, one that could not be checked is skipped; a verdict that
    could not be reached is an error.
    """
    suites = [_suite(checked, strict=strict) for checked in checks]
    root = ET.Element("testsuites", {"name": "cudadoctor", **_sums(suites)})
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(checked: Checked, *, strict: bool) -> ET.Element:
    name = inert(checked.name) if checked.name else "cudadoctor"
    suite = ET.Element("testsuite", {"name": name})
    shown = checked.shown
    if shown is None:
        suite.append(
            _case("cudadoctor", "verdict", "error", checked.error or "", kind="unreadable")
        )
    else:
        if shown.seconds is not None:
            suite.set("time", f"{shown.seconds:.3f}")
        suite.append(_properties(shown))
        suite.append(_verdict(shown))
        suite.extend(_causes(shown, strict=strict))
        suite.extend(map(_stage, shown.machine.smoke.stages if shown.machine.smoke else ()))
    cases = suite.findall("testcase")
    counts = {"tests": len(cases)}
    for kind in ("failure", "error", "skipped"):
        plural = kind if kind == "skipped" else f"{kind}s"
        counts[plural] = sum(case.find(kind) is not None for case in cases)
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    return suite


def _sums(suites: list[ET.Element]) -> dict[str, str]:
    return {
        name: str(sum(int(suite.attrib[name]) for suite in suites))
        for name in ("tests", "failures", "errors", "skipped")
    }


def _properties(shown: Report) -> ET.Element:
    machine = shown.machine
    properties = ET.Element("properties")
    for name, value in {
        "cudadoctor": shown.version,
        "tables": shown.knowledge,
        "verdict": shown.diagnosis.verdict,
        "driver": machine.driver.version,
        "torch": machine.torch.named or None,
        "python": machine.python.version,
    }.items():
        if value is not None:
            ET.SubElement(properties, "property", {"name": name, "value": inert(str(value))})
    return properties


def _verdict(shown: Report) -> ET.Element:
    """What could not be decided is no failure of a test, but no run may pass by it either."""
    say = Language({})
    if shown.diagnosis.verdict != "undecided":
        return _case("cudadoctor", "verdict", "", "")
    lines = [summary.headline(shown, say).text]
    if commands := shown.diagnosis.next_commands:
        lines += ["", summary.to_find_out(shown, say)]
        lines += [f"    {line}" for line in command_lines(commands, shown.machine)]
    return _case("cudadoctor", "verdict", "error", "\n".join(lines), kind="undecided")


def _causes(shown: Report, *, strict: bool) -> Iterator[ET.Element]:
    diagnosis = shown.diagnosis
    found: dict[str, Finding] = {}
    for finding in diagnosis.findings:
        found.setdefault(finding.cause, finding)
    for finding in found.values():
        text = summary.finding_text(finding, shown, Language({}))
        fails = finding.severity in _FAILS[strict]
        outcome = "failure" if fails else "system-out"
        yield _case(
            _class(finding.cause), finding.cause, outcome, text, kind=finding.severity.label
        )
    missing = {undecided.cause: undecided.why for undecided in diagnosis.undecided}
    for cause, why in missing.items():
        if cause not in found:
            yield _case(_class(cause), cause, "skipped", f"not checked: {why}")
    for cause in diagnosis.passed:
        if cause not in {**found, **missing}:
            yield _case(_class(cause), cause, "", "")


def _class(cause: str) -> str:
    area = area_of(cause) if cause in CATALOGUE else "other"
    return f"cudadoctor.{area.replace(' ', '-')}"


def _stage(stage: Stage) -> ET.Element:
    case = _case(
        "cudadoctor.training-step",
        stage.name,
        _ENDS.get(stage.status, ""),
        stage.detail or stage.status,
        kind=stage.status,
    )
    if stage.seconds is not None:
        case.set("time", f"{stage.seconds:.3f}")
    return case


def _case(classname: str, name: str, outcome: str, text: str, *, kind: str = "") -> ET.Element:
    """A test. outcome: the element that says how it ended, "" where it passed."""
    case = ET.Element("testcase", {"classname": classname, "name": inert(name)})
    if outcome:
        lines = [inert(line) for line in text.splitlines()]
        told = {} if outcome == "system-out" else {"message": lines[0] if lines else ""}
        ended = ET.SubElement(case, outcome, told | ({"type": kind} if told and kind else {}))
        ended.text = "\n".join(lines)
    return case

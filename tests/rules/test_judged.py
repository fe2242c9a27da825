"""What is told of every scenario and of every text of a report, but for its wording: kept in files.

REWRITE_JUDGED=1 python -m pytest tests/rules/test_judged.py writes them anew; read the difference.
A scenario names the cause; here stand what it rests on, how grave and how sure it is, its values
and its ways out, so that no change of these goes unread.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from scenario_reader import HERE, healthy_machine, machine_like, read_scenario, scenario_paths

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis, Evidence, Finding, Remedy
from cudadoctor.model.machine import Machine
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JUDGED = HERE / "judged"
_NAMES = re.compile(r"`[^`]+`|[\w./+]*[\w+][-=][\w+][\w./+=-]*")
"""In a step by hand: commands, and what looks like the name of a package or an option."""
SHORT = 40
"""A longer value is a text or a table of its own."""
REWRITE = bool(os.environ.get("REWRITE_JUDGED"))


def _tables(name: str) -> list[tuple[str, str]]:
    """The texts of a file of reports, by their kind and number."""
    plain = tomllib.loads((HERE / "reports" / f"{name}.toml").read_text(encoding="utf-8"))
    healthy = (HERE / "reports" / "told" / "healthy.txt").read_text(encoding="utf-8")
    return [
        (f"{name.rpartition('/')[2]}-{kind}-{n}", row["text"].replace("{healthy}", healthy))
        for kind, rows in plain.items()
        for n, row in enumerate(rows)
    ]


def _hosts() -> dict[str, Callable[[], Machine]]:
    machines = sorted(path.stem for path in (HERE / "machines").glob("*.json"))
    found: dict[str, Callable[[], Machine]] = {}
    found |= {name: partial(healthy_machine, name) for name in machines}
    found |= {path.stem: partial(_of_scenario, path) for path in scenario_paths()}
    return found


def _of_scenario(path: Path) -> Machine:
    return read_scenario(path).machine


def _reports() -> dict[str, Callable[[], Machine]]:
    files = ("driver_reports", "install_texts", "told/program", "told/torch", "told/libraries")
    return {name: partial(_of_report, text) for file in files for name, text in _tables(file)}


def _of_report(text: str) -> Machine:
    return read_report(text, knowledge.load())


def _edges() -> dict[str, Callable[[], Machine]]:
    """Machines at the edge of a rule: a scenario in a few words each."""
    rows = tomllib.loads((JUDGED / "edges.toml").read_text(encoding="utf-8"))["edge"]
    return {row["name"]: partial(_of_edge, row) for row in rows}


def _of_edge(row: dict[str, Any]) -> Machine:
    return machine_like(row["like"], row.get("machine", {}), tuple(row.get("unknown", ())))


CASES = {"hosts": _hosts(), "reports": _reports(), "edges": _edges()}


def judged(kind: str, name: str) -> str:
    machine = CASES[kind][name]()
    return "\n".join(_lines(diagnose(machine, knowledge.load()), machine)) + "\n"


def _lines(diagnosis: Diagnosis, machine: Machine) -> Iterator[str]:
    yield f"{diagnosis.verdict} {diagnosis.primary or ''}".rstrip()
    for finding in diagnosis.findings:
        yield from _finding(finding)
    if machine.look != "report":
        for undecided in diagnosis.undecided:
            how = "open" if undecided.matters else "not checked"
            yield f"  {how}: {undecided.cause} ({undecided.missing})"
    for guess in diagnosis.candidates[:5]:
        yield f"  perhaps: {guess.cause} {guess.score:.2f}"
    if diagnosis.next_command:
        yield f"  next: {' '.join(diagnosis.next_command)}"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"  {finding.severity.label} {finding.confidence.label}: {finding.cause}"
    yield f"    evidence: {', '.join(map(_shown, finding.evidence))}"
    yield f"    words of: {', '.join(_placeholders(finding)) or 'nothing'}"
    if finding.because_of:
        yield f"    because of: {', '.join(finding.because_of)}"
    if finding.cites:
        yield f"    cites: {', '.join(finding.cites)}"
    for name, value in finding.values.items():
        yield f"    {name} = {value}"
    for way in finding.remedies:
        yield f"    way out: {_way(way)}"


def _placeholders(finding: Finding) -> list[str]:
    """The names that its sentences fill in: which were chosen, not how they are worded."""
    fields = (field for text in finding.templates for _, field, _, _ in Formatter().parse(text))
    return list(dict.fromkeys(field for field in fields if field))


def _shown(evidence: Evidence) -> str:
    return f"{evidence.fact} = {evidence.value}" if len(evidence.value) <= SHORT else evidence.fact


def _way(way: Remedy) -> str:
    more = ", ".join(
        (way.where, way.risk.value, *(["root"] * way.needs_root), *(["reboot"] * way.reboot))
    )
    words = [" ".join(command[:2]) for command in way.commands]
    words += [f"{name}={value}" for name, value in way.variables.items()]
    if change := way.packages:  # without its releases, which new tables change
        words += [re.split("[=<>]", requirement)[0] for requirement in change.install]
        words += [f"from {change.index.rpartition('/')[2]}"] if change.index else []
    words += _NAMES.findall(way.manual or "")
    return f"{way.id} ({more})" + (f": {', '.join(words)}" if words else "")


@cache
def _kept(kind: str) -> dict[str, str]:
    lines = (JUDGED / f"{kind}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    found: dict[str, str] = {}
    name = ""
    for heading, some in groupby(lines, lambda line: line.startswith("# ")):
        text = "".join(some)
        if heading:
            name = text[2:].strip()
        else:
            found[name] = text
    return found


@pytest.mark.skipif(not REWRITE, reason="REWRITE_JUDGED is not set")
@pytest.mark.parametrize("kind", CASES)
def test_the_files_are_written_anew(kind: str) -> None:
    JUDGED.mkdir(exist_ok=True)
    text = "".join(f"# {name}\n{judged(kind, name)}" for name in CASES[kind])
    (JUDGED / f"{kind}.txt").write_text(text, encoding="utf-8")


@pytest.mark.skipif(REWRITE, reason="they are written anew")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, cases in CASES.items() for name in cases]
)
def test_all_but_the_wording_is_told_as_it_was(kind: str, name: str) -> None:
    assert judged(kind, name) == _kept(kind).get(name)


@pytest.mark.skipif(REWRITE, reason="they are written anew")
@pytest.mark.parametrize("kind", CASES)
def test_the_files_hold_nothing_else(kind: str) -> None:
    assert list(_kept(kind)) == list(CASES[kind])

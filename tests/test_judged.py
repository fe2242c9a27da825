"""What is told of every scenario and of every text of a report, but for its wording: kept in files.

REWRITE_JUDGED=1 python -m pytest tests/test_judged.py writes them anew; read the difference.
A scenario names the cause; here stand what it rests on, how grave and how sure it is, its values
and its ways out, so that no change of these goes unread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby

import pytest
from scenario_reader import HERE, healthy_machine, read_scenario, scenario_paths

from cudadoctor import knowledge
from cudadoctor.diagnose import diagnose
from cudadoctor.facts import Machine
from cudadoctor.findings import Diagnosis, Finding, Remedy
from cudadoctor.reports.reading import read_report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JUDGED = HERE / "judged"
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
    return {name: (lambda name=name: healthy_machine(name)) for name in machines} | {
        path.stem: (lambda path=path: read_scenario(path).machine) for path in scenario_paths()
    }


def _reports() -> dict[str, Callable[[], Machine]]:
    files = ("driver_reports", "install_texts", "told/program", "told/torch", "told/libraries")
    return {
        name: (lambda text=text: read_report(text, knowledge.load()))
        for file in files
        for name, text in _tables(file)
    }


CASES = {"hosts": _hosts(), "reports": _reports()}


def judged(kind: str, name: str) -> str:
    machine = CASES[kind][name]()
    return "\n".join(_lines(diagnose(machine, knowledge.load()), machine)) + "\n"


def _lines(told: Diagnosis, machine: Machine) -> Iterator[str]:
    yield f"{told.verdict} {told.primary or ''}".rstrip()
    for one in told.findings:
        yield from _finding(one)
    if machine.look != "report":
        for one in told.undecided:
            yield f"  {'open' if one.matters else 'not checked'}: {one.cause} ({one.missing})"
    for one in told.candidates[:5]:
        yield f"  perhaps: {one.cause} {one.score:.2f}"
    if told.next_command:
        yield f"  next: {' '.join(told.next_command)}"


def _finding(one: Finding) -> Iterator[str]:
    yield f"  {one.severity.label} {one.confidence.label}: {one.cause}"
    yield f"    evidence: {', '.join(shown.fact for shown in one.evidence)}"
    if one.because_of:
        yield f"    because of: {', '.join(one.because_of)}"
    if one.cites:
        yield f"    cites: {', '.join(one.cites)}"
    for name, value in one.values.items():
        yield f"    {name} = {value}"
    for way in one.remedies:
        yield f"    way out: {_way(way)}"


def _way(way: Remedy) -> str:
    more = ", ".join(
        (way.where, way.risk.value, *(["root"] * way.needs_root), *(["reboot"] * way.reboot))
    )
    return f"{way.id} ({more})"


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

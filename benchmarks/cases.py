"""How many reports from real threads are diagnosed correctly: benchmarks/cases.py FOLDER [options].

Each folder below FOLDER holds report.txt and case.json with the established causes; index.csv
beside them tells which came later. A third of those is kept aside: the rules are made without it,
and no case of it is ever named here. blind/*.jsonl beside this script are reports by authors who
did not know the program; nothing is learned from them, and none of them is named either. Without
--tune and --aside all are measured and saved.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from measuring import saved

from cudadoctor import knowledge
from cudadoctor.model.catalogue import HARMLESS
from cudadoctor.model.findings import ERROR, Diagnosis
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

Z = 1.96
"""Standard deviations of a 95 % interval."""


def diagnosed(report: bytes) -> Diagnosis:
    tables = knowledge.load()
    return diagnose(read_report(report, tables), tables)


def primary_of(diagnosis: Diagnosis) -> str | None:
    """The root cause; where no fault of the environment is shown, what is shown instead."""
    harmless = (finding.cause for finding in diagnosis.findings if finding.cause in HARMLESS)
    healthy = "not-environment" if diagnosis.verdict == "healthy" else None
    return diagnosis.primary or next(harmless, healthy)


class Case(NamedTuple):
    known: dict[str, Any]
    said: Diagnosis
    aside: bool

    @property
    def named(self) -> str | None:
        return primary_of(self.said)

    @property
    def first_three(self) -> tuple[str, ...]:
        ranked = (candidate.cause for candidate in self.said.candidates)
        return tuple(dict.fromkeys((*filter(None, [self.named]), *ranked)))[:3]

    @property
    def harmless(self) -> bool:
        return self.known["causes"][0] in HARMLESS

    @property
    def called_harmless(self) -> bool:
        return self.said.verdict == "healthy" or self.named in HARMLESS

    def tells(self, *causes: str | None) -> bool:
        return any(cause in self.known["causes"] for cause in causes)


def cases_in(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*/case.json")):
        known = json.loads(path.read_text("utf-8"))
        report = (path.parent / "report.txt").read_bytes()
        yield Case(known, diagnosed(report), kept_aside(path))


def blind_in(path: Path) -> Iterator[Case]:
    for line in path.read_text("utf-8").splitlines():
        known = json.loads(line)
        yield Case(known, diagnosed(known["text"].encode()), aside=True)


def kept_aside(path: Path) -> bool:
    folder = path.resolve().parent
    number = int(hashlib.sha1(folder.name.encode()).hexdigest(), 16)
    return number % 3 == 0 and folder.name in later(folder.parent / "index.csv")


@cache
def later(index: Path) -> frozenset[str]:
    """The cases that came after the readers were made (`added` is 2)."""
    if not index.is_file():
        return frozenset()
    with index.open(encoding="utf-8") as file:
        return frozenset(row["id"] for row in csv.DictReader(file) if row["added"] == "2")


def score(cases: list[Case]) -> dict[str, object]:
    """Counts, and shares with their 95 % intervals.

    wrong: cases with a primary cause that is none of theirs, however sure it is.
    """
    sufficient = [case for case in cases if case.known["report_sufficient"]]
    weak = [case for case in cases if not case.known["report_sufficient"]]
    harmless = [case for case in cases if case.harmless]
    return {
        "cases": len(cases),
        "right": share([case.tells(case.named) for case in sufficient]),
        "among_three": share([case.tells(*case.first_three) for case in sufficient]),
        "wrong": share([bool(c.said.primary) and not c.tells(c.said.primary) for c in cases]),
        "right_though_insufficient": share([case.tells(case.named) for case in weak]),
        "three_though_insufficient": share([case.tells(*case.first_three) for case in weak]),
        "harmless_called_so": share([case.called_harmless for case in harmless]),
        "false_alarms": share([case.said.primary not in (None, *HARMLESS) for case in harmless]),
        "errors_on_harmless": share(
            [any(finding.severity is ERROR for finding in case.said.findings) for case in harmless]
        ),
        "faults_called_harmless": share([c.called_harmless for c in cases if not c.harmless]),
    }


def share(answers: list[bool]) -> dict[str, object]:
    """How many are true, of how many, their share and its interval by Wilson."""
    n, k = max(1, len(answers)), sum(answers)
    p = k / n
    middle, half = p + Z**2 / (2 * n), Z * sqrt((p * (1 - p) + Z**2 / (4 * n)) / n)
    low, high = ((middle + sign * half) / (1 + Z**2 / n) for sign in (-1, 1))
    return {
        "count": k,
        "of": len(answers),
        "share": round(p, 3),
        "interval": [round(low, 3), round(high, 3)],
    }


def name_wrong(cases: list[Case]) -> None:
    for case in cases:
        if not case.tells(case.named):
            mark = "WRONG" if case.known["report_sufficient"] else "weak "
            place = "3" if case.tells(*case.first_three) else "-"
            causes = ",".join(case.known["causes"])
            said = f"{case.named} ({case.said.verdict}) {','.join(case.first_three)}"
            print(f"{mark} {place} {case.known['id']:44} {causes:34} said {said}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--tune", action="store_true", help="only cases that are not kept aside")
    part.add_argument("--aside", action="store_true", help="only totals of those kept aside")
    parser.add_argument(
        "--wrong", action="store_true", help="name those diagnosed wrongly, of the others"
    )
    asked = parser.parse_args()
    cases = list(cases_in(asked.folder))
    tune = [case for case in cases if not case.aside]
    if asked.wrong:
        name_wrong(tune)
    figures = {"tune": score(tune), "aside": score([case for case in cases if case.aside])}
    if not (asked.tune or asked.aside):
        for path in sorted((Path(__file__).parent / "blind").glob("*.jsonl")):
            figures[f"blind, {path.stem}"] = score(list(blind_in(path)))
    if asked.tune or asked.aside:
        print(json.dumps(figures["aside" if asked.aside else "tune"], indent=1))
    else:
        saved("cases", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

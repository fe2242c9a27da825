"""How many reports from real threads are told rightly: benchmarks/cases.py FOLDER [--wrong].

Each folder below FOLDER holds report.txt and case.json with the established causes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

HARMLESS = frozenset({"not-environment", "torch-bug"})
"""Causes that are no fault of an environment: naming any other is a false alarm."""


def diagnosed(report: bytes) -> Diagnosis:
    tables = knowledge.load()
    return diagnose(read_report(report, tables), tables)


def primary_of(diagnosis: Diagnosis) -> str | None:
    """The root cause; where the report shows no fault of the environment, what it shows instead."""
    if diagnosis.primary is not None:
        return diagnosis.primary
    return next(
        (finding.cause for finding in diagnosis.findings if finding.cause in HARMLESS), None
    )


def score(folder: Path, *, show: bool) -> dict[str, object]:
    cases = [
        (json.loads(path.read_text("utf-8")), (path.parent / "report.txt").read_bytes())
        for path in sorted(folder.glob("*/case.json"))
    ]
    right = sufficient = alarms = harmless = weak = 0
    started = time.process_time()
    for case, report in cases:
        diagnosis = diagnosed(report)
        primary, causes = primary_of(diagnosis), case["causes"]
        if causes[0] in HARMLESS:
            harmless += 1
            alarms += primary is not None and primary not in HARMLESS
        if case["report_sufficient"]:
            sufficient += 1
            right += primary in causes
        else:
            weak += primary in causes
        if show and primary not in causes:
            mark = "WRONG" if case["report_sufficient"] else "weak "
            print(
                f"{mark} {case['id']:48} {','.join(causes):40} said {primary} ({diagnosis.verdict})"
            )
    return {
        "cases": len(cases),
        "sufficient": sufficient,
        "right": right,
        "share": round(right / max(1, sufficient), 4),
        "right_though_insufficient": weak,
        "harmless": harmless,
        "false_alarms": alarms,
        "seconds": round(time.process_time() - started, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true", help="name those that are told wrongly")
    asked = parser.parse_args()
    print(json.dumps(score(asked.folder, show=asked.wrong), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

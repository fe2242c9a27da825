"""How many pasted reports one core reads and judges, and how that grows with their length.

benchmarks/reports_speed.py FOLDER: each folder below FOLDER holds a report.txt. Seconds are those
of the process, so that other programs on the machine count little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measuring import saved

from cudadoctor import knowledge
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import diagnose

REPORTS = 1000
SIZES = (250_000, 500_000, 1_000_000)
"""Characters of a report; beyond 2 MiB only its two ends are read."""


def judged(reports: list[str]) -> float:
    """Seconds for some reports."""
    tables = knowledge.load()
    started = time.process_time()
    for report in reports:
        diagnose(read_report(report, tables), tables)
    return time.process_time() - started


def kinds(reports: list[str]) -> dict[str, Callable[[int], str]]:
    """Long reports of each kind, by their length."""
    joined = "\n".join(reports)
    frame = '  File "/opt/conda/lib/python3.11/site-packages/torch/module.py", line {}, in forward'
    step = "[rank0]: 2025-01-02 03:04:05 step {} loss 0.5 torch cuda nvidia driver gpu error none"
    return {
        "one_line": lambda size: (joined.replace("\n", " ") * (size // len(joined) + 1))[:size],
        "reports_in_one": lambda size: (joined * (size // len(joined) + 1))[:size],
        "traceback": lambda size: _lines(frame, size),
        "training_log": lambda size: _lines(step, size),
        "short_lines": lambda size: _lines("torch {}", size),
        "empty_lines": lambda size: "\n" * size,
        "no_space": lambda size: "a" * size,
    }


def _lines(text: str, size: int) -> str:
    """About so many characters of this line, numbered."""
    return "\n".join(text.format(number) for number in range(size // len(text)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    paths = sorted(parser.parse_args().folder.glob("*/report.txt"))
    reports = [path.read_text("utf-8", "replace") for path in paths]
    many = (reports * (REPORTS // len(reports) + 1))[:REPORTS]
    first = judged(many[:1])
    with_start = time.process_time() + judged(many[1:])
    again = min(judged(many) for _ in range(3))
    seconds = {
        kind: [round(judged([made(size)]), 2) for size in SIZES]
        for kind, made in kinds(reports).items()
    }
    saved(
        "reports_speed",
        {
            "different_reports": len(reports),
            "characters_of_a_report": round(sum(map(len, reports)) / len(reports)),
            "first_report_s": round(first, 3),
            "thousand_with_start_s": round(with_start, 2),
            "thousand_warm_s": round(again, 2),
            "reports_a_second": round(REPORTS / again),
            "characters": SIZES,
            "seconds_by_length": seconds,
            "lines_50000_s": round(judged([_lines("line {} of a log", 50_000 * 16)]), 2),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`cudadoctor check --json --from FOLDER` over many reports, as a maintainer runs it.

    python benchmarks/triage.py [REPORTS]

The folder is filled with made-up reports of every plant of made_reports.py, in turn. The command
runs on one core. Its time is that of its process, its memory the most that it ever held, beside
that of a run over a tenth of the reports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from made_reports import PLANTS, decorated
from measuring import saved


class Run(NamedTuple):
    """One run of the command. peak_mib: the most memory that it held."""

    lines: list[str]
    wall_s: float
    cpu_s: float
    peak_mib: int


def written(folder: Path, count: int) -> Path:
    """That many reports, a file each."""
    folder.mkdir()
    dice = random.Random(20261121)
    for number in range(count):
        text = decorated(PLANTS[number % len(PLANTS)](dice).text, dice)
        (folder / f"{number:05}.txt").write_text(text, encoding="utf-8")
    return folder


def checked(folder: Path) -> Run:
    command = [sys.executable, "-m", "cudadoctor", "check", "--json", "--from", str(folder)]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # what is started inherits it
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as process,
    ):
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0  # it is waited for already
        wall = time.monotonic() - started
        out.seek(0)
        lines = out.read().decode().splitlines()
    return Run(lines, wall, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=int, nargs="?", default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few = checked(written(Path(folder) / "few", max(1, asked.reports // 10)))
        all_of_them = checked(written(Path(folder) / "all", asked.reports))
    verdicts = Counter(json.loads(line)["verdict"] for line in all_of_them.lines)
    result = {
        "command": "cudadoctor check --json --from FOLDER",
        "reports": len(all_of_them.lines),
        "verdicts": dict(verdicts.most_common()),
        "seconds": round(all_of_them.wall_s, 2),
        "seconds_on_one_core": round(all_of_them.cpu_s, 2),
        "peak_mib": all_of_them.peak_mib,
        "peak_mib_of_a_tenth": few.peak_mib,
    }
    saved("triage", result)
    return 0 if len(all_of_them.lines) == asked.reports else 1


if __name__ == "__main__":
    sys.exit(main())

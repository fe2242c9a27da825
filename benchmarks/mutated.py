"""Harmless lines put into reports that are diagnosed correctly: does the answer stay?

    python benchmarks/mutated.py [FOLDER] [--seed 13] [--wrong]

Each line of LINES is put into each report on its own, at the beginning, at the end and at a drawn
place between two paragraphs; reports that are diagnosed wrongly without it are left out. FOLDER
holds cases as benchmarks/cases.py reads them; without it the made reports of the tests are taken.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cases import diagnosed, primary_of

from cudadoctor import knowledge
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.diagnose import by_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPORTS = Path(__file__).parents[1] / "tests" / "reports"
TOLD = ("driver_reports.toml", "install_texts.toml", "told/torch.toml", "told/libraries.toml")

LINES: dict[str, tuple[str, ...]] = {
    "frame of runpy": (
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "<frozen importlib._bootstrap>", line 1360, in _find_and_load',
        '  File "/usr/lib/python3.10/threading.py", line 1009, in _bootstrap_inner',
    ),
    "tool that is absent": (
        "docker is not installed here.",
        "There is no conda on this box, and no Slurm.",
        "I don't use WSL or a virtual machine.",
        "bash: tree: command not found",
    ),
    "machine that works": (
        "On my MacBook it works.",
        "The same script runs fine on a friend's Windows laptop with a GTX 1650.",
        "It works fine on Colab.",
        "It used to work on my old GTX 970 box years ago.",
    ),
    "variable at the end": (
        "I start one process with CUDA_VISIBLE_DEVICES=0.",
        "Same result with OMP_NUM_THREADS=8.",
        "Setting TOKENIZERS_PARALLELISM=false made no difference.",
    ),
    "code": (
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        "model = model.to(device).eval()",
        "assert torch.cuda.is_available(), 'no GPU'",
        "image = image.unsqueeze(0).float() / 255",
        "os.environ.setdefault('MASTER_PORT', '29500')",
        "print(torch.__version__, torch.version.cuda, torch.cuda.device_count())",
    ),
    "heading of a form": (
        "### Driver version",
        "### CUDA version (e.g. CUDA 11.3)",
        "### What GPU do you use? (e.g. RTX 3090, A100, none)",
        "- How you installed PyTorch (`conda`, `pip`, source):",
        "- [x] I have searched the existing issues and read the FAQ.",
        "<!-- Please tell us your OS, e.g. Windows 10 or Ubuntu 20.04 -->",
    ),
    "listing": (
        "$ pip freeze",
        "$ conda list | head",
        "nvidia-ml-py==12.560.30",
        "numpydoc==1.8.0",
    ),
    "row of a dump": (
        "ROCM Version                 : Could not collect",
        "ROCM used to build PyTorch: N/A",
        "HIP runtime version: N/A",
        "MIOpen runtime version: N/A",
        "Vulnerability Spectre v2:        Mitigation; Retpolines",
        "Neuron SDK Version: N/A",
    ),
    "notice": (
        "FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.",
        "UserWarning: torch.meshgrid: in an upcoming release, it will be required to pass the"
        " indexing argument.",
        "DeprecationWarning: pkg_resources is deprecated as an API.",
        "WARNING: Running pip as the 'root' user can result in broken permissions",
        "[notice] A new release of pip is available: 24.0 -> 25.1",
        "FutureWarning: You are using `torch.load` with `weights_only=False`.",
    ),
    "attempt": (
        "I already tried reinstalling the driver.",
        "Rebooting did not help.",
        "I have tried a fresh environment and another version of Python, too.",
        "Reinstalling CUDA changed nothing.",
    ),
    "denial": (
        "There is no error in dmesg.",
        "It is not out of memory, nvidia-smi shows plenty free.",
        "Secure Boot is disabled.",
        "No other process uses the GPU.",
        "LD_LIBRARY_PATH is empty.",
    ),
    "thanks": (
        "Thanks in advance!",
        "Any help is appreciated.",
        "Let me know if you need more information about my system.",
    ),
    "link": (
        "See https://github.com/example/example/issues/cuda-out-of-memory for something alike.",
        "https://stackoverflow.com/questions/1/torch-not-compiled-with-cuda-enabled",
        "I followed https://example.org/blog/fix-nvidia-smi-has-failed-driver-not-loaded closely",
        "[guide](https://example.org/docs/install-nvidia-container-toolkit-wsl2)",
    ),
    "another's machine": (
        "> I have the same on an RTX 5090 with driver 575.57.08 and Windows 11.",
        "> On my side: torch 1.4.0, Python 3.6, Tesla K80",
        "> @someone which distribution do you use? I am on Fedora.",
    ),
    "bot": (
        "This issue has been automatically marked as stale because it has not had recent activity.",
        "Stale bot: closing after 30 days of inactivity. Feel free to reopen.",
        "Thanks for opening your first issue here! A maintainer will look at it soon.",
    ),
    "signature": (
        "-- \nRyzen 9 5950X | RTX 3080 + GTX 1060 | 64 GB | Arch",
        "Sent from my iPhone",
    ),
}
"""Kind -> lines that say nothing about what is wrong, in wordings that look as if they did."""


class Report(NamedTuple):
    """A report that is diagnosed correctly. said: its root cause, None for none."""

    name: str
    text: str
    said: str | None


Telling = Callable[[str], str | None]


def told(text: str) -> str | None:
    return primary_of(diagnosed(text.encode()))


def told_by_rules(text: str) -> str | None:
    tables = knowledge.load()
    return primary_of(by_rules(read_report(text, tables), tables))


def made(told: Telling = told) -> Iterator[Report]:
    """The made reports of the tests that are diagnosed correctly."""
    for name in TOLD:
        kinds = tomllib.loads((REPORTS / name).read_text("utf-8"))
        rows = [row for rows in kinds.values() for row in rows if row.get("cause")]
        healthy = (REPORTS / "told" / "healthy.txt").read_text("utf-8")
        for number, row in enumerate(rows):
            text = row["text"].replace("{healthy}", healthy)
            if told(text) == row["cause"]:
                yield Report(f"{name} {number} {row['cause']}", text, row["cause"])


def of_cases(folder: Path) -> Iterator[Report]:
    """The cases of a folder that are diagnosed correctly."""
    for path in sorted(folder.glob("*/case.json")):
        case = json.loads(path.read_text("utf-8"))
        text = (path.parent / "report.txt").read_text("utf-8", errors="replace")
        said = told(text)
        if said in case["causes"] or (case["causes"] == ["unknown"] and said is None):
            yield Report(case["id"], text, said)


def mutants(report: Report, line: str, dice: random.Random) -> Iterator[tuple[str, str]]:
    """The report with the line at its begin, at its end and between two of its paragraphs."""
    yield "begin", f"{line}\n\n{report.text}"
    yield "end", f"{report.text.rstrip()}\n\n{line}\n"
    lines = report.text.split("\n")
    breaks = [number for number, text in enumerate(lines) if not text.strip()][1:-1]
    if breaks:
        place = dice.choice(breaks)
        yield "middle", "\n".join([*lines[:place], "", line, *lines[place:]])


def moved(
    report: Report, dice: random.Random, most: int | None = None
) -> Iterator[tuple[str, str, str, str | None]]:
    """(kind, line, where, what is said instead) of each mutant whose answer differs.

    most: how many mutants are drawn of the report, None for one of every line and place.
    """
    drawn = [
        (kind, line, where, text)
        for kind, lines in LINES.items()
        for line in lines
        for where, text in mutants(report, line, dice)
    ]
    for kind, line, where, text in drawn if most is None else dice.sample(drawn, most):
        said = told(text)
        if said != report.said:
            yield kind, line, where, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="cases; else the tests' own reports")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--most", type=int, help="mutants a report, drawn")
    parser.add_argument("--wrong", action="store_true", help="show the mutants told otherwise")
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    kinds: Counter[str] = Counter()
    touched: set[str] = set()
    reports = list(of_cases(asked.folder) if asked.folder else made())
    for report in reports:
        for kind, line, where, said in moved(report, dice, asked.most):
            kinds[kind] += 1
            touched.add(report.name)
            if asked.wrong:
                print(f"{report.name}: {report.said} -> {said} ({where}): {line}")
    result = {"reports": len(reports), "reports_moved": len(touched), "moved": sum(kinds.values())}
    print(json.dumps({**result, "by_kind": dict(kinds)}, indent=1))
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())

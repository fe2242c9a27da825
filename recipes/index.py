"""Write README.md from the scripts and the bench's results: `python recipes/index.py`.

A figure stands in the table only where a file under benchmarks/results/ holds it: a result of
`cudadoctor bench --json`, on the hardware that it names.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from cudadoctor.bench import page, techniques
from cudadoctor.bench.results import BenchResult, Gain, WorkloadResult
from cudadoctor.render.markdown import escaped

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
GROUPS = {
    "Precision": ("amp_bf16", "amp_fp16", "tf32"),
    "Fewer, larger pieces of work": (
        "torch_compile",
        "cuda_graphs",
        "channels_last",
        "fused_optimizers",
    ),
    "Data": ("dataloader", "prefetch", "cached_data", "sequence_length"),
    "Memory": ("largest_batch", "gradient_accumulation", "activation_checkpointing"),
    "Less to compute": ("freezing", "smaller_model", "early_stopping", "one_cycle"),
    "Right and seen": ("gradient_clipping", "profiling"),
    "Several GPUs, other libraries": (
        "ddp",
        "fsdp2",
        "with_accelerate",
        "with_pytorch_accelerated",
        "with_deepspeed",
    ),
    "Where it runs": ("notebook_images",),
}
NOT_TRIED = {
    "freezing": "fewer weights learn",
    "smaller_model": "another model",
    "early_stopping": "fewer epochs",
    "one_cycle": "another schedule",
    "gradient_clipping": "for a training that holds, not for its time",
    "profiling": "shows where the time goes",
    "ddp": "several processes",
    "fsdp2": "several processes",
    "with_accelerate": "another library's loop",
    "with_pytorch_accelerated": "another library's loop",
    "with_deepspeed": "another library's loop",
    "notebook_images": "about what is installed",
}
"""Scripts without a technique of the bench, and why there is none."""
CLASSES = ("CPU", "old GPU", "T4/Turing", "Ampere", "Hopper", "Blackwell")
"""Columns: Volta is an old GPU, Ada stands with Ampere, what is newer than Blackwell with it."""
UNKNOWN = "not measured"
OUTSIDE = "not tried"
TOP = """# Recipes

What the doctor recommends, ready to copy:

- [train/](train): one script for each way to train faster, or on less; Python 3.10, torch 2.4 on.
  Each trains the plain way and the other way, on a CPU or a GPU, and ends with `proved: ` and its
  figures, or with `not proved: ` and exit code 1. What needs more than there is (a GPU for CUDA
  graphs, a second one for DDP, a library) says `skipped: ` and why, with exit code 0. `--help` has
  the options.
- [install/](install): environments with torch as files: requirements, conda, uv, pixi, Docker; for
{variants}.
- [triage/](triage): a GitHub action that answers issues about GPUs with the cause and the repair.

## What it is worth, where it was measured

`cudadoctor bench` measures the techniques on your machine; figures of other machines follow. A
figure is samples a second over the baseline's of the same workload (1.50x: half as many again) with
the span in which it lies, and the memory, where it differs. "no difference" means none that can be
told from noise. An old GPU is one before Turing; Ada stands with Ampere. What is "not tried" the
bench leaves out, for the reason beside its name.
"""
LAST = """Written by `python recipes/index.py` from scripts and results; a test compares every byte.
"""


def main(recipes: Path = HERE, measured: Path = RESULTS) -> int:
    """Write README.md, and say whether it has changed."""
    file, text = recipes / "README.md", readme(recipes, read(measured))
    changed = not file.exists() or file.read_text(encoding="utf-8") != text
    if changed:
        file.write_text(text, encoding="utf-8", newline="\n")
    sys.stdout.write(f"README.md {'changed' if changed else 'is as it was'}\n")
    return 0


def read(folder: Path) -> list[tuple[str, BenchResult]]:
    """Every result of the bench with the name of its file; other benchmarks' files are left."""
    found: list[tuple[str, BenchResult]] = []
    for path in sorted(folder.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text)
        if isinstance(whole, dict) and {"schema", "workloads", "device"} <= whole.keys():
            found.append((path.name, msgspec.json.decode(text, type=BenchResult)))
    return found


def readme(recipes: Path, measured: Sequence[tuple[str, BenchResult]]) -> str:
    """The whole page."""
    names = sorted(path.parent.name for path in (recipes / "install").glob("*/requirements.txt"))
    links = ", ".join(f"[{name}](install/{name})" for name in names)
    variants = textwrap.fill(links, 98, initial_indent="  ", subsequent_indent="  ")
    parts = [TOP.format(variants=variants), table(measured), sources(measured)]
    for title, scripts in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [section(recipes / "train" / f"{script}.py") for script in scripts]
    return "\n".join([part for part in parts if part] + [LAST])


def class_of(result: BenchResult) -> str:
    """The column of a result."""
    if result.gpu is None:
        return CLASSES[0]
    if result.capability is None:
        return ""  # no column: told among the sources only
    capability = Version(result.capability)
    floors = ("10.0", "9.0", "8.0", "7.5")
    newest_first = zip(floors, reversed(CLASSES[2:]), strict=True)
    return next((name for floor, name in newest_first if capability >= Version(floor)), CLASSES[1])


def table(measured: Sequence[tuple[str, BenchResult]]) -> str:
    """A row per technique of the bench, per script without one, and for the best combination."""
    lines = [row(["technique", *CLASSES]), row(["---"] * (len(CLASSES) + 1))]
    for script in (*(script for scripts in GROUPS.values() for script in scripts), ""):
        file = f"{script}.py" if script else ""
        title = f"[{script}](train/{file})" if script else "no script"
        for name in [
            technique.name for technique in techniques.TECHNIQUES if technique.recipe == file
        ]:
            cells = [cell(measured, column, name) for column in CLASSES]
            lines.append(row([f"{title}: {name}", *cells]))
        if script in NOT_TRIED:
            lines.append(row([f"{title} ({NOT_TRIED[script]})", *[OUTSIDE] * len(CLASSES)]))
    lines.append(row(["the best together", *(best(measured, column) for column in CLASSES)]))
    return "\n".join(lines) + "\n"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(measured: Sequence[tuple[str, BenchResult]], column: str, name: str) -> str:
    """What the results of a column say about a technique."""
    lines: list[str] = []
    for number, workload in workloads(measured, column):
        gains = [gain for gain in workload.alone if gain.technique == name]
        lines += [f"{workload.name} {said(gain)} [{number}]" for gain in gains if tried(gain)]
    return "<br>".join(lines) or UNKNOWN


def best(measured: Sequence[tuple[str, BenchResult]], column: str) -> str:
    lines = [
        f"{workload.name} {said(workload.best_gain)} [{number}]:"
        f" {' + '.join(workload.best) or workload.best_gain.technique + ', measured again'}"
        for number, workload in workloads(measured, column)
        if workload.best_gain is not None
    ]
    return "<br>".join(lines) or UNKNOWN


def workloads(
    measured: Sequence[tuple[str, BenchResult]], column: str
) -> Iterator[tuple[int, WorkloadResult]]:
    """The workloads of a column's results, with the number of their source."""
    for number, (_, result) in enumerate(measured, 1):
        if class_of(result) == column:
            yield from ((number, workload) for workload in result.workloads)


def tried(gain: Gain) -> bool:
    return gain.verdict != "not-here"


def said(gain: Gain) -> str:
    """A verdict in a few words; a ratio only where it is a difference."""
    if gain.verdict in ("faster", "slower") and gain.ratio is not None:
        span = f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low and gain.high else ""
        return f"{gain.ratio:.2f}x{span}{page.memory(gain)}"
    if gain.verdict == "same":
        return f"no difference{page.memory(gain)}"
    return {"loss-differs": "another loss"}.get(gain.verdict, gain.verdict)


def sources(measured: Sequence[tuple[str, BenchResult]]) -> str:
    """The machines of the measurements, numbered as in the table."""
    lines: list[str] = []
    for number, (name, result) in enumerate(measured, 1):
        cuda = f", CUDA {result.cuda}" if result.cuda else ""
        driver = f", driver {result.driver}" if result.driver else ""
        on = escaped(f"{result.hardware}{driver}, torch {result.torch}{cuda}, {result.date[:10]}")
        lines.append(f"{number}. {on} ([{name}](../benchmarks/results/{name}))")
    return "\n".join(lines) + "\n" if lines else "Nothing has been measured so far.\n"


def section(script: Path) -> str:
    """Title, what it does and when it helps or hurts: from the script's docstring."""
    described = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    title, *paragraphs = described.split("\n\n")
    shown = [part for part in paragraphs if re.match(r"(What it does|When it \w+): ", part)]
    text = "\n\n".join(fenced(part) for part in shown)
    return f"### {title.rstrip('.')}\n\n[train/{script.name}](train/{script.name})\n\n{text}\n"


def fenced(paragraph: str) -> str:
    """Indented lines are commands: as a block of code."""
    return re.sub(r"((?:\n {4}\S.*(?:\n {8}\S.*)*)+)", _block, paragraph)


def _block(found: re.Match[str]) -> str:
    lines = [line[4:] for line in found[1].strip("\n").split("\n")]
    return "\n\n```bash\n" + "\n".join(lines) + "\n```"


if __name__ == "__main__":
    sys.exit(main())

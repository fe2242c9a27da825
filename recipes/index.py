"""Generate README.md from the scripts and the benchmark results: `python recipes/index.py`.

The table contains only measured figures: the results of `cudadoctor bench --json` in
benchmarks/results/, each with the hardware that it was measured on.
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
    "Precision": ("amp_bf16", "amp_fp16", "tf32", "fp8"),
    "Less overhead per operation": (
        "torch_compile",
        "regional_compile",
        "cuda_graphs",
        "channels_last",
        "fused_optimizers",
        "synchronizations",
        "inplace_and_init",
    ),
    "Attention and long sequences": ("attention", "sequence_length", "sequence_packing"),
    "Data": ("dataloader", "prefetch", "cached_data", "streaming_data", "augmentation"),
    "Memory": (
        "largest_batch",
        "gradient_accumulation",
        "activation_checkpointing",
        "selective_checkpointing",
        "linear_cross_entropy",
        "low_bit_optimizers",
        "memory_snapshot",
    ),
    "Less computation": (
        "freezing",
        "transformer_freezing",
        "smaller_model",
        "pruning",
        "early_stopping",
    ),
    "Optimizers, schedules and losses": (
        "one_cycle",
        "lr_range_test",
        "optimizers_compared",
        "muon",
        "losses",
        "gradient_clipping",
    ),
    "Watching a training": ("profiling", "monitoring", "time_left", "gpu_against_cpu"),
    "Several GPUs": ("ddp", "ddp_options", "fsdp2"),
    "Other libraries": (
        "with_accelerate",
        "with_pytorch_accelerated",
        "with_deepspeed",
        "with_torchmetrics",
    ),
    "Notebooks and cloud images": ("notebook_images",),
}
CLASSES = ("CPU", "old GPU", "T4/Turing", "Ampere", "Hopper", "Blackwell")
"""Columns. Volta counts as an old GPU, Ada as Ampere, and anything after Blackwell as Blackwell."""
TOP = """# Recipes

Scripts and files that you can copy into your own project:

- [train/](train) contains one script for each technique. The lines to copy come first, between two
  marks. Below them, the script trains with and without the technique, on a CPU or a GPU, and checks
  that the result is the same, that the technique was at work, and that it does what it is for. Then
  it prints `proved`, or `not proved` and what failed (exit code 1). If a requirement is missing,
  such as a second GPU or a library, it prints `skipped: ` and the reason. `--off` runs the same
  checks without the technique and must print `not proved`; `--small` is a quick run. The scripts
  need Python 3.10, torch 2.4 and [train/proof.py](train/proof.py) next to them.
- [colab.ipynb](colab.ipynb) is a notebook that checks the machine and trains in mixed precision on
  a T4, made from the same scripts.
- [install/](install) contains ready-made torch environments for pip, conda, uv, pixi and Docker:
{variants}.
- [cluster/](cluster) contains job files for Slurm, Open MPI and Kubernetes that check the hosts of
  a job before it trains on them.
- [action/](action) contains a GitHub Action that checks a runner before a job trains on it, and
  shows the result in the job summary.
- [triage/](triage) contains a GitHub Action that replies to issues about GPUs with the cause and
  the fix.

## Measured gains

To benchmark the techniques on your own machine, run `cudadoctor bench`. Each result below is the
number of samples per second with the technique, relative to training the same workload without the
technique (1.50x means 50% more samples per second). It is the mean over at least three pairs of
fresh processes. The range in parentheses is wide enough for all results of a benchmark together:
in 95% of all benchmarks, every range contains the true value. If the technique changed the memory
use, the table also shows the memory use relative to training without the technique.

"Equal within 3%" means that the speed with the technique differs by less than 3%, and "not decided"
that more measurements would be needed. The "old GPU" column covers GPUs older than Turing; Ada GPUs
are counted as Ampere.
"""
NONE = """There are no results yet. Earlier ones compared single processes, so they are not shown.
"""
POINTERS = """## Models that do not fit on one GPU with FSDP2

These need several GPUs and a library that is made for them, so there is no script here:

- Tensor parallelism splits the matrices of each layer:
  [torch.distributed.tensor.parallel](https://pytorch.org/docs/stable/distributed.tensor.parallel.html).
  Keep it inside one machine, because it communicates in every layer.
- Pipeline parallelism gives each GPU some of the layers:
  [torch.distributed.pipelining](https://pytorch.org/docs/stable/distributed.pipelining.html).
- Context parallelism splits long sequences:
  [torch.distributed.tensor.experimental.context_parallel](https://pytorch.org/tutorials/prototype/context_parallel.html).
- [torchtitan](https://github.com/pytorch/torchtitan) combines all three with FSDP2.
"""
LAST = """This page is generated by `python recipes/index.py`. Do not edit it.
"""


def main(recipes: Path = HERE, measured: Path = RESULTS) -> int:
    """Write README.md, and say whether it changed."""
    file, text = recipes / "README.md", readme(recipes, read(measured))
    changed = not file.exists() or file.read_text(encoding="utf-8") != text
    if changed:
        file.write_text(text, encoding="utf-8", newline="\n")
    sys.stdout.write(f"README.md {'changed' if changed else 'is up to date'}\n")
    return 0


def read(folder: Path) -> list[tuple[str, BenchResult]]:
    """Every result of `cudadoctor bench`, with its file name; other JSON files are ignored."""
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
    return "\n".join([part for part in parts if part] + [POINTERS, LAST])


def class_of(result: BenchResult) -> str:
    """The column of a result."""
    if result.gpu is None:
        return CLASSES[0]
    if result.capability is None:
        return ""  # no column: listed only as a source
    capability = Version(result.capability)
    floors = ("10.0", "9.0", "8.0", "7.5")
    newest_first = zip(floors, reversed(CLASSES[2:]), strict=True)
    return next((name for floor, name in newest_first if capability >= Version(floor)), CLASSES[1])


def table(measured: Sequence[tuple[str, BenchResult]]) -> str:
    """What was measured, a row for each technique and a column for each class of hardware.

    What was not measured is a list below it.
    """
    columns = [column for column in CLASSES if any(workloads(measured, column))]
    lines, left, outside = [], [], []
    for script in (*(script for scripts in GROUPS.values() for script in scripts), ""):
        file = f"{script}.py" if script else ""
        title = f"[{script}](train/{file})" if script else "no script"
        for name in [
            technique.name for technique in techniques.TECHNIQUES if technique.recipe == file
        ]:
            cells = [cell(measured, column, name) for column in columns]
            if any(cells):
                lines.append(row([f"{title}: {name}", *cells]))
            else:
                left.append(f"{title}: {name}" if script else name)
        if script and file not in {technique.recipe for technique in techniques.TECHNIQUES}:
            outside.append(title)
    combined = [best(measured, column) for column in columns]
    if any(combined):
        lines.append(row(["best combination", *combined]))
    head = [row(["technique", *columns]), row(["---"] * (len(columns) + 1))]
    parts = ["\n".join([*head, *lines]) + "\n"] if lines else []
    if left:
        parts.append(_listed("The benchmark covers these techniques, but has no result yet", left))
    if outside:
        parts.append(_listed("The benchmark does not cover these recipes", outside))
    return "\n".join(parts)


def _listed(title: str, items: Sequence[str]) -> str:
    return "\n".join([f"{title}:\n", *(f"- {item}" for item in items)]) + "\n"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(measured: Sequence[tuple[str, BenchResult]], column: str, name: str) -> str:
    """The results of one technique in one column."""
    lines: list[str] = []
    for number, workload in workloads(measured, column):
        gains = [gain for gain in workload.alone if gain.technique == name]
        lines += [f"{workload.name} {said(gain)} [{number}]" for gain in gains if tried(gain)]
    return "<br>".join(lines)


def best(measured: Sequence[tuple[str, BenchResult]], column: str) -> str:
    lines = [
        f"{workload.name} {said(workload.best_gain)} [{number}]: {' + '.join(workload.best)}"
        for number, workload in workloads(measured, column)
        if workload.best_gain is not None and workload.best
    ]
    return "<br>".join(lines)


def workloads(
    measured: Sequence[tuple[str, BenchResult]], column: str
) -> Iterator[tuple[int, WorkloadResult]]:
    """The workloads of a column's results, with the number of their source.

    Results of an earlier method, which took rounds of one process for a proof, are not shown.
    """
    for number, (_, result) in enumerate(measured, 1):
        if class_of(result) == column and result.method == "processes":
            yield from ((number, workload) for workload in result.workloads)


def tried(gain: Gain) -> bool:
    """Whether it has a result: with fewer than three pairs there is none yet."""
    return gain.verdict not in ("not-here", "undecided") or gain.low is not None


def said(gain: Gain) -> str:
    """The verdict in a few words; a ratio only if it is decided."""
    if gain.verdict in ("faster", "slower") and gain.ratio is not None:
        span = f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low and gain.high else ""
        return f"{gain.ratio:.2f}x{span}{page.memory(gain)}"
    if gain.verdict == "same":
        return f"{page.equal(gain)}{page.memory(gain)}"
    words = {"loss-differs": "different loss", "undecided": "not decided"}
    return words.get(gain.verdict, gain.verdict)


def sources(measured: Sequence[tuple[str, BenchResult]]) -> str:
    """The machines that were measured, numbered as in the table."""
    lines: list[str] = []
    for number, (name, result) in enumerate(measured, 1):
        if result.method != "processes":
            continue
        cuda = f", CUDA {result.cuda}" if result.cuda else ""
        driver = f", driver {result.driver}" if result.driver else ""
        on = escaped(f"{result.hardware}{driver}, torch {result.torch}{cuda}, {result.date[:10]}")
        lines.append(f"{number}. {on} ([{name}](../benchmarks/results/{name}))")
    return "\n".join(lines) + "\n" if lines else NONE


def section(script: Path) -> str:
    """The title, what it does, and when it helps or hurts, from the script's docstring."""
    described = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    title, *paragraphs = described.split("\n\n")
    shown = [part for part in paragraphs if re.match(r"(What it does|When it \w+): ", part)]
    text = "\n\n".join(fenced(part) for part in shown)
    return f"### {title.rstrip('.')}\n\n[train/{script.name}](train/{script.name})\n\n{text}\n"


def fenced(paragraph: str) -> str:
    """Turn indented lines, which are commands, into a code block."""
    return re.sub(r"((?:\n {4}\S.*(?:\n {8}\S.*)*)+)", _block, paragraph)


def _block(found: re.Match[str]) -> str:
    lines = [line[4:] for line in found[1].strip("\n").split("\n")]
    return "\n\n```bash\n" + "\n".join(lines) + "\n```"


if __name__ == "__main__":
    sys.exit(main())

"""Profiling with torch.profiler: where the time goes in a training step.

What it does: torch.profiler records a few steps after a warm-up and writes a trace that you can
open in a browser (https://ui.perfetto.dev, chrome://tracing). This script also lists the ten most
expensive operators.

When it helps: profile your training before you change anything. The trace shows whether the time
goes to data loading, Python, copies or computation.

When it hurts: steps run more slowly while they are being profiled, and much more slowly if stacks
and shapes are recorded too, so do not leave the profiler on. All events stay in memory, so record a
few steps, not an epoch.

How to check: read the table of operators that this script prints. In a GPU trace, gaps between
kernels are time spent on the host, "cudaStreamSynchronize" means that the host is waiting for a
value, and "Memcpy HtoD" is a copy to the GPU.

Troubleshooting:
- "Profiler must be initialized before getting key averages", and no trace is written: prof.step()
  is missing, or the training loop ended before it reached wait + warmup + active steps.
- In a profile, one operator takes all the time, but only once: you recorded compilation, autotuning
  or the first allocation. Use schedule(wait=..., warmup=..., active=...) to skip those steps.
- "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", and the trace has no GPU events: another
  profiler is already running. Stop that profiler first.
- "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", and the trace has no GPU events: the driver allows
  only administrators to read GPU performance counters.
- "'FunctionEventAvg' object has no attribute 'self_cuda_time_total'": in torch 2.4 and newer, the
  rows of key_averages() call this attribute self_device_time_total. Individual events still have
  the old attribute name, which is deprecated.
- In a profile, .item(), print(loss) or .cpu() seem slow: these calls wait for kernels that were
  queued earlier.
- The profiler's trace is too large for the browser: record fewer steps, and give the file the
  extension .json.gz.
- Your own functions are missing from the profiler's trace: wrap them in `with
  torch.profiler.record_function("name"):`.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, operations_seen, perceptron
from torch.autograd import DeviceType
from torch.profiler import record_function

# --- Copy from here ------------------------------------------------------------------------------


def profiler_for(device: str, trace: str, steps: int = 3) -> Any:
    """Skips one step, warms up in two and records the next ones into a trace, a .json file.

    `with profiler_for("cuda", "trace.json") as profiler:` around the loop, and profiler.step() at
    the end of each step. Name parts of a step with `with record_function("load"):`.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=1, warmup=2, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(trace),
    )


def costliest(profiler: Any, device: str, top: int = 10) -> list[tuple[str, float, int]]:
    """Name, milliseconds and calls of the most expensive operators, without their children."""
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"  # microseconds
    # Other rows repeat the same time, as kernels and as the names from record_function().
    rows = [row for row in profiler.key_averages() if row.key.startswith(("aten::", "autograd::"))]
    rows = [row for row in rows if row.device_type == DeviceType.CPU]
    rows.sort(key=lambda row: getattr(row, key), reverse=True)
    return [(row.key, getattr(row, key) / 1e3, row.count) for row in rows[:top]]


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # profiling must not change the loss
ACTIVE = 3  # recorded steps
DELAY_S = 0.1  # of the slow disk that the profile must reveal
PARTS = ("load", "forward", "backward", "optimizer")


class NoProfiler:
    """Has the methods of a profiler, and records nothing."""

    def step(self) -> None: ...

    def key_averages(self) -> list[Any]:
        return []


def loaded(batches: Iterable[Batch]) -> Iterator[Batch]:
    """A loader with a slow disk."""
    for batch in batches:
        with record_function("load"):
            time.sleep(DELAY_S)
        yield batch


def train(model: torch.nn.Module, batches: Iterable[Batch], profiler: Any) -> Iterator[Any]:
    """Yields the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loaded(batches):
        with record_function("forward"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.step()  # the schedule counts these calls
        yield loss.detach()


def events(trace: Path) -> list[dict[str, Any]]:
    """The events of a trace that have a duration; none if the trace is not readable."""
    try:
        found = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError):
        return []
    return [event for event in found if event.get("ph") == "X"]


def prove(proof: Proof) -> None:
    trace = Path(tempfile.mkdtemp(prefix="trace-")) / "trace.json"
    batches = labeled(proof.steps, proof.width, proof.device)
    model = perceptron(proof.width, proof.device)
    plain = proof.train("plain", train(model, batches, NoProfiler()))
    model = perceptron(proof.width, proof.device)
    start = proof.technique(profiler_for, instead=lambda *_: contextlib.nullcontext(NoProfiler()))
    with start(proof.device, str(trace), ACTIVE) as profiler:
        # A replacement of torch.profiler may give nothing that has steps.
        steps = train(model, batches, profiler or NoProfiler())
        profiled = proof.train("profiled", steps)
    for name, ms, calls in costliest(profiler or NoProfiler(), proof.device):
        print(f"{ms:10.3f} ms {calls:4} calls  {name[:80]}")
    off, limit = apart(profiled, plain), TOLERANCE[proof.device]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"losses within {off:.1e} of plain training (tolerance {limit:.0e})",
    )
    with operations_seen() as seen:  # what a step really runs
        next(train(model, batches[:1], NoProfiler()))
    real = Counter(seen.names)["aten::addmm"]
    recorded = events(trace)
    names = Counter(event["name"] for event in recorded if event.get("cat") == "cpu_op")
    proof.active(
        names["aten::addmm"] == real * ACTIVE > 0,
        f"{trace} has {len(recorded)} events, among them {names['aten::addmm']} calls of"
        f" aten::addmm in {ACTIVE} steps; each step has {real}",
    )
    took = dict.fromkeys(PARTS, 0.0)
    for event in recorded:
        if event["name"] in took and event.get("cat") == "user_annotation":
            took[event["name"]] += event["dur"] / 1e3  # microseconds
    slowest = max(took, key=lambda part: took[part])
    shares = ", ".join(f"{part} {ms:.0f} ms" for part, ms in took.items())
    proof.purpose(
        slowest == "load" and took["load"] >= 1e3 * DELAY_S * ACTIVE,
        f"the trace reveals the planted slow disk: {shares} in {ACTIVE} steps",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(10, 7), width=512)

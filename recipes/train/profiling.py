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

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

Batch = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # of the loss: profiling must not change it
ACTIVE, TOP = 3, 10  # recorded steps; operators in the table


def train(model: torch.nn.Module, batches: list[Batch], profiler: Any = None) -> Iterator[Any]:
    """Train, with a profiler if there is one; yields the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in batches:
        with record_function("forward"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if profiler is not None:
            profiler.step()  # the schedule counts these calls
        yield loss.detach()


def recording(device: str, trace: Path) -> Any:
    """A profiler that skips one step, warms up in two, and records the next ones."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    return profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=2, active=ACTIVE, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
    )


def costliest(profiler: Any, device: str) -> list[tuple[str, float, int]]:
    """Name, milliseconds and calls of the most expensive operators, without their children."""
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"  # microseconds
    # Other rows repeat the same time, as kernels and as the names from record_function().
    rows = [row for row in profiler.key_averages() if row.key.startswith(("aten::", "autograd::"))]
    rows = [row for row in rows if row.device_type == DeviceType.CPU]
    rows.sort(key=lambda row: getattr(row, key), reverse=True)
    return [(row.key, getattr(row, key) / 1e3, row.count) for row in rows[:TOP]]


def named(trace: Path) -> list[str]:
    """The names of the events in a trace; none if the trace is not readable."""
    try:
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError):
        return []
    return [event["name"] for event in events if event.get("ph") == "X"]


def network_and_batches(steps: int, width: int, device: str) -> tuple[Any, list[Batch]]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU())
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(device)
    teacher, inputs = torch.randn(width, 10), [torch.randn(64, width) for _ in range(4)]
    batches = [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in inputs]
    return model, (batches * steps)[:steps]


def measured(name: str, steps: Iterator[Any]) -> torch.Tensor:
    """Run the training and print the time per step; item() waits for the device."""
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss.item())
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
    ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
    line = f"{name:<8} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")
    return torch.tensor(losses)


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--trace", type=Path, help=".json file to write (default: in /tmp)")
    asked = parser.parse_args(argv)
    trace = asked.trace or Path(tempfile.mkdtemp(prefix="trace-")) / "trace.json"
    shape = (asked.steps, asked.width, asked.device)
    plain = measured("plain", train(*network_and_batches(*shape)))
    with recording(asked.device, trace) as profiler:
        watched = measured("profiled", train(*network_and_batches(*shape), profiler))
    top = costliest(profiler, asked.device) if trace.exists() else []
    for name, ms, calls in top:
        print(f"{ms:10.3f} ms {calls:4} calls  {name[:80]}")
    timed = bool(top) and top[0][1] > 0
    if not timed:
        print("no operator took any time; on a GPU, this means that CUPTI does not work")
    names = named(trace)
    found = sum(name in names for name, _, _ in top)
    steps = sum(name.startswith("ProfilerStep#") for name in set(names))  # a GPU lists them twice
    off, limit = float((watched - plain).abs().max()), TOLERANCE[asked.device]
    held = timed and found == len(top) == TOP and steps == ACTIVE and off <= limit
    print(
        f"{'proved' if held else 'not proved'}: the {len(names)} events in {trace} include {found}"
        f" of the {TOP} most expensive operators and {steps} of the {ACTIVE} recorded steps; losses"
        f" differ by at most {off:.1e} from plain training (tolerance {limit:.0e})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

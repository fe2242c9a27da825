"""Monitoring: GPU utilization, temperature, memory and throttling, read by a thread.

What it does: a background thread asks NVML, the library behind nvidia-smi, once per second. At the
end, it says how busy and how hot the GPU was, how much memory was used, and why it lowered its
clocks, if it did. NVML does not touch the CUDA queue, so the training does not wait for it.

When it helps: long runs that get slower over time, or a GPU that might be too hot, short of power
or idle. Log the summary next to the loss.

When it hurts: hardly at all. NVML counts processes of all users, and its memory figure includes
the CUDA context and torch's cache. On MIG instances, NVML does not report utilization.

How to check: compare with `nvidia-smi dmon`. This script trains with and without the thread,
compares the losses and prints the CPU time that the thread used. Without an NVIDIA GPU, it reads
made-up figures instead of NVML.

Troubleshooting:
- "NVML Shared Library Not Found", "Driver Not Loaded": there is no working NVIDIA driver here. Run
  `cudadoctor check`.
- "Not Supported": the GPU does not report this value, as on MIG instances, vGPUs and some laptops.
- "Function Not Found": the driver is older than 535. Call nvmlDeviceGetCurrentClocksThrottleReasons
  instead of nvmlDeviceGetCurrentClocksEventReasons, or update the driver.
- The values are those of another GPU: NVML ignores CUDA_VISIBLE_DEVICES. Look up the GPU by its
  UUID, as this script does.
- Utilization is 100 %, but the training is slow: NVML only reports the share of time in which any
  kernel ran, not how much of the GPU it used. Use a profiler (profiling.py).
- The clocks are low and the reason is "power cap": the GPU has reached its power limit. This is
  normal under full load. With "hot", check fans and airflow.
- `import pynvml` warns "The pynvml package is deprecated": run pip uninstall pynvml, then
  pip install nvidia-ml-py.
"""

from __future__ import annotations

import importlib
import threading
import time
from types import SimpleNamespace
from typing import Any

import torch
from proof import Proof, calls_seen, labeled, main, perceptron, skip, train_plain

# --- Copy from here ------------------------------------------------------------------------------
REASONS = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "hot", 0x40: "hot", 0x80: "power"}


class Monitor:
    """Reads NVML in a thread: `with Monitor(pynvml, gpu()) as seen: ...; print(seen.summary())`."""

    def __init__(self, nvml: Any, gpu: Any, every_s: float = 1.0) -> None:
        self.nvml, self.gpu, self.every_s = nvml, gpu, every_s
        self.samples: list[tuple[int, int, int, int]] = []  # %, °C, bytes, reasons
        self.cpu_s = 0.0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        while not self.done.wait(self.every_s):  # sleeps, and ends at once when it is set
            self.samples.append(
                (
                    self.nvml.nvmlDeviceGetUtilizationRates(self.gpu).gpu,
                    self.nvml.nvmlDeviceGetTemperature(self.gpu, 0),
                    self.nvml.nvmlDeviceGetMemoryInfo(self.gpu).used,
                    self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.gpu),
                )
            )
            self.cpu_s = time.thread_time()

    def __enter__(self) -> Monitor:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()

    def summary(self) -> str:
        if not self.samples:
            return "no samples"
        busy, heat, used, bits = zip(*self.samples, strict=True)
        slow = {name for bit, name in REASONS.items() if any(reasons & bit for reasons in bits)}
        return (
            f"GPU busy {sum(busy) / len(busy):.0f}% of the time, at most {max(heat)} °C and"
            f" {max(used) / 2**30:.1f} GiB, slowed down by: {', '.join(sorted(slow)) or 'nothing'}"
        )


def gpu() -> Any:
    """NVML's handle of the GPU that torch uses; their numbers may differ."""
    import pynvml  # pip install nvidia-ml-py

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


# --- Copy to here. The rest is the proof. --------------------------------------------------------


def made_up() -> SimpleNamespace:
    """A stand-in for NVML: the GPU is at 90 %, and hot when it is asked for the third time."""
    askers: list[int] = []

    def rates(_gpu: Any) -> SimpleNamespace:
        askers.append(threading.get_ident())
        return SimpleNamespace(gpu=90)

    return SimpleNamespace(
        askers=askers,
        nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetTemperature=lambda _gpu, _sensor: min(90, 60 + 10 * len(askers)),
        nvmlDeviceGetMemoryInfo=lambda _gpu: SimpleNamespace(used=3 << 30),
        nvmlDeviceGetCurrentClocksEventReasons=lambda _gpu: 0x20 if len(askers) >= 3 else 0,
    )


class NotWatching(Monitor):
    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def with_pauses(model: Any, batches: Any) -> Any:
    """Train with a short pause in each step, as for data: there is time for a few samples."""
    for loss in train_plain(model, batches):
        time.sleep(0.005)
        yield loss


def prove(proof: Proof) -> None:
    nvml: Any = made_up()
    handle = None
    if proof.device == "cuda":
        try:
            nvml, handle = importlib.import_module("pynvml"), gpu()
        except ImportError:
            skip("pynvml is not installed (pip install nvidia-ml-py)")
    else:
        print("no GPU here: a stand-in for NVML makes up the figures")
    kind = proof.technique(Monitor, instead=NotWatching)
    batches = labeled(proof.steps, 64, proof.device)
    plain = proof.train("unwatched", train_plain(perceptron(64, proof.device), batches))
    monitor = kind(nvml, handle, every_s=0.02)
    with calls_seen(nvml, "nvmlDeviceGetTemperature") as asked, monitor as seen:
        model = perceptron(64, proof.device)
        watched = proof.train("watched", with_pauses(model, batches))
    print(seen.summary())
    proof.same(watched == plain, f"{len(plain)} losses are the same, bit by bit")
    askers = getattr(nvml, "askers", [])
    proof.active(
        len(asked) == len(seen.samples) >= 3 and threading.get_ident() not in askers,
        f"NVML was asked {len(asked)} times while the training ran, by another thread",
    )
    each_s = seen.cpu_s / max(1, len(seen.samples))
    proof.purpose(
        0 < each_s < 0.01,
        f"a sample took {1e3 * each_s:.2f} ms of CPU time: at one per second,"
        f" {each_s:.2%} of a core",
    )
    if askers:
        proof.purpose("90 °C" in seen.summary() and "hot" in seen.summary(), "the heat was noticed")


if __name__ == "__main__":
    main(__doc__, prove, steps=(100, 40))

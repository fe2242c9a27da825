"""GPU against CPU: train the same workload on both, and see how large it must be for the GPU.

What it does: the same model takes the same steps on the CPU and on the GPU. The copy of every batch
to the GPU counts. The clock stops only after the GPU has finished, because CUDA calls return before
the work is done. The first steps do not count: they load kernels and fill caches.

When it helps: you want to know whether a GPU is worth its price for your model, or why a GPU is
hardly faster than a CPU. Use your own model and batches in step_seconds().

When it hurts: a small model is often faster on the CPU, because starting a kernel takes longer than
computing it. One workload says little about another.

How to check: run this script. It prints the time per step of a small and a large model on both
devices. To compare with all CPU cores, check that torch.get_num_threads() is the number of cores.

Troubleshooting:
- The GPU seems to take no time at all: the measurement does not wait for it. Call
  torch.cuda.synchronize() before you read the clock.
- "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!":
  move the batch to the device of the model.
- "Torch not compiled with CUDA enabled": this torch is a CPU build. Run `cudadoctor check`.
- The GPU is slower than the CPU: increase the batch size, and check that data loading is not what
  takes the time (dataloader.py).
- The losses differ between CPU and GPU: the order of sums differs, and TF32 or cuDNN may round
  differently. Small differences are normal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main, outputs_seen, perceptron, skip

# --- Copy from here ------------------------------------------------------------------------------


def step_seconds(
    model: Any, batches: Iterable[Batch], device: str, warm_up: int = 5
) -> tuple[float, list[float]]:
    """Train on this device; the mean time of a step after the warm-up, and all losses."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, began = [], 0.0
    for step, (x, y) in enumerate(batches):
        if step == warm_up:
            began = now(device)
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())  # item() would wait in every step
    return (now(device) - began) / (len(losses) - warm_up), [float(loss) for loss in losses]


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()  # otherwise, the clock would only time the calls
    return time.perf_counter()


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-3  # relative to the first loss: sums in another order, over some dozens of steps


def prove(proof: Proof) -> None:
    if proof.device != "cuda":
        skip("this compares a GPU with the CPU, and torch cannot use a GPU here")
    torch.set_float32_matmul_precision("highest")  # TF32 would exceed the tolerance
    gpu = proof.technique("cuda", instead="cpu")
    name = torch.cuda.get_device_name()
    off, places = 0.0, set[str]()
    for width in (64, proof.width):
        batches = labeled(proof.steps, width, "cpu")
        cpu_s, cpu = step_seconds(perceptron(width, "cpu"), batches, "cpu")
        model = perceptron(width, "cpu")
        with outputs_seen(model, torch.nn.Linear) as seen:
            gpu_s, ours = step_seconds(model, batches, gpu)
        off = max(off, apart(ours, cpu))
        places |= {out.device.type for out in seen}
        print(
            f"width {width}: {1e3 * cpu_s:.2f} ms per step on {torch.get_num_threads()} CPU"
            f" threads, {1e3 * gpu_s:.2f} ms on {name} ({cpu_s / gpu_s:.2f}x)"
        )
    proof.same(off <= TOLERANCE, f"losses within {off:.1e} of the CPU (tolerance {TOLERANCE:.0e})")
    proof.active(places == {"cuda"}, f"the layers computed on {', '.join(sorted(places))}")


if __name__ == "__main__":
    main(__doc__, prove, steps=(55, 15), width=(2048, 256))

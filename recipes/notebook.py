"""Generate colab.ipynb from the recipes: `python recipes/notebook.py`.

The notebook checks the machine with cudadoctor and trains in mixed precision, on a T4 or a CPU. Its
technique cells are what the recipes mark as worth copying, so that there is one source of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FILE = HERE / "colab.ipynb"
TITLE = """# Check a GPU and train on it

Run the cells from top to bottom. On Colab, first select a GPU: **Runtime > Change runtime type > T4 GPU**.
On Kaggle: **Settings > Accelerator > GPU T4 x2**. Without a GPU, everything runs on the CPU, only slower.
"""
INSTALL = """# cudadoctor is not on PyPI yet: name a checkout, or a wheel that you uploaded.
# It installs next to torch and does not change it.
SOURCE = "cudadoctor"
%pip install -q {SOURCE}
"""
CHECK_TEXT = """## Check the machine

A notebook has two Pythons: the one that runs the cells (the kernel) and the one that `!python` starts. They can
be different environments. `{sys.executable}` is the kernel's, so this checks the torch that you train with.
"""
CHECK = """import sys

!cudadoctor check --python {sys.executable}
"""
TRAIN_TEXT = """## Train in mixed precision

A T4 has tensor cores for fp16, but emulates bf16, so use fp16 with a gradient scaler. This cell is the technique
of `recipes/train/amp_fp16.py`; copy it into your own code.
"""
IMPORTS = """from collections.abc import Iterable, Iterator
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"torch {torch.__version__} on", torch.cuda.get_device_name() if device == "cuda" else "the CPU")
"""
MEASURE = """import itertools
import statistics
import time


def network(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    return torch.nn.Sequential(*layers).to(device)


def train_fp32(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


width, steps = (4096, 100) if device == "cuda" else (64, 40)
x = torch.randn(512 if device == "cuda" else 64, width, device=device)
batches = [(x, x.sin() / 100)] * steps
final = {}
for name, train in (("fp32", train_fp32), ("fp16", train_fp16)):
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    clock, losses = [time.perf_counter()], []
    for loss in train(network(width), batches, device):
        losses.append(loss.item())  # waits for the GPU
        clock.append(time.perf_counter())
    ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)][steps // 4 :]
    memory = f", {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB" if device == "cuda" else ""
    print(f"{name}: loss {losses[0]:.2e} to {losses[-1]:.2e}, {statistics.median(ms):.2f} ms per step{memory}")
    final[name] = losses[-1]

assert abs(final["fp16"] - final["fp32"]) < 0.2 * losses[0], "fp16 does not train like fp32"
"""
LOADER_TEXT = """## Feed it without waiting

If the GPU waits for data, worker processes load it. Colab's free T4 machines have two CPU cores, so two workers are
enough. This cell is the technique of `recipes/train/dataloader.py`.
"""
LOADER_IMPORTS = """from torch.utils.data import DataLoader, RandomSampler, TensorDataset
"""
LOADER_USE = """data = TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
loader = tuned_loader(data, batch=32, workers=2, device=device)
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
print(len(loader), "batches from", loader.num_workers, "worker processes")
"""
NEXT = """## If something is wrong

- `!cudadoctor fix --print` prints the commands that repair the environment and changes nothing.
- `!cudadoctor explain "CUDA error: no kernel image is available"` explains an error message.
- The other recipes are in `recipes/train`, each with what it does, when it helps and when it hurts.
"""


def technique(script: str) -> str:
    """What a recipe marks as worth copying."""
    text = (HERE / "train" / f"{script}.py").read_text(encoding="utf-8")
    _, _, rest = text.partition("# --- Copy from here ")
    return rest.partition("# --- Copy to here.")[0].partition("\n")[2].strip() + "\n"


def cells() -> list[tuple[str, str]]:
    """(kind, text) of each cell."""
    return [
        ("markdown", TITLE),
        ("code", INSTALL),
        ("markdown", CHECK_TEXT),
        ("code", CHECK),
        ("code", IMPORTS),
        ("markdown", TRAIN_TEXT),
        ("code", technique("amp_fp16")),
        ("code", MEASURE),
        ("markdown", LOADER_TEXT),
        ("code", LOADER_IMPORTS + "\n\n" + technique("dataloader")),
        ("code", LOADER_USE),
        ("markdown", NEXT),
    ]


def notebook() -> dict[str, Any]:
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells()):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.rstrip("\n").splitlines(keepends=True),
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    return {
        "cells": made,
        "metadata": {
            "accelerator": "GPU",
            "colab": {"gpuType": "T4", "provenance": []},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def written() -> str:
    return json.dumps(notebook(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8", newline="\n")
    sys.stdout.write(f"{FILE.name} written\n")

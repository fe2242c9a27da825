"""Accelerate: the same loop on a CPU, one GPU or many, and a config file for this machine.

What it does: prepare() moves model and data and divides the batches; accelerator.backward() scales
the loss. A config file says how many processes, and which precision: this writes the one for here:
    accelerate launch --config_file accelerate.yaml train.py

When it helps: one script for several machines; DDP, FSDP and DeepSpeed by a file.

When it hurts: one more layer to understand when something is slow; one GPU needs none of it.

How to see it: `accelerate env`; accelerator.state; the losses below.

What goes wrong, and the way out:
- It runs on a CPU, or on one GPU of several: the file in ~/.cache/huggingface/accelerate is of
  another machine. Give --config_file.
- "fp16 mixed precision requires a GPU": the file asks for what this machine has not.
- It learns badly with gradient_accumulation_steps: use accelerator.backward(loss), as below.
- The schedule runs too fast on many GPUs: a prepared scheduler makes a step for each process.
- Clipping does nothing useful: accelerator.clip_grad_norm_, if accelerator.sync_gradients.
- Validation counts some samples twice: gather_for_metrics() instead of gather().
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator
    from accelerate.commands.config import config_args
except ImportError:
    config_args = None

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # of the first loss: sums in another order
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step


def config_for(capabilities: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """What `accelerate config` would ask for, answered by the GPUs that are here."""
    oldest = min(capabilities, default=(0, 0))
    precision = "fp16" if oldest >= (7, 0) else "no"  # before 7.0 there are no tensor cores
    several = len(capabilities) > 1
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if several else "NO",
        "num_processes": max(1, len(capabilities)),
        "gpu_ids": "all" if capabilities else None,
        "mixed_precision": "bf16" if oldest >= (8, 0) else precision,
        "use_cpu": not capabilities,
        "debug": False,
    }


def written(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write the file, and what accelerate reads from it."""
    config_args.ClusterConfig(**config).to_yaml_file(str(path))
    found = config_args.load_config_from_file(str(path)).to_dict()
    return {name: found.get(name) for name in config}


def parts(device: str) -> tuple[Any, Any, TensorDataset]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 99), torch.nn.Linear(99, 10)).to(device)
    x = torch.randn(BATCH * 8, 64)
    data = TensorDataset(x, x[:, :10].argmax(1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def train_plain(epochs: int, device: str) -> list[float]:
    """The whole batch at once, by hand; the loss of every step."""
    model, optimizer, data = parts(device)
    losses: list[float] = []
    for x, y in list(DataLoader(data, BATCH)) * epochs:
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_accelerated(epochs: int, device: str) -> list[float]:
    """The same in micro-batches, by Accelerate; the mean loss of every step."""
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=PARTS)
    *made, data = parts("cpu")  # prepare() moves it
    model, optimizer, loader = accelerator.prepare(*made, DataLoader(data, BATCH // PARTS))
    losses: list[float] = []
    for _ in range(epochs):
        for x, y in loader:  # on the device already
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)  # divides it by PARTS
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # does nothing before the last part
                optimizer.zero_grad()
            losses.append(loss.item())
    return [statistics.mean(losses[i : i + PARTS]) for i in range(0, len(losses), PARTS)]


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=10, help="epochs of eight steps")
    parser.add_argument("--config", type=Path, help="where to write it; default a new file in /tmp")
    asked = parser.parse_args(argv)
    if config_args is None:
        print("skipped: accelerate is not installed here (pip install accelerate)")
        return 0
    path = asked.config or Path(tempfile.mkdtemp()) / "accelerate.yaml"
    gpus = range(torch.cuda.device_count() if asked.device == "cuda" else 0)
    config = config_for([torch.cuda.get_device_capability(number) for number in gpus])
    same = written(config, path) == config
    print(
        f"{path}: {config['num_processes']} process, mixed_precision: {config['mixed_precision']}"
    )
    runs: list[list[float]] = []
    for train in (train_plain, train_accelerated):
        clock = [time.perf_counter()]
        for _ in range(4):  # the first one warms up
            losses = train(asked.steps, asked.device)
            clock.append(time.perf_counter())
        ms = sorted(1e3 * (b - a) / len(losses) for a, b in itertools.pairwise(clock[1:]))
        line = f"{train.__name__:<18} loss {losses[-1]:.4f}, {ms[1]:.2f} ms a step"
        print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")
        runs.append(losses)
    plain, ours = (torch.tensor(run) for run in runs)
    off, limit = float((ours - plain).abs().max() / plain[0]), TOLERANCE[asked.device]
    held = same and off <= limit and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: {PARTS} micro-batches by Accelerate have the losses"
        f" of the whole batch by hand within {off:.1e} of the first (tolerance {limit:.0e});"
        f" accelerate reads {'what was written' if same else 'something else'} from the file"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Accelerate: one training loop for a CPU, one GPU or many, with a config file for each machine.

What it does: accelerator.prepare() moves the model and the data to the device and gives each
process its own batches; accelerator.backward() scales the loss and runs the backward pass. A config
file sets the number of processes and the precision. This script writes a config file for the
machine it runs on, then starts itself with `accelerate launch --config_file FILE ...`.

When it helps: you run the same script on several machines, or you want to choose between DDP, FSDP
and DeepSpeed in a config file.

When it hurts: Accelerate is one more layer to understand when training is slow. With a single GPU,
you do not need Accelerate.

How to check: run `accelerate env`, print accelerator.state, and compare the losses with and without
Accelerate, as this script does.

Troubleshooting:
- Training uses the CPU, or only one of several GPUs: Accelerate read the config file of another
  machine. Pass the config file for this machine with --config_file.
- "fp16 mixed precision requires a device in": the config file requests a precision that this
  machine does not support.
- With Accelerate, the model learns differently on several GPUs: batch_size is per process, so with
  N GPUs each step trains on N times as many samples, and a scheduler that was passed to
  accelerator.prepare() advances N steps at a time. Adjust the learning rate, or use
  DataLoaderConfiguration(split_batches=True).
- With Accelerate, the model learns poorly under gradient accumulation: call
  accelerator.backward(loss) instead of loss.backward(), and clip gradients only if
  accelerator.sync_gradients is True.
- With Accelerate, validation counts some samples twice: use gather_for_metrics() instead of
  gather().
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator, PartialState
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command, launch_command_parser
except ImportError:
    ClusterConfig = None

TOLERANCE = {"no": 1e-3, "fp16": 0.02, "bf16": 0.02}  # relative to the first loss, by precision
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step


def train_accelerated(accelerator: Any, epochs: int) -> Iterator[float]:
    """Accelerate with micro-batches; yields the loss of every step, averaged over processes."""
    *made, data = parts("cpu", accelerator.num_processes)  # prepare() moves it
    model, optimizer, loader = accelerator.prepare(*made, DataLoader(data, BATCH // PARTS))
    losses: list[float] = []
    for _ in range(epochs):
        for x, y in loader:  # already on the device
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)  # divides it by PARTS
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # does nothing until the last micro-batch
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            if len(losses) % PARTS == 0:
                yield statistics.mean(losses[-PARTS:])


def train_plain(device: Any, processes: int, epochs: int) -> Iterator[float]:
    """A hand-written loop over whole batches; yields the loss of every step."""
    model, optimizer, data = parts(device, processes)
    for x, y in list(DataLoader(data, BATCH * processes)) * epochs:
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def parts(device: Any, processes: int) -> tuple[Any, Any, TensorDataset]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 99), torch.nn.Linear(99, 10)).to(device)
    x = torch.randn(BATCH * processes * 8, 64)
    data = TensorDataset(x, x[:, :10].argmax(1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def config_for(capabilities: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The answers to the questions of `accelerate config`, from the GPUs of this machine."""
    oldest = min(capabilities, default=(0, 0))
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if len(capabilities) > 1 else "NO",
        "num_processes": max(1, len(capabilities)),
        "mixed_precision": "bf16" if oldest >= (8, 0) else "fp16" if oldest >= (7, 0) else "no",
        "use_cpu": not capabilities,
        "debug": False,
    }


def measured(name: str, steps: Iterator[float]) -> torch.Tensor:
    losses, clock = list[float](), [time.perf_counter()]
    for loss in steps:
        losses.append(loss)
        clock.append(time.perf_counter())
    ms = sorted(1e3 * (b - a) for a, b in itertools.pairwise(clock[4:]))  # without the warm-up
    line = f"{name:<10} loss {losses[-1]:.4f}, {statistics.median(ms):.2f} ms per step"
    PartialState().print(f"{line} ({ms[0]:.2f} to {ms[-1]:.2f})")  # the main process only
    return torch.tensor(losses)


def compare(config: dict[str, Any], epochs: int) -> int:
    accelerator = Accelerator(gradient_accumulation_steps=PARTS)
    device, precision = accelerator.device, accelerator.mixed_precision
    found = {"num_processes": accelerator.num_processes, "mixed_precision": precision}
    obeyed = config | found == config and config["use_cpu"] == (device.type == "cpu")
    plain = measured("by hand", train_plain(device, accelerator.num_processes, epochs))
    ours = measured("Accelerate", train_accelerated(accelerator, epochs))
    off, limit = float((ours - plain).abs().max() / plain[0]), TOLERANCE[precision]
    held = obeyed and off <= limit and bool(plain[-1] < plain[0])
    accelerator.print(
        f"{'proved' if held else 'not proved'}: {PARTS} micro-batches with Accelerate match the"
        f" whole batch by hand: losses within {off:.1e}, relative to the first (tolerance"
        f" {limit:.0e}); {found} on {device}"
        f" {'matches' if obeyed else 'does not match'} the config file"
    )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=10, help="epochs (8 steps each)")
    parser.add_argument("--config", help="config file to write (default: in /tmp)")
    asked = parser.parse_args(argv)
    if ClusterConfig is None:
        print("skipped: accelerate is not installed (pip install accelerate)")
        return 0
    gpus = range(torch.cuda.device_count() if asked.device == "cuda" else 0)
    config = config_for([torch.cuda.get_device_capability(number) for number in gpus])
    if "ACCELERATE_MIXED_PRECISION" in os.environ:  # started by accelerate launch
        return compare(config, asked.steps)
    path = asked.config or f"{tempfile.mkdtemp()}/accelerate.yaml"
    ClusterConfig(**config).to_yaml_file(path)
    print(f"accelerate launch --config_file {path}", flush=True)
    script = [__file__, f"--device={asked.device}", f"--steps={asked.steps}"]
    launch_command(launch_command_parser().parse_args(["-q", "--config_file", path, *script]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

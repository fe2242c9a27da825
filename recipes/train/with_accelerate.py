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

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from proof import Proof, apart, calls_seen, main, skip
from torch.utils.data import DataLoader, TensorDataset

# --- Copy from here ------------------------------------------------------------------------------


def train_accelerated(accelerator: Any, made: Any, loader: Any, epochs: int) -> Iterator[float]:
    """A loop with micro-batches; yields the loss of every micro-batch, averaged over processes.

    accelerator: Accelerator(gradient_accumulation_steps=4). made: a model and its optimizer.
    """
    model, optimizer, loader = accelerator.prepare(*made, loader)  # moves and wraps them
    for _ in range(epochs):
        for x, y in loader:  # already on the device
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)  # divides it by the number of micro-batches
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()  # does nothing until the last micro-batch
                optimizer.zero_grad()
            yield accelerator.reduce(loss.detach(), "mean").item()


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"no": 1e-3, "fp16": 0.02, "bf16": 0.02}  # relative to the first loss, by precision
BATCH, PARTS = 64, 4  # PARTS micro-batches make one step


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


def by_step(losses: Iterator[float]) -> Iterator[float]:
    """The mean over the micro-batches of each step."""
    some: list[float] = []
    for loss in losses:
        some.append(loss)
        if len(some) == PARTS:
            yield statistics.mean(some)
            some.clear()


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


def compare(proof: Proof, config: dict[str, Any]) -> None:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator = Accelerator(gradient_accumulation_steps=PARTS)
    device, precision = accelerator.device, accelerator.mixed_precision
    world = accelerator.num_processes
    plain = proof.train("by hand", train_plain(device, world, proof.epochs))
    *made, data = parts("cpu", world)  # prepare() moves it
    loader = DataLoader(data, BATCH // PARTS)
    with (
        calls_seen(AcceleratedOptimizer, "step") as asked,
        calls_seen(torch.optim.SGD, "step") as stepped,
    ):
        if proof.off:
            ours = proof.train("by hand again", train_plain(device, world, proof.epochs))
        else:
            run = train_accelerated(accelerator, made, loader, proof.epochs)
            ours = proof.train("Accelerate", by_step(run))
    if not accelerator.is_main_process:
        raise SystemExit(0)
    off, limit = apart(ours, plain), TOLERANCE[precision]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"{PARTS} micro-batches match the whole batch by hand: losses within {off:.1e}, relative to"
        f" the first (tolerance {limit:.0e})",
    )
    proof.active(
        len(asked) == PARTS * len(stepped) > 0,
        f"Accelerate turned {len(asked)} calls of step() into {len(stepped)} updates",
    )
    found = {"num_processes": world, "mixed_precision": precision}
    obeyed = config | found == config and config["use_cpu"] == (device.type == "cpu")
    proof.purpose(
        obeyed, f"{found} on {device} {'is' if obeyed else 'is not'} what the config file asks for"
    )


def prove(proof: Proof) -> None:
    try:
        from accelerate.commands.config.config_args import ClusterConfig
        from accelerate.commands.launch import launch_command, launch_command_parser
    except ImportError:
        skip("accelerate is not installed (pip install accelerate)")
    gpus = range(torch.cuda.device_count() if proof.device == "cuda" else 0)
    config = config_for([torch.cuda.get_device_capability(number) for number in gpus])
    if "ACCELERATE_MIXED_PRECISION" in os.environ:  # started by accelerate launch
        return compare(proof, config)
    path = f"{tempfile.mkdtemp()}/accelerate.yaml"
    ClusterConfig(**config).to_yaml_file(path)
    print(f"accelerate launch --config_file {path}", flush=True)
    again = ["-q", "--config_file", path, __file__, *sys.argv[1:]]
    launch_command(launch_command_parser().parse_args(again))  # exits if the script fails
    raise SystemExit(0)


if __name__ == "__main__":
    main(__doc__, prove, epochs=(10, 3))

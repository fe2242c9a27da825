"""pytorch-accelerated: a ready-made training loop on top of Accelerate.

What it does: Trainer(model, loss, optimizer).train(data) moves the model and the data to the
device, splits the data across processes, accumulates and clips gradients, and keeps a history of
the losses. To change part of the loop, override a method or add a callback. On several GPUs, run
`accelerate launch train.py`.

When it helps: you keep writing training scripts with the same loop. Trainer provides early stopping
and model averaging as callbacks, trainer.load_checkpoint() resumes training, and Accelerate's
config file selects DDP or FSDP and the precision.

When it hurts: your training loop has a different structure (two optimizers, a GAN), or you want to
see every line of the loop.

How to check: compare trainer.run_history.get_metric_values("train_loss_epoch") with the losses of a
hand-written loop, as this script does.

Troubleshooting:
- With pytorch-accelerated, the losses differ from those of your own loop: by default, the Trainer's
  data loader shuffles, uses workers and keeps the last partial batch. Pass
  train_dataloader_kwargs={"shuffle": False, "num_workers": 0}. The batch size is per device.
- The learning rate never changes: the Trainer needs a function that creates the scheduler, not the
  scheduler itself. Pass train() a create_scheduler_fn that takes the optimizer and returns a
  scheduler. Trainer calls scheduler.step() after every training step.
- With TrainerWithTimmScheduler, the learning rate never changes: the trainer calls
  scheduler.step_update() after every training step, but scheduler.step() only after each epoch's
  evaluation. Pass an eval_dataset.
- pytorch-accelerated's gradient_clip_value clips each gradient value, as clip_grad_value_() does;
  it does not limit the norm.
- With pytorch-accelerated, if the loss uses several model outputs or a batch is a dictionary,
  override calculate_train_batch_loss(). It must return {"loss": ..., "model_outputs": ...,
  "batch_size": ...}.
- With pytorch-accelerated, progress bars fill the log: pass your own list of callbacks to Trainer.
  Your list replaces all default callbacks, so include MoveModulesToDeviceCallback, which moves the
  model to the device.
- Training uses the GPU when it should not, or does not use the GPU when it should: Accelerate
  chooses the device. Set ACCELERATE_USE_CPU=1 to train on the CPU, or override
  _create_accelerator().
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

try:
    from pytorch_accelerated import Trainer
    from pytorch_accelerated.callbacks import MoveModulesToDeviceCallback
except ImportError:
    Trainer = None

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss
BATCH = 64


def parts(device: str) -> tuple[Any, Any, TensorDataset]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10))
    model = model.to(device)
    x, teacher = torch.randn(BATCH * 8, 64), torch.randn(64, 10)
    data = TensorDataset(x, (x @ teacher).argmax(1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def schedule(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)


def train_plain(epochs: int, device: str) -> list[float]:
    """A hand-written loop; returns the mean loss of every epoch."""
    model, optimizer, data = parts(device)
    loader = DataLoader(data, BATCH)
    scheduler = schedule(optimizer, epochs * len(loader))
    means: list[float] = []
    for _ in range(epochs):
        losses: list[float] = []
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        means.append(statistics.mean(losses))
    return means


def train_by_trainer(epochs: int, device: str) -> list[float]:
    """The same training with the Trainer; returns the mean loss of every epoch."""
    os.environ["ACCELERATE_USE_CPU"] = str(device == "cpu").lower()
    model, optimizer, data = parts("cpu")  # the callback moves it
    trainer = Trainer(
        model,
        loss_func=torch.nn.functional.cross_entropy,
        optimizer=optimizer,
        callbacks=(MoveModulesToDeviceCallback,),  # no progress bar
    )
    steps = epochs * (len(data) // BATCH)
    trainer.train(
        train_dataset=data,
        num_epochs=epochs,
        per_device_batch_size=BATCH,
        gradient_clip_value=0.01,
        create_scheduler_fn=lambda prepared: schedule(prepared, steps),
        train_dataloader_kwargs={"shuffle": False, "num_workers": 0},  # it shuffles by default
    )
    return list(trainer.run_history.get_metric_values("train_loss_epoch"))


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=10, help="epochs (8 steps each)")
    asked = parser.parse_args(argv)
    if Trainer is None:
        print("skipped: pytorch-accelerated is not installed (pip install pytorch-accelerated)")
        return 0
    runs: list[torch.Tensor] = []
    for train in (train_plain, train_by_trainer):
        clock = [time.perf_counter()]
        for _ in range(4):  # the first is the warm-up
            losses = train(asked.steps, asked.device)
            clock.append(time.perf_counter())
        ms = sorted(1e3 * (b - a) / asked.steps for a, b in itertools.pairwise(clock[1:]))
        line = f"{train.__name__:<17} loss {losses[-1]:.4f}, {ms[1]:.1f} ms per epoch"
        print(f"{line} ({ms[0]:.1f} to {ms[-1]:.1f})")
        runs.append(torch.tensor(losses))
    plain, ours = runs
    complete = len(plain) == len(ours)
    off = float((ours - plain).abs().max() / plain[0]) if complete else float("nan")
    limit = TOLERANCE[asked.device]
    held = off <= limit and bool(plain[-1] < plain[0])
    print(
        f"{'proved' if held else 'not proved'}: the Trainer matches the hand-written loop over"
        f" {len(ours)} epochs: mean losses within {off:.1e}, relative to the first (tolerance"
        f" {limit:.0e}); the loss fell from {plain[0]:.3f} to {plain[-1]:.3f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

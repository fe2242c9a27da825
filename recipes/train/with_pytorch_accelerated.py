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

import os
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from proof import Proof, apart, calls_seen, main, skip
from torch.utils.data import DataLoader, TensorDataset

# --- Copy from here ------------------------------------------------------------------------------


def train_by_trainer(model: Any, optimizer: Any, data: Any, epochs: int, batch: int) -> list[float]:
    """Train with the Trainer of pytorch-accelerated; returns the mean loss of every epoch."""
    from pytorch_accelerated import Trainer
    from pytorch_accelerated.callbacks import MoveModulesToDeviceCallback

    steps = epochs * (len(data) // batch)
    trainer = Trainer(
        model,
        loss_func=torch.nn.functional.cross_entropy,
        optimizer=optimizer,
        callbacks=(MoveModulesToDeviceCallback,),  # no progress bar
    )
    trainer.train(
        train_dataset=data,
        num_epochs=epochs,
        per_device_batch_size=batch,
        gradient_clip_value=0.01,
        create_scheduler_fn=lambda prepared: schedule(prepared, steps),
        train_dataloader_kwargs={"shuffle": False, "num_workers": 0},  # it shuffles by default
    )
    return list(trainer.run_history.get_metric_values("train_loss_epoch"))


def schedule(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative to the first loss
BATCH = 64


def parts(device: str) -> tuple[Any, Any, TensorDataset]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10))
    model = model.to(device)
    x, teacher = torch.randn(BATCH * 8, 64), torch.randn(64, 10)
    data = TensorDataset(x, (x @ teacher).argmax(1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def train_plain(epochs: int, device: str) -> Iterator[float]:
    """A hand-written loop; yields the mean loss of every epoch."""
    model, optimizer, data = parts(device)
    loader = DataLoader(data, BATCH)
    scheduler = schedule(optimizer, epochs * len(loader))
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
        yield statistics.mean(losses)


def prove(proof: Proof) -> None:
    try:
        from pytorch_accelerated import Trainer
    except ImportError:
        skip("pytorch-accelerated is not installed (pip install pytorch-accelerated)")
    os.environ["ACCELERATE_USE_CPU"] = str(proof.device == "cpu").lower()
    plain = proof.train("by hand", train_plain(proof.epochs, proof.device))
    with calls_seen(Trainer, "calculate_train_batch_loss") as batches:
        if proof.off:
            ours = proof.train("by hand again", train_plain(proof.epochs, proof.device))
        else:
            model, optimizer, data = parts("cpu")  # the callback moves it
            ours = train_by_trainer(model, optimizer, data, proof.epochs, BATCH)
    off, limit = apart(ours, plain), TOLERANCE[proof.device]
    proof.same(
        off <= limit and plain[-1] < plain[0],
        f"the Trainer matches the hand-written loop over {len(ours)} epochs: mean losses within"
        f" {off:.1e}, relative to the first (tolerance {limit:.0e})",
    )
    proof.active(
        len(batches) == 8 * proof.epochs, f"the Trainer ran {len(batches)} training batches"
    )


if __name__ == "__main__":
    main(__doc__, prove, epochs=(10, 3))

"""Early stopping: stop when the validation loss stops falling, and restore the best weights.

What it does: after each epoch, the model is evaluated on validation data, which is not used for
training. If the validation loss has not improved by at least min_delta for `patience` epochs,
training ends and the weights of the best epoch are restored.

When it helps: you do not know how many epochs you need, or the model overfits because the dataset
is small or the model is large.

When it hurts: the validation set is so small that its loss is mostly noise, or the loss is expected
to rise before it falls again (one-cycle schedules and warm restarts must run to the end).
Evaluating the model after every epoch also takes time.

How to check: look at the validation loss after each epoch. This script prints which epoch had the
lowest validation loss.

Troubleshooting:
- After training, the model has the last weights instead of the best ones: restore the best weights
  after the training loop, even if training ran for all epochs.
- The saved "best" weights are the same as the last ones: model.state_dict() returns references to
  the live tensors. Copy the tensors, as this script does, or use torch.save().
- BatchNorm and dropout distort the validation loss: call model.eval() before evaluation and
  model.train() after it.
- Early stopping ends training much too early: raise patience, which counts evaluations, not
  batches. If min_delta is larger than the improvement of one epoch, lower min_delta.
- Early stopping never ends training: with min_delta=0, even a rounding error counts as an
  improvement, so use a larger min_delta. A loss of nan can also be the cause: a condition such as
  `elif loss > best` is False for nan, so the epoch does not count as one without improvement. Use
  `else` instead, and stop at once if the loss is not finite.
- With early stopping, the reported score is too good: the best epoch was chosen on the validation
  set. Report the score on a separate test set.
- Under DDP, some processes stop early and the others hang: all processes must make the same
  decision. Average the validation loss with all_reduce before you decide whether to stop.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

Data = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 1e-6  # of the validation loss: the restored weights are those of the best epoch


class EarlyStopping:
    """After each epoch: `if stopping.done(val_loss, model): break`. After the loop: restore()."""

    def __init__(self, patience: int, min_delta: float = 1e-4) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best, self.waited = math.inf, 0
        self.weights: dict[str, Any] = {}

    def done(self, loss: float, model: torch.nn.Module) -> bool:
        if not math.isfinite(loss):
            return True
        if loss < self.best - self.min_delta:
            self.best, self.waited = loss, 0
            # A copy, because training changes the tensors; on the CPU, to save GPU memory.
            state = model.state_dict().items()
            self.weights = {name: tensor.to("cpu", copy=True) for name, tensor in state}
        else:
            self.waited += 1
        return self.waited >= self.patience

    def restore(self, model: torch.nn.Module) -> None:
        if self.weights:
            model.load_state_dict(self.weights)


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    wide = (torch.nn.Linear(20, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU())
    return torch.nn.Sequential(*wide, torch.nn.Dropout(0.1), torch.nn.Linear(width, 2)).to(device)


def samples(count: int, seed: int, device: str) -> Data:
    """Two overlapping classes, so that memorizing the samples is overfitting."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=draw)
    x = torch.randn(count, 20, generator=draw)
    x[:, :4] += 0.5 * y.unsqueeze(1)
    return x.to(device), y.to(device)


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: torch.nn.Module, data: Data) -> float:
    """The loss on data that is not used for training, without dropout."""
    model.eval()
    loss = torch.nn.functional.cross_entropy(model(data[0]), data[1])
    model.train()
    return float(loss)


def epoch(model: torch.nn.Module, optimizer: Any, data: Data, seed: int) -> None:
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    for chosen in order.to(data[0].device).split(50):
        loss = torch.nn.functional.cross_entropy(model(data[0][chosen]), data[1][chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train(
    model: torch.nn.Module, data: Data, validation: Data, epochs: int, patience: int | None
) -> tuple[list[float], list[float], EarlyStopping]:
    """Train; returns the validation losses, the seconds per epoch and the EarlyStopping."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    stopping = EarlyStopping(epochs + 1 if patience is None else patience)
    losses, seconds = list[float](), list[float]()
    for number in range(epochs):
        started = time.perf_counter()
        epoch(model, optimizer, data, number)
        losses.append(judged(model, validation))  # waits for the device
        seconds.append(time.perf_counter() - started)
        if stopping.done(losses[-1], model):
            break
    if patience is not None:
        stopping.restore(model)  # even if all epochs ran
    return losses, sorted(seconds), stopping


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=80, help="maximum number of epochs")
    parser.add_argument("--patience", type=int, default=8)
    asked = parser.parse_args(argv)
    data, validation, test = (
        samples(count, seed, asked.device) for seed, count in enumerate((400, 1000, 4000))
    )
    tests, ran = list[float](), list[int]()
    for name, patience in (("all epochs", None), ("early stopping", asked.patience)):
        model = network(128, asked.device)
        losses, s, stopping = train(model, data, validation, asked.steps, patience)
        tests.append(judged(model, test))
        ran.append(len(losses))
        line = f"{name:<15} {len(losses)} epochs, best at {losses.index(min(losses)) + 1}"
        line += f", test loss {tests[-1]:.4f}, {1e3 * statistics.median(s):.1f} ms per epoch"
        print(f"{line} ({1e3 * s[0]:.1f} to {1e3 * s[-1]:.1f})")
    off = abs(judged(model, validation) - stopping.best)
    held = off <= TOLERANCE and ran[1] < ran[0] and tests[1] < tests[0]
    print(
        f"{'proved' if held else 'not proved'}: {ran[1]} epochs instead of {ran[0]}; the restored"
        f" weights reproduce the best validation loss {stopping.best:.4f} within {off:.0e}"
        f" (tolerance {TOLERANCE:.0e}); test loss {tests[1]:.4f} instead of {tests[0]:.4f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

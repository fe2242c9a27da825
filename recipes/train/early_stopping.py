"""Early stopping: stop when the validation loss stops falling, and restore the best weights.

What it does: after each epoch the model is evaluated on data that it does not learn from. If the
loss has not improved by min_delta for `patience` epochs, training ends and the weights of the best
epoch are restored.

When it helps: the number of epochs is a guess; small data or a large model, which overfits.

When it hurts: a validation set so small that its loss is noise; losses that rise before they fall
again (one-cycle and warm restarts need their whole schedule). Evaluation itself takes time.

How to see it: the validation loss per epoch, below, and the epoch with the lowest one.

Troubleshooting:
- The last weights are used, not the best: restore them, also if the loop ends by itself.
- The "best" weights are still the last ones: model.state_dict() holds the live tensors. Copy them,
  as below, or use torch.save.
- BatchNorm and dropout distort the evaluation: model.eval() before it and model.train() after it.
- It stops much too early: patience counts evaluations, not batches; min_delta is larger than the
  gain of an epoch; or one value is noisy. Raise patience.
- It never stops: min_delta=0 counts rounding as progress; `elif loss > best` is false for nan, so
  nothing is counted. Count in `else`, and stop at once if the loss is not finite.
- The reported score is too good: the epoch was chosen on the validation set. Report a third set.
- Under DDP some processes go on and hang: all must decide the same. all_reduce the loss first.
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
TOLERANCE = 1e-6  # of the validation loss: the weights put back are those of the best epoch


class EarlyStopping:
    """Ask after each epoch: `if stopping.done(val_loss, model): break`; then restore(model)."""

    def __init__(self, patience: int, min_delta: float = 1e-4) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best, self.waited = math.inf, 0
        self.weights: dict[str, Any] = {}

    def done(self, loss: float, model: torch.nn.Module) -> bool:
        if not math.isfinite(loss):
            return True
        if loss < self.best - self.min_delta:
            self.best, self.waited = loss, 0
            # A copy, since training changes the tensors; on the CPU, where memory is not short.
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
    """Two classes that overlap, so that learning the samples by heart is a mistake."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=draw)
    x = torch.randn(count, 20, generator=draw)
    x[:, :4] += 0.5 * y.unsqueeze(1)
    return x.to(device), y.to(device)


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: torch.nn.Module, data: Data) -> float:
    """The loss on data that is not learned from, without dropout."""
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
    """Train; the validation losses, the seconds of every epoch and what was stopped by."""
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
        stopping.restore(model)  # also where the loop ran to its end
    return losses, sorted(seconds), stopping


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=80, help="at most this many epochs")
    parser.add_argument("--patience", type=int, default=8)
    asked = parser.parse_args(argv)
    data, validation, test = (
        samples(count, seed, asked.device) for seed, count in enumerate((400, 1000, 4000))
    )
    tests, ran = list[float](), list[int]()
    for name, patience in (("to the end", None), ("early stopping", asked.patience)):
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
        f" weights give the best validation loss {stopping.best:.4f} within {off:.0e} (tolerance"
        f" {TOLERANCE:.0e}); test loss {tests[1]:.4f} instead of {tests[0]:.4f}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

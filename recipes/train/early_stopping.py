"""Early stopping: stop when the validation loss stops falling, and restore the best weights.

What it does: after each epoch, the model is evaluated on validation data, which is not used for
training. If the validation loss has not improved by at least min_delta for `patience` epochs,
training ends and the weights of the best epoch are restored. For a metric that rises, such as
accuracy, F1 or mAP, use mode="max".

When it helps: you do not know how many epochs you need, or the model overfits because the dataset
is small or the model is large.

When it hurts: the validation set is so small that its loss is mostly noise, or the loss is expected
to rise before it falls again (one-cycle schedules and warm restarts must run to the end).
Evaluating the model after every epoch also takes time.

How to check: look at the validation loss after each epoch. This script prints which epoch had the
lowest validation loss, and which had the highest validation accuracy.

Troubleshooting:
- After training, the model has the last weights instead of the best ones: restore the best weights
  after the training loop, even if training ran for all epochs.
- The saved "best" weights are the same as the last ones: model.state_dict() returns references to
  the live tensors. Copy the tensors, as this script does, or use torch.save().
- BatchNorm and dropout distort the validation loss: call model.eval() before evaluation and
  model.train() after it.
- Early stopping ends training much too early: raise patience, which counts evaluations, not
  batches. If min_delta is larger than the improvement of one epoch, lower min_delta.
- Early stopping ends training soon and restores the weights of the first epoch, although the
  accuracy rises: mode is "min". Use mode="max" for a metric that should rise.
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

import math
from collections.abc import Iterator
from typing import Any

import torch
from proof import Batch, Proof, main

# --- Copy from here ------------------------------------------------------------------------------


class EarlyStopping:
    """After each epoch: `if stopping.done(value, model): break`. After the loop: restore(model).

    mode: "min" for a value that falls (a loss), "max" for one that rises (accuracy, F1, mAP).
    """

    def __init__(self, patience: int, min_delta: float = 1e-4, mode: str = "min") -> None:
        self.patience, self.min_delta = patience, min_delta
        self.sign = {"min": -1, "max": 1}[mode]
        self.best, self.waited = -math.inf, 0
        self.weights: dict[str, torch.Tensor] = {}

    def done(self, value: float, model: torch.nn.Module) -> bool:
        if not math.isfinite(value):
            return True
        if self.sign * value > self.best + self.min_delta:
            self.best, self.waited = self.sign * value, 0
            # A copy, because training changes the tensors; on the CPU, to save GPU memory.
            state = model.state_dict().items()
            self.weights = {name: tensor.to("cpu", copy=True) for name, tensor in state}
        else:
            self.waited += 1
        return self.waited >= self.patience

    def restore(self, model: torch.nn.Module) -> None:
        if self.weights:
            model.load_state_dict(self.weights)


# --- Copy to here. The rest is the proof. --------------------------------------------------------

TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}  # same operations on the same numbers


class AllEpochs(EarlyStopping):
    """Trains to the end and keeps the last weights."""

    def done(self, *_: object) -> bool:
        return False


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    wide = (torch.nn.Linear(20, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU())
    return torch.nn.Sequential(*wide, torch.nn.Dropout(0.1), torch.nn.Linear(width, 2)).to(device)


def samples(count: int, seed: int, device: str) -> Batch:
    """Two overlapping classes, so that memorizing the samples is overfitting."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=draw)
    x = torch.randn(count, 20, generator=draw)
    x[:, :4] += 0.5 * y.unsqueeze(1)
    return x.to(device), y.to(device)


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: torch.nn.Module, data: Batch) -> tuple[float, float]:
    """Loss and accuracy on data that is not used for training, without dropout."""
    model.eval()
    scores = model(data[0])
    model.train()
    loss = torch.nn.functional.cross_entropy(scores, data[1])
    return float(loss), float((scores.argmax(1) == data[1]).float().mean())


def train(
    model: torch.nn.Module,
    data: Batch,
    validation: Batch,
    epochs: int,
    stopping: EarlyStopping,
    column: int,
) -> Iterator[float]:
    """Yields the loss (column 0) or the accuracy (column 1) after every epoch."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(len(data[0])).to(data[0].device).split(50):
            loss = torch.nn.functional.cross_entropy(model(data[0][chosen]), data[1][chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        value = judged(model, validation)[column]
        yield value
        if stopping.done(value, model):
            break
    stopping.restore(model)  # even if all epochs ran


def prove(proof: Proof) -> None:
    make = proof.technique(EarlyStopping, instead=AllEpochs)
    data, validation, test = (
        samples(count, seed, proof.device) for seed, count in enumerate((400, 1000, 4000))
    )
    limit = TOLERANCE[proof.device]
    shown = {"loss": (0, "min", min), "accuracy": (1, "max", max)}
    for name, (column, mode, best_of) in shown.items():
        values: list[list[float]] = []
        tests: list[float] = []
        again = 0.0
        for how in (AllEpochs, make):
            model = network(128, proof.device)
            stopping = how(proof.patience, mode=mode)
            epochs = train(model, data, validation, proof.steps, stopping, column)
            values.append(list(epochs))
            again = judged(model, validation)[column]  # with the weights that training left
            tests.append(judged(model, test)[column])
            print(
                f"{name}, {how.__name__}: {len(values[-1])} epochs, validation {again:.4f},"
                f" test {tests[-1]:.4f}"
            )
        (every, ran), best = values, best_of(values[1])
        off = max(abs(a - b) for a, b in zip(ran, every, strict=False))
        proof.same(
            off <= limit,
            f"until it stops, the validation {name} of every epoch is within {off:.0e} of plain"
            " training",
        )
        last = ran.index(best) + 1 + proof.patience
        proof.active(
            len(ran) == last and abs(again - best) <= limit,
            f"after {len(ran)} epochs, the model has a validation {name} of {again:.4f}; the best,"
            f" in epoch {ran.index(best) + 1}, was {best:.4f}",
        )
        better = tests[1] < tests[0] if mode == "min" else tests[1] > tests[0]
        proof.purpose(
            len(ran) < len(every) and better,
            f"{len(ran)} epochs instead of {len(every)}; the test {name} is {tests[1]:.4f} instead"
            f" of {tests[0]:.4f}",
        )


if __name__ == "__main__":
    main(__doc__, prove, steps=(80, 40), patience=8)

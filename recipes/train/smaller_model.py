"""Distillation: a small student model learns from the probabilities of a large teacher model.

What it does: a large model (the teacher), trained once, predicts the probability of each class for
every sample. A small model (the student) learns these probabilities together with the labels.
Probabilities contain more information than labels, and they average out individual wrong labels
that the teacher has not memorized.

When it helps: the deployed model must be small (to run on a phone or in a browser, or to serve many
requests); labels are scarce or partly wrong, but there are many unlabeled samples; or you already
have a trained teacher.

When it hurts: the teacher must be trained and run first, which costs time before the student saves
any. A student that is too small for the task performs poorly even with a good teacher. Students
also inherit the teacher's errors.

How to check: compare the number of parameters, the time per step and the accuracy of the teacher
and the student.

Troubleshooting:
- The student is no better than a model of the same size trained without a teacher: always train
  such a baseline first. With plenty of clean labels, distillation gains little.
- "reduction: 'mean' divides the total loss by both the batch size and the support size": use
  kl_div(..., reduction="batchmean"). With "mean", the teacher's share of the loss almost vanishes.
- The distillation loss is negative or grows: pass the student's log_softmax to kl_div as the first
  argument and the teacher's softmax as the second.
- The teacher changes during training, or memory use doubles: call teacher.eval() and
  teacher.requires_grad_(False), and run the teacher under torch.no_grad(). In train mode, dropout
  makes the teacher a different model for every batch.
- The teacher's share of the loss shrinks as the softmax temperature rises: multiply that part of
  the loss by the square of the temperature.
- The teacher is slow: if you do not augment the data, run the teacher once per sample and store its
  output.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

import torch
from torch.nn import functional

Data = tuple[torch.Tensor, torch.Tensor]
TOLERANCE, GAIN = 0.03, 0.03  # accuracy: below the teacher, above the student alone
TEMPERATURE, WEIGHT = 2.0, 0.9  # softens probabilities; the teacher's share of the loss
CLASSES, WRONG = 10, 0.4  # WRONG: share of labels replaced at random


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, CLASSES)).to(device)


def samples(count: int, seed: int, wrong: float, device: str) -> Data:
    """Points around ten centers, some with wrong labels."""
    draw = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(7))
    y = torch.randint(CLASSES, (count,), generator=draw)
    x = centers[y] + 1.3 * torch.randn(count, 32, generator=draw)
    chance = torch.randint(CLASSES, (count,), generator=draw)
    y = torch.where(torch.rand(count, generator=draw) < wrong, chance, y)
    return x.to(device), y.to(device)


def soft_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """How far the student's probabilities are from the teacher's."""
    own = functional.log_softmax(student / TEMPERATURE, dim=1)
    wanted = functional.softmax(teacher / TEMPERATURE, dim=1)
    # The gradient shrinks with the square of the temperature; this factor compensates.
    return functional.kl_div(own, wanted, reduction="batchmean") * TEMPERATURE**2


def train(
    model: torch.nn.Module, data: Data, steps: int, teacher: torch.nn.Module | None = None
) -> list[float]:
    """Train in random batches, with a teacher if there is one; milliseconds per step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(1)
    clock = [time.perf_counter()]
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (64,), generator=draw).to(data[0].device)
        x, y = data[0][chosen], data[1][chosen]
        scores = model(x)
        loss = functional.cross_entropy(scores, y)
        if teacher is not None:
            with torch.no_grad():
                asked = teacher(x)
            loss = WEIGHT * soft_loss(scores, asked) + (1 - WEIGHT) * loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        clock.append(time.perf_counter())
    return sorted(1e3 * (end - start) for start, end in itertools.pairwise(clock))


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def accuracy(model: torch.nn.Module, data: Data) -> float:
    model.eval()
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


def main(argv: Sequence[str] | None = None) -> int:
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--samples", type=int, default=800, help="samples that the student may use")
    parser.add_argument("--width", type=int, default=16, help="hidden units of the student")
    asked = parser.parse_args(argv)
    device = asked.device
    many = samples(20_000, 1, WRONG, device)
    few = (many[0][: asked.samples], many[1][: asked.samples])
    judged = samples(5_000, 2, 0.0, device)
    teacher = network(512, device)
    runs = {"teacher": (teacher, train(teacher, many, asked.steps))}
    teacher.eval().requires_grad_(False)
    for name, helper in (("student alone", None), ("distilled student", teacher)):
        student = network(asked.width, device)
        runs[name] = (student, train(student, few, asked.steps, helper))
    correct, sizes = dict[str, float](), dict[str, int]()
    for name, (model, ms) in runs.items():
        correct[name] = accuracy(model, judged)
        sizes[name] = sum(weights.numel() for weights in model.parameters())
        line = f"{name:<17} {sizes[name]:>6} parameters, {correct[name]:.1%} correct"
        print(f"{line}, {statistics.median(ms):.2f} ms per step ({ms[0]:.2f} to {ms[-1]:.2f})")
    large, alone, taught = correct.values()
    scores = teacher(judged[0])
    at_best = float(soft_loss(scores, scores).abs())  # loss of a student that equals the teacher
    held = large - taught <= TOLERANCE and taught - alone >= GAIN and at_best < 1e-5
    print(
        f"{'proved' if held else 'not proved'}: the student's accuracy is {taught:.1%} with a"
        f" teacher and {alone:.1%} without (required gain: {GAIN:.0%});"
        f" the teacher's is {large:.1%} (allowed gap: {TOLERANCE:.0%}) with"
        f" {sizes['teacher'] / sizes['distilled student']:.0f} times as many parameters;"
        f" the distillation loss of a perfect match is {at_best:.0e}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

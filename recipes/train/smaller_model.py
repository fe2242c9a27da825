"""A smaller model by distillation: a student learns from a teacher's probabilities.

What it does: a large model, trained once, gives the probability of each class for every sample. A
small model learns these probabilities together with the labels. They carry more information than a
label, and they average out single wrong labels that the teacher has not memorized.

When it helps: the model must be small where it runs (phone, browser, many requests); labels are few
or partly wrong and unlabeled samples are many; a trained teacher exists anyway.

When it hurts: the teacher must be trained and run, which costs time before it saves any. A student
that is too small for the task stays bad. It inherits the teacher's errors.

How to see it: parameters, time per step and accuracy of teacher and student, below.

Troubleshooting:
- The student is no better than without a teacher: try without one first. With many clean labels the
  gain is small.
- "reduction: 'mean' divides the total loss by both the batch size and the support size":
  kl_div(..., reduction="batchmean"). With "mean" the teacher's part almost vanishes.
- The loss is negative or grows: kl_div takes the student's log_softmax first, the teacher's softmax
  second.
- The teacher changes, or memory doubles: teacher.eval(), requires_grad_(False), torch.no_grad(). In
  train mode its dropout makes it a different teacher for every batch.
- The teacher's part shrinks as the temperature rises: multiply it by the temperature squared.
- The teacher is slow: run it once per sample and keep the output, if nothing is augmented.
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
TOLERANCE, GAIN = 0.03, 0.03  # of the accuracy: behind the teacher, before the student alone
TEMPERATURE, WEIGHT = 2.0, 0.9  # softness of the probabilities; the teacher's share of the loss
CLASSES, WRONG = 10, 0.4  # share of the labels that are replaced by chance


def network(width: int, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, CLASSES)).to(device)


def samples(count: int, seed: int, wrong: float, device: str) -> Data:
    """Points around ten centers, some of them labeled wrongly."""
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
    # The gradient shrinks with the temperature squared: this keeps its share of the loss.
    return functional.kl_div(own, wanted, reduction="batchmean") * TEMPERATURE**2


def train(
    model: torch.nn.Module, data: Data, steps: int, teacher: torch.nn.Module | None = None
) -> list[float]:
    """Train in random batches, with a teacher if there is one; the seconds of every step."""
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
    parser.add_argument("--samples", type=int, default=800, help="that the student may see")
    parser.add_argument("--width", type=int, default=16, help="hidden units of the student")
    asked = parser.parse_args(argv)
    device = asked.device
    many = samples(20_000, 1, WRONG, device)
    few = (many[0][: asked.samples], many[1][: asked.samples])
    judged = samples(5_000, 2, 0.0, device)
    teacher = network(512, device)
    runs = {"teacher": (teacher, train(teacher, many, asked.steps))}
    teacher.eval().requires_grad_(False)
    for name, helper in (("student alone", None), ("student taught", teacher)):
        student = network(asked.width, device)
        runs[name] = (student, train(student, few, asked.steps, helper))
    correct, sizes = dict[str, float](), dict[str, int]()
    for name, (model, ms) in runs.items():
        correct[name] = accuracy(model, judged)
        sizes[name] = sum(weights.numel() for weights in model.parameters())
        line = f"{name:<15} {sizes[name]:>6} parameters, {correct[name]:.1%} correct"
        print(f"{line}, {statistics.median(ms):.2f} ms per step ({ms[0]:.2f} to {ms[-1]:.2f})")
    large, alone, taught = correct.values()
    scores = teacher(judged[0])
    at_best = float(soft_loss(scores, scores).abs())  # a student that says the same as the teacher
    held = large - taught <= TOLERANCE and taught - alone >= GAIN and at_best < 1e-5
    print(
        f"{'proved' if held else 'not proved'}: {taught:.1%} correct with"
        f" {sizes['teacher'] / sizes['student taught']:.0f} times fewer parameters: at most"
        f" {TOLERANCE:.0%} below the teacher's {large:.1%}, at least {GAIN:.0%} above the"
        f" {alone:.1%} of the same student alone; full agreement has a loss of {at_best:.0e}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())

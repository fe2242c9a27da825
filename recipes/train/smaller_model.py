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

from typing import Any

import torch
from proof import Proof, calls_seen, main
from torch.nn import functional

# --- Copy from here ------------------------------------------------------------------------------
TEMPERATURE, WEIGHT = 2.0, 0.9  # softens probabilities; the teacher's share of the loss


def soft_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """How far the student's probabilities are from the teacher's."""
    own = functional.log_softmax(student / TEMPERATURE, dim=1)
    wanted = functional.softmax(teacher / TEMPERATURE, dim=1)
    # The gradient shrinks with the square of the temperature; this factor compensates.
    return functional.kl_div(own, wanted, reduction="batchmean") * TEMPERATURE**2


def distillation_loss(student: Any, teacher: Any, x: Any, y: Any) -> torch.Tensor:
    """The teacher is in eval mode and does not learn."""
    scores = student(x)
    with torch.no_grad():
        asked = teacher(x)
    return WEIGHT * soft_loss(scores, asked) + (1 - WEIGHT) * functional.cross_entropy(scores, y)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
Data = tuple[torch.Tensor, torch.Tensor]
TOLERANCE, GAIN = 0.03, 0.03  # accuracy: below the teacher, above the student alone
CLASSES, WRONG = 10, 0.4  # WRONG: share of labels replaced at random


def labels_only(student: Any, teacher: Any, x: Any, y: Any) -> torch.Tensor:
    return functional.cross_entropy(student(x), y)


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


def train(model: Any, data: Data, steps: int, loss_of: Any, teacher: Any = None) -> Any:
    """Train in random batches; yields the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (64,), generator=draw).to(data[0].device)
        loss = loss_of(model, teacher, data[0][chosen], data[1][chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def accuracy(model: torch.nn.Module, data: Data) -> float:
    model.eval()
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


def prove(proof: Proof) -> None:
    with_teacher = proof.technique(distillation_loss, instead=labels_only)
    many = samples(20_000, 1, WRONG, proof.device)
    few = (many[0][: proof.samples], many[1][: proof.samples])
    judged = samples(5_000, 2, 0.0, proof.device)
    teacher = network(512, proof.device)
    proof.train("teacher", train(teacher, many, proof.steps, labels_only))
    teacher.eval().requires_grad_(False)
    alone, taught = (network(proof.width, proof.device) for _ in range(2))
    proof.train("student alone", train(alone, few, proof.steps, labels_only))
    with calls_seen(functional, "kl_div") as compared:
        run = train(taught, few, proof.steps, with_teacher, teacher)
        proof.train("distilled student", run)
    best, without, correct = (accuracy(model, judged) for model in (teacher, alone, taught))
    sizes = [sum(w.numel() for w in model.parameters()) for model in (teacher, taught)]
    scores = teacher(judged[0])
    at_best = float(soft_loss(scores, scores).abs())
    proof.same(
        best - correct <= TOLERANCE and at_best < 1e-5,
        f"the student is right on {correct:.1%}, the teacher on {best:.1%}"
        f" (tolerance {TOLERANCE:.0%}) with {sizes[0] / sizes[1]:.0f} times as many parameters",
    )
    proof.active(
        len(compared) == proof.steps,
        f"in {len(compared)} of {proof.steps} steps, the student was compared with the teacher",
    )
    proof.purpose(
        correct - without >= GAIN,
        f"the teacher adds {correct - without:.1%} to the {without:.1%} of a student alone",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=600, samples=800, width=16)

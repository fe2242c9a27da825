"""TorchMetrics: a metric over several processes that equals the metric of all data.

What it does: every process updates a metric with its own batches. compute() adds up the counts of
all processes before it computes the score, so that every process gets the score of all data. This
script compares it with a score computed by hand, and with the mean of the scores of each process.

When it helps: you train with DDP or FSDP and report F1, recall, AUROC or another metric that is not
a mean over samples. For these, the mean over batches or over processes is wrong.

When it hurts: a metric that keeps all predictions (such as AUROC without thresholds) needs memory
that grows with the data; pass thresholds=. Computing the metric in every step costs time, and
across processes also communication.

How to check: compute the metric once in one process over all data, and compare. Tried with
torchmetrics 1.9.

Troubleshooting:
- The metric is a little too high or too low with several GPUs: DistributedSampler repeats samples
  to give all processes the same number. Evaluate with drop_last=False on data whose size is a
  multiple of the number of processes, or leave the repeated samples out.
- "The ``compute`` method of metric MulticlassF1Score was called before the ``update`` method": a
  process had no batch, or reset() was called too early.
- "Encountered different devices in metric calculation": move the metric to the device with .to(),
  or make it an attribute of your module.
- The program hangs in compute(): not all processes call it. Call compute() outside of
  `if rank == 0:`.
- The score of one epoch contains the ones before: call metric.reset() after compute().
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from proof import Batch, Proof, calls_seen, in_processes, main, skip

# --- Copy from here ------------------------------------------------------------------------------


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def evaluated(model: torch.nn.Module, batches: Iterable[Batch], metric: Any) -> float:
    """The metric over the batches of all processes. Call it in all of them.

    metric: for example torchmetrics.F1Score(task="multiclass", num_classes=10, average="macro").
    """
    metric.reset()
    for x, y in batches:
        metric.update(model(x), y)  # only counts; no communication
    return float(metric.compute())  # adds the counts of all processes


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-6  # the same counts, divided in fp32
CLASSES = 4


def f1_by_hand(predicted: torch.Tensor, right: torch.Tensor) -> float:
    """The mean over classes of 2 * hits / (predicted + actual)."""
    hits = torch.bincount(right[predicted == right], minlength=CLASSES)
    both = torch.bincount(predicted, minlength=CLASSES) + torch.bincount(right, minlength=CLASSES)
    return float((2 * hits / both).mean())


def points(rank: int, device: str, batches: int) -> list[Batch]:
    """Each process has other classes more often: then the mean of scores is most wrong."""
    draw = torch.Generator().manual_seed(rank)
    weights = torch.arange(1.0, CLASSES + 1) ** (1 if rank % 2 else -1)
    made = []
    for _ in range(batches):
        y = torch.multinomial(weights, 32, replacement=True, generator=draw)
        x = torch.nn.functional.one_hot(y, CLASSES) + 0.7 * torch.randn(32, CLASSES, generator=draw)
        made.append((x.to(device), y.to(device)))
    return made


def work(rank: int, world: int, device: str, batches: int, off: bool) -> Any:
    import torchmetrics

    model, mine = torch.nn.Identity(), points(rank, device, batches)
    alone = f1_by_hand(
        torch.cat([x.argmax(1) for x, _ in mine]).cpu(), torch.cat([y for _, y in mine]).cpu()
    )
    metric = torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro")
    with calls_seen(torch.distributed, "all_gather") as gathered:
        score = alone if off else evaluated(model, mine, metric.to(device))
    return score, alone, sum(len(y) for _, y in mine), len(gathered)


def prove(proof: Proof) -> None:
    try:
        import torchmetrics
    except ImportError:
        skip("torchmetrics is not installed (pip install torchmetrics)")
    print(f"torchmetrics {torchmetrics.__version__}")
    ranks = in_processes(work, proof.device, proof.device, proof.batches, proof.off)
    world = len(ranks)
    whole = [batch for rank in range(world) for batch in points(rank, "cpu", proof.batches)]
    expected = f1_by_hand(
        torch.cat([x.argmax(1) for x, _ in whole]), torch.cat([y for _, y in whole])
    )
    worst = max(abs(score - expected) for score, *_ in ranks)
    proof.same(
        worst <= TOLERANCE,
        f"on each of {world} processes, F1 is within {worst:.1e} of F1 by hand over all data"
        f" ({expected:.4f})",
    )
    calls = [called for *_, called in ranks]
    proof.active(all(calls), f"the processes exchanged counts {min(calls)} times each")
    mean = sum(alone for _, alone, *_ in ranks) / world
    proof.purpose(
        worst < 0.1 * abs(mean - expected),
        f"the mean of the processes' scores is {mean:.4f}, which is off by"
        f" {abs(mean - expected):.4f}",
    )


if __name__ == "__main__":
    main(__doc__, prove, batches=(20, 10))

"""Time left: estimate how long the training will take, with the warm-up left out.

What it does: the first steps are much slower than the rest: torch.compile compiles, cuDNN picks its
kernels, DataLoader workers start, files are not cached yet. The estimate uses only later steps, and
counts evaluations separately, because they are few and long. It shows the time left after a few
dozen steps, and keeps up if the speed changes.

When it helps: before you start a long job on a rented GPU, or with a time limit, as on Slurm: stop
early, or save a checkpoint in time.

When it hurts: if steps get longer over the run, as with growing sequences or gradual unfreezing,
every estimate is too low. On a GPU, measure whole steps and let something in the loop wait for the
GPU (loss.item() when you log); otherwise, you only measure the calls at first.

How to check: write down the estimate at 10 % and compare it with the actual time. This script does
so on a made-up clock, next to the usual estimate: time so far / steps so far * steps in all.

Troubleshooting:
- The progress bar shows hours at first and then less and less: it counts the warm-up. tqdm averages
  recent steps (smoothing=0.3), but jumps at each evaluation.
- The estimate is too low: evaluation, checkpoints or the first epoch from a slow disk are not
  counted. Time them too.
- "DUE TO TIME LIMIT", from Slurm: save a checkpoint before the time is up. With
  #SBATCH --signal=B:USR1@300, the job script gets a signal five minutes before the end.
- The steps get slower over time: the GPU may be too hot (monitoring.py), or memory is swapped.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

from proof import Proof, main

# --- Copy from here ------------------------------------------------------------------------------


class TimeLeft:
    """Call step() after every training step and evaluated() after every evaluation."""

    def __init__(
        self,
        steps: int,
        evaluations: int = 0,
        warm_up: int = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps, self.evaluations, self.warm_up = steps, evaluations, warm_up
        self.clock, self.last = clock, clock()
        self.recent: deque[float] = deque(maxlen=1000)
        self.each_evaluation: list[float] = []

    def step(self) -> None:
        self.steps -= 1
        self.warm_up -= 1
        seconds = self._since_last()
        if self.warm_up < 0:
            self.recent.append(seconds)

    def evaluated(self) -> None:
        self.evaluations -= 1
        self.each_evaluation.append(self._since_last())

    def seconds(self) -> float | None:
        """The time left; None during the warm-up. Leaves evaluations out until the first one."""
        if not self.recent:
            return None
        # The mean, not the median: a step that waits for data is part of the total.
        evaluation = statistics.fmean(self.each_evaluation or [0.0])
        return self.steps * statistics.fmean(self.recent) + self.evaluations * evaluation

    def _since_last(self) -> float:
        before, self.last = self.last, self.clock()
        return self.last - before


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 0.05  # of the true time left
EVERY, WARM_UP = 100, 10  # steps between evaluations; slow steps at the start


class Clock:
    """A clock that only goes on when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Naive(TimeLeft):
    """The usual estimate: every step so far counts, and evaluations are part of the steps."""

    def __init__(self, steps: int, evaluations: int, warm_up: int, clock: Clock) -> None:
        super().__init__(steps, evaluations, warm_up, clock)
        self.total, self.began = steps, clock()

    def seconds(self) -> float | None:
        return (self.clock() - self.began) / max(1, self.total - self.steps) * self.steps


def training(clock: Clock, steps: int) -> Iterator[str]:
    """What happens in a run: a compilation of two minutes, steps of 0.2 s, slow evaluations."""
    draw = random.Random(0)
    for step in range(steps):
        slow = 12.0 if step < WARM_UP else 0.0
        waits = 1.0 if draw.random() < 0.02 else 0.0  # for data, now and then
        clock.now += slow + waits + draw.uniform(0.18, 0.22)
        yield "step"
        if (step + 1) % EVERY == 0:
            clock.now += draw.uniform(14, 16)
            yield "evaluated"


def prove(proof: Proof) -> None:
    kinds = {"usual": Naive, "with warm-up left out": proof.technique(TimeLeft, instead=Naive)}
    off: dict[str, list[float]] = {}
    for name, kind in kinds.items():
        clock = Clock()
        left = kind(proof.steps, proof.steps // EVERY, WARM_UP, clock)
        guesses = []
        for count, event in enumerate(training(clock, proof.steps)):
            getattr(left, event)()
            if count == EVERY // 2:
                each_s = (left.seconds() or 0.0) / left.steps
            if event == "evaluated":
                guesses.append((clock.now, left.seconds() or 0.0))
        # The last tenth is left out: hardly any time is left, so any error is a large share.
        guesses = guesses[: len(guesses) * 9 // 10]
        off[name] = [abs(guess / (clock.now - at) - 1) for at, guess in guesses]
        print(f"{name:<22} off by {max(off[name]):.0%} at worst, at the end {off[name][-1]:.1%}")
    usual, ours = off.values()
    proof.active(
        0.2 < each_s < 0.25,
        f"after {EVERY // 2} steps, the first {WARM_UP} of them slow, the estimate counts"
        f" {each_s:.2f} s per step",
    )
    proof.purpose(
        max(ours) <= TOLERANCE < max(usual),
        f"at {len(ours)} moments, at most {max(ours):.1%} off the time it really took"
        f" (tolerance {TOLERANCE:.0%}); the usual estimate {max(usual):.0%}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(4000, 2000))

"""What a runner does with its order: look, size, or train and be measured round by round."""

import os
import statistics
import sys
import time
from typing import Any, Dict, List, Optional

import torch

from . import fitting, leaving, looking, profiling, wire
from .feeding import Feed
from .order import Order
from .training import Training

LEAD_IN = 1
"""Steps before each round that are not measured: caches and clocks come back after the pause."""


def run(given: Dict[str, Any]) -> None:
    """Do it, and say what came out."""
    what = given.get("what", "train")
    if what == "look":
        wire.say("look", id=given["id"], **looking.look())
        return
    order = Order(given)
    if order.gpu:
        looking.keep_to_a_share(order)
    if what == "size":
        wire.say("size", id=order.id, shape=fitting.sized(order, list(given["tiers"])))
        return
    Measurement(order).serve()


def is_oom(problem: BaseException) -> bool:
    """Whether the memory of the device, or of the machine, did not suffice."""
    return fitting.is_oom(problem)


class Measurement:
    """A training that is warmed up, and then does as many steps as it is told."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.base_bytes = looking.resident_bytes()
        began = time.perf_counter()
        if order.settings.batch == 0:
            order.factor = fitting.largest(order)
            looking.forget_the_peak(order)
        self.feed = Feed(order)
        self.training = Training(order)
        self.setup_s = time.perf_counter() - began

    def serve(self) -> None:
        """Warm up, then obey until told to stop."""
        self._warm_up()
        while True:
            told = wire.heard()
            if told is None or told["do"] == "stop":
                break
            if told["do"] == "round":
                self._round(int(told["steps"]))
            if told["do"] == "memory":
                wire.say("memory", id=self.order.id, **self._memory())
            if told["do"] == "profile":
                found = profiling.profile(self.order, self.training, self.feed)
                wire.say("profile", id=self.order.id, **found)
        if told is not None:
            memory = self._memory()
            # The next one may start at once, and needs the room.
            leaving.end_children()
            wire.say("done", id=self.order.id, **memory)

    def _warm_up(self) -> None:
        """Until three steps agree within a tenth, or for so long; the losses are of these steps."""
        losses: List[float] = []
        times: List[float] = []
        began = time.perf_counter()
        first_ended = 0.0
        while True:
            self._sync()
            at = time.perf_counter()
            loss = self.training.step(self.feed.next())
            self._sync()
            times.append(time.perf_counter() - at)
            first_ended = first_ended or time.perf_counter()
            if len(losses) < self.order.loss_steps:
                losses.append(float(loss))
            last = times[-3:]
            steady = len(times) >= 4 and max(last) - min(last) < 0.1 * statistics.median(last)
            over = time.perf_counter() - first_ended > self.order.warm_s
            if len(losses) >= self.order.loss_steps and (steady or over):
                break
        if not self.training.replays:
            # Convolutions and kernels that were tried took memory that no later step needs.
            looking.forget_the_peak(self.order)
        usual = statistics.median(times[-3:])
        wire.say(
            "ready",
            id=self.order.id,
            step_s=usual,
            first_s=times[0],
            extra_s=max(0.0, sum(times) - usual * len(times)),
            setup_s=self.setup_s,
            warm_s=time.perf_counter() - began,
            losses=losses,
            samples=self.order.batch,
            factor=self.order.factor,
            workers=self.feed.workers,
            why_no_workers=self.feed.why_no_workers,
        )

    def _round(self, steps: int) -> None:
        """So many steps on the clock, after some that only use up what lay ready."""
        for _ in range(LEAD_IN + self.feed.stock):
            self.training.step(self.feed.next())
        self._sync()
        waited = self.feed.wait_s
        began = time.perf_counter()
        for _ in range(steps):
            self.training.step(self.feed.next())
        self._sync()
        seconds = time.perf_counter() - began
        self.feed.rest()
        wire.say(
            "round",
            id=self.order.id,
            seconds=seconds / steps,
            wait_s=(self.feed.wait_s - waited) / steps,
            steps=steps,
        )

    def _sync(self) -> None:
        if self.order.gpu:
            torch.cuda.synchronize()

    def _memory(self) -> Dict[str, Optional[int]]:
        if self.order.gpu:
            peak = int(torch.cuda.max_memory_allocated())
            return {"peak_bytes": peak, "driver_bytes": looking.drivers_bytes(os.getpid())}
        if sys.platform == "win32":
            return {"peak_bytes": None, "driver_bytes": None}
        grown = looking.peak_resident_bytes() - self.base_bytes
        return {"peak_bytes": grown if grown > 0 else None, "driver_bytes": None}

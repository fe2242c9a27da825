"""Sizes: of a workload for this device, and of the largest batch that fits."""

import gc
import time
from typing import Any, Dict, List, Tuple

import torch

from . import data, looking, room
from .feeding import Feed, batch_bytes
from .order import Order
from .training import Training

SHAPES: Dict[str, Dict[str, Dict[str, Any]]] = {
    "cnn": {
        "large": dict(image=224, width=64, blocks=[2, 2, 2, 2], classes=100, batch=32),
        "small": dict(image=96, width=32, blocks=[2, 2, 2], classes=100, batch=16),
        "cpu": dict(image=32, width=16, blocks=[1, 1, 1], classes=10, batch=32),
        "tiny": dict(image=16, width=8, blocks=[1, 1], classes=4, batch=8),
    },
    "encoder": {
        "large": dict(length=256, width=768, heads=12, layers=12, vocabulary=30000, batch=8),
        "small": dict(length=128, width=256, heads=4, layers=4, vocabulary=10000, batch=8),
        "cpu": dict(length=128, width=128, heads=4, layers=2, vocabulary=2000, batch=8),
        "tiny": dict(length=32, width=32, heads=2, layers=1, vocabulary=100, batch=4),
    },
    "decoder": {
        "large": dict(length=512, width=768, heads=12, layers=12, vocabulary=32000, batch=4),
        "small": dict(length=128, width=256, heads=4, layers=4, vocabulary=8000, batch=4),
        "cpu": dict(length=128, width=128, heads=4, layers=2, vocabulary=1000, batch=8),
        "tiny": dict(length=32, width=32, heads=2, layers=1, vocabulary=100, batch=4),
    },
}
SAMPLES = {"large": 2048, "small": 2048, "cpu": 512, "tiny": 64}
IMAGES_ALONE = 256
"""At most, where every process makes its images anew: that takes seconds for thousands."""

LONG_ENOUGH_S, TOO_LONG_S = 0.035, 0.1
"""A step on a GPU: from here on the batch is not doubled; beyond, the smaller model is taken."""
TOO_LONG_ON_A_CPU_S = 1.0
SHARE = 0.15
"""Of the GPU's memory: from here on the batch is not doubled, so that it stays below twice this."""
MOST_TIMES_GPU, MOST_TIMES_CPU = 16, 4
LONGEST_STEP_S = 2.0
CPU_SHARE = 0.25
PART = 0.5
"""Of the memory that one may take: what is found runs beside another of its size later."""
HOST_TIMES = 8
"""Batches that must fit into the machine's own memory: loaders hold some, and copy them."""


def sized(order: Order, tiers: List[str]) -> Dict[str, Any]:
    """The first of the tiers that this device steps through in time, with its batch."""
    for tier in tiers:
        shape = _usual(order, tier)
        if tier == tiers[-1] and not order.gpu:
            return shape
        if order.gpu and _grown(order, shape):
            return shape
        if not order.gpu and _step_s(order, shape) < TOO_LONG_ON_A_CPU_S:
            return shape
    return _usual(order, tiers[-1])


def _usual(order: Order, tier: str) -> Dict[str, Any]:
    samples = SAMPLES[tier]
    if order.alone and order.workload == "cnn":
        samples = min(samples, IMAGES_ALONE)
    return dict(SHAPES[order.workload][tier], samples=samples, tier=tier)


def _grown(order: Order, shape: Dict[str, Any]) -> bool:
    """Double the batch until a step is long enough; False where already the first is too long."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    first = shape["batch"]
    while True:
        try:
            seconds = _step_s(order, shape)
        except RuntimeError as problem:
            if not is_oom(problem):
                raise
            seconds = float("inf")
        _forget()
        share = torch.cuda.max_memory_allocated() / float(total)
        if seconds > TOO_LONG_S or share > 2 * SHARE:
            shape["batch"] //= 2
            return bool(shape["batch"] >= first)
        if seconds >= LONG_ENOUGH_S or share > SHARE or shape["batch"] >= 1024:
            return True
        shape["batch"] *= 2


def _step_s(order: Order, shape: Dict[str, Any]) -> float:
    """Seconds of a plain step on a batch that is there already: the best of a few."""
    order.shape = dict(shape, samples=max(16, int(shape["batch"])))
    data.made(order.workload, order.shape)
    if order.gpu:
        torch.cuda.reset_peak_memory_stats()
    training, batch = Training(order), Feed(order).next()
    best = float("inf")
    for _ in range(8):
        began = time.perf_counter()
        float(training.step(batch))
        best = min(best, time.perf_counter() - began)
    del training, batch
    _forget()
    return best


def largest(order: Order) -> int:
    """How many times the usual batch fits, doubling; an out-of-memory ends the search safely."""
    if not order.gpu:
        return _doubled(order)
    looking.keep_to_a_share(order, PART)
    found = _doubled(order)
    looking.keep_to_a_share(order)
    return found


def _doubled(order: Order) -> int:
    found, most = 1, MOST_TIMES_GPU if order.gpu else MOST_TIMES_CPU
    while found < most:
        order.factor = 2 * found
        fits, seconds = _tried(order)
        _forget()
        if not fits:
            break
        found *= 2
        if seconds > LONGEST_STEP_S / 2:
            break
    order.factor = found
    return found


def _tried(order: Order) -> Tuple[bool, float]:
    """Whether two steps pass, and how long the second took."""
    free = room.available_bytes()
    if order.gpu and 0 < free < HOST_TIMES * batch_bytes(order):
        return False, 0.0
    if not order.gpu and free * CPU_SHARE < _guess_bytes(order):
        return False, 0.0
    try:
        training, feed = Training(order), Feed(order)
        float(training.step(feed.next()))
        began = time.perf_counter()
        float(training.step(feed.next()))
        return True, time.perf_counter() - began
    except (RuntimeError, MemoryError) as problem:
        if is_oom(problem):
            # Nothing is freed here: the exception still holds the frames of the step.
            return False, 0.0
        raise


def _guess_bytes(order: Order) -> int:
    """A generous guess at the memory of a step on a CPU, where nothing says no before the end."""
    shape = order.shape
    if order.workload == "cnn":
        return int(order.batch * shape["image"] ** 2 * shape["width"] * 4 * 40)
    width = shape["width"] * 30 * shape["layers"] + shape["vocabulary"] * 3
    return int(order.batch * shape["length"] * width * 4)


def is_oom(problem: BaseException) -> bool:
    """Whether the memory of the device, or of the machine, did not suffice."""
    said = str(problem)
    return isinstance(problem, MemoryError) or "out of memory" in said or "ALLOC_FAILED" in said


def _forget() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()

"""Where a step goes: what its operations compute and move, and what this device can at most."""

import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .order import Order

Totals = Dict[Tuple[int, int], int]


def profile(order: Order, training: Any, feed: Any) -> Dict[str, Any]:
    """Operations of a step as [flops, bytes, times], measured peaks, and the GPU's own time."""
    batch = feed.next()
    found: Dict[str, Any] = {"device_s": None}
    if order.gpu:
        found["device_s"] = _device_s(training, batch)
    found["operations"] = _operations(training, batch)
    found["peak_flops"], found["peak_bytes_s"] = _peaks(order)
    return found


class Counter(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Counts of every operation that computes: its arithmetic, and the bytes that it must touch."""

    def __init__(self) -> None:
        super(Counter, self).__init__()
        self.totals: Totals = {}
        try:
            from torch.utils.flop_counter import flop_registry
        except ImportError:  # before torch 2.1
            flop_registry = {}
        self.registry = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not _is_free(func):
            flops = 0
            formula = self.registry.get(func._overloadpacket)
            if formula is not None:
                flops = _flops(formula, args, kwargs, out)
            key = (flops, _bytes(args) + _bytes(kwargs.values()) + _bytes((out,)))
            self.totals[key] = self.totals.get(key, 0) + 1
        return out


def _flops(formula: Any, args: Any, kwargs: Any, out: Any) -> int:
    try:
        return int(formula(*args, **dict(kwargs, out_val=out)))
    except TypeError:  # before torch 2.3 it had another name
        return int(formula(*args, **dict(kwargs, out=out)))


def _operations(training: Any, batch: Any) -> List[List[int]]:
    counter = Counter()
    try:
        with counter:
            training.eager(batch)
    except BaseException:
        return []
    return [[flops, size, times] for (flops, size), times in counter.totals.items()]


def _is_free(func: Any) -> bool:
    """Views, and tensors that are only made, move nothing."""
    if getattr(func, "is_view", False):
        return True
    name = str(func)
    return any(word in name for word in ("view", "detach", "alias", "empty", "lift_fresh"))


def _bytes(values: Any) -> int:
    size = 0
    for one in values:
        if isinstance(one, torch.Tensor):
            size += one.numel() * one.element_size()
        elif isinstance(one, (list, tuple)):
            size += _bytes(one)
    return size


def _device_s(training: Any, batch: Any) -> Optional[float]:
    """Seconds that the GPU needs for a step when nothing keeps it waiting.

    The GPU is put to sleep until the host has queued the whole step; then it works without a gap.
    """
    try:
        began = time.perf_counter()
        training.eager(batch)
        host_s = time.perf_counter() - began
        best = float("inf")
        for _ in range(3):
            torch.cuda.synchronize()
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(min(2.0, 3 * host_s) * 2e9))
            begin.record()
            training.eager(batch)
            end.record()
            torch.cuda.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        return best
    except BaseException:
        return None


def _peaks(order: Order) -> Tuple[Optional[float], Optional[float]]:
    """Operations and bytes a second of a large product and a large copy, here and now."""
    size, length = (8192, 1 << 27) if order.gpu else (768, 1 << 23)
    try:
        square = torch.ones(size, size, device=order.device)
        row = torch.ones(length, device=order.device)
        other = torch.empty_like(row)
        product_s = _best_s(order, lambda: square @ square)
        copy_s = _best_s(order, lambda: other.copy_(row))
    except (RuntimeError, MemoryError):
        return None, None
    return 2.0 * size**3 / product_s, 2.0 * 4 * length / copy_s


def _best_s(order: Order, job: Any) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        job()
        if order.gpu:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best

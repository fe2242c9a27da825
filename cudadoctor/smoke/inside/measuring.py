"""What a runner does with its order: look, size, or train and be measured round by round."""

import gc
import os
import shutil
import statistics
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import process, training, wire, workloads
from .training import Feed, Training
from .workloads import Order

LEAD_IN = 1
"""Steps before each round that are not measured: caches and clocks come back after the pause."""


def run(given: Dict[str, Any]) -> None:
    """Do it, and say what came out."""
    what = given.get("what", "train")
    if what == "look":
        wire.say("look", id=given["id"], **look())
        return
    order = Order(given)
    if order.gpu:
        keep_to_a_share(order)
    if what == "size":
        wire.say("size", id=order.id, shape=sized(order, list(given["tiers"])))
        return
    Measurement(order).serve()


class Measurement:
    """A training that is warmed up, and then does as many steps as it is told."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.base_bytes = 0
        try:
            with open("/proc/self/statm") as file:
                self.base_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            pass  # not known, and taken for nothing
        began = time.perf_counter()
        if order.settings.batch == 0:
            order.factor = largest(order)
            _forget_the_peak(order)
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
                found = profile(self.order, self.training, self.feed)
                wire.say("profile", id=self.order.id, **found)
        if told is not None:
            memory = self._memory()
            # The next one may start at once, and needs the room.
            process.end_loaders()
            wire.say("done", id=self.order.id, **memory)

    def _warm_up(self) -> None:
        """Until three steps agree within a tenth, or for so long; the losses are of these steps."""
        losses: List[float] = []
        times: List[float] = []
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
            _forget_the_peak(self.order)
        usual = statistics.median(times[-3:])
        wire.say(
            "ready",
            id=self.order.id,
            step_s=usual,
            extra_s=max(0.0, sum(times) - usual * len(times)),
            setup_s=self.setup_s,
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
            return {"peak_bytes": peak, "driver_bytes": drivers_bytes(os.getpid())}
        if sys.platform == "win32":
            return {"peak_bytes": None, "driver_bytes": None}
        import resource

        most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        grown = most * (1 if sys.platform == "darwin" else 1024) - self.base_bytes
        return {"peak_bytes": grown if grown > 0 else None, "driver_bytes": None}


# --- sizes: of a workload for this device, and of the largest batch that fits -----------------

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
    workloads.made(order.workload, order.shape)
    if order.gpu:
        torch.cuda.reset_peak_memory_stats()
    trained, batch = Training(order), Feed(order).next()
    best = float("inf")
    for _ in range(8):
        began = time.perf_counter()
        float(trained.step(batch))
        best = min(best, time.perf_counter() - began)
    del trained, batch
    _forget()
    return best


def largest(order: Order) -> int:
    """How many times the usual batch fits, doubling; an out-of-memory ends the search safely."""
    found, most = 1, MOST_TIMES_GPU if order.gpu else MOST_TIMES_CPU
    if order.gpu:
        keep_to_a_share(order, PART)
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
    if order.gpu:
        keep_to_a_share(order)
    return found


def _tried(order: Order) -> Tuple[bool, float]:
    """Whether two steps pass, and how long the second took."""
    free = training.available_bytes()
    if order.gpu and 0 < free < HOST_TIMES * training.batch_bytes(order):
        return False, 0.0
    if not order.gpu:
        # A generous guess at the memory of a step, since nothing says no before the end.
        shape = order.shape
        if order.workload == "cnn":
            guess = shape["image"] ** 2 * shape["width"] * 40
        else:
            width = shape["width"] * 30 * shape["layers"] + shape["vocabulary"] * 3
            guess = shape["length"] * width
        if free * CPU_SHARE < 4 * order.batch * guess:
            return False, 0.0
    try:
        trained, feed = Training(order), Feed(order)
        float(trained.step(feed.next()))
        began = time.perf_counter()
        float(trained.step(feed.next()))
        return True, time.perf_counter() - began
    except (RuntimeError, MemoryError) as problem:
        if is_oom(problem):
            # Nothing is freed here: the exception still holds the frames of the step.
            return False, 0.0
        raise


def is_oom(problem: BaseException) -> bool:
    """Whether the memory of the device, or of the machine, did not suffice."""
    said = str(problem)
    return isinstance(problem, MemoryError) or "out of memory" in said or "ALLOC_FAILED" in said


def _forget() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --- where a step goes: what its operations compute and move, and what this device can --------

Totals = Dict[Tuple[int, int], int]


def profile(order: Order, trained: Any, feed: Any) -> Dict[str, Any]:
    """Operations of a step as [flops, bytes, times], measured peaks, and the GPU's own time."""
    batch = feed.next()
    flops, bytes_s = _peaks(order)
    return {
        "device_s": _device_s(trained, batch) if order.gpu else None,
        "operations": _operations(trained, batch),
        "peak_flops": flops,
        "peak_bytes_s": bytes_s,
    }


FREE = ("view", "detach", "alias", "empty", "lift_fresh")


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
        # Views, and tensors that are only made, move nothing.
        if not getattr(func, "is_view", False) and not any(word in str(func) for word in FREE):
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


def _operations(trained: Any, batch: Any) -> List[List[int]]:
    counter = Counter()
    try:
        with counter:
            trained.eager(batch)
    except BaseException:
        return []
    return [[flops, size, times] for (flops, size), times in counter.totals.items()]


def _bytes(values: Any) -> int:
    size = 0
    for one in values:
        if isinstance(one, torch.Tensor):
            size += one.numel() * one.element_size()
        elif isinstance(one, (list, tuple)):
            size += _bytes(one)
    return size


def _device_s(trained: Any, batch: Any) -> Optional[float]:
    """Seconds that the GPU needs for a step when nothing keeps it waiting.

    The GPU is put to sleep until the host has queued the whole step; then it works without a gap.
    """
    try:
        began = time.perf_counter()
        trained.eager(batch)
        host_s = time.perf_counter() - began
        best = float("inf")
        for _ in range(3):
            torch.cuda.synchronize()
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(min(2.0, 3 * host_s) * 2e9))
            begin.record()
            trained.eager(batch)
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


# --- what the machine offers to a training, and how much of it this process holds -------------

FALSIFYING = (
    ("CUDA_LAUNCH_BLOCKING", "1"),
    ("TORCHDYNAMO_DISABLE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
    ("NVIDIA_TF32_OVERRIDE", "0"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"),
)
"""Variables with the value that changes what is measured."""


def look() -> Dict[str, Any]:
    """Devices, versions and compilers, for the choice of what to try."""
    found: Dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "python": "%d.%d.%d" % sys.version_info[:3],
        "built": torch.backends.cuda.is_built(),
        "available": False,
        "count": 0,
        "error": "",
        "devices": [],
        "compiler": _compiler("CXX", "g++", "clang++", "cl"),
        "c_compiler": _compiler("CC", "gcc", "cc", "clang", "cl"),
        "environment": [
            "%s=%s" % pair for pair in FALSIFYING if os.environ.get(pair[0]) == pair[1]
        ],
        "cores": training.cores(),
        "forks": sys.platform.startswith("linux"),
        "cpu_bf16": _cpu_bf16(),
        "triton": _has("triton"),
    }
    try:
        found["available"] = torch.cuda.is_available()
        if found["available"]:
            found["count"] = torch.cuda.device_count()
            found["devices"] = [_device(one) for one in range(found["count"])]
    except BaseException as problem:
        found["available"], found["error"] = False, str(problem)[:300]
    return found


def keep_to_a_share(order: Order, part: float = 1.0) -> None:
    """Never more than a share of what is free now, or a part of it: others may be guests too."""
    index = int(order.device.partition(":")[2] or 0)
    torch.cuda.set_device(index)
    free, total = torch.cuda.mem_get_info(index)
    torch.cuda.set_per_process_memory_fraction(max(0.01, part * order.share * free / total), index)
    torch.cuda.reset_peak_memory_stats(index)


def _forget_the_peak(order: Order) -> None:
    """Batches and kernels that were tried are no part of what the training needs."""
    if order.gpu:
        torch.cuda.reset_peak_memory_stats()


def drivers_bytes(pid: int) -> Optional[int]:
    """What the driver says that a process holds; None where nobody can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        held: List[int] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if one.pid == pid and one.usedGpuMemory:
                    held.append(int(one.usedGpuMemory))
    except BaseException:
        return None
    return sum(held) or None


def _device(index: int) -> Dict[str, Any]:
    """What the driver says of it; nothing is begun on it, since others may be using it."""
    properties = torch.cuda.get_device_properties(index)
    bus = getattr(properties, "pci_bus_id", None)
    where = ""
    if bus is not None:
        where = "%04x:%02x:%02x.0" % (properties.pci_domain_id, bus, properties.pci_device_id)
    return {
        "index": index,
        "name": properties.name,
        "capability": "%d.%d" % (properties.major, properties.minor),
        "bus_id": where,
        "total_bytes": int(properties.total_memory),
    }


def _compiler(variable: str, *usual: str) -> str:
    """What torch.compile calls: C++ for a CPU, C for a GPU by Triton; "" where there is none."""
    named = os.environ.get(variable)
    for name in ([named] if named else []) + list(usual):
        path = shutil.which(name.split(" ")[0])
        if path:
            return path
    return ""


def _cpu_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        asked = getattr(torch.cpu, name, None) or getattr(torch._C, name, None)
        try:
            if asked is not None and asked():
                return True
        except BaseException:
            continue
    return False


def _has(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False

"""What a runner does with its order: look, size, or train and be measured round by round."""

import gc
import json
import os
import shutil
import statistics
import sys
from math import inf
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import cuda
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from . import looks, process, room, training, wire, workloads
from .spec import Fields, Spec
from .training import Feed, Training
from .wire import say
from .workloads import Order

LEAD_IN = 1
"""Steps before each round that are not measured: caches and clocks come back after the pause."""


def run(given: Fields) -> None:
    """Do it, and say what came out."""
    what = given.get("what", "train")
    if what == "look":
        say("look", **look())
        return
    order = Order(given)
    keep_to_a_share(order)
    if what == "size":
        say("size", shape=sized(order, list(given["tiers"])))
        return
    Measurement(order).serve()


class Measurement:
    """A training that is warmed up, and then does as many steps as it is told."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.base_bytes = 0
        try:
            self.base_bytes = int(room.words_of("/proc/self/statm")[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            pass  # not known, and taken for nothing
        began = perf_counter()
        if order.settings.batch == 0:
            order.factor = largest(order)
            _forget_the_peak(order)
        self.feed = Feed(order)
        self.training = Training(order)
        self.setup_s = perf_counter() - began
        self.watched = _watched(order)

    def serve(self) -> None:
        """Warm up, then obey until told to stop."""
        self._warm_up()
        request = wire.next_order()
        while request is not None and request["do"] != "stop":
            if request["do"] == "round":
                self._round(int(request["steps"]))
            if request["do"] == "memory":
                say("memory", **self._memory())
            if request["do"] == "profile":
                say("profile", **profile(self.order, self.training, self.feed))
            request = wire.next_order()
        if request is not None:
            memory = self._memory()
            # The next one may start at once, and needs the room.
            process.end_loaders()
            say("done", **memory)

    def _steps(self, number: int) -> Any:
        """So many steps, and the loss of the last."""
        for _ in range(number):
            loss = self.training.step(self.feed.next())
        return loss

    def _warm_up(self) -> None:
        """Until three steps agree within a tenth, or for so long; the losses are of these steps."""
        order = self.order
        losses: List[float] = []
        times: List[float] = []
        until, steady = inf, False
        while len(losses) < order.loss_steps or not (steady or perf_counter() > until):
            seconds, loss = _timed(order, lambda: self._steps(1))
            times.append(seconds)
            until = min(until, perf_counter() + order.warm_s)  # from the end of the first
            if len(losses) < order.loss_steps:
                losses.append(float(loss))
            last = times[-3:]
            steady = len(times) >= 4 and max(last) - min(last) < 0.1 * statistics.median(last)
        if not self.training.replays:
            # Convolutions and kernels that were tried took memory that no later step needs.
            _forget_the_peak(order)
        usual = statistics.median(times[-3:])
        say(
            "ready",
            step_s=usual,
            extra_s=max(0.0, sum(times) - usual * len(times)),
            setup_s=self.setup_s,
            losses=losses,
            samples=order.batch,
            factor=order.factor,
            workers=self.feed.workers,
            why_no_workers=self.feed.why_no_workers,
        )

    def _round(self, steps: int) -> None:
        """So many steps on the clock, after some that only use up what lay ready."""
        self._steps(LEAD_IN + self.feed.stock)
        waited = self.feed.wait_s
        seconds, _ = _timed(self.order, lambda: self._steps(steps))
        waited = self.feed.wait_s - waited
        live: Fields = {}
        if self.watched is not None:
            # Off the clock, while the GPU has work.
            self._steps(1)
            live = self.watched.sample()
        self.feed.rest()
        say("round", seconds=seconds / steps, wait_s=waited / steps, steps=steps, live=live)

    def _memory(self) -> Fields:
        if self.order.gpu:
            return {"peak_bytes": cuda.max_memory_allocated(), "driver_bytes": drivers_bytes()}
        grown = 0
        if sys.platform != "win32":
            import resource

            most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            grown = most * (1 if sys.platform == "darwin" else 1024) - self.base_bytes
        return {"peak_bytes": grown if grown > 0 else None, "driver_bytes": None}


def _watched(order: Order) -> Any:
    """The GPU with what NVML says of it; None on a CPU, and where that cannot be asked."""
    if not (order.gpu and order.nvml):
        return None
    from . import health

    index = int(order.device.partition(":")[2] or 0)
    sys.path.append(order.nvml)
    try:
        import pynvml

        pynvml.nvmlInit()
        gpu = health.Gpu(index, looks.device(index), pynvml, Spec([]))
        bus = str(gpu.about["bus_id"])
        gpu.handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
    except BaseException:
        return None
    finally:
        sys.path.remove(order.nvml)
    return gpu


def _timed(order: Order, job: Callable[[], Any]) -> Tuple[float, Any]:
    """The seconds of a job, from an idle device to an idle device, and what it gives."""
    _settle(order)
    began = perf_counter()
    found = job()
    _settle(order)
    return perf_counter() - began, found


def _settle(order: Order) -> None:
    if order.gpu:
        cuda.synchronize()


# --- sizes: of a workload for this device, and of the largest batch that fits -----------------

with open(os.path.join(os.path.dirname(__file__), "shapes.json")) as _file:
    SHAPES: Dict[str, Dict[str, Fields]] = json.load(_file)
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


def sized(order: Order, tiers: List[str]) -> Fields:
    """The first of the tiers that this device steps through in time, with its batch."""
    for tier in tiers:
        shape = dict(SHAPES[order.workload][tier], tier=tier)
        if order.alone and order.workload == "cnn":
            shape["samples"] = min(shape["samples"], IMAGES_ALONE)
        if order.gpu:
            grown = dict(shape)
            if _grown(order, grown):
                return grown
        elif tier == tiers[-1] or _step_s(order, shape) < TOO_LONG_ON_A_CPU_S:
            break
    return shape


def _grown(order: Order, shape: Fields) -> bool:
    """Double the batch until a step is long enough; False where already the first is too long."""
    total = cuda.get_device_properties(cuda.current_device()).total_memory
    first = shape["batch"]
    while True:
        seconds = _in_memory(lambda: _step_s(order, shape))
        _forget()
        share = cuda.max_memory_allocated() / float(total)
        if seconds > TOO_LONG_S or share > 2 * SHARE:
            shape["batch"] //= 2
            return bool(shape["batch"] >= first)
        if seconds >= LONG_ENOUGH_S or share > SHARE or shape["batch"] >= 1024:
            return True
        shape["batch"] *= 2


def _step_s(order: Order, shape: Fields) -> float:
    """Seconds of a plain step on a batch that is there already: the best of a few."""
    order.shape = dict(shape, samples=max(16, int(shape["batch"])))
    workloads.made(order.workload, order.shape)
    _forget_the_peak(order)
    trained, batch = Training(order), Feed(order).next()
    return _best_s(order, lambda: trained.step(batch), 8)


def largest(order: Order) -> int:
    """How many times the usual batch fits, doubling; an out-of-memory ends the search safely."""
    found, most = 1, MOST_TIMES_GPU if order.gpu else MOST_TIMES_CPU
    keep_to_a_share(order, PART)
    while found < most:
        order.factor = 2 * found
        seconds = inf if _needs_too_much(order) else _in_memory(lambda: _second_step_s(order))
        _forget()
        if seconds == inf:
            break
        found *= 2
        if seconds > LONGEST_STEP_S / 2:
            break
    order.factor = found
    keep_to_a_share(order)
    return found


def _needs_too_much(order: Order) -> bool:
    """Whether the machine's own memory is too small to try; a generous guess of a step's on a CPU.

    Nothing says no there before the end.
    """
    free, shape = room.available_bytes(), order.shape
    if order.gpu:
        return 0 < free < HOST_TIMES * training.batch_bytes(order)
    if order.workload == "cnn":
        guess = shape["image"] ** 2 * shape["width"] * 40
    else:
        width = shape["width"] * 30 * shape["layers"] + shape["vocabulary"] * 3
        guess = shape["length"] * width
    return bool(free * CPU_SHARE < 4 * order.batch * guess)


def _second_step_s(order: Order) -> float:
    trained, feed = Training(order), Feed(order)
    float(trained.step(feed.next()))
    return _timed(order, lambda: float(trained.step(feed.next())))[0]


def _in_memory(job: Callable[[], float]) -> float:
    """The seconds that it says; infinite where memory does not suffice."""
    try:
        return job()
    except (RuntimeError, MemoryError) as problem:
        if is_oom(problem):
            # Nothing is freed here: the exception still holds the frames of the step.
            return inf
        raise


def is_oom(problem: BaseException) -> bool:
    """Whether the memory of the device, or of the machine, did not suffice."""
    words = str(problem)
    return isinstance(problem, MemoryError) or "out of memory" in words or "ALLOC_FAILED" in words


def _forget() -> None:
    gc.collect()
    if cuda.is_initialized():
        cuda.empty_cache()


# --- where a step goes: what its operations compute and move, and what this device can --------


def profile(order: Order, trained: Any, feed: Any) -> Fields:
    """Operations of a step as [flops, bytes, times], measured peaks, and the GPU's own time."""
    batch = feed.next()
    peaks = _peaks(order)
    device_s = _device_s(order, trained, batch)
    return dict(peaks, device_s=device_s, operations=_operations(trained, batch))


FREE = ("view", "detach", "alias", "empty", "lift_fresh")


class Counter(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Counts of every operation that computes: its arithmetic, and the bytes that it must touch."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: Dict[Tuple[int, int], int] = {}
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
                try:
                    flops = int(formula(*args, out_val=out, **kwargs))
                except TypeError:  # before torch 2.3 it had another name
                    flops = int(formula(*args, out=out, **kwargs))
            touched = [
                tensor for tensor in tree_flatten((args, kwargs, out))[0] if torch.is_tensor(tensor)
            ]
            key = (flops, sum([tensor.numel() * tensor.element_size() for tensor in touched]))
            self.totals[key] = self.totals.get(key, 0) + 1
        return out


def _operations(trained: Any, batch: Any) -> List[List[int]]:
    counter = Counter()
    try:
        with counter:
            trained.eager(batch)
    except BaseException:
        return []
    return [[flops, size, times] for (flops, size), times in counter.totals.items()]


def _device_s(order: Order, trained: Any, batch: Any) -> Optional[float]:
    """Seconds that the GPU needs for a step when nothing keeps it waiting.

    The GPU is put to sleep until the host has queued the whole step; then it works without a gap.
    """
    if not order.gpu:
        return None
    try:
        began = perf_counter()
        trained.eager(batch)
        host_s = perf_counter() - began
        found: List[float] = []
        for _ in range(3):
            cuda.synchronize()
            begin, end = [cuda.Event(enable_timing=True) for _ in range(2)]
            cuda._sleep(int(min(2.0, 3 * host_s) * 2e9))
            begin.record()
            trained.eager(batch)
            end.record()
            cuda.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        return min(found)
    except BaseException:
        return None


def _peaks(order: Order) -> Fields:
    """Operations and bytes a second of a large product and a large copy, here and now."""
    size, length = (8192, 1 << 27) if order.gpu else (768, 1 << 23)
    try:
        square = torch.ones(size, size, device=order.device)
        row = torch.ones(length, device=order.device)
        other = torch.empty_like(row)
        product_s = _best_s(order, lambda: square @ square, 5)
        copy_s = _best_s(order, lambda: other.copy_(row), 5)
    except (RuntimeError, MemoryError):
        return {}
    return {"peak_flops": 2.0 * size**3 / product_s, "peak_bytes_s": 2.0 * 4 * length / copy_s}


def _best_s(order: Order, job: Callable[[], Any], times: int) -> float:
    return min([_timed(order, job)[0] for _ in range(times)])


# --- what the machine offers to a training, and how much of it this process holds -------------

FALSIFYING = (
    "CUDA_LAUNCH_BLOCKING=1",
    "TORCHDYNAMO_DISABLE=1",
    "TORCH_COMPILE_DISABLE=1",
    "NVIDIA_TF32_OVERRIDE=0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
)
"""Variables with the value that changes what is measured."""


def look() -> Fields:
    """Devices, versions and compilers, for the choice of what to try."""
    environment = ["%s=%s" % variable for variable in os.environ.items()]
    found = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "python": "%d.%d.%d" % sys.version_info[:3],
        "built": torch.backends.cuda.is_built(),
        "available": False,
        "count": 0,
        "error": "",
        "devices": [],
        "compiler": _compiler(os.environ.get("CXX", ""), "g++", "clang++", "cl"),
        "c_compiler": _compiler(os.environ.get("CC", ""), "gcc", "cc", "clang", "cl"),
        "environment": [setting for setting in FALSIFYING if setting in environment],
        "cores": training.cores(),
        "forks": sys.platform.startswith("linux"),
        "cpu_bf16": _cpu_bf16(),
        "triton": looks.there("triton"),
    }
    try:
        found["available"] = cuda.is_available()
        if found["available"]:
            found["count"] = cuda.device_count()
            found["devices"] = [looks.device(index) for index in range(found["count"])]
    except BaseException as problem:
        found["available"], found["error"] = False, str(problem)[:300]
    return found


def keep_to_a_share(order: Order, part: float = 1.0) -> None:
    """Of a GPU never more than a share of what is free now, or a part of it: others are guests too.

    part: of that share.
    """
    if not order.gpu:
        return
    index = int(order.device.partition(":")[2] or 0)
    cuda.set_device(index)
    free, total = room.free_bytes(index)
    cuda.set_per_process_memory_fraction(max(0.01, part * order.share * free / total), index)
    cuda.reset_peak_memory_stats(index)


def _forget_the_peak(order: Order) -> None:
    """Batches and kernels that were tried are no part of what the training needs."""
    if order.gpu:
        cuda.reset_peak_memory_stats()


def drivers_bytes() -> Optional[int]:
    """What the driver says that this process holds; None where nobody can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        there = [
            running for gpu in gpus for running in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        ]
        return (
            sum(
                [int(running.usedGpuMemory or 0) for running in there if running.pid == os.getpid()]
            )
            or None
        )
    except BaseException:
        return None


def _compiler(*names: str) -> str:
    """What torch.compile calls: C++ for a CPU, C for a GPU by Triton; "" where there is none."""
    return next(filter(None, [shutil.which(name.split(" ")[0]) for name in names]), "")


def _cpu_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        try:
            if (getattr(torch.cpu, name, None) or getattr(torch._C, name))():
                return True
        except BaseException:
            continue  # this torch cannot tell
    return False

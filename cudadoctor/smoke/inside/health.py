"""How fast and how soundly the GPUs compute, copy and talk: windows of work, watched through NVML.

One process works on all GPUs at once, as a training does; what NVML says is asked while the work of
the same window is still queued. Figures are lines: TFLOP/s of a product, GB/s (10**9 bytes) of a
copy and of an all-reduce. Nothing is judged here.
"""

import os
import sys
import zlib
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import cuda

from . import looks, process, room
from .spec import Fields, Spec, choose
from .wire import say, words

DTYPES = ("fp32", "tf32", "fp16", "bf16")
WINDOW_S, WARM_S, LINK_S = 0.35, 0.2, 0.12
WINDOWS = 2
STUCK_S = 30.0
"""Work that takes so much longer than it was made for never ends."""
SAMPLE_S = 0.02
REPEATED = 24
"""Products of the same matrices, whose bits are compared."""
SIZES = tuple([1 << bits for bits in (10, 13, 16, 19, 22, 25, 28, 30)])
LIVE = {
    "clock_mhz": (("ClockInfo", 1),),
    "power_mw": (("PowerUsage",),),
    "temperature_c": (("TemperatureV", 0), ("Temperature", 0)),
    "throttle": (("CurrentClocksEventReasons",), ("CurrentClocksThrottleReasons",)),
    "generation": (("CurrPcieLinkGeneration",),),
    "width": (("CurrPcieLinkWidth",),),
}
"""What changes under load, by NVML's names behind nvmlDeviceGet, newest first."""
COUNTED = {
    "ecc-corrected": (("TotalEccErrors", 0, 0),),
    "ecc-uncorrected": (("TotalEccErrors", 1, 0),),
    "pcie-replays": (("PcieReplayCounter",),),
}
MOST_LINKS = 18
NVLINK_COUNTERS = {"nvlink-replays": 0, "nvlink-recoveries": 1, "nvlink-crc": 2}


class Stopped(Exception):
    """A GPU does not go on, and nothing more can be measured. It has been said."""


def run(spec_words: Sequence[str], began: float) -> None:
    """Measure what fits into the time, and say it line by line."""
    process.settle_in()
    spec = Spec(spec_words)
    look = _look(spec)
    chosen = choose(spec.device, spec.skip, look)
    none = not (chosen.devices or chosen.skipped)
    say(
        "chosen",
        skipped=chosen.skipped,
        error=choose("cuda", (), look).error if none and not chosen.error else chosen.error,
        count=look["count"],
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
    )
    if chosen.devices:
        say("done", seconds=_measured(spec, chosen.devices, look, began))


def _look(spec: Spec) -> Fields:
    """What torch says of CUDA, in the words that `choose` reads."""
    if spec.pretend:
        devices = [{"index": index, "bus_id": ""} for index in range(spec.pretend)]
        return {"built": "0", "available": True, "count": spec.pretend, "devices": devices}
    found: Fields = {"built": torch.version.cuda or "", "available": False, "count": 0, "error": ""}
    try:
        cuda.init()
        found["count"] = cuda.device_count()
        found["devices"] = [looks.device(index) for index in range(found["count"])]
        found["available"] = bool(found["count"])
    except Exception as problem:
        found["error"] = words(problem)
    return found


def _measured(spec: Spec, devices: Sequence[int], look: Fields, began: float) -> float:
    kind = Pretended if spec.pretend else Gpu
    nvml = None if spec.pretend else _nvml(spec.nvml)
    gpus = [kind(index, look["devices"][index], nvml, spec) for index in devices]
    try:
        gpus = [gpu for gpu in gpus if gpu.begin()]
        parts = Parts(spec, gpus, began)
        if not gpus:
            pass
        elif spec.only:
            getattr(parts, spec.only)()
        else:
            parts.counters("before")
            parts.all()
            parts.counters("after")
    except Stopped:
        pass
    return round(monotonic() - began, 2)


def _nvml(folder: str) -> Any:
    """The doctor's pynvml, begun; None where it has no answer."""
    sys.path.append(folder)
    try:
        import pynvml

        pynvml.nvmlInit()
    except BaseException as problem:
        say("lacking", what="nvml", gpus=(), why=words(problem))
        return None
    finally:
        sys.path.remove(folder)
    return pynvml


# --- devices ----------------------------------------------------------------------------------


class Gpu:
    """A GPU of torch's, and what NVML says of it. free: bytes that may be used."""

    free = 0
    handle: Any = None
    tiny = False

    def __init__(self, index: int, about: Fields, nvml: Any, spec: Spec) -> None:
        self.index, self.about, self.nvml = index, about, nvml
        self.device = "cuda:%d" % index
        self.stuck_s = spec.limit or STUCK_S
        self.faults = [name for name in spec.plant.split(",") if name]
        # Names that this GPU or this driver has no answer for.
        self.refused: Dict[str, bool] = {}

    def begin(self) -> bool:
        """Begin CUDA on it; False where that is refused. The doctor is a guest: a share of what is
        free is its limit.
        """
        with Guard("begin", [self]):
            torch.zeros(1, device=self.device)
            about = cuda.get_device_properties(self.index)
            free = room.free_bytes(self.index)[0] if hasattr(cuda, "mem_get_info") else 1 << 31
            self.free = int(0.7 * free)
            self.sms = int(about.multi_processor_count)
            self.capability = (about.major, about.minor)
            self._find()
            self.say(about.name, self.about.get("bus_id") or "")
            return True
        return False

    def _find(self) -> None:
        """By its address: NVML counts otherwise than torch."""
        if self.nvml is None:
            return
        try:
            bus = self.about.get("bus_id") or ""
            self.handle = self.nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        except BaseException as problem:
            say("lacking", what="nvml", gpus=(self.index,), why=words(problem))

    def say(self, name: str, bus: str) -> None:
        uuid = self.ask((("UUID",),))
        most = self.ask((("MaxPcieLinkGeneration",),)), self.ask((("MaxPcieLinkWidth",),))
        limit = self.ask((("EnforcedPowerLimit",),))
        say(
            "gpu",
            index=self.index,
            name=name,
            bus_id=bus,
            uuid=uuid.decode() if isinstance(uuid, bytes) else uuid,
            sms=self.sms,
            capability="%d.%d" % self.capability,
            generation_max=most[0],
            width_max=most[1],
            power_limit_w=None if limit is None else limit / 1e3,
        )

    def ask(self, ways: Sequence[Any]) -> Any:
        """By the first way that answers; None where none does."""
        for way in ways:
            name = "nvmlDeviceGet" + way[0]
            if self.handle is None or name in self.refused:
                continue
            try:
                return getattr(self.nvml, name)(self.handle, *way[1:])
            except BaseException:
                self.refused[name] = True
        return None

    def sample(self) -> Fields:
        found = {name: self.ask(ways) for name, ways in LIVE.items()}
        return {name: int(value) for name, value in found.items() if value is not None}

    def counters(self) -> Dict[str, int]:
        found = {name: self.ask(ways) for name, ways in COUNTED.items()}
        rows = self.ask((("RemappedRows",),))
        if rows is not None:
            found.update(zip(("rows-corrected", "rows-uncorrected"), rows))
            found.update({"remap-pending": rows[2], "remap-failed": rows[3]})
        for name, number in NVLINK_COUNTERS.items():
            self.refused.pop("nvmlDeviceGetNvLinkErrorCounter", None)
            counts = [
                self.ask((("NvLinkErrorCounter", link, number),)) for link in range(MOST_LINKS)
            ]
            counts = [count for count in counts if count is not None]
            found[name] = sum(counts) if counts else None
        return {name: int(value) for name, value in found.items() if value is not None}

    def mark(self) -> Any:
        """A point in its queue."""
        with cuda.device(self.index):
            event = cuda.Event(enable_timing=True)
            event.record()
        return event

    def seconds(self, begin: Any, end: Any, times: int) -> float:
        """Of one of so many jobs between two points."""
        return float(begin.elapsed_time(end)) / 1e3 / times

    def settle(self) -> None:
        cuda.synchronize(self.index)

    def pinned(self, size: int) -> Any:
        """Memory of the host beside this GPU, from which it copies without help."""
        with Near(self.about.get("bus_id") or ""):
            return torch.empty(size, dtype=torch.uint8).pin_memory()

    def reaches(self, other: "Gpu") -> bool:
        return bool(cuda.can_device_access_peer(self.index, other.index))

    def planted(self, fault: str) -> bool:
        """Whether a test wants this fault here, as "slow:1" wants it on GPU 1."""
        return "%s:%d" % (fault, self.index) in self.faults


class Mark:
    """A point of a queue that is always empty, but for a GPU that hangs."""

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs

    def query(self) -> bool:
        return not self.hangs


class Pretended(Gpu):
    """For tests: the CPU plays a GPU."""

    tiny = True
    asked = 0
    sms, capability = 8, (9, 0)

    def begin(self) -> bool:
        self.device, self.free = "cpu", 1 << 28
        self.say("a CPU that plays a GPU", "")
        return True

    def sample(self) -> Fields:
        heat = 0x40 if self.planted("hot") else 0
        answers = {"clock_mhz": 1500, "power_mw": 300000, "temperature_c": 95 if heat else 60}
        return dict(answers, throttle=heat, generation=4, width=16)

    def counters(self) -> Dict[str, int]:
        self.asked += 1
        found = {"ecc-uncorrected": 0, "pcie-replays": 0}
        if self.asked > 1:
            found.update({name: 3 for name in found if self.planted(name)})
        return found

    def say(self, name: str, bus: str) -> None:
        say(
            "gpu",
            index=self.index,
            name=name,
            sms=self.sms,
            capability="9.0",
            generation_max=4,
            width_max=16,
        )

    def mark(self) -> Any:
        if self.planted("lost"):
            raise RuntimeError("CUDA error: planted on GPU %d" % self.index)
        return Mark(self.planted("hang"))

    def seconds(self, begin: Any, end: Any, times: int) -> float:
        # What a shared CPU does is no speed: each plays the same one, but for what is planted.
        return 1e-4 if self.planted("slow") or self.planted("hot") else 5e-5

    def settle(self) -> None:
        if self.planted("lost"):
            raise RuntimeError("CUDA error: planted on GPU %d" % self.index)

    def pinned(self, size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8)

    def reaches(self, other: Gpu) -> bool:
        return True


class Near:
    """Runs on the processor that a GPU hangs on, so that memory is taken there."""

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.before: Any = None

    def __enter__(self) -> None:
        try:
            with open("/sys/bus/pci/devices/%s/local_cpulist" % self.bus) as file:
                spans = [part.split("-") for part in file.read().strip().split(",") if part]
            cpus = [cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)]
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, set(cpus) & before or before)
            self.before = before
        except (OSError, ValueError, AttributeError):
            pass  # not known: wherever the process is

    def __exit__(self, *_: Any) -> None:
        if self.before:
            os.sched_setaffinity(0, self.before)


class Guard:
    """Says what cannot be measured; a CUDA error ends everything, and the GPU that has it is named.

    Some errors stay: every later call on that GPU fails by them.
    """

    doing = ""

    def __init__(self, what: str, gpus: Sequence[Gpu]) -> None:
        self.what, self.gpus = what, gpus
        Guard.doing = what

    def __enter__(self) -> "Guard":
        say("doing", what=self.what, gpus=[gpu.index for gpu in self.gpus])
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> bool:
        if problem is None or not isinstance(
            problem, (RuntimeError, MemoryError, AttributeError, TypeError)
        ):
            return False
        if "CUDA error" not in str(problem) and "CUDNN" not in str(problem):
            indexes = [gpu.index for gpu in self.gpus]
            say("lacking", what=self.what, gpus=indexes, why=words(problem)[:300])
            if torch.cuda.is_initialized():
                cuda.empty_cache()
            return True
        lost = [gpu.index for gpu in self.gpus if not _settles(gpu)]
        say("lost", what=self.what, gpus=lost, why=words(problem)[:300])
        raise Stopped


def _settles(gpu: Gpu) -> bool:
    try:
        gpu.settle()
    except RuntimeError:
        return False
    return True


# --- windows ----------------------------------------------------------------------------------

Job = Callable[[], Any]


def window(gpus: Sequence[Gpu], jobs: Sequence[Job], seconds: float) -> List[Tuple[float, Fields]]:
    """So long of work on all at once: of each the seconds of one job, and what NVML said meanwhile.

    Raises Stopped where one does not end.
    """
    once = _once(gpus, jobs)
    times = max(1, min(1000, int(seconds / max(once, 1e-6)))) if not gpus[0].tiny else 2
    begins = [gpu.mark() for gpu in gpus]
    for _ in range(times):
        for job in jobs:
            job()
    samples: List[List[Fields]] = [[] for _ in gpus]
    ends = finish(gpus, 4 * times * once, SAMPLE_S, samples)
    return [
        (gpu.seconds(begin, end, times), _seen(seen))
        for gpu, begin, end, seen in zip(gpus, begins, ends, samples)
    ]


def finish(
    gpus: Sequence[Gpu], usual_s: float, pause_s: float, samples: Sequence[List[Fields]] = ()
) -> List[Any]:
    """Wait until each GPU has done what it was given, and give the ends of that.

    Never blocks in the driver: a GPU that does not end is named, and Stopped is raised. samples:
    filled with what NVML says of each that still works.
    """
    ends = [gpu.mark() for gpu in gpus]
    until = monotonic() + usual_s + gpus[0].stuck_s
    while True:
        going = [not end.query() for end in ends]
        for gpu, seen, works in zip(gpus, samples, going):
            if works or not seen:
                seen.append(gpu.sample())
        if not any(going):
            return ends
        if monotonic() > until:
            stuck = [gpu.index for gpu, works in zip(gpus, going) if works]
            say("lost", what=Guard.doing, gpus=stuck, why="the GPU does not finish its work")
            raise Stopped
        sleep(pause_s)


def _once(gpus: Sequence[Gpu], jobs: Sequence[Job]) -> float:
    """About how long a job takes, after one that loads its kernel."""
    for _ in range(2):
        began = perf_counter()
        for job in jobs:
            job()
        finish(gpus, 0.0, 0.001)
    return perf_counter() - began


def _seen(samples: Sequence[Fields]) -> Fields:
    """The median of each; of the throttle reasons every bit that was there in half of them."""
    found: Fields = {}
    for name in LIVE:
        values = sorted([sample[name] for sample in samples if name in sample])
        if not values:
            continue
        found[name] = values[len(values) // 2]
        if name == "throttle":
            bits = [1 << bit for bit in range(16)]
            often = [bit for bit in bits if 2 * sum([bool(v & bit) for v in values]) >= len(values)]
            found[name] = sum(often)
    return found


class Parts:
    """What is measured, part by part."""

    def __init__(self, spec: Spec, gpus: Sequence[Gpu], began: float) -> None:
        self.spec, self.gpus, self.began = spec, gpus, began

    def all(self) -> None:
        """Everything once; with a soak, products and their bits again until it is over."""
        self.products()
        self.memory()
        self.links()
        self.pairs()
        self.reduce()
        until = monotonic() + self.spec.soak
        while monotonic() < min(until, self.began + self.spec.until):
            self.products()

    def counters(self, when: str) -> None:
        for gpu in self.gpus:
            say("counters", when=when, gpu=gpu.index, counts=gpu.counters())

    def products(self) -> None:
        """Products of random matrices by format, and whether their bits are always the same."""
        size = 64 if self.gpus[0].tiny else 8192
        while size > 2048 and min([gpu.free for gpu in self.gpus]) < 16 * size * size:
            size //= 2
        made = torch.Generator()
        made.manual_seed(17)
        block = torch.randn(2, min(size, 2048), min(size, 2048), generator=made)
        times = size // block.shape[1]
        for dtype in DTYPES:
            gpus = [
                gpu for gpu in self.gpus if dtype in ("fp32", "fp16") or gpu.capability >= (8, 0)
            ]
            if not gpus:
                continue
            with Guard("gemm " + dtype, gpus):
                self._products(dtype, gpus, block, times)

    def _products(self, dtype: str, gpus: Sequence[Gpu], block: Any, times: int) -> None:
        form = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        pairs = [block.to(gpu.device, form).repeat(1, times, times) for gpu in gpus]
        outs = [torch.empty_like(pair[0]) for pair in pairs]
        jobs: List[Job] = [
            partial(torch.mm, pair[0], pair[1], out=out) for pair, out in zip(pairs, outs)
        ]
        size = int(outs[0].shape[0])
        window(gpus, jobs, WARM_S)
        for _ in range(WINDOWS):
            for gpu, (seconds, seen) in zip(gpus, window(gpus, jobs, WINDOW_S)):
                value = 2.0 * size**3 / seconds / 1e12
                say("figure", what="gemm", dtype=dtype, gpu=gpu.index, value=value, load=seen)
        found: List[List[Any]] = [[] for _ in gpus]
        for number in range(REPEATED):
            for gpu, job, out, sums in zip(gpus, jobs, outs, found):
                job()
                wrong = gpu.planted("differs") or (number == 3 and gpu.planted("wrong"))
                sums.append(bits_of(out) + int(wrong))
        for gpu, sums in zip(gpus, found):
            counts: Dict[str, int] = {}
            for each in map(int, sums):
                counts[str(each)] = counts.get(str(each), 0) + 1
            say("digest", dtype=dtype, gpu=gpu.index, counts=counts)

    def memory(self) -> None:
        """Copies inside the memory of each GPU: bytes that are read and bytes that are written."""
        size = 1 << 20 if self.gpus[0].tiny else 1 << 30
        while size > 1 << 24 and min([gpu.free for gpu in self.gpus]) < 4 * size:
            size //= 2
        with Guard("copy", self.gpus):
            made = [torch.zeros(2, size, dtype=torch.uint8, device=gpu.device) for gpu in self.gpus]
            jobs: List[Job] = [partial(pair[1].copy_, pair[0]) for pair in made]
            for _ in range(WINDOWS):
                for gpu, (seconds, seen) in zip(self.gpus, window(self.gpus, jobs, WARM_S)):
                    value = 2.0 * size / seconds / 1e9
                    say("figure", what="copy", gpu=gpu.index, value=value, load=seen)

    def links(self) -> None:
        """From pinned memory of the host to each GPU and back: alone, then all at once."""
        size = 1 << 20 if self.gpus[0].tiny else 1 << 27
        with Guard("host copies", self.gpus):
            hosts = [gpu.pinned(size) for gpu in self.gpus]
            theirs = [torch.empty(size, dtype=torch.uint8, device=gpu.device) for gpu in self.gpus]
            for host in hosts:
                host.copy_(torch.arange(size // 8, dtype=torch.int64).view(torch.uint8))
            down: List[Job] = [
                partial(own.copy_, host, non_blocking=True) for host, own in zip(hosts, theirs)
            ]
            up: List[Job] = [
                partial(host.copy_, own, non_blocking=True) for host, own in zip(hosts, theirs)
            ]
            before = zlib.crc32(memoryview(hosts[0].numpy()))
            for what, jobs in (("h2d", down), ("d2h", up)):
                for gpu, job in zip(self.gpus, jobs):
                    self._link(what, [gpu], [job], size)
                if len(self.gpus) > 1:
                    self._link(what, self.gpus, jobs, size)
            for gpu, host in zip(self.gpus, hosts):
                if zlib.crc32(memoryview(host.numpy())) != before or gpu.planted("torn"):
                    say("torn", what="host copies", gpu=gpu.index, peer=None)

    def _link(self, what: str, gpus: Sequence[Gpu], jobs: Sequence[Job], size: int) -> None:
        for gpu, (seconds, seen) in zip(gpus, window(gpus, jobs, LINK_S)):
            say(
                "figure",
                what=what,
                gpu=gpu.index,
                value=size / seconds / 1e9,
                together=len(gpus) > 1,
                load=seen,
            )

    def pairs(self) -> None:
        """From the memory of each GPU to that of each other one."""
        size = 1 << 16 if self.gpus[0].tiny else 1 << 26
        for gpu in self.gpus:
            for other in self.gpus:
                if gpu is other:
                    continue
                with Guard("p2p", [gpu, other]):
                    here = torch.arange(size // 8, dtype=torch.int64, device=gpu.device)
                    there = torch.zeros_like(here, device=other.device)
                    job = partial(there.copy_, here, non_blocking=True)
                    ((seconds, _),) = window([gpu], [job], 0.02)
                    other.settle()
                    if int(there.sum()) != int(here.sum()) or gpu.planted("torn"):
                        say("torn", what="p2p", gpu=gpu.index, peer=other.index)
                    say(
                        "figure",
                        what="p2p",
                        gpu=gpu.index,
                        peer=other.index,
                        value=size / seconds / 1e9,
                        direct=gpu.reaches(other),
                    )

    def reduce(self) -> None:
        """Sums over all GPUs by NCCL, and the speed of the bus that follows, as in nccl-tests."""
        count = len(self.gpus)
        if count < 2:
            return
        with Guard("all-reduce", self.gpus):
            from torch.cuda import nccl

            for size in SIZES[:3] if self.gpus[0].tiny else SIZES:
                if 3 * size > min([gpu.free for gpu in self.gpus]):
                    break
                ones = [
                    torch.full((size // 4,), float(rank + 1), device=gpu.device)
                    for rank, gpu in enumerate(self.gpus)
                ]
                outs = [torch.empty_like(one) for one in ones]
                summed: Any = _summed if self.gpus[0].tiny else nccl.all_reduce
                seconds = self._reduced(partial(summed, ones, outs))
                value = size / seconds / 1e9 * 2 * (count - 1) / count
                say("figure", what="allreduce", gpu=-1, size=size, value=value, seconds=seconds)
                right = count * (count + 1) / 2.0
                for gpu, out in zip(self.gpus, outs):
                    if not bool((out == right).all()):
                        say("torn", what="all-reduce", gpu=gpu.index, peer=None)

    def _reduced(self, job: Job) -> float:
        """Seconds of one, from all idle to all idle."""
        found, times = 0.0, 1
        for _ in range(3):
            began = perf_counter()
            for _ in range(times):
                job()
            finish(self.gpus, 1.0, 0.0)
            found = (perf_counter() - began) / times
            times = max(1, min(200, int(0.05 / max(found, 1e-6))))
        return found


def _summed(ones: Sequence[Any], outs: Sequence[Any]) -> None:
    """For tests: what NCCL does."""
    for out in outs:
        out.copy_(sum(ones))


def bits_of(tensor: Any) -> Any:
    """A sum of its bits, in whole numbers: it has no order, and one bit that differs changes it."""
    form: Any = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.view(form).sum(dtype=torch.int64)

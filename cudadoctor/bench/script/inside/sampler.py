"""Samples a tree of processes and the GPUs, and prints a JSON line for each sample.

argv: pid of the script, seconds between samples, folder that holds pynvml ("" none).
It only reads: /proc of the tree, and what NVML tells. A thread of its own asks NVML, so that a
driver that hangs does not end the rest. It ends with the script, or when nobody reads any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # the module typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any

SELDOM_S, RARELY_S = 1.0, 4.0
"""How often is asked what changes slowly, or costs more to ask."""
MOST_PROCESSES, MOST_THREADS = 256, 256
SHARE, CREDIT_S = 0.003, 0.02
"""Of one core at most, beyond so many seconds: a short script is sampled as often as a long one,
and where a sample costs more, a long one has fewer of them."""
HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"compile_worker")
"""Words of processes that neither train nor load: a server of forks, inductor's compilers."""
START_OF_CODE = 23
"""Place in /proc/PID/stat, counted from the state: a fork has its parent's, another program not."""
BEGAN = time.monotonic()
OVER = threading.Event()


def say(kind: str, **rest: Any) -> None:
    line = {"kind": kind, "t": round(time.monotonic() - BEGAN, 3), **rest}
    try:
        os.write(1, (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii"))
    except OSError:
        os._exit(0)


def read(path: str) -> bytes:
    """The whole of a small file of /proc, b"" where the process has gone."""
    try:
        number = os.open(path, os.O_RDONLY)  # half the time of open()
    except OSError:
        return b""
    try:
        return os.read(number, 1 << 14)
    except OSError:
        return b""
    finally:
        os.close(number)


def stat_of(place: str) -> list[bytes]:
    """The fields after the name, which may hold blanks and brackets; [0] is the state."""
    text = read(place + "/stat")
    return text[text.rfind(b")") + 2 :].split()


def cpu_ticks(fields: list[bytes]) -> int:
    return int(fields[11]) + int(fields[12])


def counter(text: bytes, name: bytes) -> int | None:
    """A number of a file of names and numbers; None where it is not there, or may not be read."""
    value = (b"\n" + text).partition(b"\n" + name + b":")[2].split(None, 1)
    return int(value[0]) if value else None


class Pace:
    """When to sample again: after a period, or later where the time of the thread is used up."""

    def __init__(self, period: float) -> None:
        self.period = period
        self.began, self.before = time.monotonic(), time.thread_time()
        self.next: dict[float, float] = {}

    def due(self, every_s: float) -> bool:
        """Whether that is to be asked again."""
        now = time.monotonic()
        if now < self.next.get(every_s, 0.0):
            return False
        self.next[every_s] = now + every_s
        return True

    def rest(self) -> None:
        spent = time.thread_time() - self.before
        owed = (spent - CREDIT_S) / SHARE - (time.monotonic() - self.began)
        OVER.wait(max(self.period, owed))


class Process:
    """One of the tree.

    code: where its code begins. forked_by: who has forked it; parent: for whom it works. serves:
    of a helper, the process that started it.
    """

    def __init__(self, pid: int, forked_by: int = 0, code: bytes = b"") -> None:
        self.pid = pid
        self.place = f"/proc/{pid}"
        self.forked_by = self.parent = forked_by
        self.code = code
        self.line = read(self.place + "/cmdline")
        self.worker = False
        self.serves: int | None = None

    def sample(self, fields: list[bytes], *, seldom: bool) -> dict[str, Any]:
        found: dict[str, Any] = {
            "pid": self.pid,
            "ppid": self.parent,
            "worker": self.worker,
            "helper": self.serves is not None,
            "state": fields[0].decode("ascii", "replace"),
            "major": int(fields[9]),
            "ticks": cpu_ticks(fields),
            "rss": int(fields[21]),
        }
        if seldom:
            # Bytes asked for, and of them those that came from a disk.
            io = read(self.place + "/io")
            found["rchar"], found["read_bytes"] = counter(io, b"rchar"), counter(io, b"read_bytes")
            # How often it gave up its core by itself: it waited for something.
            found["switches"] = counter(read(self.place + "/status"), b"voluntary_ctxt_switches")
            found["delay"] = delay_of(self.place)
            if not self.worker:
                found["busy"], found["delays"] = threads_of(self.pid)
        return found


class Tree:
    """The processes of the script, as they come and go; those that have ended are still known."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.known = {root: Process(root)}
        self.live = {root}
        self.unrelated: set[int] = set()

    def grow(self) -> None:
        """Look at processes that were not there before; a parent may come after its child."""
        try:
            here = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        except OSError:
            return
        self.unrelated &= here
        new = {}
        for pid in here - self.unrelated - self.live:
            fields = stat_of(f"/proc/{pid}")
            if len(fields) > START_OF_CODE:
                new[pid] = int(fields[1]), fields[START_OF_CODE]
        while ours := [pid for pid, (parent, _) in new.items() if parent in self.live]:
            if len(self.live) > MOST_PROCESSES:
                break
            for pid in ours:
                self.add(pid, *new.pop(pid))
        self.unrelated |= new.keys()

    def add(self, pid: int, forked_by: int, code: bytes) -> None:
        """A worker is a fork of its parent, or what multiprocessing started in its place.

        A server of forks is none, and its forks are workers of the process that started it.
        """
        process, parent = Process(pid, forked_by, code), self.known[forked_by]
        line = process.line
        forked = bool(line) and line in (parent.line, read(parent.place + "/cmdline"))
        process.parent = parent.pid if parent.serves is None else parent.serves
        helps = any(word in line for word in HELPERS)
        if b"compile_worker" in line or (helps and (parent.serves is None or not forked)):
            process.serves = process.parent
        process.worker = process.serves is None and (forked or b"multiprocessing" in line)
        self.known[pid] = process
        self.live.add(pid)

    def sample(self, *, seldom: bool) -> list[dict[str, Any]]:
        found = []
        for pid in list(self.live):
            process = self.known[pid]
            fields = stat_of(process.place)
            if len(fields) < 22 or fields[0] in (b"Z", b"X"):
                self.live.remove(pid)
                continue
            if seldom:
                self.look_again(process, fields)
            found.append(self.known[pid].sample(fields, seldom=seldom))
        return found

    def look_again(self, process: Process, fields: list[bytes]) -> None:
        """A launcher, and what has just been forked, becomes another program and keeps its pid.

        Its code lies elsewhere then; a process that only gives itself another title stays.
        """
        if process.pid == self.root:
            process.line = read(process.place + "/cmdline")
        elif len(fields) > START_OF_CODE and fields[START_OF_CODE] != process.code:
            self.add(process.pid, process.forked_by, fields[START_OF_CODE])


def delay_of(place: str) -> int | None:
    """Nanoseconds in which a thread could have run and had no core; None where not counted."""
    fields = read(place + "/schedstat").split()
    return int(fields[1]) if len(fields) > 1 else None


def threads_of(pid: int) -> tuple[dict[str, int], dict[str, int | None]]:
    """Ticks of each thread, and how long those waited for a core that had any."""
    try:
        names = os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]
    except OSError:
        return {}, {}
    found, delays = {}, {}
    for name in names:
        place = f"/proc/{pid}/task/{name}"
        fields = stat_of(place)
        spent = cpu_ticks(fields) if len(fields) > 12 else 0
        if spent or name == str(pid):
            found[name], delays[name] = spent, delay_of(place)
    return found, delays


def host() -> None:
    posix = hasattr(os, "sysconf")
    say(
        "host",
        ticks=os.sysconf("SC_CLK_TCK") if posix else 100,
        page=os.sysconf("SC_PAGE_SIZE") if posix else 4096,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        proc=os.path.isdir("/proc/self/task"),
    )


def shm() -> dict[str, int]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return {}
    return {
        "shm": (found.f_blocks - found.f_bfree) * found.f_frsize,
        "shm_total": found.f_blocks * found.f_frsize,
    }


def watch(root: int, period: float) -> None:
    """Sample until the script has ended."""
    tree = Tree(root)
    tree.grow()  # the first look at all processes costs more than all that follow
    pace = Pace(period)
    while not OVER.is_set():
        if seldom := pace.due(SELDOM_S):
            tree.grow()
        processes = tree.sample(seldom=seldom)
        if root not in tree.live:
            break
        say("procs", procs=processes, **(shm() if pace.due(RARELY_S) else {}))
        pace.rest()
    OVER.set()


FIXED: dict[str, tuple[Any, ...]] = {
    "power_limit": ("EnforcedPowerLimit",),
    "clock_max": ("MaxClockInfo", 1),
    "generation": ("MaxPcieLinkGeneration",),
    "width": ("CurrPcieLinkWidth",),
}
SELDOM: dict[str, tuple[Any, ...]] = {
    "clock": ("ClockInfo", 1),
    # Each of these two blocks for 20 ms, without work.
    "tx": ("PcieThroughput", 0),
    "rx": ("PcieThroughput", 1),
}
"""Figures by what NVML calls them behind nvmlDeviceGet, and what it wants to know."""


class Gpus:
    """What NVML says of every GPU; a question that it does not know is left out from then on."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        count = min(nvml.nvmlDeviceGetCount(), 64)
        self.devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self.refused: set[tuple[int, str]] = set()

    def ask(self, index: int, name: str, *args: int) -> Any:
        if (index, name) in self.refused:
            return None
        try:
            return getattr(self.nvml, "nvmlDeviceGet" + name)(self.devices[index], *args)
        except Exception:
            self.refused.add((index, name))
            return None

    def fixed(self, index: int) -> dict[str, Any]:
        name = self.ask(index, "Name")
        memory = self.ask(index, "MemoryInfo")
        return {
            "index": index,
            "name": name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
            "memory_total": memory.total if memory else None,
            **{figure: self.ask(index, *question) for figure, question in FIXED.items()},
        }

    def sample(self, index: int, *, seldom: bool, rarely: bool) -> dict[str, Any]:
        rates = self.ask(index, "UtilizationRates")
        memory = self.ask(index, "MemoryInfo")
        found = {
            "index": index,
            "busy": rates.gpu if rates else None,
            "memory": memory.used if memory else None,
            "power": self.ask(index, "PowerUsage"),
        }
        if seldom:
            for figure, question in SELDOM.items():
                found[figure] = self.ask(index, *question)
            throttle = self.ask(index, "CurrentClocksEventReasons")
            if throttle is None:
                throttle = self.ask(index, "CurrentClocksThrottleReasons")
            found["throttle"] = throttle
        if rarely and (running := self.ask(index, "ComputeRunningProcesses")) is not None:
            found["pids"] = [process.pid for process in running[:64]]
        return found


def watch_gpus(folder: str, period: float) -> None:
    if folder:
        sys.path.append(folder)
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = Gpus(pynvml)
    except Exception as error:
        say("no-gpus", why=f"NVML: {error}"[:200])
        return
    numbers = range(len(gpus.devices))
    if not numbers:
        say("no-gpus", why="NVML reports no GPU")
    say("gpus", gpus=[gpus.fixed(index) for index in numbers])
    pace = Pace(period)
    while not OVER.is_set():
        due = {"seldom": pace.due(SELDOM_S), "rarely": pace.due(RARELY_S)}
        say("busy", gpus=[gpus.sample(index, **due) for index in numbers])
        pace.rest()


def main(root: int, period: float, folder: str) -> None:
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: OVER.set())
    with contextlib.suppress(OSError, AttributeError):  # Windows has no nice
        os.nice(5)
    host()
    threading.Thread(target=watch_gpus, args=(folder, period), daemon=True).start()
    if os.path.isdir("/proc/self/task"):
        watch(root, period)
    else:
        OVER.wait()
    say("end", cpu_s=round(time.process_time(), 4))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])

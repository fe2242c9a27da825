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
    line: dict[str, Any] = {"kind": kind, "t": round(time.monotonic() - BEGAN, 3)}
    line.update(rest)
    try:
        os.write(1, (json.dumps(line, separators=(",", ":")) + "\n").encode("ascii"))
    except OSError:
        os._exit(0)


def read(path: str) -> bytes:
    """The whole of a small file of /proc, b"" where the process has gone."""
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(number, 1 << 14)
    except OSError:
        return b""
    finally:
        os.close(number)


def stat_fields(text: bytes) -> list[bytes]:
    """The fields after the name, which may hold blanks and brackets; [0] is the state."""
    return text[text.rfind(b")") + 2 :].split()


def io_of(pid: int) -> dict[str, int]:
    """Bytes asked for, and of them those that came from a disk; {} where that is forbidden."""
    found = {}
    for line in read(f"/proc/{pid}/io").splitlines():
        name, _, value = line.partition(b":")
        if name in (b"rchar", b"read_bytes"):
            found[name.decode()] = int(value)
    return found


def switches_of(pid: int) -> int | None:
    """How often it gave up its core by itself: it waited for something."""
    text = read(f"/proc/{pid}/status")
    place = text.find(b"\nvoluntary_ctxt_switches:")
    return int(text[place:].split(None, 2)[1]) if place >= 0 else None


class Due:
    """Tells when something is to be asked again."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.next = 0.0

    def now(self) -> bool:
        at = time.monotonic()
        if at < self.next:
            return False
        self.next = at + self.every_s
        return True


class Pace:
    """How long a thread rests after a sample: its period, or longer where its time is used up."""

    def __init__(self, period: float) -> None:
        self.period = period
        self.began, self.before = time.monotonic(), time.thread_time()

    def rest(self) -> None:
        spent = time.thread_time() - self.before
        owed = (spent - CREDIT_S) / SHARE - (time.monotonic() - self.began)
        OVER.wait(max(self.period, owed))


class Tree:
    """The processes of the script, as they come and go."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.lines = {root: self.line(root)}
        self.workers: dict[int, bool] = {root: False}
        self.parents = {root: 0}
        self.forked_by: dict[int, int] = {}
        self.code: dict[int, bytes] = {}
        self.helpers: dict[int, int] = {}
        self.strangers: set[int] = set()

    def line(self, pid: int) -> bytes:
        return read(f"/proc/{pid}/cmdline")

    def grow(self) -> None:
        """Look at processes that were not there before; a parent may come after its child."""
        try:
            here = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        except OSError:
            return
        self.strangers &= here
        new: dict[int, tuple[int, bytes]] = {}
        for pid in here - self.strangers - self.workers.keys():
            fields = stat_fields(read(f"/proc/{pid}/stat"))
            if len(fields) > START_OF_CODE:
                new[pid] = int(fields[1]), fields[START_OF_CODE]
        while True:
            ours = [pid for pid, (parent, _) in new.items() if parent in self.workers]
            if not ours or len(self.workers) > MOST_PROCESSES:
                break
            for pid in ours:
                self.add(pid, *new.pop(pid))
        self.strangers |= new.keys()

    def add(self, pid: int, parent: int, code: bytes) -> None:
        """A worker is a fork of its parent, or what multiprocessing started in its place.

        A server of forks is none, and its forks are workers of the process that started it.
        """
        self.forked_by[pid], self.code[pid] = parent, code
        line = self.line(pid)
        forked = bool(line) and line in (self.lines.get(parent), self.line(parent))
        served = parent in self.helpers
        helps = any(word in line for word in HELPERS)
        compiles = helps and b"compile_worker" in line
        self.helpers.pop(pid, None)
        if compiles or (helps and not (served and forked)):
            self.helpers[pid] = self.helpers.get(parent, parent)
        self.lines[pid] = line
        self.parents[pid] = self.helpers.get(parent, parent) if served else parent
        self.workers[pid] = pid not in self.helpers and (forked or b"multiprocessing" in line)

    def sample(self, *, seldom: bool) -> list[dict[str, Any]]:
        found = []
        for pid in list(self.workers):
            fields = stat_fields(read(f"/proc/{pid}/stat"))
            if len(fields) < 22 or fields[0] in (b"Z", b"X"):
                self.workers.pop(pid)
                continue
            if seldom:
                self.look_again(pid, fields)
            found.append(self.process(pid, fields, seldom=seldom))
        return found

    def look_again(self, pid: int, fields: list[bytes]) -> None:
        """A launcher, and what has just been forked, becomes another program and keeps its pid.

        Its code lies elsewhere then; a process that only gives itself another title stays.
        """
        if pid == self.root:
            self.lines[pid] = self.line(pid)
        elif len(fields) > START_OF_CODE and fields[START_OF_CODE] != self.code[pid]:
            self.add(pid, self.forked_by[pid], fields[START_OF_CODE])

    def process(self, pid: int, fields: list[bytes], *, seldom: bool) -> dict[str, Any]:
        one: dict[str, Any] = {
            "pid": pid,
            "ppid": self.parents[pid],
            "worker": self.workers[pid],
            "helper": pid in self.helpers,
            "state": fields[0].decode("ascii", "replace"),
            "major": int(fields[9]),
            "ticks": int(fields[11]) + int(fields[12]),
            "rss": int(fields[21]),
        }
        if seldom:
            one.update(io_of(pid))
            one["switches"] = switches_of(pid)
            one["delay"] = delay_of(f"/proc/{pid}")
            if not self.workers[pid]:
                one["busy"], one["delays"] = threads_of(pid)
        return one


def delay_of(place: str) -> int | None:
    """Nanoseconds in which a thread could have run and had no core; None where not counted."""
    fields = read(f"{place}/schedstat").split()
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
        fields = stat_fields(read(place + "/stat"))
        spent = int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
        if spent or name == str(pid):
            found[name], delays[name] = spent, delay_of(place)
    return found, delays


def host() -> None:
    ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    asked = getattr(os, "sched_getaffinity", None)
    cpus = len(asked(0)) if asked else os.cpu_count() or 1
    say("host", ticks=ticks, page=page, cpus=cpus, proc=os.path.isdir("/proc/self/task"))


def shm() -> dict[str, int]:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return {}
    return {
        "shm": (found.f_blocks - found.f_bfree) * found.f_frsize,
        "shm_total": found.f_blocks * found.f_frsize,
    }


def watch(root: int, period: float) -> None:
    """Sample until the script has ended."""
    tree = Tree(root)
    tree.grow()  # the first look at all processes costs more than all that follow
    pace, seldom, rarely = Pace(period), Due(SELDOM_S), Due(RARELY_S)
    while not OVER.is_set():
        now = seldom.now()
        if now:
            tree.grow()
        processes = tree.sample(seldom=now)
        if root not in tree.workers:
            break
        say("procs", procs=processes, **(shm() if rarely.now() else {}))
        pace.rest()
    OVER.set()


class Gpus:
    """What NVML says of every GPU; a question that it does not know is left out from then on."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        count = min(nvml.nvmlDeviceGetCount(), 64)
        self.devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self.refused: set[tuple[int, str]] = set()

    def ask(self, index: int, name: str, *args: Any) -> Any:
        if (index, name) in self.refused:
            return None
        try:
            return getattr(self.nvml, name)(self.devices[index], *args)
        except Exception:
            self.refused.add((index, name))
            return None

    def fixed(self, index: int) -> dict[str, Any]:
        name = self.ask(index, "nvmlDeviceGetName")
        memory = self.ask(index, "nvmlDeviceGetMemoryInfo")
        return {
            "index": index,
            "name": name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
            "memory_total": memory.total if memory else None,
            "power_limit": self.ask(index, "nvmlDeviceGetEnforcedPowerLimit"),
            "clock_max": self.ask(index, "nvmlDeviceGetMaxClockInfo", 1),
            "generation": self.ask(index, "nvmlDeviceGetMaxPcieLinkGeneration"),
            "width": self.ask(index, "nvmlDeviceGetCurrPcieLinkWidth"),
        }

    def sample(self, index: int, *, seldom: bool, rarely: bool) -> dict[str, Any]:
        rates = self.ask(index, "nvmlDeviceGetUtilizationRates")
        memory = self.ask(index, "nvmlDeviceGetMemoryInfo")
        one = {
            "index": index,
            "busy": rates.gpu if rates else None,
            "memory": memory.used if memory else None,
            "power": self.ask(index, "nvmlDeviceGetPowerUsage"),
        }
        if seldom:
            one["clock"] = self.ask(index, "nvmlDeviceGetClockInfo", 1)
            one["throttle"] = self.throttle(index)
            # Each of these two blocks for 20 ms, without work.
            one["tx"] = self.ask(index, "nvmlDeviceGetPcieThroughput", 0)
            one["rx"] = self.ask(index, "nvmlDeviceGetPcieThroughput", 1)
        if rarely:
            running = self.ask(index, "nvmlDeviceGetComputeRunningProcesses")
            one["pids"] = None if running is None else [each.pid for each in running[:64]]
        return one

    def throttle(self, index: int) -> Any:
        new = self.ask(index, "nvmlDeviceGetCurrentClocksEventReasons")
        if new is not None:
            return new
        return self.ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons")


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
    say("gpus", gpus=[gpus.fixed(index) for index in numbers])
    pace, seldom, rarely = Pace(period), Due(SELDOM_S), Due(RARELY_S)
    while not OVER.is_set():
        often, all_ = seldom.now(), rarely.now()
        say("busy", gpus=[gpus.sample(one, seldom=often, rarely=all_) for one in numbers])
        pace.rest()


def main(root: int, period: float, folder: str) -> None:
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: OVER.set())
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(5)
    host()
    asking = threading.Thread(target=watch_gpus, args=(folder, period), daemon=True)
    asking.start()
    if os.path.isdir("/proc/self/task"):
        watch(root, period)
    else:
        OVER.wait()
    say("end", cpu_s=round(time.process_time(), 4))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")

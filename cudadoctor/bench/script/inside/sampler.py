"""Samples a tree of processes and the GPUs, and prints a JSON line for each sample.

argv: pid of the script, seconds between samples, folder that holds pynvml ("" none), path of
py-spy ("" none). It only reads: /proc of the tree, what NVML reports, and through py-spy the stacks
of Python, without pausing the script. NVML and py-spy have a thread each, so that one that hangs
does not end the rest. It ends with the script, or when nobody reads any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False  # the module typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any

SELDOM_S, RARELY_S, SHM_S = 1.0, 4.0, 5.0
"""How often is asked what changes slowly, or costs more to ask."""
MOST_PROCESSES, MOST_THREADS = 256, 256
SHARE, CREDIT_S = 0.003, 0.02
"""Of one core at most, beyond so many seconds: a short script is sampled as often as a long one,
and where a sample costs more, a long one has fewer of them."""
STACKS_SHARE, STACKS_CREDIT_S = 0.002, 0.8
"""Likewise of the stacks: a look costs about 15 ms, so the credit holds for about 50."""
BEFORE_S = 2.0
"""Between two looks before a training is seen, at most."""
STACKS_LIMIT_S = 10.0
TRAINING = ("/torch/optim/", "/torch/autograd/", "/torch/nn/modules/", "/torch/utils/data/")
MOST_FRAMES, MOST_FAILURES = 80, 4
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


def read(path: str, most: int = 1 << 14) -> bytes:
    """The whole of a small file of /proc, b"" where the process has gone."""
    try:
        number = os.open(path, os.O_RDONLY)  # half the time of open()
    except OSError:
        return b""
    try:
        text = more = os.read(number, most)
        while more and most > 1 << 14:
            more = os.read(number, most)
            text += more
    except OSError:
        return b""
    else:
        return text
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
    of a helper, the process that started it. torch, cuda: it has loaded torch, and opened a GPU.
    backward: torch has computed gradients on a GPU, which takes threads of a known name. omp: the
    threads that OMP_NUM_THREADS allows.
    """

    def __init__(self, pid: int, forked_by: int = 0, code: bytes = b"") -> None:
        self.pid = pid
        self.place = f"/proc/{pid}"
        self.forked_by = self.parent = forked_by
        self.code = code
        self.line = read(self.place + "/cmdline")
        self.worker = False
        self.serves: int | None = None
        self.torch = self.cuda = self.backward = False
        self.omp: int | None = None

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
            "torch": self.torch,
            "cuda": self.cuda,
            "backward": self.backward,
            "omp": self.omp,
        }
        if self.worker and fields[0] == b"S":
            found["wchan"] = read(self.place + "/wchan").decode("ascii", "replace")
        if seldom:
            # Bytes asked for, and of them those that came from a disk.
            io = read(self.place + "/io")
            found["rchar"], found["read_bytes"] = counter(io, b"rchar"), counter(io, b"read_bytes")
            # How often it gave up its core by itself: it waited for something.
            found["switches"] = counter(read(self.place + "/status"), b"voluntary_ctxt_switches")
            found["delay"] = delay_of(self.place)
            if not self.worker:
                found["busy"], found["delays"], autograd = threads_of(self.pid)
                self.backward = self.backward or autograd
        return found

    def look_at_maps(self) -> None:
        """Forks of a process share its libraries, so workers are not asked."""
        if self.worker or (self.torch and self.cuda):
            return
        maps = read(self.place + "/maps", 1 << 22)
        self.torch = self.torch or b"/libtorch" in maps
        self.cuda = self.cuda or b"/dev/nvidia" in maps
        if self.torch and self.omp is None:
            variables = read(self.place + "/environ", 1 << 18).split(b"\0")
            given = [name[16:] for name in variables if name.startswith(b"OMP_NUM_THREADS=")]
            self.omp = int(given[0]) if given and given[0].isdigit() else 0


class Tree:
    """The processes of the script, as they come and go; those that have ended are still known."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.known = {root: Process(root)}
        self.live = {root}
        self.unrelated: set[int] = set()
        self.training: tuple[int, ...] = ()
        self.loading: tuple[int, ...] = ()

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
        if seldom:
            self.choose()
        return found

    def choose(self) -> None:
        """Whose stacks are worth a look: torchrun has loaded torch too, but its ranks train."""
        live = [self.known[pid] for pid in sorted(self.live)]
        own = [one for one in live if one.torch and not one.worker and one.serves is None]
        launchers = {one.parent for one in own}
        self.training = tuple(one.pid for one in own if one.pid not in launchers)
        self.loading = tuple(one.pid for one in live if one.worker)

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


def threads_of(pid: int) -> tuple[dict[str, int], dict[str, int | None], bool]:
    """Ticks of each thread, how long those waited for a core that had any, and whether torch's
    threads for gradients on a GPU are there.
    """
    try:
        names = os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]
    except OSError:
        return {}, {}, False
    found, delays, autograd = {}, {}, False
    for name in names:
        place = f"/proc/{pid}/task/{name}"
        text = read(place + "/stat")
        autograd = autograd or b"(pt_autograd" in text
        fields = text[text.rfind(b")") + 2 :].split()
        spent = cpu_ticks(fields) if len(fields) > 12 else 0
        if spent or name == str(pid):
            found[name], delays[name] = spent, delay_of(place)
    return found, delays, autograd


class Cores:
    """What all programs do on the cores that the script may use, and its CPU quota."""

    def __init__(self, root: int) -> None:
        try:
            allowed = os.sched_getaffinity(root)
        except (AttributeError, OSError):
            allowed = set()
        self.names = {b"cpu%d" % number for number in allowed}
        # The smallest quota of its control group and of all above holds.
        self.quota: float | None = None
        self.folder = ""
        for folder in cgroups_of(root):
            quota = quota_of(folder)
            if quota and (self.quota is None or quota <= self.quota):
                self.quota, self.folder = quota, folder

    def used(self) -> dict[str, Any]:
        """Ticks of all programs, steal included; how often the quota held the script back."""
        ticks = 0
        for line in read("/proc/stat", 1 << 16).splitlines():
            fields = line.split()
            if fields and fields[0] in self.names:
                # user, nice, system, irq, softirq, steal; not idle and iowait
                ticks += sum(int(fields[place]) for place in (1, 2, 3, 6, 7, 8))
        found: dict[str, Any] = {"machine": ticks} if ticks else {}
        if self.folder:
            text = read(self.folder + "/cpu.stat").replace(b" ", b":")
            found["throttled"] = counter(text, b"nr_throttled")
            found["periods"] = counter(text, b"nr_periods")
        return found


def cgroups_of(pid: int) -> list[str]:
    """Folders of its CPU control group and all above, of both versions of cgroups."""
    found = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"]
    for line in read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines():
        _, names, path = line.split(":", 2)
        tops = {"": ("", "/unified")}.get(
            names, ("/" + names,) if "cpu" in names.split(",") else ()
        )
        for top in tops:
            parts = [part for part in path.split("/") if part]
            place = "/sys/fs/cgroup" + top
            for part in parts:
                place += "/" + part
                found.append(place)
    return found


def quota_of(folder: str) -> float | None:
    """CPUs that a control group may use; None without a limit."""
    quota, _, period = read(folder + "/cpu.max").decode().partition(" ")
    if not quota:
        quota = read(folder + "/cpu.cfs_quota_us").decode().strip()
        period = read(folder + "/cpu.cfs_period_us").decode()
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except ValueError:
        return None


def host(quota: float | None) -> None:
    posix = hasattr(os, "sysconf")
    say(
        "host",
        ticks=os.sysconf("SC_CLK_TCK") if posix else 100,
        page=os.sysconf("SC_PAGE_SIZE") if posix else 4096,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        quota=quota,
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


def watch(tree: Tree, cores: Cores, period: float) -> None:
    """Sample until the script has ended."""
    tree.grow()  # the first look at all processes costs more than all that follow
    pace = Pace(period)
    while not OVER.is_set():
        if seldom := pace.due(SELDOM_S):
            tree.grow()
            rarely = pace.due(RARELY_S)
            for pid in list(tree.live):
                if rarely or not tree.known[pid].torch:
                    tree.known[pid].look_at_maps()
        processes = tree.sample(seldom=seldom)
        if tree.root not in tree.live:
            break
        more = {**(shm() if pace.due(SHM_S) else {}), **(cores.used() if seldom else {})}
        say("procs", procs=processes, **more)
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


class Stacks:
    """The stacks of Python as py-spy reads them, of one process at a time."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.failed: dict[int, int] = {}
        self.trained = False

    def look(self, pid: int, *, worker: bool) -> bool:
        """Print one stack; whether its main thread waits for the workers of a DataLoader."""
        if self.failed.get(pid, 0) >= MOST_FAILURES:
            return False
        argv = [self.program, "dump", "--json", "--nonblocking", "--full-filenames"]
        try:
            ran = subprocess.run(
                [*argv, "--pid", str(pid)],
                capture_output=True,
                timeout=STACKS_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            threads = json.loads(ran.stdout) if ran.returncode == 0 else []
            error = ran.stderr.decode("utf-8", "replace").strip()
        except (OSError, ValueError, subprocess.SubprocessError) as caught:
            threads, error = [], str(caught)
        found = [line for thread in threads if (line := self.line_of(thread, pid))]
        if found:
            self.failed[pid] = 0
            say("stacks", pid=pid, worker=worker, threads=found)
        elif os.path.isdir(f"/proc/{pid}"):
            self.failed[pid] = self.failed.get(pid, 0) + 1
            if self.failed[pid] == MOST_FAILURES:
                say("no-stacks", pid=pid, worker=worker, why=error[:400])
        files = {frame[0] for thread in found for frame in thread["frames"]}
        # An import of torch runs through its files, too.
        imports = any(file.startswith("<frozen importlib") for file in files)
        trains = any(part in file for part in TRAINING for file in files)
        self.trained = self.trained or (trains and not imports)
        return any(file.endswith("torch/utils/data/dataloader.py") for file in files)

    def line_of(self, thread: dict[str, Any], pid: int) -> dict[str, Any] | None:
        """The main thread, and any other that runs; frames from the innermost outwards."""
        main = thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread"
        frames = thread["frames"][:MOST_FRAMES]
        if not frames or not (main or thread["active"]):
            return None
        return {
            "main": main,
            "active": thread["active"],
            "gil": thread["owns_gil"],
            "frames": [[frame["filename"], frame["line"], frame["name"]] for frame in frames],
        }


def watch_stacks(tree: Tree, program: str, period: float) -> None:
    """Look at one process that trains and, if that waits for its workers, at one of them."""
    import resource

    stacks, turn = Stacks(program), 0
    began, before = time.monotonic(), 0.0
    while not OVER.wait(period):
        training, loading = tree.training, tree.loading
        if not training:
            continue
        turn += 1
        waits = stacks.look(training[turn % len(training)], worker=False)
        if waits and loading:
            stacks.look(loading[turn % len(loading)], worker=True)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = children.ru_utime + children.ru_stime
        if not stacks.trained:
            # An import or a download may take long, and the credit is for the training.
            began, before = time.monotonic(), used
            OVER.wait(min(BEFORE_S, turn * 0.05))
            continue
        owed = (used - before - STACKS_CREDIT_S) / STACKS_SHARE - (time.monotonic() - began)
        OVER.wait(max(0.0, owed))


def main(root: int, period: float, folder: str, spy: str) -> None:
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: OVER.set())
    with contextlib.suppress(OSError, AttributeError):  # Windows has no nice
        os.nice(5)
    tree, cores = Tree(root), Cores(root)
    host(cores.quota)
    if spy and os.path.isdir("/proc/self/task"):
        watching = threading.Thread(target=watch_stacks, args=(tree, spy, period), daemon=True)
        watching.start()
    threading.Thread(target=watch_gpus, args=(folder, period), daemon=True).start()
    if os.path.isdir("/proc/self/task"):
        watch(tree, cores, period)
    else:
        OVER.wait()
    spent = os.times()
    say("end", cpu_s=round(sum(spent[:4]), 4))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])

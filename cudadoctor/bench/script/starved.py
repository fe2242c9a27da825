"""What starves the GPU of a training: samples, figures of them, a judgement, its page. Pure.

What cannot be told stays "not known"; without figures of a GPU it is never told, only what the
processes did.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

from msgspec import Struct

from cudadoctor.bench.page import COPIED, ENGLISH, Row, bullets
from cudadoctor.bench.results import Amount, Line
from cudadoctor.bench.script import stacks
from cudadoctor.bench.script.stacks import Stacks, Where
from cudadoctor.bench.techniques import table
from cudadoctor.locale.language import Language
from cudadoctor.model.machine import OptInt, OptStr, Strings
from cudadoctor.render.markdown import escaped

LEAST_TICKS, LEAST_S = 4, 1.5
WARM_S, WARM_SHARE = 10.0, 0.25
"""What is left out at the beginning where no GPU tells when the training began."""
AT_WORK = 10
"""Per cent: a GPU that is busier trains."""
SOURCES = ("nanosleep", "rpc_", "nfs", "request_wait_answer", "wait_woken", "folio_wait")
"""Where the kernel lets a process wait that sleeps, or reads from a disk or over the network."""
MOST_CODE = 90
POWER_CAP = 0x4
TOO_HOT = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML: the power limit; hardware slowdown, heat by software and hardware, power brake."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""What a lane of each PCIe generation can carry one way, in GB/s."""


class GpuFigures(Struct, frozen=True, kw_only=True):
    """One GPU while it was used; shares are of 1, None not known.

    busy: share of the time in which any kernel ran. memory: largest share in use. power: mean
    share of its limit. capped, hot: share of the samples at the power limit, and slowed by heat or
    a brake. pcie: mean share of what its link can carry, of the busier direction. clock: mean share
    of its highest clock.
    """

    index: int
    name: OptStr = None
    busy: Amount = None
    memory: Amount = None
    power: Amount = None
    capped: Amount = None
    hot: Amount = None
    pcie: Amount = None
    clock: Amount = None


class Figures(Struct, frozen=True, kw_only=True):
    """What the samples come to.

    seconds: how long was sampled; judged_s: while it trained. gpus: those that the script used.
    gpus_by: how that is known: "processes", "memory" (its use grew), "only one" or "all".
    no_gpu_figures: why nothing of a GPU is known, "" where it is; no_process_figures: likewise.
    main_cores: cores that the training processes used; main_thread: share of a core of the busiest
    thread, main_thread_wait: share of the time in which it could have run and had no core.
    workers: loader processes at once; workers_cpu, workers_wait: the mean of each, likewise.
    workers_asleep: share of the looks at them in which they slept or waited for a source of data.
    waiting: share of the samples in which one of the training or loading processes waited for a
    disk (state D). read_mb_s: from disks, asked_mb_s: also from memory. major_faults_s: pages that
    had to be read. cores: of all processes; cpus: allotted; quota: CPUs that the control group may
    use, None without a limit; throttled: share of its periods in which it was held back. others:
    cores that other programs used of those allotted. shm: largest share of /dev/shm. torch, cuda:
    whether a process loaded torch, and opened a GPU. began_by: how the begin of the training is
    known: "stacks", "gpu", "gradients", or "" where it is only a guess. one_thread: torch may use
    one thread by its environment. stacks: what the stacks of Python say.
    """

    seconds: float
    judged_s: float
    ticks: int
    cpus: OptInt = None
    gpus: tuple[GpuFigures, ...] = ()
    gpus_by: str = ""
    no_gpu_figures: str = ""
    no_process_figures: str = ""
    processes: OptInt = None
    cores: Amount = None
    main_cores: Amount = None
    main_thread: Amount = None
    main_thread_wait: Amount = None
    workers: OptInt = None
    workers_cpu: Amount = None
    workers_wait: Amount = None
    waiting: Amount = None
    read_mb_s: Amount = None
    asked_mb_s: Amount = None
    major_faults_s: Amount = None
    switches_s: Amount = None
    rss_bytes: OptInt = None
    shm: Amount = None
    sampler_s: Amount = None
    workers_asleep: Amount = None
    quota: Amount = None
    throttled: Amount = None
    others: Amount = None
    torch: bool | None = None
    cuda: bool | None = None
    began_by: str = ""
    one_thread: bool = False
    ranks: OptInt = None
    stacks: Stacks = Stacks()


# --- from samples to figures ----------------------------------------------------------------------


def figures(lines: list[Line], texts: Mapping[str, str] | None = None) -> Figures:
    """All figures; those with too few samples stay None. texts: the user's files by their names."""
    by_kind = defaultdict(list)
    for line in lines:
        by_kind[line["kind"]].append(line)
    host, fixed, refused, last = (
        next(iter(by_kind[kind]), {}) for kind in ("host", "gpus", "no-gpus", "end")
    )
    ticks = by_kind["procs"]
    gpus = [{**gpu, "t": sample["t"]} for sample in by_kind["busy"] for gpu in sample["gpus"]]
    times = sorted(line["t"] for line in ticks + gpus) or [0.0]
    used, known_by = _used(gpus, {process["pid"] for _, process in _processes_of(ticks)})
    found = stacks.read(lines, texts or {})
    begin, end, began_by = _trained(gpus, ticks, used, times, found)
    judged = [tick for tick in ticks if begin <= tick["t"] <= end]
    judged_gpus = [gpu for gpu in gpus if begin <= gpu["t"] <= end]
    enough = len(judged) >= LEAST_TICKS and end - begin >= LEAST_S
    torch = [process["torch"] for _, process in _processes_of(ticks) if "torch" in process]
    shm = [tick["shm"] / tick["shm_total"] for tick in ticks if tick.get("shm_total")]
    unknown = "" if gpus else "NVML did not respond during sampling"
    return Figures(
        seconds=times[-1] - times[0],
        judged_s=end - begin,
        ticks=max(len(judged), len({gpu["t"] for gpu in judged_gpus})),
        cpus=host.get("cpus"),
        gpus=tuple(_gpu(gpu, judged_gpus) for gpu in fixed.get("gpus", ()) if gpu["index"] in used),
        gpus_by=known_by,
        no_gpu_figures=refused.get("why") or unknown,
        no_process_figures="" if host.get("proc", True) else "this system has no /proc",
        shm=max(shm, default=None),
        sampler_s=last.get("cpu_s"),
        quota=host.get("quota"),
        torch=any(torch) if torch else None,
        cuda=any(process.get("cuda") for _, process in _processes_of(ticks)) if torch else None,
        began_by=began_by,
        stacks=found,
        **(_of_processes(judged, gpus, host) if enough else {}),
    )


def _mean(values: Collection[float], of: Amount = 1.0) -> Amount:
    """Their mean as a part of a whole; None where one of the two is not known."""
    return statistics.fmean(values) / of if values and of else None


def _used(gpus: list[Line], pids: set[int]) -> tuple[set[int], str]:
    """The GPUs that the script used. In a container the driver's pids are not ours."""
    every = {gpu["index"] for gpu in gpus}
    if ours := {gpu["index"] for gpu in gpus if pids & set(gpu.get("pids") or ())}:
        return ours, "processes"
    if len(every) < 2:
        return every, "only one" if every else ""
    memory = {index: _series(gpus, index, "memory") or [0] for index in every}
    grown = {index for index, used in memory.items() if max(used) - used[0] > 64 << 20}
    return (grown, "memory") if grown else (every, "all")


def _series(gpus: list[Line], index: int, name: str) -> list[float]:
    """All known values of one figure of one GPU, in order."""
    return [gpu[name] for gpu in gpus if gpu["index"] == index and gpu.get(name) is not None]


def _trained(
    gpus: list[Line], ticks: list[Line], used: set[int], times: list[float], found: Stacks
) -> tuple[float, float, str]:
    """When the training began and ended, and how that is known."""
    if found.began is not None and found.ended is not None:
        return found.began, min(times[-1], found.ended + 1.0), "stacks"
    at_work = (
        gpu["t"] for gpu in gpus if gpu["index"] in used and (gpu.get("busy") or 0) >= AT_WORK
    )
    if (first := next(at_work, None)) is not None:
        return first, times[-1], "gpu"
    gradients = (at for at, process in _processes_of(ticks) if process.get("backward"))
    if (first := next(gradients, None)) is not None:
        return first, times[-1], "gradients"
    # Importing torch is not training yet, and it is unknown how soon afterwards training starts.
    loaded = (at for at, process in _processes_of(ticks) if process.get("torch"))
    start = next(loaded, times[0])
    return start + min(WARM_S, WARM_SHARE * (times[-1] - start)), times[-1], ""


def _gpu(fixed: Line, gpus: list[Line]) -> GpuFigures:
    series = partial(_series, gpus, fixed["index"])
    reasons = [int(value) for value in series("throttle")]
    memory = series("memory")
    # Throughput comes in KB/s; the link may rest at a lower generation than it can.
    ways = [1000 * statistics.fmean(way) for name in ("rx", "tx") if (way := series(name))]
    link = LANE_GB_S.get(fixed.get("generation") or 0, 0.0) * (fixed.get("width") or 0) * 1e9
    return GpuFigures(
        index=fixed["index"],
        name=fixed.get("name"),
        busy=_mean(series("busy"), 100),
        memory=_mean([max(memory)] if memory else (), fixed.get("memory_total")),
        power=_mean(series("power"), fixed.get("power_limit")),
        capped=_mean([bool(reason & POWER_CAP) for reason in reasons]),
        hot=_mean([bool(reason & TOO_HOT) for reason in reasons]),
        pcie=_mean([max(ways)] if ways else (), link),
        clock=_mean(series("clock"), fixed.get("clock_max")),
    )


Key = tuple[int, str]
"""A counter's process and thread; "" for one of the whole process."""


def _processes_of(ticks: list[Line]) -> Iterator[tuple[float, Line]]:
    return ((tick["t"], process) for tick in ticks for process in tick["procs"])


def _growth(ticks: list[Line], name: str) -> dict[Key, tuple[float, float, int]]:
    """When a counter was first and last seen, and by how much it grew."""
    seen = defaultdict(list)
    for at, process in _processes_of(ticks):
        value = process.get(name)
        for thread, count in (value if isinstance(value, dict) else {"": value}).items():
            if count is not None:
                seen[process["pid"], thread].append((at, count))
    ends = ((key, counts[0], counts[-1]) for key, counts in seen.items())
    return {key: (first, last, late - early) for key, (first, early), (last, late) in ends}


def _of_processes(ticks: list[Line], gpus: list[Line], host: Line) -> Line:
    """The figures of the processes, by their fields."""
    hz = host.get("ticks") or 100

    def rates(name: str, unit: float) -> dict[Key, float]:
        """By how much each counter grew in a second of its life."""
        return {
            key: grown / (last - first) / unit
            for key, (first, last, grown) in _growth(ticks, name).items()
            if last > first
        }

    def total(name: str, unit: float = 1.0) -> Amount:
        """By how much a counter of all processes grew in a second of the samples."""
        firsts, lasts, grown = zip(*_growth(ticks, name).values() or [(0.0, 0.0, 0)], strict=True)
        seconds = max(lasts) - min(firsts)
        return sum(grown) / seconds / unit if seconds > 0 else None

    def of(pids: set[int], name: str, unit: float) -> list[float]:
        """The rates of some processes."""
        return [rate for (pid, _), rate in rates(name, unit).items() if pid in pids]

    latest = {process["pid"]: process for _, process in _processes_of(ticks)}
    workers = {pid for pid, process in latest.items() if process["worker"]}
    spent = {pid: grown for (pid, _), (*_, grown) in _growth(ticks, "ticks").items()}
    mains = _mains(latest, workers, spent, gpus)
    main_cores = of(mains, "ticks", hz)
    threads = {key: rate for key, rate in rates("busy", hz).items() if key[0] in mains}
    waits = rates("delays", 1e9)
    busiest = max(threads, key=lambda key: threads[key] + waits.get(key, 0.0), default=(0, ""))
    cores = total("ticks", hz)
    machine, periods, throttled = (
        [tick[name] for tick in ticks if tick.get(name) is not None]
        for name in ("machine", "periods", "throttled")
    )
    seen = [tick["t"] for tick in ticks if tick.get("machine") is not None]
    every = (machine[-1] - machine[0]) / hz / (seen[-1] - seen[0]) if len(seen) > 1 else None
    asleep = [
        any(word in process.get("wchan", "") for word in SOURCES)
        for some in (tick["procs"] for tick in ticks)
        for process in some
        if process["worker"]
    ]
    at_once = [tick["procs"] for tick in ticks]
    stuck = [
        any(process["state"] == "D" and process["pid"] in mains | workers for process in some)
        for some in at_once
    ]
    return {
        "processes": max(map(len, at_once)),
        "cores": cores,
        "others": None if every is None or cores is None else max(0.0, every - cores),
        "throttled": _mean([throttled[-1] - throttled[0]], periods[-1] - periods[0])
        if periods and throttled
        else None,
        "workers_asleep": _mean(asleep),
        "one_thread": any(latest[pid].get("omp") == 1 for pid in mains),
        "ranks": len(mains),
        "main_cores": sum(main_cores) if main_cores else None,
        "main_thread": threads.get(busiest),
        "main_thread_wait": waits.get(busiest),
        "workers": round(statistics.median(_sum(some, "worker") for some in at_once)),
        "workers_cpu": _mean(of(workers, "ticks", hz)),
        "workers_wait": _mean(of(workers, "delay", 1e9)),
        "waiting": _mean(stuck),
        "read_mb_s": total("read_bytes", 1e6),
        "asked_mb_s": total("rchar", 1e6),
        "major_faults_s": total("major"),
        "switches_s": total("switches"),
        "rss_bytes": max(_sum(some, "rss") for some in at_once) * (host.get("page") or 4096),
    }


def _sum(processes: list[Line], name: str) -> int:
    return sum(process[name] for process in processes)


def _mains(
    latest: dict[int, Line], workers: set[int], spent: dict[int, int], gpus: list[Line]
) -> set[int]:
    """The processes that train: those on a GPU, else those with workers, else the busiest."""
    own = {pid for pid in latest.keys() - workers if not latest[pid].get("helper")}
    on_gpu = {pid for gpu in gpus for pid in gpu.get("pids") or ()}
    with_workers = {latest[pid]["ppid"] for pid in workers}
    busiest = max(own & spent.keys(), key=lambda pid: (spent[pid], -pid), default=None)
    return own & on_gpu or own & with_workers or own & {busiest}


# --- the judgement --------------------------------------------------------------------------------

UNKNOWN, CAP, ONE_THREAD = "not known", "power or thermal cap", "one thread of the main process"
DATA, STORAGE, DISK = "data loading", "storage or network", "disk reads"
FEW_CORES, SHARED = "too few cores", "other programs on the CPU"
SYNC, PYTHON, PREPARING = "GPU synchronization", "Python code", "work between the steps"
WAITING, COMPUTING, RANKS = "waiting between the steps", "CPU computation", "other ranks"
BUSY = 0.85
"""From so much on a GPU is not said to wait."""
FULL_CORE, FULL_THREAD = 0.8, 0.85
WAITS, CAPPED, HOT, FULL_MEMORY, FULL_LINK, FULL_SHM = 0.25, 0.5, 0.25, 0.95, 0.5, 0.9
CROWDED = 0.2
STARVED, THROTTLED, OTHERS = 0.35, 0.25, 0.2
"""Of the time on a core that was asked for, the share not given; of the periods of a quota; of the
cores, what others use."""
LEAST_LOOKS, MOST_TIME = 6, 0.3
"""So many looks at stacks, and so large a share of one kind, make a judgement."""
NATIVE = 0.5
"""Cores of a process whose thread of Python waits, from which on its other threads compute."""
UNUSED = 0.02
"""A GPU that is less busy is not used."""


class Setting(Struct, frozen=True):
    """Something to try, and the recipe that shows it (a path of the project's repository)."""

    text: str
    recipe: OptStr = None


class Starved(Struct, frozen=True, kw_only=True):
    """The judgement. evidence: figures as sentences. line: of the user's code, what costs the time.
    likely: where no GPU figure decides, what the processes point to. notes: what must be known of
    the judgement.
    """

    by: str
    why: str
    evidence: Strings
    settings: tuple[Setting, ...] = ()
    likely: OptStr = None
    notes: Strings = ()
    line: Where | None = None


class Tip(Struct, frozen=True, kw_only=True):
    """What to try in one situation, and why this is the cause there. recipe: see Setting."""

    why: str
    text: str
    when: str = ""
    recipe: OptStr = None


class Cause(Struct, frozen=True):
    """What can hold a training back, and what to try in each situation."""

    name: str
    tips: tuple[Tip, ...]


CAUSES = {cause.name: cause for cause in table("causes", Cause)}


class Verdict(Struct, frozen=True):
    """The name of a cause, the situation, and the kind of stacks whose line is meant.

    host: it holds whatever the GPU does.
    """

    cause: str
    when: str = ""
    kind: str = ""
    host: bool = False

    @property
    def tip(self) -> Tip:
        return next(tip for tip in CAUSES[self.cause].tips if tip.when == self.when)


def judge(figures: Figures) -> Starved:
    """What starves the GPU of this training, or the training itself where it uses none."""
    busy, found = _busy(figures), figures.stacks
    verdict = None
    by, likely = UNKNOWN, None
    if figures.ticks < LEAST_TICKS or figures.judged_s < LEAST_S:
        why = "the script ended too soon to be measured"
        if figures.began_by == "stacks":
            why = "the training ended too soon to be measured"
        if figures.no_process_figures and figures.no_gpu_figures:
            why = "neither the processes nor the GPU can be monitored on this system"
    elif not found.seen and found.all_looks >= LEAST_LOOKS and not (busy and busy >= BUSY):
        why = "the script has not trained: no optimizer step or backward pass was seen"
    else:
        verdict = _verdict(figures, busy)
        decided = busy is not None or (verdict is not None and verdict.host)
        if decided:
            verdict = verdict or Verdict(UNKNOWN)
            by, why = verdict.cause, verdict.tip.why
        else:
            why = "GPU utilization is unknown"
            if figures.no_gpu_figures and not figures.gpus_by:
                why += f" ({figures.no_gpu_figures})"
            likely = verdict.cause if verdict else None
    return Starved(
        by=by,
        why=why,
        evidence=tuple(_evidence(figures)),
        settings=(Setting(verdict.tip.text, verdict.tip.recipe),) if verdict else (),
        likely=likely,
        notes=_notes(figures),
        line=_line(found, verdict),
    )


def _line(found: Stacks, verdict: Verdict | None) -> Where | None:
    """The line of the verdict; where it has none, the one at which the main thread is most."""
    if verdict and verdict.kind in found.lines:
        return found.lines[verdict.kind]
    if found.lines:
        return found.lines.get(max(found.lines, key=lambda kind: found.shares.get(kind, 0.0)))
    return found.busiest


def _busy(figures: Figures) -> Amount:
    """Of several GPUs the one that waits most: all wait for it at every step."""
    known = [gpu.busy for gpu in figures.gpus if gpu.busy is not None]
    if figures.gpus_by == "all":  # which of them it uses is not known: idle ones do not count
        known = [busy for busy in known if busy > 0.05] or known
    return min(known, default=None)


def _on_gpu(figures: Figures) -> bool | None:
    """Whether it trains on a GPU; None where nothing says so."""
    if figures.cuda or any((gpu.busy or 0) > UNUSED for gpu in figures.gpus):
        return True
    return figures.cuda


def _verdict(figures: Figures, busy: Amount) -> Verdict | None:
    """What is at its limit, by the surest sign; of the processes alone where no GPU is known."""

    def gpus(name: str, least: float) -> bool:
        return busy is not None and any((getattr(gpu, name) or 0) >= least for gpu in figures.gpus)

    if busy is not None and busy >= BUSY:
        if gpus("hot", HOT) or gpus("capped", CAPPED):
            return Verdict(CAP)
        full = "memory nearly full" if gpus("memory", FULL_MEMORY) else "not starved"
        return Verdict(full)
    return (
        _crowded(figures)
        or _loading(figures)
        or (Verdict("PCIe transfers") if gpus("pcie", FULL_LINK) else None)
        or (Verdict(CAP) if gpus("hot", HOT) else None)
        or _computing(figures)
    )


def _crowded(figures: Figures) -> Verdict | None:
    """Whether it waits for a core: what it does on a core cannot be the reason then."""
    main = (figures.main_thread or 0.0, figures.main_thread_wait or 0.0)
    loaders = (figures.workers_cpu or 0.0, figures.workers_wait or 0.0)
    by_workers = _waits_for_workers(figures)
    ran, waited = loaders if by_workers else main
    demand = ran + waited
    idle = ("sync", "wait", "load-wait", "ranks", *(() if by_workers else ("workers",)))
    asleep = sum(figures.stacks.shares.get(kind, 0.0) for kind in idle)
    if waited < max(CROWDED, STARVED * demand, asleep):
        return None
    host = figures.stacks.seen != "" or not _on_gpu(figures)
    kind = "workers" if by_workers else ""
    if figures.quota and (figures.throttled or 0.0) >= THROTTLED:
        return Verdict(FEW_CORES, "quota", kind, host)
    others = figures.others or 0.0
    if figures.cpus and others >= max(OTHERS * figures.cpus, (figures.cores or 0.0) / 2):
        return Verdict(SHARED, "", kind, host)
    if by_workers:  # more cores would help, and so would less work
        return None
    return Verdict(FEW_CORES, "ranks" if (figures.ranks or 1) > 1 else "", kind, host)


def _waits_for_workers(figures: Figures) -> bool:
    found = figures.stacks
    if found.looks >= LEAST_LOOKS:
        return found.shares.get("workers", 0.0) >= MOST_TIME
    thread = (figures.main_thread or 0.0) + (figures.main_thread_wait or 0.0)
    loaders = (figures.workers_cpu or 0.0) + (figures.workers_wait or 0.0)
    return bool(figures.workers) and loaders > thread


def _loading(figures: Figures) -> Verdict | None:
    """Whether it waits for data."""
    found, disk = figures.stacks, (figures.waiting or 0.0) >= WAITS
    cpus = figures.quota or figures.cpus or 1
    loaders = (figures.workers_cpu or 0.0) + (figures.workers_wait or 0.0)
    full = (figures.workers or 0) >= cpus or (figures.cores or 0.0) >= FULL_THREAD * cpus
    if found.looks < LEAST_LOOKS:
        if disk:
            return Verdict(DISK, "workers" if figures.workers else "")
        if figures.workers and loaders >= FULL_CORE:
            return Verdict(DATA, "full" if full else "workers")
        slow = figures.workers and (figures.workers_asleep or 0.0) >= 0.5
        return Verdict(STORAGE, "workers") if slow else None
    kinds = ("workers", "start", "load", "load-wait")
    shares = {kind: found.shares.get(kind, 0.0) for kind in kinds}
    rest = [share for kind, share in found.shares.items() if kind not in kinds]
    if sum(shares.values()) < max([MOST_TIME, *rest]):
        return None
    kind = max(shares, key=lambda name: shares[name])
    if kind == "start":
        return Verdict(DATA, "start", kind, host=True)
    if kind == "workers":
        busy = found.loading_busy if found.worker_looks >= LEAST_LOOKS else loaders
        if busy is not None and busy >= 0.5:
            return Verdict(DATA, "full" if full else "workers", kind, host=True)
        return Verdict(DISK if disk else STORAGE, "workers", kind, host=True)
    if shares["load"] >= shares["load-wait"]:
        return Verdict(DATA, "", "load", host=True)
    return Verdict(DISK if disk else STORAGE, "", "load-wait", host=True)


def _computing(figures: Figures) -> Verdict | None:
    """What the process that trains does itself."""
    found, on_gpu = figures.stacks, _on_gpu(figures)
    thread, waited = figures.main_thread or 0.0, figures.main_thread_wait or 0.0
    # What it had no core for does not count against it.
    full = thread >= FULL_THREAD * (1 - min(waited, STARVED))
    kind, share, seen_as = _main_kind(figures)
    if found.looks < LEAST_LOOKS or share < MOST_TIME:
        return Verdict(ONE_THREAD, "workers" if figures.workers else "") if full else None
    if kind == "torch" and on_gpu is False:
        return Verdict(COMPUTING, _place(figures), seen_as, host=True)
    if kind == "torch":
        # Gradients are computed in threads of their own: no single thread is busy all the time.
        full = full or (figures.main_cores or 0.0) >= FULL_THREAD * (figures.ranks or 1)
        when = "optimizer" if found.optimizer >= MOST_TIME else "launches"
        return Verdict(ONE_THREAD, when, seen_as) if full or on_gpu is None else None
    if kind == "wait" and (figures.waiting or 0.0) >= WAITS:
        return Verdict(DISK, "", seen_as, host=True)
    return {
        "sync": Verdict(SYNC, "", seen_as),
        "copy": Verdict(SYNC, "copy", seen_as),
        "python": Verdict(PYTHON, "", seen_as, host=True),
        "library": Verdict(PREPARING, "", seen_as, host=True),
        "wait": Verdict(WAITING, "", seen_as, host=True),
        "ranks": Verdict(RANKS, "", seen_as, host=True),
    }.get(kind)


def _main_kind(figures: Figures) -> tuple[str, float, str]:
    """What the main thread does most, its share, and the kind of stacks that it was mostly seen as.

    On a CPU there is nothing to copy or to wait for: such a line computes. An operation that waits
    there does so for its threads, or for the gradients of other ranks. A thread that waits while
    its process computes has called a library with threads of its own.
    """
    found, ranks, on_cpu = figures.stacks, figures.ranks or 1, _on_gpu(figures) is False
    meant = {"torch-wait": "ranks" if ranks > 1 and on_cpu else "torch"}
    if on_cpu:
        meant |= {"sync": "torch", "copy": "torch"}
    if (figures.main_cores or 0.0) / ranks >= NATIVE and (line := found.lines.get("wait")):
        meant["wait"] = "torch" if line.calls in (None, "torch") else "library"
    shares: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for kind, share in found.shares.items():
        shares[meant.get(kind, kind)].append((share, kind))
    sums = {kind: sum(share for share, _ in parts) for kind, parts in shares.items()}
    most = max(sums, key=lambda kind: sums[kind], default="")
    return most, sums.get(most, 0.0), max(shares[most], default=(0.0, ""))[1]


def _place(figures: Figures) -> str:
    """The situation of a training on the CPU."""
    if figures.gpus_by:
        return "gpu"
    cpus = figures.quota or figures.cpus or 1
    return "one thread" if figures.one_thread and cpus >= 2 * (figures.ranks or 1) else ""


# --- evidence ----------------------------------------------------------------------------------

OF_GPU = (
    ("busy", 0, "busy {:.0%} of the time"),
    ("memory", 0, "up to {:.0%} of memory used"),
    ("power", 0, "power at {:.0%} of its limit"),
    ("pcie", 0, "PCIe at {:.0%} of the link's capacity"),
    ("capped", 1e-9, "at its power limit {:.0%} of the time"),
    ("hot", 1e-9, "slowed by heat or a power brake {:.0%} of the time"),
)
OF_ALL = (
    ("waiting", 0.01, "waiting for disk: {:.0%} of the time"),
    ("read_mb_s", 0.1, "read from disks: {:.1f} MB/s"),
    ("major_faults_s", 1, "pages read back from disk (major faults): {:.0f} per second"),
    ("shm", 0.01, "/dev/shm: up to {:.0%} used"),
)
"""Figures, from how much on they are shown, and how."""
SHOWN = 0.1
KINDS = {
    "workers": "waiting for DataLoader workers",
    "start": "starting DataLoader workers",
    "load": "loading data itself",
    "load-wait": "waiting for data that it loads itself",
    "sync": "at lines that wait for the GPU",
    "copy": "copying to the GPU",
    "python": "in Python code",
    "library": "in other libraries",
    "wait": "waiting for something else",
    "ranks": "waiting for other ranks",
    "torch": "in torch operations",
    "torch-wait": "waiting in torch operations",
}


def _evidence(figures: Figures) -> Iterator[str]:
    for gpu in figures.gpus:
        yield from (f"GPU {gpu.index}: {text}" for text in _shown(gpu, OF_GPU))
    if figures.workers:
        share = f", each at {_of_a_core(figures.workers_cpu, figures.workers_wait)}"
        each = share if figures.workers_cpu is not None else ""
        yield f"DataLoader workers: {figures.workers}{each}"
    elif figures.workers == 0:
        yield "DataLoader workers: none found"
    if figures.main_thread is not None:
        share = _of_a_core(figures.main_thread, figures.main_thread_wait)
        yield f"busiest thread of the training process: {share}"
    if figures.cores is not None and figures.cpus:
        yield f"all processes: {figures.cores:.1f} of {figures.cpus} CPUs"
    if figures.others is not None and figures.cpus and figures.others >= OTHERS * figures.cpus:
        yield f"other programs: {figures.others:.1f} of {figures.cpus} CPUs"
    if figures.quota:
        yield f"CPU limit of the container or job: {figures.quota:.1f} CPUs"
    yield from _shown(figures, OF_ALL)
    for kind, part in sorted(figures.stacks.shares.items(), key=lambda pair: -pair[1]):
        if part >= SHOWN:
            yield f"main thread: {part:.0%} of the training time {KINDS[kind]}"


def _shown(figures: Figures | GpuFigures, rows: Iterable[tuple[str, float, str]]) -> Iterator[str]:
    for name, least, text in rows:
        value = getattr(figures, name)
        if value is not None and value >= least:
            yield text.format(value)


def _of_a_core(ran: Amount, waited: Amount) -> str:
    waits = f", plus {100 * waited:.0f}% waiting for a core" if waited and waited >= 0.05 else ""
    return f"{100 * (ran or 0):.0f}% of a core{waits}"


def _notes(figures: Figures) -> Strings:
    no_gpus, no_processes = figures.no_gpu_figures, figures.no_process_figures
    waits = max(figures.workers_wait or 0, figures.main_thread_wait or 0)
    found = figures.stacks
    guess = "when the training began could not be seen, so the first part of the run was left out"
    trains = figures.torch is not False
    rows = (
        (not trains, "the script did not load torch while it was measured"),
        (trains and not figures.began_by and not found.all_looks and figures.judged_s, guess),
        (no_gpus, f"GPU utilization is unknown: {no_gpus}"),
        (no_processes, f"per-process usage is unknown: {no_processes}"),
        (
            figures.gpus_by == "all",
            "could not determine which GPUs the script used, so all GPUs are shown",
        ),
        (
            any(gpu.busy is not None for gpu in figures.gpus),
            '"busy" means that a kernel was running, not that the kernel used the whole GPU',
        ),
        (
            waits >= CROWDED,
            "there were more runnable threads than cores",
        ),
        (
            (figures.shm or 0) >= FULL_SHM,
            "/dev/shm is nearly full; DataLoader workers are killed when it runs out of space",
        ),
    )
    return tuple(text for applies, text in rows if applies)


# --- how it is shown ------------------------------------------------------------------------------


class ScriptReport(Struct, frozen=True, kw_only=True):
    """All that is shown, schema 1: fields may be added, none change or go.

    code: the script's exit code, None while it runs on. stopped: --stop. no_stacks: why the line
    of the script is not known; remedy: the command that changes this.
    """

    schema: Literal[1] = 1
    figures: Figures
    starved: Starved
    code: OptInt = None
    stopped: bool = False
    no_stacks: str = ""
    remedy: OptStr = None

    @property
    def headline(self) -> str:
        """The judgement in a line."""
        by, likely = self.starved.by, self.starved.likely
        known = "the GPU is well utilized" if by == "not starved" else f"bottleneck: {by}"
        text = "bottleneck unknown" if by == UNKNOWN else known
        points = f"; the process data points to {likely}" if likely else ""
        return f"{text}, because {self.starved.why}{points}"


def rows(report: ScriptReport) -> Iterator[Row]:
    """For how long it was sampled, what became of the script, and what was found."""
    yield Row("verdict", report.headline, "bold")
    if line := report.starved.line:
        yield Row("line", f"{line.file}:{line.line} in {line.function}", COPIED)
        if line.code:
            yield Row("", f"  {line.code[:MOST_CODE]}", COPIED)
    for setting in report.starved.settings:
        yield Row("try", setting.text)
        if setting.recipe:
            yield Row("", setting.recipe, COPIED)
    how = "; the script is still running"
    if report.code is not None:
        how = f", until the script ended (exit code {report.code})"
    elif report.stopped:
        how = ", then the script was stopped"
    yield Row("measured", f"{report.figures.seconds:.0f} s{how}")
    if report.figures.began_by and report.figures.seconds - report.figures.judged_s >= 1:
        yield Row("", f"the training part of it: {report.figures.judged_s:.0f} s")
    yield from (Row("evidence", text) for text in report.starved.evidence)
    yield from (Row("note", text) for text in report.starved.notes)
    if report.no_stacks:
        yield Row("note", report.no_stacks)
        if report.remedy:
            yield Row("", report.remedy, COPIED)


def markdown(report: ScriptReport, say: Language = ENGLISH) -> str:
    """For an issue."""
    rest = [row for row in rows(report) if row.label != "verdict"]
    headline = escaped(say.spoken(report.headline))
    return "\n".join([f"**{headline}**", "", *bullets(rest, say)]) + "\n"

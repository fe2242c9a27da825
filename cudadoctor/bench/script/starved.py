"""What starves the GPU of a training: samples, figures of them, a judgement, its page. Pure.

What cannot be told stays "not known"; without figures of a GPU it is never told, only what the
processes did.
"""

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from cudadoctor.bench.page import COPIED, Row, bullets
from cudadoctor.bench.techniques import table
from cudadoctor.render.markdown import escaped

LEAST_TICKS, LEAST_S = 4, 1.5
WARM_S, WARM_SHARE = 10.0, 0.25
"""What is left out at the beginning where no GPU tells when the training began."""
AT_WORK = 10
"""Per cent: a GPU that is busier trains."""
POWER_CAP = 0x4
TOO_HOT = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of NVML: the power limit; hardware slowdown, heat by software and hardware, power brake."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""What a lane of each PCIe generation can carry one way, in GB/s."""

Line = dict[str, Any]


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU while it was used; shares are of 1, None not known.

    busy: share of the time in which any kernel ran. memory: largest share in use. power: mean
    share of its limit. capped, hot: share of the samples at the power limit, and slowed by heat or
    a brake. pcie: mean share of what its link can carry, of the busier direction. clock: mean share
    of its highest clock.
    """

    index: int
    name: str | None = None
    busy: float | None = None
    memory: float | None = None
    power: float | None = None
    capped: float | None = None
    hot: float | None = None
    pcie: float | None = None
    clock: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples come to.

    seconds: how long was sampled; judged_s: without the start. gpus: those that the script used.
    gpus_by: how that was told: "processes", "memory" (its use grew), "only one" or "all".
    no_gpu_figures: why nothing of a GPU is known, "" where it is; no_process_figures: likewise.
    main_cores: cores that the training processes used; main_thread: share of a core of the busiest
    thread, main_thread_wait: share of the time in which it could have run and had no core.
    workers: loader processes at once; workers_cpu, workers_wait: the mean of each, likewise.
    waiting: share of the samples in which one of the training or loading processes waited for a
    disk (state D). read_mb_s: from disks, asked_mb_s: also from memory. major_faults_s: pages that
    had to be read. cores: of all processes; cpus: allotted. shm: largest share of /dev/shm.
    """

    seconds: float
    judged_s: float
    ticks: int
    cpus: int | None = None
    gpus: tuple[GpuFigures, ...] = ()
    gpus_by: str = ""
    no_gpu_figures: str = ""
    no_process_figures: str = ""
    processes: int | None = None
    cores: float | None = None
    main_cores: float | None = None
    main_thread: float | None = None
    main_thread_wait: float | None = None
    workers: int | None = None
    workers_cpu: float | None = None
    workers_wait: float | None = None
    waiting: float | None = None
    read_mb_s: float | None = None
    asked_mb_s: float | None = None
    major_faults_s: float | None = None
    switches_s: float | None = None
    rss_bytes: int | None = None
    shm: float | None = None
    sampler_s: float | None = None


def parsed(lines: Iterable[str | bytes]) -> list[Line]:
    """The lines that are whole; one that was cut off is left out."""
    found = []
    for line in lines:
        try:
            one = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(one, dict) and "kind" in one:
            found.append(one)
    return found


def figures(lines: list[Line]) -> Figures:
    """All figures; what too few samples tell stays None."""
    host = next((one for one in lines if one["kind"] == "host"), {})
    ticks = [one for one in lines if one["kind"] == "procs"]
    busy = [one for one in lines if one["kind"] == "busy"]
    every = sorted(one["t"] for one in (*ticks, *busy))
    seconds = every[-1] - every[0] if every else 0.0
    pids = {process["pid"] for tick in ticks for process in tick["procs"]}
    used, told_by = _used(busy, pids)
    begin = _began(busy, used, every)
    kept = [one for one in ticks if one["t"] >= begin]
    gpu_ticks = [one for one in busy if one["t"] >= begin]
    judged = max((one["t"] for one in (*kept, *gpu_ticks)), default=begin) - begin
    none = next((one["why"] for one in lines if one["kind"] == "no-gpus"), "")
    if not none and not busy:
        none = "NVML gave no answer while it was sampled"
    fixed: list[Line] = next((one["gpus"] for one in lines if one["kind"] == "gpus"), [])
    first = Figures(
        seconds=seconds,
        judged_s=judged,
        ticks=max(len(kept), len(gpu_ticks)),
        cpus=host.get("cpus"),
        gpus=tuple(_gpu(one, gpu_ticks) for one in fixed if one["index"] in used),
        gpus_by=told_by,
        no_gpu_figures=none,
        no_process_figures="" if host.get("proc", True) else "this system has no /proc",
        shm=max(
            (one["shm"] / one["shm_total"] for one in ticks if one.get("shm_total")), default=None
        ),
        sampler_s=next((one["cpu_s"] for one in lines if one["kind"] == "end"), None),
    )
    if len(kept) < LEAST_TICKS or judged < LEAST_S:
        return first
    mains = _mains(kept, busy)
    return msgspec.structs.replace(first, **_processes(kept, mains, host))


# --- GPUs --------------------------------------------------------------------------------------


def _used(busy: list[Line], pids: set[int]) -> tuple[set[int], str]:
    """The GPUs that the script used. In a container the driver's pids are not ours."""
    if not busy:
        return set(), ""
    ours = {
        gpu["index"] for one in busy for gpu in one["gpus"] if pids & set(gpu.get("pids") or ())
    }
    if ours:
        return ours, "processes"
    every = {gpu["index"] for gpu in busy[0]["gpus"]}
    if len(every) == 1:
        return every, "only one"
    memory = {index: _series(busy, index, "memory") or [0] for index in every}
    grown = {index for index, used in memory.items() if max(used) - used[0] > 64 << 20}
    return (grown, "memory") if grown else (every, "all")


def _series(busy: list[Line], index: int, name: str) -> list[float]:
    """All known values of one figure of one GPU, in order."""
    found = (gpu.get(name) for one in busy for gpu in one["gpus"] if gpu["index"] == index)
    return [value for value in found if value is not None]


def _began(busy: list[Line], used: set[int], every: list[float]) -> float:
    """When the training began: when a GPU of its was first at work, else after a warm-up."""
    if not every:
        return 0.0
    for one in busy:
        if any(gpu["index"] in used and (gpu.get("busy") or 0) >= AT_WORK for gpu in one["gpus"]):
            return float(one["t"])
    return every[0] + min(WARM_S, WARM_SHARE * (every[-1] - every[0]))


def _gpu(fixed: Line, busy: list[Line]) -> GpuFigures:
    index = fixed["index"]
    throttle = [int(value) for value in _series(busy, index, "throttle")]
    total = fixed.get("memory_total")
    most = max(_series(busy, index, "memory"), default=None)
    return GpuFigures(
        index=index,
        name=fixed.get("name"),
        busy=_part(_series(busy, index, "busy"), 100),
        memory=most / total if most is not None and total else None,
        power=_part(_series(busy, index, "power"), fixed.get("power_limit")),
        capped=_share(throttle, POWER_CAP),
        hot=_share(throttle, TOO_HOT),
        pcie=_pcie(fixed, busy),
        clock=_part(_series(busy, index, "clock"), fixed.get("clock_max")),
    )


def _part(values: list[float], of: float | None) -> float | None:
    return statistics.fmean(values) / of if values and of else None


def _share(values: list[int], bits: int) -> float | None:
    return sum(1 for one in values if one & bits) / len(values) if values else None


def _pcie(fixed: Line, busy: list[Line]) -> float | None:
    """Throughput comes in KB/s; the link may rest at a lower generation than it can."""
    lane, width = LANE_GB_S.get(fixed.get("generation") or 0), fixed.get("width")
    ways = [_series(busy, fixed["index"], name) for name in ("rx", "tx")]
    if not lane or not width or not any(ways):
        return None
    most = max(statistics.fmean(one) for one in ways if one)
    return float(most * 1000 / (lane * width * 1e9))


# --- processes ---------------------------------------------------------------------------------


def _counters(ticks: list[Line], name: str) -> dict[tuple[int, str], list[tuple[float, int]]]:
    """A counter over time, by process ("") or by thread."""
    found: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for tick in ticks:
        for process in tick["procs"]:
            value = process.get(name)
            for thread, number in (value if isinstance(value, dict) else {"": value}).items():
                if number is not None:
                    found.setdefault((process["pid"], thread), []).append((tick["t"], number))
    return found


def _rates(ticks: list[Line], name: str) -> dict[tuple[int, str], float]:
    """By how much each counter grew in a second of its life."""
    series = _counters(ticks, name)
    spans = {key: one[-1][0] - one[0][0] for key, one in series.items()}
    return {
        key: (one[-1][1] - one[0][1]) / spans[key] for key, one in series.items() if spans[key] > 0
    }


def _total(ticks: list[Line], name: str) -> float | None:
    """By how much a counter of all processes grew in a second of the samples."""
    series = _counters(ticks, name).values()
    times = [at for one in series for at, _ in one]
    span = max(times) - min(times) if times else 0.0
    return sum(one[-1][1] - one[0][1] for one in series) / span if span > 0 else None


def _mains(ticks: list[Line], busy: list[Line]) -> set[int]:
    """The processes that train: those on a GPU, else those with workers, else the busiest."""
    last = {process["pid"]: process for tick in ticks for process in tick["procs"]}
    own = {pid for pid, one in last.items() if not one["worker"] and not one.get("helper")}
    on_gpu = {pid for one in busy for gpu in one["gpus"] for pid in gpu.get("pids") or ()}
    with_workers = {process["ppid"] for process in last.values() if process["worker"]}
    series = _counters(ticks, "ticks")
    spent = {pid: one[-1][1] - one[0][1] for (pid, _), one in series.items() if pid in own}
    busiest = {max(spent, key=lambda pid: (spent[pid], -pid))} if spent else set[int]()
    return own & on_gpu or own & with_workers or busiest


def _processes(ticks: list[Line], mains: set[int], host: Line) -> dict[str, Any]:
    hz, page = host.get("ticks") or 100, host.get("page") or 4096
    told = {one["pid"]: one["worker"] for tick in ticks for one in tick["procs"]}
    worker_pids = {pid for pid, works in told.items() if works}  # as it was told last
    cpu = {pid: rate / hz for (pid, _), rate in _rates(ticks, "ticks").items()}
    of_workers = [rate for pid, rate in cpu.items() if pid in worker_pids]
    delays = [rate / 1e9 for (pid, _), rate in _rates(ticks, "delay").items() if pid in worker_pids]
    spent = {key: rate / hz for key, rate in _rates(ticks, "busy").items() if key[0] in mains}
    core_waits = {key: rate / 1e9 for key, rate in _rates(ticks, "delays").items()}
    thread = max(spent, key=lambda key: spent[key] + core_waits.get(key, 0.0), default=None)
    total = _total(ticks, "ticks")
    counts = [sum(1 for one in tick["procs"] if one["worker"]) for tick in ticks]
    working = mains | worker_pids
    stuck = [
        any(one["state"] == "D" for one in tick["procs"] if one["pid"] in working) for tick in ticks
    ]
    read, asked = _total(ticks, "read_bytes"), _total(ticks, "rchar")
    memory = max(sum(one["rss"] for one in tick["procs"]) for tick in ticks) * page
    return {
        "processes": max(len(tick["procs"]) for tick in ticks),
        "cores": total / hz if total is not None else None,
        "main_cores": sum(cpu[pid] for pid in mains if pid in cpu) if mains & cpu.keys() else None,
        "main_thread": spent[thread] if thread else None,
        "main_thread_wait": core_waits.get(thread) if thread else None,
        "workers": round(statistics.median(counts)),
        "workers_cpu": statistics.fmean(of_workers) if of_workers else None,
        "workers_wait": statistics.fmean(delays) if delays else None,
        "waiting": sum(stuck) / len(stuck),
        "read_mb_s": read / 1e6 if read is not None else None,
        "asked_mb_s": asked / 1e6 if asked is not None else None,
        "major_faults_s": _total(ticks, "major"),
        "switches_s": _total(ticks, "switches"),
        "rss_bytes": memory,
    }


# --- the judgement --------------------------------------------------------------------------------

ONE_THREAD = "one thread of the main process"
BUSY = 0.85
"""From so much on a GPU is not said to wait."""
FULL_CORE, FULL_THREAD = 0.8, 0.85
WAITS, CAPPED, HOT, FULL_MEMORY, FULL_LINK, FULL_SHM = 0.25, 0.5, 0.25, 0.95, 0.5, 0.9
CROWDED = 0.2


class Setting(msgspec.Struct, frozen=True):
    """Something to try, and the recipe that shows it (a path of the project's repository)."""

    text: str
    recipe: str | None = None


class Starved(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement. evidence: figures as sentences. likely: where no GPU figure decides, what the
    processes point to. notes: what must be known of the judgement.
    """

    by: str
    why: str
    evidence: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    likely: str | None = None
    notes: tuple[str, ...] = ()


class Cause(msgspec.Struct, frozen=True):
    """What can starve a GPU, and what to try first."""

    name: str
    why: str
    settings: tuple[Setting, ...]


CAUSES = {cause.name: cause for cause in table("causes", Cause)}


def judge(figures: Figures) -> Starved:
    """What starves the GPU of this training."""
    evidence = tuple(_evidence(figures))
    notes = tuple(_notes(figures))
    if figures.ticks < LEAST_TICKS or figures.judged_s < LEAST_S:
        why = "the script ended before there were enough samples"
        if figures.no_process_figures and figures.no_gpu_figures:
            why = "neither processes nor a GPU could be sampled on this system"
        return Starved(by="not known", why=why, evidence=evidence, notes=notes)
    busy = _busy(figures)
    if busy is None:
        why = "what the GPU did is not known"
        if figures.no_gpu_figures and not figures.gpus_by:
            why += f" ({figures.no_gpu_figures})"
        likely = _of_processes(figures)
        return Starved(
            by="not known",
            why=why,
            evidence=evidence,
            settings=_settings(likely, figures) if likely else (),
            likely=likely,
            notes=notes,
        )
    hot = _any(figures, "hot", HOT)
    cause: str | None
    if busy >= BUSY:
        cause = "memory nearly full" if _any(figures, "memory", FULL_MEMORY) else "not starved"
        if hot or _any(figures, "capped", CAPPED):
            cause = "power or thermal cap"
    elif (cause := _of_processes(figures, threads=False)) is None:
        if _any(figures, "pcie", FULL_LINK):
            cause = "PCIe transfers"
        else:
            cause = "power or thermal cap" if hot else _of_processes(figures)
    if cause is None:
        why = "the GPU waits, and nothing that was sampled is at its limit"
        profile = Setting("a profile of some steps shows the gaps", "recipes/train/profiling.py")
        return Starved(by="not known", why=why, evidence=evidence, settings=(profile,), notes=notes)
    return Starved(
        by=cause,
        why=CAUSES[cause].why,
        evidence=evidence,
        settings=_settings(cause, figures),
        notes=notes,
    )


def _busy(figures: Figures) -> float | None:
    """Of several GPUs the one that waits most: all wait for it at every step."""
    known = [one.busy for one in figures.gpus if one.busy is not None]
    if figures.gpus_by == "all":  # which of them it uses is not known: idle ones do not count
        known = [one for one in known if one > 0.05] or known
    return min(known) if known else None


def _of_processes(figures: Figures, *, threads: bool = True) -> str | None:
    """What the processes are at the limit of, the surest sign first."""
    if figures.waiting is not None and figures.waiting >= WAITS:
        return "disk reads"
    # What waited for a core would have used it: on a crowded machine nothing reaches 100 %.
    workers = (figures.workers_cpu or 0) + (figures.workers_wait or 0)
    thread = (figures.main_thread or 0) + (figures.main_thread_wait or 0)
    if figures.workers and workers >= FULL_CORE:
        return "data loading"
    if threads and thread >= FULL_THREAD:
        return ONE_THREAD
    return None


def _any(figures: Figures, name: str, least: float) -> bool:
    return any((getattr(one, name) or 0) >= least for one in figures.gpus)


def _settings(cause: str, figures: Figures) -> tuple[Setting, ...]:
    settings = CAUSES[cause].settings
    full = figures.cpus and figures.workers and figures.workers >= figures.cpus
    # It has workers already, or there is no core left for another.
    first = (cause == ONE_THREAD and figures.workers) or (cause == "data loading" and full)
    return settings[1:] if first else settings


# --- evidence ----------------------------------------------------------------------------------


def _evidence(figures: Figures) -> Iterator[str]:
    for gpu in figures.gpus:
        yield from _of_gpu(gpu)
    if figures.workers:
        share = f", each at {_of_a_core(figures.workers_cpu, figures.workers_wait)}"
        yield f"loader workers: {figures.workers}{share if figures.workers_cpu is not None else ''}"
    elif figures.workers == 0:
        yield "loader workers: none that could be seen"
    if figures.main_thread is not None:
        share = _of_a_core(figures.main_thread, figures.main_thread_wait)
        yield f"busiest thread of the training process: {share}"
    if figures.cores is not None and figures.cpus:
        yield f"all processes: {figures.cores:.1f} of {figures.cpus} CPUs"
    if figures.waiting is not None:
        yield f"waiting for a disk: {_per_cent(figures.waiting)} of the samples"
    if figures.read_mb_s is not None:
        yield f"read from disks: {figures.read_mb_s:.1f} MB/s"
    if figures.major_faults_s is not None and figures.major_faults_s >= 1:
        yield f"pages read back (major faults): {figures.major_faults_s:.0f} a second"
    if figures.shm is not None:
        yield f"/dev/shm in use: at most {_per_cent(figures.shm)}"


def _of_gpu(gpu: GpuFigures) -> Iterator[str]:
    shown = {
        "busy": "a kernel ran in {} of the time",
        "memory": "memory at most {} in use",
        "power": "power {} of its limit",
        "pcie": "PCIe {} of what the link can carry",
        "capped": "at its power limit in {} of the samples",
        "hot": "slowed by heat or a power brake in {} of the samples",
    }
    for name, text in shown.items():
        share = getattr(gpu, name)
        if share is not None and (share or name not in ("capped", "hot")):
            yield f"GPU {gpu.index}: {text.format(_per_cent(share))}"


def _of_a_core(ran: float | None, waited: float | None) -> str:
    text = f"{_per_cent(ran)} of a core"
    return f"{text}, and {_per_cent(waited)} waiting for one" if (waited or 0) >= 0.05 else text


def _per_cent(share: float | None) -> str:
    return f"{100 * (share or 0):.0f} %"


def _notes(figures: Figures) -> Iterator[str]:
    if figures.no_gpu_figures:
        yield f"GPU figures are not known: {figures.no_gpu_figures}"
    if figures.no_process_figures:
        yield f"what the processes did is not known: {figures.no_process_figures}"
    if figures.gpus_by == "all":
        yield "which GPUs the script used could not be told: all of them are shown"
    if any(one.busy is not None for one in figures.gpus):
        yield "busy means that some kernel ran, not that it filled the GPU"
    if max(figures.workers_wait or 0, figures.main_thread_wait or 0) >= CROWDED:
        yield "cores were taken by more threads than there are cores, of the script or of others"
    if figures.shm is not None and figures.shm >= FULL_SHM:
        yield "/dev/shm is nearly full: loader workers that find no room there are killed"


# --- how it is shown ------------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown. code: the script's exit code, None while it runs on. stopped: --stop."""

    figures: Figures
    starved: Starved
    code: int | None = None
    stopped: bool = False


def headline(found: Starved) -> str:
    """The judgement in a line."""
    if found.by == "not starved":
        return f"not starved: {found.why}"
    if found.by != "not known":
        return f"starved by {found.by}: {found.why}"
    text = f"what starves the GPU is not known: {found.why}"
    return text + (f"; the processes point to {found.likely}" if found.likely else "")


def rows(told: Told) -> Iterator[Row]:
    """For how long it was sampled, what became of the script, and what was found."""
    how = f"to the end of the script (exit code {told.code})"
    if told.code is None:
        how = "then the script is ended" if told.stopped else "the script runs on"
    between = ";" if told.code is None and not told.stopped else ","
    yield Row("sampled", f"{told.figures.seconds:.0f} s{between} {how}")
    yield Row("verdict", headline(told.starved))
    yield from (Row("seen", text) for text in told.starved.evidence)
    for setting in told.starved.settings:
        yield Row("try", setting.text)
        if setting.recipe:
            yield Row("", setting.recipe, COPIED)
    yield from (Row("note", text) for text in told.starved.notes)


def markdown(told: Told) -> str:
    """For an issue."""
    rest = [row for row in rows(told) if row.label != "verdict"]
    return "\n".join([f"**{escaped(headline(told.starved))}**", "", *bullets(rest)]) + "\n"


def dumps(told: Told) -> str:
    """Schema 1: fields may be added, none change or go."""
    document = {"schema": 1, **msgspec.to_builtins(told)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"

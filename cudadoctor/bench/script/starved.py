"""What starves the GPU, from the figures of a training, and which settings to try. Pure.

What cannot be told stays "not known"; without figures of a GPU it is never told, only what the
processes did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from cudadoctor.bench.script.samples import LEAST_S, LEAST_TICKS, Figures, GpuFigures

Cause = Literal[
    "data loading",
    "disk reads",
    "one thread of the main process",
    "PCIe transfers",
    "power or thermal cap",
    "memory nearly full",
    "not starved",
    "not known",
]

ONE_THREAD: Cause = "one thread of the main process"

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

    by: Cause
    why: str
    evidence: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    likely: Cause | None = None
    notes: tuple[str, ...] = ()


_WHY: dict[Cause, str] = {
    "data loading": "the loader workers are at the limit of their cores while the GPU waits",
    "disk reads": "processes wait for reads from a disk while the GPU waits",
    "one thread of the main process": "one thread of the training process is at the limit of its "
    "core (starting kernels, or loading data itself) while the GPU waits",
    "PCIe transfers": "the link between CPU and GPU carries much of what it can while the GPU "
    "computes little",
    "power or thermal cap": "the GPU holds its clock down",
    "memory nearly full": "the GPU is busy, and its memory leaves no room for a larger batch",
    "not starved": "the GPU is busy nearly all the time",
}
_RECIPES: dict[Cause, tuple[tuple[str, str | None], ...]] = {
    "data loading": (
        ("more num_workers in the DataLoader, while there are cores for them", "dataloader"),
        ("persistent_workers=True and a larger prefetch_factor", "dataloader"),
        ("keep decoded or preprocessed samples in memory", "cached_data"),
        ("decode smaller images, or move the augmentation to the GPU", None),
    ),
    "disk reads": (
        ("keep preprocessed samples in memory", "cached_data"),
        ("more num_workers, so that reads go on beside each other", "dataloader"),
        ("fewer and larger files, on a disk of this machine", None),
    ),
    "one thread of the main process": (
        ("load the data in workers, where the main process does it now", "dataloader"),
        ("a larger batch, so that each kernel does more", "largest_batch"),
        ("torch.compile", "torch_compile"),
        ("CUDA graphs, where shapes are fixed", "cuda_graphs"),
        ("the fused optimiser", "fused_optimizers"),
        (
            "no .item(), .cpu() or print of a tensor at every step: a profile shows them",
            "profiling",
        ),
    ),
    "PCIe transfers": (
        ("pinned memory and copies that do not wait", "prefetch"),
        ("send bytes and make floats of them on the GPU", None),
        ("keep on the GPU what is sent at every step", None),
    ),
    "power or thermal cap": (
        ("look at the reason: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE", None),
        ("better cooling, or a higher power limit where the machine allows it", None),
        ("less work a step: mixed precision", "amp_bf16"),
    ),
    "memory nearly full": (
        ("mixed precision", "amp_bf16"),
        (
            "activation checkpointing, and a larger batch with the room that it leaves",
            "activation_checkpointing",
        ),
        ("gradient accumulation for a larger batch", "gradient_accumulation"),
    ),
    "not starved": (
        ("mixed precision", "amp_bf16"),
        ("TF32 for fp32 matrix products", "tf32"),
        ("torch.compile", "torch_compile"),
        ("measure them on this machine: cudadoctor bench", None),
    ),
}


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
        return _without_gpu(figures, evidence, notes)
    cause: Cause | None = _of_a_busy_gpu(figures) if busy >= BUSY else _of_a_waiting_gpu(figures)
    if cause is None:
        why = "the GPU waits, and nothing that was sampled is at its limit"
        profile = Setting("a profile of some steps shows the gaps", _path("profiling"))
        return Starved(by="not known", why=why, evidence=evidence, settings=(profile,), notes=notes)
    return Starved(
        by=cause,
        why=_WHY[cause],
        evidence=evidence,
        settings=_settings(cause, figures),
        notes=notes,
    )


def _without_gpu(figures: Figures, evidence: tuple[str, ...], notes: tuple[str, ...]) -> Starved:
    likely = _of_processes(figures)
    why = "what the GPU did is not known"
    if figures.gpus_by == "":
        why += f" ({figures.no_gpu_figures})" if figures.no_gpu_figures else ""
    settings = _settings(likely, figures) if likely else ()
    return Starved(
        by="not known", why=why, evidence=evidence, settings=settings, likely=likely, notes=notes
    )


def _busy(figures: Figures) -> float | None:
    """Of several GPUs the one that waits most: all wait for it at every step."""
    known = [one.busy for one in figures.gpus if one.busy is not None]
    if figures.gpus_by == "all":  # which of them it uses is not known: idle ones do not count
        known = [one for one in known if one > 0.05] or known
    return min(known) if known else None


def _of_a_busy_gpu(figures: Figures) -> Cause:
    if _any(figures, "hot", HOT) or _any(figures, "capped", CAPPED):
        return "power or thermal cap"
    return "memory nearly full" if _any(figures, "memory", FULL_MEMORY) else "not starved"


def _of_a_waiting_gpu(figures: Figures) -> Cause | None:
    if cause := _of_processes(figures, threads=False):
        return cause
    if _any(figures, "pcie", FULL_LINK):
        return "PCIe transfers"
    if _any(figures, "hot", HOT):
        return "power or thermal cap"
    return _of_processes(figures)


def _of_processes(figures: Figures, *, threads: bool = True) -> Cause | None:
    """What the processes are at the limit of, the surest sign first."""
    if figures.waiting is not None and figures.waiting >= WAITS:
        return "disk reads"
    # What waited for a core would have used it: on a crowded machine nothing reaches 100 %.
    workers = (figures.workers_cpu or 0) + (figures.workers_wait or 0)
    thread = (figures.main_thread or 0) + (figures.main_thread_wait or 0)
    if figures.workers and workers >= FULL_CORE:
        return "data loading"
    if threads and thread >= FULL_THREAD:
        return "one thread of the main process"
    return None


def _any(figures: Figures, name: str, least: float) -> bool:
    return any((getattr(one, name) or 0) >= least for one in figures.gpus)


def _settings(cause: Cause, figures: Figures) -> tuple[Setting, ...]:
    rows = list(_RECIPES.get(cause, ()))
    if cause == "one thread of the main process" and figures.workers:
        rows = rows[1:]  # it has workers already
    full = figures.cpus and figures.workers and figures.workers >= figures.cpus
    if cause == "data loading" and full:
        rows = rows[1:]  # there is no core left for another
    return tuple(Setting(text, recipe and _path(recipe)) for text, recipe in rows)


def _path(recipe: str) -> str:
    return f"recipes/train/{recipe}.py"


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
    name = f"GPU {gpu.index}"
    if gpu.busy is not None:
        yield f"{name}: a kernel ran in {_per_cent(gpu.busy)} of the time"
    if gpu.memory is not None:
        yield f"{name}: memory at most {_per_cent(gpu.memory)} in use"
    if gpu.power is not None:
        yield f"{name}: power {_per_cent(gpu.power)} of its limit"
    if gpu.pcie is not None:
        yield f"{name}: PCIe {_per_cent(gpu.pcie)} of what the link can carry"
    if gpu.capped:
        yield f"{name}: at its power limit in {_per_cent(gpu.capped)} of the samples"
    if gpu.hot:
        yield f"{name}: slowed by heat or a power brake in {_per_cent(gpu.hot)} of the samples"


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

"""Do the process's environment, its limits and its job let it use the GPU?"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from cudadoctor.model.findings import (
    ERROR,
    INFO,
    WARNING,
)
from cudadoctor.model.machine import Machine, OptInt, OptStr, Strings
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import by_hand, grant_gpu, unset_variables
from cudadoctor.rules.evidence.signs import (
    SUCCESS,
    cpu_on_purpose,
    cuda_counts,
    cuda_works,
    error_with,
    gpu_present,
    live_gpus,
    named_gpus,
    nvidia_pci,
    torch_fails,
    torch_works,
    variable,
)

_NUMBER = re.compile(r"\s*([+-]?\d{1,18})")
Stop = Literal[
    "", "empty", "negative", "out of range", "unknown", "ambiguous", "twice", "no number"
]


class Visible(Struct, frozen=True, kw_only=True):
    """What remains visible, in the order of the variable. stop: why the list ended early."""

    indexes: tuple[int, ...]
    stop: Stop = ""


def read_visible(value: str, uuids: Strings) -> Visible:
    """The GPUs that a CUDA program sees under this value.

    uuids: one for each device in CUDA's order, "" where it is not known. The list ends at the first
    invalid entry; a device named twice leaves none at all; a number is read as far as it goes
    ("1gpu" is 1); a UUID may be shortened while it stays unique.
    """
    indexes: list[int] = []
    for entry in value.split(","):
        index, stop = _device(entry, uuids)
        if index is None:
            return Visible(indexes=tuple(indexes), stop=stop)
        if index in indexes:
            return Visible(indexes=(), stop="twice")
        indexes.append(index)
    return Visible(indexes=tuple(indexes))


def _device(entry: str, uuids: Strings) -> tuple[OptInt, Stop]:
    entry, number = entry.strip(), _NUMBER.match(entry)
    if not entry:
        return None, "empty"
    if entry.startswith(("GPU-", "MIG-", "<gpu-", "<mig-")):
        return _by_uuid(entry.lower(), uuids)
    if number is None:
        return None, "no number"
    index = int(number[1])
    if 0 <= index < len(uuids):
        return index, ""
    return None, "negative" if index < 0 else "out of range"


def _by_uuid(prefix: str, uuids: Strings) -> tuple[OptInt, Stop]:
    named = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(prefix)]
    if len(named) == 1:
        return named[0], ""
    if uuids == ("",):
        return 0, ""
    return None, "ambiguous" if named else "unknown"


_NAME = "CUDA_VISIBLE_DEVICES"
_NAMED = ("GPU-", "MIG-", "<")
"""How a list of GPUs by their identifiers begins, also in a redacted document."""
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_FAILED = range(805, 811)
"""The driver API's codes for an MPS daemon that is not there, not ready or full."""
_FULL = 0.9
"""A GPU with a larger share of its memory taken has no room for a training step."""
_NONE_SEEN = ("no cuda", "is_available", "invalid device ordinal", "not available")
"""What a report says where a program sees too few GPUs."""
_FILES_WORDS = ("too many open files", "received 0 items of ancdata")
_LEAST_FILES = 1024
_ALLOCATOR_WORDS = ("unrecognized cachingallocator option", "unrecognized key")
_SLOWER = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "memory is asked of the driver each time",
    "CUDA_FORCE_PTX_JIT": "all kernels are compiled anew at the start",
}
_JOB = {
    "slurm": ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE"),
    "lsf": ("LSB_GPU_ALLOC",),
    "pbs": ("PBS_GPUFILE",),
}
_COUNTS = ("SLURM_GPUS", "SLURM_GPUS_ON_NODE")
"""How many GPUs, where the others list which: there a 0 is the first GPU."""
_JOBS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID")


def promised_by_scheduler(m: Machine) -> OptStr:
    """The variable by which a scheduler says that it gave this job GPUs; None if none does."""
    for name in (name for names in _JOB.values() for name in names):
        if variable(m, name) not in (("", "0") if name in _COUNTS else ("",)):
            return name
    return None


def visible(m: Machine) -> Visible | None:
    """What CUDA_VISIBLE_DEVICES leaves; None where it is not set or the GPUs are not known."""
    value = (m.env or {}).get(_NAME)
    if value is None or m.gpus is None:
        return None
    if value.strip().startswith(("MIG-", "<mig-")):
        return read_visible(value, tuple(uuid for gpu in m.gpus for uuid in gpu.mig_devices or ()))
    return read_visible(value, tuple(gpu.uuid or "" for gpu in m.gpus))


def visible_count(m: Machine) -> OptInt:
    """How many GPUs a program of this environment sees."""
    libcuda, left = m.driver.libcuda, visible(m)
    if libcuda.code == SUCCESS and libcuda.count is not None:
        return libcuda.count
    if left is not None:
        return len(left.indexes)
    return None if m.gpus is None else len(live_gpus(m))


@rule(
    "visible-devices-hides-gpu",
    title="CUDA_VISIBLE_DEVICES={value} hides every GPU",
)
def visible_devices_hides_gpu(m: Machine) -> Answer:
    """CUDA shows a program only the GPUs that this variable lists, so torch sees {left} of {all}.

    The list is read from the left and ends at its first invalid entry, silently: "0,7,1" on two
    GPUs leaves GPU 0, a GPU named twice leaves none, and an empty value, -1 or quotes inside the
    value leave none. nvidia-smi ignores the variable and shows every GPU.

    Hiding some GPUs on purpose is normal. In a job of Slurm or Kubernetes the scheduler sets it,
    and the way to more GPUs is to ask for them. Setting it to 0 does not switch a GPU on.
    """
    if m.env is None and torch_works(m):
        return None
    value, present = need(m.env, "env").get(_NAME), gpu_present(m)
    # A pasted report may only write it, and a list that its author gives of the GPUs be shorter.
    missed = named_gpus(m) and (torch_fails(m) or error_with(m, *_NONE_SEEN))
    written = m.look == "report" and not missed
    if value is None or m.gpus == () or present is False or written:
        return None
    if not (value.strip() in ("", "-1") and present):
        need(m.gpus, "gpus")
    left = visible(m) or Visible(indexes=(), stop="empty")
    shown, total = len(left.indexes), len(m.gpus or ()) or 1
    # Numbers, quotes and an empty value leave no doubt; names of GPUs and of MIG instances may.
    named = cuda_counts(m) and value.strip().startswith(_NAMED)
    if shown >= total or (not shown and (torch_works(m) or named)):
        return None
    severity = WARNING if left.stop else INFO  # a list that was cut; a shorter one on purpose
    return Found(
        evidence=(f"env.{_NAME}", "gpus"),
        title="CUDA_VISIBLE_DEVICES={value} shows {left} of {all} GPUs" if shown else None,
        values={"value": value or '""', "left": shown, "all": total},
        severity=INFO if cpu_on_purpose(m) else severity if shown else ERROR,
        remedies=unset_variables(m, _NAME),
    )


@rule("scheduler-no-gpu", title="This {scheduler} job was given no GPU")
def scheduler_no_gpu(m: Machine) -> Answer:
    """The node has GPUs, and the job did not ask for one, so the scheduler keeps them from it.

    Told by a job number without a list of GPUs, and CUDA_VISIBLE_DEVICES empty or "NoDevFiles".
    Where a site does not fence its GPUs in, they work all the same and nothing is said.

    Cured by asking for it (srun --gres=gpu:1). Setting CUDA_VISIBLE_DEVICES by hand takes a GPU
    from somebody else, or fails.
    """
    scheduler = m.container.scheduler or ""
    if scheduler not in _JOB or cuda_works(m) or cpu_on_purpose(m):
        return None
    env = need(m.env, "env")
    if (
        (m.look == "report" and _NAME not in env)  # a report shows a few variables, not all
        or promised_by_scheduler(m) is not None
        or env.get(_NAME, "").strip() not in ("", "NoDevFiles", "-1")
        or not (live_gpus(m) or nvidia_pci(m) or m.driver.loaded)
    ):
        return None
    jobs = (f"env.{name}" for name in (*_JOBS, _NAME) if name in env)
    return Found(
        evidence=("container.scheduler", *jobs),
        values={"scheduler": scheduler.capitalize() if scheduler == "slurm" else scheduler.upper()},
        sure=False,
        remedies=grant_gpu(m),
    )


@rule(
    "out-of-memory",
    title="Other programs hold the memory of GPU {which}",
    severity=WARNING,
)
def memory_held_by_others(m: Machine) -> Answer:
    """More than nine tenths of the memory is taken before any program of this user has started.

    NVML lists the processes that hold it; memory without a process in the list belongs to another
    container, another user, or a process that is ending. On a machine with unified memory (Jetson,
    GB10) the page cache counts as used, so nothing is said there.

    End what is not needed, or use another GPU. Processes of other users are theirs to end.
    """
    full = [
        gpu
        for gpu in live_gpus(m)
        if gpu.memory_bytes is not None and (gpu.memory_used_bytes or 0) > _FULL * gpu.memory_bytes
    ]
    if not full or m.platform.jetson:
        return None
    message = error_with(m, "out of memory")
    grave = ERROR if message else WARNING
    holders = [
        f"{process.name or 'a process of another user'} ({process.pid})"
        for gpu in full
        for process in gpu.processes or ()
    ]
    text = f"Memory is held by {', '.join(holders[:6])}. End what is yours and not needed."
    if not holders:
        text = "No process is listed: it belongs to another container or user, or is ending."
    return Found(
        evidence=(*(f"gpus.{gpu.index}.memory_used_bytes" for gpu in full[:4]), message),
        values={"which": [gpu.index for gpu in full]},
        severity=grave if len(full) == len(live_gpus(m)) else INFO,
        remedies=by_hand("free-memory", "Free the GPU's memory or take another GPU", text),
    )


@rule("ulimit", title="This process may open {nofile} files at most", severity=WARNING)
def too_few_files(m: Machine) -> Answer:
    """DataLoader workers pass tensors as open files, and fewer than 1024 run out soon.

    The failure reads "Too many open files" (errno 24) or "received 0 items of ancdata". It is not
    shm-too-small, which shows as a bus error or errno 28. 1024 is the usual limit and enough for a
    few workers.

    Cured by a higher limit (ulimit -n, --ulimit nofile=65536, LimitNOFILE), or by torch's
    set_sharing_strategy("file_system").
    """
    if m.platform.system not in (None, "Linux", "Darwin"):
        return None
    message, limit = error_with(m, *_FILES_WORDS), m.limits.nofile
    if message is None and not 0 <= need(limit, "limits.nofile") < _LEAST_FILES:
        return None
    return Found(
        evidence=("limits.nofile", message),
        values={"nofile": "" if limit is None else limit},
        title="The limit of open files is too low" if limit is None else None,
        severity=ERROR if message else WARNING,
        remedies=by_hand(
            "raise-nofile",
            "Allow more open files",
            "Raise the limit: `ulimit -n 65536` in the shell, `--ulimit nofile=65536` for a "
            "container.",
        ),
    )


@rule(
    "env-var-misconfigured",
    title="{name} is not in the form that torch reads",
    essential=False,
)
def allocator_option(m: Machine) -> Answer:
    """torch reads the options in {name} with its first GPU memory, and stops at an unknown one.

    Options are written key:value and separated by commas, as in max_split_size_mb:128. A key that
    this release of torch does not know ends the same way: newer keys need a newer torch.
    """
    env, message = need(m.env, "env"), error_with(m, *_ALLOCATOR_WORDS)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        # An entry without a colon; lists in brackets keep their commas.
        entries = re.split(r",(?![^\[]*\])", env.get(name, ""))
        malformed = any(entry.strip() and ":" not in entry for entry in entries)
        if env.get(name) and (message or malformed):
            return Found(
                evidence=(f"env.{name}", message),
                values={"name": name},
                sure=message,
                remedies=unset_variables(m, name),
            )
    return None


@rule(
    "env-var-misconfigured",
    title="{name} makes every program on the GPU slower",
    severity=WARNING,
    essential=False,
)
def slower_by_variable(m: Machine) -> Answer:
    """The variable is set in this environment: {effect}.

    It is a switch for debugging that was left on. NVIDIA_TF32_OVERRIDE=0 and CUDA_MODULE_LOADING
    are a choice and are not counted.
    """
    if not gpu_present(m):
        return None
    env = need(m.env, "env")
    names = [name for name in _SLOWER if env.get(name, "0") not in ("", "0")]
    if not names:
        return None
    return Found(
        evidence=tuple(f"env.{name}" for name in names),
        values={"name": names[0], "effect": _SLOWER[names[0]]},
        # Who writes a report has switched it on to find the error.
        severity=INFO if m.look == "report" else None,
        remedies=unset_variables(m, *names),
    )


@rule(
    "env-var-misconfigured",
    title="CUDA fails in this environment and works without its variables",
)
def broken_by_environment(m: Machine) -> Answer:
    """cuInit answers {code} here, and 0 without LD_LIBRARY_PATH, LD_PRELOAD and the like.

    One of those variables brings a library between the program and the driver. They are unset one
    after the other to find which; where CUDA_VISIBLE_DEVICES or a foreign libcuda is to blame, that
    is said instead.
    """
    libcuda, env = m.driver.libcuda, m.env or {}
    if libcuda.code in _MPS_FAILED and _MPS in env:
        return Found(
            title="The CUDA MPS daemon that {name} names does not answer",
            why="cuInit fails with {code}: CUDA programs wait for a daemon that is not running.",
            evidence=("driver.libcuda.code", f"env.{_MPS}"),
            values={"code": libcuda.code, "name": _MPS},
            sure=False,
            remedies=unset_variables(m, _MPS),
        )
    if libcuda.code in (None, SUCCESS) or libcuda.clean_code != SUCCESS:
        return None
    names = [name for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", _NAME) if env.get(name)]
    paths = (f"env.{name}" for name in names)
    return Found(
        evidence=("driver.libcuda.code", "driver.libcuda.clean_code", *paths),
        values={"code": libcuda.code},
        sure=False,
        remedies=unset_variables(m, *names),
    )

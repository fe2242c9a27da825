"""Do the process's environment, its limits and its job let it use the GPU?"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.model.findings import (
    ERROR,
    INFO,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Gpu, Machine, OptInt, OptStr, Strings
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    by_hand,
    free_memory,
    grant_gpu,
    raise_memlock,
    raise_nofile,
    set_variables,
    start_mps,
    unset_variables,
)
from cudadoctor.plan.remedies.process import is_busy, lasting, told_holders
from cudadoctor.rules.evidence.signs import (
    SUCCESS,
    cpu_on_purpose,
    cuda_counts,
    cuda_works,
    error_with,
    gpu_present,
    host_error_with,
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
_MPS_FULL = (808, 809)
"""The driver API's codes for an MPS daemon that is not there, not ready or full."""
_FULL = 0.9
"""A GPU with a larger share of its memory taken has no room for a training step."""
_CONTEXT = 400 << 20
"""With less than this not even CUDA itself starts on a GPU."""
_NONE_SEEN = ("no cuda", "is_available", "invalid device ordinal", "not available")
"""What a report says where a program sees too few GPUs."""
_FILES_WORDS = ("too many open files", "received 0 items of ancdata")
_LEAST_FILES = 1024
_ALLOCATOR_WORDS = ("unrecognized cachingallocator option", "unrecognized key")
_P2P = "NCCL_P2P_DISABLE"
_SLOWER = {
    "CUDA_LAUNCH_BLOCKING": "each kernel must finish before the next one starts",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor allocation goes directly to the driver",
    "CUDA_FORCE_PTX_JIT": "all kernels are recompiled when the program starts",
    _P2P: "NCCL copies data through host memory instead of over NVLink",
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
    """Programs see only the GPUs listed in CUDA_VISIBLE_DEVICES, so torch sees {left} of {all}.
    nvidia-smi ignores the variable and shows all GPUs.

    torch reports "No CUDA GPUs are available" or "invalid device ordinal". To check by hand: run
    `echo "$CUDA_VISIBLE_DEVICES"` and `nvidia-smi -L`.

    CUDA reads CUDA_VISIBLE_DEVICES from left to right and silently stops at the first invalid
    entry: on a machine with two GPUs, "0,7,1" leaves only GPU 0. If a GPU is listed twice, if the
    value is empty or -1, or if it contains quotes, no GPU is left. It is normal to hide some GPUs
    on purpose.

    Look-alikes: in a Slurm, LSF or PBS job, the scheduler sets CUDA_VISIBLE_DEVICES. If the job
    has no GPUs, the cause is scheduler-no-gpu.

    Fix: before you start the program, unset CUDA_VISIBLE_DEVICES or set it to GPUs that exist.
    Changing it inside a program that has already used CUDA has no effect.
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
        title="CUDA_VISIBLE_DEVICES={value} exposes only {left} of {all} GPUs" if shown else None,
        values={"value": value or '""', "left": shown, "all": total},
        severity=INFO if cpu_on_purpose(m) else severity if shown else ERROR,
        remedies=_right_list(m, value, left),
    )


def _right_list(m: Machine, value: str, left: Visible) -> Remedies:
    """The GPUs of the job, or what exists of the list, or none hidden at all."""
    uuids = tuple(gpu.uuid or "" for gpu in m.gpus or ())
    if m.container.scheduler in _JOB:
        own = _own_of_job(m, len(uuids))
        promised = by_hand(
            "leave-to-scheduler",
            "Let the scheduler set CUDA_VISIBLE_DEVICES",
            "In the job script or your shell's files, delete the line that sets "
            "CUDA_VISIBLE_DEVICES (find it with `grep -n CUDA_VISIBLE_DEVICES ~/.bashrc "
            "~/.bash_profile ~/.profile`), then submit the job again.",
        )
        return (
            _show(m, own, "Set CUDA_VISIBLE_DEVICES to this job's GPUs")
            or unset_variables(m, _NAME)
            or (promised if promised_by_scheduler(m) else grant_gpu(m))
        )
    found = (_device(entry, uuids)[0] for entry in value.split(","))
    valid = dict.fromkeys(str(index) for index in found if index is not None)
    unset = unset_variables(m, _NAME)
    if left.stop and 0 < len(valid) < len(uuids) and not value.strip().startswith(_NAMED):
        return _show(m, tuple(valid), "Set CUDA_VISIBLE_DEVICES to GPUs that exist") + unset
    return unset


def _own_of_job(m: Machine, seen: int) -> Strings:
    """The GPUs that Slurm gave this job, by their numbers here: a fenced job counts from 0."""
    if any(gpu.mig for gpu in m.gpus or ()):
        return ()  # instances go by their own names
    text = variable(m, "SLURM_STEP_GPUS") or variable(m, "SLURM_JOB_GPUS")
    names = tuple(name.strip() for name in text.split(",") if name.strip().isdecimal())
    if len(names) == seen:
        return tuple(map(str, range(seen)))
    return names if all(int(name) < seen for name in names) else ()


def _show(m: Machine, numbers: Strings, title: str) -> Remedies:
    if not numbers:
        return ()
    (chosen,) = set_variables("set-visible-devices", title, {_NAME: ",".join(numbers)})
    return (replace(chosen, note=lasting(m, _NAME)),)


@rule("scheduler-no-gpu", title="This {scheduler} job did not request a GPU")
def scheduler_no_gpu(m: Machine) -> Answer:
    """The node has GPUs, but a job sees only the ones it requested. Setting CUDA_VISIBLE_DEVICES by
    hand either fails or takes a GPU from someone else's job.

    The scheduler's variables contain a job ID but no list of GPUs, and CUDA_VISIBLE_DEVICES is
    empty or "NoDevFiles". To check by hand: run `scontrol show job $SLURM_JOB_ID` in a Slurm job:
    it shows no gres/gpu under TRES.

    Look-alikes: on nodes where the scheduler does not restrict access to GPUs, programs can use
    GPUs without requesting them, and cudadoctor does not report a problem. If the job runs a
    container, the GPU must be passed to the container as well; otherwise the cause is
    container-no-gpu.

    Fix: request a GPU when you start the job, for example with `srun --gres=gpu:1`.
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
    title="Memory on GPU {which} is in use by other processes",
    severity=WARNING,
)
def memory_held_by_others(m: Machine) -> Answer:
    """GPU {first} has only {free} of {memory} free before your program has even started.

    Programs stop with "CUDA out of memory", often when they create their first tensor. `nvidia-smi`
    lists the processes that use the GPU's memory. If the listed processes do not account for all
    of the memory in use, the rest belongs to another container, to another user, or to a process
    that crashed.

    On machines with unified memory (Jetson, GB10), the page cache counts as used memory, so
    cudadoctor does not report out-of-memory there.

    Look-alikes: if the GPU's memory is nearly empty before your program starts, your model or your
    batch is too large.

    Fix: stop any of your own processes that you no longer need, or use another GPU. Leave other
    users' processes alone.
    """
    full = [
        gpu
        for gpu in live_gpus(m)
        if gpu.memory_bytes is not None and (gpu.memory_used_bytes or 0) > _FULL * gpu.memory_bytes
    ]
    if not full or m.platform.jetson:
        return None
    message = error_with(m, "out of memory")
    # In a report the memory may be that of the program that its author runs.
    alone = m.look != "report" and not torch_works(m)
    nothing_left = alone and all(_free(gpu) < _CONTEXT for gpu in full)
    grave = ERROR if message or nothing_left else WARNING
    failed = host_error_with(m, "out of memory")
    listed = any(gpu.processes for gpu in full)
    told = {} if listed else told_holders(m)
    pid, held = next(iter(told.items()), ("", ""))
    busy = [] if listed or told else [gpu for gpu in full if is_busy(gpu)]
    shown = [f"gpus.{gpu.index}.memory_used_bytes" for gpu in full[:4]]
    shown += [f"gpus.{gpu.index}.{fact}" for gpu in busy[:2] for fact in ("utilization", "power_w")]
    return Found(
        evidence=(*shown, message),
        title=None
        if listed or len(told) > 1
        else "Another container or the host is using the memory of GPU {which}"
        if busy and m.container.kind
        else "Another process (pid {pid} on the host) holds {held} of the memory of GPU {which}"
        if told and m.container.kind
        else "Another process (pid {pid}) holds {held} of the memory of GPU {which}"
        if told
        else "Memory on GPU {which} is in use, but no process is listed as using it",
        values={
            "which": [gpu.index for gpu in full],
            "first": full[0].index,
            "free": _gibibytes(_free(full[0])),
            "memory": _gibibytes(full[0].memory_bytes or 0),
            **({"pid": pid, "held": held} if len(told) == 1 else {}),
        },
        severity=grave if len(full) == len(live_gpus(m)) or failed else INFO,
        remedies=free_memory(m, tuple(full)),
    )


def _free(gpu: Gpu) -> int:
    return max(0, (gpu.memory_bytes or 0) - (gpu.memory_used_bytes or 0))


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


@rule("ulimit", title="The open-file limit is {nofile} (ulimit -n)", severity=WARNING)
def too_few_files(m: Machine) -> Answer:
    """DataLoader workers share tensors through file descriptors. With a limit below 1024, they soon
    fail with "Too many open files".

    The program fails with errno 24 or "received 0 items of ancdata". To check by hand: run `ulimit
    -n`. The usual limit is 1024, which is enough for a few DataLoader workers.

    Look-alikes: if the error is a bus error or errno 28, the cause is shm-too-small.

    Fix: run `ulimit -n 65536` before you start the program. To raise the limit permanently, use a
    file in /etc/security/limits.d for a user, `--ulimit nofile=65536` for a container, or
    LimitNOFILE for a systemd service. Slurm uses the limit of the shell that submits the job
    (PropagateResourceLimits). In the program itself, you can call
    torch.multiprocessing.set_sharing_strategy("file_system"), which needs fewer open files.
    """
    if m.platform.system not in (None, "Linux", "Darwin"):
        return None
    message, limit = error_with(m, *_FILES_WORDS), m.limits.nofile
    if message is None and not 0 <= need(limit, "limits.nofile") < _LEAST_FILES:
        return None
    return Found(
        evidence=("limits.nofile", message),
        values={"nofile": "" if limit is None else limit},
        title="The open-file limit (ulimit -n) is too low" if limit is None else None,
        severity=ERROR if message else WARNING,
        remedies=raise_nofile(m),
    )


_RDMA = ("ibv_reg_mr", "ibv_create_qp", "ibv_create_cq")
_LEAST_LOCKED = 1 << 30


@rule(
    "ulimit",
    title="The locked-memory limit is only {locked} KiB (ulimit -l)",
    severity=WARNING,
    essential=False,
)
def too_little_locked_memory(m: Machine) -> Answer:
    """NCCL must lock memory to transfer data over InfiniBand or RoCE, and the locked-memory limit
    is too low.

    NCCL reports "ibv_reg_mr failed" or "Cannot allocate memory" when the ranks connect. To check by
    hand: run `ulimit -l`, which should print unlimited. Without RDMA, this limit does not matter,
    and cudadoctor does not report it.

    Fix: allow the program to lock memory. Use `--ulimit memlock=-1` for a Docker container, the
    IPC_LOCK capability for a pod, LimitMEMLOCK=infinity in the systemd unit of a service or of
    slurmd, or a file in /etc/security/limits.d for a user.
    """
    message, limit = error_with(m, *_RDMA), m.limits.memlock_bytes
    free = m.platform.root and not m.container.kind
    if free or not (message or variable(m, "NCCL_IB_HCA")):
        return None
    locked = need(limit, "limits.memlock_bytes")
    if locked < 0 or (locked >= _LEAST_LOCKED and not message):
        return None
    return Found(
        evidence=(
            "limits.memlock_bytes",
            *("limits.memlock_hard_bytes",) * (m.limits.memlock_hard_bytes is not None),
            message or "env.NCCL_IB_HCA",
        ),
        values={"locked": locked // 1024 if locked < _LEAST_LOCKED else locked >> 30},
        title=None if locked < _LEAST_LOCKED else "The locked-memory limit is {locked} GiB",
        severity=ERROR if message else WARNING,
        remedies=raise_memlock(m),
    )


@rule(
    "env-var-misconfigured",
    title="torch cannot parse the options in {name}",
    essential=False,
)
def allocator_option(m: Machine) -> Answer:
    """torch expects comma-separated key:value pairs, such as max_split_size_mb:128. It stops at the
    first key it does not recognize.

    The error is "Unrecognized CachingAllocator option" or "Unrecognized key"; it appears when the
    first tensor is created on the GPU. An option that only newer torch releases support causes the
    same error.

    Fix: correct the options in the allocator variable (for example, PYTORCH_CUDA_ALLOC_CONF), or
    unset the variable.
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
    title="{name} slows down every program on the GPU",
    severity=WARNING,
    essential=False,
)
def slower_by_variable(m: Machine) -> Answer:
    """This variable is meant for debugging: {effect}.

    Setting NVIDIA_TF32_OVERRIDE=0 or CUDA_MODULE_LOADING is a deliberate choice, so cudadoctor does
    not report these variables as env-var-misconfigured.

    Fix: unset debugging variables when you finish debugging.
    """
    if not gpu_present(m):
        return None
    env = need(m.env, "env")
    # Over PCIe it is the way around broken P2P.
    needless = any(pair.nvlink for pair in m.driver.pairs or ())
    names = [
        name
        for name in _SLOWER
        if env.get(name, "0") not in ("", "0") and (name != _P2P or needless)
    ]
    if not names:
        return None
    return Found(
        evidence=tuple(f"env.{name}" for name in names),
        values={"name": names[0], "effect": _SLOWER[names[0]]},
        title="{name} slows down training on several GPUs" if names[0] == _P2P else None,
        # Who writes a report has switched it on to find the error.
        severity=INFO if m.look == "report" else None,
        remedies=unset_variables(m, *names),
    )


_CLIENTS = (
    "Stop MPS clients that you no longer need",
    "`echo ps | nvidia-cuda-mps-control` lists the clients of the MPS server. Stop only your own "
    "programs, then start this program again.",
)


def _mps_ways(m: Machine, *, full: bool) -> Remedies:
    """Without MPS, or with its daemon: first where the GPUs serve one process, which MPS wants."""
    without, daemon = unset_variables(m, _MPS), () if full else start_mps(m)
    wanted = any(gpu.compute_mode == "exclusive" for gpu in m.gpus or ())
    if full:
        stop = by_hand("stop-mps-clients", *_CLIENTS)
        return stop if wanted else stop + without
    return daemon + without if wanted else without + daemon


@rule(
    "env-var-misconfigured",
    title="CUDA fails because of an environment variable",
)
def broken_by_environment(m: Machine) -> Answer:
    """cuInit fails with error {code}, but works without LD_LIBRARY_PATH, LD_PRELOAD and
    CUDA_VISIBLE_DEVICES.

    LD_LIBRARY_PATH or LD_PRELOAD makes the program load the wrong library, or CUDA_VISIBLE_DEVICES
    hides the GPU. To find the variable that breaks CUDA, unset these variables one at a time.

    Look-alikes: if CUDA_VISIBLE_DEVICES is the only variable that causes the problem, the cause is
    visible-devices-hides-gpu. If a libcuda other than the driver's is loaded, the cause is
    libcuda-stub or cuda-compat-conflict.

    Fix: unset the variable that breaks CUDA.
    """
    libcuda, env = m.driver.libcuda, m.env or {}
    if libcuda.code in _MPS_FAILED and _MPS in env:
        full = libcuda.code in _MPS_FULL
        return Found(
            title="The CUDA MPS server cannot accept more clients"
            if full
            else "The CUDA MPS daemon is not running or not responding",
            why="{name} makes every CUDA program use MPS, and cuInit fails with error {code}. If "
            "the variable is unset, CUDA runs without MPS.",
            evidence=("driver.libcuda.code", f"env.{_MPS}"),
            values={"code": libcuda.code, "name": _MPS},
            sure=False,
            remedies=_mps_ways(m, full=full),
        )
    if libcuda.code in (None, SUCCESS) or libcuda.clean_code != SUCCESS:
        return None
    if "/compat" in (libcuda.path or ""):
        return None  # That copy is the fault: see cuda-compat-conflict.
    names = [name for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", _NAME) if env.get(name)]
    paths = (f"env.{name}" for name in names)
    return Found(
        evidence=("driver.libcuda.code", "driver.libcuda.clean_code", *paths),
        values={"code": libcuda.code},
        sure=False,
        remedies=unset_variables(m, *names) or grant_gpu(m),
    )

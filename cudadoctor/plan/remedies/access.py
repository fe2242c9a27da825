"""Remedies that give a process the GPU: groups of a host, flags of a container, requests of a job.

Each runtime has its own words for the same thing. What only its user knows (the image, the script)
is left to them; what this machine tells (the container's id, the driver, the nodes) is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from errno import EACCES
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from cudadoctor.installers.tool import joined, system_packages
from cudadoctor.model.findings import Edit, Remedies, Remedy, Risk, Where
from cudadoctor.model.machine import Gpu, GpuProcess, Machine, OptStr, Strings
from cudadoctor.model.trust import USER
from cudadoctor.plan.remedies.process import (
    UVM_AT_BOOT,
    another_node,
    by_hand,
    commands_in,
    family_of,
    in_front,
    is_busy,
    is_cloud,
    keeper_of,
    notebook_of,
    open_to_all,
    side_of,
    told_holders,
)
from cudadoctor.plan.remedies.repositories import container_toolkits

Commands = tuple[Strings, ...]

# --- in a notebook, a job or a container ---------------------------------------------------------

_NOTEBOOKS = {
    "colab": "In Colab, open Runtime > Change runtime type and choose a GPU. "
    "The runtime restarts and loses its files.",
    "kaggle": "In the Kaggle editor, choose a GPU under Settings > Accelerator. "
    "The session restarts.",
}


class _Request(NamedTuple):
    """How a scheduler is asked for a GPU: interactively, and by a line of a job script."""

    scheduler: str
    interactive: Strings
    line: str
    note: str


_REQUESTS = {
    "slurm": _Request(
        "Slurm",
        ("srun", "--gres=gpu:1", "--pty", "bash"),
        "#SBATCH --gres=gpu:1",
        "`sinfo -o '%P %G'` lists the partitions with GPUs.",
    ),
    "lsf": _Request(
        "LSF",
        ("bsub", "-gpu", "num=1", "-Is", "bash"),
        '#BSUB -gpu "num=1"',
        "`bqueues` lists the queues, and `lshosts -gpu` lists the hosts with GPUs.",
    ),
    "pbs": _Request(
        "PBS",
        ("qsub", "-I", "-l", "select=1:ngpus=1"),
        "#PBS -l select=1:ngpus=1",
        "In Torque, the syntax is `-l nodes=1:gpus=1`.",
    ),
}
_GRANTED = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES")
"""What Slurm sets in a job that has a GPU."""
_JOB_TEXT = (
    "Start a new job from the login node: you cannot add a GPU to a running job. For a batch "
    "job, add this line to your job script."
)
_PYXIS = " Leave `--container-image` unchanged: Pyxis passes the GPU through to the container."
_RUN = {"docker": "docker", "podman": "podman", "containerd": "nerdctl"}
"""Runtimes whose `run` takes Docker's options."""
_FLAG = {
    "docker": "--gpus all",
    "podman": "--device nvidia.com/gpu=all",
    "containerd": "--gpus all",
}
_COMPOSE = {
    "--gpus all": """\
deploy:
  resources:
    reservations:
      devices:
        - driver: nvidia
          count: all
          capabilities: [gpu]""",
    "--runtime nvidia": "runtime: nvidia",
    "--shm-size=8g": "shm_size: 8gb",
    "--ulimit nofile=65536": "ulimits:\n  nofile: 65536",
    "--ulimit memlock=-1": "ulimits:\n  memlock: -1",
}
"""Options of `docker run` as the lines of a service in a compose file."""
_POD = {
    "--gpus all": """\
spec:
  containers:
    - resources:
        limits:
          nvidia.com/gpu: 1""",
    "--shm-size=8g": """\
spec:
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: 8Gi}
  containers:
    - volumeMounts:
        - {name: shm, mountPath: /dev/shm}""",
    "--ulimit memlock=-1": """\
spec:
  containers:
    - securityContext:
        capabilities:
          add: [IPC_LOCK]""",
}
"""The same in a pod's manifest."""
_COMPOSE_VARIABLE = """\
environment:
  {name}: {value}"""
_POD_VARIABLE = """\
spec:
  containers:
    - env:
        - name: {name}
          value: {value}"""
"""What the option -e is in both."""
_APPLY = (
    "Add these lines to the pod's manifest. Then delete the pod and apply the manifest again "
    "(`kubectl apply -f`): the change does not affect a running pod. In a Deployment or Job, put "
    "the lines under spec.template."
)
_PLUGIN = (
    "`kubectl describe nodes` must list nvidia.com/gpu. If it does not, the cluster "
    "administrator has to install NVIDIA's GPU Operator or device plugin."
)
_WITH_COMPOSE = " With Compose, add the lines shown for compose.yaml to your service."
_DESKTOP = "Docker Desktop needs no further setup: its WSL 2 backend passes the GPU through."


def grant_gpu(m: Machine) -> Remedies:
    """Start the container, pod or job with a GPU; () where nothing stands between it and them."""
    kind = m.container.kind or ""
    if notebook := notebook_of(m):
        return by_hand("grant-gpu", "Choose a GPU for the notebook", _NOTEBOOKS[notebook])
    if _kubernetes(m):
        return container_option(m, "grant-gpu", "Request a GPU for the pod", "--gpus all")
    if request := _REQUESTS.get(m.container.scheduler or ""):
        return _of_a_job(m, request)
    if kind == "apptainer":
        return _apptainer()
    if kind == "lxc":
        return _system_container(m)
    if run := _RUN.get(kind):
        if m.platform.jetson:
            title, flag = "Start the container with --runtime nvidia", "--runtime nvidia"
            return container_option(m, "grant-gpu", title, flag)
        return (*_tested(m, run), *_toolkit(m, kind))
    if kind == "enroot":
        text = "Add `-e NVIDIA_VISIBLE_DEVICES=all` to your `enroot start` command."
        return by_hand("grant-gpu", "Start the container with the GPU", text, "container")
    return _nspawn(m) if kind else ()


def _kubernetes(m: Machine) -> bool:
    return "kubernetes" in (m.container.kind, m.container.scheduler)


def _of_a_job(m: Machine, request: _Request) -> Remedies:
    """The scheduler gives the job a GPU; Apptainer hands it on into the container."""
    ask = Remedy(
        id="grant-gpu",
        title=f"Request a GPU from {request.scheduler}",
        risk=Risk.PROCESS,
        manual=_JOB_TEXT + (_PYXIS if m.container.kind == "enroot" else ""),
        edits=(Edit(file="job.sh", what=request.line),),
        commands=(request.interactive,),
        note=request.note,
    )
    if m.container.kind != "apptainer":
        return (ask,)
    (inside,) = _apptainer("gpu-into-container")
    granted = any((m.env or {}).get(name) for name in _GRANTED)
    return (inside,) if granted else (ask, inside)


def _apptainer(id: str = "grant-gpu") -> Remedies:  # noqa: A002
    """The variable does the same as --nv, whatever the command is."""
    return (
        Remedy(
            id=id,
            title="Start the container with --nv",
            where="container",
            risk=Risk.PROCESS,
            manual="Exit the container, set this variable and start the container again, or start "
            "it with `apptainer exec --nv`.",
            variables={"APPTAINER_NV": "1"},
            note="With SingularityCE, use `singularity exec --nv` or set SINGULARITY_NV=1.",
        ),
    )


def container_option(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    option: str,
) -> Remedies:
    """Start the container with one more option of `docker run`; () outside a container."""
    kind = m.container.kind or ""
    edits, text, note = _written(m, option), None, None
    if _kubernetes(m):
        text = _APPLY
        note = _PLUGIN if option == "--gpus all" else None
    elif run := _RUN.get(kind):
        text = f"Add `{option}` to your `{run} run` command, before the image name."
        text += _WITH_COMPOSE if edits else ""
    elif kind:
        text = f"Start the container with the equivalent of Docker's `{option}` option."
    else:
        return ()
    return (
        Remedy(
            id=id,
            title=title,
            where="container",
            risk=Risk.PROCESS,
            manual=text,
            edits=edits,
            note=note,
        ),
    )


def with_capabilities(m: Machine) -> Remedies:
    """The driver's libraries for computing, in the words of each runtime."""
    kind, id = m.container.kind or "", "driver-capabilities"  # noqa: A001
    title = "Start the container with the CUDA driver library"
    if kind == "apptainer":
        return _apptainer(id)
    if kind == "lxc":
        text = (
            "Set nvidia.driver.capabilities=compute,utility with `lxc config set` (LXD) or `incus "
            "config set` (Incus) on the host, then restart the container."
        )
        return by_hand(id, title, text, "host")
    if kind == "enroot":
        chosen = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        step = Remedy(id=id, title=title, where="container", risk=Risk.PROCESS, variables=chosen)
        return (step,)
    return container_option(m, id, title, "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility")


def driver_on_path(m: Machine, folder: str) -> Remedies:
    """The folder with the driver's libraries on the loader's path: of this shell, and for good."""
    value = in_front(m, "LD_LIBRARY_PATH", folder)
    title = f"Add {folder} to LD_LIBRARY_PATH"
    now = Remedy(
        id="driver-on-path",
        title=title,
        risk=Risk.PROCESS,
        variables={"LD_LIBRARY_PATH": value},
        note="Start your program from the same shell.",
    )
    option = f"-e LD_LIBRARY_PATH={value}"
    return now, *container_option(m, "driver-on-path-for-good", f"{title} permanently", option)


def _written(m: Machine, option: str) -> tuple[Edit, ...]:
    """What stands for the option in a manifest or a compose file; () where neither is in use."""
    variable = re.fullmatch(r"-e (?P<name>\w+)=(?P<value>.*)", option)
    if _kubernetes(m):
        what = _POD_VARIABLE.format(**variable.groupdict()) if variable else _POD[option]
        return (Edit(file="pod.yaml", what=what),)
    if m.container.kind != "docker":
        return ()
    lines = _COMPOSE_VARIABLE.format(**variable.groupdict()) if variable else _COMPOSE.get(option)
    return (Edit(file="compose.yaml", what=lines),) if lines else ()


def larger_shm(m: Machine) -> Remedies:
    """More room in /dev/shm: an option of the container, else a mount of the system."""
    title, option = "Give the container a larger /dev/shm", "--shm-size=8g"
    if _kubernetes(m) or (m.container.kind or "") in _RUN:
        return container_option(m, "shm-size", title, option)
    # Apptainer and Enroot show the host's; LXC and others have one of their own.
    outside: Where = "host" if m.container.kind in ("apptainer", "enroot") else "here"
    return (
        Remedy(
            id="shm-size",
            title="Increase the size of /dev/shm",
            where="admin" if m.container.scheduler else outside,
            needs_root=True,
            edits=(Edit(file="/etc/fstab", what="tmpfs /dev/shm tmpfs defaults,size=8G 0 0"),),
            commands=(("mount", "-o", "remount,size=8G", "/dev/shm"),),
            note="The command's effect lasts only until the next reboot; the line in /etc/fstab "
            "makes the change permanent.",
        ),
    )


_SAME_SHELL = (
    "Start your program from the same shell. For a batch job, add this command to the job script."
)
_HARD = (
    "If the shell rejects the new limit, the hard limit is lower; raise the limit permanently "
    "instead."
)
_HARD_OF_OTHERS = (
    "If the shell rejects the new limit, the hard limit is lower; ask the administrator to raise "
    "it."
)


def raise_nofile(m: Machine) -> Remedies:
    """A higher limit of open files: of this shell, then of the user or the container."""
    kind = m.container.kind or ""
    by_pam = m.platform.system != "Darwin" and family_of(m) != "nixos"
    own = kind in _RUN or not (kind or m.container.scheduler)
    lasts = own and by_pam and not _kubernetes(m)
    now = Remedy(
        id="raise-nofile",
        title="Raise the open-file limit in this shell",
        risk=Risk.PROCESS,
        commands=(("ulimit", "-n", "65536"),),
        note=f"{_SAME_SHELL} {_HARD if lasts else _HARD_OF_OTHERS}",
    )
    if kind in _RUN and not _kubernetes(m):
        option = "--ulimit nofile=65536"
        title = "Start the container with a higher open-file limit"
        return (now, *container_option(m, "limit-of-container", title, option))
    if not lasts:
        return (now,)
    title = "Raise the open-file limit permanently"
    return (now, _in_limits(m, "limits-file", title, "nofile", ("65536", "1048576")))


def _in_limits(m: Machine, id: str, title: str, limit: str, values: tuple[str, str]) -> Remedy:  # noqa: A002
    """A limit of the user, soft and hard, from the next login on."""
    user, (soft, hard) = m.identity.user or "*", values
    lines = f"{user} soft {limit} {soft}\n{user} hard {limit} {hard}"
    edit = Edit(file=f"/etc/security/limits.d/90-{limit}.conf", what=lines, mode="write")
    unit = "infinity" if soft == "unlimited" else soft
    return Remedy(
        id=id,
        title=title,
        needs_root=True,
        edits=(edit,),
        note=f"Log out and back in. For a systemd service, set `Limit{limit.upper()}={unit}` in "
        "its unit file.",
    )


def raise_memlock(m: Machine) -> Remedies:
    """Leave to lock memory: of the container, of the job's daemon, or of the user."""
    title = "Allow the program to lock memory"
    if m.limits.memlock_hard_bytes == -1:
        commands = (("ulimit", "-l", "unlimited"),)
        step = partial(Remedy, id="raise-memlock", title=title, risk=Risk.PROCESS)
        return (step(commands=commands, note=_SAME_SHELL),)
    if m.container.kind in _RUN or _kubernetes(m):
        return container_option(m, "raise-memlock", title, "--ulimit memlock=-1")
    if m.container.scheduler == "slurm":
        return _slurms_memlock(m, title)
    if m.container.scheduler or m.container.kind:
        text = (
            "Ask the administrator to set LimitMEMLOCK=infinity in the systemd unit for the job "
            "scheduler's daemon (such as slurmd) or for the container daemon."
        )
        return by_hand("raise-memlock", title, text, "admin")
    return (_in_limits(m, "raise-memlock", title, "memlock", ("unlimited", "unlimited")),)


def _slurms_memlock(m: Machine, title: str) -> Remedies:
    """Slurm gives a job the soft limits of the shell that submitted it, unless told otherwise.

    The hard limit is that of slurmd: no option of a job goes past it.
    """
    own = Remedy(
        id="raise-memlock",
        title=title,
        risk=Risk.PROCESS,
        edits=(Edit(file="job.sh", what="#SBATCH --propagate=NONE"),),
        manual="Add this line to your job script and submit the job again. The job then gets the "
        "limits of the node, not those of the login shell.",
        note=_HARD_OF_JOB,
    )
    lines = "[Service]\nLimitMEMLOCK=infinity"
    edit = Edit(file="/etc/systemd/system/slurmd.service.d/memlock.conf", what=lines, mode="write")
    node = Remedy(
        id="memlock-of-slurmd",
        title="Remove the locked-memory limit from slurmd",
        where="admin",
        needs_root=True,
        edits=(edit,),
        commands=(("systemctl", "daemon-reload"), ("systemctl", "restart", "slurmd")),
        note="Also set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and run "
        "`sudo scontrol reconfigure`. Running jobs continue.",
    )
    if m.limits.memlock_hard_bytes is None:
        return own, node
    return (replace(node, id="raise-memlock"),)


_HARD_OF_JOB = (
    "This helps only if `ulimit -Hl` in the job prints unlimited. If it prints a number, slurmd "
    "itself has the limit, and only your administrator can raise it."
)


def other_gpus(m: Machine, taken: Collection[Gpu]) -> Remedies:
    """Use the GPUs beside the taken ones; () where none is left or the choice is not the user's."""
    live = [gpu for gpu in m.gpus or () if not gpu.code and not (gpu.mig and not gpu.mig_devices)]
    others = [str(gpu.index) for gpu in live if gpu not in taken]
    if not others or m.container.scheduler or "CUDA_VISIBLE_DEVICES" in (m.env or {}):
        return ()
    chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(others)}
    title = (
        "Use the machine's other GPUs instead"
        if len(others) > 1
        else f"Use GPU {others[0]} instead"
    )
    return (Remedy(id="use-free-gpu", title=title, risk=Risk.PROCESS, variables=chosen),)


def free_memory(m: Machine, full: tuple[Gpu, ...]) -> Remedies:
    """Another GPU, or the processes that hold the memory; nobody's process is ended by us."""
    free = other_gpus(m, full)
    holders = [process for gpu in full for process in gpu.processes or ()]
    step = _held(m, holders) if holders else _unlisted(m, full)
    moved = another_node(m) if m.container.scheduler in ("slurm", "lsf") else ()
    return (*free, *moved, step) if step.where == "admin" else (*free, step, *moved)


def busy_gpus(m: Machine, taken: list[Gpu]) -> Remedies:
    """Another GPU, else whose processes use these."""
    holders = [process for gpu in taken for process in gpu.processes or ()]
    return other_gpus(m, taken) + ((_held(m, holders),) if holders else ())


def _held(m: Machine, holders: list[GpuProcess]) -> Remedy:
    holders = sorted(holders, key=lambda process: -(process.memory_bytes or 0))
    pids = ",".join(str(process.pid) for process in holders[:8])
    named = any(process.name for process in holders)
    users = f"Processes using the GPU: {', '.join(map(_called, holders[:6]))}. " if named else ""
    boxed = m.container.kind in _STOPS
    windows = m.platform.system == "Windows"
    return Remedy(
        id="free-memory",
        title="See whose processes are using the GPU",
        where=keeper_of(m) if m.container.kind else "here",
        risk=Risk.PROCESS,
        manual=f"{users}Stop only your own processes; ask other users to stop theirs.",
        note=_stop(m, holders[0].pid) if boxed else None,
        commands=(("nvidia-smi",) if windows else ("ps", "-o", "pid,user,etime,cmd", "-p", pids),),
    )


def _called(process: GpuProcess) -> str:
    """A process with its number and its memory, as far as they are known."""
    size = process.memory_bytes
    parts = [f"{size / 2**30:.1f} GiB"] if size else []
    parts = [str(process.pid), *parts] if process.name else parts
    return f"{process.name or process.pid}" + (f" ({', '.join(parts)})" if parts else "")


_STOPS = {"docker": "docker", "podman": "podman", "containerd": "nerdctl"}


def _stop(m: Machine, pid: int) -> str:
    """How a process of the user's is ended that may run in another container of the host."""
    tool = _STOPS.get(m.container.kind or "", "docker")
    return (
        f"If process {pid} is yours, end its program; one in a container ends with `{tool} stop "
        f"$(grep -om1 '[0-9a-f]\\{{64\\}}' /proc/{pid}/cgroup)`."
    )


def _unlisted(m: Machine, full: tuple[Gpu, ...]) -> Remedy:
    told = [*told_holders(m)]
    if told and m.platform.system == "Linux":
        pids = ",".join(told)
        return Remedy(
            id="free-memory",
            title="See whose processes are using the GPU",
            where=keeper_of(m) if m.container.kind else "here",
            risk=Risk.PROCESS,
            commands=(("ps", "-o", "pid,user,etime,cmd", "-p", pids),),
            note=f"{_stop(m, int(told[0]))} Ask other users to stop theirs."
            if keeper_of(m) != "admin"
            else "Stop only your own processes; ask other users to stop theirs.",
        )
    nodes = tuple(_node_of(gpu, m) for gpu in full)
    known = side_of(m) in ("linux", "dgx", "container", "cluster")
    where = keeper_of(m)
    crashed = _CRASHED.format(all=" and all of its containers" if where == "host" else "")
    return Remedy(
        id="free-memory",
        title="Find out what is using the GPU memory",
        where=where,
        risk=Risk.PROCESS,
        needs_root=known,
        commands=(("nvidia-smi",), *((("fuser", "-v", *nodes),) if known else ())),
        manual=None,
        note=joined(
            _owner(m) if where == "host" and known else _OWNER,
            None if any(map(is_busy, full)) else crashed,
        ),
    )


_OWNER = "`ps -o pid,user,etime,cmd -p PID` shows the user and the program of a process ID."
_CRASHED = (
    "If no process is listed, a crashed process probably left the memory allocated. A reboot frees "
    "it, but ends everything that runs on the machine{all}."
)


def _owner(m: Machine) -> str:
    """How the host names the container of a process, and ends what runs in it."""
    kind, kernel = m.container.kind or "", m.platform.kernel or ""
    shown, stop = "", ""
    if kind == "lxc":
        shown = " (lxc/ID)"
        stop = " (`pct stop ID`)" if kernel.endswith("-pve") else ""
    elif tool := _STOPS.get(kind):
        shown, stop = " (its 64-digit ID)", f" (`{tool} stop ID`)"
    return (
        f"For each process ID, `cat /proc/PID/cgroup` shows its container{shown}, and `ps -o "
        "pid,user,etime,cmd -p PID` shows its user and program. Ask the owner, wait for the "
        f"program to end, or stop it there{stop}."
    )


def _node_of(gpu: Gpu, m: Machine) -> str:
    """The device node of a GPU, which a container shows under the number that its host gave it."""
    found = (_NODE.fullmatch(node.path) for node in m.driver.nodes or () if node.errno == 0)
    numbers = sorted(int(node[1]) for node in found if node)
    known = len(numbers) == len(m.gpus or ())
    return f"/dev/nvidia{numbers[gpu.index] if known else gpu.index}"


_NODE = re.compile(r"/dev/nvidia(\d{1,3})")


def start_mps(m: Machine) -> Remedies:
    """Start the daemon itself, if the user may do that."""
    if m.container.kind or m.container.scheduler or side_of(m) not in ("linux", "dgx"):
        return ()
    pipes = (m.env or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
    daemon = ("nvidia-cuda-mps-control", "-d")
    of_the_system = pipes.startswith(("/run/", "/var/")) and not m.redacted
    if of_the_system and not m.platform.root:
        start = partial(Remedy, needs_root=True)
        commands: Commands = (("env", f"CUDA_MPS_PIPE_DIRECTORY={pipes}", *daemon),)
        note = "This folder belongs to the system, so the daemon serves all users of this machine."
    else:
        start, commands = partial(Remedy, risk=Risk.PROCESS), (daemon,)
        note = (
            "The MPS daemon uses the folder that CUDA_MPS_PIPE_DIRECTORY specifies in this shell. "
            "Start the MPS daemon as the same user that runs your programs."
        )
    title = "Start the MPS control daemon"
    return (start(id="start-mps", title=title, commands=commands, note=note),)


# --- from one GPU to another ---------------------------------------------------------------------

_GRUB = ("/etc/default/grub", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {option}"')
_KERNEL_LINE: dict[str, tuple[tuple[str, str], str]] = {
    **dict.fromkeys(("ubuntu", "debian"), (_GRUB, "update-grub")),
    **dict.fromkeys(
        ("rhel", "fedora", "amazon"), (("", ""), "grubby --update-kernel=ALL --args={option}")
    ),
    "pop": (("", ""), "kernelstub -a {option}"),
    "suse": (_GRUB, "grub2-mkconfig -o /boot/grub2/grub.cfg"),
    "manjaro": (_GRUB, "update-grub"),
    "nixos": (("/etc/nixos/configuration.nix", 'boot.kernelParams = [ "{option}" ];'), ""),
}
"""How an option gets onto the kernel's command line, by distribution: file and line, command."""
_PROXMOX = (
    "If /etc/kernel/cmdline exists, this host boots with systemd-boot. In that case, add "
    "{option} to the end of the line in that file instead, run `sudo proxmox-boot-tool refresh` "
    "and reboot."
)
_REBUILD = (
    "Add the line below to /etc/nixos/configuration.nix, then run `nixos-rebuild switch` as root."
)
_REBUILD_BOOT = (
    "Add the line below to /etc/nixos/configuration.nix, then run `nixos-rebuild boot` as root "
    "and reboot."
)


def without_p2p(m: Machine, evidence: OptStr, *, proven: bool = False) -> Remedies:
    """NCCL without P2P, at once; then what stands in the way of P2P.

    proven: the log shows what stands in the way; where a command changes it for good, it is first.
    """
    quick = Remedy(
        id="without-p2p",
        title="Make NCCL use host memory instead of P2P",
        risk=Risk.PROCESS,
        variables={"NCCL_P2P_DISABLE": "1"},
        note="NCCL_P2P_DISABLE slows NCCL down, so unset it once P2P works. If the ranks still "
        "fail with NCCL_P2P_DISABLE set, P2P is not the cause.",
    )
    where = keeper_of(m)
    if m.platform.virtual or (evidence or "").endswith(".acs"):
        text = (
            "Turn ACS off in the firmware settings, unless a virtual machine on this host uses a "
            "passed-through device. ACS is on if `lspci -vvv` shows ACSCtl: SrcValid+."
        )
        where = "host" if m.platform.virtual and where == "here" else where
        return (quick, *by_hand("p2p-way", "Turn ACS off permanently", text, where))
    note = (
        "If that does not help, turn ACS off in the firmware settings. If a virtual machine on "
        "this host uses a passed-through device, leave the IOMMU mode and ACS unchanged."
    )
    acs = {device.acs for device in m.pci or () if device.vendor == "nvidia"}
    if acs == {False}:
        note = (
            "If that does not help, turn the IOMMU off in the firmware settings (AMD-Vi or VT-d). "
            "If a virtual machine on this host uses a passed-through device, leave the IOMMU "
            "unchanged."
        )
    title = "Set the IOMMU to passthrough mode permanently"
    lasting = kernel_option(m, "p2p-way", title, "iommu=pt", note)
    # Proxmox starts with GRUB or with systemd-boot.
    known = lasting[0].commands and not (m.platform.kernel or "").endswith("-pve")
    if proven and where == "here" and known:
        until = "Use this until you can reboot: NCCL is slower with it, but it works."
        return (*lasting, replace(quick, note=until))
    return (quick, *lasting)


def larger_window(m: Machine, size: int) -> Remedies:
    """More 64-bit PCI address space for a virtual machine: twice what its GPUs ask for.

    size: in bytes, 0 where that is not known.
    """
    gib = max(64, 1 << (2 * (size >> 30) - 1).bit_length()) if size else 128
    uefi = m.platform.secure_boot is not None
    old = "i440fx" in (m.platform.product or "").lower()
    title = "Give the virtual machine a larger PCI address space"
    step = partial(by_hand, "firmware-bar", title, where="host")
    if is_cloud(m) or m.platform.virtual not in ("kvm", "qemu", "vmware", "microsoft"):
        return step(_ANY_HYPERVISOR)
    if m.platform.virtual == "vmware":
        return step(_VMWARE.format(gib=gib))
    if m.platform.virtual == "microsoft":
        return step(_HYPER_V.format(gib=gib))
    machine = "--machine q35 " if old else ""
    ovmf = f"-fw_cfg name=opt/ovmf/X-PciMmio64Mb,string={gib << 10}"
    args = ovmf if uefi else f"-global q35-pcihost.pci-hole64-size={gib}G"
    text = _PROXMOX_VM.format(options=f"{machine}--cpu host --args '{args}'")
    known = step(f"{text} {_LIBVIRT.format(gib=gib)}", note=_RENAMED if old else None)
    if uefi:
        return known
    disk = "--bios ovmf --efidisk0 local-lvm:1,efitype=4m,pre-enrolled-keys=0"
    text = _PROXMOX_VM.format(options=f"--machine q35 --cpu host {disk} --args '{ovmf}'")
    other = by_hand("firmware-ovmf", "Switch the virtual machine to UEFI (OVMF)", text, "host")
    return (*known, replace(other[0], note=_BOOTS_BY_BIOS))


_ANY_HYPERVISOR = (
    "In the hypervisor, use UEFI firmware (OVMF) and a larger 64-bit PCI window for this virtual "
    "machine."
)
_PROXMOX_VM = (
    "On a Proxmox host, `qm list` shows the VMID. Shut the virtual machine down, run `qm set VMID "
    "{options}` and start it again."
)
_LIBVIRT = (
    "With libvirt, use machine type q35 and add `<pcihole64 unit='GiB'>{gib}</pcihole64>` to the "
    "pcie-root controller with `virsh edit NAME`."
)
_VMWARE = (
    "Shut the virtual machine down. In its advanced settings, set pciPassthru.use64bitMMIO to TRUE "
    "and pciPassthru.64bitMMIOSizeGB to {gib}. The virtual machine must boot with EFI."
)
_HYPER_V = (
    "Shut the virtual machine down. In PowerShell on the host, `Get-VM` shows its name; run "
    "`Set-VM -HighMemoryMappedIoSpace {gib}GB -VMName NAME` and start it again."
)
_RENAMED = (
    "The q35 machine type can rename the network interfaces in the virtual machine, so keep its "
    "console at hand."
)
_BOOTS_BY_BIOS = (
    "Do this only if the virtual machine's disk has an EFI system partition: a system that was "
    "installed for BIOS boot does not start with UEFI. Replace local-lvm with the name of your "
    "storage (`pvesm status`)."
)


def kernel_option(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    option: str,
    note: str,
) -> Remedies:
    """An option on the kernel's command line, from the next boot on."""
    where, family = keeper_of(m), str(family_of(m))
    if m.platform.distro in ("pop", "manjaro"):
        family = m.platform.distro  # Pop!_OS starts with systemd-boot, not with GRUB.
    if m.platform.distro == "opensuse-tumbleweed":
        family = ""  # It starts with one of several.
    if (m.platform.kernel or "").endswith("-pve"):
        note = f"{_PROXMOX.format(option=option)} {note}"
    if where == "host":
        family = {"apt-get": "debian", "dnf": "rhel"}.get(_manager_of_host(m), "")
    (file, line), command = _KERNEL_LINE.get(family, (("", ""), ""))
    if where == "admin":
        file = command = ""
    by_grub = (
        f"With GRUB, add {option} to GRUB_CMDLINE_LINUX in /etc/default/grub and regenerate "
        f"grub.cfg. With systemd-boot, add {option} to the options line of the boot entry, or to "
        "/etc/kernel/cmdline if that file exists. Then reboot."
    )
    written = Edit(
        file=file, what=line.format(option=option), mode="append" if command else "by hand"
    )
    return (
        Remedy(
            id=id,
            title=title,
            where=where,
            needs_root=True,
            reboot=True,
            edits=(written,) if file else (),
            commands=commands_in(command, option=option),
            manual=None if command else _REBUILD_BOOT if file else by_grub,
            note=note,
        ),
    )


def allow_p2p(m: Machine) -> Remedies:
    """What denies P2P to GPUs that ought to have it."""
    return (
        Remedy(
            id="allow-p2p",
            title="Find the setting that blocks P2P",
            where=keeper_of(m),
            risk=Risk.PROCESS,
            manual="If the grep command prints a value, remove NVreg_RegistryDwords from the file "
            "in /etc/modprobe.d that sets it, then reboot. Otherwise, check the ACS setting "
            "in the firmware, and look for a firmware update for the motherboard.",
            commands=(("grep", "RegistryDwords", "/proc/driver/nvidia/params"),),
        ),
    )


# --- the host of a container ---------------------------------------------------------------------

_TOOLKIT = "nvidia-container-toolkit"
_MADE_KNOWN: dict[str, Commands] = {
    "docker": (
        ("nvidia-ctk", "runtime", "configure", "--runtime=docker"),
        ("systemctl", "restart", "docker"),
    ),
    "podman": (("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),),
    "containerd": (
        ("nvidia-ctk", "runtime", "configure", "--runtime=containerd"),
        ("systemctl", "restart", "containerd"),
    ),
}
_HOSTS = (
    (r"\.(?:el|fc|amzn2023)", "dnf"),
    (r"-default$", "zypper"),
    (r"^\d+\.\d+\.0-\d{2,4}-[a-z]|-pve$|[-+](?:deb\d+-)?(?:cloud-|rt-)?a(?:md|rm)64$", "apt-get"),
)
"""A container shows its host's kernel, whose name tells the distribution: 6.8.0-31-generic."""
_REFUSALS = {
    "docker": 'could not select device driver "" with capabilities: [[gpu]]',
    "podman": "unresolvable CDI devices nvidia.com/gpu=all",
    "containerd": "nvidia-container-cli",
}


def _manager_of_host(m: Machine) -> str:
    """The package manager of a container's host, "" if its kernel does not tell."""
    kernel = m.platform.kernel or ""
    return next((name for shape, name in _HOSTS if re.search(shape, kernel)), "")


def _tested(m: Machine, run: str) -> Remedies:
    """A container of its own shows whether the host passes its GPUs on; then the user's."""
    kind = m.container.kind or ""
    flag, image = _FLAG[kind], "ubuntu" if run == "docker" else "docker.io/library/ubuntu"
    confined = kind == "podman" and _manager_of_host(m) == "dnf"
    flag += " --security-opt=label=disable" if confined else ""
    edits = _written(m, flag)
    text = (
        f"If nvidia-smi lists your GPU, add `{flag}` to your own `{run} run` command, before the "
        "image name."
    )
    return (
        Remedy(
            id="grant-gpu",
            title="Test a GPU container on the host, then start your own container with GPU access",
            where="container",
            risk=Risk.PROCESS,
            commands=((run, "run", "--rm", *flag.split(), image, "nvidia-smi"),),
            manual=text + (_WITH_COMPOSE if edits else ""),
            edits=edits,
            note=_DESKTOP if side_of(m) == "wsl" else None,
        ),
    )


def _toolkit(m: Machine, kind: str) -> Remedies:
    """NVIDIA's container toolkit on the host; Docker Desktop brings its own."""
    if side_of(m) == "wsl":
        return ()
    manager = _manager_of_host(m)
    edits, added = container_toolkits(manager)
    note = f'This step is needed only if starting the container fails with "{_REFUSALS[kind]}".'
    if kind != "podman":
        note += " Restarting the container runtime stops all running containers."
    return (
        Remedy(
            id="container-toolkit",
            title="Install the NVIDIA Container Toolkit",
            where="host",
            needs_root=True,
            manual=None
            if manager
            else f"First install {_TOOLKIT} from NVIDIA's repository with the host's package "
            "manager.",
            edits=edits,
            commands=(*added, *(system_packages(manager, _TOOLKIT) if manager else ()))
            + _MADE_KNOWN[kind],
            note=note,
        ),
    )


_ID = re.compile(r"[0-9a-f]{12}")
"""The host name that Docker, Podman and nerdctl give a container: its id."""
_INSTANCE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")


def restart_container(m: Machine) -> Remedies:
    """A new start of the container, and what keeps a reload of systemd from taking its GPU away."""
    kind, host = m.container.kind or "", m.identity.host or ""
    if kind == "lxc":
        return grant_gpu(m)
    title = "Restart the container"
    if _kubernetes(m):
        text = (
            "Delete the pod so that its controller recreates it. If it has no controller, apply "
            "its manifest again."
        )
        again = by_hand("restart-container", "Restart the pod", text, "container")
        text = (
            "Ask the administrator to switch the nodes to CDI (GPU Operator: cdi.enabled=true), "
            "so that containers keep their GPUs after a systemd reload."
        )
        return again + by_hand(
            "keep-gpu", "Keep the GPU available after a systemd reload", text, "admin"
        )
    run = _RUN.get(kind)
    if not run:
        text = "Exit the container and start it again."
        return by_hand("restart-container", title, text, "container")
    known = _ID.fullmatch(host)
    again = (
        Remedy(
            id="restart-container",
            title=title,
            where="host",
            risk=Risk.PROCESS,
            commands=((run, "restart", host),) if known else (),
            manual=None
            if known
            else f"Find the container's name with `{run} ps`, then run `{run} restart` with that "
            "name.",
            note="The GPU stays available until the next `systemctl daemon-reload` on the host.",
        ),
    )
    return again + _LINKS if side_of(m) == "container" else again


_LINKS = (
    Remedy(
        id="keep-gpu",
        title="Create /dev/char links to keep the GPU available after a systemd reload",
        where="host",
        needs_root=True,
        edits=(
            Edit(
                file="/etc/udev/rules.d/71-nvidia-dev-char.rules",
                what='ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", '
                'RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"',
                mode="write",
            ),
        ),
        commands=(("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all"),),
        note="Then restart the container once. Containers started with CDI (`--device "
        "nvidia.com/gpu=all`) do not need these links.",
    ),
)


# --- LXC and its relatives, systemd-nspawn -------------------------------------------------------

_UVM = "Replace 511 with the number that `grep nvidia-uvm /proc/devices` shows on the host."
_UNNAMED = "NAME"
_DROP_IN = "/etc/systemd/system/systemd-nspawn@{name}.service.d"
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def _nodes(m: Machine) -> Strings:
    """The device nodes that a container needs; the bus shows how many GPUs the host has."""
    count = sum(device.vendor == "nvidia" for device in m.pci or ()) or 1
    return (*(f"/dev/nvidia{number}" for number in range(count)), *_CONTROL)


def _system_container(m: Machine) -> Remedies:
    """Proxmox by its kernel; LXD, Incus and plain LXC look the same from inside."""
    kernel = m.platform.kernel or ""
    if kernel.endswith("-pve"):
        return _proxmox(m, kernel)
    return (*(_managed(program, _name(m)) for program in ("lxc", "incus")), *_plain_lxc(m))


def load_uvm_on_host(m: Machine) -> Remedies:
    """The module on the host of a container, then its device files into the container."""
    if notebook_of(m) or "nvidia_uvm" in (m.driver.modules or ("nvidia_uvm",)):
        return grant_gpu(m)
    name, kind, kernel = _name(m), m.container.kind or "", m.platform.kernel or ""
    again = "Then restart the container."
    passed = grant_gpu(m)
    if kind == "lxc" and not kernel.endswith("-pve"):
        again = f"Then restart the container: `incus restart {name}` or `lxc restart {name}` (LXD)."
        if name == _UNNAMED:
            again = "Then restart the container."
        passed = (*(_uvm_node(program, name) for program in ("incus", "lxc")), *_plain_lxc(m))
    load = Remedy(
        id="load-uvm",
        title="Load the nvidia_uvm module and create its device nodes",
        where=keeper_of(m),
        needs_root=True,
        edits=(UVM_AT_BOOT,),
        commands=(("modprobe", "nvidia_uvm"), ("nvidia-modprobe", "-u", "-c", "0")),
        note=f"{again} If the container still has no /dev/nvidia-uvm, also pass the device files "
        "to it as shown below.",
    )
    return (load, *passed)


def _uvm_node(program: str, name: str) -> Remedy:
    """The two device files of UVM for a container that has its GPU already."""
    product = {"lxc": "LXD", "incus": "Incus"}[program]
    nodes = ("nvidia-uvm", "nvidia-uvm-tools")
    add = (program, "config", "device", "add", name)
    adds = tuple(
        (*add, node, "unix-char", f"source=/dev/{node}", f"path=/dev/{node}") for node in nodes
    )
    known = name != _UNNAMED
    return Remedy(
        id=f"pass-uvm-{program}",
        title=f"Pass the nvidia_uvm device files to the {product} container",
        where="host",
        risk=Risk.PROCESS,
        commands=(*adds, (program, "restart", name)) if known else (),
        manual=None
        if known
        else f"Find the container's name with `{program} list`, then add /dev/nvidia-uvm with "
        f"`{program} config device add` as a device of type unix-char.",
    )


def _name(m: Machine) -> str:
    """A system container is called as its host name says."""
    host = m.identity.host or ""
    return host if _INSTANCE.fullmatch(host) else _UNNAMED


def _managed(program: str, name: str) -> Remedy:
    product = {"lxc": "LXD", "incus": "Incus"}[program]
    device = ("config", "device", "add", name, "gpu", "gpu")
    changes = (device, ("config", "set", name, "nvidia.runtime=true"), ("restart", name))
    text = (
        f"Find the container's name with `{program} list`, add a device of type gpu with "
        f"`{program} config device add`, and set nvidia.runtime=true."
    )
    return Remedy(
        id="grant-gpu" if program == "lxc" else f"grant-gpu-{program}",
        title=f"Give the {product} container the host's GPU",
        where="host",
        risk=Risk.PROCESS,
        commands=tuple((program, *change) for change in changes) if name != _UNNAMED else (),
        manual=text if name == _UNNAMED else None,
        note="Run `command -v lxc incus pct` on the host to see which of these tools is installed.",
    )


_SAME_DRIVER = (
    "Inside the container, install version {driver} of the driver libraries to match the host, "
    "without the kernel modules."
)


def _same_driver(m: Machine) -> OptStr:
    driver = m.driver.kernel if m.driver.kernel != m.driver.library else None
    return _SAME_DRIVER.format(driver=driver) if driver else None


def _proxmox(m: Machine, kernel: str) -> Remedies:
    """Proxmox VE passes nodes on by itself since 8.2, whose kernel is 6.8."""
    passes_on = tuple(map(int, re.findall(r"\d+", kernel)[:2])) >= (6, 8)
    there = {node.path for node in m.driver.nodes or () if node.errno == 0}
    missing = set(_nodes(m)) - there or set(_nodes(m))
    lines = [f"dev{n}: {node}" for n, node in enumerate(_nodes(m)) if node in missing]
    text = (
        "On the Proxmox host, run `pct list` to find the ID of "
        f"{m.identity.host or 'this container'}, then run `nvidia-modprobe -u -c 0` to create "
        "the device files. To create them at every boot, add `@reboot nvidia-modprobe -u -c 0` "
        "with `crontab -e`. Add these lines to /etc/pve/lxc/ID.conf, then run `pct reboot ID`."
    )
    return (
        Remedy(
            id="grant-gpu",
            title="Give the container the missing device files"
            if missing & there == set() and there
            else "Give the Proxmox container the host's GPU",
            where="host",
            risk=Risk.PROCESS,
            manual=text if passes_on else f"{text} {_UVM}",
            edits=(
                Edit(
                    file="/etc/pve/lxc/ID.conf",
                    what="\n".join(lines if passes_on else _raw_lines(m)),
                ),
            ),
            note=_same_driver(m),
        ),
    )


_OF_DRIVER = re.compile(r"(?:libnvidia|nvidia|libcuda1|libnvcuvid|xorg-x11-drv-nvidia)[\w.+-]*")


def host_libraries(m: Machine) -> Remedies:
    """The host's driver libraries in place of those that were installed in the container."""
    kind, kernel, name = m.container.kind or "", m.platform.kernel or "", _name(m)
    packages = [
        package.name
        for package in m.driver.packages or ()
        if package.manager == "dpkg" and _OF_DRIVER.fullmatch(package.name)
    ]
    version, cpu = m.driver.kernel, m.platform.machine
    if kind == "lxc" and kernel.endswith("-pve") and version and cpu in ("x86_64", "aarch64"):
        run = f"NVIDIA-Linux-{cpu}-{version}.run"
        page = f"https://download.nvidia.com/XFree86/Linux-{cpu}/{version}/{run}"
        file = f"/var/cache/{run}"  # where only root writes
        away: Commands = (("apt-get", "remove", "-y", *packages),) if packages else ()
        return (
            Remedy(
                id="driver-out-of-image",
                title=f"Install the host's driver libraries ({version}) in the container",
                needs_root=True,
                commands=(
                    *away,
                    *system_packages("apt-get", "wget") * bool(packages),
                    ("wget", "-O", file, page),
                    ("sh", file, "--silent", "--no-kernel-modules"),
                ),
                note="The host provides the kernel module, so its driver version is the one to "
                "match. Repeat this step after each driver update on the host.",
            ),
        )
    if kind == "lxc" and kernel.endswith("-pve"):
        text = (
            _same_driver(m)
            or "In the container, install driver libraries at the same version as the host's "
            "driver."
        )
        title = "Install driver libraries that match the host's driver version"
        return by_hand("driver-out-of-image", title, text)
    if kind != "lxc":
        text = (
            "Remove the driver libraries (libcuda.so.*, libnvidia-*.so.*) from the image; the "
            "container toolkit mounts the host's copies. After a driver update on the host, "
            "restart the container."
        )
        title = "Use the host's driver libraries"
        return by_hand("driver-out-of-image", title, text, "container")
    removing: Strings = ("apt-get", "remove", "--purge", "-y", *packages) if packages else ()
    if m.driver.packages == ():
        # Libraries that no package owns came with NVIDIA's installer, which brought this program.
        removing = ("nvidia-uninstall", "--silent")
    host = f"`incus config set {name} nvidia.runtime=true` and `incus restart {name}`"
    return (
        Remedy(
            id="driver-out-of-image",
            title="Remove the driver libraries from the container",
            needs_root=True,
            commands=(removing, ("ldconfig",)) if removing else (),
            manual=None
            if removing
            else "Remove the packages that own libcuda.so.1 and libnvidia-ml.so.1.",
            note=f"Then, on the host, run {host} to mount the host's libraries. With LXD, use "
            "`lxc` instead of `incus`.",
        ),
    )


def _raw_lines(m: Machine) -> list[str]:
    """The lines of LXC itself. 195 is the major number of NVIDIA's nodes, 511 often that of UVM."""
    return [
        "lxc.cgroup2.devices.allow: c 195:* rwm",
        "lxc.cgroup2.devices.allow: c 511:* rwm",
        *(
            f"lxc.mount.entry: {node} {node[1:]} none bind,optional,create=file"
            for node in _nodes(m)
        ),
    ]


def _plain_lxc(m: Machine) -> Remedies:
    lines = "\n".join(_raw_lines(m)).replace(": ", " = ")
    return (
        Remedy(
            id="grant-gpu-lxc",
            title="Give the plain LXC container the host's GPU",
            where="host",
            risk=Risk.PROCESS,
            manual=_UVM,
            edits=(Edit(file=f"/var/lib/lxc/{_name(m)}/config", what=lines),),
            note=_same_driver(m),
        ),
    )


def _nspawn(m: Machine) -> Remedies:
    """A container of an unknown kind; systemd-nspawn's own files are the usual case."""
    nodes = [node for node in _nodes(m) if node != "/dev/nvidia-uvm-tools"]
    binds = "\n".join(("[Files]", *(f"Bind={node}" for node in nodes)))
    rules = "\n".join(("[Service]", *(f"DeviceAllow={node} rw" for node in nodes)))
    return (
        Remedy(
            id="grant-gpu",
            title="Start the container with access to the host's GPU",
            where="container",
            risk=Risk.PROCESS,
            manual="The type of this container is unknown. With systemd-nspawn, bind-mount the "
            "device nodes, allow access to them, and restart the container.",
            edits=(
                Edit(file=f"/etc/systemd/nspawn/{_name(m)}.nspawn", what=binds),
                Edit(file=f"{_DROP_IN.format(name=_name(m))}/gpu.conf", what=rules),
            ),
            note=_same_driver(m),
        ),
    )


# --- the groups of a host ------------------------------------------------------------------------

_NO_LABEL = "--security-opt=label=disable"
_TRIED = (
    "This command starts a test container to show whether `--security-opt=label=disable` is enough."
)
_NOT_TO_JOIN = {"root", "nogroup", "nobody", "sudo", "wheel", "admin", "adm", "disk", "shadow"} | {
    *("docker", "lxd", "incus-admin", "libvirt")
}
"""Groups of nobody, and those whose members are as good as root."""
_VIDEO = {"ubuntu": 44, "debian": 44, "rhel": 39, "fedora": 39, "amazon": 39}
"""The number of the video group, where the distribution fixes it."""
_INITRAMFS: dict[str, Commands] = {
    "ubuntu": (("update-initramfs", "-u"),),
    "debian": (("update-initramfs", "-u"),),
    "rhel": (("dracut", "--force"),),
    "fedora": (("dracut", "--force"),),
}
"""What copies the options of modules into the image that the kernel starts from."""
_OPTION = "options nvidia NVreg_DeviceFileUID=0 NVreg_DeviceFileGID={gid} NVreg_DeviceFileMode=0660"


def device_groups(m: Machine) -> Remedies:
    """Let the user open the GPU's device nodes."""
    side, kind, user = side_of(m), m.container.kind or "", m.identity.user or USER
    if side in ("windows", "macos"):
        return ()
    owners = {node.group for node in m.driver.nodes or () if node.errno == EACCES} - {None}
    # The groups that own the nodes which could not be opened; else the customary ones.
    groups = sorted(filter(None, owners - _NOT_TO_JOIN)) or ["video", "render"]
    if open_to_all(m):
        return _labelled(m)
    if kind not in ("", "apptainer"):
        return _groups_inside(m, groups[0])
    if m.container.scheduler:
        text = f"Ask the administrator to add {user} to the {groups[0]} group on this node."
        return by_hand("device-groups", "Get access to the GPU's device files", text, "admin")
    if owners and owners <= _NOT_TO_JOIN and side in ("linux", "dgx"):
        return _group_of_the_nodes(m, user)
    step = Remedy(
        id="device-groups",
        title=f"Add yourself to the {' and '.join(groups)} group{'s'[: len(groups) > 1]}",
        where="host" if kind else "here",
        needs_root=True,
        commands=(("usermod", "-aG", ",".join(groups), user),),
        tool="usermod",
        note="Then log out and back in. To apply the change to the current shell only, run "
        f"`newgrp {groups[0]}` instead.",
    )
    if family_of(m) != "nixos":
        return (step,)
    wanted = " ".join(f'"{group}"' for group in groups)
    line = f"users.users.{m.identity.user or 'NAME'}.extraGroups = [ {wanted} ];"
    edit = Edit(file="/etc/nixos/configuration.nix", what=line)
    return (replace(step, edits=(edit,), commands=(), manual=_REBUILD, tool=None),)


def _labelled(m: Machine) -> Remedies:
    """Let a security module (SELinux, AppArmor) grant what the files' mode allows anyway."""
    kind = m.container.kind or ""
    if (run := _RUN.get(kind)) and not _kubernetes(m):
        title = f"Start the container with {_NO_LABEL}"
        flags = " ".join(dict.fromkeys((_FLAG[kind], _NO_LABEL)))
        (step,) = container_option(m, "device-label", title, _NO_LABEL)
        image = "ubuntu" if run == "docker" else "docker.io/library/ubuntu"
        tried = (run, "run", "--rm", *flags.split(), image, "nvidia-smi")
        host = Remedy(
            id="device-label-host",
            title="Allow all containers to use devices under SELinux",
            where="host",
            needs_root=True,
            commands=(("setsebool", "-P", "container_use_devices", "on"),),
        )
        return replace(step, commands=(tried,), note=_TRIED), host
    if _kubernetes(m):
        text = (
            "Ask the administrator to allow this with `seLinuxOptions: {type: spc_t}` in the pod's "
            "securityContext, or with container_use_devices on the node."
        )
        return by_hand("device-label", "Allow the pod to use the GPU's device files", text, "admin")
    text = (
        "To see what is denying access, run `sudo dmesg | grep -i denied`. Run the program "
        "outside its sandbox (snap, Flatpak), or change the sandbox profile to allow "
        "/dev/nvidia*."
    )
    return by_hand(
        "device-label", "Find out which security module is denying access", text, keeper_of(m)
    )


def _groups_inside(m: Machine, group: str) -> Remedies:
    """The group of the nodes, given to the container by whoever starts it."""
    title = f"Add the {group} group when you start the container"
    if (m.container.kind or "") in _RUN and not _kubernetes(m):
        group = "keep-groups" if m.container.kind == "podman" else group
        return container_option(m, "device-groups", title, f"--group-add {group}")
    if _kubernetes(m):
        text = (
            "Set the pod's `securityContext.supplementalGroups` to the number that `stat -c %g "
            "/dev/nvidia0` shows."
        )
    elif m.container.kind == "lxc":
        text = (
            "Assign the device nodes to a group in the container. In Proxmox, use `dev0: "
            "/dev/nvidia0,gid=44`; with LXD or Incus, set the option gid=44 on the gpu device "
            "(44 is the video group on Debian)."
        )
    else:
        text = f"Start the container as a user who is in the {group} group on the host."
    return by_hand("device-groups", title, text, "container")


def _group_of_the_nodes(m: Machine, user: str) -> Remedies:
    """The nodes are root's own: an option of the module says so, and another one gives a group."""
    family = family_of(m)
    gid = _VIDEO.get(family)
    initramfs = _INITRAMFS.get(family, ())
    return (
        Remedy(
            id="device-groups",
            title="Give the video group access to the GPU's device files and join the group",
            needs_root=True,
            reboot=True,
            edits=(
                Edit(
                    file="/etc/modprobe.d/zz-nvidia-device-group.conf",
                    what=_OPTION.format(gid=gid or "GID"),
                    mode="write" if gid else "by hand",
                ),
            ),
            commands=(("usermod", "-aG", "video", user), *initramfs) if gid else (),
            manual=None
            if gid
            else "In the line below, replace GID with the number that `getent group video` shows. "
            f"Then, as root, run `usermod -aG video {user}` and reboot.",
            note="This option overrides the existing option that restricts access, whichever file "
            "in /etc/modprobe.d contains it.",
        ),
    )

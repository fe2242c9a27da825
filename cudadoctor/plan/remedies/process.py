"""Remedies that change one process or that only a person can carry out, and whose machine it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from errno import EACCES, EPERM
from functools import partial
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cudadoctor.model.findings import Edit, PackageChange, Remedies, Remedy, Risk, Where
from cudadoctor.model.machine import Gpu, Machine, OptInt, OptStr, Strings
from cudadoctor.model.variables import OF_LOADER, in_notebook

_FOR_ALL = 0o006
_OF_GPU = re.compile(r"/dev/nvidia\d{1,3}")
Side = Literal["jetson", "wsl", "container", "cluster", "windows", "macos", "dgx", "linux"]
Family = Literal["ubuntu", "debian", "rhel", "amazon", "fedora", "suse", "arch", "nixos", "other"]

_FAMILIES: dict[str, Family] = {
    "ubuntu": "ubuntu",
    "linuxmint": "ubuntu",
    "pop": "ubuntu",
    "debian": "debian",
    "rhel": "rhel",
    "rocky": "rhel",
    "almalinux": "rhel",
    "centos": "rhel",
    "ol": "rhel",
    "amzn": "amazon",
    "fedora": "fedora",
    "suse": "suse",
    "opensuse": "suse",
    "opensuse-leap": "suse",
    "opensuse-tumbleweed": "suse",
    "sles": "suse",
    "arch": "arch",
    "nixos": "nixos",
}


def side_of(m: Machine) -> Side:
    """What kind of machine this is for somebody who would change its driver.

    A container on WSL counts as WSL and one on a Jetson as a Jetson: there the driver comes from
    Windows or from JetPack, whatever box is around the process.
    """
    if m.platform.jetson:
        return "jetson"
    if m.platform.wsl or m.container.dxg or m.container.wsl_libs:
        return "wsl"
    if m.container.kind:
        return "container"
    if m.container.scheduler:
        return "cluster"
    if m.platform.system == "Windows":
        return "windows"
    if m.platform.system == "Darwin":
        return "macos"
    if "dgx" in (m.platform.product or "").lower():
        return "dgx"
    return "linux"


def notebook_of(m: Machine) -> Literal["colab", "kaggle"] | None:
    """The service whose notebook this process belongs to: there the machine is only lent."""
    names = m.env or {}
    if "KAGGLE_KERNEL_RUN_TYPE" in names:
        return "kaggle"  # its images are made from Colab's and keep COLAB_RELEASE_TAG
    return "colab" if "COLAB_RELEASE_TAG" in names or "COLAB_GPU" in names else None


def in_notebook_note(m: Machine, *, packages: bool, variables: Mapping[str, OptStr]) -> OptStr:
    """What a change needs where somebody works in a notebook; None elsewhere."""
    if not in_notebook(m.env):
        return None
    service = notebook_of(m)
    if packages and service == "colab":
        return (
            "Then choose Runtime > Restart session in Colab's menu. A new runtime starts with "
            "Colab's own packages: run these lines again there."
        )
    if packages and service == "kaggle":
        return (
            "Then choose Run > Restart & clear cell outputs in the Kaggle editor. A new session "
            "starts with Kaggle's own packages: run these lines again there."
        )
    if packages:
        return "Then restart the notebook's kernel."
    if service is None and any(name in OF_LOADER for name in variables):
        return (
            "A notebook's kernel inherits this variable from the shell that starts Jupyter: run "
            "this line in that shell, then start Jupyter again."
        )
    if variables:
        return (
            "Restart the notebook's kernel and run this in its first cell, before importing torch."
        )
    return None


def keeper_of(m: Machine) -> Where:
    """Who may change the system under this process."""
    if m.container.scheduler or m.container.kind == "kubernetes":
        return "admin"
    if side_of(m) == "wsl":
        return "windows"
    return "host" if m.container.kind else "here"


class _Cluster(NamedTuple):
    """What a user does about a bad node, and how an administrator takes it out of service."""

    avoid: str
    drain: str
    jobs: str
    back: str


_CLUSTERS = {
    "slurm": _Cluster(
        "Resubmit the job with `sbatch --exclude={node}` and your job script, and report this node "
        "to your administrator.",
        "scontrol update NodeName={node} State=DRAIN Reason=faulty-GPU",
        "squeue -w {node}",
        "scontrol update NodeName={node} State=RESUME",
    ),
    "lsf": _Cluster(
        "Resubmit the job with `bsub -R \"select[hname!='{node}']\"` and your job script, and "
        "report this node to your administrator.",
        "badmin hclose {node}",
        "bjobs -u all -m {node}",
        "badmin hopen {node}",
    ),
    "pbs": _Cluster(
        "Report this node ({node}) to your administrator, and resubmit the job once the node is "
        "offline.",
        "pbsnodes -o {node}",
        "pbsnodes {node}",
        "pbsnodes -r {node}",
    ),
}
_UNKNOWN = {
    "slurm": ("$SLURMD_NODENAME", ""),
    "lsf": ("NODE", " `bjobs -o exec_host $LSB_JOBID` shows the node's name."),
    "pbs": ("NODE", " `qstat -n $PBS_JOBID` shows the node's name."),
}
"""What stands for the name of a node that is not known, and where to find it."""
_POD_ELSEWHERE = (
    "Run `kubectl get pod {pod} -o wide` to see which node this is, and report the node to your "
    "administrator. Once the node is cordoned (`kubectl cordon`), delete the pod: its controller "
    "will create a new one on another node."
)
_OF_ITS_HOST = ("", None, "apptainer", "enroot")
"""Containers that show the name of their host."""


def _node(m: Machine) -> OptStr:
    """The name of the node as its scheduler calls it, where that is known."""
    host = m.identity.host if m.container.kind in _OF_ITS_HOST else None
    node = (m.env or {}).get("SLURMD_NODENAME") or (host or "").partition(".")[0]
    return node if re.fullmatch(r"[\w.-]{1,63}", node) and not m.redacted else None


def another_node(m: Machine) -> Remedies:
    """What the user of a job can do about a fault of its node; () outside a cluster."""
    kind = m.container.scheduler or m.container.kind or ""
    node, pod = _node(m), m.identity.host or "$HOSTNAME"
    if cluster := _CLUSTERS.get(kind):
        name, where = _UNKNOWN.get(kind, ("NODE", ""))
        text = cluster.avoid.format(node=node or name)
        text += "" if node else where
    elif kind == "kubernetes":
        known = re.fullmatch(r"[\w.-]{1,63}", pod) and not m.redacted
        text = _POD_ELSEWHERE.format(pod=pod if known else "$HOSTNAME")
    else:
        return ()
    return by_hand("another-node", "Use another node", text)


def drained(m: Machine, step: Remedy, command: str) -> Remedy:
    """A step of the administrator's that would hit the jobs of others, after the last of them."""
    cluster, node = _CLUSTERS.get(m.container.scheduler or ""), _node(m)
    if cluster is None or node is None:
        return step
    drain, jobs, back = (text.format(node=node) for text in cluster[1:])
    return replace(
        step,
        title=f"Drain the node, then {step.title[0].lower()}{step.title[1:]}",
        needs_root=True,
        reboot=False,
        manual=None,
        commands=commands_in(drain),
        note=f"When `{jobs}` shows no jobs, run `sudo {command}` on the node, then `sudo {back}`.",
    )


def smi_ids(m: Machine, gpus: Iterable[Gpu]) -> str:
    """The GPUs for `nvidia-smi -i`, as they are called where the command is run."""
    here = keeper_of(m) == "here"
    return ",".join(str(gpu.index) if here or not gpu.bus_id else gpu.bus_id for gpu in gpus)


def indexes_of(gpus: Iterable[Gpu]) -> str:
    """The indexes of GPUs in a sentence: "3", "2, 5", "0-7"."""
    numbers = sorted(gpu.index for gpu in gpus)
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def family_of(m: Machine) -> Family:
    """The distribution's family, by its own id first, then by what it is like."""
    like = m.platform.distro_like or ()
    if m.platform.distro == "linuxmint" and "ubuntu" not in like and "debian" in like:
        return "debian"  # Linux Mint's Debian edition
    for name in (m.platform.distro, *like):
        if name in _FAMILIES:
            return _FAMILIES[name]
    return "other"


def major_of(m: Machine) -> OptInt:
    """The distribution's major release: 9 for 9.4."""
    head = (m.platform.distro_version or "").split(".")[0]
    return int(head) if head.isdigit() else None


def open_to_all(m: Machine) -> bool:
    """Whether the refused nodes admit everybody by their mode: then no group is the reason."""
    refused = [node for node in m.driver.nodes or () if node.errno == EACCES]
    return bool(refused) and all(
        node.mode is not None and node.mode & _FOR_ALL == _FOR_ALL for node in refused
    )


def has_nvlink_5(m: Machine) -> bool:
    """Whether its GPUs are of a generation (Blackwell's) with NVLink 5."""
    return any(gpu.capability and gpu.capability.major >= 10 for gpu in m.gpus or ())


def driver_folder(m: Machine) -> OptStr:
    """Where a container has the driver's libraries beside nvidia-smi, off the loader's own path."""
    name = m.driver.smi.path or ""
    return "/usr/local/nvidia/lib64" if name.startswith("/usr/local/nvidia/bin/") else None


_REFUSED_KEY = (
    "key was rejected by service",
    "required key not available",
    "loading of module with unavailable key",
    "loading of unsigned module is rejected",
    "unsigned module loading is restricted",
)
_TAINTED = "module verification failed"
"""Also said of a module that was loaded all the same, where Secure Boot is off."""


def refuses_key(m: Machine) -> bool:
    """Whether the kernel log shows that Secure Boot refuses the driver's module."""
    log = "\n".join(m.driver.log or ()).lower()
    tainted = _TAINTED in log and m.platform.secure_boot is not False
    return tainted or any(words in log for words in _REFUSED_KEY)


def builds_here(m: Machine) -> bool:
    """Whether an extension can be compiled against the installed torch: nvcc of its CUDA major."""
    cuda = m.torch.cuda
    fits = (
        toolkit.nvcc and toolkit.cuda and cuda and toolkit.cuda.major == cuda.major
        for toolkit in m.build.toolkits or ()
    )
    return m.platform.system == "Linux" and any(fits)


def is_cloud(m: Machine) -> bool:
    """Whether this looks like a provider's virtual machine, whose image brings its own driver."""
    product = (m.platform.product or "").lower()
    return bool(m.platform.virtual) and (
        product in {"google compute engine", "virtual machine"} or "." in product
    )


class _Cloud(NamedTuple):
    """How a provider's own command moves a virtual machine, and where its words come from."""

    commands: str
    words: str


_CLOUDS = {
    "azure": _Cloud(
        "az vm deallocate --resource-group GROUP --name {name};"
        "az vm start --resource-group GROUP --name {name}",
        "`az vm list --output table` shows the VM's name and resource group.",
    ),
    "aws": _Cloud(
        "aws ec2 stop-instances --instance-ids INSTANCE;"
        "aws ec2 wait instance-stopped --instance-ids INSTANCE;"
        "aws ec2 start-instances --instance-ids INSTANCE",
        "On this VM, `cat /sys/devices/virtual/dmi/id/board_asset_tag` prints its instance ID.",
    ),
    "gcp": _Cloud(
        "gcloud compute instances stop {name};gcloud compute instances start {name}",
        "`gcloud compute instances list` shows the VM's name. If it has local SSDs, add "
        "`--discard-local-ssd=true` to the stop command.",
    ),
}
_INSTANCE_TYPE = re.compile(r"[a-z][\w-]{1,9}\.(?:\d*x)?(?:large|metal)[\w-]*")
_SUPPORT = (
    "Data on the VM's local (temporary) disks is lost. If the VM comes back with the same GPU, run "
    "`sudo nvidia-bug-report.sh` and send nvidia-bug-report.log.gz to your provider's support."
)


def move_vm(m: Machine) -> Remedies:
    """Stop and start a provider's virtual machine, which is how it gets other hardware."""
    if keeper_of(m) == "admin" or not is_cloud(m):
        return ()
    product, kernel = (m.platform.product or "").lower(), m.platform.kernel or ""
    azure = product == "virtual machine" and "azure" in kernel
    of_google = "gcp" if product == "google compute engine" else ""
    kind = "azure" if azure else "aws" if _INSTANCE_TYPE.fullmatch(product) else of_google
    title = "Move this VM to another host"
    if (cloud := _CLOUDS.get(kind)) is None:
        text = "In your provider's console, stop (deallocate) this VM and start it again."
        return by_hand("move-vm", title, text, "host", Risk.SYSTEM, note=_SUPPORT)
    commands = commands_in(cloud.commands, name=_node(m) or "NAME")
    return (
        Remedy(
            id="move-vm",
            title=title,
            where="cloud",
            commands=commands,
            note=f"{cloud.words} {_SUPPORT}",
        ),
    )


def on_hardware(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    text: str,
    *,
    note: OptStr = None,
) -> Remedies:
    """What is done to the hardware, which nobody touches from inside a virtual machine.

    A rented one gets other hardware instead.
    """
    keeper = keeper_of(m)
    where = "host" if keeper == "here" and m.platform.virtual else keeper
    return move_vm(m) or by_hand(id, title, text, where, note=note)


def commands_in(text: str, **words: object) -> tuple[Strings, ...]:
    """The commands in a text that separates them by semicolons, with the words filled in."""
    filled = text.format(**words) if words else text
    return tuple(filter(None, (tuple(argv.split()) for argv in filled.split(";"))))


def by_hand(
    id: str,  # noqa: A002
    title: str,
    text: str,
    where: Where = "here",
    risk: Risk = Risk.PROCESS,
    *,
    note: OptStr = None,
) -> Remedies:
    """Anything else, as a sentence."""
    return (Remedy(id=id, title=title, where=where, risk=risk, manual=text, note=note),)


_BUSY_FROM, _NEAR_THE_LIMIT = 20, 0.7
"""Per cent of utilization, and the part of the power limit, that only a living process reaches."""


def is_busy(gpu: Gpu) -> bool:
    """Whether the GPU is at work now, as far as is known."""
    power, limit = gpu.power_w, gpu.power_limit_w
    drawn = power is not None and limit and power > _NEAR_THE_LIMIT * limit
    return bool(drawn) or (gpu.utilization or 0) >= _BUSY_FROM


_HOLDER = re.compile(r"Process (\d{1,7}) has ([\d.]+ [KMG]iB) memory in use")
"""What torch's message says of other processes, by their numbers on the host."""


def told_holders(m: Machine) -> dict[str, str]:
    """The processes that hold memory by torch's own message, and how much each has."""
    stages = m.smoke.stages if m.smoke else ()
    return dict(pair for stage in stages or () for pair in _HOLDER.findall(stage.detail or ""))


def rename_file(m: Machine, file: str) -> Remedies:
    """Another name for a file of the user's that hides a module; nothing is overwritten."""
    mark = "\\" if m.platform.system == "Windows" else "/"
    folder, _, name = file.rpartition(mark)
    title = f"Rename {name}"
    if m.redacted:
        text = (
            f"Rename {file} to something that is not the name of a Python module, or start the "
            "program from another folder."
        )
        return by_hand("rename-file", title, text)
    moved = ("mv", "-n", file, f"{folder}/my_{name}")
    renamed = ("ren", file, f"my_{name}")
    command = moved if mark == "/" else renamed
    note = "Then change the imports in scripts that use this file."
    return (
        Remedy(id="rename-file", title=title, risk=Risk.PROCESS, commands=(command,), note=note),
    )


_step = partial(Remedy, risk=Risk.PROCESS)


UVM_AT_BOOT = Edit(file="/etc/modules-load.d/nvidia-uvm.conf", what="nvidia_uvm", mode="write")
_JOBS = ("slurm", "lsf", "pbs")


def unset_variables(m: Machine, *names: str) -> Remedies:
    """Take variables out of the environment of the program; () where none of them is its own.

    A scheduler's choice of GPUs is never overridden, unless the job can reach no GPU of others.
    """
    kept_out = m.container.scheduler in _JOBS and not _works_fenced(m)
    chosen = "CUDA_VISIBLE_DEVICES" if kept_out else ""
    kept = [name for name in names if name != chosen]
    if not kept:
        return ()
    return (
        Remedy(
            id="unset-" + "-".join(name.lower().replace("_", "-") for name in kept),
            title=f"Unset {' and '.join(kept)}" if len(kept) < 3 else f"Unset {', '.join(kept)}",
            risk=Risk.PROCESS,
            variables=dict.fromkeys(kept),
            note=lasting(m, *kept),
        ),
    )


def _works_fenced(m: Machine) -> bool:
    """Whether CUDA works without the variables, on no more GPUs than the job's control group has.

    That group refuses the nodes of other jobs' GPUs with EPERM.
    """
    libcuda, nodes = m.driver.libcuda, m.driver.nodes or ()
    seen = sum(not gpu.code for gpu in m.gpus or ())
    fenced = any(node.errno == EPERM and _OF_GPU.fullmatch(node.path) for node in nodes)
    return fenced and libcuda.clean_code == 0 and 0 < (libcuda.clean_count or 0) <= seen


_MODULES = re.compile(
    r"(?:^|:)/(?:apps|sw|software|modules|easybuild|cvmfs|opt/apps|opt/ohpc|cm/shared|spack)/"
    r"(?:[\w.-]+/)*?(?:cuda|cudnn|nccl|gcc|anaconda|intel|openmpi)[/\d.:-]",
    re.IGNORECASE,
)
"""Folders that environment modules usually lead to."""
_LINES = "`grep -n {name} ~/.bashrc ~/.bash_profile ~/.profile`"
"""What finds the line of a user that sets a variable, where jobs run."""


def _loaded_module(m: Machine, value: str) -> OptStr:
    """The loaded environment module whose folder stands in a value."""
    for module in (m.env or {}).get("LOADEDMODULES", "").split(":"):
        folders = (f"/{module}/", f"/{module.replace('/', '-')}/")
        sound = re.fullmatch(r"[A-Za-z][\w.+-]*(?:/[\w.+-]+)+", module) and not m.redacted
        if sound and any(folder.lower() in f"{value}/".lower() for folder in folders):
            return module
    return None


def lasting(m: Machine, name: str, *others: str) -> str:
    """Where the line that sets a variable may stand, as its value tells."""
    if others and m.platform.system == "Linux" and not m.container.kind:
        lines = " ".join(f"-e {each}" for each in (name, *others))
        job = ", and those in the job script" if m.container.scheduler else ""
        return (
            f"To make this permanent, edit or delete the lines that `grep -n {lines} ~/.bashrc "
            f"~/.profile ~/.zshrc /etc/environment /etc/profile.d/*` finds{job}."
        )
    value, prefix = (m.env or {}).get(name, ""), m.python.prefix or ""
    lines = _LINES.format(name=name)
    if module := _loaded_module(m, value):
        return (
            f"The loaded module {module} has a folder in {name}: also run `module unload "
            f"{module}`. To make this permanent, delete the line that sets {name} and the "
            f"`module load` line from the job script or your shell's files: {lines}."
        )
    if m.container.kind == "apptainer":
        return (
            "The image or the host shell sets this variable whenever the container starts. Unset "
            f"it there, or run `env -u {name} python` in the container."
        )
    conda = (m.env or {}).get("CONDA_PREFIX") or prefix
    if (m.python.kind or "").startswith("conda") and conda and value.startswith(conda):
        return (
            f"The conda environment sets this variable: use `grep -l {name} "
            "$CONDA_PREFIX/etc/conda/activate.d/*` to find the file that does so. If there is "
            f"none, run `conda env config vars unset {name}`."
        )
    if m.platform.system == "Windows":
        return (
            f"To make this permanent, edit or delete {name} in the Windows Environment Variables "
            "dialog."
        )
    if m.container.kind in ("docker", "podman", "containerd"):
        return (
            f"To make this permanent, edit or delete {name} in the Dockerfile or in the command "
            "that starts the container."
        )
    if m.container.kind == "enroot":
        return (
            f"The image or the job script sets {name} whenever the container starts. To make "
            "this permanent, edit or delete the variable there (for the image, its ENV line in "
            "the Dockerfile), then import the image again."
        )
    if m.container.kind == "kubernetes":
        return f"To make this permanent, edit or delete {name} in the pod's manifest."
    perhaps = " If `module list` shows a module with this path, unload it too."
    perhaps = perhaps if _MODULES.search(value) else ""
    if m.container.scheduler:
        return (
            f"To make this permanent, edit or delete the line that sets {name} in the job script "
            f"or your shell's files: {lines}.{perhaps}"
        )
    return (
        f"To make this permanent, use `grep -n {name} ~/.bashrc ~/.profile ~/.zshrc "
        "/etc/environment /etc/profile.d/*` to find the line that sets the variable, then edit "
        "or delete it."
        f"{perhaps}"
    )


_FOLDER = re.compile(r"/[A-Za-z0-9_./-]{1,100}")


def in_front(m: Machine, name: str, folder: str) -> str:
    """The value of a path list with that folder first: what the list already has stays in it."""
    entries = (m.env or {}).get(name, "").split(":")
    kept = (entry for entry in entries if _FOLDER.fullmatch(entry))
    return ":".join(dict.fromkeys((folder, *kept)))


def keep_setting(m: Machine) -> str:
    """Where the lines that set variables may stand for good."""
    if m.container.kind in ("docker", "podman", "containerd", "kubernetes"):
        return "To make this permanent, set the variables with ENV lines in the Dockerfile."
    if m.platform.system == "Windows":
        return (
            "To make this permanent, set the variables in the Windows Environment Variables dialog."
        )
    place = "the job script" if m.container.scheduler else "~/.bashrc"
    return f"To make this permanent, add the `export` lines to {place}."


def set_variables(
    id: str,  # noqa: A002
    title: str,
    variables: dict[str, str],
) -> Remedies:
    """Set variables for the program."""
    return (_step(id=id, title=title, variables=variables),)


def install_packages(
    id: str,  # noqa: A002
    title: str,
    *requirements: str,
    remove: Strings = (),
) -> Remedies:
    """A change to the packages of the environment that does not touch torch."""
    if not requirements and not remove:
        return ()
    change = PackageChange(install=requirements, remove=remove)
    return (Remedy(id=id, title=title, risk=Risk.ENVIRONMENT, packages=change),)


_NAME = "LD_LIBRARY_PATH"
_TOOLKIT = re.compile(r"(/usr/local/cuda|/opt/cuda)(?:-([\d.]+))?(?=/|$)")
_TARGET = re.compile(r"/targets/[\w-]+-linux/lib(?=/|$)")
_PROGRAM = re.compile(r"/opt/(?!cuda)[\w.-]+/[\w.-]+/")
_DISTINCT_FOLDERS = ("stubs", "compat")


def off_search_path(m: Machine, folder: str) -> Remedies:
    """The variable without the entries that lead to that folder; () where none does.

    A folder of "" is not known: then entries that are stubs by their name are meant.
    """
    entries = [entry for entry in re.split("[:;]", (m.env or {}).get(_NAME, "")) if entry]
    gone = [entry for entry in entries if _leads_to(entry, folder, m)]
    if not gone:
        return ()
    # A program's own folders belong together: one without the other serves nobody.
    programs = [found[0] for entry in gone if (found := _PROGRAM.match(entry))]
    gone = [entry for entry in entries if entry in gone or entry.startswith(tuple(programs))]
    rest = [entry for entry in entries if entry not in gone]
    if not rest:
        return unset_variables(m, _NAME)
    title = f"Remove {' and '.join(dict.fromkeys(gone))} from {_NAME}"
    (step,) = set_variables("trim-ld-library-path", title, {_NAME: ":".join(rest)})
    if m.container.kind != "apptainer":
        return (replace(step, note=lasting(m, _NAME)),)
    note = (
        "The image sets this variable whenever the container starts: pass the new value to "
        "`apptainer exec` with `--env LD_LIBRARY_PATH=`, or edit the image's %environment "
        "section."
    )
    return (replace(step, note=note),)


def _leads_to(entry: str, folder: str, m: Machine) -> bool:
    """Whether an entry is that folder: as it was resolved there, else by the usual links."""
    if not folder:
        return "stubs" in entry.split("/")
    search = m.libraries.search
    real = next((known.real for known in search or () if known.entry == entry), entry)
    if _alike(real, folder):
        return True
    # Where nobody followed the links, an entry of that kind is the way to it.
    kind = next((word for word in _DISTINCT_FOLDERS if word in folder.split("/")), None)
    return search is None and kind is not None and kind in entry.split("/")


def _alike(folder: str, other: str) -> bool:
    """The same folder, with or without CUDA's version in its name, or as lib64."""
    first, second = _plain(folder), _plain(other)
    versions = _version(folder), _version(other)
    # /usr/local/cuda-12 is a link to one of the 12.x, /usr/local/cuda to any.
    same = versions[0].startswith(versions[1]) or versions[1].startswith(versions[0])
    return first == second and same


def _plain(folder: str) -> str:
    plain = _TARGET.sub("/lib64", _TOOLKIT.sub(r"\1", re.sub("/+", "/", folder).rstrip("/")))
    return plain.removeprefix("/usr") if plain.startswith("/usr/lib") else plain


def _version(folder: str) -> str:
    found = _TOOLKIT.match(folder)
    return f"{found[2]}." if found and found[2] else ""

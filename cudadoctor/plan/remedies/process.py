"""Remedies that change one process or that only a person can carry out, and whose machine it is."""

from __future__ import annotations

import re
from errno import EACCES
from functools import partial
from typing import Literal

from cudadoctor.model.findings import Edit, PackageChange, Remedies, Remedy, Risk, Where
from cudadoctor.model.machine import Machine, OptInt, OptStr, Strings
from cudadoctor.solver.demand import listed

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


def keeper_of(m: Machine) -> Where:
    """Who may change the system under this process."""
    if m.container.scheduler or m.container.kind == "kubernetes":
        return "admin"
    if side_of(m) == "wsl":
        return "windows"
    return "host" if m.container.kind else "here"


def family_of(m: Machine) -> Family:
    """The distribution's family, by its own id first, then by what it is like."""
    for name in (m.platform.distro, *(m.platform.distro_like or ())):
        if name in _FAMILIES:
            return _FAMILIES[name]
    return "other"


def major_of(m: Machine) -> OptInt:
    """The distribution's major release: 9 for 9.4."""
    head = (m.platform.distro_version or "").split(".")[0]
    return int(head) if head.isdigit() else None


def is_cloud(m: Machine) -> bool:
    """Whether this looks like a provider's virtual machine, whose image brings its own driver."""
    product = (m.platform.product or "").lower()
    return bool(m.platform.virtual) and (
        product in {"google compute engine", "virtual machine"} or "." in product
    )


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


_step = partial(Remedy, risk=Risk.PROCESS)


def unset_variables(m: Machine, *names: str) -> Remedies:
    """Take variables out of the environment of the program.

    A scheduler's choice of GPUs is never overridden: there the way out is to ask it for GPUs.
    """
    chosen = "CUDA_VISIBLE_DEVICES" if keeper_of(m) == "admin" else ""
    kept = [name for name in names if name != chosen]
    if not kept:
        return grant_gpu(m) if names else ()
    return (
        Remedy(
            id="unset-" + "-".join(name.lower().replace("_", "-") for name in kept),
            title=f"Unset {listed(kept)}",
            risk=Risk.PROCESS,
            variables=dict.fromkeys(kept),
            note="Lasts for this shell; to keep it, remove the line that sets it from the shell's "
            "start-up file or the job script.",
        ),
    )


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


def device_groups(m: Machine) -> Remedies:
    """Let the user open the GPU's device nodes."""
    side = side_of(m)
    if side in ("windows", "macos"):
        return ()
    if m.container.kind or side == "cluster":
        where = keeper_of(m)
        how = "membership of the group that owns the nodes"
        if m.container.kind:
            how = "`--group-add` with the group that owns the nodes, when the container is started"
        text = f"Ask for access to /dev/nvidia* for this user: {how}."
        return by_hand("device-groups", "Get access to the GPU's device nodes", text, where)
    # The groups that own the nodes which could not be opened; else the customary ones.
    refused = (node.group for node in m.driver.nodes or () if node.errno == EACCES)
    owning = {group: None for group in refused if group and group != "root"}
    groups = [*owning] or ["video", "render"]
    user = None if m.redacted else m.identity.user
    return (
        Remedy(
            id="device-groups",
            title=f"Add this user to the {listed(groups)} group{'s'[: len(groups) > 1]}",
            needs_root=True,
            commands=(("usermod", "-aG", ",".join(groups), user),) if user else (),
            manual=None if user else f"Add the user to {listed(groups)} with usermod -aG.",
            tool="usermod",
            note="Takes effect after logging out and in again. It opens the GPU to this user only.",
        ),
    )


_NAME = "LD_LIBRARY_PATH"
_TOOLKIT = re.compile(r"(/usr/local/cuda|/opt/cuda)(?:-([\d.]+))?(?=/|$)")
_TARGET = re.compile(r"/targets/[\w-]+-linux/lib(?=/|$)")
_DISTINCT_FOLDERS = ("stubs", "compat")


def off_search_path(m: Machine, folder: str) -> Remedies:
    """The variable without the entries that lead to that folder; () where none does.

    A folder of "" is not known: then entries that are stubs by their name are meant.
    """
    entries = [entry for entry in re.split("[:;]", (m.env or {}).get(_NAME, "")) if entry]
    gone = [entry for entry in entries if _leads_to(entry, folder, m)]
    if not gone:
        return ()
    rest = [entry for entry in entries if entry not in gone]
    if not rest:
        return unset_variables(m, _NAME)
    title = f"Take {' and '.join(dict.fromkeys(gone))} out of {_NAME}"
    return set_variables("trim-ld-library-path", title, {_NAME: ":".join(rest)})


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


_GRANT = {
    "docker": "Start the container with `docker run --gpus all ...` (Compose: `gpus: all`).",
    "podman": "Start the container with `podman run --device nvidia.com/gpu=all ...`.",
    "containerd": "Start the container with `nerdctl run --gpus all ...`.",
    "apptainer": "Start the container with `apptainer exec --nv ...`.",
    "enroot": "Start the job with `srun --gpus=1 --container-image=...`, so that it gets a GPU.",
    "lxc": "Give the container the host's /dev/nvidia* nodes and, inside, the same driver version "
    "without kernel modules; on LXD: `lxc config device add NAME gpu gpu`.",
}
_HOST_NEEDS = {
    "docker": "The host needs the nvidia-container-toolkit package, "
    "`nvidia-ctk runtime configure --runtime=docker` once as root, and a restart of Docker.",
    "podman": "The host needs the nvidia-container-toolkit package and a CDI file, made once as "
    "root by `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`.",
    "containerd": "The host needs the nvidia-container-toolkit package.",
}
_PLUGIN = (
    "The cluster needs NVIDIA's device plugin; its administrator knows the names of the GPU "
    "resources."
)
_ON_WINDOWS = "Docker Desktop passes the GPU on where its WSL 2 engine is in use."
_NOTEBOOKS = {
    "colab": "In Colab's menu, take Runtime, Change runtime type, and a GPU as hardware "
    "accelerator; the runtime starts anew and loses its files.",
    "kaggle": "In Kaggle's editor, choose a GPU under Settings, Accelerator; the session starts "
    "anew.",
}
_SCHEDULERS = {
    "slurm": "Ask Slurm for a GPU: `srun --gres=gpu:1 ...`, or `#SBATCH --gres=gpu:1` in the job.",
    "lsf": 'Ask LSF for a GPU: `bsub -gpu "num=1" ...`.',
    "pbs": "Ask PBS for a GPU: `qsub -l select=1:ngpus=1 ...`.",
}
_GRANTED = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES")
"""What Slurm sets in a job that has a GPU."""
_RUN = {"docker": "docker run", "podman": "podman run", "containerd": "nerdctl run"}
_VARIABLE = re.compile(r"(?:-e|--env)[ =](?P<name>\w+)=(?P<value>.*)")
_SHM = re.compile(r"--shm-size[ =](?P<amount>\d+)[gG]b?")


def grant_gpu(m: Machine) -> Remedies:
    """Start the container, pod or job with a GPU; () where nothing stands between it and them."""
    if notebook := notebook_of(m):
        text = _NOTEBOOKS[notebook]
        return by_hand("grant-gpu", "Choose a GPU for the notebook", text)
    if _kubernetes(m):
        what = "resources.limits: nvidia.com/gpu: 1"
        return _pod("grant-gpu", "Ask Kubernetes for a GPU", what, _PLUGIN)
    if asked := _SCHEDULERS.get(m.container.scheduler or ""):
        return _of_a_job(m, asked)
    if not m.container.kind:
        return ()
    text = _GRANT.get(m.container.kind, "Start the container with access to the host's GPUs.")
    note = _ON_WINDOWS if side_of(m) == "wsl" else _HOST_NEEDS.get(m.container.kind)
    return by_hand("grant-gpu", "Start the container with the GPU", text, "container", note=note)


def _of_a_job(m: Machine, asked: str) -> Remedies:
    """The scheduler gives the job a GPU; Apptainer hands it on into the container."""
    if m.container.kind == "enroot":
        asked = "Ask Slurm for a GPU: `srun --gpus=1 --container-image=... ...`; Pyxis hands it on."
    ask = by_hand("grant-gpu", "Ask the scheduler for a GPU", asked)
    if m.container.kind != "apptainer":
        return ask
    inside = by_hand(
        "gpu-into-container",
        "Start the container with the job's GPU",
        f"{_GRANT['apptainer']} Without `--nv` the container sees no GPU, also where the job has "
        "one.",
        "container",
    )
    return inside + ask if any((m.env or {}).get(name) for name in _GRANTED) else ask + inside


def container_option(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    option: str,
) -> Remedies:
    """Start the container with one more option, such as --shm-size=8g; () outside a container."""
    if _kubernetes(m):
        return _pod(id, title, _in_pod_words(option))
    if not m.container.kind:
        return ()
    if run := _RUN.get(m.container.kind):
        text = f"Start the container with `{run} {option} ...`."
    else:
        text = f"Change how the container is started; Docker's option for it is `{option}`."
    return by_hand(id, title, text, "container")


def _in_pod_words(option: str) -> str:
    """An option of `docker run` as what a pod's manifest says for it."""
    if shm := _SHM.fullmatch(option):
        return (
            f"an emptyDir volume with medium: Memory and sizeLimit: {shm['amount']}Gi, mounted on "
            "/dev/shm"
        )
    if variable := _VARIABLE.fullmatch(option):
        return f'env: [{{name: {variable["name"]}, value: "{variable["value"]}"}}]'
    return f"the counterpart of docker run's {option}"


def _pod(id: str, title: str, what: str, note: OptStr = None) -> Remedies:  # noqa: A002
    edits = (Edit(file="the pod's manifest", what=what),)
    return (_step(id=id, title=title, where="container", tool="kubectl", edits=edits, note=note),)


def _kubernetes(m: Machine) -> bool:
    return "kubernetes" in (m.container.kind, m.container.scheduler)

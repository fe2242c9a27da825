"""Remedies outside the box that the process runs in: how a container or a job is started."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.model.findings import Edit, Remedy, Risk
from cudadoctor.plan.remedies.place import notebook_of, side_of

if TYPE_CHECKING:
    from cudadoctor.model.findings import Where
    from cudadoctor.model.machine import Machine

_MANIFEST = "the pod's manifest"
_GRANT: dict[str, str] = {
    "docker": "Start the container with `docker run --gpus all ...` (Compose: `gpus: all`).",
    "podman": "Start the container with `podman run --device nvidia.com/gpu=all ...`.",
    "containerd": "Start the container with `nerdctl run --gpus all ...`.",
    "apptainer": "Start the container with `apptainer exec --nv ...`.",
    "enroot": "Start the job with `srun --gpus=1 --container-image=...`, so that it gets a GPU.",
    "lxc": "Give the container the host's /dev/nvidia* nodes and, inside, the same driver version "
    "without kernel modules; on LXD: `lxc config device add NAME gpu gpu`.",
}
_HOST_NEEDS: dict[str, str] = {
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
_SCHEDULERS: dict[str, str] = {
    "slurm": "Ask Slurm for a GPU: `srun --gres=gpu:1 ...`, or `#SBATCH --gres=gpu:1` in the job.",
    "lsf": 'Ask LSF for a GPU: `bsub -gpu "num=1" ...`.',
    "pbs": "Ask PBS for a GPU: `qsub -l select=1:ngpus=1 ...`.",
}
_GRANTED = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES")
"""What Slurm sets in a job that has a GPU."""
_RUN = {"docker": "docker run", "podman": "podman run", "containerd": "nerdctl run"}
_VARIABLE = re.compile(r"(?:-e|--env)[ =](?P<name>\w+)=(?P<value>.*)")
_SHM = re.compile(r"--shm-size[ =](?P<amount>\d+)[gG]b?")


def grant_gpu(m: Machine) -> tuple[Remedy, ...]:
    """Start the container, pod or job with a GPU; () where nothing stands between it and them."""
    if notebook := notebook_of(m):
        text = _NOTEBOOKS[notebook]
        return (_started("grant-gpu", "Choose a GPU for the notebook", text, "here"),)
    if _kubernetes(m):
        what = "resources.limits: nvidia.com/gpu: 1"
        return (_pod("grant-gpu", "Ask Kubernetes for a GPU", what, _PLUGIN),)
    if asked := _SCHEDULERS.get(m.container.scheduler or ""):
        return _of_a_job(m, asked)
    if not m.container.kind:
        return ()
    text = _GRANT.get(m.container.kind, "Start the container with access to the host's GPUs.")
    note = _ON_WINDOWS if side_of(m) == "wsl" else _HOST_NEEDS.get(m.container.kind)
    return (_started("grant-gpu", "Start the container with the GPU", text, "container", note),)


def _of_a_job(m: Machine, asked: str) -> tuple[Remedy, ...]:
    """The scheduler gives the job a GPU; Apptainer hands it on into the container."""
    title = "Ask the scheduler for a GPU"
    if m.container.kind == "enroot":
        asked = "Ask Slurm for a GPU: `srun --gpus=1 --container-image=... ...`; Pyxis hands it on."
    ask = _started("grant-gpu", title, asked, "here")
    if m.container.kind != "apptainer":
        return (ask,)
    inside = _started(
        "gpu-into-container",
        "Start the container with the job's GPU",
        f"{_GRANT['apptainer']} Without `--nv` the container sees no GPU, also where the job has "
        "one.",
        "container",
    )
    granted = any((m.env or {}).get(name) for name in _GRANTED)
    return (inside, ask) if granted else (ask, inside)


def container_option(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    option: str,
) -> tuple[Remedy, ...]:
    """Start the container with one more option, such as --shm-size=8g; () outside a container."""
    if _kubernetes(m):
        return (_pod(id, title, _in_pod_words(option)),)
    if not m.container.kind:
        return ()
    if run := _RUN.get(m.container.kind):
        text = f"Start the container with `{run} {option} ...`."
    else:
        text = f"Change how the container is started; Docker's option for it is `{option}`."
    return (_started(id, title, text, "container"),)


def _in_pod_words(option: str) -> str:
    """An option of `docker run` as what a pod's manifest says for it."""
    if shm := _SHM.fullmatch(option):
        size = f"{shm['amount']}Gi"
        return f"an emptyDir volume with medium: Memory and sizeLimit: {size}, mounted on /dev/shm"
    if variable := _VARIABLE.fullmatch(option):
        return f'env: [{{name: {variable["name"]}, value: "{variable["value"]}"}}]'
    return f"the counterpart of docker run's {option}"


def _pod(id: str, title: str, what: str, note: str | None = None) -> Remedy:  # noqa: A002
    return Remedy(
        id=id,
        title=title,
        where="container",
        risk=Risk.PROCESS,
        edits=(Edit(file=_MANIFEST, what=what),),
        tool="kubectl",
        note=note,
    )


def _started(
    id: str,  # noqa: A002
    title: str,
    text: str,
    where: Where,
    note: str | None = None,
) -> Remedy:
    return Remedy(id=id, title=title, where=where, risk=Risk.PROCESS, manual=text, note=note)


def _kubernetes(m: Machine) -> bool:
    return "kubernetes" in (m.container.kind, m.container.scheduler)

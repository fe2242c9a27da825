"""Was the container given the GPU, wholly and for good?"""

from __future__ import annotations

from errno import EPERM

from cudadoctor.model.findings import (
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Machine, Node
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import by_hand, container_option, grant_gpu
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.evidence.signs import (
    MISMATCH,
    NO_PERMISSION,
    SUCCESS,
    UNKNOWN,
    code_path,
    cpu_on_purpose,
    cuda_works,
    driver_code,
    graver_with_cuda,
    host_error_with,
    is_gpu_node,
    only_smi_answers,
    started,
    torch_fails,
    wait_for_table,
)
from cudadoctor.rules.process import visible_count

_MIB = 1 << 20
_SHM_DEFAULT = 64 * _MIB
"""What Docker and Kubernetes give /dev/shm unless told otherwise."""
_SHM_WORDS = (
    "unable to write to file </torch_",
    "error while creating shared memory segment",
    "killed by signal: bus error",
    "unable to open shared memory object",
)


@rule(
    "container-no-gpu",
    title="The host has an NVIDIA GPU, and this container was started without it",
)
def container_no_gpu(m: Machine) -> Answer:
    """Device nodes or driver libraries are missing inside, so torch finds no driver.

    A container shows the host's /proc/driver/nvidia and PCI bus, granted or not, which tells this
    from gpu-not-detected. NVIDIA_VISIBLE_DEVICES=all is set by many images and proves nothing.
    Where the nodes are there and only libcuda is missing, see container-driver-caps; where access
    was there and was lost, container-gpu-lost.

    Cured by how the container is started (docker run --gpus all, --device nvidia.com/gpu=all, --nv,
    a GPU in the pod's limits), with NVIDIA's container toolkit on the host. A driver installed in
    the image makes it worse.
    """
    if (
        not m.container.kind
        or started(m)
        or m.platform.system not in (None, "Linux")
        or driver_code(m) in (NO_PERMISSION, MISMATCH, UNKNOWN)
    ):
        return None
    if m.platform.wsl:
        # Windows has WSL's GPU device; a container gets it, or not, like on any host.
        if m.container.dxg is not False or m.torch.build != "cuda":
            return None
        return Found(
            title="This container on WSL was started without the GPU",
            evidence=("container.kind", "container.dxg", "platform.wsl"),
            sure=False,
            remedies=grant_gpu(m),
        )
    wait_for_table(m)
    no_libcuda = m.driver.libcuda.loads is False
    if not (m.driver.loaded or (m.platform.jetson and no_libcuda)):
        return None
    nodes = [node for node in need(m.driver.nodes, "driver.nodes") if _is_of_gpu(node)]
    if nodes and not (no_libcuda and m.driver.nvml.loads is False):
        return None
    return Found(
        evidence=("container.kind", "driver.loaded", "driver.nodes", "driver.libcuda.why"),
        severity=graver_with_cuda(m),
        remedies=grant_gpu(m),
    )


def _is_of_gpu(node: Node) -> bool:
    """Whether it is the node of a GPU itself: /dev/nvidia0 and those of a Tegra."""
    return is_gpu_node(node.path) or node.path.startswith("/dev/nvgpu")


@rule(
    "container-driver-caps",
    title="The container got the GPU without the driver's library for computing",
)
def container_driver_caps(m: Machine) -> Answer:
    """NVIDIA_DRIVER_CAPABILITIES is {capabilities}, so the toolkit did not mount libcuda.

    The variable chooses which driver libraries are mounted: compute brings libcuda, utility brings
    nvidia-smi and NVML. Unset, it means both. nvidia-smi works here and torch finds no driver.

    Cured by compute,utility in that variable when the container is started. Changing it inside a
    running container does nothing.
    """
    if (
        not m.container.kind
        or m.driver.libcuda.loads is not False
        or cuda_works(m)
        or (m.driver.loaded is False and not started(m))
    ):
        return None
    asked = need(m.env, "env").get("NVIDIA_DRIVER_CAPABILITIES", "")
    names = {name.strip() for name in asked.split(",")} - {""}
    if not names or names & {"all", "compute"}:
        return None
    return Found(
        evidence=("env.NVIDIA_DRIVER_CAPABILITIES", "driver.libcuda.why"),
        values={"capabilities": asked},
        sure=started(m) or m.driver.loaded,
        remedies=with_compute(m),
    )


@rule(
    "container-driver-caps",
    title="The container got the GPU without the driver's library for computing",
)
def container_without_libcuda(m: Machine) -> Answer:
    """The driver answers in here, and the loader finds no libcuda.so.1, which torch needs.

    The container toolkit mounts that library with the capability compute, which it does unless
    NVIDIA_DRIVER_CAPABILITIES says otherwise. A container whose files were mounted by hand, or
    whose loader cache is older than the mount (`ldconfig` renews it), lacks it too.

    Cured by starting the container through the toolkit with compute,utility.
    """
    if (
        not m.container.kind
        or m.platform.jetson
        or not started(m)
        or cuda_works(m)
        or cpu_on_purpose(m)
        or m.driver.libcuda.hung
        or need(m.driver.libcuda.loads, "driver.libcuda.loads")
    ):
        return None
    hearsay = only_smi_answers(m) and not torch_fails(m)
    title = "nvidia-smi reaches driver {driver}, and libcuda.so.1 is missing"
    return Found(
        title=title if hearsay else None,
        evidence=("gpus", "driver.libcuda.why"),
        values={"driver": m.driver.version or ""},
        confidence=POSSIBLE if hearsay else LIKELY,
        severity=WARNING if hearsay else ERROR,
        remedies=with_compute(m),
    )


def with_compute(m: Machine) -> Remedies:
    return container_option(
        m,
        "driver-capabilities",
        "Start the container with the driver's compute and utility libraries",
        "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


@rule("container-gpu-lost", title="The container lost its access to the GPU while it was running")
def container_gpu_lost(m: Machine) -> Answer:
    """The device nodes are there and the container's device rules refuse them, as after a reload.

    A reload of systemd on the host writes the device rules of running containers anew and forgets
    the GPUs that were added behind its back. NVML then says "Unknown Error" at its start, opening a
    node answers EPERM, and a new container works. With EACCES it would be device-permission.

    A restart of the container cures it for now. For good: CDI instead of the legacy hook, or links
    under /dev/char (nvidia-ctk system create-dev-char-symlinks) on the host.
    """
    if not m.container.kind or cuda_works(m):
        return None
    refused = any(
        node.errno == EPERM and (node.path == "/dev/nvidiactl" or _is_of_gpu(node))
        for node in m.driver.nodes or ()
    )
    code = driver_code(m)
    barred = refused and m.driver.nvml.loads is not False and not (code == SUCCESS and started(m))
    if code != UNKNOWN and not barred:
        return None
    return Found(
        evidence=(code_path(m), "driver.nodes" if refused else "container.kind"),
        sure=refused,
        remedies=by_hand(
            "restart-container",
            "Start the container anew",
            "Restart the container. So that it does not return, use CDI on the host "
            "(`--device nvidia.com/gpu=all`), or run there, as root, "
            "`nvidia-ctk system create-dev-char-symlinks --create-all`.",
            keeper_of(m),
        ),
    )


@rule(
    "shm-too-small",
    title="/dev/shm holds {mebibytes} MiB",
    severity=INFO,
    essential=False,
)
def shm_too_small(m: Machine) -> Answer:
    """DataLoader workers and NCCL pass data through /dev/shm and crash when it is full.

    64 MiB is the default of Docker and Kubernetes. One process without workers needs none of it;
    several GPUs or workers do. A full /dev/shm shows as "Bus error" of a worker or as errno 28 for
    a file named torch_ or nccl-. A worker that was "Killed" ran out of memory instead, and "Too
    many open files" is ulimit.

    Cured by --shm-size=8g or --ipc=host, in Kubernetes by an emptyDir in memory on /dev/shm. Zero
    workers are a test, not a cure.
    """
    if m.platform.system not in (None, "Linux"):
        return None
    message, size = host_error_with(m, *_SHM_WORDS), m.limits.shm_bytes
    enough = _SHM_DEFAULT if message is None else 1024 * _MIB
    if (message is None or size is not None) and need(size, "limits.shm_bytes") > enough:
        return None
    severity = INFO if (visible_count(m) or 0) < 2 else WARNING
    return Found(
        evidence=("limits.shm_bytes", message),
        values={"mebibytes": "too few" if size is None else size // _MIB},
        severity=ERROR if message else severity,
        remedies=container_option(
            m, "shm-size", "Give the container a larger /dev/shm", "--shm-size=8g"
        )
        if m.container.kind
        else by_hand(
            "shm-size",
            "Make /dev/shm larger",
            "As root: `mount -o remount,size=8G /dev/shm`; for good, in /etc/fstab.",
            "admin",
        ),
    )

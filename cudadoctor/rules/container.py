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
from cudadoctor.plan.remedies import (
    driver_on_path,
    grant_gpu,
    larger_shm,
    restart_container,
    with_capabilities,
)
from cudadoctor.plan.remedies.process import driver_folder
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
    title="This container was started without the GPU",
)
def container_no_gpu(m: Machine) -> Answer:
    """The host's NVIDIA driver is loaded, but no GPU was passed to this container. Installing a
    driver in the image does not help; CUDA needs the host's driver.

    torch reports "Found no NVIDIA driver on your system". To check by hand, run `ls /dev/nvidia*`
    in the container: the command finds nothing, while `nvidia-smi` works on the host.

    Every container sees the host's /proc/driver/nvidia and PCI bus, so neither proves that a GPU
    was passed to the container. NVIDIA_VISIBLE_DEVICES=all is no proof either, because many images
    set it.

    Look-alikes: if the device nodes exist and only libcuda is missing, see container-driver-caps.
    If the GPU worked earlier in this container, see container-gpu-lost.

    Fix: give the container access to the GPU with `--gpus all` (Docker), `--device
    nvidia.com/gpu=all` (Podman), `--nv` (Apptainer) or `nvidia.com/gpu: 1` in a pod's resource
    limits. Docker and Podman need the NVIDIA Container Toolkit on the host.
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
            why="Windows exposes its GPU as /dev/dxg, which is missing from this container.",
            evidence=("container.kind", "container.dxg", "platform.wsl"),
            sure=False,
            remedies=grant_gpu(m),
        )
    wait_for_table(m)
    no_libcuda = m.driver.libcuda.loads is False
    if not (m.driver.loaded or (m.platform.jetson and no_libcuda)):
        return None
    nodes = [node for node in need(m.driver.nodes, "driver.nodes") if _is_of_gpu(node)]
    if nodes and (not no_libcuda or m.driver.nvml.loads is not False or _there_unfound(m)):
        return None
    return Found(
        title="The container has the GPU's device files but not the driver's libraries"
        if nodes
        else None,
        why="The host's NVIDIA driver is loaded, but its libraries were not mounted in this "
        "container. Installing a driver in the image does not help."
        if nodes
        else None,
        evidence=("container.kind", "driver.loaded", "driver.nodes", "driver.libcuda.why"),
        severity=graver_with_cuda(m),
        remedies=grant_gpu(m),
    )


def _there_unfound(m: Machine) -> bool:
    """Whether the driver's libraries are there, but off the loader's path or not for musl."""
    return driver_folder(m) is not None or m.platform.libc == "musl"


@rule(
    "container-driver-caps",
    title="The loader cannot find the driver's libraries in {folder}",
)
def driver_off_the_path(m: Machine) -> Answer:
    """The container has the GPU, and the driver's libraries are mounted in {folder}. That folder
    is not in LD_LIBRARY_PATH, so libcuda.so.1 is not found.

    torch reports "Found no NVIDIA driver on your system", even though the device files under /dev
    can be opened. To check by hand: `ls /usr/local/nvidia/lib64` lists libcuda.so.1.

    GKE mounts the driver under /usr/local/nvidia and relies on LD_LIBRARY_PATH. If an image or a
    pod manifest sets its own LD_LIBRARY_PATH, the loader does not find the driver's libraries.

    Look-alikes: if the container has no device files, see container-no-gpu.

    Fix: put the folder that contains libcuda.so.1 first in LD_LIBRARY_PATH.
    """
    folder = driver_folder(m)
    if (
        not m.container.kind
        or folder is None
        or m.driver.libcuda.loads is not False
        or m.driver.nvml.loads is not False
        or m.platform.libc == "musl"
        or cuda_works(m)
        or not any(node.errno == 0 and _is_of_gpu(node) for node in m.driver.nodes or ())
    ):
        return None
    return Found(
        evidence=("driver.nodes", "driver.smi.path", "env.LD_LIBRARY_PATH", "driver.libcuda.why"),
        values={"folder": folder},
        severity=graver_with_cuda(m),
        remedies=driver_on_path(m, folder),
    )


def _is_of_gpu(node: Node) -> bool:
    """Whether it is the node of a GPU itself: /dev/nvidia0 and those of a Tegra."""
    return is_gpu_node(node.path) or node.path.startswith("/dev/nvgpu")


@rule(
    "container-driver-caps",
    title="The container has the GPU but not CUDA: libcuda is not mounted",
)
def container_driver_caps(m: Machine) -> Answer:
    """NVIDIA_DRIVER_CAPABILITIES is {capabilities}. Unless it includes compute, the NVIDIA
    Container Toolkit does not mount libcuda.so.1.

    nvidia-smi works in this container, but torch reports "Found no NVIDIA driver on your system".
    NVIDIA_DRIVER_CAPABILITIES selects which driver libraries are mounted: compute adds libcuda,
    and utility adds nvidia-smi and NVML. If the variable is not set, compute and utility are
    enabled.

    Fix: start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility. Changing this
    variable inside a running container has no effect.
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
    title="The container has the GPU but not CUDA: libcuda is not mounted",
)
def container_without_libcuda(m: Machine) -> Answer:
    """The driver responds, but the loader cannot find libcuda.so.1, which torch needs. The NVIDIA
    Container Toolkit mounts it if NVIDIA_DRIVER_CAPABILITIES includes compute.

    There are other possible reasons why the loader cannot find libcuda: the driver's files were
    mounted by hand, or the loader's cache is older than the mount. If only the loader's cache is
    outdated, running `ldconfig` as root in the container is enough.

    Fix: start the container through the NVIDIA Container Toolkit, with
    NVIDIA_DRIVER_CAPABILITIES=compute,utility.
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
    title = "nvidia-smi works with driver {driver}, but libcuda.so.1 is missing"
    return Found(
        title=title if hearsay else None,
        evidence=("gpus", "driver.libcuda.why"),
        values={"driver": m.driver.version or ""},
        confidence=POSSIBLE if hearsay else LIKELY,
        severity=WARNING if hearsay else ERROR,
        remedies=with_compute(m),
    )


def with_compute(m: Machine) -> Remedies:
    return with_capabilities(m)


@rule("container-gpu-lost", title="The container lost its GPU while it was running")
def container_gpu_lost(m: Machine) -> Answer:
    """The device nodes exist, but the container's cgroup device rules deny access to them. Running
    `systemctl daemon-reload` on the host causes this in running containers.

    nvidia-smi reports "Failed to initialize NVML: Unknown Error", and opening a device node fails
    with "Operation not permitted" (EPERM). In a new container on the same host, the GPU works.

    When systemd is reloaded, it rewrites the device rules of running containers and drops the GPUs
    from these rules, because the container runtime added them without telling systemd.

    Look-alikes: if the error is "Permission denied" (EACCES), the cause is device-permission,
    which is a matter of group membership.

    Fix: restart the container. To keep it from losing the GPUs again, create links for the GPUs
    under /dev/char (`nvidia-ctk system create-dev-char-symlinks --create-all` on the host), or
    start containers with CDI (`--device nvidia.com/gpu=all`).
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
    box = m.container.kind == "lxc"
    return Found(
        evidence=(code_path(m), "driver.nodes" if refused else "container.kind"),
        sure=refused,
        title="The container is not allowed to open the GPU's device nodes" if box else None,
        why="The container's configuration does not allow access to these device nodes, so "
        "opening them fails with EPERM."
        if box
        else None
        if refused
        else 'NVML reports "Unknown Error", which can happen after a systemctl daemon-reload on '
        "the host.",
        remedies=restart_container(m),
    )


@rule(
    "shm-too-small",
    title="/dev/shm has only {mebibytes} MiB",
    severity=INFO,
    essential=False,
)
def shm_too_small(m: Machine) -> Answer:
    """DataLoader workers and NCCL pass data through /dev/shm and crash when it is full. With
    several GPUs or workers, /dev/shm must be several gigabytes.

    In Docker and Kubernetes, the default size of /dev/shm is 64 MiB. A full /dev/shm causes
    "DataLoader worker is killed by signal: Bus error", or "No space left on device" (errno 28) for
    a file whose name begins with torch_ or nccl-. To check by hand: run `df -h /dev/shm`.

    Look-alikes: if the message says that a worker was "Killed", the machine ran out of memory. If
    the message says "Too many open files", the cause is ulimit.

    Fix: start the container with --shm-size=8g (or --ipc=host). In Kubernetes, mount an emptyDir
    with medium Memory at /dev/shm. Setting num_workers=0 is useful as a test but is not a fix,
    because it slows down data loading.
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
        values={"mebibytes": "" if size is None else size // _MIB},
        title="/dev/shm is too small"
        if size is None
        else "/dev/shm has only {mebibytes} MiB, which is too small for DataLoader workers"
        if not message and severity is INFO
        else None,
        severity=ERROR if message else severity,
        remedies=larger_shm(m),
    )

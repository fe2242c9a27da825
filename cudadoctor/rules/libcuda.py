"""Does a process of this user get the right libcuda, and may it open the GPU?"""

from __future__ import annotations

from cudadoctor.model.findings import Remedies
from cudadoctor.model.machine import Machine, Node
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    by_hand,
    device_groups,
    grant_gpu,
    off_search_path,
    reload_uvm,
    unset_variables,
)
from cudadoctor.rules.evidence.signs import (
    MISMATCH,
    NO_PERMISSION,
    SUCCESS,
    UNKNOWN,
    UNKNOWN_WORDS,
    answered,
    code_path,
    cuda_works,
    driver_code,
    host_error_with,
    live_gpus,
    uvm_missing,
    variable,
)

_EACCES = 13
_OTHER_NODES = ("caps", "uvm-tools", "modeset", "nvswitch", "nvlink")
_STUB, _DRIVER_MISMATCH, _NO_COMPAT = 34, 803, 804
_STUB_WORDS = ("CUDA driver is a stub library",)
_COMPAT_WORDS = (
    "forward compatibility was attempted on non supported",
    "system has unsupported display driver / cuda driver combination",
)


@rule("device-permission", title="Your user has no permission to open the GPU's device files")
def device_permission(m: Machine) -> Answer:
    """The files under /dev belong to a group that your user is not in. Joining that group is
    enough: do not run as root, and do not open the files to everyone.

    Opening a file fails with "Permission denied" (EACCES, 13), nvidia-smi reports "Insufficient
    Permissions", and the same program works as root. To check by hand: `ls -l /dev/nvidia*` and
    `id`. On a Jetson the groups are video and render.

    Look-alikes: "Operation not permitted" (EPERM, 1) comes from the device rules of a container:
    container-gpu-lost.

    Fix: add your user to the group, then log out and in again: a running session keeps its old
    groups. If the files belong to root alone, an option of the nvidia module has to give them a
    group first (NVreg_DeviceFileGID and NVreg_DeviceFileMode=0660).
    """
    code, nodes = driver_code(m), m.driver.nodes
    denied = code == NO_PERMISSION
    if (
        m.platform.system in ("Windows", "Darwin")
        or cuda_works(m)
        or (not denied and nodes is None and live_gpus(m))
    ):
        return None
    refused = [] if denied and nodes is None else _refused(m)
    if not (refused or denied) or m.driver.libcuda.code == SUCCESS:
        return None
    return Found(
        evidence=("driver.nodes" if refused else None, code_path(m)),
        values={"nodes": [node.path for node in refused]},
        why="The files under /dev belong to root alone, so joining a group is not enough."
        if refused and not m.container.kind and {node.group for node in refused} == {"root"}
        else None,
        sure=refused,
        remedies=device_groups(m),
    )


def _refused(m: Machine) -> list[Node]:
    """The nodes that CUDA needs and this user may not open; MIG's and others' do not count."""
    needed = ("/dev/nvidia", "/dev/dxg", "/dev/nvgpu", "/dev/nvmap", "/dev/nvhost")
    extra = tuple(f"/dev/nvidia-{name}" for name in _OTHER_NODES)
    nodes = need(m.driver.nodes, "driver.nodes")
    return [
        node
        for node in nodes
        if node.errno == _EACCES
        and node.path.startswith(needed)
        and not node.path.startswith(extra)
    ]


@rule(
    "cuda-compat-conflict",
    title="A forward-compatibility libcuda does not work on this GPU or driver",
)
def cuda_compat_conflict(m: Machine) -> Answer:
    """A cuda-compat package brings a newer libcuda to data-centre GPUs; elsewhere CUDA fails.

    cuInit answers 804 where the GPU is none that may use them (a GeForce, most RTX), and 803 where
    the package is older than the loaded driver or does not fit its branch. NVML and nvidia-smi work
    meanwhile; where they fail too, the cause is driver-library-mismatch.

    Such packages come with NVIDIA's container images and with /usr/local/cuda/compat in
    LD_LIBRARY_PATH or /etc/ld.so.conf.d. Cured by taking that directory out of the loader's way; a
    torch build for the driver needs none of it.
    """
    libcuda = m.driver.libcuda
    if libcuda.code == SUCCESS or cuda_works(m) or driver_code(m) == MISMATCH:
        return None
    message, path = host_error_with(m, *_COMPAT_WORDS), libcuda.path or ""
    compat = "/compat" in path
    refusals = (_DRIVER_MISMATCH, _NO_COMPAT)
    if message is None and (
        libcuda.loads is False
        or (libcuda.code is None and not answered(m))
        or (need(libcuda.code, "driver.libcuda.code") not in refusals and not compat)
        or _stale(m)
    ):
        return None
    named = path if "compat" in path else "/usr/local/cuda/compat/libcuda.so.1"
    return Found(
        evidence=(message,)
        if message and libcuda.code is None
        else ("driver.libcuda.code", "driver.libcuda.path"),
        sure=libcuda.code == _NO_COMPAT or compat,
        remedies=off_the_path(m, named),
    )


@rule("libcuda-stub", title="The libcuda in use is not the driver's: {path}")
def libcuda_stub(m: Machine) -> Answer:
    """Every CUDA program loads libcuda.so.1 by name, and the loader found another file first.

    The toolkit's stubs directory holds an empty libcuda that is meant for linking only; it answers
    cuInit with code 34. A stale copy of another driver release is told by its file name: its
    version differs from the loaded module's while NVML works. A copy under .../compat is
    cuda-compat-conflict. Where the driver's packages themselves differ, NVML fails as well, which
    is driver-library-mismatch.

    Cured by taking the directory out of LD_LIBRARY_PATH (linking needs LIBRARY_PATH only). Deleting
    libraries by hand breaks the next update of the driver.
    """
    libcuda, message = m.driver.libcuda, host_error_with(m, *_STUB_WORDS)
    if (
        libcuda.loads is False
        or libcuda.code == SUCCESS
        or cuda_works(m)
        or not (message or libcuda.code is not None or answered(m))
    ):
        return None
    path, stale = libcuda.path or "", _stale(m)
    stub = bool(message) or need(libcuda.code, "driver.libcuda.code") == _STUB
    if not (stub or stale or "/stubs/" in path):
        return None
    return Found(
        evidence=(message,) if message else ("driver.libcuda.path", "driver.libcuda.code"),
        values={"path": path},
        title=None if path else "The libcuda in use is the toolkit's stub, not the driver's",
        sure=stub or not stale,
        remedies=off_the_path(m, path),
    )


def _stale(m: Machine) -> bool:
    """Whether the mapped libcuda is of another release than the module, though NVML works."""
    libcuda, kernel = m.driver.libcuda, m.driver.kernel
    return (
        None not in (libcuda.file_version, kernel)
        and libcuda.file_version != kernel
        # A copy that is, or takes itself for, a forward-compatibility package.
        and "/compat" not in (libcuda.path or "")
        and libcuda.code != _NO_COMPAT
        and driver_code(m) == SUCCESS
        and not m.platform.wsl
    )


def off_the_path(m: Machine, path: str) -> Remedies:
    """Keep one library out of this program: by LD_LIBRARY_PATH where that leads to it."""
    if named := off_search_path(m, path.rpartition("/")[0]):
        return named
    if path and path in variable(m, "LD_PRELOAD"):
        return unset_variables(m, "LD_PRELOAD")
    return by_hand(
        "libcuda-away",
        "Take the other libcuda out of the loader's way",
        f"Find out what owns {path or 'that libcuda.so.1'} (`dpkg -S`, `rpm -qf`, `conda list`), "
        "or which line of /etc/ld.so.conf.d names its directory, and take that away; then run "
        "`ldconfig` as root.",
    )


@rule(
    "uvm-not-loaded",
    title="CUDA fails to start, though the driver works: nvidia_uvm is missing",
)
def uvm_not_loaded(m: Machine) -> Answer:
    """nvidia-smi needs only the nvidia module; CUDA needs nvidia_uvm too, and cuInit answers 999.

    The module is not loaded, or its device node is missing or does not open. torch then says "CUDA
    unknown error" and blames CUDA_VISIBLE_DEVICES, which is hardly ever the reason. Right after
    boot a missing node is normal: the first CUDA program makes it, so only a failing cuInit counts.

    Cured by loading the module. Where it is loaded, its node opens and CUDA fails all the same,
    mostly after a suspend, the cause is another: reload the module. To keep it working, set
    NVreg_PreserveVideoMemoryAllocations=1 and enable nvidia-suspend and nvidia-resume.
    """
    libcuda = m.driver.libcuda
    if (
        m.platform.wsl
        or m.platform.jetson
        or m.platform.system in ("Windows", "Darwin")
        or cuda_works(m)
        or libcuda.loads is False
        or libcuda.code == SUCCESS
        or not live_gpus(m)
    ):
        return None
    message, missing = host_error_with(m, *UNKNOWN_WORDS), uvm_missing(m)
    code = UNKNOWN if message else need(libcuda.code, "driver.libcuda.code")
    if code != UNKNOWN or libcuda.clean_code == SUCCESS or missing is False:
        return None
    return Found(
        evidence=(message or "driver.libcuda.code", "driver.modules", "driver.nodes"),
        sure=missing,
        remedies=grant_gpu(m) if m.container.kind else reload_uvm(m),
    )

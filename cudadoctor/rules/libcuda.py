"""Does a process of this user get the right libcuda, and may it open the GPU?"""

from __future__ import annotations

from cudadoctor.model.findings import Remedies
from cudadoctor.model.machine import Machine, Node
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    device_groups,
    libcuda_away,
    load_uvm_on_host,
    off_search_path,
    reload_uvm,
    unset_variables,
)
from cudadoctor.plan.remedies.process import open_to_all
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


@rule(
    "device-permission", title="Your user does not have permission to open the GPU's device files"
)
def device_permission(m: Machine) -> Answer:
    """The device files under /dev belong to a group that your user is not in. Joining that group is
    enough; do not run as root or make the files accessible to everyone.

    Opening a device file fails with "Permission denied" (EACCES, 13), nvidia-smi reports
    "Insufficient Permissions", and your program works when you run it as root. To check by hand:
    run `ls -l /dev/nvidia*` and `id`. On a Jetson, the relevant groups are video and render.

    Look-alikes: if the error is "Operation not permitted" (EPERM, 1), a container's device rules
    deny access, and the cause is container-gpu-lost.

    Fix: add your user to the group of the device files, then log out and back in: a running session
    keeps its old groups. If only root can access the device files, first assign a group to them
    with the nvidia module's options NVreg_DeviceFileGID and NVreg_DeviceFileMode=0660.
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
    labelled = bool(refused) and open_to_all(m)
    return Found(
        title=_LABELLED[0] if labelled else None,
        evidence=("driver.nodes" if refused else None, code_path(m)),
        values={"nodes": [node.path for node in refused]},
        why=_LABELLED[1]
        if labelled
        else "The device files under /dev belong only to root, so joining a group is not enough."
        if refused and not m.container.kind and {node.group for node in refused} == {"root"}
        else None,
        sure=refused,
        remedies=device_groups(m),
    )


_LABELLED = (
    "A security module such as SELinux blocks access to the GPU's device files",
    "The permissions under /dev allow everyone to open these files, but opening them still fails "
    "with EACCES. Group membership is therefore not the cause; SELinux or AppArmor is denying "
    "access.",
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
    title="The libcuda from cuda-compat does not work with this GPU or driver",
)
def cuda_compat_conflict(m: Machine) -> Answer:
    """The cuda-compat packages contain a newer libcuda, which works only on data center GPUs.

    CUDA fails with "forward compatibility was attempted on non supported HW" (error 804) on GeForce
    and most RTX cards. It fails with "system has unsupported display driver / cuda driver
    combination" (error 803) if the cuda-compat package is older than the driver or does not match
    the driver's branch. nvidia-smi works in both cases.

    NVIDIA's container images include a cuda-compat package. On other systems, the loader finds the
    libcuda from this package if LD_LIBRARY_PATH or a file in /etc/ld.so.conf.d lists
    /usr/local/cuda/compat. To check by hand: run `ldconfig -p | grep libcuda`.

    Look-alikes: if both CUDA and nvidia-smi fail, the cause is driver-library-mismatch.

    Fix: remove the cuda-compat directory from the loader's search path. If the driver itself is
    too old, install a torch build that works with the driver.
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
    version, driver = libcuda.file_version, m.driver.kernel or m.driver.reported
    if compat and version and driver and version < driver:
        return Found(
            title="The cuda-compat libcuda ({compat}) is older than the driver ({driver})",
            why="A cuda-compat libcuda works only if it is newer than the driver. This driver's "
            "own libcuda is already newer, so the cuda-compat package is not needed.",
            evidence=("driver.libcuda.code", "driver.libcuda.path", "driver.libcuda.file_version"),
            values={"compat": version, "driver": driver},
            remedies=off_the_path(m, named),
        )
    return Found(
        evidence=(message,)
        if message and libcuda.code is None
        else ("driver.libcuda.code", "driver.libcuda.path"),
        sure=libcuda.code == _NO_COMPAT or compat,
        remedies=off_the_path(m, named),
    )


@rule("libcuda-stub", title="CUDA loads the wrong libcuda: {path}")
def libcuda_stub(m: Machine) -> Answer:
    """The loader finds this libcuda before the driver's libcuda.so.1.

    The CUDA toolkit's stubs directory contains an empty libcuda that is meant only for linking. If
    a program loads this stub, CUDA fails with "CUDA driver is a stub library" (error 34). An old
    libcuda from another driver release does not match the loaded kernel module. To check by hand:
    run `ldconfig -p | grep libcuda.so.1` and `echo $LD_LIBRARY_PATH`.

    Look-alikes: if the wrong libcuda is in a compat directory, the cause is cuda-compat-conflict.
    If both CUDA and nvidia-smi fail, the driver's own packages do not match each other, and the
    cause is driver-library-mismatch.

    Fix: remove the directory that contains the wrong libcuda from LD_LIBRARY_PATH. To link against
    the stub, use LIBRARY_PATH instead. Do not delete libraries by hand: that breaks the next driver
    update.
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
        title=None if path else "CUDA loads the toolkit's stub libcuda, not the driver's",
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
    return libcuda_away(m, path)


@rule(
    "uvm-not-loaded",
    title="CUDA cannot initialize (error 999): the nvidia_uvm module is not loaded",
)
def uvm_not_loaded(m: Machine) -> Answer:
    """nvidia-smi needs only the nvidia module, but CUDA also needs nvidia_uvm.

    torch reports "CUDA unknown error - this may be due to an incorrectly set up environment" and
    blames CUDA_VISIBLE_DEVICES, which is rarely the cause. To check by hand: run `lsmod | grep
    nvidia_uvm` and `ls -l /dev/nvidia-uvm`. Right after boot, /dev/nvidia-uvm is normally missing:
    the first CUDA program creates it.

    Look-alikes: if nvidia_uvm is loaded and /dev/nvidia-uvm can be opened, CUDA most likely stopped
    working because the machine was suspended. Reload the nvidia_uvm module. To keep CUDA working
    after the next suspend, set the nvidia module option NVreg_PreserveVideoMemoryAllocations=1
    and enable the nvidia-suspend and nvidia-resume services.

    Fix: load the nvidia_uvm module and create its device files.
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
    title = "CUDA cannot initialize (error 999): /dev/nvidia-uvm cannot be opened"
    return Found(
        title=title if "nvidia_uvm" in (m.driver.modules or ()) else None,
        evidence=(message or "driver.libcuda.code", "driver.modules", "driver.nodes"),
        sure=missing,
        remedies=load_uvm_on_host(m) if m.container.kind else reload_uvm(m),
    )

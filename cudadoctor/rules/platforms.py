"""Is this a platform for CUDA builds of torch, and set up as that platform wants it?"""

from __future__ import annotations

import re

from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.machine import Machine, OptVersion, StrPair
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import install_python, jetson_torch, run_elsewhere, wsl_driver
from cudadoctor.rules.evidence.signs import (
    cpu_on_purpose,
    cuda_works,
    error_with,
    started,
    torch_works,
)

_KIT = re.compile(r"(?i) (engineering reference )?developer kit.*")
_WINDOWS_LIBRARIES = "/usr/lib/wsl/"
_OLDEST_GLIBC = Version("2.17")
"""No wheel of torch was ever built on an older one."""


@rule(
    "wsl-setup",
    title="WSL cannot reach the GPU: {what}",
)
def wsl_setup(m: Machine) -> Answer:
    """WSL 2 uses the Windows driver and mounts its libraries under /usr/lib/wsl/lib.

    A Linux driver installed inside WSL hides the libraries of the Windows driver. WSL 1 does not
    support GPUs. If /dev/dxg is missing, Windows or its display driver is too old, or WSL is
    running in a nested virtual machine. If the driver's libraries are missing from
    /usr/lib/wsl/lib, Windows has no NVIDIA driver or is currently updating it.

    To check by hand: run `nvidia-smi` in a Windows terminal, then `ls /dev/dxg /usr/lib/wsl/lib` in
    WSL. The following is normal in WSL: /proc/driver/nvidia and /dev/nvidia* do not exist, lspci
    shows no NVIDIA GPU, and the driver version differs from the version of nvidia-smi.

    Fix: update the driver on Windows, then run `wsl --update` and `wsl --shutdown` in Windows.
    Never install a Linux driver, cuda or cuda-drivers inside WSL.
    """
    if cuda_works(m) or m.container.kind or not need(m.platform.wsl, "platform.wsl"):
        return None
    found = _wsl_fault(m)
    if found is None:
        return None
    what, evidence, sure = found
    return Found(
        evidence=tuple(dict.fromkeys((evidence, "platform.wsl"))),
        values={"what": what},
        sure=sure,
        remedies=wsl_driver(m),
    )


def _wsl_fault(m: Machine) -> tuple[str, str, bool] | None:
    libcuda, container = m.driver.libcuda, m.container
    wanted = not cpu_on_purpose(m) and m.torch.installed is not False
    path, failed = libcuda.path or "", libcuda.code not in (0, None)
    if m.platform.wsl == 1:
        return ("this is WSL 1", "platform.wsl", True) if wanted else None
    for package in m.driver.packages or ():
        if is_driver(package):
            what = f"the Linux driver package {package.name} is installed inside WSL"
            return what, "driver.packages", True
    known = any(folder in path for folder in (_WINDOWS_LIBRARIES, "/stubs/", "/compat"))
    if path and failed and not known:
        return f"{path} hides the Windows driver's libcuda", "driver.libcuda.path", True
    if wanted and container.dxg is False:
        return "/dev/dxg is missing", "container.dxg", True
    if wanted and container.wsl_libs is False and not started(m):
        return "the Windows driver's libraries are missing", "container.wsl_libs", True
    if wanted and container.wsl_libs and libcuda.loads is False:
        return "the loader cannot find the Windows driver's libcuda", "driver.libcuda.why", True
    if failed and libcuda.code != 34 and libcuda.clean_code != 0 and "/compat" not in path:
        return f"cuInit fails with error {libcuda.code}", "driver.libcuda.code", False
    return None


@rule("jetson-build", title="torch {torch} was not built for this Jetson's GPU")
def jetson_build(m: Machine, kb: Knowledge) -> Answer:
    """The generic ARM builds of torch are either CPU-only or built for server GPUs; they do not
    support this Jetson's GPU.

    torch says "no kernel image is available for execution on the device", or
    torch.cuda.is_available() is False. To check by hand: `cat /etc/nv_tegra_release` shows the L4T
    release. `python -c "import torch; print(torch.version.cuda, torch.cuda.get_arch_list())"`
    shows the CUDA version and the architectures of the torch build.

    Up to CUDA 13.0, an Orin (sm_87) or a Xavier (sm_72) runs only code that was compiled for its
    own architecture. With JetPack 7.2 or newer, an Orin also runs the generic ARM builds of torch
    for CUDA 13.2 or newer. A Thor runs the generic cu130 builds. A DGX Spark is not a Jetson, so
    jetson-build does not apply to it.

    Fix: install NVIDIA's torch wheel for your JetPack release, or use NVIDIA's container. On a
    Jetson, never install driver or CUDA packages that were not made for Jetson.
    """
    if not m.platform.jetson or m.torch.installed is False:
        return None
    build, torch = need(m.torch.build, "torch.build"), m.torch
    if torch_works(m) and torch.archs is None:
        return None
    if build == "cuda":
        capability = need(_of_the_board(m, kb), "gpus.0.capability")
        archs = need(torch.archs, "torch.archs")
        if any(kb.serves(code, capability, torch.version, torch.cuda) for code in archs):
            return None
    return Found(
        evidence=("platform.jetson", "platform.l4t", "torch.build", "torch.archs"),
        values={"torch": torch.named or "(version unknown)"},
        remedies=jetson_torch(m, kb),
    )


def _of_the_board(m: Machine, kb: Knowledge) -> OptVersion:
    """What the GPU is: as the driver says, else by the board's name; older boards lack NVML."""
    gpu = m.gpus[0] if m.gpus else None
    if gpu is not None and gpu.capability is not None:
        return gpu.capability
    board = _KIT.sub("", m.platform.product or "")
    models = [kb.gpu_by_name(name) for name in (gpu.name if gpu else None, board) if name]
    return next((model.capability for model in models if model is not None), None)


@rule("platform-unsupported", title="No torch build exists for {what}", essential=False)
def platform_unsupported(m: Machine, kb: Knowledge) -> Answer:
    """PyTorch publishes no wheels for this platform.

    pip says "No matching distribution found for torch", or the import fails with "version
    `GLIBC_2.28' not found". PyTorch publishes wheels for 64-bit Python on x86-64 and ARM Linux with
    glibc, on Windows, and on Macs with Apple silicon. There are no wheels for Alpine (musl), 32-bit
    Python or other CPU architectures, and none for Intel Macs since torch 2.3. To check by hand:
    run `uname -m` and `ldd --version`.

    Look-alikes: if another Python version would work, the cause is torch-python-unsupported. If the
    build is available on another package index, the cause is torch-index-wrong.

    Fix: run torch in a container, or on a system that PyTorch publishes wheels for.
    """
    torch, imported = m.torch, m.torch.imported
    if torch.installed is None and imported is None and m.look == "report":
        return None
    ok = imported.ok if imported else None
    if ok or (torch.installed and ok is None) or torch_works(m):
        return None
    what, evidence = _unsupported(m)
    if not what:
        return None
    narrow = "32-bit" in what
    remedies = install_python(m, kb, kb.builds[0].pythons) if narrow else run_elsewhere(m, kb)
    return Found(evidence=(evidence, "torch.installed"), values={"what": what}, remedies=remedies)


def _unsupported(m: Machine) -> StrPair:
    system = need(m.platform.system, "platform.system")
    machine = need(m.platform.machine, "platform.machine")
    if error_with(m, "version `glibc_2.") and m.platform.libc != "musl":
        glibc = m.platform.glibc
        what = f"glibc {glibc}" if glibc else "this system's glibc version"
        return what, "torch.imported.error"
    if need(m.python.bits, "python.bits") == 32:
        return "32-bit Python", "python.bits"
    if machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"{machine} processors", "platform.machine"
    if system == "Darwin" and machine in ("x86_64", "amd64") and not m.torch.installed:
        return "Intel Macs (since torch 2.3)", "platform.machine"
    if system != "Linux":
        return "", ""
    if need(m.platform.libc, "platform.libc") == "musl":
        alpine = m.platform.distro in (None, "alpine")
        return "Alpine (musl)" if alpine else "Linux with musl", "platform.libc"
    if m.platform.glibc is not None and m.platform.glibc < _OLDEST_GLIBC:
        return f"glibc {m.platform.glibc}", "platform.glibc"
    return "", ""

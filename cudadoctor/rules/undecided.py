"""Where the facts do not suffice: which causes remain, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Candidate, Confidence
from cudadoctor.rules.healthy import is_doctors_own

if TYPE_CHECKING:
    from cudadoctor.model.findings import Finding, Undecided
    from cudadoctor.model.machine import Machine

_COMMAND = {
    "driver": ("nvidia-smi",),
    "driver.libcuda": ("python", "-c", "import torch; print(torch.cuda.device_count())"),
    "driver.nodes": ("ls", "-l", "/dev"),
    "gpus": ("nvidia-smi", "-q"),
    "pci": ("lspci", "-nn"),
    "torch": ("python", "-m", "torch.utils.collect_env"),
    "python": ("python", "-m", "pip", "--version"),
    "libraries": ("python", "-c", "import torch; print(open('/proc/self/maps').read())"),
    "smoke": ("cudadoctor", "check"),
    "env": ("printenv", "CUDA_VISIBLE_DEVICES"),
}
"""The command that shows a missing fact, by the beginning of the fact's path."""


def candidates_of(
    findings: tuple[Finding, ...], undecided: tuple[Undecided, ...]
) -> tuple[Candidate, ...]:
    """The causes that are still possible, the likeliest first.

    score: 0.5 for a finding that is only possible, 0.2 for a cause that nothing speaks for yet.
    """
    hinted = [f.cause for f in findings if f.confidence is Confidence.POSSIBLE and not f.because_of]
    open_causes = [one.cause for one in undecided if one.matters]
    scores = dict.fromkeys(open_causes, 0.2) | dict.fromkeys(hinted, 0.5)
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    return tuple(Candidate(cause=cause, score=score) for cause, score in ranked)


def command_for(machine: Machine, undecided: tuple[Undecided, ...]) -> tuple[str, ...] | None:
    """The command whose output would decide most, None if no missing fact has one.

    What a fast look did not wait for, a look with all its time decides. Torch is asked in the
    examined interpreter.
    """
    if is_doctors_own(machine):
        return ("cudadoctor", "check", "--python", "PATH")
    python = machine.python.executable
    for one in undecided:
        if not one.matters:
            continue
        if machine.look == "fast" and one.missing.startswith(("driver", "gpus")):
            named = machine.python.chosen_by == "--python" and python
            return ("cudadoctor", "check", *(("--python", python) if named and python else ()))
        if command := _shows(one.missing, machine):
            return tuple((python or word) if word == "python" else word for word in command)
    return None


_ON_WINDOWS = ("powershell", "-Command", "Get-PnpDevice -Class Display")


def _shows(fact: str, machine: Machine) -> tuple[str, ...] | None:
    if fact == "pci" and machine.platform.system == "Windows":
        return _ON_WINDOWS
    if fact.startswith("driver.libcuda") and machine.torch.build != "cuda":
        fact = "driver"  # no torch that could count the GPUs
    parts = fact.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_COMMAND[prefix] for prefix in prefixes if prefix in _COMMAND), None)


_COLLECT = ("python", "-m", "torch.utils.collect_env")
_SMI = ("nvidia-smi",)
_LOG = ("dmesg",)
_PACKAGES = ("python", "-m", "pip", "list")
_IMPORT = ("python", "-c", "import torch; print(torch.ones(8).cuda().sum())")
_LIBRARIES = ("env", "LD_DEBUG=libs", "python", "-c", "import torch; torch.zeros(1).cuda()")
_NVCC = ("nvcc", "--version")
_RANKS = ("env", "NCCL_DEBUG=INFO", "torchrun", "--nproc-per-node=gpu", "train.py")
_VERBOSE = ("nvidia-smi", "-q")
_ON_LINUX = ("dmesg", "env", "printenv", "ls", "lspci", "lscpu", "ldconfig", "df", "g++", "c++")
_A_LIST = 15
"""More packages than collect_env lists: a whole list of them."""
_DECIDES: dict[tuple[str, ...], tuple[str, ...]] = {
    _SMI: (
        *("gpu-not-detected", "driver-not-installed", "driver-library-mismatch", "compute-mode"),
        *("driver-too-old", "mig-misconfigured", "container-no-gpu", "container-gpu-lost"),
        *("container-driver-caps", "driver-userspace-missing", "scheduler-no-gpu", "wsl-setup"),
        *("out-of-memory", "device-permission", "torch-wrong-backend", "cuda-compat-conflict"),
    ),
    _LOG: (
        *("driver-not-loaded", "driver-wrong-flavour", "driver-unsupported-gpu", "gpu-lost"),
        *("gpu-ecc", "gpu-unhealthy-hardware", "pci-bar-bios", "uvm-not-loaded", "driver-bug"),
    ),
    _PACKAGES: (
        *("torch-companion-mismatch", "torch-extension-abi", "numpy-abi", "nvidia-wheels-mixed"),
        *("pynvml-conflict", "torch-duplicate", "wrong-interpreter", "torch-missing"),
    ),
    _LIBRARIES: (
        *("cudnn-shadowed", "cudnn-missing-sublib", "nvjitlink-mismatch", "cublas-mismatch"),
        *("nccl-shadowed", "cuda-lib-shadowed", "libstdcxx-old", "libcuda-stub"),
    ),
    _NVCC: (
        *("toolkit-missing", "toolkit-torch-mismatch", "toolkit-env-wrong", "arch-list-wrong"),
        "host-compiler-unsupported",
    ),
    _RANKS: (
        *("nccl-network-interface", "nccl-p2p-broken", "nccl-version-skew", "nccl-other"),
        *("ddp-rank-device", "ddp-launch"),
    ),
    _VERBOSE: (
        *("thermal-throttle", "pcie-degraded", "power-limited", "fabric-manager"),
        *("nvlink-down", "mixed-gpus", "persistence-off", "amp-no-benefit"),
    ),
}
"""The command whose output tells these causes from their neighbours."""


def command_after(
    machine: Machine,
    candidates: tuple[Candidate, ...],
    hints: tuple[tuple[str, tuple[str, ...]], ...] = (),
) -> tuple[str, ...] | None:
    """The command whose output would decide a report: that of its likeliest candidate.

    hints: causes with the command that tells of them in the words of this report.
    None where the report is likely to be no matter of the environment. What the report holds is not
    asked for again, and nothing that cannot run where it was written.
    """
    if candidates and candidates[0].cause in _OUTSIDE and candidates[0].score > _POSSIBLE:
        return None
    for one in candidates:
        known = [command for cause, command in hints if cause == one.cause]
        known += [command for command, causes in _DECIDES.items() if one.cause in causes]
        for command in known:
            if _can_tell(command, machine):
                return command
    if _smi_is_absent(machine) and machine.platform.wsl:
        return _WSL
    imported = machine.torch.imported
    last = _IMPORT if imported and imported.cuda_available else _SMI
    order: tuple[tuple[str, ...], ...] = (_COLLECT, last)
    if candidates and candidates[0].cause in (*_DECIDES[_SMI], *_DECIDES[_LOG]):
        order = (last, _COLLECT)
    return next((one for one in order if _can_tell(one, machine)), _IMPORT)


_OUTSIDE = ("not-environment", "torch-bug")
_POSSIBLE = 0.5
_WSL = ("ls", "-l", "/dev/dxg", "/usr/lib/wsl/lib")
_TELLERS: dict[tuple[str, ...], str] = {
    _COLLECT: "collect_env",
    _SMI: "nvidia-smi",
    _LOG: "kernel log",
    _VERBOSE: "nvidia-smi -q",
    _NVCC: "nvcc",
}
"""Commands and how the origins of facts name them."""


def _can_tell(command: tuple[str, ...], machine: Machine) -> bool:
    """Whether the command can run on that machine, and would tell more than the report does."""
    told = {source.partition(", line")[0] for source in machine.origins.values()}
    if command[0] == "nvidia-smi" and _smi_is_absent(machine):
        return False
    if machine.platform.system not in (None, "Linux") and command[0] in _ON_LINUX:
        return False
    if command[0] in ("dmesg", "lspci") and (machine.container.kind or machine.platform.wsl):
        return False  # the kernel's log and the bus belong to the host
    if command == _COLLECT and machine.torch.installed is False:
        return False
    if command == _PACKAGES and len(machine.packages or ()) > _A_LIST:
        return False
    return _TELLERS.get(command, command[0]) not in told


def _smi_is_absent(machine: Machine) -> bool:
    """Whether the report shows that nvidia-smi cannot be asked there."""
    seen = {one.key for one in machine.symptoms or ()}
    return machine.platform.system == "Darwin" or "smi-absent" in seen

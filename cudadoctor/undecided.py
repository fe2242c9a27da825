"""Where the facts do not suffice: which causes remain, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.findings import Candidate, Confidence

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import Finding, Undecided

_COMMAND = {
    "driver": ("nvidia-smi",),
    "gpus": ("nvidia-smi", "-q"),
    "pci": ("lspci", "-nn"),
    "torch": ("python", "-m", "torch.utils.collect_env"),
    "python": ("python", "-m", "pip", "--version"),
    "libraries": ("python", "-c", "import torch; print(open('/proc/self/maps').read())"),
    "smoke": ("cudadoctor", "check"),
}


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


def command_for(undecided: tuple[Undecided, ...], python: str | None) -> tuple[str, ...] | None:
    """The command whose output would decide most, None where no missing fact has one.

    python: the examined interpreter, which is the one to ask.
    """
    for one in undecided:
        if one.matters and (command := _COMMAND.get(one.missing.split(".")[0])):
            return tuple((python or word) if word == "python" else word for word in command)
    return None


_COLLECT = ("python", "-m", "torch.utils.collect_env")
_SMI = ("nvidia-smi",)
_LOG = ("dmesg",)
_PACKAGES = ("python", "-m", "pip", "list")
_IMPORT = ("python", "-c", "import torch; torch.zeros(1).cuda()")
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
    ("env", "LD_DEBUG=libs", *_IMPORT): (
        *("cudnn-shadowed", "cudnn-missing-sublib", "nvjitlink-mismatch", "cublas-mismatch"),
        *("nccl-shadowed", "cuda-lib-shadowed", "libstdcxx-old", "libcuda-stub"),
    ),
    ("nvcc", "--version"): (
        *("toolkit-missing", "toolkit-torch-mismatch", "toolkit-env-wrong", "arch-list-wrong"),
        "host-compiler-unsupported",
    ),
    ("env", "NCCL_DEBUG=INFO", "torchrun", "--nproc-per-node=gpu", "train.py"): (
        *("nccl-network-interface", "nccl-p2p-broken", "nccl-version-skew", "nccl-other"),
        *("ddp-rank-device", "ddp-launch"),
    ),
    ("nvidia-smi", "-q"): (
        *("thermal-throttle", "pcie-degraded", "power-limited", "fabric-manager"),
        *("nvlink-down", "mixed-gpus", "persistence-off", "amp-no-benefit"),
    ),
}
"""The command whose output tells these causes from their neighbours."""


def command_after(machine: Machine, candidates: tuple[Candidate, ...]) -> tuple[str, ...]:
    """The command whose output would decide a report: that of its likeliest candidate.

    Whatever the report holds already is not asked for again.
    """
    told = set(machine.origins.values())
    for one in candidates:
        for command, causes in _DECIDES.items():
            if one.cause in causes and not any(command[0] in source for source in told):
                return command
    return _COLLECT if not any("collect_env" in source for source in told) else _SMI

"""Many machines and every remedy, for tests that walk all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.findings import PackageChange, Remedy
from cudadoctor.model.machine import Gpu, Machine
from cudadoctor.plan import remedies

MACHINES = Path(__file__).parent.parent / "machines"
KB = knowledge.load()

DISTROS = (
    ("ubuntu", "24.04", ("debian",)),
    ("linuxmint", "22", ("ubuntu", "debian")),
    ("debian", "12", ()),
    ("debian", "13", ()),
    ("rhel", "8.10", ("fedora",)),
    ("rocky", "9.4", ("rhel", "centos", "fedora")),
    ("almalinux", "10.0", ("rhel", "centos", "fedora")),
    ("amzn", "2023", ("fedora",)),
    ("fedora", "43", ()),
    ("opensuse-leap", "15.6", ("suse", "opensuse")),
    ("arch", None, ()),
    ("manjaro", None, ("arch",)),
    ("nixos", "25.11", ()),
)
BOXES = ("docker", "podman", "kubernetes", "apptainer", "lxc", "enroot", "containerd", "other")
SCHEDULERS = ("slurm", "kubernetes", "lsf", "pbs")
PASCAL = {"name": "NVIDIA GeForce GTX 1080", "device_id": "1b80", "capability": "6.1"}
BLACKWELL = {"name": "NVIDIA GeForce RTX 5090", "device_id": "2b85", "capability": "12.0"}

# What no remedy may ever say, with the reason.
NEVER = (
    (r"\brm\s+-\w*r", "deletes folders by hand"),
    (r"sudo\s+\S*pip|--break-system-packages", "pip as root or over the system's packages"),
    (r"--force-reinstall|--no-deps", "leaves an unsound environment"),
    (r"LD_LIBRARY_PATH=\S*cuda", "causes shadowing"),
    (
        r"(apt-get|dnf|zypper|pacman) .*\b((nvidia-)?cuda-toolkit|libcudnn\d|cudnn\d?-cuda)\b",
        "not needed",
    ),
    (r"(?<!cache )\b(purge|autoremove)\b", "takes the display along"),
    # A container on Proxmox gets the host's libraries, without a module, in place of its packages.
    (
        r"(?:(?<!/)\bNVIDIA-Linux\S*|sh (?!/var/cache/nvidia-grid)\S+)\.run"
        r"(?! --silent --no-kernel-modules)",
        "over distribution packages",
    ),
    (r"chmod|0666", "opens the device to everybody"),
    (r"(?i)(turn|switch)\w* off (secure boot|ecc|selinux)|disable-validation|setenforce", "safety"),
    (r"iommu=off|pcie_aspm=off|pci=noaer", "boot options as a first answer"),
    (r"\bkill(all)?\b|pkill", "somebody else's processes"),
    (r"(NCCL_(P2P|IB|SHM)_DISABLE|CUDA_LAUNCH_BLOCKING)=(?!None)", "a test, not a cure"),
    (r"CUDA_VISIBLE_DEVICES=(?!None|MIG-|\$)", "enables nothing"),
    (r"NCCL_MULTI_RANK_GPU_ENABLE|PYTORCH_SKIP_CUDNN|NVIDIA_DISABLE_REQUIRE", "hides the fault"),
    (r"TORCH_CUDA_ARCH_LIST=(?!None)", "means nothing to a prebuilt wheel"),
    (r"(?i)downgrade the kernel", "as a first answer"),
    (r"torch --upgrade|--upgrade torch", "takes a CUDA that the driver may not run"),
    (r"\b(please|simply|just)\b", "tone"),
)

MEANT = {
    "install-toolkit": "cuda-toolkit",
    "set-torch-cuda-arch-list": "TORCH_CUDA_ARCH_LIST",
    **dict.fromkeys(("hide-gpu", "set-visible-devices", "use-free-gpu"), "CUDA_VISIBLE_DEVICES"),
    "without-p2p": "NCCL_(P2P",
}
"""Remedies that are for what compiles code, name GPUs which exist, or say when to unset it again:
what must never cure a torch is right there."""


def never(remedy_id: str) -> Iterator[tuple[str, str]]:
    """The patterns that must not stand in that remedy, and why."""
    meant = MEANT.get(remedy_id)
    return (row for row in NEVER if not (meant and meant in row[0]))


@cache
def _text(like: str) -> str:
    return (MACHINES / f"{like}.json").read_text(encoding="utf-8")


def machine(like: str = "rtx4090-linux", **sections: Any) -> Machine:
    """A healthy machine with some facts changed; a dict is merged, anything else replaces."""
    data = json.loads(_text(like))
    for section, changes in sections.items():
        if isinstance(changes, dict) and isinstance(data.get(section, {}), dict):
            data.setdefault(section, {}).update(changes)
        else:
            data[section] = changes
    return factfile.from_plain(data)


def with_gpu(gpu: dict[str, str], like: str = "rtx4090-linux", **sections: Any) -> Machine:
    """The machine with one other GPU in it."""
    data = json.loads(_text(like))
    first = data["gpus"][0] | gpu
    pci = [data["pci"][0] | {"device_id": gpu["device_id"]}] if data.get("pci") else []
    return machine(like, gpus=[first], pci=pci, **sections)


def every_machine() -> Iterator[tuple[str, Machine]]:
    """Names and machines: each platform, with GPUs of three generations, sound and sick."""
    for file in sorted(MACHINES.glob("*.json")):
        yield file.stem, machine(file.stem)
    for distro, version, like in DISTROS:
        system = {"distro": distro, "distro_version": version, "distro_like": list(like)}
        for name, gpu in (("pascal", PASCAL), ("blackwell", BLACKWELL)):
            sick = {"installed": False, "loaded": False, "kernel": None, "library": None}
            yield f"{distro}-{version}-{name}", with_gpu(gpu, platform=system)
            yield f"{distro}-{version}-{name}-bare", with_gpu(gpu, platform=system, driver=sick)
    for kind in BOXES:
        yield f"box-{kind}", machine(container={"kind": kind})
        yield f"box-{kind}-slurm", machine(container={"kind": kind, "scheduler": "slurm"})
    for scheduler in SCHEDULERS:
        yield f"job-{scheduler}", machine(container={"scheduler": scheduler})
    yield from _special_machines()


def _special_machines() -> Iterator[tuple[str, Machine]]:
    for release in ("35.4", "36.3", "38.2", "39.0", None):
        yield f"jetson-{release}", machine("orin-jetson", platform={"l4t": release})
    yield "wsl-docker", machine("rtx3060-wsl", container={"kind": "docker"})
    yield "wsl-1", machine("rtx3060-wsl", platform={"wsl": 1})
    inside = [{"name": "libnvidia-compute-580", "version": "1", "manager": "dpkg"}]
    yield "wsl-linux-driver", machine("rtx3060-wsl", driver={"packages": inside})
    for product in ("DGXH100", "NVIDIA_DGX_Spark", "p5.48xlarge", "Google Compute Engine"):
        yield product, machine(platform={"product": product, "virtual": "kvm"})
    yield "vgpu", with_gpu({"virtualization": "vgpu", "device_id": "2684"})
    yield "secure-boot", machine(platform={"secure_boot": True})
    yield "unknown", Machine()
    yield "no-torch", machine(torch={"installed": False, "version": None}, packages=[])
    yield "root", machine(platform={"root": True})
    system = {"kind": "system", "externally_managed": True, "executable": "/usr/bin/python3"}
    yield "pep-668", machine(python=system)
    yield "redacted", machine(redacted=True, python={"executable": "$PYTHON"}, identity={})


def every_remedy(m: Machine) -> Iterator[tuple[str, tuple[Remedy, ...]]]:
    """Each remedy function by name, as rules call it."""
    yield "install_torch", remedies.install_torch(m, KB)
    yield "install_torch keep", remedies.install_torch(m, KB, keep="2.6")
    yield "reinstall_torch", remedies.reinstall_torch(m, KB)
    yield "companion", remedies.install_companion(m, KB, "torchvision", "torchaudio", "xformers")
    yield "packages", remedies.install_packages("numpy-1", "numpy below 2", "numpy<2")
    yield "remove", remedies.install_packages("remove-x", "Remove x", remove=("pynvml",))
    for branch in (470, 525, 570, 580, 590):
        yield f"upgrade_driver {branch}", remedies.upgrade_driver(m, KB, branch)
    yield "install_driver", remedies.install_driver(m, KB)
    yield "load nouveau", remedies.load_driver(m, "nouveau")
    yield "load secure-boot", remedies.load_driver(m, "secure-boot")
    yield "load not-built", remedies.load_driver(m, "not-built")
    yield "load blacklisted", remedies.load_driver(m, "blacklisted")
    yield "load modprobe", remedies.load_driver(m, "modprobe")
    yield "open_modules", remedies.open_modules(m, KB)
    yield "proprietary_modules", remedies.proprietary_modules(m, KB)
    yield from _other_remedies(m)


def _other_remedies(m: Machine) -> Iterator[tuple[str, tuple[Remedy, ...]]]:
    yield "reboot", remedies.reboot(m)
    yield "reload_uvm", remedies.reload_uvm(m)
    yield from _gpu_remedies(m)
    yield "grant_gpu", remedies.grant_gpu(m)
    yield "restart_container", remedies.restart_container(m)
    yield "larger_shm", remedies.larger_shm(m)
    yield "raise_nofile", remedies.raise_nofile(m)
    yield "free_memory", remedies.free_memory(m, (m.gpus or ())[:1])
    yield "allow_p2p", remedies.allow_p2p(m)
    for option in ("--shm-size=8g", "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"):
        yield option, remedies.container_option(m, "option", "With an option", option)
    names = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "TORCH_CUDA_ARCH_LIST")
    yield "unset_variables", remedies.unset_variables(m, *names)
    yield "set_variables", remedies.set_variables("set-x", "Set x", {"TMPDIR": "/var/tmp"})
    yield "device_groups", remedies.device_groups(m)
    yield "wsl_driver", remedies.wsl_driver(m)
    yield "jetson_torch", remedies.jetson_torch(m, KB)
    yield "install_python", remedies.install_python(m, KB, ("3.10", "3.12", "3.13", "3.14t"))
    yield "by_hand", remedies.by_hand("look", "Look", "Look at it.")


def _gpu_remedies(m: Machine) -> Iterator[tuple[str, tuple[Remedy, ...]]]:
    gpus = [*(m.gpus or (Gpu(index=0),))]
    yield "reset_gpus", remedies.reset_gpus(m, *gpus)
    yield "replace_gpus", remedies.replace_gpus(m, gpus[0])
    yield "restart", remedies.restart(m)
    yield "mig_instances", remedies.mig_instances(m, gpus)
    mode = "nvidia-smi -i {gpus} -c 0"
    yield "set_gpus", remedies.set_gpus(m, "Set the mode", mode, gpus, id="compute-mode")


def words_of(remedy: Remedy) -> str:
    """All that a remedy says, as one text."""
    change = remedy.packages or PackageChange(install=())
    parts = [remedy.title, remedy.manual or "", remedy.note or ""]
    parts += [" ".join(argv) for argv in remedy.commands]
    parts += [f"{edit.file}: {edit.what}" for edit in remedy.edits]
    parts += [f"{name}={value}" for name, value in remedy.variables.items()]
    return "\n".join([*parts, *change.install, *change.then, *change.remove])

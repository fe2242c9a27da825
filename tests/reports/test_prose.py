"""What an author says in words becomes facts, and what only looks like it does not."""

from __future__ import annotations

import pytest

from cudadoctor.knowledge import load
from cudadoctor.reports.document import document
from cudadoctor.reports.prose import read_assignments, read_prose
from cudadoctor.reports.statements import machine_of

KB = load()


def gpus(text: str) -> list[str]:
    machine = machine_of(read_prose(document(text), KB), look="report")
    return [gpu.name or "" for gpu in machine.gpus or ()]


def fact(text: str, path: str) -> object:
    return next(
        (statement.value for statement in read_prose(document(text), KB) if statement.path == path),
        None,
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("my 1050ti does not work", ["GeForce GTX 1050 Ti"]),
        ("GPU: RTX3090", ["GeForce RTX 3090"]),
        ("a machine with an NVIDIA 3070 card", ["GeForce RTX 3070"]),
        ("2x RTX 4090", ["GeForce RTX 4090"] * 2),
        ("server with 4xRTX 4090", ["GeForce RTX 4090"] * 4),
        ("dual RTX 3090", ["GeForce RTX 3090"] * 2),
        ("a Tesla K40 GPU", ["Tesla K40m"]),
        ("GTX 1650 and GTX 1660 Super", ["GeForce GTX 1650", "GeForce GTX 1660 SUPER"]),
        ("I have the T4 GPU of Colab", ["Tesla T4"]),
        ("cards of the RTX 50 series", ["RTX 50 series"]),
        ("port 1080 is open", []),
        ("version v100 of the tool", []),
        ("the loss was 3090 and L1 is 2080", []),
        ("layer h100 = nn.Linear(10, 10)", []),
    ],
)
def test_a_gpu_is_told_by_its_name(text: str, names: list[str]) -> None:
    assert gpus(text) == names


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("PyTorch 2.5.1", "torch.version", "2.5.1"),
        ("pytorch=1.4.0", "torch.version", "1.4.0"),
        ("torch version is 1.13.1", "torch.version", "1.13.1"),
        ("I use pytorch_lightning 1.9.5", "torch.version", "None"),
        ("torchvision 0.15.2", "torch.version", "None"),
        ("NVIDIA driver 472.84", "driver.reported", "472.84"),
        ("Driver: 595.71.05 / CUDA 13.2", "driver.reported", "595.71.05"),
        ("the device driver 5.3 of my mouse", "driver.reported", "None"),
        ("python 3.10 btw", "python.version", "3.10"),
        ("on Windows 11", "platform.system", "Windows"),
        ("sliding windows of 5 tokens", "platform.system", "None"),
        (r"C:\Users\me\x.py", "platform.system", "Windows"),
        ("Ubuntu 22.04", "platform.distro_version", "22.04"),
        ("in WSL2", "platform.wsl", "2"),
        ("an aarch64 machine", "platform.machine", "aarch64"),
        ("inside my container", "container.kind", "docker"),
        ("without docker it works", "container.kind", "None"),
        ("submitted with sbatch", "container.scheduler", "slurm"),
        ("Jetson Orin Nano with JetPack6.2", "platform.jetson", "True"),
    ],
)
def test_versions_and_systems_are_told_by_their_words(text: str, path: str, value: str) -> None:
    assert str(fact(text, path)) == value


def test_a_card_of_another_vendor_is_no_nvidia_gpu() -> None:
    machine = machine_of(read_prose(document("GPU: AMD Radeon RX 6700"), KB), look="report")
    assert [device.vendor for device in machine.pci or ()] == ["amd"]
    assert machine.gpus is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("export CUDA_HOME=/usr/local/cuda-12.1", "CUDA_HOME", "/usr/local/cuda-12.1"),
        ("CUDA_VISIBLE_DEVICES=2 python train.py", "CUDA_VISIBLE_DEVICES", "2"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '1'", "CUDA_VISIBLE_DEVICES", "1"),
        ('os.environ["CUDA_VISIBLE_DEVICES"]="1"', "CUDA_VISIBLE_DEVICES", "1"),
        ("- NCCL_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME", "eth0"),
        ("      NCCL_P2P_DISABLE: 1", "NCCL_P2P_DISABLE", "1"),
        ("set -gx CUDA_HOME /opt/cuda", "CUDA_HOME", "/opt/cuda"),
        ('$env:CUDA_HOME = "C:\\CUDA"', "CUDA_HOME", "C:\\CUDA"),
        ("CUDA_MODULE_LOADING set to: LAZY", "CUDA_MODULE_LOADING", "LAZY"),
        ("WANDB_API_KEY=abcdef", "WANDB_API_KEY", None),
        ("if CUDA_HOME == '/x'", "CUDA_HOME", None),
        ("CUDA_HOME=$HOME/cuda", "CUDA_HOME", None),
    ],
)
def test_a_variable_is_read_in_any_syntax(text: str, name: str, value: str | None) -> None:
    machine = machine_of(read_assignments(document(text)), look="report")
    assert (machine.env or {}).get(name) == value


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("torchvision 0.20.1 and torchaudio 2.5.1 are installed", ["0.20.1", "2.5.1"]),
        ("pip install torch==2.5.1 torchvision==0.20.1", ["0.20.1"]),
        ("torchaudio stayed at 2.10.0", ["2.10.0"]),
        ("torch 2.5.1/torchvision 0.20.1", ["0.20.1"]),
        ("I use torch and torchvision", [""]),
        ("I tried torchvision 0.20.1", [""]),
        ("No module named 'torchvision'", []),
        ("ERROR: No matching distribution found for torchaudio==2.13.0", []),
    ],
)
def test_a_companion_is_there_where_its_author_says_so(text: str, packages: list[str]) -> None:
    machine = machine_of(read_prose(document(text), KB), look="report")
    assert [package.version for package in machine.packages or ()] == packages

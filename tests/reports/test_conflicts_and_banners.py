"""Conflicts that pip tells, further banners, and two installations of torch in one report."""

from __future__ import annotations

import pytest
from packaging.version import Version
from reader_fixtures import shown

from cudadoctor.knowledge import load
from cudadoctor.model.machine import lookup
from cudadoctor.model.versions import DriverVersion
from cudadoctor.reports.reading import read_report
from cudadoctor.reports.statements import Rank, Statement, of_one_torch


@pytest.mark.parametrize(
    "text",
    [
        "torchvision 0.15.2 requires torch==2.0.1, but you have torch 2.1.0 which is incompatible.",
        "torchvision 0.15.2 has requirement torch==2.0.1, but you have torch 2.1.0.",
        "ERROR: torchvision 0.15.2 has requirement torch==2.0.1, but you'll have torch 2.1.0 "
        "which is",
    ],
)
def test_a_conflict_tells_both_packages_and_what_was_asked(text: str) -> None:
    m = shown(text)
    vision = m.package("torchvision")
    assert vision is not None
    assert vision.requires == ("torch==2.0.1",)
    assert m.torch.version == Version("2.1.0")


def test_what_a_list_lacks_is_taken_from_a_conflict() -> None:
    m = shown(
        "$ pip list\ntorch          2.1.0\ntorchvision    0.15.2\nnumpy    1.26.0\n\n"
        "torchvision 0.15.2 requires torch==2.0.1, but you have torch 2.1.0 which is "
        "incompatible.\n"
    )
    vision = m.package("torchvision")
    assert vision is not None
    assert vision.requires == ("torch==2.0.1",)


def test_a_library_that_torch_pins_is_told() -> None:
    m = shown(
        'torch 2.3.0 requires nvidia-cudnn-cu12==8.9.2.26; platform_system == "Linux" and '
        'platform_machine == "x86_64", but you have nvidia-cudnn-cu12 9.1.0.70 which is '
        "incompatible."
    )
    assert m.torch.requires == ("nvidia-cudnn-cu12==8.9.2.26",)
    cudnn = m.package("nvidia-cudnn-cu12")
    assert cudnn is not None
    assert cudnn.version == "9.1.0.70"


def test_a_package_that_needs_an_absent_torch_is_told() -> None:
    assert (
        shown("torchaudio 2.1.0 requires torch, which is not installed.").torch.installed is False
    )


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("NCCL INFO cudaDriverVersion 12020", "driver.cuda", Version("12.2")),
        ("NCCL version 2.18.5+cuda12.1", "torch.imported.nccl", "2.18.5"),
        (
            "CUDA Driver Version / Runtime Version          11.4 / 10.2",
            "driver.cuda",
            Version("11.4"),
        ),
        ("       virtual packages : __cuda=12.2=0\n", "driver.cuda", Version("12.2")),
        ("  - feature:/linux-64::__glibc==2.27=0", "platform.glibc", Version("2.27")),
        ("kernel reported version is: 470.57.2", "driver.kernel", DriverVersion("470.57.2")),
        (
            "ERROR: This container was built for NVIDIA Driver Release 530.30 or later, but "
            "version "
            "470.103.01 was detected and compatibility mode is UNAVAILABLE.",
            "driver.reported",
            DriverVersion("470.103.01"),
        ),
        (
            "NVIDIA Release 23.10 (build 71422337)\nPyTorch Version 2.1.0a0+32f93b1\n",
            "torch.version",
            Version("2.1.0a0+32f93b1"),
        ),
        ("Using Python 3.12.3 environment at: .venv", "python.version", Version("3.12.3")),
        ("Torch backend: nVidia CUDA 12.1 cuDNN 8801", "torch.cuda", Version("12.1")),
        (
            "CUDA SETUP: PyTorch settings found: CUDA_VERSION=117, Highest Compute Capability: "
            "8.6.",
            "torch.imported.capabilities",
            (Version("8.6"),),
        ),
        (
            'msg="inference compute" id=GPU-1 library=cuda variant=v12 compute=8.6 driver=12.4 '
            'name="NVIDIA GeForce RTX 3060" total="11.8 GiB"',
            "gpus.0.name",
            "NVIDIA GeForce RTX 3060",
        ),
        (
            "_CudaDeviceProperties(name='NVIDIA H100 PCIe', major=9, minor=0, "
            "total_memory=81008MB)",
            "gpus.0.capability",
            Version("9.0"),
        ),
        (
            "Device 0 Name                : Tesla T4\nDevice 0 Compute Capability  : 75\n",
            "gpus.0.capability",
            Version("7.5"),
        ),
        ("CUDA Version 10.1.243\n", "build.toolkits.0.cuda", Version("10.1")),
    ],
)
def test_a_line_of_a_program_tells_its_fact(text: str, path: str, value: object) -> None:
    assert lookup(shown(text), path) == value


def test_where_torch_could_not_be_imported_the_lists_tell_whether_it_is_there() -> None:
    head = "PyTorch version: N/A\nIs debug build: N/A\n"
    assert shown(head + "[pip3] numpy==1.26.0\n").torch.installed is False
    broken = shown(head + "[pip3] numpy==1.26.0\n[pip3] torch==2.3.0\n").torch
    assert broken.installed is True
    assert broken.imported is not None
    assert broken.imported.ok is False
    assert shown(head + "[pip3] Could not collect\n").torch.installed is None


def test_the_build_of_another_torch_is_not_taken_for_this_ones() -> None:
    text = ">>> torch.__version__\n'2.0.1'\n\nbefore:\n>>> torch.__version__\n'1.13.1+cu117'\n"
    m = read_report(text, load())
    assert (m.torch.text, m.torch.cuda) == ("2.0.1", None)


def test_facts_of_one_release_are_kept_together_from_several_parts() -> None:
    def part(path: str, value: object, line: int) -> Statement:
        return Statement(path, value, line, Rank.TOOL, "a list")

    said = [
        part("torch.version", Version("2.1.0"), 1),
        part("torch.version", Version("2.1.0+cu121"), 2),
        part("torch.cuda", Version("12.1"), 2),
        part("torch.version", Version("1.9.0+cu111"), 3),
        part("torch.cuda", Version("11.1"), 3),
    ]
    assert of_one_torch(said) == said[:4]

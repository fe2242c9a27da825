"""Reports on a torch that is not PyTorch's own, and on what another program asks of it."""

from __future__ import annotations

import pytest

from cudadoctor import knowledge
from cudadoctor.model.findings import ERROR, POSSIBLE
from cudadoctor.model.trust import foreign
from cudadoctor.pipeline import Judged, judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()


def judged(text: str) -> Judged:
    return judge(foreign(read_report(text, KB)))


def first_step(text: str) -> str:
    step = judged(text).plan.steps[0]
    commands = " | ".join(" ".join(argv) for argv in step.commands)
    return f"{commands} {step.manual or ''}"


@pytest.mark.parametrize(
    ("board", "l4t"),
    [
        ("Jetson Nano B01", "32"),
        ("Jetson TX2", "32"),
        ("Xavier NX, JetPack 5.1.2", "35"),
        ("AGX Orin, JetPack 6.2", "36"),
        ("Jetson AGX Thor, JetPack 7.0", "38"),
        ("Jetson Orin Nano", "None"),
    ],
)
def test_a_jetson_is_told_by_its_jetpack_or_board(board: str, l4t: str) -> None:
    assert str(read_report(f"{board}, torch.cuda.is_available() is False", KB).platform.l4t) == l4t


def test_no_index_of_other_computers_serves_a_jetson() -> None:
    refused = "ERROR: No matching distribution found for torch>=1.8\nPython 3.6.9\n"
    found = judged(f"Jetson Nano, JetPack 4.6.1\n{refused}")
    assert found.diagnosis.primary == "jetson-build"
    plan = first_step(f"Jetson Nano, JetPack 4.6.1\n{refused}")
    assert "cp36-cp36m-linux_aarch64.whl" in plan
    assert "No newer JetPack supports Jetson Nano, TX1 and TX2" in plan
    assert judged(f"Ubuntu 22.04\n{refused}").diagnosis.primary != "jetson-build"


SYMBOL = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n"


def test_a_torch_that_pip_put_over_that_of_nvidias_image() -> None:
    image = "FROM nvcr.io/nvidia/pytorch:25.01-py3\n"
    assert "In a new container" in first_step(f"{image}{SYMBOL}torch 2.6.0\n")
    for other in (
        f"{image}{SYMBOL}torch 2.6.0a0+ecf3bae40a.nv25.01\n",
        f"FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\n{SYMBOL}torch 2.6.0\n",
    ):
        assert "In a new container" not in first_step(other)


MISMATCH = (
    "deepspeed: Installed CUDA version {0} does not match the version torch was compiled with "
    "{1}, unable to compile cuda/cpp extensions without a matching cuda version.\n"
)


def test_the_toolkit_of_torch_by_its_package_and_no_build_that_does_not_exist() -> None:
    text = MISMATCH.format("11.5", "12.1") + "Ubuntu 22.04, RTX 3090, torch 2.3.0, driver 535\n"
    assert "cuda-toolkit-12-1" in first_step(text)
    assert not any("torch==" in " ".join(c) for s in judged(text).plan.steps for c in s.commands)
    text = MISMATCH.format("11.8", "12.4") + "Debian 12, RTX A6000, torch 2.4.1+cu124\n"
    commands = [" ".join(argv) for step in judged(text).plan.steps for argv in step.commands]
    assert any("whl/cu118" in line for line in commands)


def test_a_mere_possibility_is_no_second_fault() -> None:
    text = (
        "RTX 5090, Ubuntu 22.04, driver 570.172, torch 2.5.1+cu124\n"
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
        "with driver 535 nvidia-smi showed No devices were found\n"
    )
    found = judged(text).diagnosis
    assert found.primary == "torch-arch-unsupported-new"
    assert not [f for f in found.findings if f.confidence is POSSIBLE and f.severity is ERROR]


def test_onnxruntime_for_cuda_11_beside_a_torch_for_cuda_12() -> None:
    text = (
        "Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.11: "
        "cannot open shared object file\nUbuntu 22.04, RTX A5000\n"
    )
    assert "onnxruntime-gpu>=1.19,<1.24" in first_step(f"{text}torch==2.5.1\n")
    assert "onnxruntime-gpu>=1.19" not in first_step(f"{text}torch 2.1.2+cu118\n")

"""From real files and a driver made of C through every probe to what is wrong with the torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter_fixtures import make_venv, oldest, plant, plant_torch, site
from raw_torch_fixtures import (
    BLACKWELL,
    TURING,
    VOLTA,
    Bench,
    a_bench,  # noqa: F401
    python_of,
)


def test_a_default_install_on_a_fitting_driver_is_healthy(bench: Bench, python_cu130: str) -> None:
    report = bench.check(python_cu130)
    assert (report["verdict"], report.told, report["primary"]) == ("healthy", [], None)
    assert report["facts"]["libraries"]["missing"] == []


def test_a_small_torch_of_hollow_libraries_is_whole(bench: Bench, tmp_path: Path) -> None:
    report = bench.check(python_of(bench.small_torch()))
    assert (report["verdict"], report.told) == ("healthy", [])


def test_an_empty_environment_has_no_torch(bench: Bench, tmp_path: Path) -> None:
    report = bench.check(python_of(make_venv(tmp_path / "venv")))
    assert report.told == ["torch-missing"]
    assert report.evidence("torch-missing")["torch.installed"] == "no"
    assert report["plan"]["build"]["torch"]


def test_an_empty_folder_named_torch_is_no_torch(bench: Bench, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    (site(venv) / "torch").mkdir()
    assert bench.check(python_of(venv)).told == ["torch-missing"]


def test_a_cpu_build_beside_a_gpu_is_told(bench: Bench, python_cpu: str) -> None:
    report = bench.check(python_cpu)
    assert report.told == ["torch-cpu-build"]
    assert report.evidence("torch-cpu-build")["torch.build"] == "cpu"
    assert "RTX 4090" in report.finding("torch-cpu-build")["title"]


def test_a_cpu_build_without_a_gpu_is_healthy(bench: Bench, python_cpu: str) -> None:
    report = bench.check(python_cpu, gpu=None)
    assert (report["verdict"], report.told) == ("healthy", [])


def test_a_rocm_build_beside_an_nvidia_gpu_is_of_the_wrong_backend(
    bench: Bench, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    plant_torch(site(venv), "2.9.1+rocm6.4", None, hip="6.4.43484")
    report = bench.check(python_of(venv))
    assert report.told == ["torch-wrong-backend"]
    assert report.evidence("torch-wrong-backend")["torch.build"] == "rocm"


def test_a_cuda_build_beside_a_gpu_of_amd_is_of_the_wrong_backend(
    bench: Bench, python_cu130: str, tmp_path: Path
) -> None:
    device = tmp_path / "bus/0000:03:00.0"
    device.mkdir(parents=True)
    (device / "uevent").write_text("DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\n")
    host = bench.host("c++", gpu=None)
    host.bus = device.parent
    report = bench.check_on(host, python_cu130)
    assert report.told == ["torch-wrong-backend"]
    assert "amd" in report.evidence("torch-wrong-backend")["pci"]


def test_a_gpu_newer_than_the_build_is_told(bench: Bench, tmp_path: Path) -> None:
    report = bench.check(python_of(bench.small_torch()), gpu=BLACKWELL)
    assert report.told == ["torch-arch-unsupported-new"]
    shown = report.evidence("torch-arch-unsupported-new")
    assert shown["torch.archs"].endswith("sm_90")
    assert "12.0" in shown["gpus.0"]


def test_a_gpu_older_than_the_build_is_told(bench: Bench, python_cu130: str) -> None:
    report = bench.check(python_cu130, gpu=VOLTA)
    assert report.told == ["torch-arch-unsupported-old"]
    assert "7.0" in report.evidence("torch-arch-unsupported-old")["gpus.0"]
    assert report["plan"]["build"]["variant"] == "cu126"


@pytest.mark.parametrize("gpu", [TURING, BLACKWELL])
def test_the_oldest_and_the_newest_gpu_of_a_build_are_served(
    bench: Bench, python_cu130: str, gpu: str
) -> None:
    assert bench.check(python_cu130, gpu=gpu).told == []


def test_an_upgraded_cudnn_that_dropped_the_gpu_is_a_broken_pin(
    bench: Bench, tmp_path: Path
) -> None:
    venv = bench.small_torch()
    place = site(venv)
    (place / "nvidia_cudnn_cu12-9.1.0.70.dist-info").rename(place / "gone")
    plant(place, "nvidia-cudnn-cu12", "9.12.0.46")
    report = bench.check(python_of(venv), gpu=VOLTA)
    assert report.told == ["nvidia-wheels-mixed"]


def test_a_python_without_any_wheel_is_told(bench: Bench, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "old", oldest("3.8", "3.7"))
    report = bench.check(python_of(venv), gpu=BLACKWELL)
    assert report.told == ["torch-python-unsupported"]
    assert report.folded("torch-missing") == ["torch-python-unsupported"]


def test_a_python_3_8_has_an_older_build_for_an_ada_gpu(bench: Bench, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "old", oldest("3.8"))
    report = bench.check(python_of(venv))
    assert report.told == ["torch-missing"]
    assert report["plan"]["build"]["python"] == "3.8"

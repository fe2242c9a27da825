"""From real files through every probe: an installation that is broken, doubled or elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interpreter_fixtures import make_venv, plant, plant_torch, site
from raw_torch_fixtures import (
    Bench,
    Twin,
    a_bench,  # noqa: F401
    a_twin,  # noqa: F401
    python_of,
)


def test_the_twin_of_a_healthy_environment_is_healthy(bench: Bench, twin: Twin) -> None:
    report = bench.check(twin.python)
    assert (report["verdict"], report.told) == ("healthy", [])


def test_a_file_of_record_that_is_missing_is_told(bench: Bench, twin: Twin) -> None:
    (twin.site / "torch/lib/libtorch_cuda.so").unlink()
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]
    shown = report.evidence("torch-install-corrupt")
    assert shown["torch.missing_files"] == "torch/lib/libtorch_cuda.so"


def test_an_empty_file_of_record_is_told(bench: Bench, twin: Twin) -> None:
    path = twin.site / "torch/version.py"
    path.unlink()
    path.touch()
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]
    assert report.evidence("torch-install-corrupt")["torch.empty_files"] == "torch/version.py"


def test_a_library_that_was_cut_short_is_told(bench: Bench, twin: Twin) -> None:
    path = twin.site / "torch/lib/libc10.so"
    with path.open("rb") as file:
        start = file.read(4096)
    path.unlink()
    path.write_bytes(start)
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]
    assert "torch.short_files" in report.evidence("torch-install-corrupt")


@pytest.mark.parametrize("wheel", ["nvidia-cublas", "nvidia-nccl-cu13", "nvidia-cudnn-cu13"])
def test_a_wheel_of_nvidia_that_is_missing_is_told(bench: Bench, twin: Twin, wheel: str) -> None:
    twin.remove(wheel)
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_library_of_a_wheel_that_is_cut_short_is_told(
    bench: Bench, twin: Twin, size: int
) -> None:
    path = twin.site / "nvidia/cu13/lib/libcufft.so.12"
    with path.open("rb") as file:
        start = file.read(size)
    path.unlink()
    path.write_bytes(start)
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]
    assert "nvidia/cu13/lib/libcufft.so.12" in str(report.evidence("torch-install-corrupt"))


def test_an_import_that_fails_for_another_package_is_told(
    bench: Bench, python_cpu: str, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    (site(venv) / "real.pth").write_text(f"{site(Path(python_cpu).parent.parent)}\n")
    (site(venv) / "typing_extensions.py").write_text("raise ImportError('no such name: Never')\n")
    report = bench.check(python_of(venv), "--no-smoke", gpu=None)
    assert report.told == ["torch-install-corrupt"]
    assert "no such name: Never" in report.finding("torch-install-corrupt")["title"]


def test_torch_without_its_folder_is_told(bench: Bench, twin: Twin) -> None:
    shutil.rmtree(twin.site / "torch")
    report = bench.check(twin.python)
    assert report.told == ["torch-install-corrupt"]


def test_what_a_killed_pip_leaves_behind_is_told(bench: Bench, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    plant_torch(site(venv))
    (site(venv) / "torch").rename(site(venv) / "~orch")
    shutil.rmtree(next(site(venv).glob("torch-*.dist-info")))
    report = bench.check(python_of(venv))
    assert report.told == ["torch-install-corrupt"]
    assert report.folded("torch-missing") == ["torch-install-corrupt"]


def test_a_local_torch_py_is_told(bench: Bench, python_cu130: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "torch.py").write_text("print('mine')\n")
    report = bench.check(python_cu130, cwd=folder)
    assert report.told == ["torch-duplicate"]
    assert str(folder / "torch.py") in report.finding("torch-duplicate")["title"]


def test_two_releases_on_the_path_are_told(bench: Bench, python_cu130: str, tmp_path: Path) -> None:
    place = tmp_path / "older"
    place.mkdir()
    plant_torch(place, "2.6.0+cu124")
    report = bench.check(python_cu130, env={"PYTHONPATH": str(place)})
    assert "torch-duplicate" in report.told
    assert "2.6.0+cu124" in report.finding("torch-duplicate")["title"]


def test_a_copy_in_the_user_site_of_another_python_is_no_copy(
    bench: Bench, python_cu130: str
) -> None:
    place = bench.folder / "home/.local/lib/python3.6/site-packages"
    place.mkdir(parents=True)
    plant_torch(place, "1.10.0")
    assert bench.check(python_cu130).told == []


def test_pip_of_another_environment_is_a_hint(
    bench: Bench, python_cu130: str, tmp_path: Path
) -> None:
    other = make_venv(tmp_path / "other")
    pip = other / "bin/pip"
    pip.write_text(f"#!{python_of(other)}\nimport pip\n")
    pip.chmod(0o755)
    environment = {
        "PATH": f"{other}/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(Path(python_cu130).parent.parent),
    }
    report = bench.check(None, env=environment)
    assert report.told == []
    assert "wrong-interpreter" in report.infos


def test_an_old_pynvml_beside_nvidia_ml_py_is_told(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "pynvml", "11.5.3")
    plant(twin.site, "nvidia-ml-py", "13.580.82")
    report = bench.check(twin.python)
    assert report.told == ["pynvml-conflict"]
    assert "11.5.3" in report.finding("pynvml-conflict")["title"]


def test_a_new_pynvml_leaves_the_module_to_nvidia_ml_py(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "pynvml", "12.0.0", "nvidia-ml-py>=12.0.0")
    plant(twin.site, "nvidia-ml-py", "13.580.82")
    assert bench.check(twin.python).told == []

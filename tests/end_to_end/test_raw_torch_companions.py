"""From metadata and files through every probe: packages around torch that do not fit it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from interpreter_fixtures import make_venv, plant, plant_torch, site
from raw_torch_fixtures import (
    PINS_OF_2_6,
    VOLTA,
    Bench,
    Twin,
    a_bench,  # noqa: F401
    a_twin,  # noqa: F401
    python_of,
)


@pytest.mark.parametrize(
    ("name", "version", "requires"),
    [
        ("torchvision", "0.21.0", ("torch==2.6.0", "numpy")),
        ("torchvision", "0.29.1+cpu", ("torch", "numpy")),
        ("torchaudio", "2.11.0+cu126", ()),
        ("torchaudio", "2.9.1", ("torch==2.9.1",)),
    ],
)
def test_a_companion_of_another_torch_is_told(
    bench: Bench, twin: Twin, name: str, version: str, requires: tuple[str, ...]
) -> None:
    plant(twin.site, name, version, *requires)
    report = bench.check(twin.python)
    assert report.told == ["torch-companion-mismatch"]
    title = report.finding("torch-companion-mismatch")["title"]
    assert title == f"{name} {version} does not match torch 2.14.1+cu130"


def test_the_companion_that_belongs_to_torch_is_none(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "torchvision", "0.29.1", "torch", "numpy")
    assert bench.check(twin.python).told == []


def test_a_companion_that_does_not_import_is_told_by_its_own_words(
    bench: Bench, python_cpu: str, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    own = subprocess_site(python_cpu)
    (site(venv) / "real.pth").write_text(f"{own}\n")
    plant(site(venv), "torchvision", "0.28.0", "torch")
    (site(venv) / "torchvision").mkdir()
    words = "operator torchvision::nms does not exist"
    (site(venv) / "torchvision/__init__.py").write_text(f"raise RuntimeError('{words}')\n")
    report = bench.check(python_of(venv), "--no-smoke", gpu=None)
    assert report.told == ["torch-companion-mismatch"]
    shown = report.evidence("torch-companion-mismatch")
    assert words in shown["torch.imported.companion_errors.torchvision"]


def subprocess_site(python: str) -> Path:
    """Where the packages of a real environment lie."""
    return site(Path(python).parent.parent)


@pytest.mark.parametrize(
    ("name", "version", "requires"),
    [
        ("flash_attn", "2.8.3+cu12torch2.6cxx11abitrue", ("torch", "einops")),
        ("torch_scatter", "2.1.2+pt26cu124", ()),
        ("vllm", "0.11.0", ("torch==2.8.0",)),
    ],
)
def test_an_extension_for_another_torch_is_told(
    bench: Bench, twin: Twin, name: str, version: str, requires: tuple[str, ...]
) -> None:
    plant(twin.site, name, version, *requires)
    report = bench.check(twin.python)
    assert report.told == ["torch-extension-abi"]
    assert version in report.finding("torch-extension-abi")["title"]


def test_xformers_says_in_a_file_what_it_was_built_for(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "xformers", "0.0.29", "torch>=2.4")
    folder = twin.site / "xformers"
    folder.mkdir()
    built = folder / "cpp_lib.json"
    built.write_text('{"version": {"cuda": 1204, "torch": "2.5.1+cu124", "python": "3.11"}}')
    report = bench.check(twin.python)
    assert report.told == ["torch-extension-abi"]
    assert "2.5.1" in report.finding("torch-extension-abi")["why"]
    built.write_text('{"version": {"cuda": 1300, "torch": "2.14.1+cu130", "python": "3.11"}}')
    assert bench.check(twin.python).told == []


def test_a_cpu_build_explains_why_an_extension_does_not_fit(
    bench: Bench, python_cpu: str, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    (site(venv) / "real.pth").write_text(f"{subprocess_site(python_cpu)}\n")
    plant(site(venv), "flash_attn", "2.8.3+cu12torch2.6cxx11abitrue", "torch")
    report = bench.check(python_of(venv))
    assert report.told == ["torch-cpu-build"]
    assert report.folded("torch-extension-abi") == ["torch-cpu-build"]


def planted_2_2(tmp_path: Path) -> Path:
    """The last torch that was compiled for numpy 1, with what it requires."""
    venv = make_venv(tmp_path / "venv")
    wheels = [pin.split("==") for pin in PINS_OF_2_6]
    requires = ("triton==2.2.0", *PINS_OF_2_6)
    plant_torch(site(venv), "2.2.2+cu121", "12.1", *requires)
    for name, version in wheels:
        plant(site(venv), name, version)
    plant(site(venv), "triton", "2.2.0")
    return venv


def test_numpy_2_beside_a_torch_compiled_for_numpy_1_is_told(bench: Bench, tmp_path: Path) -> None:
    venv = planted_2_2(tmp_path)
    info = plant(site(venv), "numpy", "2.1.0")
    report = bench.check(python_of(venv))
    assert report.told == ["numpy-abi"]
    assert report.finding("numpy-abi")["title"] == "torch 2.2.2+cu121 does not support NumPy 2.1.0"
    shutil.rmtree(info)
    plant(site(venv), "numpy", "1.26.4")
    assert bench.check(python_of(venv)).told == []


def test_numpy_2_beside_a_newer_torch_is_fine(bench: Bench) -> None:
    venv = bench.small_torch()
    plant(site(venv), "numpy", "2.1.0")
    assert bench.check(python_of(venv)).told == []


def test_a_triton_that_torch_does_not_pin_is_told(bench: Bench, twin: Twin) -> None:
    twin.rename("triton", "3.2.0")
    report = bench.check(twin.python)
    assert (report["verdict"], report.told) == ("warnings", ["triton-broken"])
    assert "3.2.0" in report.finding("triton-broken")["title"]


def test_a_triton_that_is_not_installed_is_told(bench: Bench, twin: Twin) -> None:
    twin.remove("triton")
    assert bench.check(twin.python).told == ["triton-broken"]


def test_triton_without_a_compiler_is_worth_knowing(bench: Bench, python_cu130: str) -> None:
    report = bench.check_on(bench.host(), python_cu130)
    assert (report["verdict"], report.told) == ("healthy", [])
    assert "triton-broken" in report.infos
    assert report.evidence("triton-broken") == {"build.compiler.present": "no"}
    assert "triton-broken" not in bench.check_on(bench.host("c++"), python_cu130).infos


def test_triton_without_the_headers_of_python_is_worth_knowing(
    bench: Bench, python_cu130: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    (base / "bin").mkdir(parents=True)
    program = str(shutil.copy(Path(sys.executable).resolve(), base / "bin"))
    (base / "lib").symlink_to(Path(sys.base_prefix) / "lib")
    venv = make_venv(tmp_path / "venv", program)
    (site(venv) / "real.pth").write_text(f"{subprocess_site(python_cu130)}\n")
    report = bench.check(python_of(venv))
    assert (report["verdict"], report.told) == ("healthy", [])
    assert report.evidence("triton-broken") == {"build.headers": "no"}


def test_a_gpu_that_triton_never_served_needs_no_triton(bench: Bench, twin: Twin) -> None:
    twin.remove("triton")
    pascal = VOLTA.replace("V100", "P100").replace("= 70", "= 60").replace("1db1", "15f8")
    assert bench.check(twin.python, gpu=pascal).told == ["torch-arch-unsupported-old"]


@pytest.mark.parametrize(
    ("imports", "expected"), [(True, []), (False, ["torch-companion-mismatch"])]
)
def test_a_companion_that_imports_tells_more_than_a_table(
    bench: Bench, python_cpu: str, tmp_path: Path, imports: bool, expected: list[str]
) -> None:
    venv = make_venv(tmp_path / "venv")
    (site(venv) / "real.pth").write_text(f"{subprocess_site(python_cpu)}\n")
    plant(site(venv), "torchaudio", "2.3.0")
    (site(venv) / "torchaudio").mkdir()
    (site(venv) / "torchaudio/__init__.py").touch()
    report = bench.check(python_of(venv), "--no-smoke" if imports else "--fast", gpu=None)
    assert report.told == expected

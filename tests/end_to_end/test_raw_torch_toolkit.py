"""From toolkits and compilers on a disk through every probe: would an extension compile?"""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter_fixtures import make_venv, plant
from raw_torch_fixtures import (
    Bench,
    Twin,
    a_bench,  # noqa: F401
    a_twin,  # noqa: F401
    python_of,
    toolkit,
)


@pytest.fixture(name="compiling")
def a_twin_that_compiles(twin: Twin) -> Twin:
    """The real environment with a package that calls nvcc while programs run."""
    plant(twin.site, "deepspeed", "0.18.2", "torch", "numpy")
    return twin


def test_what_compiles_without_any_toolkit_is_told(bench: Bench, compiling: Twin) -> None:
    report = bench.check_on(bench.host("c++"), compiling.python)
    assert (report["verdict"], report.told) == ("warnings", ["toolkit-missing"])
    assert report.evidence("toolkit-missing")["build.needed_by"] == "deepspeed"


def test_without_a_package_that_compiles_no_toolkit_is_missed(bench: Bench, twin: Twin) -> None:
    assert bench.check_on(bench.host("c++"), twin.python).told == []


def test_a_toolkit_of_another_major_is_told(bench: Bench, compiling: Twin, tmp_path: Path) -> None:
    folder = toolkit(tmp_path / "cuda-12.8", "12.8")
    host = bench.host("c++", PATH=f"{bench.folder}/bin:{folder}/bin")
    report = bench.check_on(host, compiling.python)
    assert report.told == ["toolkit-torch-mismatch"]
    shown = report.evidence("toolkit-torch-mismatch")
    assert (shown["build.used"], shown["torch.cuda"]) == (str(folder), "13.0")


def test_a_newer_toolkit_of_the_same_major_fits(
    bench: Bench, compiling: Twin, tmp_path: Path
) -> None:
    folder = toolkit(tmp_path / "cuda-13.1", "13.1")
    host = bench.host("c++", PATH=f"{bench.folder}/bin:{folder}/bin")
    assert bench.check_on(host, compiling.python).told == []


def test_as_long_as_nothing_compiles_another_major_is_information(
    bench: Bench, twin: Twin, tmp_path: Path
) -> None:
    folder = toolkit(tmp_path / "cuda-12.8", "12.8")
    host = bench.host("c++", PATH=f"{bench.folder}/bin:{folder}/bin")
    report = bench.check_on(host, twin.python)
    assert (report.told, report.infos) == ([], ["toolkit-torch-mismatch"])


def test_a_cuda_home_that_names_nothing_is_told(bench: Bench, python_cu130: str) -> None:
    report = bench.check(python_cu130, env={"CUDA_HOME": "/nowhere/cuda"})
    assert (report["verdict"], report.told) == ("warnings", ["toolkit-env-wrong"])
    assert report.evidence("toolkit-env-wrong")["build.cuda_home"] == "/nowhere/cuda"


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_a_variable_that_names_the_wrong_of_two_toolkits_is_told(
    bench: Bench, twin: Twin, tmp_path: Path, variable: str
) -> None:
    wrong, right = toolkit(tmp_path / "wrong", "12.8"), toolkit(tmp_path / "right", "13.0")
    path = f"{bench.folder}/bin:{right}/bin"
    host = bench.host("c++", PATH=path, **{variable: str(wrong)})
    report = bench.check_on(host, twin.python)
    assert report.told == ["toolkit-env-wrong"]
    assert str(right) in report.finding("toolkit-env-wrong")["title"]
    step = report["plan"]["steps"][0]
    assert step["variables"]["CUDA_HOME"] == str(right)


def compiler(folder: Path, version: str) -> Path:
    """A g++ that a fast look takes for that version, by the name of the program."""
    folder.mkdir()
    real = folder / f"x86_64-linux-gnu-g++-{version}"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    (folder / "c++").symlink_to(real.name)
    return folder


@pytest.mark.parametrize(
    ("version", "expected"), [("16", ["host-compiler-unsupported"]), ("15", [])]
)
def test_a_compiler_is_told_only_above_what_nvcc_accepts(
    bench: Bench, compiling: Twin, tmp_path: Path, version: str, expected: list[str]
) -> None:
    folders = (compiler(tmp_path / "gcc", version), toolkit(tmp_path / "cuda", "13.0") / "bin")
    host = bench.host(PATH=":".join(map(str, folders)))
    assert bench.check_on(host, compiling.python).told == expected


def test_a_temporary_folder_that_cannot_hold_the_wheel_is_told(
    bench: Bench, tmp_path: Path
) -> None:
    host = bench.host("c++")
    host.tmp_free = 100 << 20
    report = bench.check_on(host, python_of(make_venv(tmp_path / "venv")))
    assert report.told == ["torch-missing"]
    assert "disk-full" in report.infos
    assert report.evidence("disk-full")["limits.tmp_free_bytes"] == str(100 << 20)

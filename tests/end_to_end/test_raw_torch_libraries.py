"""From compiled libraries through the loader's rules to the library that is not torch's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from interpreter_fixtures import make_venv, plant, site
from raw_torch_fixtures import (
    VOLTA,
    Bench,
    Twin,
    a_bench,  # noqa: F401
    a_twin,  # noqa: F401
    asks,
    library,
    numbered,
    python_of,
)

FOREIGN = (
    ("cudnn-shadowed", "libcudnn.so.9", "0.0"),
    ("cudnn-shadowed", "libcudnn_ops.so.9", "0.0"),
    ("cublas-mismatch", "libcublas.so.12", "1.0.26"),
    ("cublas-mismatch", "libcublasLt.so.12", "1.0.26"),
    ("nccl-shadowed", "libnccl.so.2", "18.3"),
    ("nvjitlink-mismatch", "libnvJitLink.so.12", "1.105"),
    ("cuda-lib-shadowed", "libcudart.so.12", "1.105"),
    ("cuda-lib-shadowed", "libcusparse.so.12", "1.0.7"),
)
"""Cause, soname and the rest of an older version."""


@pytest.mark.parametrize(("cause", "soname", "rest"), FOREIGN)
def test_an_older_library_that_runpath_lets_in_is_told(
    bench: Bench, tmp_path: Path, cause: str, soname: str, rest: str
) -> None:
    numbered(tmp_path / "old", soname, rest)
    report = bench.check(python_of(bench.small_torch()), ahead=[tmp_path / "old"])
    assert report.told == [cause]
    found = report.finding(cause)
    assert (found["severity"], found["confidence"]) == ("error", "likely")
    assert f"old/{soname}.{rest}" in str(report.evidence(cause))
    left = report["plan"]["steps"][0]["variables"]["LD_LIBRARY_PATH"]
    assert left.endswith("/libcuda")  # the other folders stay
    assert str(tmp_path / "old") not in left


@pytest.mark.parametrize("soname", ["libcudnn.so.9", "libcublas.so.12", "libcudart.so.12"])
def test_the_same_library_is_kept_out_by_rpath(bench: Bench, tmp_path: Path, soname: str) -> None:
    numbered(tmp_path / "old", soname, "0.0")
    report = bench.check(python_of(bench.small_torch("rpath")), ahead=[tmp_path / "old"])
    assert report.told == []


def test_rpath_of_torch_does_not_help_what_cublas_asks_for(bench: Bench, tmp_path: Path) -> None:
    numbered(tmp_path / "old", "libcublasLt.so.12", "1.0.26")
    report = bench.check(python_of(bench.small_torch("rpath")), ahead=[tmp_path / "old"])
    assert report.told == ["cublas-mismatch"]


@pytest.mark.parametrize("soname", ["libcudnn.so.9", "libcudnn_graph.so.9", "libcublasLt.so.13"])
def test_the_real_torch_opens_its_own_before_the_library_path(
    bench: Bench, python_cu130: str, tmp_path: Path, soname: str
) -> None:
    library(tmp_path / "old" / soname)
    assert bench.check(python_cu130, ahead=[tmp_path / "old"]).told == []


def test_a_stub_of_unknown_version_is_a_warning(bench: Bench, tmp_path: Path) -> None:
    library(tmp_path / "old/libcudnn.so.9")
    report = bench.check(python_of(bench.small_torch()), ahead=[tmp_path / "old"])
    assert (report["verdict"], report.told) == ("warnings", ["cudnn-shadowed"])


def test_the_very_same_version_from_elsewhere_harms_nobody(bench: Bench, tmp_path: Path) -> None:
    numbered(tmp_path / "same", "libcudnn.so.9", "1.0")
    report = bench.check(python_of(bench.small_torch()), ahead=[tmp_path / "same"])
    assert report.told == []


def test_a_preloaded_cudnn_is_told(bench: Bench, tmp_path: Path) -> None:
    old = numbered(tmp_path / "old", "libcudnn.so.9", "0.0")
    report = bench.check(python_of(bench.small_torch()), env={"LD_PRELOAD": str(old)})
    assert "cudnn-shadowed" in report.told
    assert {"LD_PRELOAD": None} in [step["variables"] for step in report["plan"]["steps"]]


def test_a_torch_from_the_user_site_has_its_own_libraries_there(
    bench: Bench, tmp_path: Path
) -> None:
    small = bench.small_torch()
    venv = make_venv(tmp_path / "outer")
    (site(venv) / "other.pth").write_text(f"{site(small)}\n")
    assert bench.check(python_of(venv)).told == []
    numbered(tmp_path / "old", "libcudnn.so.9", "0.0")
    assert bench.check(python_of(venv), ahead=[tmp_path / "old"]).told == ["cudnn-shadowed"]


@pytest.mark.parametrize("part", ["libcudnn_ops.so.9", "libcudnn_graph.so.9", "libcudnn_adv.so.9"])
def test_a_part_of_cudnn_that_is_gone_is_told(bench: Bench, twin: Twin, part: str) -> None:
    (twin.site / "nvidia/cudnn/lib" / part).unlink()
    report = bench.check(twin.python)
    assert report.told == ["cudnn-missing-sublib"]
    assert report.evidence("cudnn-missing-sublib") == {"libraries.missing": part}


@pytest.mark.parametrize("version", ["9.10.2.21", "8.9.2.26"])
def test_an_older_cudnn_wheel_than_the_pin_is_told(bench: Bench, twin: Twin, version: str) -> None:
    twin.rename("nvidia-cudnn-cu13", version)
    report = bench.check(twin.python)
    assert report.told == ["nvidia-wheels-mixed"]
    assert version in report.finding("nvidia-wheels-mixed")["title"]
    assert report["verdict"] == "broken"


def test_a_newer_cudnn_of_the_same_major_is_a_warning(bench: Bench, twin: Twin) -> None:
    twin.rename("nvidia-cudnn-cu13", "9.99.0.1")
    report = bench.check(twin.python)
    assert (report["verdict"], report.told) == ("warnings", ["nvidia-wheels-mixed"])


def test_a_pin_of_the_meta_package_counts(bench: Bench, twin: Twin) -> None:
    twin.rename("nvidia-nvjitlink", "12.4.127")
    report = bench.check(twin.python)
    assert report.told == ["nvidia-wheels-mixed"]
    assert "nvidia-nvjitlink" in report.finding("nvidia-wheels-mixed")["title"]


def test_wheels_of_two_cudas_in_one_folder_are_told(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "nvidia-nccl-cu12", "2.27.5")
    report = bench.check(twin.python)
    assert report.told == ["nvidia-wheels-mixed"]


def test_a_file_that_another_wheel_overwrote_is_an_error(bench: Bench, twin: Twin) -> None:
    info = plant(twin.site, "nvidia-nccl-cu12", "2.27.5")
    path = twin.site / "nvidia/nccl/lib/libnccl.so.2"
    path.unlink()
    library(path)
    (info / "RECORD").write_text(f"nvidia/nccl/lib/libnccl.so.2,,{path.stat().st_size}\n")
    report = bench.check(twin.python)
    assert (report["verdict"], report.told) == ("broken", ["nvidia-wheels-mixed"])


def test_wheels_that_an_older_torch_left_over_are_harmless(bench: Bench, twin: Twin) -> None:
    plant(twin.site, "nvidia-cublas-cu12", "12.8.4.1")
    assert bench.check(twin.python).told == []


def test_a_library_of_a_missing_wheel_that_a_toolkit_provides_is_told(
    bench: Bench, twin: Twin, tmp_path: Path
) -> None:
    twin.remove("nvidia-cuda-cupti")
    library(tmp_path / "cuda/libcupti.so.13")
    report = bench.check(twin.python, ahead=[tmp_path / "cuda"])
    assert report.told == ["cuda-lib-shadowed"]
    assert "(" not in report.finding("cuda-lib-shadowed")["title"]


def test_a_pinned_cudnn_that_dropped_the_gpu_is_told(
    bench: Bench,
) -> None:
    venv = bench.small_torch()
    metadata = next(site(venv).glob("torch-*/METADATA"))
    metadata.write_text(metadata.read_text().replace("==9.1.0.70", "==9.12.0.46"))
    shutil.rmtree(next(site(venv).glob("nvidia_cudnn_cu12-*")))
    plant(site(venv), "nvidia-cudnn-cu12", "9.12.0.46")
    assert bench.check(python_of(venv)).told == []
    report = bench.check(python_of(venv), gpu=VOLTA)
    assert report.told == ["torch-arch-unsupported-old"]
    assert "9.12.0.46" in report.finding("torch-arch-unsupported-old")["title"]


@pytest.mark.parametrize(
    ("cause", "folder", "asking", "asked", "symbol"),
    [
        (
            "nvjitlink-mismatch",
            "cusparse",
            "libcusparse.so.12",
            "libnvJitLink.so.12",
            "__nvJitLinkComplete_12_4",
        ),
        (
            "cublas-mismatch",
            "cublas",
            "libcublas.so.12",
            "libcublasLt.so.12",
            "cublasLtGroupedMatrixLayoutInit_internal",
        ),
    ],
)
def test_words_of_the_loader_at_the_real_import_are_told(
    bench: Bench, tmp_path: Path, cause: str, folder: str, asking: str, asked: str, symbol: str
) -> None:
    venv = bench.small_torch()
    path = site(venv) / "nvidia" / folder / "lib" / asking
    search = "$ORIGIN:$ORIGIN/../../nvjitlink/lib"
    library(path, asked, tag="runpath", search=search, code=asks(symbol))
    library(tmp_path / "old" / asked)
    report = bench.check(python_of(venv), "--no-smoke", ahead=[tmp_path / "old"])
    assert report.told == [cause]
    assert f"undefined symbol: {symbol}" in report.evidence(cause)["torch.imported.error"]
    assert report.finding(cause)["confidence"] == "certain"


def test_words_about_nccl_at_the_real_import_are_told(bench: Bench, tmp_path: Path) -> None:
    venv = bench.small_torch()
    lib = site(venv) / "torch/lib"
    search = "$ORIGIN/../../nvidia/nccl/lib"
    code = asks("ncclCommWindowRegister")
    library(lib / "libtorch_cuda.so", "libnccl.so.2", tag="runpath", search=search, code=code)
    numbered(tmp_path / "old", "libnccl.so.2", "18.3")
    report = bench.check(python_of(venv), "--no-smoke", ahead=[tmp_path / "old"])
    assert report.told == ["nccl-shadowed"]
    assert "torch.imported.error" in report.evidence("nccl-shadowed")


OLD_LIBSTDCXX = """
GLIBCXX_3.4 { global: *; };
CXXABI_1.3 { };
"""


def test_an_old_libstdcxx_that_is_loaded_first_is_told(
    bench: Bench, python_cpu: str, tmp_path: Path
) -> None:
    versions = tmp_path / "versions.map"
    versions.write_text(OLD_LIBSTDCXX)
    old = tmp_path / "old/libstdc++.so.6"
    library(old)
    flags = ["-shared", "-fPIC", "-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={versions}"]
    argv = ["gcc", *flags, "-o", str(old), "-x", "c", "-"]
    subprocess.run(argv, input="int nothing;", text=True, check=True)
    report = bench.check(python_cpu, "--no-smoke", gpu=None, ahead=[old.parent])
    assert report.told == ["libstdcxx-old"]
    assert str(old) in report.finding("libstdcxx-old")["title"]


def test_what_is_mapped_in_a_process_has_a_version(bench: Bench, python_cu130: str) -> None:
    report = bench.check(python_cu130, "--no-smoke")
    mapped = {entry["soname"]: entry for entry in report["facts"]["libraries"]["mapped"]}
    assert mapped["libcudnn.so.9"]["version"].startswith("9.")
    assert mapped["libcublasLt.so.13"]["owner"] == "wheel"

"""The command on hosts that are faked from outside: nvidia-smi on PATH, libraries of C to load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standin_fixtures import StandIns

PROGRAM = Path(__file__).parent.parent / "standins" / "nvidia_smi.py"
UNCLEAN = ("LD_", "CUDA_", "NVIDIA_", "SLURM_", "PYTORCH_")
OURS = {"container-driver-caps", "driver-userspace-missing"}
"""What a host without any libcuda has: called by where the driver comes from."""


def gpu(name: str, capability: str) -> dict[str, str]:
    return {"name": name, "capability": capability, "bus": "00000000:01:00.0"}


RTX_3090, RTX_4090 = gpu("NVIDIA GeForce RTX 3090", "8.6"), gpu("NVIDIA GeForce RTX 4090", "8.9")
RTX_5090, GB10 = gpu("NVIDIA GeForce RTX 5090", "12.0"), gpu("NVIDIA GB10", "12.1")
V100 = gpu("Tesla V100-SXM2-16GB", "7.0")


class Faked:
    """This machine with another nvidia-smi or other driver libraries."""

    def __init__(self, folder: Path, standins: StandIns) -> None:
        self.folder = folder
        self.standins = standins
        plain = {k: v for k, v in os.environ.items() if not k.startswith(UNCLEAN)}
        self.env = plain | {"HOME": str(folder)}

    def smi(self, **answers: Any) -> Faked:
        """An nvidia-smi that is first on PATH."""
        (self.folder / "told.json").write_text(json.dumps(answers))
        program = self.folder / "nvidia-smi"
        command = f"{sys.executable} -I -S {PROGRAM} {self.folder}/told.json"
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
        self.env["PATH"] = f"{self.folder}{os.pathsep}{self.env['PATH']}"
        return self

    def driver(self, version: str, cuda: str, card: dict[str, str], **more: Any) -> Faked:
        """An nvidia-smi that works."""
        return self.smi(driver=version, cuda=cuda, gpus=[card], **more)

    def libraries(self, scenario: str, *folders: Path) -> Faked:
        """Driver libraries that the loader finds first."""
        extra = self.standins.environment(scenario, *folders)
        self.env |= {name: extra[name] for name in ("LD_LIBRARY_PATH", "CUDADOCTOR_STANDIN")}
        return self

    def check(self, python: str) -> dict[str, Any]:
        """What `check --fast --json` prints; its exit status agrees with its verdict."""
        argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--json", "--python", python]
        ran = subprocess.run(argv, capture_output=True, env=self.env, timeout=60, check=False)
        said: dict[str, Any] = json.loads(ran.stdout)
        exits = {"healthy": 0, "warnings": 0, "broken": 1, "undecided": 3}
        assert ran.returncode == exits[said["verdict"]]
        assert b"Traceback" not in ran.stderr
        return said


@pytest.fixture
def faked(tmp_path: Path, standins: StandIns) -> Faked:
    """A machine that says nothing yet; skipped where a real driver would join in."""
    if shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a real driver")
    return Faked(tmp_path, standins)


def causes(said: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in said["findings"] if finding["severity"] == "error"}


def primary(said: dict[str, Any]) -> str | None:
    found: str | None = said["primary"]
    return found


# --- a program in the place of nvidia-smi --------------------------------------------------------


def test_an_old_driver_that_knows_fewer_fields_is_too_old(faked: Faked, python_cu130: str) -> None:
    said = faked.driver("470.82.01", "11.4", RTX_3090, unknown=["compute_cap"]).check(python_cu130)
    assert primary(said) == "driver-too-old"
    assert causes(said) <= {"driver-too-old", *OURS}


@pytest.mark.parametrize(
    ("version", "cuda", "banner", "card"),
    [
        ("580.95.05", "13.0", "", RTX_5090),
        ("610.43.02", "13.3", "new", RTX_5090),
        ("580.95.05", "13.0", "", RTX_4090),
        ("580.95.05", "13.0", "", GB10),
    ],
)
def test_a_driver_that_fits_is_blamed_for_nothing_but_the_missing_libcuda(
    faked: Faked, python_cu130: str, version: str, cuda: str, banner: str, card: dict[str, str]
) -> None:
    said = faked.driver(version, cuda, card, banner=banner).check(python_cu130)
    assert causes(said) <= OURS
    assert said["verdict"] != "broken"
    assert said["facts"]["driver"]["reported"] == version
    assert said["facts"]["driver"]["cuda"] == cuda
    assert said["facts"]["gpus"][0]["capability"] == card["capability"]


def test_a_v100_is_too_old_for_a_build_with_cuda_13(faked: Faked, python_cu130: str) -> None:
    said = faked.driver("580.95.05", "13.0", V100).check(python_cu130)
    assert primary(said) == "torch-arch-unsupported-old"
    assert causes(said) <= {"torch-arch-unsupported-old", *OURS}


def test_a_cpu_build_beside_a_gpu_is_the_first_thing_to_cure(faked: Faked, python_cpu: str) -> None:
    said = faked.driver("580.95.05", "13.0", RTX_4090).check(python_cpu)
    assert (primary(said), causes(said)) == ("torch-cpu-build", {"torch-cpu-build"})


@pytest.mark.parametrize("code", [18, 255])
def test_the_words_of_a_mismatch_are_understood(faked: Faked, python_cu130: str, code: int) -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580"
    said = faked.smi(words=words, code=code).check(python_cu130)
    assert (primary(said), causes(said)) == ("driver-library-mismatch", {"driver-library-mismatch"})
    assert said["facts"]["driver"]["loaded"] is True


def test_an_nvidia_smi_that_hangs_is_named_and_nothing_is_concluded(
    faked: Faked, python_cu130: str
) -> None:
    said = faked.smi(hangs=True).check(python_cu130)
    assert (said["verdict"], primary(said), causes(said)) == ("undecided", None, set())
    assert all("nvidia-smi: no response" in why for why in _why(said, "driver.smi.code"))
    assert "installed" not in said["facts"]["driver"]
    assert said["facts"].get("gpus") is None


def _why(said: dict[str, Any], fact: str) -> list[str]:
    found = [undecided["why"] for undecided in said["undecided"] if undecided["missing"] == fact]
    assert found
    return found


# --- libraries in the place of the driver's ------------------------------------------------------


def test_stand_ins_that_answer_make_a_healthy_machine(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    said = faked.libraries("", standins.nvml(), standins.cuda()).check(python_cu130)
    assert (said["verdict"], primary(said)) == ("healthy", None)


def test_an_old_driver_that_answers_itself_is_too_old(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    scenario = "driver = 570.172.08\nversion = 12.570.172.08\ncuda = 12080"
    said = faked.libraries(scenario, standins.nvml(), standins.cuda()).check(python_cu130)
    assert (primary(said), causes(said)) == ("driver-too-old", {"driver-too-old"})


def test_nvmls_own_code_of_a_mismatch_is_the_cause(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    scenario = "nvmlInitWithFlags = 18\ncuInit = 803"
    said = faked.libraries(scenario, standins.nvml(), standins.cuda()).check(python_cu130)
    assert primary(said) == "driver-library-mismatch"
    assert causes(said) - {"cuda-compat-conflict"} == {"driver-library-mismatch"}


def test_a_uvm_that_fails_under_a_working_nvml_is_the_cause(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    said = faked.libraries("cuInit = 999", standins.nvml(), standins.cuda()).check(python_cu130)
    assert (primary(said), causes(said)) == ("uvm-not-loaded", {"uvm-not-loaded"})


def test_a_stub_that_the_loader_takes_is_told_by_its_folder(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    stubs = faked.folder / "cuda-13.0" / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    shutil.copy(next(iter(standins.cuda().glob("libcuda.so.1"))), stubs / "libcuda.so.1")
    said = faked.libraries("cuInit = 34", standins.nvml(), stubs).check(python_cu130)
    assert (primary(said), causes(said)) == ("libcuda-stub", {"libcuda-stub"})


def test_hidden_devices_are_told_by_the_variable(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    faked.libraries("", standins.nvml(), standins.cuda()).env["CUDA_VISIBLE_DEVICES"] = "-1"
    said = faked.check(python_cu130)
    assert primary(said) == "visible-devices-hides-gpu"
    assert causes(said) == {"visible-devices-hides-gpu"}


def test_a_module_that_is_not_loaded_is_told_by_nvml(
    faked: Faked, standins: StandIns, python_cu130: str
) -> None:
    """A bus without the GPU says more than the driver's silence."""
    scenario = "nvmlInitWithFlags = 9\ncuInit = 100"
    said = faked.libraries(scenario, standins.nvml(), standins.cuda()).check(python_cu130)
    assert primary(said) in {"driver-not-loaded", "gpu-not-detected"}
    assert len(causes(said)) == 1

"""Each condition of the table of symptoms, where it only just holds and where it just does not."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_reader import machine_like

from cudadoctor import knowledge
from cudadoctor.rules.pasted.conditions import CIRCUMSTANCES, FACTS, holds

LINUX, WINDOWS, WSL, SERVER = "rtx4090-linux", "rtx4090-windows", "rtx3060-wsl", "h100x8-linux"
PASCAL, MAC, JETSON, DOCKER, CPU = (
    *("gtx1080-linux", "macbook", "orin-jetson", "a100-docker", "cpu-linux"),
)


def symptom(**values: str) -> dict[str, Any]:
    return {"symptoms": [{"key": "k", "text": "t", "values": values}]}


def asked(*requirements: str, driver: str = "535.104.05", **more: Any) -> dict[str, Any]:
    installs = [{"tool": "conda", "requirements": [requirement]} for requirement in requirements]
    return {"installs": installs, "driver": {"kernel": driver, "reported": driver}, **more}


def plain_torch(version: str, driver: str, **more: Any) -> dict[str, Any]:
    """A release as PyPI names it: nothing tells its CUDA."""
    torch = {"version": version, "cuda": None, "build": None}
    return {"torch": torch, "driver": {"kernel": driver, "reported": driver}, **more}


def toolkit(cuda: str, torch: str | None = None, version: str = "2.14.1") -> dict[str, Any]:
    return {
        "build": {"toolkits": [{"path": "/usr/local/cuda", "origin": "CUDA_HOME", "cuda": cuda}]},
        "torch": {"cuda": torch, "version": version},
    }


def toolkits(*cudas: str, torch: str | None) -> dict[str, Any]:
    kits = [{"path": f"/opt/{cuda}", "origin": "PATH", "cuda": cuda} for cuda in cudas]
    return {"build": {"toolkits": kits}, "torch": {"cuda": torch}}


def compiler(version: str, cuda: str = "12.4", name: str = "g++") -> dict[str, Any]:
    made = {"present": True, "name": name, "version": version}
    kits = [{"path": "/usr/local/cuda", "origin": "CUDA_HOME", "cuda": cuda}]
    return {"build": {"compiler": made, "toolkits": kits}}


def library(soname: str, cuda: str | None = "13.0") -> dict[str, Any]:
    return {"torch": {"cuda": cuda}, **symptom(library=soname)}


def packages(*named: tuple[str, str], cuda: str | None = "12.4", **more: Any) -> dict[str, Any]:
    some = [{"name": name, "version": version} for name, version in named]
    return {"packages": some, "torch": {"cuda": cuda}, **more}


OLD = {"kernel": "535.104.05", "reported": "535.104.05"}


def gone(text: str) -> dict[str, Any]:
    """A library that is missing, its wheel in the list, and what was said of others."""
    missing = {"key": "k", "text": text, "values": {"library2": "libcudnn.so.9"}}
    return {**cudnn("9.5.1.17"), "symptoms": [missing]}


def cudnn(release: str, torch: str = "2.7.1+cu126", cuda: str = "12.6") -> dict[str, Any]:
    some = [{"name": "nvidia-cudnn-cu12", "version": release}]
    return {"packages": some, "torch": {"version": torch, "text": torch, "cuda": cuda}}


def beside(name: str, release: str) -> dict[str, Any]:
    """torch with the cuDNN that it pins, and a program that loads cuDNN too."""
    known = cudnn("9.5.1.17")
    return {**known, "packages": [*known["packages"], {"name": name, "version": release}]}


def untold(name: str, release: str, installer: str | None = None) -> dict[str, Any]:
    """A report that names torch 2.6.0 and one wheel, and misses cuDNN's library."""
    torch = {"version": "2.6.0", "text": "2.6.0", "build": None, "cuda": None}
    return {
        "look": "report",
        "platform": {"system": None, "machine": None},
        "gpus": [],
        "packages": [{"name": name, "version": release}],
        "torch": torch | {"installer": installer},
        **symptom(library="libcudnn.so.9"),
    }


Row = tuple[str, str, dict[str, Any], bool]

SYSTEMS: tuple[Row, ...] = (
    ("windows", WINDOWS, {}, True),
    ("windows", LINUX, {}, False),
    ("linux", LINUX, {}, True),
    ("linux", WINDOWS, {}, False),
    ("macos", MAC, {}, True),
    ("macos", LINUX, {}, False),
    ("wsl", WSL, {}, True),
    ("wsl", LINUX, {}, False),
    ("aarch64", LINUX, {"platform": {"machine": "aarch64"}}, True),
    ("aarch64", LINUX, {}, False),
    ("jetson", JETSON, {}, True),
    ("jetson", LINUX, {}, False),
    ("container", DOCKER, {}, True),
    ("container", LINUX, {}, False),
    ("slurm", LINUX, {"container": {"scheduler": "slurm"}}, True),
    ("slurm", LINUX, {"container": {"scheduler": "lsf"}}, False),
    ("kubernetes", LINUX, {"container": {"kind": "kubernetes"}}, True),
    ("kubernetes", LINUX, {"container": {"scheduler": "kubernetes"}}, True),
    ("kubernetes", DOCKER, {}, False),
    ("conda", LINUX, {"python": {"kind": "conda"}}, True),
    ("conda", LINUX, {"python": {"kind": "conda-base"}}, True),
    ("conda", LINUX, {"python": {"kind": "venv"}}, False),
    ("no-builds-here", LINUX, {"platform": {"machine": "armv7l"}}, True),
    ("no-builds-here", LINUX, {"platform": {"machine": "I686"}}, True),
    ("no-builds-here", LINUX, {"platform": {"libc": "musl"}}, True),
    ("no-builds-here", LINUX, {"python": {"bits": 32}}, True),
    ("no-builds-here", WINDOWS, {"platform": {"machine": "arm64"}}, True),
    ("no-builds-here", WINDOWS, {"platform": {"machine": "aarch64"}}, True),
    ("no-builds-here", LINUX, {"platform": {"machine": "aarch64"}}, False),
    ("no-builds-here", WINDOWS, {}, False),
    ("visible-devices-set", LINUX, {"env": {"CUDA_VISIBLE_DEVICES": ""}}, True),
    ("visible-devices-set", LINUX, {"env": {"CUDA_HOME": "/c"}}, False),
    ("cuda-home-set", LINUX, {"env": {"CUDA_HOME": "/c"}}, True),
    ("cuda-home-set", LINUX, {"env": {}}, False),
    ("ld-library-path-set", LINUX, {"env": {"LD_LIBRARY_PATH": "/l"}}, True),
    ("ld-library-path-set", LINUX, {"env": {}}, False),
)
GPUS: tuple[Row, ...] = (
    ("gpu", LINUX, {}, True),
    ("gpu", CPU, {}, False),
    ("no-gpu", CPU, {}, True),
    ("no-gpu", LINUX, {}, False),
    ("several-gpus", SERVER, {}, True),
    ("several-gpus", LINUX, {}, False),
    ("gpus-differ", SERVER, {"gpus": {"1": {"name": "NVIDIA T4"}}}, True),
    ("gpus-differ", SERVER, {}, False),
    ("data-center-gpu", SERVER, {}, True),
    ("data-center-gpu", LINUX, {}, False),
    ("data-center-gpu", LINUX, {"gpus": {"0": {"name": "Nobody's GPU"}}}, False),
    ("consumer-gpu", LINUX, {}, True),
    ("consumer-gpu", SERVER, {}, False),
    ("consumer-gpu", LINUX, {"gpus": {"0": {"name": "Nobody's GPU"}}}, False),
    ("consumer-gpu", LINUX, {"gpus": {"0": {"name": None}}}, False),
    ("consumer-gpu", CPU, {}, False),
    ("no-tensor-cores", PASCAL, {}, True),
    ("no-tensor-cores", LINUX, {}, False),
    ("no-tensor-cores", LINUX, {"gpus": {"0": {"name": None}}}, False),
    ("nvidia-on-bus-unbound", LINUX, {"pci": {"0": {"bound": ""}}}, True),
    ("nvidia-on-bus-unbound", LINUX, {"pci": {"0": {"bound": "nouveau"}}}, True),
    ("nvidia-on-bus-unbound", LINUX, {"pci": {"0": {"bound": "vfio-pci"}}}, False),
    ("nvidia-on-bus-unbound", LINUX, {"pci": {"0": {"bound": "", "vendor": "amd"}}}, False),
    ("nvidia-on-bus-unbound", LINUX, {}, False),
    ("amd-gpu", LINUX, {"pci": {"0": {"vendor": "amd"}}}, True),
    ("amd-gpu", LINUX, {}, False),
    ("blackwell", LINUX, {"gpus": {"0": {"name": "NVIDIA GeForce RTX 5090"}}}, True),
    ("blackwell", LINUX, {}, False),
    ("turing-to-hopper", LINUX, {}, True),
    ("turing-to-hopper", SERVER, {}, True),
    ("turing-to-hopper", DOCKER, {}, True),
    ("turing-to-hopper", LINUX, {"gpus": {"0": {"name": "Tesla T4"}}}, True),
    ("turing-to-hopper", PASCAL, {}, False),
    ("turing-to-hopper", LINUX, {"gpus": {"0": {"name": "NVIDIA GeForce RTX 5090"}}}, False),
    ("since-ampere", DOCKER, {}, True),
    ("since-ampere", LINUX, {}, True),
    ("since-ampere", SERVER, {}, True),
    ("since-ampere", LINUX, {"gpus": {"0": {"name": "NVIDIA GeForce RTX 5090"}}}, True),
    ("since-ampere", LINUX, {"gpus": {"0": {"name": "Tesla T4"}}}, False),
    ("before-turing", PASCAL, {}, True),
    ("before-turing", PASCAL, {"gpus": {"0": {"name": "Tesla V100-SXM2-16GB"}}}, True),
    ("before-turing", PASCAL, {"gpus": {"0": {"name": "Tesla K80"}}}, True),
    ("before-turing", PASCAL, {"gpus": {"0": {"name": "NVIDIA GeForce GTX 970"}}}, True),
    ("before-turing", PASCAL, {"gpus": {"0": {"name": "Tesla T4"}}}, False),
    ("mig", SERVER, {"gpus": {"3": {"mig": True}}}, True),
    ("mig", SERVER, {}, False),
    ("more-processes-than-gpus", SERVER, symptom(processes="9"), True),
    ("more-processes-than-gpus", SERVER, symptom(processes="8"), False),
    ("more-processes-than-gpus", SERVER, symptom(processes="gpu"), False),
    ("more-processes-than-gpus", CPU, symptom(processes="9"), False),
    ("uvm-loaded", LINUX, {}, True),
    ("uvm-loaded", LINUX, {"driver": {"modules": ["nvidia"]}}, False),
    ("no-fabric", LINUX, {}, True),
    ("no-fabric", SERVER, {}, False),
    ("driver-answers", LINUX, {}, True),
    ("driver-answers", CPU, {}, False),
    (
        "driver-answers",
        LINUX,
        {
            "look": "report",
            "origins": {"driver.kernel": "the author (line 1)", "gpus": "the author"},
        },
        False,
    ),
    (
        "driver-answers",
        LINUX,
        {"look": "report", "origins": {"driver.kernel": "nvidia-smi", "gpus": "the author"}},
        True,
    ),
    (
        "driver-answers",
        LINUX,
        {"look": "report", "origins": {"driver.kernel": "the author", "gpus": "nvidia-smi"}},
        True,
    ),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": "13.0"}, "torch": {"cuda": "13.2"}}, True),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": "12.9"}, "torch": {"cuda": "13.0"}}, False),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": "11.0"}, "torch": {"cuda": "11.8"}}, True),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": "10.1"}, "torch": {"cuda": "10.2"}}, False),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": "10.2"}, "torch": {"cuda": "10.2"}}, True),
    ("driver-runs-torch", LINUX, {"driver": {"cuda": None}}, False),
    ("driver-runs-torch", LINUX, {"torch": {"cuda": None}}, False),
)
TORCH: tuple[Row, ...] = (
    ("torch-cpu", LINUX, {"torch": {"build": "cpu"}}, True),
    ("torch-cpu", LINUX, {}, False),
    ("torch-cuda", LINUX, {}, True),
    ("torch-cuda", LINUX, {"torch": {"build": "cpu"}}, False),
    ("torch-rocm", LINUX, {"torch": {"build": "rocm"}}, True),
    ("torch-rocm", LINUX, {}, False),
    ("torch-installed", LINUX, {}, True),
    ("torch-installed", LINUX, {"torch": {"installed": False}}, False),
    ("torch-installed", LINUX, {"torch": {"installed": None}}, False),
    ("cuda-available", LINUX, {}, True),
    ("cuda-available", LINUX, {"torch": {"imported": {"cuda_available": False}}}, False),
    ("cuda-available", LINUX, {"torch": {"imported": None}}, False),
    ("cuda-not-available", LINUX, {"torch": {"imported": {"cuda_available": False}}}, True),
    ("cuda-not-available", LINUX, {"torch": {"imported": {"cuda_available": None}}}, False),
    ("cuda-not-available", LINUX, {"torch": {"imported": None}}, False),
    ("cuda-not-available", LINUX, {}, False),
    ("build-serves-gpu", LINUX, {}, True),
    ("build-serves-gpu", LINUX, {"torch": {"archs": ["sm_90"]}}, False),
    ("build-serves-gpu", CPU, {"torch": {"build": "cuda", "archs": ["sm_90"]}}, False),
    ("build-serves-gpu", LINUX, {"torch": {"archs": None, "version": None}}, False),
    ("gpu-newer-than-build", LINUX, {"torch": {"archs": ["sm_70", "sm_80"]}}, False),
    ("gpu-newer-than-build", LINUX, {"torch": {"archs": ["sm_60", "sm_70"]}}, True),
    ("gpu-newer-than-build", LINUX, {"torch": {"archs": ["sm_90"]}}, False),
    ("gpu-newer-than-build", LINUX, {"torch": {"archs": ["sm_89"]}}, False),
    ("gpu-older-than-build", LINUX, {"torch": {"archs": ["sm_90"]}}, True),
    ("gpu-older-than-build", LINUX, {"torch": {"archs": ["sm_60", "sm_70"]}}, False),
    ("gpu-older-than-build", LINUX, {}, False),
    ("gpu-too-old-for-program", PASCAL, {"packages": [{"name": "vllm", "version": "0.9.2"}]}, True),
    ("gpu-too-old-for-program", LINUX, {"packages": [{"name": "vllm", "version": "0.9.2"}]}, False),
    ("gpu-too-old-for-program", PASCAL, {}, False),
    ("cudnn-not-as-pinned", LINUX, cudnn("9.13.0.50"), True),
    ("cudnn-not-as-pinned", LINUX, cudnn("9.5.1.17"), False),
    ("cudnn-not-as-pinned", LINUX, cudnn("9.5.1.17", "2.7.1+cu128", "12.8"), True),
    ("cudnn-not-as-pinned", LINUX, cudnn("9.13.0.50", "2.7.1+cu129", "12.9"), False),
    (
        "other-cudnn-listed",
        LINUX,
        {**cudnn("9.13.0.50"), **symptom(library="libcudnn.so.9")},
        True,
    ),
    (
        "other-cudnn-listed",
        LINUX,
        {**cudnn("9.13.0.50"), **symptom(library="libcublas.so.12")},
        False,
    ),
    # Neither variant nor platform is told: a release without a tag is PyPI's build.
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cudnn-cu12", "8.9.7.29")}, True),
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cudnn-cu11", "8.9.7.29")}, True),
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cudnn-cu12", "9.1.0.70")}, False),
    # What a build for another CUDA pins: the report need not tell the tag.
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cudnn-cu12", "9.5.1.17")}, False),
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cublas-cu12", "12.4.5.8")}, False),
    ("other-cudnn-listed", LINUX, {**untold("nvidia-cudnn-cu12", "8.9.7.29", "conda")}, False),
    ("program-needs-another-cudnn", LINUX, beside("ctranslate2", "4.4.0"), True),
    ("program-needs-another-cudnn", LINUX, beside("ctranslate2", "4.5.0"), False),
    ("torch-release", LINUX, {"torch": {"version": "2.6.0+cu124"}}, True),
    ("torch-release", LINUX, {"torch": {"version": "2.6.0a0+ecf3bae40a.nv25.1"}}, False),
    ("cudnn-of-another-major", LINUX, {**cudnn("9.5.1.17"), **symptom(cudnn_major="8")}, True),
    ("cudnn-of-another-major", LINUX, {**cudnn("9.5.1.17"), **symptom(cudnn_major2="9")}, False),
    ("cudnn-of-another-major", LINUX, cudnn("9.5.1.17"), False),
    (
        "cudnn-of-another-major",
        LINUX,
        {**cudnn("9.5.1.17"), **symptom(library="libcudnn.so.8")},
        True,
    ),
    (
        "cudnn-of-another-major",
        LINUX,
        {**cudnn("9.5.1.17"), **symptom(library="libcudnn.so.9")},
        False,
    ),
    (
        "cudnn-of-another-major",
        LINUX,
        {**cudnn("9.5.1.17"), **symptom(library="libnccl.so.2")},
        False,
    ),
    ("library-shared-with-uninstalled", LINUX, gone("pip uninstall nvidia-cudnn-cu11"), True),
    ("library-shared-with-uninstalled", LINUX, gone("I removed nvidia_cudnn_cu13 too"), True),
    ("library-shared-with-uninstalled", LINUX, gone("pip install nvidia-cudnn-cu11"), False),
    ("library-shared-with-uninstalled", LINUX, gone("pip uninstall nvidia-cudnn-cu12"), False),
    ("library-shared-with-uninstalled", LINUX, gone("pip uninstall nvidia-nccl-cu11"), False),
    ("torch-fits-machine", LINUX, {}, True),
    ("torch-fits-machine", LINUX, {"torch": {"archs": ["sm_90"]}}, False),
    ("torch-fits-machine", LINUX, {"torch": {"imported": None}}, False),
    ("torch-fits-machine", LINUX, {"driver": OLD}, False),
    ("torch-fits-machine", LINUX, {"driver": {"kernel": None, "reported": None}}, False),
    ("torch-older-than-asked", LINUX, symptom(needs="2.99"), True),
    ("torch-older-than-asked", LINUX, symptom(needs="2.6"), False),
    ("torch-older-than-asked", LINUX, {}, False),
    ("wheel-for-other-torch", LINUX, symptom(wheel_torch="2.13"), True),
    ("wheel-for-other-torch", LINUX, symptom(wheel_torch="2.14"), False),
    ("wheel-for-other-torch", LINUX, symptom(wheel_torch="2.14.0"), False),
    (
        "wheel-for-other-torch",
        LINUX,
        {**symptom(wheel_torch="2.13"), "torch": {"version": None}},
        False,
    ),
    ("wheel-for-other-torch", LINUX, symptom(name="2.13"), False),
    ("bare-torch-of-windows", WINDOWS, {"torch": {"version": "2.9.0", "build": None}}, True),
    ("bare-torch-of-windows", WINDOWS, {"torch": {"version": "2.9.0", "build": "cpu"}}, True),
    ("bare-torch-of-windows", WINDOWS, {"torch": {"version": "2.9.0", "build": "cuda"}}, False),
    ("bare-torch-of-windows", WINDOWS, {"torch": {"version": "2.9.0+cpu", "build": "cpu"}}, False),
    ("bare-torch-of-windows", WINDOWS, {"torch": {"version": None, "build": None}}, False),
    ("bare-torch-of-windows", LINUX, {"torch": {"version": "2.9.0", "build": None}}, False),
    ("torch < 2.15", LINUX, {}, True),
    ("torch < 2.14.1", LINUX, {}, False),
    ("torch >= 2.14.1", LINUX, {}, True),
    ("torch.cuda == 13.0", LINUX, {}, True),
    ("driver < 580.95.06", LINUX, {"driver": {"kernel": "580.95.05"}}, True),
    ("driver < 580.95.05", LINUX, {"driver": {"kernel": "580.95.05"}}, False),
    ("driver.cuda >= 12.9", LINUX, {"driver": {"cuda": "12.9"}}, True),
    ("python == 3.12.3", LINUX, {}, True),
    ("python != 3.12.3", LINUX, {}, False),
    ("python <= 3.12.3", LINUX, {}, True),
    ("python <= 3.12.2", LINUX, {}, False),
    ("python > 3.12.3", LINUX, {}, False),
    ("python > 3.12.2", LINUX, {}, True),
    ("glibc >= 2.28", LINUX, {"platform": {"glibc": "2.27"}}, False),
    ("glibc >= 2.28", LINUX, {"platform": {"glibc": "2.28"}}, True),
    ("numpy >= 2", LINUX, {}, True),
    ("numpy < 2", LINUX, {}, False),
    ("no-such-package < 2", LINUX, {}, False),
    ("numpy < 2", LINUX, {"packages": [{"name": "numpy", "version": "no version"}]}, False),
    ("has:numpy", LINUX, {}, True),
    ("has:jax", LINUX, {}, False),
    ("seen:k", LINUX, symptom(), True),
    ("seen:l", LINUX, symptom(), False),
    ("not seen:l", LINUX, symptom(), True),
    ("not windows", WINDOWS, {}, False),
)
COMPILED: tuple[Row, ...] = (
    ("toolkit-differs", LINUX, toolkit("12.4", "13.0"), True),
    ("toolkit-differs", LINUX, toolkit("13.2", "13.0"), False),
    ("toolkit-differs", LINUX, toolkit("11.0", "11.8"), False),
    ("toolkit-differs", LINUX, toolkit("10.1", "10.2"), True),
    ("toolkit-differs", LINUX, toolkit("10.2", "10.2"), False),
    ("toolkit-differs", LINUX, toolkit("10.0", None, "1.12.1"), True),
    ("toolkit-differs", LINUX, toolkit("10.2", None, "1.12.1"), False),
    ("toolkit-differs", LINUX, toolkit("11.0", None, "1.12.1"), False),
    ("toolkit-differs", LINUX, toolkit("11.5", None, "2.9.0"), True),
    ("toolkit-differs", LINUX, toolkit("12.5", None, "2.9.0"), False),
    ("toolkit-differs", LINUX, {"build": {"toolkits": []}}, False),
    ("fitting-toolkit-not-used", LINUX, toolkits("10.1", "11.8", torch="11.8"), True),
    ("fitting-toolkit-not-used", LINUX, toolkits("10.1", "11.7", torch="11.8"), False),
    ("fitting-toolkit-not-used", LINUX, toolkits("11.8", torch="11.8"), False),
    ("fitting-toolkit-not-used", LINUX, toolkits("10.1", "11.8", torch=None), False),
    # An RTX 4090, which nvcc knows from 11.8 on.
    ("toolkit-older-than-gpu", LINUX, toolkit("11.7"), True),
    ("toolkit-older-than-gpu", LINUX, toolkit("11.8"), False),
    ("toolkit-older-than-gpu", LINUX, {"build": {"toolkits": []}}, False),
    (
        "toolkit-differs",
        LINUX,
        {
            "build": {
                "toolkits": [
                    {"path": "/a", "origin": "PATH", "cuda": "12.4"},
                    {"path": "/b", "origin": "CUDA_HOME", "cuda": "11.8"},
                ]
            }
        },
        False,
    ),
    ("compiler-too-new", LINUX, compiler("13.2"), False),
    ("compiler-too-new", LINUX, compiler("14.1"), True),
    ("compiler-too-new", LINUX, compiler("14.1", name="gcc"), True),
    ("compiler-too-new", LINUX, compiler("14.1", name="c++"), True),
    ("compiler-too-new", LINUX, compiler("19.1", name="clang++"), False),
    (
        "compiler-too-new",
        LINUX,
        {"build": {"toolkits": [], "compiler": {"version": "14.1"}}},
        False,
    ),
    ("compiler-too-old", LINUX, compiler("4.8"), True),
    ("compiler-too-old", LINUX, compiler("4.8", name="gcc"), True),
    ("compiler-too-old", LINUX, compiler("5.0"), False),
    ("compiler-too-old", LINUX, compiler("3.9", name="clang++"), False),
    ("library-of-another-cuda", LINUX, library("libcudart.so.12"), True),
    ("library-of-another-cuda", LINUX, library("libnvJitLink.so.12"), True),
    ("library-of-another-cuda", LINUX, library("libcudart.so.13"), False),
    ("library-of-another-cuda", LINUX, library("libcudnn.so.9"), False),
    ("library-of-another-cuda", LINUX, library("libcudart.so.12", None), False),
    (
        "library-of-another-cuda",
        LINUX,
        {"torch": {"cuda": "13.0"}, **symptom(name="libcudart.so.12")},
        False,
    ),
    ("packages-of-another-cuda", LINUX, packages(("libcublas", "11.11.3")), True),
    ("packages-of-another-cuda", LINUX, packages(("cuda-cudart-dev", "11.8")), True),
    ("packages-of-another-cuda", LINUX, packages(("libcublas", "12.4.5")), False),
    ("packages-of-another-cuda", LINUX, packages(("libcufft", "11.2.1")), False),
    ("packages-of-another-cuda", LINUX, packages(("cudatoolkit", "11.3"), cuda=None), False),
    (
        "packages-of-another-cuda",
        LINUX,
        packages(
            ("libcublas", "12.1.0"),
            cuda=None,
            installs=[{"tool": "conda", "requirements": ["pytorch", "nvidia::pytorch-cuda=11.8"]}],
        ),
        True,
    ),
    (
        "packages-of-another-cuda",
        LINUX,
        packages(
            ("libcublas", "12.1.0"),
            cuda=None,
            installs=[{"tool": "conda", "requirements": ["pytorch-cuda==12.1*"]}],
        ),
        False,
    ),
)
BEYOND: tuple[Row, ...] = (
    ("conda-cuda-beyond-driver", LINUX, asked("pytorch-cuda=12.4", driver="525.60.12"), True),
    ("conda-cuda-beyond-driver", LINUX, asked("pytorch-cuda=12.4", driver="525.60.13"), False),
    ("conda-cuda-beyond-driver", LINUX, asked("c::cudatoolkit==11.3.1", driver="450.80.01"), True),
    ("conda-cuda-beyond-driver", LINUX, asked("cudatoolkit=11.3", driver="450.80.02"), False),
    ("conda-cuda-beyond-driver", WINDOWS, asked("pytorch-cuda=12.4", driver="528.32"), True),
    ("conda-cuda-beyond-driver", WINDOWS, asked("pytorch-cuda=12.4", driver="528.33"), False),
    ("conda-cuda-beyond-driver", WSL, asked("pytorch-cuda=12.4", driver="528.32"), True),
    ("conda-cuda-beyond-driver", LINUX, asked("pytorch", driver="450.80.01"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("2.1.0", "525.60.12"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("2.1.0", "525.60.13"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("2.1.0+cu121", "525.60.12"), False),
    ("default-cuda-beyond-driver", WINDOWS, plain_torch("2.1.0", "470.1"), False),
    ("default-cuda-beyond-driver", WSL, plain_torch("2.1.0", "470.1"), False),
    (
        "default-cuda-beyond-driver",
        LINUX,
        plain_torch("2.1.0", "470.1", platform={"machine": "aarch64"}),
        False,
    ),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.5.0", "440.32"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.5.0", "440.33"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.6.0", "440.32"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.4.0", "418.38"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.4.0", "418.39"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.3.0", "418.38"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.2.0", "410.47"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.2.0", "410.48"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.1.0", "384.80"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.0.0", "384.80"), True),
    ("default-cuda-beyond-driver", LINUX, plain_torch("1.0.0", "384.81"), False),
    ("default-cuda-beyond-driver", LINUX, plain_torch("0.4.1", "300.1"), False),
)
ROWS = (*SYSTEMS, *GPUS, *TORCH, *COMPILED, *BEYOND)


@pytest.mark.parametrize(("condition", "like", "changes", "expected"), ROWS)
def test_a_condition_holds_where_it_is_known_to(
    condition: str, like: str, changes: dict[str, Any], expected: bool
) -> None:
    assert holds(condition, machine_like(like, changes), knowledge.load()) is expected


def test_every_circumstance_has_a_row_that_holds_and_one_that_does_not() -> None:
    rows = {(condition, expected) for condition, _, _, expected in ROWS}
    assert {(name, said) for name in (*FACTS, *CIRCUMSTANCES) for said in (True, False)} <= rows

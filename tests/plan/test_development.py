"""What compiles, as the commands of each kind of host: toolkits, compilers, headers, runtimes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from printed_scripts import without_printing
from remedy_fixtures import KB, machine
from scenario_reader import machine_like

from cudadoctor.model.findings import Wishes
from cudadoctor.model.machine import Library, Machine
from cudadoctor.plan.planner import plan
from cudadoctor.plan.remedies import development, torch
from cudadoctor.render.script import script
from cudadoctor.render.shells import ShellName
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.rules.evidence.libraries import way_out
from cudadoctor.solver.builds import best_build

CONDA = {
    "kind": "conda",
    "prefix": "/opt/conda/envs/a",
    "managers": [{"name": "conda", "path": "/opt/conda/bin/conda"}],
}


def on(distro: str, version: str | None, *like: str, **more: Any) -> Machine:
    names = {"distro": distro, "distro_version": version, "distro_like": like}
    return machine(platform=names | more.pop("platform", {}), **more)


@pytest.mark.parametrize(
    ("distro", "version", "cuda", "added", "package", "home"),
    [
        ("ubuntu", "24.04", "12.6", "ubuntu2404", "cuda-toolkit-12-6", "/usr/local/cuda-12.6"),
        # The first that this repository has of the same major.
        ("ubuntu", "24.04", "12.1", "ubuntu2404", "cuda-toolkit-12-5", "/usr/local/cuda-12.5"),
        # And the last.
        ("fedora", "41", "13.2", "fedora41", "cuda-toolkit-13-0", "/usr/local/cuda-13.0"),
        ("rocky", "9.4", "12.8", "rhel9", "cuda-toolkit-12-8", "/usr/local/cuda-12.8"),
        (
            "opensuse-leap",
            "15.6",
            "12.8",
            "opensuse15",
            "cuda-toolkit-12-8",
            "/usr/local/cuda-12.8",
        ),
        ("arch", None, "13.0", None, "cuda", "/opt/cuda"),
    ],
)
def test_a_toolkit_comes_from_the_repository_of_the_distribution(
    distro: str, version: str, cuda: str, added: str | None, package: str, home: str
) -> None:
    like = {"rocky": ("rhel",), "opensuse-leap": ("suse",)}.get(distro, ())
    m = on(distro, version, *like, torch={"cuda": cuda})
    (found,) = development.install_toolkit(m)
    assert found.needs_root and found.commands[-1][-1] == package
    assert found.variables == {"CUDA_HOME": home}
    lines = [" ".join(argv) for argv in found.commands]
    assert added is None or any(f"/{added}/" in line for line in lines)


@pytest.mark.parametrize(
    ("distro", "version", "cuda"),
    [("debian", "13", "12.8"), ("ubuntu", "26.04", "13.0"), ("arch", None, "12.8")],
)
def test_no_toolkit_of_another_major_is_ever_named(distro: str, version: str, cuda: str) -> None:
    (found,) = development.install_toolkit(on(distro, version, torch={"cuda": cuda}))
    assert not found.commands and f"CUDA {cuda}" in (found.manual or "")


def test_a_conda_environment_gets_its_toolkit_without_root() -> None:
    (found,) = development.install_toolkit(machine(python=CONDA, torch={"cuda": "12.8"}))
    assert not found.needs_root
    words = ("install", "-y", "-p", "/opt/conda/envs/a", "-c", "conda-forge", "cuda-toolkit=12.8")
    assert found.commands == (("/opt/conda/bin/conda", *words),)
    (old,) = development.install_toolkit(machine(python=CONDA, torch={"cuda": "11.8"}))
    assert "nvidia/label/cuda-11.8.0" in old.commands[0]


@pytest.mark.parametrize(
    ("distro", "package", "path"),
    [
        ("debian", "g++-12", "/usr/bin/g++-12"),
        ("fedora", "gcc13-c++", "/usr/bin/g++-13"),
        ("rhel", "gcc-toolset-13-gcc-c++", "/opt/rh/gcc-toolset-13/root/usr/bin/g++"),
        ("arch", "gcc13", "/usr/bin/g++-13"),
    ],
)
def test_nvcc_gets_an_older_compiler_beside_the_present_one(
    distro: str, package: str, path: str
) -> None:
    (found,) = development.older_compiler(on(distro, "12"), 13)
    assert found.commands[-1][-1] == package
    c = path.replace("g++", "gcc")
    assert found.variables == {"CC": c, "CXX": path, "NVCC_CCBIN": path}


@pytest.mark.parametrize(
    ("distro", "version", "python", "package"),
    [
        ("ubuntu", "24.04", "3.12.3", "python3.12-dev"),
        ("rhel", "9.4", "3.9.18", "python3-devel"),
        ("rhel", "9.4", "3.12.1", "python3.12-devel"),
        ("sles", "15.6", "3.11.1", "python311-devel"),
    ],
)
def test_the_headers_are_those_of_the_examined_python(
    distro: str, version: str, python: str, package: str
) -> None:
    (found,) = development.python_headers(on(distro, version, python={"version": python}))
    assert found.commands[-1][-1] == package


@pytest.mark.parametrize("container", [{"kind": "kubernetes"}, {"scheduler": "slurm"}])
def test_packages_of_a_shared_system_are_its_administrators(container: dict[str, str]) -> None:
    (found,) = development.c_compiler(machine(container=container))
    assert found.where == "admin" and found.commands


@pytest.mark.parametrize(
    ("soname", "version", "package"),
    [
        ("libcudnn.so.9", "9.1.0", "cudnn"),
        ("libcudnn.so.9", "9.12.0", "libcudnn"),
        ("libcusparseLt.so.0", "0.7.1", "cusparselt"),
        ("libcusparse.so.12", "12.5", "libcusparse"),
    ],
)
def test_the_conda_package_of_a_library_is_named(soname: str, version: str, package: str) -> None:
    path = f"/opt/conda/envs/b/lib/{soname}"
    library = Library(soname=soname, path=path, version=version, owner="conda")
    (found,) = development.remove_conda_library(machine(python=CONDA), library)
    assert found.commands[0][-2:] == ("/opt/conda/envs/b", package)


def test_libstdcxx_is_renewed_in_the_environment_that_it_comes_from() -> None:
    path = "/home/ada/miniforge3/envs/old/lib/libstdc++.so.6"
    (found,) = development.newer_libstdcxx(machine(), path)
    assert found.commands[0][5:7] == ("-c", "conda-forge")
    assert "/home/ada/miniforge3/envs/old" in found.commands[0]
    (system,) = development.newer_libstdcxx(machine(), "/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    assert not system.commands


def test_a_python_that_takes_no_packages_and_lacks_venv_gets_it_first() -> None:
    python = {
        "kind": "system",
        "externally_managed": True,
        "ensurepip": False,
        "executable": "/usr/bin/python3",
        "prefix": "/usr",
        "version": "3.11.2",
        "managers": [],
    }
    nothing = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    m = on("debian", "12", python=python, torch=nothing, packages=[])
    steps = plan(m, KB, diagnose(m, KB), Wishes()).steps
    first, second = steps[:2]
    assert first.needs_root and first.commands[-1][-1] == "python3.11-venv"
    assert second.commands[0][1:3] == ("-m", "venv") and not second.manual


@pytest.mark.skipif(not Path("/bin/false").exists(), reason="no program that fails")
def test_a_script_that_lacks_venv_says_what_to_run_first_and_makes_nothing(tmp_path: Path) -> None:
    python = {
        "kind": "system",
        "externally_managed": True,
        "ensurepip": False,
        "executable": "/bin/false",  # fails at the check
        "prefix": "/usr",
        "version": "3.11.2",
        "managers": [],
    }
    nothing = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    m = on("debian", "12", python=python, torch=nothing, packages=[])
    judged = diagnose(m, KB)
    text = script(plan(m, KB, judged, Wishes()), m, judged, version="0", knowledge="0")
    ran = subprocess.run(
        ["sh"], input=text, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "sudo apt-get install -y python3.11-venv" in ran.stderr.splitlines()
    assert not [*tmp_path.iterdir()]
    fish = script(
        plan(m, KB, judged, Wishes()), m, judged, shell="fish", version="0", knowledge="0"
    )
    names: tuple[tuple[str, ShellName], ...] = ((text, "bash"), (fish, "fish"))
    for written, name in names:
        assert any("import ensurepip" in line for line in written.splitlines())
        kept = without_printing(written.split("\n"), name)
        assert not any("import ensurepip" in line for line in kept)


def test_pip_unpacks_on_the_disk_of_the_environment_where_tmp_is_small() -> None:
    nothing = {"installed": False, "version": None, "build": None, "cuda": None, "text": None}
    small = {"tmp_free_bytes": 10**8, "env_free_bytes": 10**11}
    m = machine(torch=nothing, packages=[], limits=small)
    (found,) = torch.install_torch(m, KB)
    assert found.variables == {"TMPDIR": m.python.prefix}
    full = machine(torch=nothing, packages=[], limits=small | {"env_free_bytes": 10**8})
    assert not torch.install_torch(full, KB)[0].variables


def test_the_reasons_name_the_nearest_build_and_what_pip_would_bring() -> None:
    blackwell = [{"index": 0, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}]
    choice = best_build(machine(gpus=blackwell, torch={"version": "2.6.0"}), KB)
    assert choice.build is not None
    assert choice.build.torch == Version("2.7.1")
    assert choice.newest is not None
    assert choice.newest.torch > Version("2.7.1")
    assert choice.why[0].startswith("No build of torch 2.6.0 is compatible with this machine")
    assert choice.why[0].endswith("2.7.1+cu128 is the closest compatible build.")
    pascal = [{"index": 0, "name": "NVIDIA GeForce GTX 1080", "capability": "6.1"}]
    kept = best_build(machine(gpus=pascal), KB)
    assert kept.why[1].startswith("The default build (cu130) is not compatible: it has no code")


def test_what_else_is_preloaded_stays() -> None:
    cudnn, allocator = "/opt/dnn/libcudnn.so.9", "/usr/lib/libjemalloc.so.2"
    library = Library(soname="libcudnn.so.9", path=cudnn, how="LD_PRELOAD", version="9.1.0")
    m = machine(env={"LD_PRELOAD": f"{allocator} {cudnn}"})
    assert way_out(m, KB, library)[0].variables == {"LD_PRELOAD": allocator}
    alone = machine(env={"LD_PRELOAD": cudnn})
    assert way_out(alone, KB, library)[0].variables == {"LD_PRELOAD": None}


GLIBC = {"glibc": "2.42", "libc": "glibc"}


def _nvcc(cuda: str, path: str = "/usr/local/cuda-") -> dict[str, Any]:
    found = {"path": f"{path}{cuda}", "origin": "/usr/local", "cuda": cuda, "nvcc": "/usr/bin/nvcc"}
    compiler = {"present": True, "name": "g++", "version": "14.2.0", "path": "/usr/bin/c++"}
    return {
        "needed_by": ["deepspeed"],
        "used": found["path"],
        "toolkits": [found],
        "compiler": compiler,
    }


def _of_glibc(cuda: str, platform: dict[str, Any], **build: Any) -> list[str]:
    changes = {"platform": platform, "torch": {"cuda": cuda}, "build": _nvcc(cuda) | build}
    m = machine_like("rtx4090-linux", changes)
    return [
        step.id
        for finding in diagnose(m, KB).findings
        if finding.cause == "host-compiler-unsupported"
        for step in finding.remedies
    ]


def test_what_no_compiler_cures_gets_a_toolkit_or_a_torch_that_does() -> None:
    noble = GLIBC | {"distro": "ubuntu", "distro_version": "24.04"}
    assert _of_glibc("13.0", noble) == ["install-toolkit"]
    assert _of_glibc("12.8", noble)[-1] == "older-glibc"
    assert _of_glibc("13.0", noble | {"glibc": "2.41"}) == []
    # A distribution changes the headers of its own package, and conda brings an older glibc.
    assert _of_glibc("13.0", noble, **_nvcc("13.0", "/opt/cuda-")) == []
    conda = {
        "compiler": {"present": True, "name": "g++", "version": "14.2.0", "path": "/c/bin/g++"}
    }
    assert _of_glibc("13.0", noble, **conda) == []


def test_a_toolkit_is_new_enough_for_the_systems_glibc() -> None:
    m = on("ubuntu", "24.04", torch={"cuda": "13.0"})
    (plain,), (newer,) = (
        development.install_toolkit(m, least) for least in (None, Version("13.2"))
    )
    assert plain.commands[-1][-1] == "cuda-toolkit-13-0"
    assert newer.commands[-1][-1] == "cuda-toolkit-13-2"
    assert newer.variables == {"CUDA_HOME": "/usr/local/cuda-13.2"}


def test_a_driver_of_cuda_12_leaves_the_torch_and_takes_another_compiler() -> None:
    old = {
        "kernel": "570.172.08",
        "reported": "570.172.08",
        "library": "570.172.08",
        "cuda": "12.8",
    }
    platform = GLIBC | {"distro": "ubuntu", "distro_version": "24.04"}
    changes = {
        "driver": old,
        "platform": platform,
        "torch": {"cuda": "12.8"},
        "build": _nvcc("12.8"),
    }
    m = machine_like("rtx4090-linux", changes)
    (found,) = (f for f in diagnose(m, KB).findings if f.cause == "host-compiler-unsupported")
    (step,) = found.remedies
    assert "cuda-toolkit=12.8 gcc=14 gxx=14" in (step.manual or "")


def test_the_build_of_the_plan_is_the_one_that_its_step_installs() -> None:
    platform = GLIBC | {"distro": "fedora", "distro_version": "42", "glibc": "2.41"}
    built = {"version": "2.9.1+cu128", "text": "2.9.1+cu128", "cuda": "12.8"}
    changes = {"platform": platform, "torch": built, "build": _nvcc("12.8")}
    m = machine_like("rtx4090-linux", changes)
    found = plan(m, KB, diagnose(m, KB))
    (step,) = (step for step in found.steps if step.id == "install-torch")
    assert step.packages
    assert found.build
    assert found.build.variant == step.packages.variant == "cu130"

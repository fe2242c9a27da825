"""`fix --as`: the build for a machine as a file of a project, whatever is asked to be in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from cudadoctor import knowledge
from cudadoctor.installers import registry
from cudadoctor.installers.registry import project_file, why_not
from cudadoctor.knowledge import TorchBuild
from cudadoctor.model import factfile
from cudadoctor.model.findings import Rejection
from cudadoctor.model.machine import Machine
from cudadoctor.render.summary import rejection_reasons
from cudadoctor.solver.builds import best_build
from cudadoctor.solver.demand import python_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINES = Path(__file__).parent.parent / "machines"
KINDS = tuple(registry.BY_KIND)
KB = knowledge.load()


def machine(like: str = "rtx4090-linux", **sections: dict[str, Any]) -> Machine:
    data = json.loads((MACHINES / f"{like}.json").read_text(encoding="utf-8"))
    for section, changes in sections.items():
        data.setdefault(section, {}).update(changes)
    return factfile.from_plain(data)


def build_for(m: Machine, keep: str | None = None) -> TorchBuild:
    found = best_build(m, KB, keep=keep).build
    assert found is not None
    return found


def file(kind: str, m: Machine, keep: str | None = None, **more: Any) -> str:
    python = more.pop("python", python_of(m))
    return project_file(kind, m, KB, build_for(m, keep), python=python, **more)


def parsed(kind: str, text: str) -> Any:
    """The file as its tool's parser sees it."""
    if kind in ("pyproject", "pixi"):
        return tomllib.loads(text)
    if kind == "environment":
        return yaml.safe_load(text)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if kind == "requirements":
        return [Requirement(line) for line in lines if not line.startswith("-")]
    return lines


GTX = machine("gtx1080-linux")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "like", ["gtx1080-linux", "rtx4090-windows", "macbook", "cpu-linux", "h100x8-linux"]
)
def test_every_kind_is_read_by_its_parser_on_every_machine(kind: str, like: str) -> None:
    text = file(kind, machine(like))
    assert parsed(kind, text)
    assert text.endswith("\n") and "\n\n\n" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_nothing_of_the_machine_but_its_kind(kind: str) -> None:
    index = {"url": "https://ada:s3cret@mirror.example/simple", "origin": "pip.conf"}
    m = machine(python={"index": index}, identity={"user": "ada", "host": "box7"})
    text = file(kind, m)
    assert not re.search(r"ada\b|box7|s3cret|mirror|/home", text)
    assert "Chosen for a GPU of capability 8.9" in text


def test_requirements_pin_the_variant_beside_the_default_index() -> None:
    lines = file("requirements", GTX).splitlines()
    assert "--extra-index-url https://download.pytorch.org/whl/cu126" in lines
    assert "torch==2.14.1+cu126" in lines


def test_with_hashes_everything_that_was_resolved_is_pinned() -> None:
    hashes = {
        ("typing_extensions", "4.15.0"): ("b" * 64,),
        ("torch", "2.14.1+cu126"): ("d" * 64, "c" * 64),
        ("torchvision", "0.29.1+cu126"): ("e" * 64,),
    }
    text = file("requirements", GTX, hashes=hashes)
    body = text.split("\n\n", 1)[1].replace(" \\\n    ", " ").splitlines()
    assert body == [
        "--extra-index-url https://download.pytorch.org/whl/cu126",
        f"torch==2.14.1+cu126 --hash=sha256:{'c' * 64} --hash=sha256:{'d' * 64}",
        f"torchvision==0.29.1+cu126 --hash=sha256:{'e' * 64}",
        f"typing-extensions==4.15.0 --hash=sha256:{'b' * 64}",
    ]
    assert "--require-hashes" in text


def test_pip_itself_reads_a_file_with_hashes(tmp_path: Path) -> None:
    hashes = {("torch", "2.14.1+cu126"): ("c" * 64,), ("numpy", "2.4.6"): ("d" * 64,)}
    path = tmp_path / "requirements.txt"
    path.write_text(file("requirements", GTX, hashes=hashes), encoding="utf-8")
    code = (
        "import sys\n"
        "from pip._internal.network.session import PipSession\n"
        "from pip._internal.req.req_file import parse_requirements\n"
        "for one in parse_requirements(sys.argv[1], session=PipSession()):\n"
        "    print(one.requirement, one.options)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert ran.stdout.count("sha256") == 2


def test_the_newest_release_comes_by_pip_where_conda_forge_is_not_known_to_have_it() -> None:
    wanted = parsed("environment", file("environment", machine(), keep="2.14.1"))["dependencies"]
    assert wanted[-1]["pip"][-2:] == ["torch==2.14.1", "torchvision==0.29.1"]


def test_a_release_of_conda_forge_comes_from_there() -> None:
    text = file("environment", machine(), keep="2.13.0+cu129")
    wanted = parsed("environment", text)["dependencies"]
    assert wanted[1:] == ["pytorch-gpu=2.13.0.*", "cuda-version>=12.9,<13", "torchvision"]
    assert "CONDA_OVERRIDE_CUDA=12.9" in text


def test_an_old_gpu_gets_no_build_of_conda_forge_whose_cudnn_refuses_it() -> None:
    wanted = parsed("environment", file("environment", GTX, keep="2.13.0"))["dependencies"]
    assert any(requirement.startswith("torch==2.13.0+cu126") for requirement in wanted[-1]["pip"])


def test_a_free_threaded_python_is_named_as_each_tool_names_it() -> None:
    m = machine(python={"version": "3.14.0", "free_threaded": True})
    assert "python-freethreading=3.14.*" in file("environment", m)
    assert "python-freethreading = " in file("pixi", m)
    assert "uv sync --python 3.14t" in file("pyproject", m)
    assert "--python 3.14t" in file("dockerfile", m)


def test_an_image_holds_the_build_for_linux() -> None:
    text = file("dockerfile", machine("rtx4090-windows"))
    assert "Linux x86_64: driver 580.65.06" in text
    newest = machine("macbook", torch={"version": "2.15.0"})
    build = KB.build_of(KB.torch_releases()[0], "cpu", "macos_arm64")
    assert build is not None
    linux = KB.build_of(build.torch, "cpu", "linux_aarch64")
    refused = why_not("dockerfile", newest, KB, build)
    assert (refused is None) == (linux is not None and linux.published is True)


def test_an_image_never_asks_for_more_than_the_driver_runs() -> None:
    for level in ("12.2", "12.4", "12.6", "13.0"):
        m = machine("gtx1080-linux", driver={"cuda": level})
        found = re.search(r"(?m)^FROM nvidia/cuda:(\d+\.\d+)", file("dockerfile", m))
        assert found is not None
        assert tuple(map(int, found[1].split("."))) <= tuple(map(int, level.split(".")))


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", "fix", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_prints_the_file_for_saved_facts() -> None:
    saved = str(MACHINES / "gtx1080-linux.json")
    ran = cli("--as", "requirements", "--from", saved)
    assert (ran.returncode, ran.stdout) == (0, file("requirements", GTX))
    again = cli("--print", "--as", "requirements", "--from", saved)
    assert again.stdout == ran.stdout


def test_the_command_keeps_to_a_wish_and_writes_where_it_is_told(tmp_path: Path) -> None:
    saved = str(MACHINES / "gtx1080-linux.json")
    out = tmp_path / "pyproject.toml"
    ran = cli("--as", "pyproject", "--torch", "2.6", "--from", saved, "--output", str(out))
    assert (ran.returncode, ran.stdout) == (0, "")
    project = tomllib.loads(out.read_text(encoding="utf-8"))
    assert project["project"]["dependencies"][0] == "torch==2.6.0"


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_fits_the_reasons_are_comments_and_the_exit_code_is_1(kind: str) -> None:
    ran = cli("--as", kind, "--from", str(MACHINES / "orin-jetson.json"))
    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert lines and all(line.startswith("# ") for line in lines)
    assert "NVIDIA's own build" in ran.stdout


def test_the_heading_of_a_conda_environment_tells_of_conda_forges_build() -> None:
    text = file("environment", machine(), keep="2.13.0+cu129")
    assert text.startswith("# torch 2.13.0 for CUDA 12.9 (conda-forge).\n")
    assert "Volta" not in text  # compiled for it, and refused by the cuDNN that conda takes


@pytest.mark.parametrize("kind", KINDS)
def test_a_companion_without_a_wheel_for_this_python_is_left_out_and_named(kind: str) -> None:
    m = machine(python={"version": "3.13.1"})
    text = file(kind, m, "2.5.1")
    assert "# No wheel of torchvision 0.20.1 for Python 3.13 is known." in text
    assert "0.20.1" not in re.sub("#.*", "", text)
    assert "No wheel" not in file(kind, machine(), "2.5.1")


def test_an_image_without_cuda_serves_a_driver_that_no_other_one_starts_on() -> None:
    kepler = {"gpus": [{"index": 0, "name": "Tesla K80", "capability": "3.7"}]}
    data = json.loads((MACHINES / "rtx4090-linux.json").read_text(encoding="utf-8")) | kepler
    data["driver"] |= {"kernel": "470.256.02", "cuda": "11.4"}
    m = factfile.from_plain(data)
    assert why_not("dockerfile", m, KB, build_for(m)) is None
    text = file("dockerfile", m)
    assert "FROM ubuntu:24.04" in text
    assert "a plain base image is enough" in " ".join(text.split("\n# "))


def test_a_release_that_only_a_mac_has_yet_names_the_one_that_an_image_can_hold() -> None:
    m = machine("macbook")
    newest = build_for(m)
    said = why_not("dockerfile", m, KB, newest)
    if KB.build_of(newest.torch, "cpu", "linux_aarch64").published:  # type: ignore[union-attr]
        assert said is None
    else:
        assert re.search(r"With --torch [\d.]+ there is a file\.$", said or "")


def test_gpus_are_not_named_where_none_is_meant() -> None:
    for kind in ("environment", "pixi"):
        text = file(kind, machine("cpu-linux"))
        assert "conda-forge may not have this release, so" in text


def test_a_name_tells_the_cuda_that_conda_forge_has() -> None:
    text = file("environment", machine(python={"version": "3.10.1"}), "2.8.0")
    assert "CUDA 12.9 (conda-forge)" in text
    assert "name: torch-cu129" in text


def test_reasons_against_a_build_are_few() -> None:
    found = [Rejection(variant=f"cu{n}", reason=f"It is of {n // 2}.") for n in range(90, 110)]
    reasons = rejection_reasons(found)
    assert reasons[0] == "cu90, cu91: It is of 45."
    assert reasons[-1] == "and 4 more"

"""Images, compose file, bake file and recipes say the same as the project and its tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from cudadoctor import knowledge

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (ROOT / "docker" / "cudadoctor.def").read_text(encoding="utf-8")
BAKE = (ROOT / "docker" / "docker-bake.hcl").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
DEVCONTAINER = json.loads(
    (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
)
RECIPE = yaml.safe_load((ROOT / "release" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
KB = knowledge.load()
DEFAULTS = dict(re.findall(r"(?m)^ARG (\w+)=(\S+)$", DOCKERFILE))


def stage(name: str) -> str:
    """The instructions of a stage."""
    (body,) = re.findall(rf"(?ms)^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE)
    return str(body)


STAGES = re.findall(r"(?m)^FROM \S+ AS (\w+)$", DOCKERFILE)


def test_the_cuda_image_exists_and_is_not_newer_than_the_cuda_of_torch() -> None:
    cuda = Version(DEFAULTS["CUDA"])
    minor = Version(f"{cuda.major}.{cuda.minor}")
    assert KB.newest_docker_tag(minor, "base", "ubuntu24.04") == f"{cuda}-base-ubuntu24.04"
    variant = DEFAULTS["INDEX"].rpartition("/")[2]
    for platform in ("linux_x86_64", "linux_aarch64"):
        build = KB.build_of(Version(DEFAULTS["TORCH"]), variant, platform)
        assert build is not None and build.published is True
        assert build.cuda is not None and minor <= build.cuda
        assert "3.12" in build.pythons  # Ubuntu 24.04's


def test_the_other_cuda_that_the_comments_name_suits_its_index_too() -> None:
    cuda, variant = re.findall(r"--build-arg CUDA=(\S+) --build-arg INDEX=\S+/(\w+)", DOCKERFILE)[0]
    build = KB.build_of(Version(DEFAULTS["TORCH"]), variant, "linux_x86_64")
    minor = Version(".".join(cuda.split(".")[:2]))
    assert KB.newest_docker_tag(minor, "base", "ubuntu24.04") == f"{cuda}-base-ubuntu24.04"
    assert build is not None and build.cuda is not None and minor <= build.cuda


@pytest.mark.parametrize("name", ["slim", "torch"])
def test_an_image_starts_as_the_command_without_rights_and_on_any_driver(name: str) -> None:
    body = stage(name)
    assert 'ENTRYPOINT ["cudadoctor"]\nCMD ["check"' in body
    # The doctor's own Python behind the one that is to be examined.
    assert re.search(r"PATH=\S*\$PATH:/opt/cudadoctor/bin", body)
    assert "NVIDIA_DISABLE_REQUIRE=1" in body
    assert "HEALTHCHECK" in body and "org.opencontainers.image.licenses" in body
    last_user = re.findall(r"(?m)^USER (\S+)$", body)[-1]
    assert last_user.isdigit() and last_user != "0"  # Kubernetes' runAsNonRoot reads a number only


def test_every_package_list_stays_in_a_cache_mount() -> None:
    for run in re.findall(r"(?ms)^RUN .*?[^\\]$", DOCKERFILE):
        if "apt-get" in run:
            assert run.count("--mount=type=cache") == 2
        if "pip install" in run or "pip wheel" in run:
            assert "--mount=type=cache" in run


def test_every_version_is_the_project_s() -> None:
    said = re.findall(r'image\.version[= ]"?([\d.]+)', DOCKERFILE + APPTAINER)
    assert said == [PROJECT["version"]] * 3
    assert RECIPE["context"]["version"] == PROJECT["version"]


def test_compose_gives_gpus_shared_memory_and_locked_memory() -> None:
    for service in COMPOSE["services"].values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert service["build"]["target"] in STAGES
        assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    check = COMPOSE["services"]["check"]
    assert check["shm_size"] == "1gb" and check["ulimits"]["memlock"] == -1


def test_the_bake_file_has_the_defaults_of_the_dockerfile() -> None:
    shown = dict(re.findall(r'variable "(\w+)" \{ default = "(\S+)" \}', BAKE))
    assert {name: value for name, value in shown.items() if name != "NAME"} == DEFAULTS
    assert set(re.findall(r'target += "(\w+)"', BAKE)) <= set(STAGES)
    assert '"linux/amd64", "linux/arm64"' in BAKE


def test_the_dev_container_is_a_stage_with_its_user() -> None:
    build = DEVCONTAINER["build"]
    folder = ROOT / ".devcontainer"
    assert (folder / build["dockerfile"]).resolve() == ROOT / "docker" / "Dockerfile"
    assert (folder / build["context"]).resolve() == ROOT
    assert build["target"] in STAGES
    assert f"useradd --create-home --uid 10001 --shell /bin/bash {DEVCONTAINER['remoteUser']}" in (
        stage(build["target"])
    )


def test_what_the_images_copy_is_not_ignored() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
    files = re.search(r"(?ms)^%files\n(.*?)\n\n", APPTAINER)
    named = {name for names in copied for name in names.split()}
    assert files is not None
    assert named == {line.split()[0] for line in files[1].splitlines()}
    assert ignored[0] == "*" and {f"!{name}" for name in named} <= set(ignored)


def test_conda_s_requirements_are_the_project_s() -> None:
    def pairs(texts: list[str]) -> dict[str, str]:
        parsed = map(Requirement, texts)
        return {one.name: str(one.specifier) for one in parsed}

    wanted = [text for text in RECIPE["requirements"]["run"] if not text.startswith("python ")]
    assert pairs(wanted) == pairs(PROJECT["dependencies"])
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    (entry,) = RECIPE["build"]["python"]["entry_points"]
    assert entry == f"cudadoctor = {PROJECT['scripts']['cudadoctor']}"


def test_rattler_build_renders_the_recipe() -> None:
    rattler: Any = pytest.importorskip("rattler_build")
    recipe = rattler.Stage0Recipe.from_file(str(ROOT / "release" / "conda" / "recipe.yaml"))
    (variant,) = recipe.render()
    rendered = variant.recipe() if callable(variant.recipe) else variant.recipe
    assert rendered.to_dict()["requirements"]["run"][0] == "python >=3.10"

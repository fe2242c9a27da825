"""The ready-made environments: as new as the tables, read by real parsers, all of it existing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import texts
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.installers.registry import TOOLS
from cudadoctor.knowledge import TorchBuild

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "install"
KB = knowledge.load()
TEXTS = texts.files(KB)
RECIPES = {recipe.variant: recipe for recipe in texts.recipes(KB)}
VARIANTS = sorted(RECIPES)
TORCH_INDEX = "https://download.pytorch.org/whl/"


def read(variant: str, name: str) -> str:
    return (FOLDER / variant / name).read_text(encoding="utf-8")


def toml(variant: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(read(variant, name))
    return found


def of(variant: str) -> texts.Recipe:
    return RECIPES[variant]


def test_every_file_is_what_the_tables_give_byte_for_byte() -> None:
    """Where this fails the tables have changed: python recipes/install/make.py writes them anew."""
    there = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in FOLDER.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert there == {path: text.encode() for path, text in TEXTS.items()}


def test_the_generator_writes_and_removes_what_differs(tmp_path: Path) -> None:
    folder = tmp_path / "install"
    shutil.copytree(FOLDER, folder)
    (folder / "cpu" / "pixi.toml").write_text("old", encoding="utf-8")
    (folder / "cu001").mkdir()
    (folder / "cu001" / "Dockerfile").write_text("gone", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, folder / "make.py"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.endswith("2 changed\n")
    assert (folder / "cpu" / "pixi.toml").read_text(encoding="utf-8") == TEXTS["cpu/pixi.toml"]
    assert not (folder / "cu001" / "Dockerfile").exists()


def test_every_variant_has_every_kind_of_file() -> None:
    wanted = {f"{variant}/{name}" for variant in VARIANTS for name in (tool.file for tool in TOOLS)}
    assert wanted | {"README.md"} == TEXTS.keys()
    assert {"cpu", "cu118", "cu126", "cu128", "cu129", "cu130"} <= set(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_builds_that_are_known_published_are_in_a_recipe(variant: str) -> None:
    for build in of(variant).stack.builds:
        row = KB.build_of(build.torch, variant, build.platform)
        assert row is not None and row.published is True
        newer = [other for other in KB.builds_on(build.platform) if other.variant == variant]
        if build is of(variant).stack.lead:
            assert not [other for other in newer if other.published and other.torch > build.torch]


def requirements(variant: str) -> tuple[list[str], list[Requirement]]:
    """The options and the requirements of a requirements file."""
    lines = [line for line in read(variant, "requirements.txt").splitlines() if line]
    lines = [line for line in lines if not line.startswith("#")]
    options = [line for line in lines if line.startswith("-")]
    return options, [Requirement(line) for line in lines if line not in options]


def on(platform: str) -> dict[str, str]:
    """The environment in which markers are evaluated for a platform."""
    system, _, machine = platform.partition("_")
    names = {"linux": "linux", "windows": "win32", "macos": "darwin"}
    machines = {"amd64": "AMD64"}
    return {"sys_platform": names[system], "platform_machine": machines.get(machine, machine)}


def wanted_on(platform: str, found: list[Requirement]) -> dict[str, Requirement]:
    there = [
        requirement
        for requirement in found
        if not requirement.marker or requirement.marker.evaluate(on(platform))
    ]
    assert len({requirement.name for requirement in there}) == len(there)
    return {requirement.name: requirement for requirement in there}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_requirements_file_names_the_build_of_each_platform(variant: str) -> None:
    options, found = requirements(variant)
    for build in of(variant).stack.builds:
        wanted = wanted_on(build.platform, found)
        tagged = Version(f"{build.torch}+{variant}")
        assert wanted["torch"].specifier.contains(tagged)
        if options:
            assert options == [f"--extra-index-url {TORCH_INDEX}{variant}"]
            plain = wanted["torch"].specifier.contains(build.torch)
            assert plain == build.platform.startswith("macos")
        else:
            assert build.default
        assert str(wanted["torchvision"].specifier) == f"=={build.torchvision}"


def test_a_torch_that_cannot_use_numpy_2_keeps_to_numpy_1() -> None:
    for variant in VARIANTS:
        old = of(variant).stack.lead.torch < Version("2.3")
        for name in (tool.file for tool in TOOLS):
            limited = re.search(r"numpy\W*<2", read(variant, name)) is not None
            assert limited == old, (variant, name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_uv_project_leads_only_torch_to_torchs_index(variant: str) -> None:
    project = toml(variant, "pyproject.toml")
    pythons = SpecifierSet(project["project"]["requires-python"])
    for build in of(variant).stack.builds:
        made = [python for python in build.pythons if not python.endswith("t")]
        assert pythons.contains(made[0]) or made[0] not in of(variant).stack.pythons
        assert not pythons.contains("3.6") or "3.6" in made
    found = [Requirement(text) for text in project["project"]["dependencies"]]
    assert [requirement.name for requirement in found][:2] == ["torch", "torchvision"]
    tool = project["tool"]["uv"]
    assert len(tool["environments"]) == len(of(variant).stack.builds)
    if "sources" not in tool:
        assert all(build.default for build in of(variant).stack.builds)
        return
    (index,) = tool["index"]
    assert index["url"] == f"{TORCH_INDEX}{variant}" and index["explicit"] is True
    assert tool["sources"].keys() == {"torch", "torchvision"}
    for build in of(variant).stack.builds:
        sources = tool["sources"]["torch"]
        assert {source["index"] for source in sources} == {index["name"]}
        markers = [
            Requirement(f"x ; {source['marker']}").marker
            for source in sources
            if "marker" in source
        ]
        led = not markers or any(
            marker and marker.evaluate(on(build.platform)) for marker in markers
        )
        assert led != build.default


def specs(variant: str) -> tuple[list[str], list[str]]:
    """What an environment.yml wants of conda, and of pip."""
    document = yaml.safe_load(read(variant, "environment.yml"))
    assert document["channels"] == ["conda-forge", "nodefaults"]
    wanted = document["dependencies"]
    by_pip = [entry["pip"] for entry in wanted if isinstance(entry, dict)]
    return [entry for entry in wanted if isinstance(entry, str)], by_pip[0] if by_pip else []


@pytest.mark.parametrize("variant", VARIANTS)
def test_conda_forge_is_asked_only_for_what_it_is_known_to_have(variant: str) -> None:
    wanted, by_pip = specs(variant)
    table = toml(variant, "pixi.toml")
    builds = of(variant).stack.builds
    assert len(table["workspace"]["platforms"]) == len(builds)
    if by_pip:
        assert not [entry for entry in wanted if entry.startswith("pytorch")]
        assert "pytorch-gpu" not in table["dependencies"]
        return
    assert f"pytorch-gpu={of(variant).stack.lead.torch}.*" in wanted
    assert table["dependencies"]["pytorch-gpu"] == f"{of(variant).stack.lead.torch}.*"
    constraint = SpecifierSet(table["dependencies"]["cuda-version"])
    for build in builds:
        made = KB.conda_cuda("conda-forge", build.torch, build.platform) or ()
        assert [version for version in made if constraint.contains(version)]
        assert build.cuda and not constraint.contains(f"{build.cuda.major + 1}.0")


@pytest.mark.parametrize("variant", VARIANTS)
def test_pixi_takes_the_same_release_for_every_platform(variant: str) -> None:
    table = toml(variant, "pixi.toml")
    cuda = of(variant).stack.lead.cuda
    assert table["system-requirements"].get("cuda") == (str(cuda.major) if cuda else None)
    if "pytorch-gpu" in table["dependencies"]:
        return
    per_platform = [target["pypi-dependencies"] for target in table.get("target", {}).values()]
    for pins in per_platform or [table["pypi-dependencies"]]:
        pin = pins["torch"] if isinstance(pins["torch"], str) else pins["torch"]["version"]
        assert pin == f"=={of(variant).stack.lead.torch}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_exists_and_asks_for_no_newer_driver_than_the_variants_cuda(variant: str) -> None:
    (image,) = re.findall(r"(?m)^FROM (\S+)$", read(variant, "Dockerfile"))
    build = of(variant).stack.lead
    if build.cuda is None:
        assert image == "ubuntu:24.04"
        return
    found = re.fullmatch(r"nvidia/cuda:([\d.]+)-(base)-(ubuntu[\d.]+)", image)
    assert found is not None
    newest = KB.newest_docker_tag(Version(found[1]), found[2], found[3])
    assert image == f"nvidia/cuda:{newest}"
    assert Version(found[1]).release[:2] <= build.cuda.release[:2]
    assert Version(found[1]).major == build.cuda.major


def test_hadolint_finds_nothing_in_any_dockerfile() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("no hadolint here")
    paths = [str(path) for path in FOLDER.glob("*/Dockerfile")]
    ran = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def rows() -> dict[tuple[str, str], list[str]]:
    """(platform, variant) -> the cells of its row on the index page."""
    found: dict[tuple[str, str], list[str]] = {}
    platform = ""
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            platform = line[3:]
        if row := re.match(r"\| \[(\w+)\]\((\w+)\) \| (.*) \|$", line):
            assert row[1] == row[2]
            found[platform, row[1]] = [cell.strip() for cell in row[3].split("|")]
    return found


def test_the_index_page_tells_the_driver_and_gpus_of_each_build() -> None:
    names = {"linux_x86_64": "Linux x86_64", "linux_aarch64": "Linux aarch64"}
    names |= {"windows_amd64": "Windows", "macos_arm64": "macOS on Apple silicon"}
    shown = rows()
    builds: list[TorchBuild] = [
        build for recipe in RECIPES.values() for build in recipe.stack.builds
    ]
    assert shown.keys() == {(names[build.platform], build.variant) for build in builds}
    for build in builds:
        torch, driver, gpus, python, _ = shown[names[build.platform], build.variant]
        assert torch == str(build.torch)
        assert python.split(" to ")[0] in build.pythons
        if build.cuda is None:
            assert driver == "none"
            continue
        system = "Windows" if build.platform.startswith("windows") else "Linux"
        floor = KB.driver_floor(build.cuda, system)
        assert floor is not None and driver == str(floor.driver)
        for capability in re.findall(r"\d+\.\d", gpus):
            served = [KB.serves(code, Version(capability), build.torch, build.cuda)
                      for code in build.archs or ()]  # fmt: skip
            assert "native" in served


def test_an_old_driver_and_a_new_gpu_find_a_line() -> None:
    """The first line that fits: Blackwell under branch 570, Volta under 535, Kepler under 470."""
    lines = [(variant, cells) for (platform, variant), cells in rows().items()
             if platform == "Linux x86_64"]  # fmt: skip

    def first(branch: float, capability: str) -> str:
        return next(
            variant
            for variant, (_, driver, gpus, *_) in lines
            if driver == "none" or (float(driver[:3]) <= branch and capability in gpus)
        )

    assert first(570, "12.0") == "cu129"
    assert first(535, "7.0") == "cu126"
    assert first(470, "3.7") == "cu117"
    assert first(390, "6.1") == "cpu"
    assert first(615, "9.0") == VARIANTS[-1]

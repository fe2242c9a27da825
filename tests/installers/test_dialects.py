"""Package changes in the words of each package manager."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cudadoctor import knowledge
from cudadoctor.installers import docker, registry
from cudadoctor.installers.index import host_of
from cudadoctor.locale.language import language
from cudadoctor.model import factfile
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine

MACHINES = Path(__file__).parent.parent / "machines"
CU126 = "https://download.pytorch.org/whl/cu126"
PYTHON = "/home/ada/venv/bin/python"
TO_CU126 = PackageChange(
    install=("torch==2.14.1", "torchvision==0.29.1"),
    remove=("torch", "nvidia-cudnn-cu13"),
    index=CU126,
    variant="cu126",
    cuda="12.6",
)
DEFAULT = PackageChange(install=("torch==2.14.1",), variant="cu130", cuda="13.0")
KB = knowledge.load()


def machine(like: str = "rtx4090-linux", **sections: dict[str, Any]) -> Machine:
    """A healthy machine with some facts changed."""
    data = json.loads((MACHINES / f"{like}.json").read_text(encoding="utf-8"))
    for section, changes in sections.items():
        data.setdefault(section, {}).update(changes)
    return factfile.from_plain(data)


def commands(m: Machine, change: PackageChange, wish: Any = None) -> tuple[tuple[str, ...], ...]:
    return registry.write(m, KB, change, wish).commands


def test_pip_is_the_one_of_the_examined_interpreter() -> None:
    uninstall, install = commands(machine(), TO_CU126)
    assert uninstall == (PYTHON, "-m", "pip", "uninstall", "-y", "torch", "nvidia-cudnn-cu13")
    assert install == (
        *(PYTHON, "-m", "pip", "install", "torch==2.14.1", "torchvision==0.29.1"),
        *("--index-url", CU126),
    )


def test_the_default_build_needs_no_index() -> None:
    assert commands(machine(), DEFAULT) == ((PYTHON, "-m", "pip", "install", "torch==2.14.1"),)


def test_pip_itself_understands_every_option() -> None:
    index = {"index": {"url": "https://mirror.example/simple", "origin": "pip.conf"}}
    then = msgspec.structs.replace(TO_CU126, then=("flash-attn==2.8.3", "numpy<2"))
    found = [*commands(machine(), then), *commands(machine(python=index), then)]
    text = (
        "import json, sys\n"
        "from pip._internal.commands import create_command\n"
        "for argv in json.load(sys.stdin):\n"
        "    create_command(argv[3]).parse_args(argv[4:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        input=json.dumps(found),
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_compiled_against_torch_is_built_without_isolation() -> None:
    change = PackageChange(install=("flash-attn==2.8.3", "numpy<2"))
    assert commands(machine(), change) == (
        (PYTHON, "-m", "pip", "install", "numpy<2"),
        (PYTHON, "-m", "pip", "install", "setuptools", "wheel", "packaging", "ninja", "psutil"),
        (
            *(PYTHON, "-m", "pip", "install", "--no-build-isolation", "--no-cache-dir"),
            "flash-attn==2.8.3",
        ),
    )


def test_a_name_that_looks_like_an_option_never_reaches_a_command() -> None:
    change = PackageChange(install=("--pre", "-r evil"), remove=("-r", "a b", "numpy"))
    assert commands(machine(), change) == ((PYTHON, "-m", "pip", "uninstall", "-y", "numpy"),)


def test_without_pip_uv_serves() -> None:
    uv = {"pip": False, "managers": [{"name": "uv", "path": "/home/ada/.local/bin/uv"}]}
    uninstall, install = commands(machine(python=uv), TO_CU126)
    head = ("/home/ada/.local/bin/uv", "pip")
    assert uninstall[:5] == (*head, "uninstall", "--python", PYTHON)
    assert install[:5] == (*head, "install", "--python", PYTHON)
    assert install[-2:] == ("--index", CU126)


def test_uv_reads_the_settings_of_the_project_that_named_the_index() -> None:
    uv = {"pip": False, "managers": [{"name": "uv", "path": "/usr/bin/uv"}]}
    index = {"url": "https://mirror.example/simple", "origin": "/home/ada/w/pyproject.toml"}
    inside = machine(python=uv | {"index": index, "prefix": "/home/ada/w/.venv"})
    for argv in commands(inside, TO_CU126):
        assert argv[:4] == ("/usr/bin/uv", "--directory", "/home/ada/w", "pip")
    for prefix, origin in (
        ("/home/ada/venv", "/home/ada/w/uv.toml"),
        ("/home/ada/w2/.venv", "/home/ada/w/uv.toml"),
        ("/home/ada/w/.venv", "UV_INDEX"),
        ("~/w/.venv", "~/w/uv.toml"),
    ):
        other = uv | {"index": index | {"origin": origin}, "prefix": prefix}
        assert all(argv[1] == "pip" for argv in commands(machine(python=other), TO_CU126))


def test_without_pip_and_uv_pip_is_made_first() -> None:
    first = commands(machine(python={"pip": False, "managers": []}), DEFAULT)[0]
    assert first == (PYTHON, "-m", "ensurepip", "--upgrade")


@pytest.mark.parametrize("uv", [True, False])
def test_a_system_python_is_left_alone_and_gets_a_new_environment(uv: bool) -> None:
    managers = [{"name": "uv", "path": "/usr/bin/uv"}] if uv else []
    system = {
        "executable": "/usr/bin/python3",
        "kind": "system",
        "externally_managed": True,
        "managers": managers,
    }
    written = registry.write(machine(python=system), KB, TO_CU126)
    made, install = written.commands
    assert made[-1] == "/home/ada/.venvs/torch"
    assert "/usr/bin/python3" in made
    assert "/home/ada/.venvs/torch/bin/python" in install
    assert "PEP 668" in (written.note or "")
    assert not any("--break-system-packages" in argv for argv in written.commands)


def test_a_venv_of_a_managed_python_is_no_system_python() -> None:
    m = machine(python={"kind": "venv", "externally_managed": True})
    assert commands(m, DEFAULT)[0][0] == PYTHON


MIRROR = "https://ada:s3cret@mirror.example:8443/simple"


def test_a_mirror_stays_in_use_for_the_default_build() -> None:
    plain = "https://mirror.example/simple"
    m = machine(python={"index": {"url": plain, "origin": "/home/ada/.config/pip/pip.conf"}})
    assert commands(m, DEFAULT)[0][-2:] == ("--index-url", plain)


def test_a_password_of_a_mirror_is_left_in_its_file() -> None:
    m = machine(python={"index": {"url": MIRROR, "origin": "/home/ada/.config/pip/pip.conf"}})
    for change in (DEFAULT, TO_CU126):
        written = registry.write(m, KB, change)
        assert "s3cret" not in repr(written)
        assert "pytorch.org" in repr(written) or change is DEFAULT


def test_torchs_index_is_added_beside_a_mirror_and_the_exact_build_is_named() -> None:
    m = machine(python={"index": {"url": MIRROR, "origin": "PIP_INDEX_URL"}})
    written = registry.write(m, KB, TO_CU126)
    assert written.commands[-1][4:] == (
        *("torch==2.14.1+cu126", "torchvision==0.29.1+cu126", "--extra-index-url", CU126),
    )
    assert "mirror.example" in (written.note or "")


def test_uv_is_told_of_a_mirror_that_only_pip_knows() -> None:
    uv = [{"name": "uv", "path": "/usr/bin/uv"}]
    index = {"url": "https://mirror.example/simple", "origin": "PIP_INDEX_URL"}
    m = machine(python={"pip": False, "managers": uv, "index": index})
    assert commands(m, TO_CU126)[-1][-4:] == (
        *("--default-index", "https://mirror.example/simple", "--index", CU126),
    )


def test_uv_asks_torchs_index_first_for_a_wheel_that_no_other_index_has() -> None:
    """--index-url comes last in uv's order, and UV_DEFAULT_INDEX overrules it."""
    uv = [{"name": "uv", "path": "/usr/bin/uv"}]
    for index in ({}, {"extra": ["https://wheels.example/simple"], "origin": "UV_INDEX"}):
        m = machine(python={"pip": False, "managers": uv, "index": index})
        assert commands(m, TO_CU126)[-1][-4:] == (
            *("torch==2.14.1+cu126", "torchvision==0.29.1+cu126", "--index", CU126),
        )


@pytest.mark.parametrize("more", ["extra", "find_links"])
def test_pip_is_told_the_exact_wheel_where_it_searches_another_place_too(more: str) -> None:
    index = {more: ["https://wheels.example/simple"], "origin": "/etc/pip.conf"}
    m = machine(python={"index": index})
    assert commands(m, TO_CU126)[-1][4:] == (
        *("torch==2.14.1+cu126", "torchvision==0.29.1+cu126", "--index-url", CU126),
    )
    assert "torch==2.14.1" in commands(m, DEFAULT)[-1], "the default build has no tag on PyPI"


@pytest.mark.parametrize(
    ("platform", "tagged"),
    [
        ({"system": "Linux", "machine": "aarch64"}, "torch==2.14.1+cu126 torchvision==0.29.1"),
        ({"system": "Darwin", "machine": "arm64"}, "torch==2.14.1 torchvision==0.29.1"),
    ],
)
def test_no_tag_is_asked_for_that_a_platform_may_not_have(
    platform: dict[str, str], tagged: str
) -> None:
    index = {"extra": ["https://wheels.example/simple"]}
    m = machine(platform=platform, python={"index": index})
    assert " ".join(commands(m, TO_CU126)[-1][4:6]) == tagged


@pytest.mark.parametrize(
    "index",
    [
        {"url": "https://download.pytorch.org/whl/cpu"},
        {"extra": ["https://download.pytorch.org/whl/cpu"]},
        {"extra": ["https://download.pytorch.org/whl/cu118/"]},
    ],
)
@pytest.mark.parametrize("change", [DEFAULT, TO_CU126])
def test_an_index_of_another_variant_is_not_obeyed(
    index: dict[str, Any], change: PackageChange
) -> None:
    install = commands(machine(python={"index": index}), change)[-1]
    assert f"torch==2.14.1+{change.variant}" in install
    assert install[-1] == f"https://download.pytorch.org/whl/{change.variant}"


def test_a_companys_copy_of_torchs_index_is_turned_to_the_variant() -> None:
    index = {"url": "https://mirror.example/whl/cpu"}
    install = commands(machine(python={"index": index}), TO_CU126)[-1]
    assert install[-2:] == ("--index-url", "https://mirror.example/whl/cu126")


def test_switched_off_indexes_are_named() -> None:
    index = {"no_index": True, "find_links": ["/opt/wheels"], "origin": "/etc/pip.conf"}
    written = registry.write(machine(python={"index": index}), KB, TO_CU126)
    assert "disabled (/etc/pip.conf)" in (written.note or "")


def test_without_ensurepip_somebody_must_bring_a_pip() -> None:
    python = {"pip": False, "ensurepip": False, "managers": []}
    fedora = {"distro": "fedora", "distro_like": []}
    written = registry.write(machine(python=python, platform=fedora), KB, DEFAULT)
    assert not any("ensurepip" in argv for argv in written.commands)
    assert "install pip" in (written.manual or "") and not written.system


def test_what_takes_no_packages_gets_an_environment_of_its_own() -> None:
    system = {"kind": "system", "pip": False, "ensurepip": True, "managers": [], "prefix": "/usr"}
    bare = registry.write(machine(python=system), KB, DEFAULT)
    assert bare.commands[0][1:3] == ("-m", "venv") and "has no pip" in (bare.note or "")
    image = {"kind": "conda-base", "prefix": "/opt/conda"}
    sealed = machine(python=image, container={"kind": "apptainer"})
    made = registry.write(sealed, KB, DEFAULT, "pip")
    assert made.commands[0][1:3] == ("-m", "venv") and "read-only" in (made.note or "")
    docker = machine(python=image, container={"kind": "docker"})
    assert registry.write(docker, KB, DEFAULT, "pip").commands[0][1:3] != ("-m", "venv")


def test_debian_brings_ensurepip_in_a_package_of_its_own() -> None:
    python = {"pip": False, "ensurepip": False, "managers": [], "version": "3.11.2"}
    debian = {"distro": "debian", "distro_like": []}
    written = registry.write(machine(python=python, platform=debian), KB, DEFAULT)
    assert written.system[-1] == ("apt-get", "install", "-y", "python3.11-venv")
    assert "ensurepip" in written.commands[0] and written.manual is None
    brew = {"base_prefix": "/home/linuxbrew/.linuxbrew/opt/python@3.11"}
    assert not registry.write(machine(python=python | brew, platform=debian), KB, DEFAULT).system


@pytest.mark.parametrize("url", ["", "::::", "http://[broken", "file:///srv/wheels"])
def test_an_odd_index_is_no_obstacle(url: str) -> None:
    assert host_of(url)
    assert commands(machine(python={"index": {"url": url or None}}), TO_CU126)


def test_an_index_that_is_not_torchs_stands_alone() -> None:
    jetson = msgspec.structs.replace(
        TO_CU126, install=("torch",), index="https://j.example/+simple"
    )
    m = machine(python={"index": {"url": "https://mirror.example/simple"}})
    assert commands(m, jetson)[-1][-3:] == ("torch", "--index-url", "https://j.example/+simple")


def conda(**changes: Any) -> Machine:
    python = {
        "kind": "conda",
        "prefix": "/opt/conda/envs/a b",
        "executable": "/opt/conda/envs/a b/bin/python",
        "managers": [{"name": "conda", "path": "/opt/conda/bin/conda"}],
    }
    return machine(python=python | changes, torch={"installer": "conda"})


def test_what_conda_installed_is_changed_by_conda() -> None:
    m = msgspec.structs.replace(conda(), packages=())
    (install,) = commands(m, TO_CU126)
    assert install == (
        *("/opt/conda/bin/conda", "install", "-y", "-p", "/opt/conda/envs/a b"),
        *("-c", "conda-forge", "pytorch-gpu", "cuda-version>=12.6,<13", "torchvision"),
    )


def test_wheels_that_pip_put_into_a_conda_environment_go_first() -> None:
    asked, uninstall, install = commands(conda(), TO_CU126)
    assert asked[1:3] == ("install", "--dry-run")
    assert uninstall[1:5] == ("-m", "pip", "uninstall", "-y")
    assert install[1] == "install"
    assert asked[3:] == install[3:], "conda was asked for something else"


def test_mamba_goes_before_conda() -> None:
    both = [{"name": "conda", "path": "/c"}, {"name": "mamba", "path": "/m"}]
    assert commands(conda(managers=both), TO_CU126)[-1][0] == "/m"


def test_a_torch_that_pip_put_into_conda_is_changed_by_pip() -> None:
    m = machine(python={"kind": "conda"}, torch={"installer": "pip"})
    assert commands(m, TO_CU126)[0][1:3] == ("-m", "pip")


def test_a_wish_for_conda_is_heard() -> None:
    found = commands(machine(), TO_CU126, "conda")
    assert found[-1][0] == "conda"


def test_a_cpu_build_from_conda_is_asked_for_by_name() -> None:
    change = PackageChange(install=("torch==2.14.1",), variant="cpu")
    assert commands(conda(), change)[-1][-1] == "pytorch-cpu"


def test_conda_removes_by_its_own_names() -> None:
    m = conda()
    m = msgspec.structs.replace(m, packages=())
    assert commands(m, PackageChange(install=(), remove=("torch",)))[-1][-1] == "pytorch"


def test_pixi_changes_its_project() -> None:
    m = conda(
        prefix="/work/proj/.pixi/envs/default",
        managers=[{"name": "pixi", "path": "/usr/bin/pixi"}],
    )
    known = PackageChange(install=("torch==2.13.0",), index=CU126, variant="cu129", cuda="12.9")
    written = registry.write(m, KB, known)
    assert written.tool == "pixi"
    head = ("/usr/bin/pixi", "add", "--manifest-path", "/work/proj")
    assert written.commands[0] == (*head, "pytorch-gpu=2.13.0", "cuda-version>=12.9,<13")
    assert written.edits[0].what == '[system-requirements]\ncuda = "12"'
    assert written.edits[0].file == "/work/proj/pixi.toml"


def test_pixi_takes_wheels_where_conda_forge_is_not_known_to_have_the_release() -> None:
    m = conda(
        prefix="/work/proj/.pixi/envs/default",
        managers=[{"name": "pixi", "path": "/usr/bin/pixi"}],
    )
    written = registry.write(m, KB, TO_CU126)
    assert written.commands == (("/usr/bin/pixi", "install", "--manifest-path", "/work/proj"),)
    wanted = f'torch = {{ version = "==2.14.1", index = "{CU126}" }}'
    assert wanted in written.edits[0].what.splitlines()
    assert "PyTorch's own wheels" in (written.note or "")


OLD_WISH = PackageChange(
    install=("torch==2.2.2", "torchvision==0.17.2"),
    index="https://download.pytorch.org/whl/cu121",
    variant="cu121",
    cuda="12.1",
)


def test_the_pytorch_channel_serves_only_releases_that_it_alone_has() -> None:
    m = msgspec.structs.replace(conda(), packages=())
    written = registry.write(m, KB, OLD_WISH)
    assert written.commands[0][5:] == (
        *("-c", "pytorch", "-c", "nvidia"),
        *("pytorch==2.2.2", "torchvision==0.17.2", "pytorch-cuda=12.1", "mkl<2024.1"),
    )
    assert "discontinued after torch 2.5.1" in (written.note or "")
    for release in ("2.13.0", "2.14.1", "2.5.1"):
        change = msgspec.structs.replace(OLD_WISH, install=(f"torch=={release}",))
        assert "pytorch" not in commands(m, change)[0]


def test_the_pytorch_channel_named_cuda_otherwise_before_1_13() -> None:
    m = msgspec.structs.replace(conda(), packages=())
    older = PackageChange(install=("torch==1.12.1",), variant="cu113", cuda="11.3")
    assert commands(m, older)[0][-5:] == (
        *("-c", "pytorch", "pytorch==1.12.1", "cudatoolkit=11.3", "mkl<2024.1"),
    )


def with_conda(gpu: str, *names: str) -> Machine:
    """A conda environment with these packages of conda's, and a GPU of that capability."""
    packages = [{"name": name, "version": "1.0", "installer": "conda"} for name in names]
    gpus = [{"index": 0, "name": "GPU", "capability": gpu}]
    data = factfile.encode(conda()) | {"packages": packages, "gpus": gpus}
    return factfile.from_plain(data)


FOR_NEW_GPUS = PackageChange(
    install=("torch==2.7.1", "torchvision==0.22.1"), variant="cu128", cuda="12.8"
)
OF_THE_CHANNEL = ("torch", "pytorch-cuda", "pytorch-mutex", "torchtriton")


def test_a_gpu_bounds_the_cuda_of_conda_forge_from_below() -> None:
    newer = commands(with_conda("12.0", "torch"), FOR_NEW_GPUS)[-1]
    assert "pytorch-gpu=2.7.1" in newer and "cuda-version>=12.8,<13" in newer
    older = commands(with_conda("8.9", "torch"), FOR_NEW_GPUS)[-1]
    assert "cuda-version>=12.6,<13" in older
    # 2.7.0 has no build with a CUDA that knows the GPU on any channel.
    before = msgspec.structs.replace(FOR_NEW_GPUS, install=("torch==2.7.0",))
    written = registry.write(with_conda("12.0", "torch"), KB, before)
    assert written.tool == "pip"
    assert "pytorch-gpu=2.7.0" in commands(with_conda("8.9", "torch"), before)[-1]
    # Nor has the channel that ended one.
    channel = msgspec.structs.replace(OLD_WISH, install=("torch==2.5.0",))
    assert "pytorch" not in commands(with_conda("12.0", "torch"), channel)[-1]
    assert "pytorch" in commands(with_conda("8.9", "torch"), channel)[-1]


def test_the_torch_of_the_channel_that_ended_goes_as_a_whole() -> None:
    remove, install = commands(with_conda("8.9", "numpy", *OF_THE_CHANNEL), FOR_NEW_GPUS)
    assert remove[1:4] == ("remove", "-y", "--force"), "what needs torch would go too"
    assert remove[6:] == ("pytorch", "pytorch-cuda", "pytorch-mutex", "torchtriton")
    assert "conda-forge" in install
    (alone,) = commands(with_conda("8.9", "torch", "numpy"), FOR_NEW_GPUS)
    assert alone[1] == "install"
    # What is no torch moves nothing.
    (other,) = commands(with_conda("8.9", *OF_THE_CHANNEL), PackageChange(install=("numpy<2",)))
    assert other[1] == "install"
    by_pip = registry.write(
        with_conda("12.0", *OF_THE_CHANNEL),
        KB,
        msgspec.structs.replace(FOR_NEW_GPUS, install=("torch==2.7.0",)),
    )
    assert {"pytorch-cuda", "pytorch-mutex"} <= set(by_pip.commands[0])


def test_within_the_channel_only_the_other_kind_of_build_goes() -> None:
    remove, install = commands(with_conda("8.9", "torch", "cpuonly", "pytorch-mutex"), OLD_WISH)
    assert remove[6:] == ("cpuonly",)
    assert "pytorch-cuda=12.1" in install
    (install,) = commands(with_conda("8.9", *OF_THE_CHANNEL), OLD_WISH)
    assert "pytorch-cuda=12.1" in install


def test_a_companion_comes_from_the_channel_of_its_torch() -> None:
    vision = PackageChange(install=("torchvision==0.15.2",))
    (install,) = commands(with_conda("8.9", *OF_THE_CHANNEL), vision)
    assert install[5:] == ("-c", "pytorch", "torchvision==0.15.2")
    (install,) = commands(with_conda("8.9", "torch"), vision)
    assert "conda-forge" in install
    (install,) = commands(with_conda("8.9", *OF_THE_CHANNEL), PackageChange(install=("numpy<2",)))
    assert "conda-forge" in install


def test_where_the_processor_is_not_told_the_usual_one_is_meant() -> None:
    data = factfile.encode(with_conda("12.0", "torch")) | {"look": "report"}
    data["platform"] = {"system": "Windows", "machine": None}
    words = commands(factfile.from_plain(data), FOR_NEW_GPUS)[-1]
    assert {"pytorch-gpu=2.7.1", "cuda-version>=12.8,<13"} <= set(words)


def test_a_toolkit_that_cupy_may_need_stays() -> None:
    old = (*OF_THE_CHANNEL[:1], "pytorch-mutex", "cudatoolkit")
    assert "cudatoolkit" in commands(with_conda("8.6", *old), FOR_NEW_GPUS)[0]
    assert "cudatoolkit" not in commands(with_conda("8.6", *old, "cupy"), FOR_NEW_GPUS)[0]


def test_what_conda_put_there_is_asked_where_it_is_not_listed() -> None:
    note = "pytorch-cuda, pytorch-mutex, cpuonly or cudatoolkit"
    data = factfile.encode(with_conda("8.9")) | {"packages": None}
    data["torch"] = {"version": "2.5.1", "installer": "conda", "installed": True}
    blind = factfile.from_plain(data)
    assert note in (registry.write(blind, KB, FOR_NEW_GPUS).note or "")
    assert note not in (registry.write(with_conda("8.9", "torch"), KB, FOR_NEW_GPUS).note or "")


def test_conda_makes_the_release_nearest_to_the_wished_one() -> None:
    made = msgspec.structs.replace(FOR_NEW_GPUS, install=("torch==2.9.0",))
    written = registry.write(machine(), KB, made, "conda")
    assert "pytorch-gpu=2.9.1" in written.commands[0]
    assert "nearest release that it has is 2.9.1" in (written.note or "")


def test_an_old_gpu_gets_an_older_cudnn_from_conda_forge() -> None:
    gpu = {"gpus": [{"index": 0, "name": "Tesla V100-SXM2-32GB", "capability": "7.0"}]}
    data = factfile.encode(msgspec.structs.replace(conda(), packages=()))
    m = factfile.from_plain(data | gpu)
    written = registry.write(m, KB, TO_CU126)
    assert "cudnn<9.11" in written.commands[0]
    assert "--with pip" in (written.note or "")
    assert not [word for word in commands(conda(), TO_CU126)[-1] if word.startswith("cudnn")]


def test_conda_makes_an_environment_where_the_examined_one_is_not_its_own() -> None:
    written = registry.write(machine(), KB, TO_CU126, "conda")
    ((program, verb, *words),) = written.commands
    assert (program, verb) == ("conda", "create")
    assert words[:3] == ["-y", "-p", "/home/ada/.venvs/torch-conda"]
    assert "python=3.12" in words and "creates a conda environment" in (written.note or "")


def test_a_release_that_no_conda_channel_has_comes_as_a_wheel() -> None:
    index = "https://download.pytorch.org/whl/cu118"
    old = PackageChange(install=("torch==2.7.1",), variant="cu118", cuda="11.8", index=index)
    written = registry.write(conda(), KB, old)
    remove, install = written.commands
    assert (remove[1], remove[-1]) == ("remove", "pytorch")
    assert (install[-3:], written.tool) == (("torch==2.7.1", "--index-url", index), "pip")
    assert "No conda channel is known to have torch 2.7.1 with CUDA 11" in (written.note or "")
    # What pip had installed, pip replaces.
    # Into an empty environment it comes right away.
    empty = msgspec.structs.replace(conda(pip=False), torch=type(conda().torch)(installed=False))
    assert "pip" in registry.write(empty, KB, old).commands[-1]
    assert not any("remove" in argv for argv in registry.write(empty, KB, old).commands)
    # One that came after all that is known of conda-forge may be there.
    newer = PackageChange(install=("torch==2.14.1",), variant="cu126", cuda="12.6")
    assert "pytorch-gpu" in commands(conda(), newer)[-1]


def test_a_range_of_cuda_holds_what_conda_forge_made_the_release_with() -> None:
    older = PackageChange(install=("torch==2.4.1",), variant="cu124", cuda="12.4")
    assert "cuda-version>=12.0,<13" in commands(conda(), older)[-1]


JETSON = PackageChange(
    install=("torch", "torchvision"),
    index="https://pypi.jetson-ai-lab.io/jp6/cu126/+simple/",
    variant="cu126",
    cuda="12.6",
)


@pytest.mark.parametrize("wish", ["conda", "pixi", "docker"])
def test_a_jetsons_wheels_come_from_their_own_index_by_every_tool(wish: Any) -> None:
    written = registry.write(machine("orin-jetson"), KB, JETSON, wish)
    assert "jetson-ai-lab" in repr(written)
    assert "conda-forge'" not in repr(written) and "nvidia/cuda:" not in repr(written)


@pytest.mark.parametrize("wish", ["pip", "uv", "conda", "pixi", "docker"])
@pytest.mark.parametrize("change", [TO_CU126, DEFAULT, JETSON, OLD_WISH])
def test_what_every_tool_says_is_told_in_spanish(wish: Any, change: PackageChange) -> None:
    say = language("es")
    for m in (machine(), conda(), machine("gtx1080-linux"), machine(driver={"cuda": None})):
        written = registry.write(m, KB, change, wish)
        for text in filter(None, (written.manual, written.note)):
            left = re.split(r"(?<=\.) (?=[A-Z])", text)
            assert not [part for part in left if say.spoken(part) == part], text


def test_a_driver_that_conda_cannot_see_is_told_to_it() -> None:
    blind = factfile.from_plain(factfile.encode(conda()) | {"driver": {"loaded": False}})
    assert "CONDA_OVERRIDE_CUDA=12.6" in (registry.write(blind, KB, TO_CU126).note or "")
    assert "CONDA_OVERRIDE_CUDA" not in (registry.write(conda(), KB, TO_CU126).note or "")


def test_an_image_for_linux_never_takes_the_default_index_of_windows() -> None:
    """On Windows the default index has the CPU build; in an image it would bring CUDA."""
    cpu = PackageChange(install=("torch==2.14.1",), variant="cpu")
    text = registry.write(machine("rtx4090-windows"), KB, cpu, "docker").edits[0].what
    assert "--index-url https://download.pytorch.org/whl/cpu" in text
    same = registry.write(machine("rtx4090-windows"), KB, DEFAULT, "docker").edits[0].what
    assert same.splitlines()[-1] == "RUN pip install --no-cache-dir torch==2.14.1"


COPY = "https://ada:s3cret@mirror.example:8443/whl/cu118"
PIP_CONF, UV_TOML = "/home/ada/.config/pip/pip.conf", "/home/ada/.config/uv/uv.toml"


@pytest.mark.parametrize("url", [MIRROR, COPY, COPY.replace("cu118", "cu126")])
@pytest.mark.parametrize("origin", [PIP_CONF, UV_TOML, "PIP_INDEX_URL", "UV_INDEX"])
@pytest.mark.parametrize("tool", ["pip", "uv", "docker"])
def test_no_plan_shows_the_password_of_an_index(url: str, origin: str, tool: str) -> None:
    uv = [{"name": "uv", "path": "/usr/bin/uv"}]
    m = machine(python={"managers": uv, "index": {"url": url, "origin": origin}})
    for change in (DEFAULT, TO_CU126):
        assert "s3cret" not in repr(registry.write(m, KB, change, tool))


def test_a_copy_of_torchs_index_with_a_password_stays_a_setting_of_its_tool() -> None:
    m = machine(python={"index": {"url": COPY, "origin": PIP_CONF}})
    turned = "https://mirror.example:8443/whl/cu126"
    assert commands(m, TO_CU126)[-1][-2:] == ("--extra-index-url", turned)
    same = machine(python={"index": {"url": COPY.replace("cu118", "cu126"), "origin": PIP_CONF}})
    assert "index" not in repr(commands(same, TO_CU126)[-1])
    strange = machine(python={"index": {"url": COPY, "origin": UV_TOML}})
    written = registry.write(strange, KB, TO_CU126)
    assert written.commands[-1][-2:] == ("--index-url", turned)
    assert "~/.netrc" in (written.note or "")


def test_a_password_of_a_mirror_is_in_no_image() -> None:
    m = machine(python={"index": {"url": MIRROR, "origin": "/home/ada/.config/pip/pip.conf"}})
    for change in (DEFAULT, TO_CU126):
        assert "s3cret" not in repr(registry.write(m, KB, change, "docker"))
    open_one = machine(python={"index": {"url": "https://mirror.example/simple"}})
    assert "https://mirror.example/simple" in repr(registry.write(open_one, KB, DEFAULT, "docker"))


@pytest.mark.parametrize("python", [None, "~/venv/bin/python", "$PYTHON"])
def test_an_unknown_interpreter_is_the_readers_variable(python: str | None) -> None:
    assert commands(machine(python={"executable": python}), DEFAULT)[0][0] == "$PYTHON"


def test_a_dockerfile_begins_with_an_image_of_the_table_that_the_driver_accepts() -> None:
    written = registry.write(machine(), KB, TO_CU126, "docker")
    lines = written.edits[0].what.splitlines()
    assert lines[0] == "FROM nvidia/cuda:12.6.3-base-ubuntu24.04"
    assert lines[-1].endswith(f"torch==2.14.1 torchvision==0.29.1 --index-url {CU126}")
    old = machine(driver={"cuda": "12.2"})
    tag = docker.image_of(old, KB, TO_CU126)
    assert tag is not None and tag.name.startswith("nvidia/cuda:12.2")


def test_a_release_that_needs_a_newer_python_is_not_put_on_an_older_system() -> None:
    newest = msgspec.structs.replace(
        DEFAULT, install=("torch==2.15.0",), variant="cu132", cuda="13.2"
    )
    new = {"cuda": "13.3", "kernel": "615.71.09", "reported": "615.71.09", "library": "615.71.09"}
    tag = docker.image_of(machine(driver=new), KB, newest)
    assert tag is not None and tag.name.endswith("ubuntu24.04")
    assert tag.name.startswith("nvidia/cuda:13.2")


def test_an_image_goes_by_the_driver_and_not_by_a_table_of_another_machine() -> None:
    old = {"kernel": "535.183.01", "reported": "535.183.01", "library": "535.183.01"}
    for told in ("12.8", "12.2"):
        tag = docker.image_of(machine(driver={**old, "cuda": told}), KB, TO_CU126)
        assert tag is not None and str(tag.cuda) == "12.2"


def test_conda_pins_a_release_that_conda_forge_has() -> None:
    old = msgspec.structs.replace(TO_CU126, install=("torch==2.7.1",))
    assert "pytorch-gpu=2.7.1" in commands(conda(), old)[-1]
    assert "pytorch-gpu" in commands(conda(), TO_CU126)[-1]


def test_a_wish_for_a_cpu_build_is_pinned_in_the_channel_that_has_it() -> None:
    wish = PackageChange(install=("torch==2.2.2", "torchvision==0.17.2"), variant="cpu")
    argv = commands(conda(), wish)[-1]
    assert {"pytorch==2.2.2", "torchvision==0.17.2", "cpuonly"} <= set(argv)
    assert argv[argv.index("-c") + 1] == "pytorch"
    assert not any(word.startswith("pytorch-c") for word in argv)
    newer = msgspec.structs.replace(wish, install=("torch==2.7.1",))
    assert "pytorch-cpu=2.7.1" in commands(conda(), newer)[-1]
    numpy = PackageChange(install=("numpy<2",))
    assert "cpuonly" not in commands(conda(), numpy)[-1]


def test_conda_is_never_asked_for_a_cuda_that_conda_forge_lacks() -> None:
    newest = msgspec.structs.replace(DEFAULT, variant="cu132", cuda="13.2")
    assert "cuda-version>=13.0,<14" in commands(conda(), newest)[-1]

"""Commands and logs of installers, in the formats that each program prints."""

from __future__ import annotations

import pytest
from packaging.version import Version

from cudadoctor.knowledge import load
from cudadoctor.model.machine import Install, Machine
from cudadoctor.reports.reading import read_report

KB = load()


def machine(text: str) -> Machine:
    return read_report(text, KB)


def installs(text: str) -> tuple[Install, ...]:
    return machine(text).installs or ()


def only(text: str) -> Install:
    found = installs(text)
    assert len(found) == 1, found
    return found[0]


COMMANDS = {
    "pip install torch==2.1.0 torchvision --index-url https://download.pytorch.org/whl/cu118": (
        "pip",
        ("torch==2.1.0", "torchvision"),
        ("https://download.pytorch.org/whl/cu118",),
    ),
    "I tried `pip install torch` and then it failed with an error": ("pip", ("torch",), ()),
    "RUN pip3 install --no-cache-dir 'torch>=2.0,<3' && rm -rf /var/cache": (
        "pip",
        ("torch>=2.0,<3",),
        (),
    ),
    "$ python3.11 -m pip install -U torch \\\n    --extra-index-url https://x.org/whl/cu121": (
        "pip",
        ("torch",),
        ("https://x.org/whl/cu121",),
    ),
    "PS C:\\work> C:\\py\\python.exe -m pip install torch == 1.7.1+cu110 -f https://a.b/c.html": (
        "pip",
        ("torch==1.7.1+cu110",),
        ("https://a.b/c.html",),
    ),
    "uv pip install --system torch": ("uv", ("torch",), ()),
    "uv add torch --index pytorch=https://download.pytorch.org/whl/cu124": (
        "uv",
        ("torch",),
        ("pytorch=https://download.pytorch.org/whl/cu124",),
    ),
    "conda install pytorch==1.7.1 cudatoolkit=11.0 -c pytorch -c conda-forge -y": (
        "conda",
        ("pytorch==1.7.1", "cudatoolkit=11.0"),
        ("pytorch", "conda-forge"),
    ),
    "mamba create -n foo python=3.10 pytorch::pytorch cpuonly": (
        "mamba",
        ("python=3.10", "pytorch::pytorch", "cpuonly"),
        (),
    ),
    "poetry add torch@2.0.1 --source pytorch": ("poetry", ("torch@2.0.1",), ("pytorch",)),
    "!pip install flash-attn --no-build-isolation": ("pip", ("flash-attn",), ()),
    "pixi add pytorch-gpu": ("pixi", ("pytorch-gpu",), ()),
    "pipenv install torch": ("pipenv", ("torch",), ()),
}


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_is_read_in_its_parts(text: str) -> None:
    tool, wanted, indexes = COMMANDS[text]
    install = only(text)
    assert (install.tool, install.requirements, install.indexes) == (tool, wanted, indexes)


def test_a_log_belongs_to_the_command_before_it() -> None:
    install = only(
        "$ pip install torch==1.7.1+cu110 -f https://download.pytorch.org/whl/torch_stable.html\n"
        "Looking in links: https://download.pytorch.org/whl/torch_stable.html\n"
        "ERROR: Could not find a version that satisfies the requirement torch==1.7.1+cu110 (from "
        "versions: 1.11.0,\n 1.11.0+cpu, 1.12.0)\n"
        "ERROR: No matching distribution found for torch==1.7.1+cu110"
    )
    assert install.requirements == ("torch==1.7.1+cu110",)
    assert install.refused == "torch==1.7.1+cu110"
    assert install.offered == ("1.11.0", "1.11.0+cpu", "1.12.0")
    assert install.failed is True


REFUSALS = {
    "Could not find a version that satisfies the requirement torch>=1.0 (from fastai) (from "
    "versions: 0.1.2, 0.1.2.post1)\nNo matching distribution found for torch>=1.0 (from fastai)": (
        "torch>=1.0",
        ("0.1.2", "0.1.2.post1"),
    ),
    "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)": (
        "torch",
        (),
    ),
    "ERROR: No matching distribution found for torch==2.9.9": ("torch==2.9.9", None),
    "ERROR: Could not find a version that satisfies the requirement torch==1.4 (from -r "
    "requirements.txt (line 3)) (from versions: 2.0.0, 2.0.1)": ("torch==1.4", ("2.0.0", "2.0.1")),
    "No solution found: Because only the following versions of torch are available: torch==2.6.0+"
    "cu126 torch==2.7.0+cu126 and you require torch==2.5.0, we can conclude": (
        "torch==2.5.0",
        ("2.6.0+cu126", "2.7.0+cu126"),
    ),
    "Because there is no version of torch==2.99.0 and you require torch==2.99.0": (
        "torch==2.99.0",
        None,
    ),
    "Unable to find installation candidates for torch (2.0.1+cu118)\npoetry": (
        "torch==2.0.1+cu118",
        None,
    ),
    "PackagesNotFoundError: The following packages are not available from current channels:\n\n"
    "  - pytorch-cuda=12.6\n\nCurrent channels:\n\n  - https://conda.anaconda.org/a/linux-64": (
        "pytorch-cuda=12.6",
        (),
    ),
    "Could not solve for environment specs\nThe following package could not be installed\n"
    "└─ pytorch-cuda 12.6** does not exist (perhaps a typo or a missing channel).": (
        "pytorch-cuda=12.6",
        None,
    ),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_read_in_every_wording(text: str) -> None:
    refused, offered = REFUSALS[text]
    install = only(text)
    assert (install.refused, install.offered) == (refused, offered)


def test_uv_says_which_python_is_lacking_a_wheel() -> None:
    text = (
        "  × No solution found when resolving dependencies:\n"
        "  ╰─▶ Because torch==2.5.1+cu121 has no wheels with a matching Python ABI tag (e.g., "
        "`cp313`) and you require torch==2.5.1+cu121, we can conclude that your requirements are "
        "unsatisfiable.\n\n      hint: You require CPython 3.13 (`cp313`), but we only found "
        "wheels for `torch` (v2.5.1+cu121) with the following Python ABI tags: `cp39`, "
        "`cp310`, `cp312`\n"
    )
    install = only(text)
    assert (install.lacks, install.made_for) == ("python", ("cp39", "cp310", "cp312"))
    assert machine(text).python.version == Version("3.13")


def test_uv_says_which_platform_is_lacking_a_wheel() -> None:
    text = (
        "error: Distribution `torch==2.6.0+cu124 @ registry+https://download.pytorch.org/whl/cu124`"
        " can't be installed because it doesn't have a source distribution or wheel for the current"
        " platform\n\nhint: You're on macOS (`macosx_14_0_arm64`), but `torch` (v2.6.0+cu124) only"
        " has wheels for the following platforms: `linux_x86_64`, `win_amd64`"
    )
    found = machine(text)
    assert found.installs is not None
    assert found.installs[0].lacks == "platform"
    assert (found.platform.system, found.platform.machine) == ("Darwin", "arm64")
    assert found.torch.version is None


def test_what_a_log_put_there_is_installed() -> None:
    found = machine(
        "Downloading https://download.pytorch.org/whl/cu118/torch-2.1.0%2Bcu118-cp310-cp310-win_"
        "amd64.whl (2722.7 MB)\nSuccessfully installed filelock-3.9.0 torch-2.1.0+cu118"
    )
    assert found.torch.version == Version("2.1.0+cu118")
    assert (found.torch.build, found.torch.cuda) == ("cuda", Version("11.8"))
    assert (found.platform.system, found.python.version) == ("Windows", Version("3.10"))


def test_uv_puts_packages_with_a_plus_before_them() -> None:
    found = machine("Installed 2 packages in 3s\n + numpy==2.1.0\n + torch==2.5.1+cpu\nuv pip")
    assert found.torch.build == "cpu"
    assert found.package("torch") is not None


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("  pytorch  conda-forge/linux-64::pytorch-2.1.0-cpu_generic_py311h1f8ac0f_0", "cpu"),
        ("  pytorch-2.1.0  |  py3.11_cuda12.1_cudnn8.9.2_0   1.4 GB  pytorch", "cuda"),
    ],
)
def test_a_solver_of_conda_shows_the_build_it_chose(line: str, build: str) -> None:
    text = f"The following NEW packages will be INSTALLED by conda:\n{line}\n"
    assert machine(text).torch.build == build


def test_a_wheel_that_is_not_supported_is_a_refusal() -> None:
    install = only(
        "ERROR: torch-1.8.1+cu111-cp38-cp38-win_amd64.whl is not a supported wheel on this "
        "platform."
    )
    assert (install.refused, install.made_for) == ("torch==1.8.1+cu111", ("cp38", "win_amd64"))


def test_pip_names_the_python_that_a_package_refuses() -> None:
    text = "ERROR: Package 'torch' requires a different Python: 3.13.0 not in '>=3.8,<3.13'"
    assert only(text).lacks == "python"
    assert machine(text).python.version == Version("3.13.0")


def test_a_list_of_versions_may_be_cut_or_huge() -> None:
    many = ", ".join(f"1.{n}.{k}" for n in range(60) for k in range(40))
    head = (
        "ERROR: Could not find a version that satisfies the requirement torch==9 (from versions: "
    )
    assert len(only(head + many + ")").offered or ()) == 2400
    assert only(head + "1.11.0, 1.12.0, ...").offered == ("1.11.0", "1.12.0")


def test_text_without_installers_yields_no_installs() -> None:
    assert machine("RuntimeError: CUDA error: out of memory").installs is None


@pytest.mark.parametrize("seed", range(6))
def test_reading_ends_for_any_text(seed: int) -> None:
    pieces = (
        "pip install ",
        "- torch",
        "(from versions: ",
        "Because ",
        " == ",
        "\\\n",
        "'",
        "torch ",
    )
    text = "".join(pieces[(seed * 7 + n * n) % len(pieces)] for n in range(20_000))
    assert read_report(text, KB).look == "report"

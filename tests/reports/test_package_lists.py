"""Lists of packages of every tool -> distributions, and what they tell of torch."""

from __future__ import annotations

import pytest
from packaging.version import Version
from reader_fixtures import shown

from cudadoctor.model.machine import Machine

PIP_LIST = """\
Package                  Version      Editable project location
------------------------ ------------ -------------------------
certifi                  2023.7.22
mylib                    0.1          /home/ada/mylib
numpy                    1.26.4
nvidia-cudnn-cu12        8.9.2.26
pip                      23.2.1
torch                    2.1.0+cu121
torchvision              0.16.0+cu118
wheel                    0.41.2
"""
WITHOUT = """\
Package            Version
------------------ ---------
certifi            2023.7.22
charset-normalizer 3.3.2
idna               3.4
numpy              1.26.4
pillow             10.1.0
pip                23.2.1
requests           2.31.0
setuptools         65.5.0
tqdm               4.66.1
"""
CONDA = """\
# packages in environment at /home/ada/miniconda3/envs/lab:
#
# Name                    Version                   Build  Channel
cudatoolkit               11.3.1               h2bc3f7f_2
numpy                     1.21.2           py38h20f2e39_0
openssl                   1.1.1w               h7f8727e_0
pytorch                   1.10.0          {build}    pytorch
torchmetrics              0.6.0                    pypi_0    pypi
"""


def version(m: Machine, name: str) -> str | None:
    package = m.package(name)
    return package.version if package else None


def test_pip_list_with_its_head_is_read() -> None:
    m = shown(PIP_LIST)
    assert (m.torch.text, m.torch.build, m.torch.cuda) == ("2.1.0+cu121", "cuda", Version("12.1"))
    vision, mine = m.package("torchvision"), m.package("mylib")
    assert vision is not None
    assert vision.cuda == Version("11.8")
    assert mine is not None
    assert mine.location == "/home/ada/mylib"


def test_a_whole_list_without_torch_says_that_it_is_not_there() -> None:
    assert shown(WITHOUT).torch.installed is False


def test_a_list_that_was_cut_says_nothing_of_what_it_lacks() -> None:
    assert shown("\n".join(WITHOUT.splitlines()[:7])).torch.installed is None
    assert shown(WITHOUT.replace("requests", "pytorch-lightning")).torch.installed is None


@pytest.mark.parametrize(
    ("build", "kind", "cuda"),
    [
        ("py3.8_cuda11.3_cudnn8.2.0_0", "cuda", "11.3"),
        ("py36_cuda9.0.176_cudnn7.1.2_1", "cuda", "9.0"),
        ("cuda112py38he33e0d6_200", "cuda", "11.2"),
        ("gpu_cuda118py38h75028e0_0", "cuda", "11.8"),
        ("cpu_mkl_py311h5cc1f6f_100", "cpu", None),
        ("py3.8_cpu_0", "cpu", None),
    ],
)
def test_the_build_of_conda_tells_cuda_or_cpu(build: str, kind: str, cuda: str | None) -> None:
    m = shown(CONDA.format(build=build))
    assert (m.torch.build, m.torch.cuda) == (kind, Version(cuda) if cuda else None)
    assert (m.torch.version, m.torch.installer) == (Version("1.10.0"), "conda")
    assert version(m, "torchmetrics") == "0.6.0"


def test_rows_that_were_picked_out_of_a_list_are_read() -> None:
    m = shown("$ pip list | grep torch\ntorch                2.0.1\ntorchaudio           2.0.2\n")
    assert (m.torch.version, version(m, "torchaudio")) == (Version("2.0.1"), "2.0.2")
    conda = shown("pytorch 1.12.1 py3.9_cuda11.6_cudnn8.3.2_0 pytorch")
    assert conda.torch.cuda == Version("11.6")


def test_freeze_and_its_addresses_are_read() -> None:
    m = shown(
        "$ pip freeze\nnumpy==1.24.1\nnvidia-nccl-cu12==2.18.1\n"
        "torch @ "
        "https://download.pytorch.org/whl/cu121/torch-2.1.0%2Bcu121-cp310-cp310-linux_x86_64.whl"
        "\n"
        "torchvision @ file:///tmp/torchvision-0.16.0+cu121-cp310-cp310-linux_x86_64.whl#sha256=0\n"
        "mkl-fft @ file:///croot/mkl_fft_1695058164594/work\n"
    )
    assert (m.torch.text, version(m, "torchvision")) == ("2.1.0+cu121", "0.16.0+cu121")
    assert m.package("mkl-fft") is None


def test_an_exported_environment_is_read() -> None:
    m = shown(
        "dependencies:\n  - pytorch=1.9.0=py3.9_cuda11.1_cudnn8.0.5_0\n  - pip:\n    - tqdm==4.1\n"
    )
    assert (m.torch.version, m.torch.cuda) == (Version("1.9.0"), Version("11.1"))


def test_trees_and_poetry_are_read() -> None:
    assert shown("├── torch v2.3.1\n│   └── triton v2.3.1").torch.version == Version("2.3.1")
    poetry = "$ poetry show\ntorch       2.2.0   Tensors and dynamic neural networks\n"
    assert shown(poetry).torch.version == Version("2.2.0")


def test_a_requirement_alone_is_weaker_than_a_list() -> None:
    m = shown("my requirements.txt:\ntorch==1.7.1\n\n" + PIP_LIST)
    assert m.torch.version == Version("2.1.0+cu121")


def test_wheels_of_extensions_name_their_torch() -> None:
    m = shown("$ pip list\nflash-attn   2.5.8+cu12torch2.3cxx11abifalse\nnumpy   1.26.0\n")
    package = m.package("flash-attn")
    assert package is not None
    assert (package.torch, package.cuda) == (Version("2.3"), Version("12"))
    m = shown("[pip3] torch==2.6.0+cu124\n[pip3] torch_scatter==2.1.2+pt22cu121\n")
    package = m.package("torch-scatter")
    assert package is not None
    assert (package.torch, package.cuda) == (Version("2.2"), Version("12.1"))


def test_pip_show_tells_place_and_absence() -> None:
    m = shown(
        "Name: torch\nVersion: 2.0.1\nSummary: x\n"
        "Location: /opt/venv/lib/python3.10/site-packages\n"
    )
    assert m.torch.path == "/opt/venv/lib/python3.10/site-packages/torch"
    assert shown("WARNING: Package(s) not found: torch").torch.installed is False


def test_a_lock_tells_what_its_tool_installs() -> None:
    entry = '[[package]]\nname = "{}"\nversion = "{}"\noptional = false\n\n'
    m = shown("poetry.lock:\n" + entry.format("Torch", "2.7.1") + entry.format("vllm", "0.9.2"))
    assert str(m.torch.version) == "2.7.1"
    assert {package.name: package.version for package in m.packages or ()}["vllm"] == "0.9.2"
    assert shown('[project]\nname = "torch-course"\nversion = "0.1"\n').packages is None


@pytest.mark.parametrize(
    "text",
    [
        "I tried torch 2.0 and 2.1",
        "torch 1.13 is what I want",
        "nvidia_uvm   1527808  0",
        "step 3  1.5",
    ],
)
def test_prose_and_other_tables_are_no_lists(text: str) -> None:
    assert shown(text).packages is None


def test_the_plugin_of_jax_is_read_from_its_extra() -> None:
    m = shown(
        'dependencies = [\n  "torch==2.7.1",\n  "jax[cuda12]==0.6.2",\n  "numpy==2.2.6",\n]\n'
    )
    names = {package.name: package.version for package in m.packages or ()}
    assert names["jax-cuda12-plugin"] == "0.6.2"
    assert m.platform.system == "Linux"
    assert shown("torch==2.7.1\njax==0.6.2\n").platform.system is None

"""The least change of what stands beside torch, in the words of the environment's own installer."""

from __future__ import annotations

import pytest

from cudadoctor import knowledge
from cudadoctor.model.findings import Step
from cudadoctor.model.trust import foreign
from cudadoctor.pipeline import judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()
SYMBOL = "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcE"


def on(torch: str, cuda: str, *packages: str, gpu: str = "NVIDIA A100-SXM4-80GB") -> str:
    rows = "".join(f"[pip3] {package}\n" for package in packages)
    return (
        f"PyTorch version: {torch}\nCUDA used to build PyTorch: {cuda}\n"
        "OS: Ubuntu 22.04.5 LTS (x86_64)\nPython version: 3.11.9 (main) (64-bit runtime)\n"
        f"Is CUDA available: True\nGPU models and configuration: GPU 0: {gpu}\n"
        f"Nvidia driver version: 580.95.05\n[pip3] torch=={torch}\n{rows}"
    )


def first(text: str) -> Step:
    return judge(foreign(read_report(text, KB))).plan.steps[0]


def typed(text: str) -> list[str]:
    return [" ".join(argv) for argv in first(text).commands]


# --- the nearest release ------------------------------------------------------------------------

FLASH = f"ImportError: /v/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: {SYMBOL}"


@pytest.mark.parametrize(
    ("torch", "cuda", "present", "comes", "abi"),
    [
        # The wheels of 2.8 for torch 2.6 load with its build for CUDA 12.6 alone.
        ("2.6.0+cu124", "12.4", "2.8.3", "2.7.4.post1", "FALSE"),
        ("2.6.0+cu126", "12.6", "2.8.3", "2.8.3", "TRUE"),
        ("2.6.0+cu124", "12.4", "2.7.4.post1", "2.7.4.post1", "FALSE"),
        ("2.8.0+cu128", "12.8", "2.7.4.post1", "2.8.3", "TRUE"),
        ("2.4.1+cu121", "12.1", "2.5.8", "2.6.3", "FALSE"),
    ],
)
def test_flash_attn_is_of_the_nearest_release_with_a_wheel(
    torch: str, cuda: str, present: str, comes: str, abi: str
) -> None:
    step = first(f"{on(torch, cuda, f'flash-attn=={present}')}{FLASH}\n")
    assert step.packages and step.packages.install == (f"flash-attn=={comes}",)
    # Of the same number pip would keep what is there.
    assert ("flash-attn" in step.packages.remove) is (comes == present)
    assert f"cxx11abi{abi}" in (step.note or "")


BITSANDBYTES = "RuntimeError: CUDA Setup failed despite GPU being available.\n"


@pytest.mark.parametrize(
    ("present", "comes"),
    # Windows has wheels from 0.43 on.
    [("bitsandbytes   0.41.3\n", "0.43.3"), ("pip install bitsandbytes==0.42.0\n", "0.43.3")],
)
def test_bitsandbytes_is_of_the_nearest_release_for_the_system(present: str, comes: str) -> None:
    text = f"Windows 11, RTX 3060, Python 3.10\ntorch    2.1.2+cu118\n{present}{BITSANDBYTES}"
    step = first(text)
    assert step.packages and step.packages.install == (f"bitsandbytes=={comes}",)


@pytest.mark.parametrize(
    ("exported", "unset"), [("export BNB_CUDA_VERSION=126\n", True), ("", False)]
)
def test_what_chose_another_build_is_unset(exported: str, *, unset: bool) -> None:
    missing = "Could not find the bitsandbytes CUDA binary at 'libbitsandbytes_cuda128.so'\n"
    step = first(
        on("2.7.0+cu128", "12.8", "bitsandbytes==0.45.0") + missing + BITSANDBYTES + exported
    )
    assert step.packages and step.packages.install == ("bitsandbytes==0.45.5",)
    assert dict(step.variables) == ({"BNB_CUDA_VERSION": None} if unset else {})


@pytest.mark.parametrize(
    ("torch", "comes"),
    [
        ("2.5.1+cu124", "3.1.0.post17"),
        ("2.7.1+cu128", "3.3.1.post21"),
        ("2.9.1+cu130", "3.5.1.post24"),
    ],
)
def test_triton_for_windows_is_of_the_minor_release_of_torch(torch: str, comes: str) -> None:
    error = "ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler'"
    text = f"Windows 11, RTX 4080, Python 3.12\ntorch   {torch}\ntriton-windows   3.2.0.post18\n{error}"
    step = first(text)
    assert step.packages and step.packages.install == (f"triton-windows=={comes}",)


def test_triton_for_windows_without_torchs_release_is_no_command() -> None:
    error = "ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler'"
    step = first(f"Windows 11, RTX 4080, Python 3.12\n{error}\n")
    assert not step.commands and "3.1 for torch 2.5" in (step.manual or "")


def test_all_parts_of_pyg_of_the_other_torch_come_along() -> None:
    parts = ("torch_cluster==1.6.3", "torch_scatter==2.1.2", "torch_sparse==0.6.18")
    error = f"torch_scatter/_version_cuda.so: {SYMBOL}\n"
    listed = on("2.3.1+cu121", "12.1", *(f"{part}+pt22cu121" for part in parts))
    step = first(listed.replace(" (x86_64)", "") + error)
    assert step.packages is not None
    assert {*step.packages.install} == {f"{part.replace('_', '-')}+pt23cu121" for part in parts}
    # One that is for this torch already stays.
    fits = listed.replace("torch_sparse==0.6.18+pt22", "torch_sparse==0.6.18+pt23")
    step = first(fits + error)
    assert step.packages and not any("sparse" in line for line in step.packages.install)


# --- the installer of the environment -----------------------------------------------------------

LATER = on("2.10.0+cu128", "12.8", "sglang==0.5.9", "torchaudio==2.9.1", "torchvision==0.25.0")


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("I ran `uv pip install -U torch` in it.", "uv pip"),
        ("uv venv --python 3.11", "uv pip"),
        ("RUN uv pip install --system torch", "python -m pip"),
        ("In my conda env I ran uv pip install -U torch.", "python -m pip"),
        ("I know of uv but use pip.", "python -m pip"),
    ],
)
def test_an_environment_of_uv_has_no_pip(words: str, program: str) -> None:
    commands = typed(f"{LATER}{words}\n")
    assert all(line.replace("$PYTHON", "python").startswith(program) for line in commands)
    assert ("--python" in " ".join(commands)) is False


UV = """[tool.uv.sources]
torch = [{ index = "pytorch-cpu" }]
[[tool.uv.index]]
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
explicit = true
"""
POETRY = """[tool.poetry.dependencies]
torch = { version = "2.10.0", source = "pytorch-cpu" }
[[tool.poetry.source]]
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
priority = "explicit"
"""
WITHOUT_GPU = """Ubuntu 22.04 x86_64, Tesla T4, driver 535.230.02, Python 3.11
torch   2.10.0+cpu
torchvision   0.25.0
torch.cuda.is_available() is False
"""


@pytest.mark.parametrize(
    ("file", "lines", "command"),
    [
        (UV, ('torchvision = [{ index = "pytorch-cu128" }]', "explicit = true"), "uv sync"),
        (POETRY, ('source = "pytorch-cu128"',), "poetry update torch torchvision"),
        ("uv sync\n", (), "uv sync"),
    ],
)
def test_the_index_that_the_project_names_is_replaced(
    file: str, lines: tuple[str, ...], command: str
) -> None:
    step = first(WITHOUT_GPU + file)
    (edit,) = step.edits
    assert [" ".join(argv) for argv in step.commands] == [command]
    assert all(line in edit.what for line in lines)
    assert ("download.pytorch.org/whl/cu128" in edit.what) is bool(lines)


def test_a_list_of_conda_shows_the_environment() -> None:
    rows = "pytorch        2.3.0      py3.10_cpu_0    pytorch\n"
    text = "Ubuntu 22.04 x86_64, RTX 3080, driver 535.129.03, Python 3.10\n$ conda list\n" + rows
    assert typed(f"{text}torch.cuda.is_available() is False\n")[-1].startswith("conda install")


# --- a new environment keeps what was asked for -------------------------------------------------

REFUSED = """$ pip install -r requirements.txt
ERROR: Could not find a version that satisfies the requirement torch==2.4.1 (from versions: 2.6.0)
ERROR: No matching distribution found for torch==2.4.1
Python 3.13.1 on Ubuntu 24.04 x86_64, NVIDIA RTX 4090, driver 550.120

"""
PINS = "torch==2.4.1\ndiffusers==0.31.0\nnumpy==1.26.4\nour-own-tool==1.0\n"


@pytest.mark.parametrize(
    "head", ["requirements.txt:\n", "--extra-index-url https://example.org/x\n"]
)
def test_a_new_environment_has_every_pin_of_the_file(head: str) -> None:
    step = first(f"{REFUSED}{head}{PINS}\nthanks!\nscipy==1.11.4\n")
    words = [word for argv in step.commands for word in argv]
    assert {"diffusers==0.31.0", "numpy==1.26.4"} <= {*words}
    # A stranger's project is installed by nobody's plan, and what stands elsewhere is no pin.
    assert not any(word.startswith(("our-own", "scipy", "numpy<")) for word in words)
    assert "the rest of your requirements file" in (step.note or "")


def test_pins_without_torch_are_of_something_else() -> None:
    step = first(REFUSED + "requirements-dev.txt:\npandas==2.2.0\n\n")
    assert not any("pandas" in word for argv in step.commands for word in argv)


# --- what is there already is no cure -----------------------------------------------------------


def test_the_build_that_is_there_is_not_installed_again() -> None:
    error = "RuntimeError: The NVIDIA driver on your system is too old (found version 12000).\n"
    text = "Ubuntu 22.04, RTX 2080 Ti, driver 525.60.13, Python 3.10\ntorch   2.8.0+cu128\n"
    steps = judge(foreign(read_report(text + error, KB))).plan.steps
    assert not any(step.packages for step in steps)


def test_what_must_move_with_a_program_ends_before_the_next_release() -> None:
    no_kernel = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    listed = on("2.5.1+cu124", "12.4", "vllm==0.6.4", "transformers==4.46.0", gpu="NVIDIA B200")
    step = first(f"{listed}{no_kernel}\n")
    assert step.packages and "transformers>=4.55.0,<4.56" in step.packages.then


def test_what_only_an_error_names_comes_along_with_what_its_version_shows() -> None:
    listed = on("2.5.1+cu124", "12.4", "torch_scatter==2.1.2+pt24cu124", "flash-attn==2.7.2.post1")
    step = first(f"{listed}{FLASH}\n")
    assert step.packages and {*step.packages.install} == {
        "torch-scatter==2.1.2+pt25cu124",
        "flash-attn==2.7.2.post1",
    }
    step = first(listed)
    assert step.packages and step.packages.install == ("torch-scatter==2.1.2+pt25cu124",)


def test_a_program_that_was_only_asked_for_is_refused_as_well() -> None:
    no_kernel = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    text = "GTX 1080 Ti, Ubuntu 22.04 x86_64, driver 550.120, Python 3.10, torch 2.7.0+cu126\n"
    step = first(f"{text}$ pip install vllm==0.9.2\n{no_kernel}\n")
    assert step.id == "other-gpu" and not step.commands
    served = text.replace("1080 Ti", "1630") + f"$ pip install vllm==0.9.2\n{no_kernel}\n"
    steps = judge(foreign(read_report(served, KB))).plan.steps
    assert all(step.id != "other-gpu" for step in steps)


@pytest.mark.parametrize("processor", [" (x86_64)", ""])
def test_what_a_program_pins_for_one_processor_counts_where_none_is_named(processor: str) -> None:
    no_kernel = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    present = ("vllm==0.6.4", "transformers==4.46.0", "xformers==0.0.28.post2")
    listed = on("2.5.1+cu124", "12.4", *present, gpu="NVIDIA B200").replace(" (x86_64)", processor)
    step = first(f"{listed}{no_kernel}\n")
    # vllm 0.10.1.1 pins it exactly, though there is a later build for the same torch.
    assert step.packages and "xformers==0.0.31" in step.packages.install

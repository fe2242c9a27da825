"""What the author of a report asks for in words, and what the plan makes of it."""

from __future__ import annotations

import pytest

from cudadoctor import knowledge
from cudadoctor.model.findings import Step
from cudadoctor.model.machine import AUTHOR, BEFORE
from cudadoctor.model.trust import foreign
from cudadoctor.pipeline import judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()

ENV = """PyTorch version: 2.6.0+cu124
CUDA used to build PyTorch: 12.4
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.11.9 (main, Apr  6 2024, 17:59:24) [GCC 11.4.0] (64-bit runtime)
GPU models and configuration: GPU 0: NVIDIA GeForce RTX 5090
Nvidia driver version: 575.57.08

RuntimeError: CUDA error: no kernel image is available for execution on the device

[pip3] torch==2.6.0+cu124
"""
SERVING = "[pip3] vllm==0.8.5\n[pip3] transformers==4.51.3\n[pip3] numpy==1.26.4\n"


def asked(text: str, name: str = AUTHOR) -> tuple[str, ...]:
    files = read_report(f"{ENV}{SERVING}\n{text}\n", KB).python.files or ()
    return next((file.requires for file in files if file.name == name), ())


def first_step(*parts: str) -> Step:
    return judge(foreign(read_report("\n".join((ENV, *parts)), KB))).plan.steps[0]


def installed(step: Step) -> tuple[str, ...]:
    return (*step.packages.install, *step.packages.then) if step.packages else ()


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("We must stay on vllm==0.6.6.post1 because of a fork.", "vllm==0.6.6.post1"),
        ("I need torch 2.6 for our checkpoints.", "torch==2.6.*"),
        ("Please keep torch at 2.4.1, the cluster has it.", "torch==2.4.1"),
        ("I have to stay on PyTorch 2.5.1.", "torch==2.5.1"),
        ("We are stuck on torch 2.4 for now.", "torch==2.4.*"),
        ("Note that vllm has to remain on 0.8.5.", "vllm==0.8.5"),
        ("Our model requires transformers 4.46.3.", "transformers==4.46.3"),
        ("My code needs torch<=2.5", "torch<=2.5"),
        ("I can't upgrade transformers.", "transformers<=4.51.3"),
        ("Can this be cured without upgrading torch?", "torch<=2.6.0"),
        ("transformers must stay as it is", "transformers==4.51.3"),
        ("We cannot change the vllm version.", "vllm==0.8.5"),
    ],
)
def test_a_release_that_must_stay_is_a_requirement(text: str, requirement: str) -> None:
    assert asked(text) == (requirement,)


@pytest.mark.parametrize(
    "text",
    [
        "vllm requires torch==2.6.0",
        "Do I need torch 2.6?",
        "Should I use torch 2.7?",
        "You must use torch 2.7 for that.",
        "I don't need torch 2.6 at all.",
        "I want to upgrade to torch 2.9.",
        "torchvision 0.21.0 requires torch 2.6.0, but you have torch 2.7.0.",
        "I need to stay on CUDA 12.4 and on Python 3.10.",
        "I cannot upgrade pip.",
        "We cannot change the tokenizers version.",  # Which one is there, nobody knows.
    ],
)
def test_what_programs_and_advice_say_is_none(text: str) -> None:
    assert asked(text) == ()


def test_a_package_of_which_no_release_was_found_could_only_not_be_upgraded() -> None:
    refused = "$ pip install torch==9.9\nERROR: No matching distribution found for torch==9.9\n"
    assert asked(f"I can't upgrade torch.\n{refused}") == ()


@pytest.mark.parametrize(
    "text",
    [
        "It was xformers 0.0.33.post1 before the upgrade and worked.",
        "I upgraded xformers from 0.0.33.post1 to 0.0.35.",
        "Previously I had xformers 0.0.33.post1 and all was well.",
        "It worked with xformers 0.0.33.post1.",
    ],
)
def test_what_worked_before_is_no_requirement(text: str) -> None:
    assert asked(text) == ()
    assert asked(text, BEFORE) == ("xformers==0.0.33.post1",)


# --- what the plan makes of it ------------------------------------------------------------------


def test_the_build_is_of_the_release_that_was_asked_for() -> None:
    assert installed(first_step())[0] == "torch==2.7.1"
    assert installed(first_step("We have to stay on torch 2.8.0."))[0] == "torch==2.8.0"


def test_the_nearer_program_is_taken_that_keeps_what_is_shared() -> None:
    step = first_step(SERVING)
    assert (installed(step)[0], installed(step)[-1]) == ("torch==2.7.0", "vllm==0.9.2")
    # Where every release needs another one, that is said and done.
    step = first_step(SERVING.replace("4.51.3", "4.49.0"))
    assert installed(step)[-2:] == ("vllm==0.10.1.1", "transformers>=4.55.0,<4.56")
    assert "transformers 4.49.0 will be replaced as well" in (step.note or "")
    assert step.commands


def test_what_cannot_be_kept_is_named() -> None:
    step = first_step(SERVING, "Must stay on vllm==0.8.5.", "We must stay on vllm==0.8.5.")
    assert "You asked for vllm==0.8.5; with torch 2.7.0, that is not possible." in (step.note or "")
    assert "You asked" not in (first_step(SERVING, "I can't upgrade transformers.").note or "")


def test_a_companion_goes_back_to_the_release_that_worked_before() -> None:
    broken = ENV.replace("2.6.0+cu124", "2.9.0+cu128").replace("12.4", "12.8")
    broken += "[pip3] xformers==0.0.32.post2\n"
    for said, release in (("", "0.0.33.post1"), ("It was xformers 0.0.33 before.", "0.0.33")):
        steps = judge(foreign(read_report(f"{broken}{said}", KB))).plan.steps
        assert f"xformers=={release}" in [pin for step in steps for pin in installed(step)]
    # What fits no more is no way back.
    steps = judge(foreign(read_report(f"{broken}It worked with xformers 0.0.29.", KB))).plan.steps
    assert "xformers==0.0.33.post1" in [pin for step in steps for pin in installed(step)]


# --- a new environment ----------------------------------------------------------------------------

REFUSED = """{where}
$ pip install {wanted}
ERROR: Could not find a version that satisfies the requirement {torch} (from versions: 2.9.0, 2.9.1)
ERROR: No matching distribution found for {torch}
"""


@pytest.mark.parametrize(
    ("torch", "beside", "python", "comes"),
    [
        # The nearest Python that torch has a wheel for ...
        ("torch==2.6.0", "torchvision", "3.13", ("torchvision==0.21.0",)),
        # ... and the nearest that all have one for.
        ("torch==2.6.0", "xformers==0.0.29.post2", "3.12", ("xformers==0.0.29.post2",)),
        ("torch==2.6.0", "bitsandbytes vllm", "3.12", ("vllm==0.8.5.post1",)),
        ("torch==2.8.0", "xformers", "3.13", ("xformers==0.0.32.post2",)),
        ("torch==2.4.1", "torchvision torchaudio", "3.12", ("torchaudio==2.4.1",)),
        # What vllm 0.8.3 itself takes is no help where the xformers that it pins has no wheel.
        ("torch==2.6.0", "vllm==0.8.3", "3.12", ("vllm==0.8.3",)),
        # Nobody knows of this one which Pythons it takes.
        ("torch==2.6.0", "unheard-of", "3.13", ()),
    ],
)
def test_a_new_environment_has_a_python_for_all_that_is_wanted(
    torch: str, beside: str, python: str, comes: tuple[str, ...]
) -> None:
    where = "Python 3.14.0 on Ubuntu 24.04 x86_64, NVIDIA RTX 4090, driver 580.95.05"
    text = REFUSED.format(where=where, wanted=f"{torch} {beside}", torch=torch)
    step = judge(foreign(read_report(text, KB))).plan.steps[0]
    assert step.title == f"Create a new environment with Python {python}"
    words = [word.partition("+")[0] for argv in step.commands for word in argv]
    assert {torch, *comes} <= {*words}
    assert "unheard-of" not in words


def test_the_index_of_a_new_environment_is_that_of_its_build() -> None:
    where = "Windows 11 x86_64, Python 3.13.5, NVIDIA RTX 3060, driver 566.36"
    text = REFUSED.format(where=where, wanted="torch==2.4.1 xformers", torch="torch==2.4.1")
    step = judge(foreign(read_report(text, KB))).plan.steps[0]
    last = step.commands[-1]
    assert step.title == "Create a new environment with Python 3.12"
    variant = next(word for word in last if word.startswith("torch==")).partition("+")[2]
    assert last[-1].endswith(f"/whl/{variant}")
    assert "xformers==0.0.28.post1" in last


# --- extensions of another torch -----------------------------------------------------------------

ON_H100 = """PyTorch version: 2.9.1+cu128
CUDA used to build PyTorch: 12.8
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.11.9 (64-bit runtime)
GPU 0: NVIDIA H100 80GB HBM3
Nvidia driver version: 575.57.08
[pip3] torch==2.9.1+cu128
"""
SYMBOL = "undefined symbol: _ZN3c104cuda9SetDeviceEi"


@pytest.mark.parametrize(
    ("package", "text", "command"),
    [
        (
            "torch_tensorrt==2.8.0",
            f"OSError: /venv/lib/torch_tensorrt/lib/libtorchtrt.so: {SYMBOL}",
            "torch-tensorrt==2.9.0",
        ),
        # Its library alone tells whose it is.
        ("torch_tensorrt==2.8.0", f"OSError: libtorchtrt.so: {SYMBOL}", "torch-tensorrt==2.9.0"),
        (
            "transformer_engine==2.5.0\n[pip3] transformer_engine_torch==2.5.0",
            f"ImportError: /venv/transformer_engine_torch.cpython-311-x86_64-linux-gnu.so: {SYMBOL}",
            "--no-build-isolation --no-cache-dir transformer-engine[pytorch]==2.5.0",
        ),
    ],
)
def test_an_extension_of_another_torch_comes_for_this_one(
    package: str, text: str, command: str
) -> None:
    found = judge(foreign(read_report(f"{ON_H100}[pip3] {package}\n{text}\n", KB)))
    assert [finding.cause for finding in found.diagnosis.roots] == ["torch-extension-abi"]
    step = found.plan.steps[0]
    assert " ".join(step.commands[-1]).endswith(command)
    assert not any(word.startswith("torch==") for argv in step.commands for word in argv)


def test_what_is_built_with_an_extension_goes_with_it() -> None:
    """pip keeps the part of the same release, which is the one that does not load."""
    text = f"[pip3] transformer_engine==2.5.0\nImportError: transformer_engine_torch.so: {SYMBOL}"
    step = first_of(f"{ON_H100}{text}\n")
    assert "transformer-engine-torch" in step.commands[0]
    assert "nvcc" in (step.note or "")


def test_extensions_come_along_with_another_torch() -> None:
    listed = "[pip3] torch_tensorrt==2.6.0\n[pip3] transformer_engine==1.13.0\n"
    assert installed(first_step(listed))[-1] == "torch-tensorrt==2.7.0"
    # Where no nvcc of that CUDA is at hand, what was compiled for the old torch goes.
    assert "transformer-engine 1.13.0 will be removed" in (first_step(listed).note or "")
    step = first_step(listed, "CUDA runtime version: 12.8.93")
    assert installed(step)[-1] == "transformer-engine[pytorch]==1.13.0"
    # Within its minor release it stays.
    same = ON_H100.replace("2.9.1+cu128", "2.9.0+cpu").replace("12.8\n", "None\n", 1)
    step = first_of(f"{same}[pip3] torch_tensorrt==2.9.0\nAssertionError: {NO_CUDA}\n")
    assert not any("tensorrt" in pin for pin in installed(step))


NO_CUDA = "Torch not compiled with CUDA enabled"


def first_of(text: str) -> Step:
    return judge(foreign(read_report(text, KB))).plan.steps[0]


# --- nightly builds of torch ---------------------------------------------------------------------

NIGHTLY = ON_H100.replace("2.9.1+cu128", "2.9.0.dev20250715+cu128")


@pytest.mark.parametrize(
    ("package", "text"),
    [
        ("torchvision==0.22.1", "RuntimeError: operator torchvision::nms does not exist"),
        ("torchaudio==2.8.0.dev20250701+cu128", f"OSError: libtorchaudio.so: {SYMBOL}"),
        ("xformers==0.0.31", f"ImportError: xformers/_C.so: {SYMBOL}"),
        ("vllm==0.9.2", f"ImportError: vllm/_C.abi3.so: {SYMBOL}"),
    ],
)
def test_beside_a_nightly_everything_goes_to_releases(package: str, text: str) -> None:
    found = judge(foreign(read_report(f"{NIGHTLY}[pip3] {package}\n{text}\n", KB)))
    assert found.plan.steps
    for step in found.plan.steps:
        pins = installed(step)
        assert not pins or pins[0].startswith("torch==2.")
        assert not any("dev" in pin for pin in pins)


def test_an_extension_of_a_nightly_is_none_of_the_release_of_its_number() -> None:
    listed = "[pip3] torchvision==0.24.0.dev20250715+cu128\n[pip3] xformers==0.0.32.dev1072\n"
    text = "RuntimeError: operator torchvision::nms does not exist\n"
    step = first_of(f"{NIGHTLY}{listed}{text}")
    assert installed(step) == ("torch==2.9.0", "torchvision==0.24.0", "xformers==0.0.33.post1")
    assert "xformers" in step.commands[0]
    # Beside a release of torch, its own companion is enough.
    release = NIGHTLY.replace("2.9.0.dev20250715+", "2.9.0+")
    assert installed(first_of(f"{release}[pip3] torchvision==0.22.1\n{text}"))[0] == (
        "torchvision==0.24.0"
    )


def test_what_is_compiled_against_torch_does_not_move_a_nightly() -> None:
    text = f"[pip3] flash_attn==2.8.0.post2\nImportError: flash_attn_2_cuda.so: {SYMBOL}\n"
    assert not installed(first_of(NIGHTLY + text))


# --- programs that this GPU, or this torch, does not serve ---------------------------------------

ON_PASCAL = ON_H100.replace("H100 80GB HBM3", "GeForce GTX 1080 Ti")


def test_torch_does_not_move_for_a_program_that_never_runs_on_the_gpu() -> None:
    no_kernel = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    older = ON_PASCAL.replace("2.9.1+cu128", "2.8.0+cu128")
    step = first_of(f"{older}[pip3] vllm==0.12.0\n{no_kernel}\n")
    assert step.id == "other-gpu" and not step.commands
    assert "vllm needs a GPU with compute capability 7.0" in (step.manual or "")
    assert "torch 2.8.0 (cu126) does run on them" in (step.manual or "")
    # On a GPU that it serves, torch is the one that it requires.
    refused = f"[pip3] vllm==0.12.0\nImportError: vllm/_C.abi3.so: {SYMBOL}\n"
    served = ON_H100.replace("2.9.1+cu128", "2.8.0+cu128")
    assert installed(first_of(served + refused))[0] == "torch==2.9.0"
    older = ON_PASCAL.replace("2.9.1+cu128", "2.8.0+cu126").replace("12.8\n", "12.6\n")
    step = first_of(older + refused)
    assert step.id == "other-gpu" and not step.commands


def test_what_refuses_the_torch_that_stays_goes_with_it() -> None:
    no_kernel = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    volta = ON_H100.replace("H100 80GB HBM3", "Tesla V100-SXM2-16GB")
    listed = "[pip3] torchaudio==2.9.1\n[pip3] torchcodec==0.8.1\n[pip3] pyannote.audio=={}\n"
    step = first_of(f"{volta}{listed.format('4.0.3')}{no_kernel}\n")
    assert installed(step) == ("pyannote-audio==4.0.7",)
    steps = judge(
        foreign(read_report(f"{volta}{listed.format('4.0.7')}{no_kernel}\n", KB))
    ).plan.steps
    assert not any(map(installed, steps))
    # Of another CUDA it is torch that goes, and its companions to what the program pins.
    newer = volta.replace("cu128", "cu130").replace("12.8\n", "13.0\n").replace("575.57", "580.95")
    pins = installed(first_of(f"{newer}{listed.format('4.0.3')}{no_kernel}\n"))
    assert pins == ("torch==2.8.0", "torchaudio==2.8.0", "torchcodec==0.7.0")


@pytest.mark.parametrize(
    ("line", "tool", "command"),
    [
        ("$ uv sync", "uv", "uv sync"),
        ("[tool.poetry.dependencies]", "poetry", "poetry update torch"),
        ("$ pdm install", "pdm", "pdm update torch"),
        ("$ uv pip install torch", None, "install torch==2.6.0"),
    ],
)
def test_a_project_is_changed_by_its_own_tool(line: str, tool: str | None, command: str) -> None:
    text = f"{line}\nPython 3.12, Linux x86_64, Tesla T4, driver 550.54\n"
    text += "torch 2.6.0+cpu: Torch not compiled with CUDA enabled"
    found = judge(foreign(read_report(text, KB)))
    assert found.machine.python.project_tool == tool
    step = found.plan.steps[0]
    assert any(command in " ".join(line) for line in step.commands)
    assert bool(step.edits) is (tool is not None)


def test_what_no_build_serves_is_refused() -> None:
    text = f"{ENV}[pip3] torchtext==0.18.0\nCondition of the course: torchtext 0.18.0\n"
    steps = judge(foreign(read_report(text, KB))).plan.steps
    assert [step.id for step in steps] == ["other-demand"]
    assert "torchtext==0.18.0" in steps[0].title
    assert not steps[0].commands
    # Nobody demands it, and what stays as it is refuses nothing.
    assert installed(first_step("[pip3] torchtext==0.18.0"))
    assert installed(first_step(SERVING, "We must stay on vllm==0.8.5."))


def test_the_lines_of_a_requirements_file_are_told() -> None:
    text = (
        "requirements.txt\ntorch==2.2.2\ntorchvision==0.17.2\n\nUbuntu 22.04, Python 3.11, RTX A4000\n"
        "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.0 as it may crash.\n"
        "RuntimeError: Numpy is not available\n"
    )
    step = judge(foreign(read_report(text, KB))).plan.steps[0]
    assert "requirements.txt" in (step.note or "")
    assert "`numpy<2`" in (step.note or "")
    bare = judge(foreign(read_report(text.replace("requirements.txt", "pip list"), KB)))
    assert "requirements.txt" not in (bare.plan.steps[0].note or "")


def test_what_requirements_said_outranks_what_an_accident_installed() -> None:
    assert asked("our requirements said vllm 0.8.5") == ("vllm==0.8.5",)
    assert asked("vllm's requirements: see https://example.org") == ()

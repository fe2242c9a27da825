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
    assert installed(step)[-2:] == ("vllm==0.10.1.1", "transformers>=4.55.0")
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

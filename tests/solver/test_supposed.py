"""What is supposed where processor, system or chip is not known, and what is refused."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.model.machine import Driver, Gpu, Interpreter, Machine, PciGpu, Platform
from cudadoctor.model.versions import DriverVersion
from cudadoctor.pipeline import judge
from cudadoctor.render import json_v1
from cudadoctor.reports.reading import read_report
from cudadoctor.solver.builds import Choice, best_build

KB = knowledge.load()
ASK_GPU = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv")


System = Literal["Linux", "Windows"]


def machine(
    name: str, system: System | None = "Linux", processor: str | None = "x86_64"
) -> Machine:
    return Machine(
        platform=Platform(system=system, machine=processor),
        python=Interpreter(version=Version("3.11.5")),
        driver=Driver(reported=DriverVersion("580.95.05"), cuda=Version("13.0")),
        gpus=(Gpu(index=0, name=name),),
    )


def chosen(choice: Choice) -> tuple[str, str] | None:
    return (str(choice.build.torch), choice.build.variant) if choice.build else None


@pytest.mark.parametrize(
    ("name", "system", "platform"),
    [
        ("NVIDIA GeForce RTX 3090", "Linux", "linux_x86_64"),
        ("NVIDIA GeForce RTX 3090", "Windows", "windows_amd64"),
        ("NVIDIA GH200 480GB", "Linux", "linux_aarch64"),
        ("NVIDIA GB10", "Linux", "linux_aarch64"),
    ],
)
def test_an_unnamed_processor_is_that_of_the_gpus_board(
    name: str, system: System, platform: str
) -> None:
    choice = best_build(machine(name, system, None), KB)
    assert choice.build is not None
    assert choice.build.platform == platform
    processor = "ARM" if platform.endswith("aarch64") else "x86-64"
    assert choice.why[1] == f"The processor is unknown; this recommendation assumes {processor}."


def test_a_named_processor_is_not_supposed() -> None:
    choice = best_build(machine("NVIDIA GeForce RTX 3090", processor="aarch64"), KB)
    assert choice.build is not None
    assert choice.build.platform == "linux_aarch64"
    assert "assumes" not in " ".join(choice.why)


def test_an_unnamed_system_gets_the_build_that_both_have_from_an_index_that_both_ask() -> None:
    unknown = machine("Tesla V100-SXM2-16GB", None, None)
    choice = best_build(unknown, KB)
    assert chosen(choice) == chosen(best_build(machine("Tesla V100-SXM2-16GB"), KB))
    assert choice.build is not None
    assert choice.build.index.startswith("https://download.pytorch.org/whl/cu")
    assert "same for Linux and Windows" in choice.why[1]


def test_where_linux_and_windows_differ_none_is_given() -> None:
    choice = best_build(machine("NVIDIA GeForce RTX 3090", None, None), KB)
    both: tuple[System, ...] = ("Linux", "Windows")
    on = [best_build(machine("NVIDIA GeForce RTX 3090", system), KB) for system in both]
    if chosen(on[0]) == chosen(on[1]):
        pytest.skip("the newest build is the same for both")
    assert choice.build is None
    assert "Linux and Windows need different builds" in choice.why[0]
    assert choice.asks == ("python", "-m", "platform")


def test_without_a_gpu_nothing_is_supposed_of_the_system() -> None:
    nobody = replace(machine("x", None, None), gpus=None)
    assert best_build(nobody, KB).asks == ("python", "-m", "platform")


@pytest.mark.parametrize(
    ("name", "capability"), [("GeForce GT 1030", "6.1"), ("NVIDIA GeForce GTX 750 Ti", "5.0")]
)
def test_the_common_board_of_a_name_is_supposed_and_said(name: str, capability: str) -> None:
    known = replace(machine(name), gpus=(Gpu(index=0, name=name, capability=Version(capability)),))
    choice = best_build(machine(name), KB)
    assert chosen(choice) is not None
    assert chosen(choice) == chosen(best_build(known, KB))
    assert f"the most common one (compute capability {capability})" in choice.why[1]


def test_a_name_of_two_equally_common_chips_is_refused_with_the_command_that_tells() -> None:
    choice = best_build(machine("GeForce GTX 860M"), KB)
    assert choice.build is None
    assert choice.why == (
        "GeForce GTX 860M is the name of several chips (compute capability 3.0 and 5.0), which "
        "need different builds.",
    )
    assert choice.asks == ASK_GPU


@pytest.mark.parametrize("name", ["NVIDIA Frobnicator 9000", "MIG 1g.5gb"])
def test_an_unlisted_gpu_is_refused_by_its_name(name: str) -> None:
    choice = best_build(machine(name), KB)
    assert choice.build is None
    assert choice.why == (
        f"The compute capability of the {name.removeprefix('NVIDIA ')} is unknown.",
    )
    assert choice.asks == ASK_GPU


def test_an_unlisted_device_on_the_bus_is_refused_by_its_number() -> None:
    device = PciGpu(address="0000:01:00.0", vendor="nvidia", device_id="ffff")
    choice = best_build(replace(machine("x"), gpus=(), pci=(device,)), KB)
    assert choice.why == ("The NVIDIA GPU at 0000:01:00.0 is an unknown model (device ffff).",)


REPORT = """Operating System: Ubuntu 22.04
Python 3.11.5
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05     CUDA Version: 13.0     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  {name:<34}   Off | 00000000:01:00.0 Off |                  N/A |
ModuleNotFoundError: No module named 'torch'
"""


def test_a_report_that_names_no_processor_gets_a_build_and_its_command() -> None:
    found = judge(read_report(REPORT.format(name="GRID V100D-8Q"), KB)).plan
    assert found.build is not None
    assert found.no_build is None
    assert found.build.variant == "cu126"
    assert any(f"torch=={found.build.torch}" in argv for argv in found.steps[0].commands)


def test_a_refusal_speaks_in_the_json() -> None:
    found = judge(read_report(REPORT.format(name="GeForce GTX 860M"), KB)).plan
    plain = json_v1.plan(found)
    assert plain["build"] is None
    assert "several chips" in plain["no_build"]["reason"]
    assert tuple(plain["no_build"]["next_command"]) == ASK_GPU


def test_without_a_python_pip_chooses_the_release() -> None:
    text = REPORT.format(name="NVIDIA GeForce RTX 3090").replace("Python 3.11.5\n", "")
    step = judge(read_report(text, KB)).plan.steps[0]
    assert step.id == "install-torch"
    assert "torch" in step.commands[-1]
    assert not any("==" in word for argv in step.commands for word in argv)


def test_a_machine_whose_torch_is_sound_has_no_refusal() -> None:
    assert json_v1.plan(judge(machine("NVIDIA GeForce RTX 3090")).plan)["no_build"] is None


CPU_BUILD = "AssertionError: Torch not compiled with CUDA enabled\n"
NOT_THERE = "ModuleNotFoundError: No module named 'torch'\n"
ON_LINUX = "Operating System: Ubuntu 22.04 x86_64\nPython 3.11.5\n"


@pytest.mark.parametrize(
    "text",
    [
        CPU_BUILD,
        NOT_THERE,
        ON_LINUX + CPU_BUILD,
        ON_LINUX + "GPU 0: GeForce GTX 860M\n" + CPU_BUILD,
        "PyPy 3.10 Linux x86_64\nERROR: No matching distribution found for torch\n",
        "Windows 10, Python 3.12\n$ pip install torch\nSuccessfully installed torch-2.6.0+cpu\n"
        + CPU_BUILD,
    ],
)
def test_a_refusal_lets_pip_choose_nothing(text: str) -> None:
    found = judge(read_report(text, KB)).plan
    assert found.no_build is not None
    for step in found.steps:
        assert not any("install" in argv and "torch" in argv for argv in step.commands)
        assert "pip install" not in (step.manual or "")
    assert any(step.manual for step in found.steps)


@pytest.mark.parametrize(
    "text",
    [
        # What is left there, is another maker's or the board's own index.
        "Jetson Orin Nano, JetPack 6.0, L4T R36.3, Python 3.10\n" + CPU_BUILD,
        # What stands in the report is enough for a build.
        ON_LINUX + "GPU 0: NVIDIA GeForce RTX 3090\nDriver Version: 580.95.05\n" + CPU_BUILD,
        # No torch is chosen: this is the release for the torch that is there.
        "torch 2.9.1, torchvision 0.21.0\nRuntimeError: operator torchvision::nms does not exist\n",
    ],
)
def test_what_the_tables_choose_keeps_its_command(text: str) -> None:
    steps = judge(read_report(text, KB)).plan.steps
    assert any("install" in argv for argv in steps[0].commands)

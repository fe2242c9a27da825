"""Reports whose list of packages shows the fault: NVIDIA's wheels, other programs, NumPy."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version
from told_fixtures import without_words

from cudadoctor import knowledge
from cudadoctor.model.findings import Plan
from cudadoctor.model.machine import Distribution, Interpreter, Machine, Platform, Torch
from cudadoctor.model.trust import foreign
from cudadoctor.model.versions import version_of
from cudadoctor.pipeline import Judged, judge
from cudadoctor.reports.reading import read_report
from cudadoctor.rules.companions import numpy_abi
from cudadoctor.rules.evidence.libraries import needs_of_others

KB = knowledge.load()
PINNED = {
    name: pin
    for line in KB.default_pins(Version("2.6.0"), "linux_x86_64") or ()
    for name, _, pin in [line.partition(";")[0].partition("==")]
    if name.startswith("nvidia-")
}


def judged(text: str) -> Judged:
    return judge(foreign(without_words(text)))


def commands(plan: Plan, first: bool = True) -> str:
    steps = plan.steps[:1] if first else plan.steps
    return " | ".join(" ".join(argv) for step in steps for argv in step.commands)


def notes(plan: Plan) -> str:
    return " ".join(filter(None, (step.note for step in plan.steps)))


def freeze(**other: str) -> str:
    """What pip freeze lists beside torch 2.6.0, with other releases of some wheels."""
    wheels = PINNED | {name.replace("_", "-"): release for name, release in other.items()}
    lines = [f"{name}=={release}" for name, release in sorted(wheels.items())]
    return "\n".join(["numpy==1.26.4", *lines, "torch==2.6.0", "torchvision==0.21.0", ""])


ENV = """PyTorch version: {torch}
CUDA used to build PyTorch: {cuda}
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.11.9 (main, Apr  6 2024, 17:59:24) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: {available}
GPU models and configuration: {gpu}
Nvidia driver version: {driver}
"""


def collected(
    torch: str = "2.6.0+cu124",
    gpu: str = "GPU 0: NVIDIA GeForce RTX 3090",
    driver: str = "560.35.03",
    available: bool = True,
) -> str:
    digits = torch.partition("+cu")[2]
    cuda = f"{digits[:-1]}.{digits[-1]}"
    return ENV.format(torch=torch, cuda=cuda, gpu=gpu, driver=driver, available=available)


# --- a wheel of another release than torch pins ---------------------------------------------------

SYMBOL = (
    "ImportError: /v/lib/python3.11/site-packages/torch/lib/../../nvidia/cusparse/lib/"
    "libcusparse.so.12: undefined symbol: __nvJitLinkCreate_12_4, version libnvJitLink.so.12\n"
)


def test_a_wheel_that_deviates_from_the_pin_is_cured_by_the_pin() -> None:
    """The list alone shows system, processor and build: it holds what PyPI's torch pins."""
    found = judged(
        f"Ubuntu 22.04, python 3.11.9\n{SYMBOL}{freeze(nvidia_nvjitlink_cu12='12.1.105')}"
    )
    assert found.diagnosis.primary == "nvidia-wheels-mixed"
    assert "install nvidia-nvjitlink-cu12==12.4.127" in commands(found.plan)
    evidence = [shown.value for shown in found.diagnosis.findings[0].evidence]
    assert any("12.1.105" in value for value in evidence)


def test_wheels_as_pinned_leave_the_variable_to_blame() -> None:
    found = judged(f"Ubuntu 22.04, python 3.11.9\n{SYMBOL}{freeze()}")
    assert found.diagnosis.primary == "nvjitlink-mismatch"
    assert "install" not in commands(found.plan)


def test_few_wheels_do_not_show_the_build() -> None:
    listed = "torch==2.6.0\nnvidia-cuda-nvrtc-cu12==12.1.105\nnvidia-cudnn-cu12==8.9.2.26\n"
    listed += "numpy==1.26.4\ntriton==3.2.0\n"
    assert "nvidia-wheels-mixed" not in [
        finding.cause for finding in judged(f"{listed}import torch fails").diagnosis.findings
    ]


@pytest.mark.parametrize(
    "wheel", ["nvidia-cublas-cu12", "nvidia-cufft-cu12", "nvidia-nvjitlink-cu12"]
)
def test_the_pins_of_a_build_of_torchs_own_index_are_known_too(wheel: str) -> None:
    pins = KB.toolkit_wheels("12.8.0")
    older = {**pins, wheel: "12.1.105"}
    for wheels, wrong in ((older, True), (pins, False)):
        rows = "".join(
            f"[pip3] {name}=={wheels[name]}\n" for name in (wheel, "nvidia-cusparse-cu12")
        )
        found = judged(collected("2.7.1+cu128", driver="570.86.15") + rows)
        assert (found.diagnosis.primary == "nvidia-wheels-mixed") is wrong
        assert (f"install {wheel}=={pins[wheel]}" in commands(found.plan)) is wrong


def test_the_pins_by_the_toolkit_are_those_of_pypis_wheels() -> None:
    for build in KB.builds_on("linux_x86_64"):
        lines = (KB.default_pins(build.torch, build.platform) or ()) if build.default else ()
        pins = dict(re.findall(r"(nvidia-[\w-]+)==([\d.]+)", "\n".join(lines)))
        for pin in KB.toolkit_pins(build):
            name, _, release = pin.partition("==")
            assert pins.get(name, release) == release, (build.torch, build.variant)


def test_torch_installed_again_takes_its_wheels_with_it() -> None:
    """pip keeps a wheel of the pinned release whose files are gone."""
    found = judged(
        f"Ubuntu 22.04, python 3.11.9\n{SYMBOL}{freeze(nvidia_nvjitlink_cu12='12.1.105')}"
    )
    again = commands(found.plan, first=False)
    assert re.search(r"uninstall -y torch [^|]*nvidia-cusparse-cu12[^|]*nvidia-nvtx-cu12", again)


def test_the_wheel_of_a_missing_file_is_installed_again() -> None:
    lost = "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory\n"
    trace = '  File "/v/lib/python3.11/site-packages/torch/__init__.py", line 367, in <module>\n'
    gone = "I ran `pip uninstall nvidia-cudnn-cu11`, which another script had pulled in.\n"
    for said, cause in ((gone, "nvidia-wheels-mixed"), ("", "torch-install-corrupt")):
        found = judged(f"{said}Ubuntu 22.04, python 3.11.9\n{trace}{lost}{freeze()}")
        assert found.diagnosis.primary == cause
        assert commands(found.plan).endswith(
            f"install nvidia-cudnn-cu12=={PINNED['nvidia-cudnn-cu12']}"
        )
        assert "uninstall -y nvidia-cudnn-cu12" in commands(found.plan)


# --- other programs that need other wheels --------------------------------------------------------

LOST = "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory\n"


def test_the_other_program_is_named_where_torchs_wheel_comes_back() -> None:
    listed = freeze(nvidia_cudnn_cu12="8.9.7.29")
    for beside, named in (("tensorflow==2.17.1\n", True), ("tensorflow==2.20.0\n", False)):
        found = judged(f"Ubuntu 22.04, python 3.11.9\n{LOST}{beside}{listed}")
        assert found.diagnosis.primary == "nvidia-wheels-mixed"
        assert "install nvidia-cudnn-cu12==9.1.0.70" in commands(found.plan)
        note = "tensorflow 2.17.1 needs nvidia-cudnn-cu12==8.9.7.29 instead"
        assert (note in notes(found.plan)) is named
        assert ("in a separate environment" in notes(found.plan)) is named


def test_the_nearest_torch_whose_cudnn_serves_both_comes_first() -> None:
    asked = "torch 2.6.0 requires nvidia-cudnn-cu12==9.1.0.70, but you have nvidia-cudnn-cu12 {}"
    for cudnn in ("9.1.0.70", "9.12.0.46"):
        rows = (
            f"[pip3] nvidia-cudnn-cu12=={cudnn}\n[pip3] torch==2.6.0\n[pip3] torchvision==0.21.0\n"
        )
        said = asked.format("9.12.0.46 which is incompatible.") if cudnn == "9.12.0.46" else ""
        mixed = "pip keeps replacing nvidia-cudnn-cu12, the two conflict\n"
        text = f"{mixed}{collected()}{rows}jax-cuda12-plugin 0.7.2\n{said}"
        found = judged(text)
        assert found.diagnosis.primary == "nvidia-wheels-mixed"
        assert "install torch==2.8.0 torchvision==0.23.0" in commands(found.plan)
        older = judged(text.replace("plugin 0.7.2", "plugin 0.5.3"))
        assert "torch==2.8.0" not in commands(older.plan)


PART = "Unable to load any of {{libcudnn_cnn.so.{0}.1.0, libcudnn_cnn.so.{0}}}\nAborted\n"


@pytest.mark.parametrize(
    ("torch", "asked", "program", "command"),
    [
        ("2.3.1+cu121", "9", "ctranslate2==4.7.0", "install ctranslate2==4.4.0"),
        ("2.6.0+cu124", "8", "ctranslate2==4.3.1", "install ctranslate2>=4.5.0"),
        ("2.3.1+cu121", "9", "onnxruntime-gpu==1.20.1", "install torch==2.4.1"),
        ("2.3.1+cu121", "9", "jax-cuda12-plugin==0.5.3", "install torch==2.4.1"),
        ("2.8.0+cu128", "8", "ctranslate2==4.4.0\nwhisperx==3.3.4", "install whisperx==3.5.0"),
        ("2.6.0+cu124", "8", "ctranslate2==4.4.0\nwhisperx==3.4.2", ""),
        ("2.3.1+cu121", "8", "ctranslate2==4.4.0", "install nvidia-cudnn-cu12==8.9.2.26"),
    ],
)
def test_a_cudnn_of_another_major_is_the_other_programs(
    torch: str, asked: str, program: str, command: str
) -> None:
    found = judged(f"{PART.format(asked)}{collected(torch)}[pip3] torch=={torch}\n{program}\n")
    assert found.diagnosis.primary == "cudnn-missing-sublib"
    assert command in commands(found.plan)
    if not command:
        assert "nvidia-cudnn" not in commands(found.plan, first=False)
        assert "works with torch's cuDNN 9" in found.plan.steps[0].title


def test_metadata_says_what_a_program_needs_before_the_tables_do() -> None:
    wanted = ("nvidia-cudnn-cu12<10,>=9.3 ; extra == 'and-cuda'",)
    program = Distribution(name="tensorflow", version="2.17.1", requires=wanted)
    (need,) = needs_of_others(Machine(packages=(program,)), KB, "nvidia-cudnn-cu12")
    assert need.wanted == "<10,>=9.3"
    assert needs_of_others(Machine(packages=(program,)), KB, "nvidia-cublas-cu12") == ()


# --- NumPy 1 beside packages that need NumPy 2 ----------------------------------------------------


@pytest.mark.parametrize(
    ("opencv", "more"),
    [
        ("opencv-python-headless 4.12.0.88", " opencv-python-headless<4.12"),
        ("opencv-python 4.11.0.86", ""),
    ],
)
def test_opencv_steps_down_with_numpy(opencv: str, more: str) -> None:
    rows = "[pip3] numpy==2.1.3\n[pip3] torch==2.2.1\n"
    found = judged(
        f"RuntimeError: Numpy is not available\n{collected('2.2.1+cu121')}{rows}{opencv}\n"
    )
    assert found.diagnosis.primary == "numpy-abi"
    assert commands(found.plan).endswith(f"install numpy<2{more}")


def test_a_host_learns_which_package_requires_numpy_2() -> None:
    packages = (
        Distribution(name="numpy", version="2.1.3"),
        Distribution(name="thinc", version="8.3.4", requires=("numpy<3,>=2.0.0",)),
        Distribution(name="scipy", version="1.14.0", requires=("numpy<2.3,>=1.23.5",)),
    )
    host = Machine(
        packages=packages,
        platform=Platform(system="Linux", machine="x86_64"),
        python=Interpreter(version=version_of("3.11.9")),
        torch=Torch(installed=True, version=version_of("2.2.1+cu121"), build="cuda"),
    )
    found = numpy_abi.judge(host, KB)
    assert found is not None
    assert (found.remedies[0].note or "").startswith("thinc 8.3.4 requires NumPy 2")


# --- packages that the author names ---------------------------------------------------------------


def test_a_line_of_packages_is_a_list() -> None:
    machine = read_report(
        "transformers 4.57.1 / xformers 0.0.32.post2\nopencv-python 4.12.0.88\n", KB
    )
    listed = {package.name: package.version for package in machine.packages or ()}
    assert listed["xformers"] == "0.0.32.post2"
    assert listed["opencv-python"] == "4.12.0.88"


def test_a_sentence_about_a_package_is_none() -> None:
    for text in ("xformers 0.0.32 did not help", "RTX 3090, CUDA 12.4", "since ctranslate2 4.5.0"):
        assert not read_report(text, KB).packages


# --- a new environment, and what goes with it -----------------------------------------------------


def test_a_new_python_gets_the_nearest_torch_and_its_companions() -> None:
    rows = "[pip3] torch==2.4.1\n[pip3] torchaudio==2.4.1\n[pip3] torchvision==0.19.1\n"
    env = collected("2.4.1+cu121", "GPU 0: NVIDIA GeForce RTX 5090", "570.172.08")
    text = env.replace("3.11.9", "3.8.10") + rows
    made = commands(judged(text).plan)
    assert "torch==2.7.1+cu128 torchvision==0.22.1+cu128 torchaudio==2.7.1+cu128" in made
    assert "torchaudio" not in commands(judged(text.replace("[pip3] torchaudio==2.4.1\n", "")).plan)


def test_a_refused_release_comes_with_its_build_into_the_new_environment() -> None:
    refused = (
        "GTX 1650, driver 551.86, Windows 11\npip install torch==1.13.1\n"
        "ERROR: Could not find a version that satisfies the requirement torch==1.13.1 "
        "(from versions: 2.6.0, 2.7.0, 2.7.1, 2.8.0)\n"
    )
    made = commands(judged(refused).plan)
    assert "torch==1.13.1" in made
    assert "whl/cu117" in made


def test_the_triton_of_nightlies_goes_with_them() -> None:
    rows = "[pip3] pytorch-triton==3.5.0+git7416ffcb\n[pip3] torch==2.10.0.dev20251012+cu128\n"
    env = collected("2.10.0.dev20251012+cu128", driver="580.82.09")
    refused = (
        "ERROR: Could not find a version that satisfies the requirement "
        "torch==2.10.0.dev20251021+cu128 (from versions: none)\n"
    )
    assert "pytorch-triton" in commands(judged(refused + env + rows).plan)
    assert "pytorch-triton" not in commands(judged(refused + env).plan)


def test_words_about_torch_again_name_its_release() -> None:
    for listed, words in (("torch 2.4.1\n", "torch==2.4.1`"), ("", "torch`")):
        found = judged(f"{listed}{LOST}").diagnosis.findings[0]
        said = " ".join(f"{step.title} {step.manual or ''}" for step in found.remedies)
        assert f"--force-reinstall {words}" in said


# --- several programs and one torch --------------------------------------------------------------


@pytest.mark.parametrize(
    "question", ["Is the nvcc 12.0 of Ubuntu a problem?", "nvidia-smi says 12.6, is that too new?"]
)
def test_a_question_about_versions_that_fit_is_answered_by_the_facts(question: str) -> None:
    fine = judged(f"{question}\n{collected()}{freeze()}").diagnosis
    assert [finding.title for finding in fine.findings][:1] == [
        "This torch build works with your driver and GPU"
    ]
    # Where torch does not use the GPU, nobody says so.
    dark = judged(f"{question}\n{collected(available=False)}{freeze()}").diagnosis
    assert all("works with your driver" not in finding.title for finding in dark.findings)


def test_another_cudnn_of_the_list_is_no_matter_of_the_search_path() -> None:
    error = (
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but "
        "found runtime version (9, 10, 2)\n"
    )
    plan = judged(error + collected() + freeze(nvidia_cudnn_cu12="9.10.2.21")).plan
    assert "nvidia-cudnn-cu12==9.1.0.70" in commands(plan)
    unlisted = judged(error + collected()).plan
    assert "nvidia-cudnn-cu12==" not in commands(unlisted)


def test_torch_goes_back_to_what_a_program_of_the_list_pins() -> None:
    """vllm 0.11.0 pins torch 2.8.0; newer ones that take 2.9.1 are no smaller change."""
    error = (
        "ImportError: /env/lib/python3.11/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN\n"
    )
    listed = f"{error}{collected('2.9.1+cu128', driver='570.133.20')}[pip3] torch==2.9.1\n"
    listed += "[pip3] torchvision==0.24.1\n"
    plan = judged(f"{listed}[pip3] vllm==0.11.0\n").plan
    assert "torch==2.8.0" in commands(plan)
    assert "vllm==" not in commands(plan)
    fitting = judged(f"{listed}[pip3] vllm==0.14.0\n").plan
    assert "torch==2.8.0" not in commands(fitting)


@pytest.mark.parametrize("torch", ["2.9.1+rocm6.4", "2.5.0a0+872d972e41.nv24.08"])
def test_a_build_of_another_maker_is_not_replaced_by_one_of_pytorch(torch: str) -> None:
    error = "RuntimeError: operator torchvision::nms does not exist\n"
    plan = judged(f"{error}PyTorch version: {torch}\nOS: Ubuntu 22.04.4 LTS (x86_64)\n").plan
    assert f"torch=={torch.partition('+')[0]}" not in commands(plan, first=False) + notes(plan)
    assert "download.pytorch.org/whl/cu" not in commands(plan, first=False)


def test_a_long_line_after_a_list_of_packages_is_read_at_once() -> None:
    """A search that restarts at every letter would take minutes."""
    line = "vllm 0.8.5 xformers 0.0.29 sglang 0.4.6 " * 20 + "a" * 23_000
    assert judged(f"torch 2.6.0\n{line}\n{line}\n").machine.torch.version == Version("2.6.0")

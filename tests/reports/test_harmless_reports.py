"""Reports that work, or that show no more than a harmless message; and what no GPU is named in."""

from __future__ import annotations

import pytest
from told_fixtures import without_words

from cudadoctor import knowledge
from cudadoctor.model.findings import LIKELY, POSSIBLE
from cudadoctor.pipeline import Judged, judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()
ENV = """PyTorch version: {torch}
Is debug build: False
CUDA used to build PyTorch: 12.6
OS: Ubuntu 22.04.4 LTS (x86_64)
CMake version: Could not collect
Python version: 3.11.9 (main, Apr  6 2024, 17:59:24) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: {available}
GPU models and configuration: {gpu}
Nvidia driver version: {driver}
"""


def judged(text: str) -> Judged:
    return judge(without_words(text))


def collected(
    torch: str = "2.7.1+cu126",
    gpu: str = "GPU 0: NVIDIA GeForce RTX 3090",
    driver: str = "560.35.03",
    available: bool = True,
) -> str:
    return ENV.format(torch=torch, gpu=gpu, driver=driver, available=available)


def harmless(text: str) -> str:
    """The title under which a report is called harmless; "" where it is not."""
    diagnosis = judged(text).diagnosis
    if diagnosis.primary is not None:
        return ""
    sure = [finding for finding in diagnosis.findings if finding.confidence <= LIKELY]
    return next((finding.title for finding in sure if finding.cause == "not-environment"), "")


FITS = "This torch build works with your driver and GPU"


@pytest.mark.parametrize(
    "said",
    [
        "Do I need to reinstall torch because of my card?\n",
        "Is this combination supported? A colleague doubts it.\n",
        "The whole test suite: all tests pass. Somebody wants me to upgrade.\n",
    ],
)
def test_a_working_environment_with_a_question_is_said_to_work(said: str) -> None:
    assert harmless(said + collected()) == FITS


@pytest.mark.parametrize(
    "env",
    [
        collected(available=False),
        collected(driver="470.82.01"),
        collected(driver="Could not collect"),
        collected(gpu="GPU 0: NVIDIA GeForce RTX 5090", driver="575.64.03"),
        collected(gpu="Could not collect"),
        collected() + "Traceback (most recent call last):\nRuntimeError: it broke\n",
    ],
)
def test_to_work_takes_the_facts_of_driver_gpu_and_build(env: str) -> None:
    assert harmless("Is this combination supported?\n" + env) != FITS


def test_words_that_take_it_back_are_no_praise() -> None:
    for said in ("It works fine until the second epoch.\n", "It runs fine on the CPU.\n"):
        assert harmless(said + collected()) != FITS


MESSAGES = {
    "Skipping import of cpp extensions due to incompatible torch version 2.7.1+cu126\n": "torchao's",
    "FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py.\n": "The pynvml",
    "Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS\n": (
        "TensorFlow's"
    ),
    "UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared "
    "object file: No such file or directory'\n": "The message about torchvision's",
}


@pytest.mark.parametrize(("message", "title"), list(MESSAGES.items()))
def test_a_harmless_message_is_called_so(message: str, title: str) -> None:
    assert harmless(message + collected()).startswith(title)


def test_a_message_about_triton_is_harmless_where_all_works() -> None:
    message = (
        "A matching Triton is not available, some optimizations will not be enabled\n"
        "Traceback (most recent call last):\n    import triton\n"
        "ModuleNotFoundError: No module named 'triton'\n"
    )
    windows = collected().replace(
        "Ubuntu 22.04.4 LTS (x86_64)", "Microsoft Windows 11 Pro (64-bit)"
    )
    assert harmless(f"{message}The images come out fine.\n{windows}").startswith(
        "The message about"
    )
    assert not harmless(f"{message}The images are black.\n{windows}")


def test_torchvisions_own_library_is_another_matter() -> None:
    lost = "UserWarning: Failed to load image Python extension: libtorch_cuda_cu.so: cannot open\n"
    causes = {finding.cause for finding in judged(lost + collected()).diagnosis.findings}
    assert "torch-companion-mismatch" in causes


# --- second findings that the facts contradict ----------------------------------------------------


def test_pip_freeze_is_no_hang() -> None:
    text = "Two GPUs, data parallel. See pip freeze below.\n" + collected()
    assert "collective-hangs" not in {key.key for key in read_report(text, KB).symptoms or ()}
    text = text.replace("See pip freeze below.", "The run freezes.")
    assert "collective-hangs" in {key.key for key in read_report(text, KB).symptoms or ()}


NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def test_a_gpu_that_is_not_named_is_asked_for() -> None:
    """Nothing is compiled here, and CUDA is available: neither a list nor a container is at fault."""
    bare = collected("2.8.0+cu128", "Could not collect", "Could not collect")
    text = (
        f"{NO_IMAGE}{bare}bash: nvidia-smi: command not found (in the container)\nxformers 0.0.32\n"
    )
    diagnosis = judged(text).diagnosis
    assert diagnosis.verdict == "undecided"
    assert {"arch-list-wrong", "container-no-gpu"}.isdisjoint(
        finding.cause for finding in diagnosis.findings
    )
    asked = " ".join(diagnosis.next_command or ())
    assert "get_device_name(0), torch.cuda.get_device_capability(0)" in asked


def test_a_gpu_that_is_named_needs_no_question() -> None:
    text = NO_IMAGE + collected("2.8.0+cu128", "GPU 0: Tesla P100-PCIE-16GB", "570.86.15")
    found = judged(text)
    assert found.diagnosis.primary == "torch-arch-unsupported-old"
    assert any("cu126" in " ".join(argv) for argv in found.plan.steps[0].commands)


def test_the_code_of_the_build_speaks_against_a_possible_lack_of_it() -> None:
    error = "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH\n"
    gpu, driver = "GPU 0: Tesla P40", "560.35.03"
    causes = {
        finding.cause: finding.confidence
        for finding in judged(error + collected(gpu=gpu, driver=driver)).diagnosis.findings
    }
    assert causes.get("torch-arch-unsupported-old") != POSSIBLE


# --- what no build and no program serves ----------------------------------------------------------


def test_a_gpu_that_no_build_serves_comes_before_its_driver() -> None:
    """The name stands for two chips, and no build has code for either."""
    text = collected("2.3.1+cu121", "GPU 0: NVIDIA GeForce GT 730", "470.256.02", available=False)
    found = judged("The NVIDIA driver on your system is too old (found version 11040).\n" + text)
    assert found.diagnosis.primary == "torch-arch-unsupported-old"
    (first,) = (
        finding for finding in found.diagnosis.findings if finding.cause == found.diagnosis.primary
    )
    assert first.why.startswith("No published build since torch 1.7 has code for your GT 730")
    assert [remedy.id for remedy in first.remedies] == ["other-gpu"]
    assert first.remedies[0].manual == "The installed torch 2.3.1 also runs on the CPU."


def test_a_gpu_that_some_build_serves_is_not_given_up() -> None:
    text = collected("2.3.1+cu121", "GPU 0: Tesla K80", "470.256.02", available=False)
    (first, *_) = judged(text).diagnosis.findings
    assert "No published build" not in first.why
    assert first.remedies[0].id == "install-torch"


@pytest.mark.parametrize(("gpu", "refused"), [("GeForce GTX 1080 Ti", True), ("Tesla T4", False)])
def test_a_program_that_serves_no_such_gpu_is_named(gpu: str, refused: bool) -> None:
    env = collected("2.7.1+cu118" if not refused else "2.8.0+cu128", f"GPU 0: NVIDIA {gpu}")
    env = env.replace("560.35.03", "470.82.01" if not refused else "570.86.15")
    found = judged(f"{NO_IMAGE}{env}vllm 0.10.2, transformers 4.57.1\n")
    notes = " ".join(step.note or step.manual or "" for step in found.plan.steps)
    assert ("vllm needs a GPU with compute capability 7.0 or higher" in notes) is refused


# --- other ways that would not work ---------------------------------------------------------------


def ways(text: str, cause: str) -> list[str]:
    findings = judged(text).diagnosis.findings
    return [step.id for found in findings if found.cause == cause for step in found.remedies]


@pytest.mark.parametrize(("gpu", "offered"), [("Tesla V100-SXM2-16GB", False), ("Tesla T4", True)])
def test_no_driver_is_offered_for_a_build_without_code_for_the_gpu(gpu: str, offered: bool) -> None:
    env = collected("2.12.1+cu130", f"GPU 0: {gpu}", "535.183.06", available=False)
    found = ways(env.replace("PyTorch: 12.6", "PyTorch: 13.0"), "driver-too-old")
    assert found[0] == "install-torch"
    assert ("upgrade-driver" in found) is offered


def test_of_two_gpus_the_one_that_is_not_served_is_hidden_first() -> None:
    gpus = "\nGPU 0: NVIDIA GeForce RTX 5070\nGPU 1: NVIDIA GeForce GTX 1080"
    warned = "Found GPU1 NVIDIA GeForce GTX 1080 which is of cuda capability 6.1.\n"
    env = collected("2.9.1+cu128", gpus, "575.64.03").replace("PyTorch: 12.6", "PyTorch: 12.8")
    found = ways(warned + NO_IMAGE + env, "torch-arch-unsupported-old")
    assert found[0] == "hide-gpu"
    assert len(found) > 1
    alone = env.replace("GPU 0: NVIDIA GeForce RTX 5070\nGPU 1", "GPU 0")
    assert "hide-gpu" not in ways(NO_IMAGE + alone, "torch-arch-unsupported-old")


def test_a_job_on_a_node_with_a_gpu_and_a_cpu_build_lacks_no_gpu() -> None:
    said = "The environment was made on the login node; torch.cuda.is_available() is False.\n"
    env = collected("2.7.1+cu126", available=False)
    cpu = env.replace("+cu126", "+cpu").replace("PyTorch: 12.6", "PyTorch: None")
    assert "scheduler-no-gpu" not in {
        found.cause for found in judged(said + cpu).diagnosis.findings
    }
    bare = "I forgot --gres=gpu:1 in the Slurm job; torch.cuda.is_available() is False.\n"
    assert judged(bare).diagnosis.primary == "scheduler-no-gpu"


def test_flash_attention_on_an_old_gpu_gets_a_way_out() -> None:
    error = "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"
    assert harmless(error + collected(gpu="GPU 0: Tesla T4")).startswith("flash-attn does not")
    other = "RuntimeError: FlashAttention forward only supports head dimension at most 256\n"
    assert not harmless(other + collected()).startswith("flash-attn does not")

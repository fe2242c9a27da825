"""Reports that complain of a program or of torch, and hold something else in passing."""

from __future__ import annotations

import pytest
from told_fixtures import diagnosis_of

from cudadoctor.model.findings import ERROR

OTHER_DEVICE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in <module>\n'
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices,"
    " cuda:0 and cpu!\n"
)
BUSY = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla P100-PCIE...  Off  | 00000000:02:00.0 Off |                    0 |
| N/A   47C    P0    33W / 250W |  16181MiB / 16280MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""
WORKERS = (
    "UserWarning: The dataloader, val dataloader 0, does not have many workers which may be a"
    " bottleneck. Consider increasing the value of the `num_workers` argument\n"
)


@pytest.mark.parametrize("passing", [BUSY, WORKERS], ids=["busy", "workers"])
def test_what_stands_in_passing_is_no_root_of_a_programs_own_error(passing: str) -> None:
    assert diagnosis_of(passing + OTHER_DEVICE).primary is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [(BUSY, "out-of-memory"), (WORKERS, "slow-dataloader")],
    ids=["busy", "workers"],
)
def test_alone_it_is_named(text: str, cause: str) -> None:
    assert diagnosis_of(text).primary == cause


def test_an_error_of_the_environment_stays_the_root_beside_a_mistake() -> None:
    error = "ImportError: libcudart.so.11.0: cannot open shared object file: No such file\n"
    assert diagnosis_of(error + OTHER_DEVICE).primary is not None


DUMP = """\
PyTorch version: 2.3.1+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.10.14 (64-bit runtime)
Is CUDA available: True
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
Nvidia driver version: 550.54.15
[pip3] numpy==1.26.4
[pip3] torch==2.3.1+cu121
"""
MISFITS = ["torchaudio==2.1.0", "torchvision==0.15.2", "nvidia-cudnn-cu12==9.1.0.70"]
QUESTIONS = [
    OTHER_DEVICE,
    "Lower accuracy than in the paper\n\nThe learning rate is the default.\n",
    "[Usage]: How do I switch off the reasoning parser?\n",
]


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("said", QUESTIONS, ids=["error", "accuracy", "tracker"])
def test_a_misfit_that_only_a_dump_shows_is_no_error_beside_another_complaint(
    said: str, misfit: str
) -> None:
    found = diagnosis_of(f"{said}\n{DUMP}[pip3] {misfit}\n")
    assert found.primary in (None, "not-environment")
    assert not [finding.cause for finding in found.findings if finding.severity is ERROR]


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: operator torchvision::nms does not exist\n",
        "It crashes at once\n",
        "torch does not see the GPU\n",
        "",
    ],
)
def test_it_stays_an_error_where_it_may_be_the_complaint(said: str) -> None:
    found = diagnosis_of(f"{said}\n{DUMP}[pip3] torchvision==0.15.2\n")
    assert found.primary == "torch-companion-mismatch"


def test_a_cpu_build_in_a_dump_is_no_error_beside_a_feature_request() -> None:
    dump = (
        DUMP.replace("+cu121", "+cpu")
        .replace("PyTorch: 12.1", "PyTorch: None")
        .replace("available: True", "available: False")
    )
    asked = "### The feature, motivation and pitch\n\nA sparse torch.cumsum would be useful.\n\n"
    assert diagnosis_of(asked + dump).primary in (None, "not-environment", "torch-bug")
    assert diagnosis_of("Training runs on the CPU\n\n" + dump).primary == "torch-cpu-build"


@pytest.mark.parametrize(("release", "fits"), [("0.6.0", True), ("0.15.2", False)])
def test_torchtext_without_compiled_code_fits_every_torch(release: str, fits: bool) -> None:
    found = diagnosis_of(f"{DUMP}[pip3] torchtext=={release}\n")
    assert (found.primary != "torch-companion-mismatch") is fits


def test_a_tool_that_is_listed_is_no_error_of_the_hub() -> None:
    listed = diagnosis_of(f"{DUMP}[pip3] wandb==0.15.2\n[pip3] torchvision==0.15.2\n")
    assert listed.primary == "torch-companion-mismatch"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Found no NVIDIA driver on your system. My GPU: Intel Corporation Iris Plus", True),
        ("Found no NVIDIA driver on your system. My CPU: Intel Corporation Core i7", False),
    ],
)
def test_the_graphics_of_the_processor_are_no_nvidia_gpu(text: str, cause: bool) -> None:
    assert (diagnosis_of(text).primary == "gpu-not-detected") is cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("modprobe: ERROR: could not insert 'nvidia_352_uvm': Unknown symbol", "uvm-not-loaded"),
        ("modprobe: ERROR: could not insert 'nvidia_352': Unknown symbol", "driver-not-loaded"),
        ("Kernel driver in use: nouveau", "driver-not-loaded"),
        (
            "Kernel driver in use: nouveau\nbash: nvidia-smi: command not found",
            "driver-not-installed",
        ),
        ("The install breaks on macOS: no triton there", "platform-unsupported"),
        ("The install breaks: no triton there", "triton-broken"),
        ("In the terminal torch sees the GPU, in PyCharm it prints cpu", "wrong-interpreter"),
        ('My GPU is an AMD one and I get "Torch not compiled with CUDA"', "torch-wrong-backend"),
        ('My GPU is an RTX 3060 and I get "Torch not compiled with CUDA"', "torch-cpu-build"),
        ("The wheel has no sm_61, nothing runs on my GTX 1080", "torch-arch-unsupported-old"),
    ],
)
def test_neighbours_are_told_apart(text: str, cause: str) -> None:
    assert diagnosis_of(text + "\n").primary == cause


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("65 tokens/s in inference on my RTX 4090, is that all?", True),
        ("20 it/s before the driver update and 3 it/s since then, why?", False),
        ("Epochs 1 to 8 show 2697MiB, epoch 9 shows 2845MiB.", True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB in epoch 9, 1 MiB free", False),
        ("The answers are sensible here and nonsense on the RTX 3090.", True),
        ("The answers are sensible here and there is an Xid 79 on the RTX 3090.", False),
    ],
)
def test_questions_of_speed_memory_and_numbers(text: str, harmless: bool) -> None:
    found = {finding.cause for finding in diagnosis_of(text + "\n").findings}
    assert ("not-environment" in found) is harmless

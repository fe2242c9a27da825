"""The dumps of other projects, banners, transcripts and torch's own messages -> facts."""

from __future__ import annotations

import pytest
from packaging.version import Version
from reader_fixtures import shown

from cudadoctor.model.versions import DriverVersion

HUGGING_FACE = """\
- `transformers` version: 4.41.2
- Platform: Linux-6.5.0-35-generic-x86_64-with-glibc2.35
- Python version: 3.11.9
- Huggingface_hub version: 0.23.2
- Safetensors version: 0.4.3
- PyTorch version (GPU?): 2.3.0+cu121 (False)
- Using GPU in script?: <fill in>
"""
ACCELERATE = """\
- `Accelerate` version: 1.8.1
- Platform: Windows-10-10.0.22631-SP0
- `accelerate` bash location: C:\\venv\\Scripts\\accelerate
- Python version: 3.10.11
- Numpy version: 1.26.4
- PyTorch version: 2.7.1+cpu
- PyTorch accelerator: N/A
- System RAM: 31.9 GB
- GPU type: NVIDIA GeForce RTX 4060 Laptop GPU
"""
DEEPSPEED = """\
torch install path ............... ['/opt/conda/lib/python3.10/site-packages/torch']
torch version .................... 2.1.2+cu118
deepspeed install path ........... ['/opt/conda/lib/python3.10/site-packages/deepspeed']
deepspeed info ................... 0.14.0, unknown, unknown
torch cuda version ............... 11.8
torch hip version ................ None
nvcc version ..................... 12.2
deepspeed wheel compiled w. ...... torch 2.1, cuda 11.8
shared memory (/dev/shm) size .... 64.00 MB
"""
MMCV = """\
sys.platform: linux
Python: 3.7.10 (default, Feb 26 2021, 18:47:35) [GCC 7.3.0]
CUDA available: True
GPU 0,1: GeForce RTX 3080
CUDA_HOME: /usr/local/cuda-10.1
NVCC: Cuda compilation tools, release 10.1, V10.1.24
GCC: gcc (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0
PyTorch: 1.7.0
PyTorch compiling details: PyTorch built with:
  - CUDA Runtime 11.0
  - NVCC architecture flags: -gencode;arch=compute_37,code=sm_37;-gencode;arch=compute_80,
    code=sm_80;-gencode;arch=compute_37,code=compute_37
  - CuDNN 8.0.3

TorchVision: 0.8.0
MMCV: 1.3.3
MMCV Compiler: GCC 7.3
MMCV CUDA Compiler: 11.0
"""
DETECTRON = """\
----------------------  ----------------------------------------------------------------
sys.platform            linux
Python                  3.8.8 (default, Feb 24 2021, 21:46:12) [GCC 7.3.0]
detectron2              0.4 @/opt/conda/lib/python3.8/site-packages/detectron2
detectron2 arch flags   3.7, 5.0
DETECTRON2_ENV_MODULE   <not set>
PyTorch                 1.8.1 @/opt/conda/lib/python3.8/site-packages/torch
PyTorch debug build     False
GPU available           False
GPU 0                   Tesla V100-SXM2-16GB (arch=7.0)
CUDA_HOME               /usr/local/cuda - invalid!
torchvision             0.9.1 @/opt/conda/lib/python3.8/site-packages/torchvision
"""


def test_hugging_faces_dump_is_read() -> None:
    m = shown(HUGGING_FACE)
    assert (m.torch.text, m.torch.cuda, m.python.version) == (
        "2.3.0+cu121",
        Version("12.1"),
        Version("3.11.9"),
    )
    assert m.torch.imported is not None
    assert m.torch.imported.cuda_available is False
    assert m.package("transformers") is not None


def test_accelerates_dump_is_read() -> None:
    m = shown(ACCELERATE)
    assert (m.platform.system, m.torch.build) == ("Windows", "cpu")
    assert [gpu.name for gpu in m.gpus or ()] == ["NVIDIA GeForce RTX 4060 Laptop GPU"]


def test_deepspeeds_report_is_read() -> None:
    m = shown(DEEPSPEED)
    assert (m.torch.cuda, m.limits.shm_bytes) == (Version("11.8"), 64 << 20)
    assert [toolkit.cuda for toolkit in m.build.toolkits or ()] == [Version("12.2")]
    assert m.package("deepspeed") is not None


def test_mmcvs_dump_tells_what_torch_was_compiled_for() -> None:
    m = shown(MMCV)
    assert m.torch.archs == ("sm_37", "sm_80", "compute_37")
    assert (m.torch.cuda, m.torch.version) == (Version("11.0"), Version("1.7.0"))
    assert [(gpu.index, gpu.name) for gpu in m.gpus or ()] == [
        (0, "GeForce RTX 3080"),
        (1, "GeForce RTX 3080"),
    ]
    assert (m.build.cuda_home, m.package("torchvision") is not None) == (
        "/usr/local/cuda-10.1",
        True,
    )


def test_detectrons_table_is_read() -> None:
    m = shown(DETECTRON)
    assert m.torch.path == "/opt/conda/lib/python3.8/site-packages/torch"
    assert m.torch.imported is not None
    assert m.torch.imported.cuda_available is False
    assert m.gpus is not None
    assert m.gpus[0].capability == Version("7.0")
    assert (m.build.cuda_home, m.build.cuda_home_exists) == ("/usr/local/cuda", False)


def test_xformers_info_is_read() -> None:
    m = shown(
        "xFormers 0.0.22\npytorch.version:                         2.0.1+cu118\n"
        "pytorch.cuda:                            not available\n"
        "gpu.name:                                NVIDIA GeForce RTX 3090\n"
    )
    assert m.torch.text == "2.0.1+cu118"
    assert m.torch.imported is not None
    assert m.torch.imported.cuda_available is False


def test_what_xformers_was_built_for_is_read() -> None:
    m = shown(
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
        "    PyTorch 2.1.0+cu121 with CUDA 1201 (you have 2.1.2+cpu)\n    Python  3.10.13\n"
        "xformers==0.0.22\n"
    )
    assert (m.torch.text, m.torch.build) == ("2.1.2+cpu", "cpu")


@pytest.mark.parametrize(
    ("text", "torch", "gpu"),
    [
        (
            "Ultralytics YOLOv8.0.196 🚀 Python-3.10.12 torch-2.0.1+cu118 "
            "CUDA:0 (NVIDIA GeForce RTX 3060, 12287MiB)",
            "2.0.1+cu118",
            "NVIDIA GeForce RTX 3060",
        ),
        ("YOLOv5 🚀 v6.1-0 torch 1.11.0+cpu CPU", "1.11.0+cpu", None),
        (
            "Total VRAM 8192 MB, total RAM 32694 MB\npytorch version: 2.3.1+cu121\n"
            "Set vram state to: NORMAL_VRAM\nDevice: cuda:0 NVIDIA GeForce RTX 3070 : native\n",
            "2.3.1+cu121",
            "NVIDIA GeForce RTX 3070",
        ),
        (
            "version: v1.6.0  •  python: 3.10.6  •  torch: 2.0.1+cu118  •  xformers: N/A  •  "
            "gradio: 3.41",
            "2.0.1+cu118",
            None,
        ),
        (
            "## System Information\n- **ComfyUI Version:** v0.3.10\n- **OS:** nt\n"
            "- **Python Version:** 3.12.7 (tags/v3.12.7) [MSC v.1941 64 bit (AMD64)]\n"
            "- **Embedded Python:** true\n- **PyTorch Version:** 2.5.1+cu124\n## Devices\n"
            "- **Name:** cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync\n"
            "  - **VRAM Total:** 25756696576\n",
            "2.5.1+cu124",
            "NVIDIA GeForce RTX 4090",
        ),
        (
            "* CUDA:\n\t- GPU:\n\t\t- NVIDIA GeForce RTX 2080 Ti\n\t- available:         True\n"
            "\t- version:           11.7\n* Lightning:\n\t- torch:             2.0.0\n* System:\n"
            "\t- OS:                Linux\n\t- python:            3.9.16\n",
            "2.0.0",
            "NVIDIA GeForce RTX 2080 Ti",
        ),
        (
            "=================== bitsandbytes v0.46.0 ===================\n"
            "Platform: Linux-6.8.0-60-generic-x86_64-with-glibc2.39\n  libc: glibc-2.39\n"
            "Python: 3.12.3\n"
            "PyTorch: 2.7.1+cu126\n  CUDA: 12.6\n  HIP: N/A\nRelated packages:\n  numpy: 2.2.6\n",
            "2.7.1+cu126",
            None,
        ),
    ],
)
def test_the_lines_with_which_programs_start_are_read(
    text: str, torch: str, gpu: str | None
) -> None:
    m = shown(text)
    assert m.torch.text == torch
    assert [seen.name for seen in m.gpus or ()] == ([gpu] if gpu else [])


def test_lists_of_devices_in_logs_are_read() -> None:
    m = shown(
        "ggml_cuda_init: found 2 CUDA devices:\n"
        "  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes\n"
        "  Device 1: Tesla P40, compute capability 6.1, VMM: yes\n"
    )
    assert [(gpu.index, gpu.capability) for gpu in m.gpus or ()] == [
        (0, Version("8.6")),
        (1, Version("6.1")),
    ]
    tensorflow = shown(
        "Created device /job:localhost/replica:0/task:0/device:GPU:0 with 14000 MB memory:  -> "
        "device: 0, name: Tesla T4, pci bus id: 0000:00:04.0, compute capability: 7.5"
    )
    assert [gpu.name for gpu in tensorflow.gpus or ()] == ["Tesla T4"]


# --- questions and answers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        ">>> import torch\n>>> torch.__version__\n'1.13.1+cpu'\n>>> torch.cuda.is_available()\n"
        "False\n",
        "In [2]: torch.__version__\nOut[2]: '1.13.1+cpu'\n\nIn [3]: torch.cuda.is_available()\n"
        "Out[3]: False",
        '$ python -c "import torch; print(torch.__version__, torch.cuda.is_available())"\n'
        "1.13.1+cpu False\n",
        "torch.__version__: 1.13.1+cpu\ntorch.cuda.is_available(): False\n",
        "print(torch.__version__)\nprint(torch.cuda.is_available())\n1.13.1+cpu\nFalse\n",
        "print(torch.cuda.is_available())  # False\nprint(torch.__version__)  # 1.13.1+cpu\n",
    ],
)
def test_answers_of_torch_are_found_behind_their_questions(text: str) -> None:
    m = shown(text)
    assert m.torch.text == "1.13.1+cpu"
    assert m.torch.imported is not None
    assert m.torch.imported.cuda_available is False


def test_a_question_without_an_answer_tells_nothing() -> None:
    m = shown("if torch.cuda.is_available():\n    model.cuda()\nTrue story, it fails\n")
    assert m.torch.imported is None or m.torch.imported.cuda_available is not False


def test_further_answers_are_read() -> None:
    m = shown(
        ">>> torch.version.cuda\n'11.3'\n>>> torch.cuda.device_count()\n2\n"
        ">>> torch.cuda.get_device_capability(0)\n(8, 6)\n"
        ">>> torch.cuda.get_arch_list()\n['sm_37', 'sm_50', 'compute_50']\n"
        ">>> torch.backends.cudnn.version()\n8200\n"
    )
    assert (m.torch.cuda, m.torch.archs) == (Version("11.3"), ("sm_37", "sm_50", "compute_50"))
    assert m.torch.imported is not None
    assert m.torch.imported.capabilities == (Version("8.6"),)
    assert (m.torch.imported.device_count, m.torch.imported.cudnn) == (2, "8.2.0")


# --- messages of torch --------------------------------------------------------------------------


def test_a_driver_that_is_too_old_is_named_by_its_cuda() -> None:
    m = shown("The NVIDIA driver on your system is too old (found version 11040). Please update")
    assert (m.driver.cuda, m.torch.build) == (Version("11.4"), "cuda")


def test_architectures_and_the_gpu_are_named_by_a_warning() -> None:
    m = shown(
        "NVIDIA GeForce RTX 3090 with CUDA capability sm_86 is not compatible with the current "
        "PyTorch installation.\nThe current PyTorch install supports CUDA capabilities sm_37 sm_50 "
        "sm_60 sm_70.\n"
    )
    assert m.torch.archs == ("sm_37", "sm_50", "sm_60", "sm_70")
    assert m.gpus is not None
    assert (m.gpus[0].name, m.gpus[0].capability) == ("NVIDIA GeForce RTX 3090", Version("8.6"))


def test_a_gpu_that_is_too_old_is_named_with_its_capability() -> None:
    m = shown(
        "Found GPU0 Quadro K4000 which is of cuda capability 3.0.\n"
        "PyTorch no longer supports this GPU because it is too old.\n"
    )
    assert m.gpus is not None
    assert (m.gpus[0].name, m.gpus[0].capability) == ("Quadro K4000", Version("3.0"))


def test_a_build_without_cuda_says_so() -> None:
    m = shown("AssertionError: Torch not compiled with CUDA enabled")
    assert (m.torch.build, m.torch.installed) == ("cpu", True)


def test_a_toolkit_that_does_not_fit_is_named_by_torch() -> None:
    m = shown(
        "RuntimeError:\nThe detected CUDA version (12.1) mismatches the version that was used to "
        "compile\nPyTorch (11.8). Please make sure to use the same CUDA versions."
    )
    assert m.torch.cuda == Version("11.8")
    assert [toolkit.cuda for toolkit in m.build.toolkits or ()] == [Version("12.1")]
    assert m.build.needed_by == ("--compile",)


def test_the_kernels_module_and_its_log_are_read() -> None:
    m = shown(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
        "[  417.123456] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU "
        "has fallen\n"
    )
    assert (m.driver.kernel, m.driver.flavour) == (DriverVersion("570.133.07"), "open")
    assert [(xid.code, xid.bus_id) for xid in m.driver.xids or ()] == [(79, "0000:41:00")]
    assert m.build.compiler.version is None
    assert [xid.code for xid in shown("I see Xid 43 every hour").driver.xids or ()] == [43]


@pytest.mark.parametrize(
    "text",
    [
        "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 11.8, V11.8.89\n",
        "Build cuda_11.8.r11.8/compiler.31833905_0",
        "Cuda compilation tools,\nrelease 11.8, V11.8.89",
    ],
)
def test_nvcc_is_read_whole_or_in_one_line(text: str) -> None:
    assert [toolkit.cuda for toolkit in shown(text).build.toolkits or ()] == [Version("11.8")]

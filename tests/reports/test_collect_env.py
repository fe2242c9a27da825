"""torch's collect_env of every generation -> facts."""

from __future__ import annotations

from packaging.version import Version
from reader_fixtures import shown as read

from cudadoctor.model.versions import DriverVersion

OLDEST = """\
PyTorch version: 1.0.0
Is debug build: No
CUDA used to build PyTorch: 9.0.176

OS: Ubuntu 16.04.5 LTS
GCC version: (Ubuntu 5.4.0-6ubuntu1~16.04.10) 5.4.0 20160609
CMake version: version 3.5.1

Python version: 3.6
Is CUDA available: Yes
CUDA runtime version: 9.0.176
GPU models and configuration: GPU 0: Tesla K80
Nvidia driver version: 384.111
cuDNN version: Probably one of the following:
/usr/local/cuda-9.0/lib64/libcudnn.so.7.1.4
/usr/local/cuda-9.0/lib64/libcudnn_static.a

Versions of relevant libraries:
[pip] numpy==1.15.4
[pip] torch==1.0.0
[conda] cuda90                    1.0                  h6433d27_0    pytorch
[conda] pytorch                   1.0.0           py3.6_cuda9.0.176_cudnn7.4.1_1  [cuda90]  pytorch
"""

MODERN = """\
Collecting environment information...
/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:138: UserWarning: CUDA initialization
PyTorch version: 2.9.0+cu130
Is debug build: False
CUDA used to build PyTorch: 13.0
ROCM used to build PyTorch: N/A

OS: Fedora Linux 41 (Workstation Edition) (x86_64)
GCC version: (GCC) 14.2.1 20240912 (Red Hat 14.2.1-3)
Clang version: Could not collect
CMake version: version 4.0.2
Libc version: glibc-2.40

Python version: 3.13.2 experimental free-threading build (main) [GCC 14.2.1] (64-bit runtime)
Python platform: Linux-6.13.5-200.fc41.x86_64-x86_64-with-glibc2.40
Is CUDA available: False
CUDA runtime version: Could not collect
CUDA_MODULE_LOADING set to: N/A
GPU models and configuration:
GPU 0: NVIDIA RTX A6000
GPU 1: NVIDIA GeForce GTX 1080 Ti

Nvidia driver version: 570.133.07
cuDNN version: Could not collect
Is XPU available: False
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True
Caching allocator config: {'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True'}

CPU:
Architecture:                         x86_64
CPU(s):                               32
Hypervisor vendor:                    KVM

Versions of relevant libraries:
[pip3] numpy==2.2.3
[pip3] nvidia-cudnn-cu13==9.13.0.50
[pip3] torch==2.9.0+cu130
[conda] Could not collect
"""


def test_the_oldest_form_is_read() -> None:
    m = read(OLDEST)
    assert (m.torch.version, m.torch.build, m.torch.cuda) == (
        Version("1.0.0"),
        "cuda",
        Version("9.0"),
    )
    assert m.torch.imported is not None
    assert m.torch.imported.cuda_available is True
    assert m.driver.reported == DriverVersion("384.111")
    assert [gpu.name for gpu in m.gpus or ()] == ["Tesla K80"]
    assert (m.platform.distro, m.platform.distro_version) == ("ubuntu", "16.04")
    assert m.build.toolkits is not None
    assert m.build.toolkits[0].cuda == Version("9.0")
    assert [library.version for library in m.libraries.copies or ()] == ["7.1.4"]
    assert m.package("numpy") is not None


def test_the_newest_form_is_read() -> None:
    m = read(MODERN)
    assert m.torch.text == "2.9.0+cu130"
    assert (m.python.version, m.python.free_threaded, m.python.bits) == (
        Version("3.13.2"),
        True,
        64,
    )
    assert (m.platform.distro, m.platform.glibc) == ("fedora", Version("2.40"))
    assert m.platform.kernel == "6.13.5-200.fc41.x86_64"
    assert [gpu.index for gpu in m.gpus or ()] == [0, 1]
    assert m.gpus is not None
    assert m.gpus[1].name == "NVIDIA GeForce GTX 1080 Ti"
    assert m.env == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (m.limits.cpus, m.platform.virtual) == (32, "kvm")
    assert m.build.toolkits is None
    package = m.package("nvidia-cudnn-cu13")
    assert package is not None
    assert package.version == "9.13.0.50"


def test_no_cuda_version_is_a_build_for_the_cpu() -> None:
    for words in ("None", "Could not collect"):
        m = read(
            f"PyTorch version: 2.1.0\nIs debug build: False\nCUDA used to build PyTorch: {words}\n"
        )
        assert m.torch.build == "cpu"


def test_a_build_for_rocm_is_none_for_the_cpu() -> None:
    text = "PyTorch version: 2.4.0+rocm6.1\nCUDA used to build PyTorch: N/A\n"
    m = read(text + "ROCM used to build PyTorch: 6.1.40091-a8dbc0c19\n")
    assert m.torch.build == "rocm"
    amd = read("GPU models and configuration: AMD Radeon RX 7900 XTX (gfx1100)\n")
    assert amd.gpus is None
    assert [device.vendor for device in amd.pci or ()] == ["amd"]


def test_no_cuda_says_nothing_of_the_hardware() -> None:
    m = read(
        "Is CUDA available: No\nCUDA runtime version: No CUDA\n"
        "GPU models and configuration: No CUDA\nNvidia driver version: No CUDA\n"
        "cuDNN version: No CUDA\n"
    )
    assert m.gpus is None
    assert m.driver.reported is None
    assert m.build.toolkits is None


def test_a_torch_that_could_not_be_asked_is_not_known_to_be_absent() -> None:
    m = read("PyTorch version: N/A\nIs debug build: N/A\nCUDA used to build PyTorch: N/A\n")
    assert m.torch.installed is None
    assert m.torch.build is None


def test_a_dump_that_lost_its_line_breaks_is_read() -> None:
    m = read(" ".join(MODERN.split()))
    assert (m.torch.cuda, m.driver.reported) == (Version("13.0"), DriverVersion("570.133.07"))
    assert [gpu.name for gpu in m.gpus or ()] == ["NVIDIA RTX A6000", "NVIDIA GeForce GTX 1080 Ti"]
    assert m.platform.distro == "fedora"


def test_one_line_of_a_dump_is_enough() -> None:
    assert read("> CUDA used to build PyTorch: 11.3").torch.cuda == Version("11.3")
    assert read("Nvidia driver version: 440.33.01").driver.reported == DriverVersion("440.33.01")


def test_windows_and_its_python_are_read() -> None:
    m = read(
        "PyTorch version: 1.8.1+cpu\nIs debug build: False\nOS: Microsoft Windows 10 Pro\n"
        "Python version: 3.8.10 (tags/v3.8.10:3d8993a, May  3 2021, 11:48:03) [MSC v.1928 64 "
        "bit (AMD64)]"
        " (64-bit runtime)\nPython platform: Windows-10-10.0.19041-SP0\nIs CUDA available: False\n"
        "cuDNN version: C:\\Program Files\\NVIDIA GPU Computing "
        "Toolkit\\CUDA\\v11.1\\bin\\cudnn64_8.dll\n"
    )
    assert (m.platform.system, m.python.bits, m.torch.build) == ("Windows", 64, "cpu")
    assert [library.soname for library in m.libraries.copies or ()] == ["cudnn64_8.dll"]


def test_wsl_and_jetson_are_seen_in_the_kernel() -> None:
    wsl = read("Python platform: Linux-5.15.90.1-microsoft-standard-WSL2-x86_64-with-glibc2.35")
    assert (wsl.platform.wsl, wsl.platform.machine) == (2, "x86_64")
    tegra = read("Python platform: Linux-5.10.104-tegra-aarch64-with-glibc2.29")
    assert (tegra.platform.jetson, tegra.platform.machine) == (True, "aarch64")


def test_an_impossible_c_library_is_not_believed() -> None:
    assert read("Python platform: Linux-5.4.0-x86_64-with-glibc2.10").platform.glibc is None


def test_vllm_pads_its_labels() -> None:
    m = read(
        "==============================\n       PyTorch Info\n==============================\n"
        "PyTorch version              : 2.7.0+cu126\nIs debug build               : False\n"
        "CUDA used to build PyTorch   : 12.6\n\n"
        "Is CUDA available            : True\nCUDA runtime version         : 12.4.131\n"
        "GPU models and configuration : \nGPU 0: NVIDIA H100 80GB HBM3\n"
        "  MIG 1g.10gb     Device  0:\n\n"
        "Nvidia driver version        : 550.54.15\nvLLM Version                 : 0.9.1\n"
    )
    assert m.torch.cuda == Version("12.6")
    assert m.gpus is not None
    assert (m.gpus[0].name, m.gpus[0].mig) == ("NVIDIA H100 80GB HBM3", True)
    assert m.package("vllm") is not None


def test_a_form_that_a_person_filled_in_weighs_less_than_a_tool() -> None:
    form = (
        " - PyTorch Version (e.g., 1.0): 1.6\n - GPU models and configuration: RTX 3090 24GB x 2\n"
    )
    m = read(form + "\nGPU 0: NVIDIA GeForce RTX 3080 (UUID: GPU-1f0c)\n")
    assert m.gpus is not None
    assert m.gpus[0].name == "NVIDIA GeForce RTX 3080"

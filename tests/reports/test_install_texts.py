"""Excerpts about installing and compiling, as threads show them: the cause that is named.

Each is written for this test around the words that the program prints.
"""

from __future__ import annotations

import pytest

from cudadoctor.diagnose import diagnose
from cudadoctor.findings import Severity
from cudadoctor.knowledge import load
from cudadoctor.reports.reading import read_report

KB = load()
TEXTS: tuple[tuple[str, str], ...] = (
("build-isolation","""pip install flash-attn
Collecting flash-attn
  Downloading flash_attn-2.5.8.tar.gz (2.5 MB)
  Preparing metadata (setup.py) ... error
  error: subprocess-exited-with-error
  × python setup.py egg_info did not run successfully.
      ModuleNotFoundError: No module named 'torch'
"""),
("build-isolation","""Installing build dependencies ... done
Getting requirements to build wheel did not run successfully.
  File "/tmp/pip-build-env-abc/overlay/lib/python3.10/site-packages/setuptools/build_meta.py", line 325
  File "<string>", line 9, in <module>
ModuleNotFoundError: No module named 'torch'
I do have torch installed: torch 2.3.0+cu121"""),
("build-isolation","""uv pip install xformers==0.0.20
  × Failed to build `xformers==0.0.20`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)
      ModuleNotFoundError: No module named 'torch'
      hint: This error likely indicates that `xformers@0.0.20` depends on `torch`, but doesn't declare it as a build dependency."""),
("torch-missing","""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'"""),
("wrong-interpreter","""$ pip install torch
Requirement already satisfied: torch in /home/me/.local/lib/python3.8/site-packages (1.13.1)
$ python train.py
ModuleNotFoundError: No module named 'torch'"""),
("disk-full","""ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"""),
("disk-full","""error: failed to register layer: write /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: no space left on device"""),
("shm-too-small","""RuntimeError: unable to write to file </torch_29_123_0>: No space left on device (28)"""),
("toolkit-missing","""OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."""),
("toolkit-missing","""/bin/sh: 1: nvcc: not found
building deepspeed"""),
("toolkit-env-wrong","""$ nvcc --version
Cuda compilation tools, release 12.1, V12.1.105
$ python setup.py install
OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."""),
("toolkit-env-wrong","""error: [Errno 2] No such file or directory: ':/usr/local/cuda/bin/nvcc'"""),
("toolkit-torch-mismatch","""RuntimeError:
The detected CUDA version (11.2) mismatches the version that was used to compile
PyTorch (10.2). Please make sure to use the same CUDA versions."""),
("toolkit-torch-mismatch","""Exception: >- DeepSpeed Op Builder: Installed CUDA version 12.2 does not match the version torch was compiled with 11.7, unable to compile cuda/cpp extensions without a matching cuda version."""),
("host-compiler-unsupported","""/usr/local/cuda/include/crt/host_config.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 11 are not supported!"""),
("host-compiler-unsupported","""fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version! Only the versions between 2017 and 2022 (inclusive) are supported!"""),
("host-compiler-unsupported","""error: Microsoft Visual C++ 14.0 or greater is required. Get it with "Microsoft C++ Build Tools": https://visualstudio.microsoft.com/visual-cpp-build-tools/"""),
("host-compiler-unsupported","""UserWarning: Error checking compiler version for cl: [WinError 2] The system cannot find the file specified"""),
("host-compiler-unsupported","""/usr/include/c++/11/bits/std_function.h:435:145: error: parameter packs not expanded with '...':
  435 |         function(_Functor&& __f)"""),
("arch-list-wrong","""nvcc fatal   : Unsupported gpu architecture 'compute_89'
ninja: build stopped: subcommand failed."""),
("arch-list-wrong","""  File "/opt/conda/lib/python3.10/site-packages/torch/utils/cpp_extension.py", line 1780, in _get_cuda_arch_flags
    arch_list[-1] += '+PTX'
IndexError: list index out of range"""),
("arch-list-wrong","""ValueError: Unknown CUDA arch (12.0) or GPU not supported"""),
("triton-broken","""torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
RuntimeError: Cannot find a working triton installation. Either the package is not installed or it is too old."""),
("triton-broken","""RuntimeError: Failed to find C compiler. Please specify via CC environment variable."""),
("triton-broken","""/tmp/tmpx/main.c:4:10: fatal error: Python.h: No such file or directory
subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpx/main.c', ... '-I/usr/lib/python3/site-packages/triton/common/../third_party/cuda/include'"""),
("triton-broken","""ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler' (/home/x/.venv/lib/python3.11/site-packages/triton/compiler/compiler.py)"""),
("triton-broken","""ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'
triton.runtime.errors.PTXASError"""),
("triton-broken","""RuntimeError: Windows not yet supported for torch.compile"""),
("torch-duplicate","""AttributeError: partially initialized module 'torch' has no attribute 'nn' (most likely due to a circular import)
  File "/home/u/work/torch.py", line 1, in <module>"""),
("torch-duplicate","""AttributeError: module 'torch' has no attribute '__version__'"""),
("torch-python-unsupported","""Python 3.13 on Windows 11
pip3 install torch torchvision torchaudio --index-url https://download.pytorch.org/whl/cu121
ERROR: Could not find a version that satisfies the requirement torch (from versions: none)
ERROR: No matching distribution found for torch"""),
("torch-cpu-build","""conda install pytorch torchvision cpuonly -c pytorch
>>> torch.cuda.is_available()
False
GPU: RTX 3060"""),
("not-environment","""pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.pythonhosted.org', port=443): Read timed out.
while running pip install torch"""),
("platform-unsupported","""On Alpine Linux (musl) in docker, python:3.11-alpine
pip install torch
ERROR: Could not find a version that satisfies the requirement torch (from versions: none)
ERROR: No matching distribution found for torch"""),
("platform-unsupported","""Raspberry Pi, armv7l, Python 3.9
pip install torch
ERROR: Could not find a version that satisfies the requirement torch (from versions: none)"""),
("torch-index-wrong","""ERROR: HTTP error 403 while getting https://download.pytorch.org/whl/cu113/torch-1.13.0%2Bcu113-cp310-cp310-linux_x86_64.whl"""),
("torch-index-wrong","""[[tool.uv.index]]
name = "pytorch-cu118"
url = "https://download.pytorch.org/whl/cu118"
explicit = true
[tool.uv.sources]
torch = { index = "pytorch-cu118" }

  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of torch==2.8.0 and your project depends on torch==2.8.0, we can conclude that your project's requirements are unsatisfiable."""),
("torch-cpu-build","""Windows 10, RTX 4070, Python 3.11
requirements.txt:
torch==2.3.0
torchvision==0.18.0
pip install -r requirements.txt
AssertionError: Torch not compiled with CUDA enabled"""),
("triton-broken","""Windows: pip install triton
ERROR: Could not find a version that satisfies the requirement triton==2.1.0 (from versions: none)
ERROR: No matching distribution found for triton==2.1.0"""),
("torch-extension-abi","""RuntimeError: Not compiled with GPU support
in docker build of detectron2"""),
("out-of-memory","""c++: fatal error: Killed signal terminated program cc1plus
compilation terminated."""),
("host-compiler-unsupported","""#error C++17 or later compatible compiler is required to use ATen."""),
("toolkit-missing","""fatal error: cuda_runtime.h: No such file or directory
 #include <cuda_runtime.h>"""),
("toolkit-missing","""CMake Error: Could NOT find CUDA (missing: CUDA_TOOLKIT_ROOT_DIR CUDA_NVCC_EXECUTABLE CUDA_INCLUDE_DIRS CUDA_CUDART_LIBRARY)"""),
("torch-python-unsupported","""ERROR: Ignored the following versions that require a different python version: 2.5.0 Requires-Python >=3.8.0
ERROR: Could not find a version that satisfies the requirement torch==2.5.0 (from versions: 1.7.0, 1.7.1, 1.8.0, 1.8.1, 1.9.0, 1.9.1, 1.10.0, 1.10.1, 1.10.2, 1.11.0, 1.12.0, 1.12.1, 1.13.0, 1.13.1)"""),
("torch-cpu-build","""Collecting torch
  Downloading torch-2.4.0-cp311-cp311-win_amd64.whl.metadata (27 kB)
Successfully installed torch-2.4.0
>>> torch.cuda.is_available()
False"""),
("torch-index-wrong","""pip install --pre torch==2.1.0.dev20230615+cu121 --index-url https://download.pytorch.org/whl/nightly/cu121
ERROR: Could not find a version that satisfies the requirement torch==2.1.0.dev20230615+cu121 (from versions: 2.2.0.dev20231010+cu121, 2.3.0.dev20240110+cu121)
ERROR: No matching distribution found for torch==2.1.0.dev20230615+cu121"""),
)
HARMLESS = (
    "pip install torch\nSuccessfully installed torch-2.6.0\nEverything works, thank you.",
    "A matching Triton is not available, some optimizations will not be enabled.\n"
    "Error caught was: No module named 'triton'",
    "nvcc warning : The 'compute_35', 'compute_37' architectures are deprecated",
    "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/compiler.34097967_0",
    "WARNING: Running pip as the 'root' user can result in broken permissions",
    "[pip3] torch==2.6.0\n[pip3] triton==3.2.0\n[pip3] numpy==1.26.4",
    "UserWarning: The detected CUDA version (12.2) has a minor version mismatch with the version "
    "that was used to compile PyTorch (12.1). Most likely this shouldn't be a problem.",
)


def named(text: str) -> str | None:
    """The root cause, or what the report shows instead of one."""
    found = diagnose(read_report(text, KB), KB)
    infos = [one.cause for one in found.findings if one.severity is Severity.INFO]
    return found.primary or next(iter(infos), None)


@pytest.mark.parametrize(("cause", "text"), TEXTS)
def test_the_cause_of_an_excerpt_is_named(cause: str, text: str) -> None:
    assert named(text) == cause


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_fault_is_not_called_one(text: str) -> None:
    found = diagnose(read_report(text, KB), KB)
    assert found.primary is None, found.findings

"""Texts about torch, its companions, its extensions and numpy -> the root cause."""

from __future__ import annotations

import pytest

from told_fixtures import root_of

SITE = "/home/me/miniconda3/envs/ml/lib/python3.10/site-packages"
IMPORT = f'''Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "{SITE}/torch/__init__.py", line 367, in <module>
    from torch._C import *  # noqa: F403
'''
DEPS = f'''>>> import torch
  File "{SITE}/torch/__init__.py", line 168, in _load_global_deps
    _preload_cuda_deps(lib_folder, lib_name)
  File "{SITE}/torch/__init__.py", line 120, in _preload_cuda_deps
    ctypes.CDLL(lib_path)
'''
WINDOWS = r"C:\Users\me\venv\Lib\site-packages\torch\lib"

CASES = [
    # a CPU build
    ("torch-cpu-build", "AssertionError: Torch not compiled with CUDA enabled\nRTX 3060, Windows 10"),
    ("torch-cpu-build", ">>> torch.__version__\n'2.4.1+cpu'\n>>> torch.cuda.is_available()\nFalse"),
    ("torch-cpu-build", "I have an RTX 4070. pip install torch gives torch-2.5.0+cpu and the program says CUDA is not available."),
    ("torch-cpu-build", "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'"),
    ("torch-cpu-build", "ImportError: cannot import name '_cuda_getCurrentRawStream' from 'torch._C'"),
    ("torch-cpu-build", "conda list\npytorch 2.1.0 py3.10_cpu_0 pytorch\npytorch-mutex 1.0 cpu pytorch\n\ntorch.cuda.is_available() -> False"),
    ("torch-cpu-build", "uv pip install vllm replaced my torch with the CPU version of torch and nothing uses the GPU any more"),
    ("torch-cpu-build", "print(torch.version.cuda)\nNone\nprint(torch.cuda.is_available())\nFalse\nnvidia-smi shows my GTX 1660"),
    ("torch-cpu-build", "NotImplementedError: Could not run 'aten::empty_strided' with arguments from the 'CUDA' backend. This could be because"),
    ("torch-cpu-build", "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.0.1+cu118 with CUDA 1108 (you have 2.0.1+cpu)"),
    ("torch-cpu-build", 'RuntimeError: "LayerNormKernelImpl" not implemented for \'Half\'\ntorch: 2.0.1+cpu\nGPU: GTX 1070'),
    ("torch-cpu-build", "RuntimeError: PyTorch is not linked with support for cuda devices"),
    ("torch-wrong-backend", "RuntimeError: Torch is not able to use GPU; add --skip-torch-cuda-test to COMMANDLINE_ARGS variable to disable this check\nAMD Radeon RX 6600"),
    ("torch-cpu-build", "RuntimeError: Torch is not able to use GPU; add --skip-torch-cuda-test to COMMANDLINE_ARGS variable to disable this check"),
    # torch's own files
    ("torch-install-corrupt", IMPORT + "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", IMPORT + "ImportError: libcupti.so.12: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", DEPS + "OSError: libcublas.so.11: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", DEPS + "ValueError: libcublas.so.*[0-9] not found in the system path ['/app', '/usr/lib/python3.10']"),
    ("torch-install-corrupt", IMPORT + f"ImportError: {SITE}/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent"),
    ("torch-install-corrupt", f"OSError: {SITE}/torch/lib/libtorch_global_deps.so: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", IMPORT + f"ImportError: {SITE}/torch/lib/libtorch_cuda.so: file too short"),
    ("torch-install-corrupt", f"ImportError: {SITE}/torch/lib/libtorch_cpu.so: cannot read file data: Input/output error"),
    ("torch-install-corrupt", f"OSError: {SITE}/nvidia/cublas/lib/libcublasLt.so.12: invalid ELF header"),
    ("torch-install-corrupt", "AttributeError: partially initialized module 'torch' has no attribute 'Tensor' (most likely due to a circular import)"),
    ("torch-install-corrupt", "ModuleNotFoundError: No module named 'torch._C'"),
    ("torch-install-corrupt", "ImportError: cannot import name 'Tensor' from 'torch' (unknown location)"),
    ("torch-install-corrupt", "OSError: [WinError 193] %1 is not a valid Win32 application\nimport torch"),
    ("torch-install-corrupt", f"OSError: [WinError 127] The specified procedure could not be found. Error loading \"{WINDOWS}\\torch_python.dll\" or one of its dependencies."),
    ("torch-install-corrupt", "INTEL MKL ERROR: libmkl_avx2.so.1\nIntel MKL FATAL ERROR: Cannot load libmkl_avx2.so.1 or libmkl_def.so.1."),
    ("torch-install-corrupt", "ImportError: dlopen(/Users/me/venv/lib/python3.9/site-packages/torch/_C.cpython-39-darwin.so, 2): Library not loaded: @rpath/libomp.dylib\n  Reason: image not found"),
    ("torch-duplicate", "  File \"/home/me/exp/torch.py\", line 2, in <module>\n    x = torch.tensor([1])\nAttributeError: partially initialized module 'torch' has no attribute 'tensor' (most likely due to a circular import)"),
    ("torch-duplicate", "ImportError: Failed to load PyTorch C extensions:\n    It appears that PyTorch has loaded the `torch/_C` folder\n    of the PyTorch repository rather than the C extensions which\n    are expected in the `torch._C` namespace."),
    # Windows
    ("windows-runtime-dll", f'OSError: [WinError 126] The specified module could not be found. Error loading "{WINDOWS}\\fbgemm.dll" or one of its dependencies.'),
    ("windows-runtime-dll", f'OSError: [WinError 126] Das angegebene Modul wurde nicht gefunden. Error loading "{WINDOWS}\\shm.dll" or one of its dependencies.'),
    ("windows-runtime-dll", f'OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error loading "{WINDOWS}\\c10.dll" or one of its dependencies.'),
    ("windows-runtime-dll", "  from torch._C import *  # noqa: F403\nImportError: DLL load failed while importing _C: The specified module could not be found."),
    ("windows-runtime-dll", "Microsoft Visual C++ Redistributable is not installed, this may lead to the DLL load failure.\n                 It can be downloaded at https://aka.ms/vs/16/release/vc_redist.x64.exe"),
    ("windows-runtime-dll", "Could not locate zlibwapi.dll. Please make sure it is in your library path!"),
    ("out-of-memory", f'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "{WINDOWS}\\cudnn_cnn_infer64_8.dll" or one of its dependencies.'),
    # companions
    ("torch-companion-mismatch", "RuntimeError: operator torchvision::nms does not exist"),
    ("torch-companion-mismatch", "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are incompatible, or if you had errors while compiling torchvision from source."),
    ("torch-companion-mismatch", "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend."),
    ("torch-companion-mismatch", "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. PyTorch has CUDA Version=12.1 and torchvision has CUDA Version=11.8."),
    ("torch-companion-mismatch", "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions. PyTorch has CUDA version 11.8 whereas TorchAudio has CUDA version 12.1."),
    ("torch-companion-mismatch", f"OSError: {SITE}/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZN3c104impl3cow11cow_deleterEPv"),
    ("torch-companion-mismatch", f"OSError: {SITE}/torchtext/lib/libtorchtext.so: undefined symbol: _ZN2at4_ops10zeros_like4callE"),
    ("torch-companion-mismatch", f'  File "{SITE}/torchaudio/_extension/utils.py", line 61, in _load_lib\n    torch.ops.load_library(path)\nOSError: libtorch_hip.so: cannot open shared object file: No such file or directory'),
    ("torch-companion-mismatch", f'  File "{SITE}/torchaudio/_extension/__init__.py", line 38\n    _load_lib("libtorchaudio")\nOSError: libcudart.so.13: cannot open shared object file: No such file or directory'),
    ("torch-companion-mismatch", "AttributeError: partially initialized module 'torchvision' has no attribute 'extension' (most likely due to a circular import)"),
    ("torch-companion-mismatch", f'  File "{SITE}/torchvision/_meta_registrations.py", line 164, in <module>\n    @torch.library.register_fake("torchvision::nms")\nAttributeError: module \'torch.library\' has no attribute \'register_fake\''),
    ("torch-companion-mismatch", "torchaudio 2.0.2 requires torch==2.0.1, but you have torch 2.1.2 which is incompatible."),
    ("torch-companion-mismatch", r"OSError: Could not load this library: C:\venv\Lib\site-packages\torchaudio\lib\libtorchaudio.pyd [WinError 127] The specified procedure could not be found"),
    # extensions
    ("torch-extension-abi", f"ImportError: {SITE}/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
    ("torch-extension-abi", f"ImportError: {SITE}/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZNK3c105Error4whatEv"),
    ("torch-extension-abi", f"OSError: {SITE}/torch_sparse/_version_cuda.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs"),
    ("torch-extension-abi", f"ImportError: {SITE}/mmcv/_ext.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops8to_dtype4callERKNS_6TensorE"),
    ("torch-extension-abi", f"ImportError: {SITE}/vllm/_C.abi3.so: undefined symbol: _ZN3c106ivalue14ConstantString6createENSt7__cxx1112basic_stringIcSt11char_traits"),
    ("torch-extension-abi", f"ImportError: {SITE}/transformer_engine_torch.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c1021throwNullDataPtrErrorEv"),
    ("torch-extension-abi", "import mmcv\nImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory"),
    ("torch-extension-abi", f'  File "{SITE}/vllm/platforms/cuda.py", line 19, in <module>\n    import vllm._C  # noqa\nImportError: libcudart.so.12: cannot open shared object file: No such file or directory'),
    ("torch-extension-abi", "ImportError: libtorch_cuda_cpp.so: cannot open shared object file: No such file or directory"),
    ("torch-extension-abi", "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.1.2+cu121 with CUDA 1201 (you have 2.2.0+cu121)\n    Python  3.10.13 (you have 3.10.6)"),
    ("torch-extension-abi", "RuntimeError: Detected that PyTorch and torch_cluster were compiled with different CUDA versions. PyTorch has CUDA version 11.7 and torch_cluster has CUDA version 11.6. Please reinstall"),
    ("torch-extension-abi", "RuntimeError:\n        CUDA Setup failed despite GPU being available. Please run the following command to get more information:\n\n        python -m bitsandbytes"),
    ("torch-extension-abi", f"AttributeError: {SITE}/bitsandbytes/libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats"),
    ("torch-extension-abi", "RuntimeError: Configured CUDA binary not found at /env/lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cuda124.so"),
    ("torch-extension-abi", "ModuleNotFoundError: No module named 'mmcv._ext'"),
    ("torch-extension-abi", "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'"),
    ("torch-extension-abi", "ImportError: DLL load failed while importing flash_attn_2_cuda: The specified procedure could not be found."),
    ("torch-extension-abi", "RuntimeError: Library cublas64_12.dll is not found or cannot be loaded"),
    ("torch-extension-abi", "RuntimeError: Library libcublas.so.12 is not found or cannot be loaded"),
    ("torch-extension-abi", "RuntimeError: Not compiled with GPU support\n  File \"/w/detectron2/layers/nms.py\""),
    ("torch-extension-abi", "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n     query : shape=(2, 1024, 8, 40) (torch.float16)\n`flshattF` is not supported because:\n    xFormers wasn't build with CUDA support"),
    # numpy
    ("numpy-abi", "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.1 as it may crash. To support both 1.x and 2.x\nversions of NumPy, modules must be compiled with NumPy 2.0."),
    ("numpy-abi", "UserWarning: Failed to initialize NumPy: _ARRAY_API not found (Triggered internally at ../torch/csrc/utils/tensor_numpy.cpp:84.)"),
    ("numpy-abi", "RuntimeError: Numpy is not available\ntorch 2.2.2, numpy 2.1.0"),
    ("numpy-abi", "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"),
    ("numpy-abi", "RuntimeError: module compiled against API version 0x10 but this version of numpy is 0xf"),
    ("not-environment", "AttributeError: module 'numpy' has no attribute 'float'.\n`np.float` was a deprecated alias for the builtin `float`."),
    # others
    ("pynvml-conflict", "torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead. If you did not install pynvml directly, please report this to the maintainers of the package that installed pynvml for you."),
    ("pynvml-conflict", "AttributeError: module 'pynvml' has no attribute 'nvmlDeviceGetNvLinkRemoteDeviceType'"),
    ("module-shadowed", "  File \"/home/me/exp/random.py\", line 3, in <module>\n    import torch\nImportError: cannot import name 'Random' from partially initialized module 'random' (most likely due to a circular import) (/home/me/exp/random.py)"),
    ("module-shadowed", "AttributeError: type object 'Callable' has no attribute '_abc_registry'"),
]

BUGS = [
    ("torch-bug", "### 🐛 Describe the bug\n\ntorch.compile gives silently incorrect results for this function with the inductor backend.\n\n### Versions\nPyTorch version: 2.6.0+cu124"),
    ("torch-bug", "torch._dynamo.exc.InternalTorchDynamoError: AttributeError: 'NoneType' object has no attribute 'is_tracing'"),
    ("torch-bug", "RuntimeError: !needs_dynamic_casting<func_t>::check(iter) INTERNAL ASSERT FAILED at \"../aten/src/ATen/native/cuda/CUDALoops.cuh\":210, please report a bug to PyTorch."),
    ("torch-bug", "Conv3d with bf16 uses much more memory: works in torch 2.8.0, fails in torch 2.9.0. Same driver, same GPU."),
    ("torch-bug", "torch._inductor.exc.LoweringException: AssertionError: While executing node"),
]


@pytest.mark.parametrize(("cause", "text"), CASES)
def test_a_text_about_torch_tells_its_cause(cause: str, text: str) -> None:
    assert root_of(text) == cause


@pytest.mark.parametrize(("cause", "text"), BUGS)
def test_a_bug_of_torch_is_no_fault_of_the_environment(cause: str, text: str) -> None:
    assert root_of(text) == cause

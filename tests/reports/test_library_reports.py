"""Texts of the dynamic loader and of CUDA's libraries -> the root cause, by where the file lies."""

from __future__ import annotations

import pytest

from told_fixtures import root_of

SITE = "/home/me/venv/lib/python3.10/site-packages"
NVIDIA = f"{SITE}/torch/lib/../../nvidia"
IMPORT = f'''  File "{SITE}/torch/__init__.py", line 367, in <module>
    from torch._C import *  # noqa: F403
'''

CASES = [
    ("nvjitlink-mismatch", IMPORT + f"ImportError: {NVIDIA}/cusparse/lib/libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12"),
    ("nvjitlink-mismatch", "LD_LIBRARY_PATH=/usr/local/cuda-12.0/lib64\nImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"),
    ("nvidia-wheels-mixed", "[pip3] nvidia-cusparse-cu11==11.7.4.91\n[pip3] nvidia-cusparse-cu12==12.1.0.106\nundefined symbol: __nvJitLinkCreate_12_1, version libnvJitLink.so.12"),
    ("nccl-shadowed", IMPORT + f"ImportError: {SITE}/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"),
    ("nccl-shadowed", "libtorch_cuda.so: undefined symbol: ncclCommWindowRegister\nldd shows /usr/lib/x86_64-linux-gnu/libnccl.so.2"),
    ("nvidia-wheels-mixed", "libtorch_cuda.so: undefined symbol: ncclCommResume\n[pip3] nvidia-nccl-cu12==2.27.3\n[pip3] nvidia-nccl-cu13==2.28.9"),
    ("nvidia-wheels-mixed", "undefined symbol: ncclCommRegister. It appeared after pip install nvidia-nccl-cu12==2.18.1"),
    ("cublas-mismatch", f"ImportError: {NVIDIA}/cublas/lib/libcublas.so.11: symbol cublasLtHSHMatmulAlgoInit version libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference"),
    ("cublas-mismatch", "OSError: /opt/conda/lib/libcublas.so.11: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.11"),
    ("cublas-mismatch", "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`. unset LD_LIBRARY_PATH solved it"),
    ("cuda-lib-shadowed", IMPORT + f"ImportError: {SITE}/torch/lib/libc10_cuda.so: undefined symbol: cudaGetDriverEntryPointByVersion, version libcudart.so.12"),
    ("cuda-lib-shadowed", f"OSError: {SITE}/torch/lib/libtorch_cuda.so: undefined symbol: cusparseSpGEMM_workEstimation, version libcusparse.so.11\nLD_LIBRARY_PATH=/usr/local/cuda-11.0/lib64"),
    ("cuda-lib-shadowed", "nvrtc: error: failed to open libnvrtc-builtins.so.11.7.\n  Make sure that libnvrtc-builtins.so.11.7 is installed correctly."),
    ("cuda-lib-shadowed", "Could not load library libcudnn_cnn_infer.so.8. Error: /usr/local/cuda-11.0/lib64/libnvrtc.so: undefined symbol: nvrtcGetCUBIN"),
    ("torch-bug", "pip3 install torch --index-url https://download.pytorch.org/whl/test/cu124\nImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", IMPORT + "ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory"),
    ("torch-install-corrupt", "OSError: libcurand.so.10: cannot open shared object file: No such file or directory"),
    # cuDNN
    ("cudnn-shadowed", "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 7). PyTorch already comes bundled with cuDNN. One option to resolving this error is to ensure PyTorch can find the bundled cuDNN. Looks like your LD_LIBRARY_PATH contains incompatible version of cudnn."),
    ("cudnn-shadowed", "Loaded runtime CuDNN library: 8.4.0 but source was compiled with: 8.6.0. CuDNN library needs to have matching major version and equal or higher minor version."),
    ("cudnn-shadowed", "Could not load library libcudnn_cnn_train.so.8. Error: /usr/local/cuda-12.1/lib64/libcudnn_cnn_train.so.8: undefined symbol: _ZN5cudnn3cnn34layerNormFwd_execute_internal_implERKNS_7backend11VariantPackE, version libcudnn_cnn_infer.so.8"),
    ("cudnn-shadowed", "Could not load library libcudnn_cnn_train.so.8. Error: /usr/lib/x86_64-linux-gnu/libcudnn_ops_train.so.8: symbol _Z22cudnnGenericOpTensorNdILi3EE, version libcudnn_ops_infer.so.8 not defined in file libcudnn_ops_infer.so.8 with link time reference"),
    ("cudnn-shadowed", "Driver: 570.86\nSystem cuDNN: 9.8.0\nBundled cuDNN: 9.5.1\nRuntimeError: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
    ("cudnn-shadowed", "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH\nfixed by unset LD_LIBRARY_PATH"),
    ("cudnn-missing-sublib", "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
    ("cudnn-missing-sublib", "Unable to load any of {libcudnn_engines_precompiled.so.9.1.0, libcudnn_engines_precompiled.so.9.1, libcudnn_engines_precompiled.so.9, libcudnn_engines_precompiled.so}"),
    ("cudnn-missing-sublib", "Unable to load any of {libcudnn_cnn.so.9.1.0, libcudnn_cnn.so.9.1, libcudnn_cnn.so.9, libcudnn_cnn.so}\nInvalid handle. Cannot load symbol cudnnCreateConvolutionDescriptor\nAborted (core dumped)"),
    ("cudnn-missing-sublib", "Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open shared object file: No such file or directory\nfaster-whisper 1.0.3, torch 2.4.0"),
    ("cudnn-missing-sublib", "Could not locate cudnn_ops_infer64_8.dll. Please make sure it is in your library path!"),
    ("wsl-setup", "WSL2, Ubuntu 22.04\nCould not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared object file: No such file or directory"),
    ("nvidia-wheels-mixed", 'torch 2.4.0 requires nvidia-cudnn-cu12==9.1.0.70; platform_system == "Linux" and platform_machine == "x86_64", but you have nvidia-cudnn-cu12 8.9.7.29 which is incompatible.'),
    # libstdc++ and glibc
    ("libstdcxx-old", "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /env/lib/python3.9/site-packages/scipy/fft.so)"),
    ("libstdcxx-old", "ImportError: /env/bin/../lib/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by x.so)"),
    ("libstdcxx-old", "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)"),
    # variables
    ("env-var-misconfigured", "RuntimeError: Unrecognized CachingAllocator option: expandable_segments"),
    ("env-var-misconfigured", "ValueError: Unrecognized key 'max_split_size' in CUDA allocator config."),
    ("env-var-misconfigured", "RuntimeError: Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or `at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an environment variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or CUBLAS_WORKSPACE_CONFIG=:16:8."),
    ("env-var-misconfigured", "OMP: Error #15: Initializing libiomp5md.dll, but found libiomp5md.dll already initialized."),
    ("env-var-misconfigured", "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp-a34b3233.so.1 library."),
    ("env-var-misconfigured", "ImportError: /usr/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block"),
    ("env-var-misconfigured", "RuntimeError: Using sequence parallelism requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1"),
    ("out-of-memory", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("torch-arch-unsupported-new", "GPU: RTX 3090\nPyTorch 1.7.0+cu101\nRuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
]

NEAR = [
    ("torch-install-corrupt", "nvidia-nvjitlink-cu12 12.4.127\nnvidia-nccl-cu12 2.21.5"),
    ("env-var-misconfigured", "torch.OutOfMemoryError: CUDA out of memory. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."),
    ("env-var-misconfigured", "CUDA kernel errors might be asynchronously reported at some other API call. For debugging consider passing CUDA_LAUNCH_BLOCKING=1"),
    ("libstdcxx-old", "torch._C._GLIBCXX_USE_CXX11_ABI is False"),
    ("cudnn-missing-sublib", "cuDNN version: Probably one of the following: /usr/lib/x86_64-linux-gnu/libcudnn_ops_infer.so.8.9.2"),
]


@pytest.mark.parametrize(("cause", "text"), CASES)
def test_words_of_the_loader_tell_their_cause(cause: str, text: str) -> None:
    assert root_of(text) == cause


@pytest.mark.parametrize(("cause", "text"), NEAR)
def test_what_only_looks_alike_does_not(cause: str, text: str) -> None:
    assert root_of(text) != cause

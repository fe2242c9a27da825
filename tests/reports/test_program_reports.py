"""Errors of programs and questions: no fault of the environment, and no alarm."""

from __future__ import annotations

import pytest

from told_fixtures import HARMLESS, root_of, told

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    main()\n'
HEALTHY = """
PyTorch version: 2.5.1+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.10.12 (main, Sep 11 2024, 15:47:36) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: True
CUDA runtime version: Could not collect
GPU models and configuration: GPU 0: NVIDIA GeForce RTX 4090
Nvidia driver version: 560.35.03
cuDNN version: Could not collect
Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] nvidia-cublas-cu12==12.4.5.8
[pip3] nvidia-cudnn-cu12==9.1.0.70
[pip3] nvidia-nccl-cu12==2.21.5
[pip3] nvidia-nvjitlink-cu12==12.4.127
[pip3] torch==2.5.1
[pip3] torchvision==0.20.1
[pip3] triton==3.1.0
[conda] Could not collect
"""

PROGRAM = [
    TRACE + "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)",
    TRACE + "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    TRACE + "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "../aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    "Indexing.cu:1292: indexSelectLargeIndex: block: [31,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    TRACE + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 1024x10)",
    TRACE + "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.cuda.FloatTensor [64]] is at version 2",
    TRACE + "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    TRACE + "RuntimeError: Trying to backward through the graph a second time",
    TRACE + "RuntimeError: Error(s) in loading state_dict for ResNet:\n\tMissing key(s) in state_dict: \"fc.weight\"",
    TRACE + "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options\n\tWeightsUnpickler error: Unsupported global: GLOBAL numpy.core.multiarray.scalar was not an allowed global by default.",
    TRACE + "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
    TRACE + "KeyError: 'model_state'",
    TRACE + "FileNotFoundError: [Errno 2] No such file or directory: 'data/coco/annotations.json'",
    TRACE + "ModuleNotFoundError: No module named 'einops'",
    TRACE + "ImportError: cannot import name 'cached_download' from 'huggingface_hub'",
    TRACE + "ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'",
    TRACE + "ModuleNotFoundError: No module named 'torch._six'",
    TRACE + "AttributeError: module 'torch' has no attribute 'float8_e4m3fn'",
    TRACE + "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama",
    TRACE + "OSError: foo/bar is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    TRACE + 'RuntimeError: "addmm_impl_cpu_" not implemented for \'Half\'',
    TRACE + "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    TRACE + "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.",
    "ImportError: libGL.so.1: cannot open shared object file: No such file or directory\nimport cv2",
    "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --epoch 3",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.",
    "The loss becomes NaN after some hundred steps with fp16, with fp32 all is fine.",
    "torch.onnx.errors.UnsupportedOperatorError: Exporting the operator 'aten::unflatten' to ONNX opset version 12 is not supported.",
    TRACE + "TypeError: LlamaModel.forward() got an unexpected keyword argument 'cache_position'",
    "### 🚀 The feature, motivation and pitch\n\nIt would be nice to have a fused version of this optimizer.\n" + HEALTHY,
    "UnicodeEncodeError: 'charmap' codec can't encode character '\\u2713' in position 4",
    "TypeError: Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, your generated code is out of date",
    "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1. Please use torch.load with map_location",
    "RuntimeError: An attempt has been made to start a new process before the current process has finished its bootstrapping phase.",
]

HARMLESS_TEXTS = [
    "### 🐛 Describe the bug\n\nscaled_dot_product_attention gives wrong results with this mask.\n\n### Versions\n" + HEALTHY,
    "### 🐛 Describe the bug\n\ntorch.compile raises a graph break here, eager is fine\n" + HEALTHY,
    "Title: [regression] memory format propagation of conv2d\n\nworks in torch 2.4.1, fails in torch 2.5.1" + HEALTHY,
]


@pytest.mark.parametrize("text", PROGRAM)
def test_an_error_of_the_program_is_told_as_such(text: str) -> None:
    assert root_of(text) == "not-environment"


@pytest.mark.parametrize("text", PROGRAM)
def test_an_error_of_the_program_beside_a_healthy_environment_is_no_alarm(text: str) -> None:
    assert root_of(text + "\n" + HEALTHY) in HARMLESS


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_a_complaint_about_torch_is_no_alarm(text: str) -> None:
    assert root_of(text) == "torch-bug"


def test_a_healthy_report_alone_has_no_root_cause() -> None:
    assert told(HEALTHY).primary is None


def test_the_environment_comes_first_where_both_speak() -> None:
    text = PROGRAM[0] + "\nAssertionError: Torch not compiled with CUDA enabled"
    assert root_of(text) == "torch-cpu-build"

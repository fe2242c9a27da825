#!/bin/sh
# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: The NVIDIA driver (575.64.05) is too old for a torch built with CUDA 13.0
#   CUDA 13 needs driver 580.65.06 or newer.
#
set -eu

# This runs in an empty folder so that Python does not import files from the current one.
HERE="$PWD"; cd /; empty="$(mktemp -d)"; [ -n "$empty" ]
trap 'cd /; rmdir "$empty" || :' EXIT; cd "$empty"

# 1. Install the cu126 build of torch 2.14.1 (changes this environment)
#    You can keep torch 2.14.1: its cu126 build is compatible with this machine.
#    The default build (cu130) is not compatible: CUDA 13.0 needs driver 580.65.06 or newer;
#    yours is 575.64.05.
/home/ada/venv/bin/python -m pip uninstall -y torch torchvision cuda-bindings cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx triton
/home/ada/venv/bin/python -m pip install torch==2.14.1 torchvision==0.29.1 --index-url https://download.pytorch.org/whl/cu126
# Or: Install NVIDIA driver 580 (needs root and a reboot)
#    No package owns the current libcuda: it was installed from a .run file and must be removed
#    first.
#      sudo nvidia-uninstall --silent
#      sudo apt-get update
#      sudo apt-get install -y nvidia-driver-580-open
#      sudo reboot

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

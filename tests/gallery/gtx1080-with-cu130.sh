#!/bin/sh
# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#
# error: torch 2.14.1+cu130 has no code for the NVIDIA GeForce GTX 1080 (compute capability 6.1)
#     (torch-arch-unsupported-old)
#   The build was compiled for other GPUs only (sm_75, sm_80, sm_86, sm_90, sm_100, sm_120):
#   kernels end in "no kernel image".
#
set -eu

# In an empty folder: Python would run a pip.py of the one that you are in.
HERE="$PWD"; cd /; empty="$(mktemp -d)"; [ -n "$empty" ]
trap 'cd /; rmdir "$empty" || :' EXIT; cd "$empty"

# 1. Install the cu126 build of torch 2.14.1 [changes this environment]
#    cures: torch-arch-unsupported-old
#    The size of the download is not known (the cu130 wheel: 555 MB); the CUDA libraries come on
#    top.
/home/ada/venv/bin/python -m pip uninstall -y torch
/home/ada/venv/bin/python -m pip install torch==2.14.1 --index-url https://download.pytorch.org/whl/cu126

# Then see whether it helped:
#    cudadoctor check --python /home/ada/venv/bin/python

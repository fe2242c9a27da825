"""Which environment variables may be kept, and those that a report prints.

What a program needs to know of the environment is few; the rest stays out, credentials above all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIXES = (
    "CUDA_",
    "CUDNN_",
    "CUBLAS_",
    "NVIDIA_",
    "NVTE_",
    "NCCL_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCHELASTIC_",
    "PYTORCH_",
    "PYTHON",
    "CONDA_",
    "GLOO_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "ZE_",
    "TRITON_",
    "WSL_",
    "ACCELERATE_",
    "SLURM_JOB_",
)
NAMES = frozenset(
    """
    CUDAHOSTCXX CUDACXX CC CXX NVCC NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS NVCC_CCBIN MAX_JOBS
    LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT LD_BIND_NOW LIBRARY_PATH CPATH
    LOADEDMODULES VIRTUAL_ENV MAMBA_EXE MAMBA_ROOT_PREFIX PIXI_PROJECT_ROOT PIXI_ENVIRONMENT_NAME
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_NO_INDEX PIP_FIND_LINKS PIP_CONFIG_FILE PIP_TARGET
    PIP_USER PIP_PREFIX PIP_PRE PIP_CONSTRAINT PIP_REQUIRE_VIRTUALENV PIP_NO_BUILD_ISOLATION
    PIP_NO_DEPS PIP_ONLY_BINARY PIP_NO_BINARY PIP_BREAK_SYSTEM_PACKAGES PIP_PYTHON
    UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_NO_INDEX
    UV_INDEX_STRATEGY UV_TORCH_BACKEND UV_PYTHON UV_PRERELEASE UV_SYSTEM_PYTHON
    UV_PROJECT_ENVIRONMENT UV_CONFIG_FILE UV_NO_BUILD_ISOLATION UV_OFFLINE
    BNB_CUDA_VERSION FLASH_ATTENTION_FORCE_BUILD FLASH_ATTENTION_SKIP_CUDA_BUILD
    OMP_NUM_THREADS MKL_NUM_THREADS MKL_THREADING_LAYER MKL_SERVICE_FORCE_INTEL
    KMP_DUPLICATE_LIB_OK KMP_AFFINITY
    MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK
    TP_SOCKET_IFNAME
    SLURM_JOBID SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK
    SLURMD_NODENAME
    LSB_JOBID LSB_GPU_ALLOC PBS_JOBID PBS_GPUFILE
    SLURM_STEP_GPUS SLURM_NTASKS SLURM_PROCID SLURM_LOCALID GPU_DEVICE_ORDINAL
    XLA_PYTHON_CLIENT_PREALLOCATE
    COLAB_RELEASE_TAG COLAB_GPU KAGGLE_KERNEL_RUN_TYPE JPY_PARENT_PID JPY_SESSION_NAME
    """.split()  # noqa: SIM905
)

OF_LOADER = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE"}
)
"""What a program reads as it starts: later it is too late."""

_OF_NOTEBOOKS = (
    *("COLAB_RELEASE_TAG", "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE"),
    *("JPY_PARENT_PID", "JPY_SESSION_NAME"),
)
"""What a notebook's kernel has, and no shell: Jupyter's own terminals lack them."""

_SECRET = re.compile(r"(?i)TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_KEY$|AUTH|USERNAME")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
MOST_CHARACTERS = 4096


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that may be kept, without credentials inside of URLs."""
    return {
        name: _IN_URL.sub("***@", value)[:MOST_CHARACTERS]
        for name, value in sorted(env.items())
        if (name in NAMES or name.startswith(PREFIXES)) and not _SECRET.search(name)
    }


def in_notebook(env: Mapping[str, str] | None) -> bool:
    """Whether a process belongs to a cell of a notebook."""
    return any(name in (env or {}) for name in _OF_NOTEBOOKS)

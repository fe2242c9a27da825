"""The readers of what programs print about an environment, as one tuple."""

from __future__ import annotations

from cudadoctor.reports import (
    collect_env,
    cuda_tools,
    package_lists,
    tools,
)

PROGRAM_READERS = (
    tools.read_nvidia_smi,
    tools.read_kernel_log,
    tools.read_proc_version,
    collect_env.read_collect_env,
    package_lists.read_packages,
    package_lists.read_pip_show,
    cuda_tools.read_nvcc,
    cuda_tools.read_compilers,
)
"""Each looks for a word of its program before anything else, so that all of them cost little."""

"""The readers of what programs print about an environment, as one tuple."""

from __future__ import annotations

from cudadoctor.reports import (
    banners,
    collect_env,
    cuda_tools,
    environment_dumps,
    package_lists,
    tools,
    torch_messages,
    transcripts,
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
    environment_dumps.read_environment_dumps,
    banners.read_banners,
    transcripts.read_transcripts,
    torch_messages.read_torch_messages,
)
"""Each looks for a word of its program before anything else, so that all of them cost little."""

"""The readers of what programs print about an environment, as one tuple."""

from __future__ import annotations

from cudadoctor.reports import (
    banners,
    collect_env,
    cuda_tools,
    devices,
    environment_dumps,
    libraries,
    limits,
    package_lists,
    pip_check,
    system,
    system_packages,
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
    pip_check.read_pip_check,
    cuda_tools.read_nvcc,
    cuda_tools.read_toolkit_files,
    cuda_tools.read_compilers,
    environment_dumps.read_environment_dumps,
    banners.read_banners,
    transcripts.read_transcripts,
    torch_messages.read_torch_messages,
    system.read_system,
    system_packages.read_system_packages,
    limits.read_limits,
    devices.read_modules,
    devices.read_nodes,
    devices.read_fabric,
    devices.read_inventories,
    libraries.read_loader_lines,
)
"""Each looks for a word of its program before anything else, so that all of them cost little."""

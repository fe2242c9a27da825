"""The remedies that rules prescribe: pure functions of the machine and the knowledge.

Each returns alternatives, the least invasive first, and () where there is none. What they say
depends on the platform: no driver ever goes into WSL, a container or a Jetson, and what only an
administrator may do is addressed to one.

They see the machine as it may act (`model.trust`): of a foreign one nothing that was read.

Each function is imported when it is first called: a healthy machine needs none of them, and
`check --fast` counts its imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudadoctor.model.findings import Remedies
    from cudadoctor.plan.remedies.access import (
        allow_p2p,
        busy_gpus,
        container_option,
        device_groups,
        driver_on_path,
        free_memory,
        grant_gpu,
        host_libraries,
        kernel_option,
        larger_shm,
        larger_window,
        load_uvm_on_host,
        raise_memlock,
        raise_nofile,
        restart_container,
        start_mps,
        with_capabilities,
        without_p2p,
    )
    from cudadoctor.plan.remedies.development import (
        c_compiler,
        install_toolkit,
        newer_libstdcxx,
        older_compiler,
        older_glibc,
        python_headers,
        remove_conda_library,
        remove_system_torch,
        set_arch_list,
        vc_runtime,
    )
    from cudadoctor.plan.remedies.driver import (
        fabric_manager,
        forward_compat,
        guest_driver,
        held_back,
        hmm_off,
        install_driver,
        install_firmware,
        install_libcuda,
        libcuda_away,
        load_driver,
        nvlink_off,
        one_version,
        open_modules,
        proprietary_modules,
        reboot,
        reload_driver,
        reload_uvm,
        switch_graphics,
        upgrade_driver,
        wsl_driver,
    )
    from cudadoctor.plan.remedies.gpu import (
        cool_gpus,
        license_vgpu,
        mig_instances,
        replace_gpus,
        reset_gpus,
        reset_or_restart,
        restart,
        set_gpus,
    )
    from cudadoctor.plan.remedies.process import (
        by_hand,
        install_packages,
        move_vm,
        off_search_path,
        on_hardware,
        rename_file,
        set_variables,
        unset_variables,
    )
    from cudadoctor.plan.remedies.torch import (
        for_other_maker,
        install_companion,
        install_python,
        install_torch,
        jetson_torch,
        leave_out,
        newer_cuda,
        older_cuda,
        pinned_torch,
        rebuild_extension,
        reinstall_torch,
        run_elsewhere,
        torch_with_cudnn,
    )

__all__ = [
    "allow_p2p",
    "busy_gpus",
    "by_hand",
    "c_compiler",
    "container_option",
    "cool_gpus",
    "device_groups",
    "driver_on_path",
    "fabric_manager",
    "for_other_maker",
    "forward_compat",
    "free_memory",
    "grant_gpu",
    "guest_driver",
    "held_back",
    "hmm_off",
    "host_libraries",
    "install_companion",
    "install_driver",
    "install_firmware",
    "install_libcuda",
    "install_packages",
    "install_python",
    "install_toolkit",
    "install_torch",
    "jetson_torch",
    "kernel_option",
    "larger_shm",
    "larger_window",
    "leave_out",
    "libcuda_away",
    "license_vgpu",
    "load_driver",
    "load_uvm_on_host",
    "mig_instances",
    "move_vm",
    "newer_cuda",
    "newer_libstdcxx",
    "nvlink_off",
    "off_search_path",
    "older_compiler",
    "older_cuda",
    "older_glibc",
    "on_hardware",
    "one_version",
    "open_modules",
    "pinned_torch",
    "proprietary_modules",
    "python_headers",
    "raise_memlock",
    "raise_nofile",
    "reboot",
    "rebuild_extension",
    "reinstall_torch",
    "reload_driver",
    "reload_uvm",
    "remove_conda_library",
    "remove_system_torch",
    "rename_file",
    "replace_gpus",
    "reset_gpus",
    "reset_or_restart",
    "restart",
    "restart_container",
    "run_elsewhere",
    "set_arch_list",
    "set_gpus",
    "set_variables",
    "start_mps",
    "switch_graphics",
    "torch_with_cudnn",
    "unset_variables",
    "upgrade_driver",
    "vc_runtime",
    "with_capabilities",
    "without_p2p",
    "wsl_driver",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The remedy of that name (PEP 562), which is imported when it is called."""
        if name not in __all__:
            raise AttributeError(name)

        def prescribed(*args: Any, **options: Any) -> Remedies:
            from importlib import import_module

            from cudadoctor.model.trust import Foreign, acting

            names = ("process", "access", "driver", "gpu", "torch", "development")
            homes = (import_module(f"{__name__}.{home}") for home in names)
            remedy = next(getattr(home, name) for home in homes if hasattr(home, name))
            given = (acting(value) if isinstance(value, Foreign) else value for value in args)
            return remedy(*given, **options)

        return prescribed

"""The ways out that several rules prescribe: pure functions of the machine and the knowledge.

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
    from collections.abc import Callable

    from cudadoctor.model.findings import Remedy
    from cudadoctor.plan.remedies.compat import forward_compat
    from cudadoctor.plan.remedies.container import container_option, grant_gpu
    from cudadoctor.plan.remedies.driver import (
        install_driver,
        open_modules,
        proprietary_modules,
        upgrade_driver,
    )
    from cudadoctor.plan.remedies.kernel import (
        load_driver,
        reboot,
        reload_uvm,
        reset_gpu,
        wsl_driver,
    )
    from cudadoctor.plan.remedies.manual import (
        by_hand,
        device_groups,
        install_packages,
        remove_packages,
        set_variables,
        unset_variables,
    )
    from cudadoctor.plan.remedies.search_path import off_search_path
    from cudadoctor.plan.remedies.torch import (
        install_companion,
        install_python,
        install_torch,
        jetson_torch,
        leave_out,
        reinstall_torch,
    )

_HOMES = {
    "torch": (
        "install_companion",
        "install_python",
        "install_torch",
        "jetson_torch",
        "leave_out",
        "reinstall_torch",
    ),
    "compat": ("forward_compat",),
    "manual": (
        "by_hand",
        "device_groups",
        "install_packages",
        "remove_packages",
        "set_variables",
        "unset_variables",
    ),
    "container": (
        "container_option",
        "grant_gpu",
    ),
    "driver": (
        "install_driver",
        "open_modules",
        "proprietary_modules",
        "upgrade_driver",
    ),
    "search_path": ("off_search_path",),
    "kernel": (
        "load_driver",
        "reboot",
        "reload_uvm",
        "reset_gpu",
        "wsl_driver",
    ),
}


def _later(home: str, name: str) -> Callable[..., tuple[Remedy, ...]]:
    """That function of that module, imported when it is called."""

    def call(*args: Any, **options: Any) -> tuple[Remedy, ...]:
        from importlib import import_module

        from cudadoctor.model.trust import Foreign, acting

        found = getattr(import_module(f"cudadoctor.plan.remedies.{home}"), name)
        given = (acting(one) if isinstance(one, Foreign) else one for one in args)
        ways: tuple[Remedy, ...] = found(*given, **options)
        return ways

    return call


if not TYPE_CHECKING:
    for _home, _names in _HOMES.items():
        for _name in _names:
            globals()[_name] = _later(_home, _name)

__all__ = [
    "by_hand",
    "container_option",
    "device_groups",
    "forward_compat",
    "grant_gpu",
    "install_companion",
    "install_driver",
    "install_packages",
    "install_python",
    "install_torch",
    "jetson_torch",
    "leave_out",
    "load_driver",
    "off_search_path",
    "open_modules",
    "proprietary_modules",
    "reboot",
    "reinstall_torch",
    "reload_uvm",
    "remove_packages",
    "reset_gpu",
    "set_variables",
    "unset_variables",
    "upgrade_driver",
    "wsl_driver",
]

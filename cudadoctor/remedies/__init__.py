"""The ways out that several rules prescribe: pure functions of the machine and the knowledge.

Each returns alternatives, the least invasive first, and () where there is none. What they say
depends on the platform: no driver ever goes into WSL, a container or a Jetson, and what only an
administrator may do is addressed to one.
"""

from cudadoctor.remedies.build import (
    install_companion,
    install_torch,
    jetson_torch,
    reinstall_torch,
)
from cudadoctor.remedies.by_hand import (
    by_hand,
    device_groups,
    install_packages,
    remove_packages,
    set_variables,
    unset_variables,
)
from cudadoctor.remedies.container import container_option, grant_gpu
from cudadoctor.remedies.driver import (
    install_driver,
    open_modules,
    proprietary_modules,
    upgrade_driver,
)
from cudadoctor.remedies.interpreter import install_python
from cudadoctor.remedies.kernel import load_driver, reboot, reload_uvm, reset_gpu, wsl_driver

__all__ = [
    "by_hand",
    "container_option",
    "device_groups",
    "grant_gpu",
    "install_companion",
    "install_driver",
    "install_packages",
    "install_python",
    "install_torch",
    "jetson_torch",
    "load_driver",
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

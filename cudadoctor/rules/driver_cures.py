"""What cures a cause of the driver, the GPU or the box that a report shows.

The remedies of hosts, where the report's facts suffice for them: those know the platform, and
prescribe no driver inside a container, WSL or a Jetson.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cudadoctor.plan.remedies import (
    container_option,
    device_groups,
    grant_gpu,
    install_driver,
    install_torch,
    jetson_torch,
    load_driver,
    open_modules,
    proprietary_modules,
    reboot,
    unset_variables,
    upgrade_driver,
    wsl_driver,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine


def driver_cures(cause: str, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The ways out that hosts have for this cause; () where words have to do."""
    ways = _WAYS.get(cause)
    return ways(m, kb) if ways is not None else ()


def _seen(m: Machine, *keys: str) -> bool:
    return any(one.key in keys for one in m.symptoms or ())


def _old_driver(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    cuda = m.torch.cuda
    system = "Windows" if m.platform.wsl or m.platform.system == "Windows" else "Linux"
    floor = kb.driver_floor(cuda, system) if cuda else None
    newer = upgrade_driver(m, kb, floor.driver.branch) if floor else ()
    ways = (*install_torch(m, kb), *newer)
    return tuple({one.id: one for one in reversed(ways)}.values())[::-1]


def _unloaded(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    reason: Literal["nouveau", "secure-boot", "not-built", "modprobe"] = "modprobe"
    if _seen(m, "module-not-signed"):
        reason = "secure-boot"
    elif _seen(m, "gpu-without-its-driver"):
        reason = "nouveau"
    elif _seen(m, "module-not-built", "after-kernel-update"):
        reason = "not-built"
    return load_driver(m, kb, reason)


def _other_flavour(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    if _seen(m, "needs-proprietary-modules"):
        return proprietary_modules(m, kb)
    return open_modules(m, kb)


def _with_compute(m: Machine, _: Knowledge) -> tuple[Remedy, ...]:
    return container_option(
        m,
        "driver-capabilities",
        "Start the container with the driver's compute and utility libraries",
        "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def _one_version(m: Machine, _: Knowledge) -> tuple[Remedy, ...]:
    """Inside a container a reboot is not the only way, which the words say."""
    return () if m.container.kind else reboot(m)


def _shown(m: Machine, _: Knowledge) -> tuple[Remedy, ...]:
    """A job's own list is the scheduler's to change."""
    return grant_gpu(m) if m.container.scheduler else unset_variables(m, "CUDA_VISIBLE_DEVICES")


_WAYS: dict[str, Callable[[Machine, Knowledge], tuple[Remedy, ...]]] = {
    "driver-too-old": _old_driver,
    "driver-not-installed": install_driver,
    "driver-not-loaded": _unloaded,
    "driver-library-mismatch": _one_version,
    "driver-wrong-flavour": _other_flavour,
    "device-permission": lambda m, _: device_groups(m),
    "container-no-gpu": lambda m, _: grant_gpu(m),
    "container-driver-caps": _with_compute,
    "scheduler-no-gpu": lambda m, _: grant_gpu(m),
    "wsl-setup": lambda m, _: wsl_driver(m),
    "jetson-build": jetson_torch,
    "torch-arch-unsupported-new": install_torch,
    "torch-arch-unsupported-old": install_torch,
    "visible-devices-hides-gpu": _shown,
}

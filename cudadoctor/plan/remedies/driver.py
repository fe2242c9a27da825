"""Remedies that install or change the driver, by the kind of machine.

Never inside WSL, a container or a Jetson; never a branch that does not support the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.plan.remedies.linux import Wanted, driver_recipe
from cudadoctor.plan.remedies.place import family_of, has_virtual_gpu, is_cloud, keeper_of, side_of
from cudadoctor.solver.builds import capabilities_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Architecture, Knowledge
    from cudadoctor.model.machine import Machine

_SECURE_BOOT = (
    "Secure Boot is on: set a password when the installation asks for one, and enrol the key in "
    "the blue screen at the next start, or the new module will not load."
)
_RUN_FILE = (
    "The present driver belongs to no package; if it came from a .run file, take it out with "
    "`nvidia-uninstall` first."
)
_CLOUD = "On a cloud machine, the provider's own driver package or image comes first."
_WINDOWS = (
    "Install the current driver from the NVIDIA App or from nvidia.com/drivers; the CUDA toolkit "
    "is not needed."
)
_VGPU = (
    "This GPU is a share of one (vGPU): it needs the GRID driver that the provider or the "
    "hypervisor's administrator hands out, of the same branch as the host's."
)


def install_driver(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """Install a driver where there is none."""
    bounds = _bounds(m, kb)
    branch = None
    if bounds.highest is not None or bounds.blackwell_or_newer:
        branch = _maintained(bounds.lowest or 0, bounds, kb)
    title = f"Install NVIDIA driver {branch}" if branch else "Install the NVIDIA driver"
    return _driver("install-driver", title, m, bounds, branch)


def upgrade_driver(m: Machine, kb: Knowledge, branch: int) -> tuple[Remedy, ...]:
    """A newer driver, of at least that branch; () where no such branch supports the GPU."""
    bounds = _bounds(m, kb)
    if bounds.highest is not None and branch > bounds.highest:
        return ()
    wanted = _maintained(max(branch, bounds.lowest or 0), bounds, kb)
    title = f"Install NVIDIA driver {wanted} or newer"
    return _driver("upgrade-driver", title, m, bounds, wanted)


def open_modules(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The open kernel modules in place of the proprietary ones."""
    bounds = msgspec.structs.replace(_bounds(m, kb), open=True)
    title = "Install the driver with the open kernel modules"
    return _driver("open-modules", title, m, bounds, _present_branch(m, bounds))


def proprietary_modules(m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The proprietary kernel modules in place of the open ones."""
    bounds = msgspec.structs.replace(_bounds(m, kb), open=False)
    title = "Install the driver with the proprietary kernel modules"
    return _driver("proprietary-modules", title, m, bounds, _present_branch(m, bounds))


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs of a machine ask of a driver. highest None: any newer branch will do."""

    lowest: int | None
    highest: int | None
    open: bool
    blackwell_or_newer: bool
    data_center: bool


def _bounds(m: Machine, kb: Knowledge) -> Bounds:
    known = _architectures(m, kb)
    last = [one.last_branch for one in known if one.last_branch is not None]
    first = [one.first_branch for one in known if one.first_branch is not None]
    return Bounds(
        lowest=max(first, default=None),
        highest=min(last, default=None),
        open=all(one.open_modules != "none" for one in known),
        blackwell_or_newer=any(one.open_modules == "only" for one in known),
        data_center=_in_data_center(m, kb),
    )


def _maintained(least: int, bounds: Bounds, kb: Knowledge) -> int:
    """The oldest branch from there on that still gets updates and supports the GPUs.

    GPUs that no maintained branch supports get their last one.
    """
    top = kb.newest_branch() if bounds.highest is None else bounds.highest
    maintained = (one for one in range(least, top + 1) if kb.branch_is_current(one))
    return next(maintained, least if bounds.highest is None else bounds.highest)


def _architectures(m: Machine, kb: Knowledge) -> tuple[Architecture, ...]:
    """The generations of all NVIDIA GPUs that are known, by the driver or by the PCI bus."""
    capabilities = set(capabilities_of(m, kb) or ())
    for device in m.pci or ():
        if device.vendor == "nvidia":
            capabilities |= {model.capability for model in kb.gpus_by_pci(device.device_id)}
    found = (kb.architecture(capability) for capability in sorted(capabilities))
    return tuple(one for one in found if one is not None)


def _in_data_center(m: Machine, kb: Knowledge) -> bool:
    if any("-server" in package.name for package in m.driver.packages or ()):
        return True
    models = [kb.gpu_by_name(gpu.name) for gpu in m.gpus or () if gpu.name]
    for device in m.pci or ():
        models.extend(kb.gpus_by_pci(device.device_id) if device.vendor == "nvidia" else ())
    return bool(models) and all(model is not None and model.data_center for model in models)


def _present_branch(m: Machine, bounds: Bounds) -> int | None:
    """The branch that is installed, moved to where the GPUs are supported."""
    present = m.driver.version or m.driver.library
    branch = present.branch if present else bounds.lowest
    if branch is not None and bounds.lowest is not None:
        branch = max(branch, bounds.lowest)
    if bounds.highest is not None:
        branch = min(branch or bounds.highest, bounds.highest)
    return branch


def _driver(
    id: str,  # noqa: A002
    title: str,
    m: Machine,
    bounds: Bounds,
    branch: int | None,
) -> tuple[Remedy, ...]:
    if bounds.highest is not None and bounds.blackwell_or_newer:
        return ()  # Two GPUs that no single driver serves: there is no such driver to install.
    side = side_of(m)
    if side == "macos":
        return ()
    if side == "linux" and not has_virtual_gpu(m):
        return (_from_packages(id, title, m, bounds, branch),)
    return (_elsewhere(id, title, m, branch),)


def _from_packages(
    id: str,  # noqa: A002
    title: str,
    m: Machine,
    bounds: Bounds,
    branch: int | None,
) -> Remedy:
    wanted = Wanted(branch=branch, open=bounds.open, server=bounds.data_center)
    recipe = driver_recipe(m, wanted)
    notes = (
        recipe.note,
        _CLOUD if is_cloud(m) else None,
        _SECURE_BOOT if m.platform.secure_boot else None,
        _RUN_FILE if m.driver.installed and m.driver.packages == () else None,
    )
    return Remedy(
        id=id,
        title=title,
        needs_root=True,
        reboot=True,
        commands=recipe.commands,
        manual=recipe.manual,
        edits=recipe.edits,
        tool=recipe.tool,
        note=" ".join(note for note in notes if note) or None,
    )


def _elsewhere(id: str, title: str, m: Machine, branch: int | None) -> Remedy:  # noqa: A002
    """The same step for machines whose driver is not a package of their own system."""
    least = f" of branch {branch} or newer" if branch else ""
    side = side_of(m)
    if side == "wsl":
        return Remedy(
            id=id,
            title=f"{title} on Windows",
            where="windows",
            manual=f"{_WINDOWS} No driver belongs inside WSL.",
        )
    if side == "windows":
        text = f"{_WINDOWS} It must be{least}." if least else _WINDOWS
        return Remedy(id=id, title=title, needs_root=True, manual=text)
    if side == "jetson":
        text = "The driver of a Jetson comes with JetPack: update it with SDK Manager or with the "
        text += "board's own apt upgrade, never with a driver for other computers."
        where = keeper_of(m)
        if where != "here":
            return Remedy(id=id, title="Update JetPack", where=where, manual=text)
        return Remedy(id=id, title="Update JetPack", needs_root=True, reboot=True, manual=text)
    if side == "dgx":
        return Remedy(
            id=id,
            title=f"{title} by the DGX system's own update",
            needs_root=True,
            reboot=True,
            commands=_whole_update(m),
            tool=_whole_update(m)[0][0].removesuffix("-get"),
        )
    return _asked_for(id, title, m, least)


def _whole_update(m: Machine) -> tuple[tuple[str, ...], ...]:
    """DGX OS is an Ubuntu; NVIDIA's software for DGX also comes for Red Hat's systems."""
    if family_of(m) in ("rhel", "fedora"):
        return (("dnf", "upgrade", "--refresh"),)
    return (("apt-get", "update"), ("apt-get", "full-upgrade"))


def _asked_for(id: str, title: str, m: Machine, least: str) -> Remedy:  # noqa: A002
    if has_virtual_gpu(m):
        return Remedy(id=id, title=title, where="admin", risk=Risk.SYSTEM, manual=_VGPU)
    where = keeper_of(m)
    who = "whoever runs the host" if where == "host" else "the administrator of this machine"
    text = f"Ask {who} for an NVIDIA driver{least}: it belongs to the host and cannot be changed "
    text += "from in here."
    return Remedy(id=id, title=f"{title} on the host", where=where, manual=text)

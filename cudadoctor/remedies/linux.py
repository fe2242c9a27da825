"""How each family of Linux distributions installs the NVIDIA driver from packages.

Nothing here is run: all of it needs root, and is printed for whoever has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.findings import Edit
from cudadoctor.remedies.place import family_of, major_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.facts import Machine

Command = tuple[str, ...]

_NVIDIA_REPOSITORY = (
    "This takes NVIDIA's own package repository for the distribution, set up as NVIDIA's driver "
    "installation guide describes; do not mix it with driver packages of another source."
)
_RPMFUSION = (
    "This takes the RPM Fusion repositories (free and nonfree). Before the reboot, wait until "
    "`modinfo -F version nvidia` names the new version: akmods builds the module in the background."
)
_NO_MODULES_FROM = 10  # RHEL 10 and its kin have no package modules (streams) any more.


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The driver to install. branch None: the distribution's choice. open: kernel modules."""

    branch: int | None
    open: bool
    server: bool = False


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a distribution does it."""

    tool: str
    commands: tuple[Command, ...] = ()
    manual: str | None = None
    edits: tuple[Edit, ...] = ()
    note: str | None = None


def driver_recipe(m: Machine, wanted: Wanted) -> Recipe:
    """The recipe of this machine's distribution."""
    return _RECIPES[family_of(m)](m, wanted)


def rebuild_initramfs(m: Machine) -> Command | None:
    """The command that makes the boot image anew, None where the distribution is unknown."""
    return {
        "ubuntu": ("update-initramfs", "-u"),
        "debian": ("update-initramfs", "-u"),
        "rhel": ("dracut", "--force"),
        "fedora": ("dracut", "--force"),
        "suse": ("dracut", "--force"),
        "arch": ("mkinitcpio", "-P"),
    }.get(family_of(m))


def rebuild_modules(m: Machine) -> tuple[Command, ...]:
    """The commands that build the driver's modules for the running kernel, with its headers."""
    kernel = m.platform.kernel
    release = f"-{kernel}" if kernel else ""
    autoinstall = ("dkms", "autoinstall")
    return {
        "ubuntu": (("apt-get", "install", f"linux-headers{release or '-generic'}"), autoinstall),
        "debian": (("apt-get", "install", f"linux-headers{release or '-amd64'}"), autoinstall),
        "rhel": (("dnf", "install", f"kernel-devel{release}"), autoinstall),
        "fedora": (("dnf", "install", f"kernel-devel{release}"), ("akmods", "--force")),
        "suse": (("zypper", "install", "kernel-default-devel"), autoinstall),
        "arch": (("pacman", "-Syu"), ("pacman", "-S", "linux-headers")),
        "other": (),
    }[family_of(m)]


def signing_key(m: Machine) -> str | None:
    """The file of the key that signs locally built modules, None where the place is unknown."""
    return {
        "ubuntu": "/var/lib/shim-signed/mok/MOK.der",
        "debian": "/var/lib/dkms/mok.pub",
        "rhel": "/var/lib/dkms/mok.pub",
        "fedora": "/etc/pki/akmods/certs/public_key.der",
    }.get(family_of(m))


def _ubuntu(_: Machine, wanted: Wanted) -> Recipe:
    if wanted.branch is None:
        install = ("ubuntu-drivers", "install", *(("--gpgpu",) if wanted.server else ()))
        return Recipe(tool="ubuntu-drivers", commands=(install,))
    kind = "-server" if wanted.server else ""
    package = f"nvidia-driver-{wanted.branch}{kind}{'-open' if wanted.open else ''}"
    commands = (("apt-get", "update"), ("apt-get", "install", package))
    return Recipe(tool="apt", commands=commands)


def _debian(m: Machine, wanted: Wanted) -> Recipe:
    arch = "arm64" if m.platform.machine == "aarch64" else "amd64"
    headers = f"linux-headers-{arch}"
    if wanted.branch is None and not wanted.open:
        return Recipe(
            tool="apt",
            commands=(("apt-get", "update"), ("apt-get", "install", headers, "nvidia-driver")),
            edits=(
                Edit(
                    file="/etc/apt/sources.list.d/debian.sources",
                    what="Components: main contrib non-free non-free-firmware "
                    "(in an older /etc/apt/sources.list: the same words at the end of each line)",
                ),
            ),
        )
    pinned = f"-{wanted.branch}" if wanted.branch else ""
    package = f"nvidia-open{pinned}" if wanted.open else f"cuda-drivers{pinned}"
    commands = (("apt-get", "update"), ("apt-get", "install", headers, package))
    return Recipe(tool="apt", commands=commands, note=_NVIDIA_REPOSITORY)


def _rhel(m: Machine, wanted: Wanted) -> Recipe:
    package = "nvidia-open" if wanted.open else "cuda-drivers"
    install: Command = ("dnf", "install", package)
    if (major_of(m) or 0) in range(_NO_MODULES_FROM):
        stream = f"{wanted.branch or ''}-" + ("open" if wanted.open else "dkms")
        if wanted.branch is None:
            stream = "open-dkms" if wanted.open else "latest-dkms"
        commands: tuple[Command, ...] = (
            ("dnf", "module", "reset", "nvidia-driver"),
            ("dnf", "module", "enable", f"nvidia-driver:{stream}"),
            install,
        )
    elif wanted.branch and not wanted.open:
        commands = (("dnf", "versionlock", "add", f"*nvidia*{wanted.branch}*"), install)
    else:
        commands = (install,)
    note = f"{_NVIDIA_REPOSITORY} EPEL is needed too, for DKMS."
    return Recipe(tool="dnf", commands=commands, note=note)


def _fedora(_: Machine, wanted: Wanted) -> Recipe:
    kind = "" if wanted.open or wanted.branch is None else f"-{wanted.branch}xx"
    install = ("dnf", "install", f"akmod-nvidia{kind}", f"xorg-x11-drv-nvidia{kind}-cuda")
    return Recipe(tool="dnf", commands=(("dnf", "upgrade", "--refresh"), install), note=_RPMFUSION)


def _suse(_: Machine, wanted: Wanted) -> Recipe:
    module = (
        "nvidia-open-driver-G06-signed-kmp-default"
        if wanted.open
        else "nvidia-driver-G06-kmp-default"
    )
    commands = (
        ("zypper", "refresh"),
        ("zypper", "install", module, "nvidia-compute-utils-G06"),
    )
    note = "Both packages must be of the same version. " + _NVIDIA_REPOSITORY
    return Recipe(tool="zypper", commands=commands, note=note)


def _arch(_: Machine, wanted: Wanted) -> Recipe:
    if wanted.open:
        commands = (("pacman", "-Syu", "nvidia-open", "nvidia-utils"),)
        return Recipe(
            tool="pacman",
            commands=commands,
            note="For another kernel than `linux`, nvidia-open-dkms and that kernel's headers.",
        )
    name = f"nvidia-{wanted.branch}xx-dkms" if wanted.branch else "the legacy branch's -dkms"
    return Recipe(
        tool="pacman",
        manual=f"Install {name} and its -utils from the AUR: the packages of the official "
        "repositories no longer support this GPU.",
    )


def _other(_: Machine, wanted: Wanted) -> Recipe:
    branch = f" of branch {wanted.branch} or newer" if wanted.branch else ""
    kind = "open" if wanted.open else "proprietary"
    return Recipe(
        tool="distribution",
        manual=f"Install the distribution's NVIDIA driver{branch} with the {kind} kernel modules, "
        "by its package manager.",
    )


_RECIPES: dict[str, Callable[[Machine, Wanted], Recipe]] = {
    "ubuntu": _ubuntu,
    "debian": _debian,
    "rhel": _rhel,
    "fedora": _fedora,
    "suse": _suse,
    "arch": _arch,
    "other": _other,
}

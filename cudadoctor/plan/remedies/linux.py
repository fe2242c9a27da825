"""How each family of Linux distributions installs the NVIDIA driver from packages.

Nothing here is run: all of it needs root, and is printed for whoever has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import Edit
from cudadoctor.plan.remedies.place import family_of, major_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudadoctor.model.machine import Machine

Command = tuple[str, ...]

_NVIDIA_REPOSITORY = (
    "This takes NVIDIA's own package repository for the distribution, set up as NVIDIA's driver "
    "installation guide describes; do not mix it with driver packages of another source."
)
_RPMFUSION = (
    "This takes the RPM Fusion repositories (free and nonfree). Before the reboot, wait until "
    "`modinfo -F version nvidia` names the new version: akmods builds the module in the background."
)
_MACRO = "/etc/rpm/macros.nvidia-kmod"
_FOCAL = (
    "Ubuntu 20.04 is past its standard support and gets no new branches of the driver: where the "
    "package is not found, take a newer Ubuntu, or the build of torch for the present driver."
)
_AMAZON_WITH_DNF = 2022
_NIX = "/etc/nixos/configuration.nix"
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
    if m.platform.distro == "endeavouros":
        return ("dracut-rebuild",)
    return {
        "ubuntu": ("update-initramfs", "-u"),
        "debian": ("update-initramfs", "-u"),
        "rhel": ("dracut", "--force"),
        "amazon": ("dracut", "--force"),
        "fedora": ("dracut", "--force"),
        "suse": ("dracut", "--force"),
        "arch": ("mkinitcpio", "-P"),
    }.get(family_of(m))


def rebuild_modules(m: Machine) -> tuple[Command, ...]:
    """The commands that build the driver's modules for the running kernel, with its headers.

    Empty where only its own system knows how: then a sentence stands in their place.
    """
    kernel = m.platform.kernel
    release = f"-{kernel}" if kernel else ""
    autoinstall = ("dkms", "autoinstall")
    devel = ("dnf", "install", f"kernel-devel{release}")
    headers = f"linux-headers{release or '-generic'}"
    return {
        "ubuntu": (("apt-get", "install", headers), autoinstall),
        "debian": (("apt-get", "install", _debian_headers(m, release)), autoinstall),
        "rhel": (devel, autoinstall),
        "amazon": (devel, autoinstall) if _has_dnf(m) else (),
        "fedora": (devel, ("akmods", "--force")),
        "suse": _kernel_packages(m),
        "arch": (("pacman", "-Syu", "linux-headers"),) if m.platform.distro == "arch" else (),
    }.get(family_of(m), ())


def _debian_headers(m: Machine, release: str = "") -> str:
    """The package of headers: of that very kernel, or of the newest of its flavour."""
    arch = "arm64" if m.platform.machine == "aarch64" else "amd64"
    kernel = m.platform.kernel or ""
    if kernel.endswith("-pve"):
        return f"proxmox-headers{release}" if release else "proxmox-default-headers"
    cloud = "cloud-" if "-cloud-" in kernel else ""
    return f"linux-headers{release}" if release else f"linux-headers-{cloud}{arch}"


def _kernel_packages(m: Machine) -> tuple[Command, ...]:
    """SUSE ships built modules: the package is laid out anew for the running kernel."""
    names = [one.name for one in m.driver.packages or () if "-kmp-" in one.name]
    return (("zypper", "install", "--force", *names),) if names else ()


def _has_dnf(m: Machine) -> bool:
    """Amazon Linux 2 has none, and its support is over."""
    return (major_of(m) or 0) >= _AMAZON_WITH_DNF


def signing_key(m: Machine) -> str | None:
    """The file of the key that signs locally built modules, None where the place is unknown."""
    return {
        "ubuntu": "/var/lib/shim-signed/mok/MOK.der",
        "debian": "/var/lib/dkms/mok.pub",
        "rhel": "/var/lib/dkms/mok.pub",
        "fedora": "/etc/pki/akmods/certs/public_key.der",
    }.get(family_of(m))


def _ubuntu(m: Machine, wanted: Wanted) -> Recipe:
    if wanted.branch is None:
        install = ("ubuntu-drivers", "install", *(("--gpgpu",) if wanted.server else ()))
        return Recipe(tool="ubuntu-drivers", commands=(install,))
    kind = "-server" if wanted.server else ""
    package = f"nvidia-driver-{wanted.branch}{kind}{'-open' if wanted.open else ''}"
    commands = (("apt-get", "update"), ("apt-get", "install", package))
    focal = m.platform.distro == "ubuntu" and m.platform.distro_version == "20.04"
    return Recipe(tool="apt", commands=commands, note=_FOCAL if focal else None)


def _debian(m: Machine, wanted: Wanted) -> Recipe:
    headers = _debian_headers(m)
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


def _stream(wanted: Wanted) -> tuple[Command, ...]:
    """The driver out of a package module: its stream is chosen first."""
    stream = f"{wanted.branch or ''}-" + ("open" if wanted.open else "dkms")
    if wanted.branch is None:
        stream = "open-dkms" if wanted.open else "latest-dkms"
    return (
        ("dnf", "module", "reset", "nvidia-driver"),
        ("dnf", "module", "enable", f"nvidia-driver:{stream}"),
        ("dnf", "install", "nvidia-open" if wanted.open else "cuda-drivers"),
    )


def _amazon(m: Machine, wanted: Wanted) -> Recipe:
    if not _has_dnf(m):
        text = "Move to Amazon Linux 2023 or to one of AWS's images with the driver in it: Amazon "
        text += "Linux 2 is out of support, and current drivers are not made for it."
        return Recipe(tool="distribution", manual=text)
    return Recipe(tool="dnf", commands=_stream(wanted), note=_NVIDIA_REPOSITORY)


def _rhel(m: Machine, wanted: Wanted) -> Recipe:
    install: Command = ("dnf", "install", "nvidia-open" if wanted.open else "cuda-drivers")
    commands: tuple[Command, ...]
    if (major_of(m) or 0) in range(_NO_MODULES_FROM):
        commands = _stream(wanted)
    elif wanted.branch and not wanted.open:
        commands = (("dnf", "versionlock", "add", f"*nvidia*{wanted.branch}*"), install)
    else:
        commands = (install,)
    note = f"{_NVIDIA_REPOSITORY} EPEL is needed too, for DKMS."
    return Recipe(tool="dnf", commands=commands, note=note)


def _fedora(_: Machine, wanted: Wanted) -> Recipe:
    kind = "" if wanted.open or wanted.branch is None else f"-{wanted.branch}xx"
    install = ("dnf", "install", f"akmod-nvidia{kind}", f"xorg-x11-drv-nvidia{kind}-cuda")
    commands: tuple[Command, ...] = (("dnf", "upgrade", "--refresh"), install)
    macro = (Edit(file=_MACRO, what="%_with_kmod_nvidia_open 1"),) if wanted.open else ()
    if wanted.open:
        commands = (*commands, ("akmods", "--force"))
    return Recipe(tool="dnf", commands=commands, edits=macro, note=_RPMFUSION)


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


def _nixos(_: Machine, wanted: Wanted) -> Recipe:
    lines = [
        "nixpkgs.config.allowUnfree = true;",
        'services.xserver.videoDrivers = [ "nvidia" ];',
        f"hardware.nvidia.open = {'true' if wanted.open else 'false'};",
    ]
    if not wanted.open and wanted.branch:
        package = f"config.boot.kernelPackages.nvidiaPackages.legacy_{wanted.branch}"
        lines.append(f"hardware.nvidia.package = {package};")
    note = "After the reboot nvidia-smi names the version of the driver; a newer one comes with a "
    note += "newer channel."
    return Recipe(
        tool="nixos-rebuild",
        commands=(("nixos-rebuild", "boot"),),
        edits=(Edit(file=_NIX, what="\n".join(lines)),),
        note=note,
    )


def _arch(m: Machine, wanted: Wanted) -> Recipe:
    if m.platform.distro == "manjaro":
        note = "The program mhwd chooses the driver that fits the GPU and the installed kernels."
        chosen = ("mhwd", "-a", "pci", "nonfree", "0300")
        return Recipe(tool="mhwd", commands=(("pacman", "-Syu"), chosen), note=note)
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
    "amazon": _amazon,
    "nixos": _nixos,
    "fedora": _fedora,
    "suse": _suse,
    "arch": _arch,
    "other": _other,
}

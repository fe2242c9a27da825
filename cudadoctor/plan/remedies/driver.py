"""Remedies that install or change the driver, by the kind of machine.

Never inside WSL, a container or a Jetson; never a branch that does not support the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from cudadoctor.model.findings import Edit, Remedy, Risk
from cudadoctor.plan.remedies.place import (
    family_of,
    has_virtual_gpu,
    is_cloud,
    keeper_of,
    major_of,
    notebook_of,
    side_of,
)
from cudadoctor.solver.demand import capabilities_of, serves_all
from cudadoctor.solver.fit import compat_lifts

if TYPE_CHECKING:
    from collections.abc import Callable

    from packaging.version import Version

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


Reason = Literal["nouveau", "secure-boot", "not-built", "blacklisted", "modprobe"]

_BY_THE_SYSTEM = (
    "Bring kernel and driver to releases that belong together, by the system's own update of both, "
    "and install the headers of that kernel where the driver's module is built on this machine."
)
_NOUVEAU = "/etc/modprobe.d/blacklist-nouveau.conf"


def load_driver(m: Machine, kb: Knowledge, reason: Reason) -> tuple[Remedy, ...]:  # noqa: ARG001
    """Get the installed driver's module loaded. reason: what keeps it out."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    if family_of(m) == "nixos" and reason != "modprobe" and keeper_of(m) == "here":
        return (_declared(),)
    if keeper_of(m) != "here":
        return (_root("load-driver", "Load the NVIDIA driver", m, (("modprobe", "nvidia"),)),)
    return {
        "nouveau": _without_nouveau,
        "secure-boot": _signed,
        "not-built": _built,
        "blacklisted": _allowed,
        "modprobe": _probed,
    }[reason](m)


def reboot(m: Machine) -> tuple[Remedy, ...]:
    """Restart what runs the driver."""
    side = side_of(m)
    if notebook_of(m):
        text = "Disconnect and delete the runtime in the notebook's menu, then connect to another."
        return (Remedy(id="reboot", title="Take a fresh runtime", manual=text),)
    if side == "wsl":
        return (
            Remedy(
                id="reboot",
                title="Restart WSL",
                where="windows",
                commands=(("wsl.exe", "--shutdown"),),
                note="It ends everything that runs in WSL.",
            ),
        )
    if side in ("windows", "macos"):
        return (Remedy(id="reboot", title="Restart the computer", reboot=True, manual="Restart."),)
    commands = (("systemctl", "reboot"),)
    title = "Reboot the host" if keeper_of(m) == "host" else "Reboot"
    return (_root("reboot", title, m, commands, reboot=True),)


def reload_uvm(m: Machine) -> tuple[Remedy, ...]:
    """Create the device nodes of nvidia_uvm; reload it if they open and CUDA fails."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    commands: tuple[tuple[str, ...], ...] = (("nvidia-modprobe", "-u", "-c", "0"),)
    opens = any(one.path == "/dev/nvidia-uvm" and not one.errno for one in m.driver.nodes or ())
    if not opens or "nvidia_uvm" not in (m.driver.modules or ()):
        title = "Load the nvidia_uvm module and make its device nodes"
        return (_root("reload-uvm", title, m, commands),)
    commands = (("modprobe", "-r", "nvidia_uvm"), ("modprobe", "nvidia_uvm"), *commands)
    note = "End all CUDA programs first; where the module is in use, `fuser -v /dev/nvidia-uvm` "
    note += "names the process that holds it."
    return (_root("reload-uvm", "Reload the nvidia_uvm module", m, commands, note=note),)


def reset_gpu(m: Machine, index: int) -> tuple[Remedy, ...]:
    """Reset one GPU. On a machine that others share, only its administrator may."""
    if side_of(m) in ("wsl", "jetson", "macos"):
        return ()
    if side_of(m) == "windows":
        text = "Restart the computer; that resets the GPU as well."
        return (Remedy(id="reset-gpu", title=f"Reset GPU {index}", reboot=True, manual=text),)
    commands = (("nvidia-smi", "--gpu-reset", "-i", str(index)),)
    note = "Only while nothing uses the GPU. GPUs that NVLink joins are reset together, or by a "
    note += "reboot."
    return (_root("reset-gpu", f"Reset GPU {index}", m, commands, note=note),)


def wsl_driver(m: Machine) -> tuple[Remedy, ...]:
    """The driver on the Windows side, and any Linux driver taken out of WSL."""
    if side_of(m) != "wsl":
        return ()
    if m.platform.wsl == 1:
        text = "In Windows, `wsl --set-version NAME 2` turns this distribution into WSL 2; WSL 1 "
        text += "has no GPU."
        return (Remedy(id="wsl-driver", title="Turn to WSL 2", where="windows", manual=text),)
    inside = tuple(package.name for package in m.driver.packages or () if _is_driver(package.name))
    on_windows = Remedy(
        id="wsl-windows-driver",
        title="Install or update the NVIDIA driver on Windows",
        where="windows",
        manual="Install the current driver from the NVIDIA App or from nvidia.com/drivers on "
        "Windows, then run `wsl --shutdown` there.",
    )
    if not inside:
        return (on_windows,)
    remove = Remedy(
        id="wsl-driver",
        title="Take the Linux driver out of WSL",
        needs_root=True,
        commands=((*_taken_out(m), *inside), ("ldconfig",)),
        tool=_taken_out(m)[0].removesuffix("-get"),
        note="WSL uses the driver of Windows; a Linux driver inside hides it. Afterwards run "
        "`wsl --shutdown` in Windows.",
    )
    return (remove, on_windows)


def _taken_out(m: Machine) -> tuple[str, str]:
    """How the distribution takes packages out."""
    tools = {"suse": ("zypper", "remove"), "arch": ("pacman", "-R")}
    dnf = ("dnf", "remove")
    return ({"fedora": dnf, "rhel": dnf} | tools).get(family_of(m), ("apt-get", "remove"))


def _is_driver(name: str) -> bool:
    bare = name.partition(":")[0]
    return bare.startswith(
        ("nvidia-driver-", "libnvidia-compute-", "nvidia-utils-", "nvidia-dkms-", "cuda-drivers")
    )


def _declared() -> Remedy:
    """On NixOS files under /etc and modules are made from the configuration."""
    return Remedy(
        id="load-driver",
        title="Let NixOS load the NVIDIA driver",
        needs_root=True,
        reboot=True,
        edits=(
            Edit(
                file="/etc/nixos/configuration.nix",
                what='services.xserver.videoDrivers = [ "nvidia" ];\n'
                'boot.blacklistedKernelModules = [ "nouveau" ];',
            ),
        ),
        commands=(("nixos-rebuild", "boot"),),
        tool="nixos-rebuild",
    )


def _without_nouveau(m: Machine) -> tuple[Remedy, ...]:
    rebuild = rebuild_initramfs(m)
    return (
        Remedy(
            id="load-driver",
            title="Keep nouveau from taking the GPU",
            needs_root=True,
            reboot=True,
            commands=(rebuild,) if rebuild else (),
            manual=None if rebuild else "Make the boot image (initramfs) anew and reboot.",
            edits=(Edit(file=_NOUVEAU, what="blacklist nouveau\noptions nouveau modeset=0"),),
        ),
    )


def _signed(m: Machine) -> tuple[Remedy, ...]:
    key = signing_key(m)
    made: tuple[tuple[str, ...], ...] = (("kmodgenca", "-a"),) if family_of(m) == "fedora" else ()
    note = "mokutil asks for a password; after the reboot, choose Enroll MOK in the blue screen "
    note += "and give it again."
    if family_of(m) == "ubuntu":
        note += " Ubuntu's linux-modules-nvidia-* packages are signed already and need no key."
    text = "Enrol the key that signs the driver's modules with `mokutil --import`."
    return (
        Remedy(
            id="load-driver",
            title="Enrol the key that signs the driver's module",
            needs_root=True,
            reboot=True,
            commands=(*made, ("mokutil", "--import", key)) if key else (),
            manual=None if key else text,
            tool="mokutil",
            note=note,
        ),
    )


def _built(m: Machine) -> tuple[Remedy, ...]:
    commands = rebuild_modules(m)
    arch = family_of(m) == "arch"
    title = f"Build the driver's module for kernel {m.platform.kernel or 'in use'}"
    return (
        Remedy(
            id="load-driver",
            title=title,
            needs_root=True,
            reboot=arch or not commands,
            commands=(*commands, *(() if arch else (("modprobe", "nvidia"),))) if commands else (),
            manual=None if commands else _BY_THE_SYSTEM,
            note="Where the build fails, /var/lib/dkms/nvidia/*/build/make.log says why.",
        ),
    )


def _allowed(m: Machine) -> tuple[Remedy, ...]:
    rebuild = rebuild_initramfs(m)
    files = m.driver.blacklisted_by or ()
    what = "remove the lines that blacklist nvidia or alias it to off"
    return (
        Remedy(
            id="load-driver",
            title="Let the nvidia module load again",
            needs_root=True,
            reboot=True,
            commands=(rebuild,) if rebuild else (),
            manual=None if files else "Remove what blacklists nvidia under /etc/modprobe.d.",
            edits=tuple(Edit(file=file, what=what) for file in files),
            note="On a laptop with `prime-select`, `prime-select nvidia` does it."
            if family_of(m) == "ubuntu"
            else None,
        ),
    )


def _probed(m: Machine) -> tuple[Remedy, ...]:
    commands = (("modprobe", "nvidia"), ("modprobe", "nvidia_uvm"))
    return (_root("load-driver", "Load the NVIDIA driver", m, commands),)


def _root(
    id: str,  # noqa: A002
    title: str,
    m: Machine,
    commands: tuple[tuple[str, ...], ...],
    *,
    reboot: bool = False,
    note: str | None = None,
) -> Remedy:
    """A step for root, or a request to the administrator where the machine is shared."""
    where = keeper_of(m)
    if where == "admin":
        text = "This belongs to the administrator: others use the machine."
        return Remedy(id=id, title=title, where=where, reboot=reboot, manual=text)
    return Remedy(
        id=id,
        title=title,
        where=where,
        needs_root=True,
        reboot=reboot,
        commands=commands,
        note=note,
    )


_TITLE = "Use NVIDIA's forward-compatibility package"
_LIMITS = (
    "It is for data-centre GPUs and for computing only, not for graphics, and its libraries must "
    "come first in the loader's path. After an update of the driver to branch {branch} or newer it "
    "must go again."
)
_IMAGES = ("ubuntu24.04", "ubuntu22.04", "rockylinux9", "ubuntu20.04")
_INSTALL = {
    "ubuntu": ("apt-get", "install"),
    "debian": ("apt-get", "install"),
    "rhel": ("dnf", "install"),
    "amazon": ("dnf", "install"),
    "fedora": ("dnf", "install"),
}


def forward_compat(m: Machine, kb: Knowledge, cuda: Version | None) -> tuple[Remedy, ...]:
    """The package for that CUDA release; () where it does not run on these GPUs or this driver.

    Also () where the installed torch has no code for a GPU: there no driver helps.
    """
    if cuda is None or not compat_lifts(m, kb, cuda) or not _torch_has_code(m, kb, cuda):
        return ()
    side = side_of(m)
    if side == "container":
        return (_image(kb, cuda),)
    if side in ("linux", "dgx"):
        return (_package(m, kb, cuda),)
    text = f"Ask for NVIDIA's package cuda-compat-{cuda.major}-{cuda.minor}; {_folder(cuda)} then "
    text += "comes first in LD_LIBRARY_PATH."
    return (_remedy(kb, cuda, where=keeper_of(m), manual=text),)


def _package(m: Machine, kb: Knowledge, cuda: Version) -> Remedy:
    """On a machine of one's own: a package of NVIDIA's repository."""
    name = f"cuda-compat-{cuda.major}-{cuda.minor}"
    tool = _INSTALL.get(family_of(m))
    text = f"{name} comes from NVIDIA's repository for this system, which must be set up. Programs "
    text += f"that need it are then started with {_folder(cuda)} first in LD_LIBRARY_PATH."
    return _remedy(
        kb,
        cuda,
        needs_root=True,
        commands=((*tool, "-y", name),) if tool else (),
        manual=text,
        tool=tool[0].removesuffix("-get") if tool else None,
    )


def _image(kb: Knowledge, cuda: Version) -> Remedy:
    """In a container the package is part of the image."""
    tags = (kb.newest_docker_tag(cuda, "base", one) for one in _IMAGES)
    tag = next((one for one in tags if one is not None), None)
    image = f"nvidia/cuda:{tag}" if tag else f"an nvidia/cuda image of CUDA {cuda}"
    text = f"Start from {image}, which brings the package, and put {_folder(cuda)} first in "
    text += "LD_LIBRARY_PATH where the container toolkit does not pick it up by itself."
    return _remedy(kb, cuda, where="container", manual=text)


def _remedy(kb: Knowledge, cuda: Version, **more: object) -> Remedy:
    branch = kb.branch_for(cuda)
    note = _LIMITS.format(branch=branch) if branch else _LIMITS.partition(" After")[0]
    given: dict[str, object] = {"id": "cuda-compat", "title": _TITLE, "risk": Risk.SYSTEM}
    return Remedy(**(given | {"note": note} | more))  # type: ignore[arg-type]


def _folder(cuda: Version) -> str:
    return f"/usr/local/cuda-{cuda.major}.{cuda.minor}/compat"


def _torch_has_code(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether the torch that the package is for would run on every GPU, if the driver let it."""
    archs, capabilities = m.torch.archs, capabilities_of(m, kb)
    if m.torch.cuda != cuda or archs is None or capabilities is None:
        return True
    return serves_all(archs, capabilities, m.torch.version, cuda, kb)

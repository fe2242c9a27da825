"""Remedies that install or change the driver, by the kind of machine.

Never inside WSL, a container or a Jetson; never a branch that does not support the GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import Edit, Remedy
from cudadoctor.model.machine import Machine
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

Command = tuple[str, ...]
Reason = Literal["nouveau", "secure-boot", "not-built", "blacklisted", "modprobe"]

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
_JETPACK = (
    "The driver of a Jetson comes with JetPack: update it with SDK Manager or with the "
    "board's own apt upgrade, never with a driver for other computers."
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
    """What the NVIDIA GPUs ask that are known, by the driver or by the PCI bus."""
    on_bus = [
        model
        for device in m.pci or ()
        if device.vendor == "nvidia"
        for model in kb.gpus_by_pci(device.device_id)
    ]
    capabilities = {*(capabilities_of(m, kb) or ()), *(model.capability for model in on_bus)}
    known = [found for capability in capabilities if (found := kb.architecture(capability))]
    models = [*on_bus, *(kb.gpu_by_name(gpu.name) for gpu in m.gpus or () if gpu.name)]
    return Bounds(
        lowest=max((era.first_branch for era in known if era.first_branch), default=None),
        highest=min((era.last_branch for era in known if era.last_branch), default=None),
        open=all(era.open_modules != "none" for era in known),
        blackwell_or_newer=any(era.open_modules == "only" for era in known),
        data_center=any("-server" in package.name for package in m.driver.packages or ())
        or (bool(models) and all(model is not None and model.data_center for model in models)),
    )


def _maintained(least: int, bounds: Bounds, kb: Knowledge) -> int:
    """The oldest branch from there on that still gets updates and supports the GPUs.

    GPUs that no maintained branch supports get their last one.
    """
    top = kb.newest_branch() if bounds.highest is None else bounds.highest
    maintained = (branch for branch in range(least, top + 1) if kb.branch_is_current(branch))
    return next(maintained, least if bounds.highest is None else bounds.highest)


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
    """The step in the way of this machine: by packages, by its vendor's means, or by others."""
    if bounds.highest is not None and bounds.blackwell_or_newer:
        return ()  # Two GPUs that no single driver serves: there is no such driver to install.
    least = f" of branch {branch} or newer" if branch else ""
    where = keeper_of(m)
    step = partial(Remedy, id=id, title=title, needs_root=True)
    match side_of(m):
        case "macos":
            return ()
        case "wsl":
            text = f"{_WINDOWS} No driver belongs inside WSL."
            return (Remedy(id=id, title=f"{title} on Windows", where="windows", manual=text),)
        case "windows":
            return (step(manual=f"{_WINDOWS} It must be{least}." if least else _WINDOWS),)
        case "jetson":
            own = where == "here"
            title = "Update JetPack"
            return (step(title=title, where=where, needs_root=own, reboot=own, manual=_JETPACK),)
        case "dgx":
            # DGX OS is an Ubuntu; NVIDIA's software for DGX also comes for Red Hat's systems.
            red_hat = family_of(m) in ("rhel", "fedora")
            update = "dnf upgrade --refresh" if red_hat else "apt-get update; apt-get full-upgrade"
            title, tool = f"{title} by the DGX system's own update", "dnf" if red_hat else "apt"
            return (step(title=title, reboot=True, commands=_argvs(update), tool=tool),)
        case _ if has_virtual_gpu(m):
            return (Remedy(id=id, title=title, where="admin", manual=_VGPU),)
        case "linux":
            recipe = _recipe(partial(step, reboot=True), m, bounds, branch)
            notes = (
                recipe.note,
                _CLOUD if is_cloud(m) else None,
                _SECURE_BOOT if m.platform.secure_boot else None,
                _RUN_FILE if m.driver.installed and m.driver.packages == () else None,
            )
            note = " ".join(note for note in notes if note)
            return (msgspec.structs.replace(recipe, note=note or None),)
    who = "whoever runs the host" if where == "host" else "the administrator of this machine"
    text = f"Ask {who} for an NVIDIA driver{least}: it belongs to the host and cannot be changed "
    text += "from in here."
    return (Remedy(id=id, title=f"{title} on the host", where=where, manual=text),)


_NVIDIA_REPOSITORY = (
    "This takes NVIDIA's own package repository for the distribution, set up as NVIDIA's driver "
    "installation guide describes; do not mix it with driver packages of another source."
)
_RPMFUSION = (
    "This takes the RPM Fusion repositories (free and nonfree). Before the reboot, wait until "
    "`modinfo -F version nvidia` names the new version: akmods builds the module in the background."
)
_AMAZON_2 = (
    "Move to Amazon Linux 2023 or to one of AWS's images with the driver in it: Amazon "
    "Linux 2 is out of support, and current drivers are not made for it."
)
_NEWER_CHANNEL = (
    "After the reboot nvidia-smi names the version of the driver; a newer one comes with a "
    "newer channel."
)
_NON_FREE = (
    "Components: main contrib non-free non-free-firmware "
    "(in an older /etc/apt/sources.list: the same words at the end of each line)"
)
_FOCAL = (
    "Ubuntu 20.04 is past its standard support and gets no new branches of the driver: where the "
    "package is not found, take a newer Ubuntu, or the build of torch for the present driver."
)
_AMAZON_WITH_DNF = 2022
_NIX = "/etc/nixos/configuration.nix"
_NO_MODULES_FROM = 10  # RHEL 10 and its kin have no package modules (streams) any more.


class Distribution(NamedTuple):
    """What a family of distributions uses; "" where it is not known."""

    remove: str = "apt-get remove"
    boot_image: str = ""
    signing_key: str = ""
    """The key that signs locally built modules."""


_DISTRIBUTIONS = {
    "ubuntu": Distribution(
        "apt-get remove", "update-initramfs -u", "/var/lib/shim-signed/mok/MOK.der"
    ),
    "debian": Distribution("apt-get remove", "update-initramfs -u", "/var/lib/dkms/mok.pub"),
    "rhel": Distribution("dnf remove", "dracut --force", "/var/lib/dkms/mok.pub"),
    "amazon": Distribution("dnf remove", "dracut --force"),
    "fedora": Distribution("dnf remove", "dracut --force", "/etc/pki/akmods/certs/public_key.der"),
    "suse": Distribution("zypper remove", "dracut --force"),
    "arch": Distribution("pacman -R", "mkinitcpio -P"),
}


def _distribution(m: Machine) -> Distribution:
    return _DISTRIBUTIONS.get(family_of(m), Distribution())


def _argvs(text: str) -> tuple[Command, ...]:
    """The commands in a text that separates them by semicolons."""
    return tuple(tuple(line.split()) for line in text.split(";") if line)


def _boot_image(m: Machine) -> tuple[Command, ...]:
    """The command that makes the boot image anew, () where the distribution is unknown."""
    own = m.platform.distro == "endeavouros"
    return _argvs("dracut-rebuild" if own else _distribution(m).boot_image)


def _rebuild_modules(m: Machine) -> tuple[Command, ...]:
    """The commands that build the driver's modules for the running kernel, with its headers.

    Empty where only its own system knows how: then a sentence stands in their place.
    """
    release = f"-{m.platform.kernel}" if m.platform.kernel else ""
    autoinstall = ("dkms", "autoinstall")
    devel = ("dnf", "install", f"kernel-devel{release}")
    match family_of(m):
        case "ubuntu":
            headers = f"linux-headers{release or '-generic'}"
            return (("apt-get", "install", headers), autoinstall)
        case "debian":
            return (("apt-get", "install", _debian_headers(m, release)), autoinstall)
        case "fedora":
            return (devel, ("akmods", "--force"))
        case "rhel":
            return (devel, autoinstall)
        case "amazon" if _has_dnf(m):
            return (devel, autoinstall)
        case "suse":
            # SUSE ships built modules: the package is laid out anew for the running kernel.
            modules = [package.name for package in m.driver.packages or ()]
            modules = [name for name in modules if "-kmp-" in name]
            return (("zypper", "install", "--force", *modules),) if modules else ()
        case "arch" if m.platform.distro == "arch":
            return (("pacman", "-Syu", "linux-headers"),)
    return ()


def _debian_headers(m: Machine, release: str = "") -> str:
    """The package of headers: of that very kernel, or of the newest of its flavour."""
    arch = "arm64" if m.platform.machine == "aarch64" else "amd64"
    kernel = m.platform.kernel or ""
    if kernel.endswith("-pve"):
        return f"proxmox-headers{release}" if release else "proxmox-default-headers"
    cloud = "cloud-" if "-cloud-" in kernel else ""
    return f"linux-headers{release}" if release else f"linux-headers-{cloud}{arch}"


def _has_dnf(m: Machine) -> bool:
    """Amazon Linux 2 has none, and its support is over."""
    return (major_of(m) or 0) >= _AMAZON_WITH_DNF


def _recipe(step: Callable[..., Remedy], m: Machine, bounds: Bounds, branch: int | None) -> Remedy:
    """How this distribution installs a driver of that branch (None: the one of its choice)."""
    match family_of(m):
        case "ubuntu" | "debian":
            return _by_apt(step, m, bounds, branch)
        case "rhel" | "amazon" | "fedora" | "suse":
            return _by_rpm(step, m, bounds, branch)
        case "nixos":
            lines = [
                "nixpkgs.config.allowUnfree = true;",
                'services.xserver.videoDrivers = [ "nvidia" ];',
                f"hardware.nvidia.open = {'true' if bounds.open else 'false'};",
            ]
            if not bounds.open and branch:
                legacy = f"config.boot.kernelPackages.nvidiaPackages.legacy_{branch}"
                lines.append(f"hardware.nvidia.package = {legacy};")
            return step(
                tool="nixos-rebuild",
                commands=_argvs("nixos-rebuild boot"),
                edits=(Edit(file=_NIX, what="\n".join(lines)),),
                note=_NEWER_CHANNEL,
            )
        case "arch" if m.platform.distro == "manjaro":
            note = (
                "The program mhwd chooses the driver that fits the GPU and the installed kernels."
            )
            commands = _argvs("pacman -Syu; mhwd -a pci nonfree 0300")
            return step(tool="mhwd", commands=commands, note=note)
        case "arch" if bounds.open:
            note = "For another kernel than `linux`, nvidia-open-dkms and that kernel's headers."
            commands = _argvs("pacman -Syu nvidia-open nvidia-utils")
            return step(tool="pacman", commands=commands, note=note)
        case "arch":
            name = f"nvidia-{branch}xx-dkms" if branch else "the legacy branch's -dkms"
            text = f"Install {name} and its -utils from the AUR: the packages of the official "
            return step(tool="pacman", manual=f"{text}repositories no longer support this GPU.")
    least = f" of branch {branch} or newer" if branch else ""
    kind = "open" if bounds.open else "proprietary"
    text = f"Install the distribution's NVIDIA driver{least} with the {kind} kernel modules, "
    return step(tool="distribution", manual=f"{text}by its package manager.")


def _by_apt(step: Callable[..., Remedy], m: Machine, bounds: Bounds, branch: int | None) -> Remedy:
    package = "nvidia-open" if bounds.open else "cuda-drivers"
    headers = _debian_headers(m)
    match family_of(m):
        case "ubuntu" if branch is None:
            install = f"ubuntu-drivers install {'--gpgpu' if bounds.data_center else ''}"
            return step(tool="ubuntu-drivers", commands=_argvs(install))
        case "ubuntu":
            kind = ("-server" if bounds.data_center else "") + ("-open" if bounds.open else "")
            commands = _argvs(f"apt-get update; apt-get install nvidia-driver-{branch}{kind}")
            focal = (m.platform.distro, m.platform.distro_version) == ("ubuntu", "20.04")
            return step(tool="apt", commands=commands, note=_FOCAL if focal else None)
        case "debian" if branch is None and not bounds.open:
            commands = _argvs(f"apt-get update; apt-get install {headers} nvidia-driver")
            non_free = Edit(file="/etc/apt/sources.list.d/debian.sources", what=_NON_FREE)
            return step(tool="apt", commands=commands, edits=(non_free,))
    pinned = f"{package}-{branch}" if branch else package
    commands = _argvs(f"apt-get update; apt-get install {headers} {pinned}")
    return step(tool="apt", commands=commands, note=_NVIDIA_REPOSITORY)


def _by_rpm(step: Callable[..., Remedy], m: Machine, bounds: Bounds, branch: int | None) -> Remedy:
    package = "nvidia-open" if bounds.open else "cuda-drivers"
    match family_of(m):
        case "amazon" if not _has_dnf(m):
            return step(tool="distribution", manual=_AMAZON_2)
        case "amazon" | "rhel" as family:
            epel = " EPEL is needed too, for DKMS." if family == "rhel" else ""
            commands = _argvs(f"dnf install {package}")
            if family == "amazon" or (major_of(m) or 0) < _NO_MODULES_FROM:
                # Out of a package module: its stream is chosen first.
                stream = f"{branch}-{'open' if bounds.open else 'dkms'}"
                if branch is None:
                    stream = "open-dkms" if bounds.open else "latest-dkms"
                module = f"reset nvidia-driver; dnf module enable nvidia-driver:{stream}"
                commands = _argvs(f"dnf module {module}") + commands
            elif branch and not bounds.open:
                commands = _argvs(f"dnf versionlock add *nvidia*{branch}*") + commands
            return step(tool="dnf", commands=commands, note=_NVIDIA_REPOSITORY + epel)
        case "fedora":
            kind = "" if bounds.open or branch is None else f"-{branch}xx"
            install = f"akmod-nvidia{kind} xorg-x11-drv-nvidia{kind}-cuda"
            commands = _argvs(f"dnf upgrade --refresh; dnf install {install}")
            if not bounds.open:
                return step(tool="dnf", commands=commands, note=_RPMFUSION)
            macro = Edit(file="/etc/rpm/macros.nvidia-kmod", what="%_with_kmod_nvidia_open 1")
            commands += _argvs("akmods --force")
            return step(tool="dnf", commands=commands, edits=(macro,), note=_RPMFUSION)
    kind = "open-driver-G06-signed" if bounds.open else "driver-G06"
    install = f"nvidia-{kind}-kmp-default nvidia-compute-utils-G06"
    commands = _argvs(f"zypper refresh; zypper install {install}")
    note = f"Both packages must be of the same version. {_NVIDIA_REPOSITORY}"
    return step(tool="zypper", commands=commands, note=note)


_BY_THE_SYSTEM = (
    "Bring kernel and driver to releases that belong together, by the system's own update of both, "
    "and install the headers of that kernel where the driver's module is built on this machine."
)
_ENROL = (
    "mokutil asks for a password; after the reboot, choose Enroll MOK in the blue screen "
    "and give it again."
)
_SIGNED_ALREADY = " Ubuntu's linux-modules-nvidia-* packages are signed already and need no key."


def load_driver(m: Machine, reason: Reason) -> tuple[Remedy, ...]:
    """Get the installed driver's module loaded. reason: what keeps it out."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    if keeper_of(m) != "here":
        return _root(m, "load-driver", "Load the NVIDIA driver", "modprobe nvidia")
    step = partial(Remedy, id="load-driver", needs_root=True, reboot=True)
    family, boot_image = family_of(m), _boot_image(m)
    match reason:
        case "modprobe":
            commands = "modprobe nvidia; modprobe nvidia_uvm"
            return _root(m, "load-driver", "Load the NVIDIA driver", commands)
        case _ if family == "nixos":
            # Files under /etc and modules are made from the configuration there.
            what = 'services.xserver.videoDrivers = [ "nvidia" ];\n'
            what += 'boot.blacklistedKernelModules = [ "nouveau" ];'
            remedy = step(
                title="Let NixOS load the NVIDIA driver",
                edits=(Edit(file=_NIX, what=what),),
                commands=_argvs("nixos-rebuild boot"),
                tool="nixos-rebuild",
            )
        case "nouveau":
            text = "Make the boot image (initramfs) anew and reboot."
            what = "blacklist nouveau\noptions nouveau modeset=0"
            remedy = step(
                title="Keep nouveau from taking the GPU",
                commands=boot_image,
                manual=None if boot_image else text,
                edits=(Edit(file="/etc/modprobe.d/blacklist-nouveau.conf", what=what),),
            )
        case "secure-boot":
            key = _distribution(m).signing_key
            make = "kmodgenca -a; " if family == "fedora" else ""
            text = "Enrol the key that signs the driver's modules with `mokutil --import`."
            remedy = step(
                title="Enrol the key that signs the driver's module",
                commands=_argvs(f"{make}mokutil --import {key}") if key else (),
                manual=None if key else text,
                tool="mokutil",
                note=_ENROL + (_SIGNED_ALREADY if family == "ubuntu" else ""),
            )
        case "not-built":
            rebuild = _rebuild_modules(m)
            load = _argvs("modprobe nvidia") if rebuild and family != "arch" else ()
            remedy = step(
                title=f"Build the driver's module for kernel {m.platform.kernel or 'in use'}",
                reboot=not load,
                commands=rebuild + load,
                manual=None if rebuild else _BY_THE_SYSTEM,
                note="Where the build fails, /var/lib/dkms/nvidia/*/build/make.log says why.",
            )
        case "blacklisted":
            files = m.driver.blacklisted_by or ()
            what = "remove the lines that blacklist nvidia or alias it to off"
            prime = "On a laptop with `prime-select`, `prime-select nvidia` does it."
            remedy = step(
                title="Let the nvidia module load again",
                commands=boot_image,
                manual=None if files else "Remove what blacklists nvidia under /etc/modprobe.d.",
                edits=tuple(Edit(file=file, what=what) for file in files),
                note=prime if family == "ubuntu" else None,
            )
    return (remedy,)


def reboot(m: Machine) -> tuple[Remedy, ...]:
    """Restart what runs the driver."""
    step = partial(Remedy, id="reboot")
    side = side_of(m)
    if notebook_of(m):
        text = "Disconnect and delete the runtime in the notebook's menu, then connect to another."
        return (step(title="Take a fresh runtime", manual=text),)
    if side == "wsl":
        commands, note = _argvs("wsl.exe --shutdown"), "It ends everything that runs in WSL."
        return (step(title="Restart WSL", where="windows", commands=commands, note=note),)
    if side in ("windows", "macos"):
        return (step(title="Restart the computer", reboot=True, manual="Restart."),)
    title = "Reboot the host" if keeper_of(m) == "host" else "Reboot"
    return _root(m, "reboot", title, "systemctl reboot", reboot=True)


def reload_uvm(m: Machine) -> tuple[Remedy, ...]:
    """Create the device nodes of nvidia_uvm; reload it if they open and CUDA fails."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    nodes = "nvidia-modprobe -u -c 0"
    opens = any(node.path == "/dev/nvidia-uvm" and not node.errno for node in m.driver.nodes or ())
    if not opens or "nvidia_uvm" not in (m.driver.modules or ()):
        title = "Load the nvidia_uvm module and make its device nodes"
        return _root(m, "reload-uvm", title, nodes)
    note = "End all CUDA programs first; where the module is in use, `fuser -v /dev/nvidia-uvm` "
    note += "names the process that holds it."
    commands = f"modprobe -r nvidia_uvm; modprobe nvidia_uvm; {nodes}"
    return _root(m, "reload-uvm", "Reload the nvidia_uvm module", commands, note=note)


def reset_gpu(m: Machine, index: int) -> tuple[Remedy, ...]:
    """Reset one GPU. On a machine that others share, only its administrator may."""
    side, title = side_of(m), f"Reset GPU {index}"
    if side in ("wsl", "jetson", "macos"):
        return ()
    if side == "windows":
        text = "Restart the computer; that resets the GPU as well."
        return (Remedy(id="reset-gpu", title=title, reboot=True, manual=text),)
    note = "Only while nothing uses the GPU. GPUs that NVLink joins are reset together, or by a "
    note += "reboot."
    return _root(m, "reset-gpu", title, f"nvidia-smi --gpu-reset -i {index}", note=note)


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
    tool, remove = _distribution(m).remove.split()
    without = Remedy(
        id="wsl-driver",
        title="Take the Linux driver out of WSL",
        needs_root=True,
        commands=((tool, remove, *inside), ("ldconfig",)),
        tool=tool.removesuffix("-get"),
        note="WSL uses the driver of Windows; a Linux driver inside hides it. Afterwards run "
        "`wsl --shutdown` in Windows.",
    )
    return (without, on_windows)


def _is_driver(name: str) -> bool:
    return name.startswith(
        ("nvidia-driver-", "libnvidia-compute-", "nvidia-utils-", "nvidia-dkms-", "cuda-drivers")
    )


def _root(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    commands: str,
    *,
    reboot: bool = False,
    note: str | None = None,
) -> tuple[Remedy, ...]:
    """A step for root, or a request to the administrator where the machine is shared."""
    where = keeper_of(m)
    step = partial(Remedy, id=id, title=title, where=where, reboot=reboot)
    if where == "admin":
        text = "This belongs to the administrator: others use the machine."
        return (step(manual=text),)
    return (step(needs_root=True, commands=_argvs(commands), note=note),)


_LIMITS = (
    "It is for data-centre GPUs and for computing only, not for graphics, and its libraries must "
    "come first in the loader's path. After an update of the driver to branch {branch} or newer it "
    "must go again."
)
_IMAGES = ("ubuntu24.04", "ubuntu22.04", "rockylinux9", "ubuntu20.04")
_COMPAT_FROM = {
    "ubuntu": "apt-get",
    "debian": "apt-get",
    "rhel": "dnf",
    "amazon": "dnf",
    "fedora": "dnf",
}


def forward_compat(m: Machine, kb: Knowledge, cuda: Version | None) -> tuple[Remedy, ...]:
    """The package for that CUDA release; () where it does not run on these GPUs or this driver.

    Also () where the installed torch has no code for a GPU: there no driver helps.
    """
    if cuda is None or not compat_lifts(m, kb, cuda) or not _torch_has_code(m, kb, cuda):
        return ()
    name = f"cuda-compat-{cuda.major}-{cuda.minor}"
    folder = f"/usr/local/cuda-{cuda.major}.{cuda.minor}/compat"
    tool, where = None, keeper_of(m)
    side = side_of(m)
    own = side in ("linux", "dgx")
    if side == "container":
        # In a container the package is part of the image.
        where = "container"
        tags = (kb.newest_docker_tag(cuda, "base", system) for system in _IMAGES)
        tag = next(filter(None, tags), None)
        image = f"nvidia/cuda:{tag}" if tag else f"an nvidia/cuda image of CUDA {cuda}"
        text = f"Start from {image}, which brings the package, and put {folder} first in "
        text += "LD_LIBRARY_PATH where the container toolkit does not pick it up by itself."
    elif own:
        where, tool = "here", _COMPAT_FROM.get(family_of(m))
        text = f"{name} comes from NVIDIA's repository for this system, which must be set up. "
        text += f"Programs that need it are then started with {folder} first in LD_LIBRARY_PATH."
    else:
        text = f"Ask for NVIDIA's package {name}; {folder} then comes first in LD_LIBRARY_PATH."
    branch = kb.branch_for(cuda)
    return (
        Remedy(
            id="cuda-compat",
            title="Use NVIDIA's forward-compatibility package",
            where=where,
            needs_root=own,
            commands=((tool, "install", "-y", name),) if tool else (),
            manual=text,
            tool=tool.removesuffix("-get") if tool else None,
            note=_LIMITS.format(branch=branch) if branch else _LIMITS.partition(" After")[0],
        ),
    )


def _torch_has_code(m: Machine, kb: Knowledge, cuda: Version) -> bool:
    """Whether the torch that the package is for would run on every GPU, if the driver let it."""
    archs, capabilities = m.torch.archs, capabilities_of(m, kb)
    if m.torch.cuda != cuda or archs is None or capabilities is None:
        return True
    return serves_all(archs, capabilities, m.torch.version, cuda, kb)

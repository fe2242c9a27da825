"""Remedies around the kernel module, the device and the reboot. All need root or more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cudadoctor.model.findings import Edit, Remedy
from cudadoctor.plan.remedies.linux import rebuild_initramfs, rebuild_modules, signing_key
from cudadoctor.plan.remedies.place import family_of, keeper_of, notebook_of, side_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine

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

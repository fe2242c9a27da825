"""Remedies that install or change the driver, by the kind of machine.

Never inside WSL, a container or a Jetson; never a branch that does not support the GPU.
"""

import re
from functools import partial
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from cudadoctor.installers.tool import system_packages
from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.tables import texts
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.findings import Edit, Remedies, Remedy, Risk, Where
from cudadoctor.model.machine import Json, Machine, OptBool, OptInt, OptStr, OptVersion, Strings
from cudadoctor.plan.remedies.process import (
    UVM_AT_BOOT,
    by_hand,
    commands_in,
    drained,
    family_of,
    has_nvlink_5,
    in_front,
    is_cloud,
    keeper_of,
    major_of,
    notebook_of,
    refuses_key,
    set_variables,
    side_of,
)
from cudadoctor.plan.remedies.repositories import adding, is_ended, repository_of
from cudadoctor.solver.demand import capabilities_of, listed, serves_all
from cudadoctor.solver.fit import compat_lifts, has_virtual_gpu

Reason = Literal["nouveau", "secure-boot", "not-built", "blacklisted", "modprobe"]

_SECURE_BOOT = (
    "Secure Boot is on. If the installer asks for a password, choose one. When the machine "
    "reboots, select Enroll MOK on the blue MOK Manager screen and enter that password."
)
_RUN_FILE = (
    "No package owns the current libcuda: it was installed from a .run file and must be "
    "removed first."
)
_CLOUD = (
    "You can skip these steps by using one of your cloud provider's images that come with the "
    "driver preinstalled."
)
_WINDOWS = (
    "Install the latest driver with the NVIDIA App or from nvidia.com/drivers. You do not need "
    "the CUDA toolkit."
)
_ON_WINDOWS = (
    "First install the latest driver on Windows, with the NVIDIA App or from nvidia.com/drivers. "
    "You do not need the CUDA toolkit."
)
_JETPACK = (
    "This updates JetPack only within its current major release. Moving to a newer major release "
    "(5 to 6, 6 to 7) requires flashing the board with NVIDIA SDK Manager."
)
_VGPU = (
    "This is a virtual GPU (vGPU), which needs NVIDIA's vGPU guest driver (GRID) from the same "
    "branch as the host's driver. Get the guest driver from the cloud provider or the "
    "hypervisor's administrator."
)
_OUT_OF_SUPPORT = (
    "Ubuntu {version} is out of standard support and may not offer this driver branch. If apt "
    "does not find the driver, upgrade Ubuntu, or install a torch build that works with an older "
    "driver."
)
_SUPPORTED_UBUNTUS = ("22.04", "24.04", "26.04", "26.10")
_LAST = "Branch {branch} is the last one that supports this GPU."
_OPEN_ONLY = "This GPU works only with the open kernel modules."
_OLDEST = (
    "Branch {branch} is the oldest branch that meets the minimum version requirement and "
    "still gets updates."
)
_NO_UPDATES = "Branch {branch} no longer gets updates and does not build on the newest kernels."
_SUPERSEDED_FROM = 580
"""No branch before it gets updates any more."""


def install_driver(m: Machine, kb: Knowledge) -> Remedies:
    """Install a driver where there is none: one that the installed torch can use, if there is."""
    bounds = _bounds(m, kb)
    floor = kb.oldest_driver(m.torch.cuda, "Linux") if m.torch.cuda else None
    least = max(bounds.lowest or 0, (floor and floor.driver.branch) or 0)
    least = least if bounds.highest is None else min(least, bounds.highest)
    chosen = bounds.highest is not None or bounds.blackwell_or_newer or bounds.data_center
    branch = _maintained(least, bounds, kb)
    return _driver("install-driver", m, bounds, Aim(least, branch, free=not chosen))


def upgrade_driver(m: Machine, kb: Knowledge, branch: int) -> Remedies:
    """A newer driver, of at least that branch; () where no such branch supports the GPU."""
    bounds = _bounds(m, kb)
    if bounds.highest is not None and branch > bounds.highest:
        return ()
    least = max(branch, bounds.lowest or 0)
    return _driver("upgrade-driver", m, bounds, Aim(least, _maintained(least, bounds, kb)))


def guest_driver(m: Machine) -> Remedies:
    """The driver of a vGPU comes from whoever owns the host; Azure offers it for download."""
    title = "Install the vGPU guest driver"
    azure = (m.platform.kernel or "").endswith("-azure") and family_of(m) == "ubuntu"
    if not azure or m.redacted:
        return (Remedy(id="guest-driver", title=title, where="admin", manual=_VGPU),)
    named = [package.name for package in m.driver.packages or () if is_driver(package)]
    file = "/var/cache/nvidia-grid.run"  # where only root writes
    commands: list[Strings] = [("apt-get", "remove", "-y", *named)] if named else []
    commands += [
        *commands_in("apt-get update"),
        ("apt-get", "install", "-y", "dkms", f"linux-headers-{m.platform.kernel}"),
        ("wget", "-O", file, "https://go.microsoft.com/fwlink/?linkid=874272"),
        ("sh", file, "--silent", "--dkms"),
    ]
    return (
        Remedy(
            id="guest-driver",
            title=title,
            needs_root=True,
            reboot=True,
            commands=tuple(commands),
            note="Microsoft offers this driver for Azure virtual machines that have a vGPU. It "
            "includes the license.",
        ),
    )


def open_modules(m: Machine, kb: Knowledge) -> Remedies:
    """The open kernel modules in place of the proprietary ones."""
    return _modules("open", m, kb)


def proprietary_modules(m: Machine, kb: Knowledge) -> Remedies:
    """The proprietary kernel modules in place of the open ones."""
    return _modules("proprietary", m, kb)


def _modules(kind: str, m: Machine, kb: Knowledge) -> Remedies:
    """Modules of that kind, of the branch that is installed if it supports the GPUs."""
    bounds = _bounds(m, kb)._replace(open=kind == "open")
    aim = _present(m, bounds, kb)._replace(open=kind == "open")
    words = f" with the {kind} kernel modules"
    return _driver(f"{kind}-modules", m, bounds, aim, words)


def one_version(m: Machine, kb: Knowledge) -> Remedies:
    """The driver's module and its libraries at one version again, where they differ on disk."""
    bounds, driver = _bounds(m, kb), m.driver
    built = [package.version for package in driver.packages or () if is_driver(package)]
    if driver.library and built and all(str(driver.library) in version for version in built):
        # The packages agree: only the module for this kernel was not rebuilt.
        return load_driver(m, "not-built")
    bounds = bounds._replace(open=bounds.open and driver.flavour != "proprietary")
    if side_of(m) == "linux" and (lagging := _aligned(m)):
        return lagging
    words = ", with a matching kernel module and libraries"
    return _driver("one-driver-version", m, bounds, _present(m, bounds, kb), words)


def _aligned(m: Machine) -> Remedies:
    """Bring the driver's packages of one source to one version; () where that is not the matter."""
    driver, family = m.driver, family_of(m)
    kernel, library = driver.kernel, driver.library
    if family in ("ubuntu", "debian"):
        return _aligned_by_apt(m)
    own = [package for package in driver.packages or () if is_driver(package)]
    behind = [package.name for package in own if str(library) not in package.version]
    step = partial(Remedy, id="one-driver-version", needs_root=True)
    if not kernel or not library or kernel.branch != library.branch or len(behind) == len(own):
        return ()
    if family == "suse" and behind and all("-kmp-" in name for name in behind):
        # The signed module is of SUSE's own repository, and mostly behind NVIDIA's libraries.
        # persistenced and others of the release require its very version, or are required so.
        rest = [
            package.name for package in driver.packages or () if str(library) in package.version
        ]
        older = [f"{name}={kernel}" for name in rest]
        # Without the lock the next update of the system brings the newer ones back.
        install = ("zypper", "install", "-y", "--oldpackage", *older)
        pair: tuple[Strings, ...] = (install, ("zypper", "addlock", *rest))
        title = f"Install version {kernel} of the driver libraries to match the kernel module"
        return (step(title=title, **_by(pair, _HELD_BACK)),)
    modules = all(name.startswith(("kmod-", "akmod-")) for name in behind)
    sources = [name for name in behind if name.startswith("akmod-")]
    if family in ("rhel", "amazon", "fedora") and behind and modules:
        # What akmods builds here comes from no repository.
        updated = sources or behind
        commands: tuple[Strings, ...] = (("dnf", "upgrade", "-y", "--refresh", *updated),)
        commands += commands_in("akmods --force --rebuild") if sources else ()
        title = f"Update {listed(tuple(updated))} to {library}"
        return (step(title=title, reboot=True, **_by(commands, _LOCKED)),)
    return ()


def _aligned_by_apt(m: Machine) -> Remedies:
    """The packages by name that stayed behind the others of the same source and branch."""
    own = [package for package in m.driver.packages or () if is_driver(package)]
    newest = max(filter(None, (m.driver.kernel, m.driver.library)), default=None)
    if newest is None:
        return ()
    behind = [package for package in own if str(newest) not in package.version]
    packagers = {"ubuntu" in package.version for package in own}
    branches = {found[1] for package in behind if (found := _OF_BRANCH.search(package.name))}
    names, note = [package.name for package in own if _PREBUILT.match(package.name)], _HELD_BY_APT
    if names and m.driver.library != newest:
        return ()
    if names:
        note = _BUILT_BY_DKMS.format(series=_prebuilt(m))
    else:
        # The version of prebuilt modules is that of their kernel: it tells nothing.
        if not 0 < len(behind) < len(own) or len(packagers) > 1:
            return ()
        if branches - {str(newest.branch)}:
            return ()
        names = [package.name for package in behind]
    step = Remedy(
        id="one-driver-version",
        title=f"Update {listed(tuple(names))} to {newest}",
        needs_root=True,
        reboot=True,
        **_by(system_packages("apt-get", *names), note),
    )
    return (step,)


_BUILT_BY_DKMS = (
    "If apt finds no newer modules, install nvidia-dkms-{series} instead, which builds the module "
    "on this machine."
)
_OF_BRANCH = re.compile(r"-(\d{3})(?=-|$)")
_HELD_BACK = (
    "The lock keeps the next update from installing the newer libraries again. When SUSE "
    "releases a matching kernel module, run `sudo zypper removelock` for the same packages."
)
_LOCKED = (
    "If dnf keeps the old version, check `dnf versionlock list` and the exclude= lines in dnf's "
    "configuration for a package that is being held back."
)


_HELD_BY_APT = (
    "If apt stops because of held packages, list them with `apt-mark showhold` and release them "
    "with `sudo apt-mark unhold`."
)


def held_back(m: Machine) -> OptStr:
    """Where to look if the package manager keeps a package at its version."""
    return {"apt-get": _HELD_BY_APT, "dnf": _LOCKED}.get(_system(m).remove.partition(" ")[0])


def _present(m: Machine, bounds: "Bounds", kb: Knowledge) -> "Aim":
    """The branch that is installed, if it supports the GPUs; a newer one where torch needs it."""
    found = [version for version in (m.driver.version, m.driver.library) if version]
    branch = max((version.branch for version in found), default=bounds.lowest)
    if branch is None:
        branch = _maintained(0, bounds, kb)
    branch = max(branch, bounds.lowest or 0)
    floor = kb.oldest_driver(m.torch.cuda, "Linux") if m.torch.cuda else None
    least = (floor and floor.driver.branch) or 0
    if branch < least <= (bounds.highest or least):
        branch = _maintained(least, bounds, kb)
    return Aim(branch, branch if bounds.highest is None else min(branch, bounds.highest))


class Aim(NamedTuple):
    """Which driver is to be installed.

    least: the oldest branch that would do. branch: the one to install. free: any from least on is
    as good, and the distribution may choose. open: it must be the open modules.
    """

    least: int
    branch: int
    free: bool = False
    open: bool = False


class Bounds(NamedTuple):
    """What the GPUs of a machine ask of a driver. highest None: any newer branch will do."""

    lowest: OptInt
    highest: OptInt
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
    top = bounds.highest if bounds.highest is not None else kb.newest_branch()
    maintained = (branch for branch in range(least, top + 1) if kb.branch_is_current(branch))
    return next(maintained, least if bounds.highest is None else top)


def _driver(
    id: str,  # noqa: A002
    m: Machine,
    bounds: Bounds,
    aim: Aim,
    words: str = "",
) -> Remedies:
    """The step in the way of this machine: by packages, by its vendor's means, or by others."""
    if bounds.highest is not None and bounds.blackwell_or_newer:
        return ()  # Two GPUs that no single driver serves: there is no such driver to install.
    where, side = keeper_of(m), side_of(m)
    newer = "" if aim.branch == bounds.highest else " or newer"
    title = f"Install NVIDIA driver {aim.branch}{newer}{words}"
    step = partial(Remedy, id=id, title=title)
    if side == "macos" or notebook_of(m):
        return ()  # A notebook's service provides the driver.
    if side == "wsl":
        title, commands = f"{title} on Windows, never inside WSL", commands_in("wsl.exe --shutdown")
        return (step(title=title, where="windows", commands=commands, manual=_ON_WINDOWS),)
    if side == "windows":
        return (step(needs_root=True, manual=_WINDOWS),)
    if side == "jetson":
        own = where == "here"
        commands = commands_in("apt-get update; apt-get dist-upgrade -y")
        fields: Json = {"needs_root": True, "reboot": own, "commands": commands}
        fields |= {"tool": "apt", "note": _JETPACK}
        return (step(title="Update JetPack", where=where, **fields),)
    if side != "dgx" and has_virtual_gpu(m):
        return guest_driver(m)
    if side in ("dgx", "linux"):
        return (Remedy(id=id, needs_root=True, reboot=True, **_fields(m, bounds, aim, words)),)
    if where == "host" and _UBUNTUS_KERNEL.search(m.platform.kernel or ""):
        host = replace(m, platform=replace(m.platform, distro="ubuntu", distro_version=None))
        fields = _recipe(host, bounds, aim._replace(free=False))
        fields["note"] = f"Kernel {m.platform.kernel} is an Ubuntu kernel, so the host runs Ubuntu."
        fields["title"] = f"Install NVIDIA driver {aim.branch}{words} on the host"
        del fields["reason"]
        return (Remedy(id=id, where=where, needs_root=True, reboot=True, **fields),)
    who = "whoever runs the host" if where == "host" else "the administrator of this machine"
    text = (
        f"Ask {who} to install NVIDIA driver {aim.branch}{newer}. The driver belongs to the host "
        "and can only be changed there."
    )
    return (step(title=f"{title} on the host", where=where, manual=text),)


_UBUNTUS_KERNEL = re.compile(r"-\d+-(generic|lowlatency|aws|azure|gcp|gke|oracle|nvidia)")


def _fields(m: Machine, bounds: Bounds, aim: Aim, words: str) -> Json:
    """What the step of a Linux of one's own consists of."""
    if side_of(m) == "dgx":
        # DGX OS is an Ubuntu; NVIDIA's software for DGX also comes for Red Hat's systems.
        update = "apt-get update; apt-get full-upgrade -y"
        if family_of(m) in ("rhel", "fedora"):
            update = "dnf upgrade -y --refresh"
        return {"title": "Update this DGX, including the NVIDIA driver", **_by(commands_in(update))}
    fields, here, run_file = _recipe(m, bounds, aim), m.platform, from_run_file(m)
    fields["commands"], key = _enrolling(m, fields["commands"])
    unsupported = here.distro == "ubuntu" and here.distro_version not in _SUPPORTED_UBUNTUS
    notes = (
        fields.pop("reason"),
        fields["note"],
        _OUT_OF_SUPPORT.format(version=here.distro_version)
        if unsupported and here.distro_version
        else None,
        _RUN_FILE if run_file else None,
        key,
        _CLOUD if is_cloud(m) else None,
    )
    if run_file and fields["commands"]:
        fields["commands"] = (("nvidia-uninstall", "--silent"), *fields["commands"])
    title = fields.pop("title") + words
    return {**fields, "title": title, "note": " ".join(filter(None, notes)) or None}


def _enrolling(m: Machine, commands: tuple[Strings, ...]) -> tuple[tuple[Strings, ...], OptStr]:
    """The commands with those that enroll the key of a module built here, and what then happens.

    Nothing is added without Secure Boot, for signed modules, or where the key is enrolled already.
    """
    signed = any(_SIGNED.search(word) for argv in commands for word in argv)
    loads = m.driver.loaded and _builds_modules(m)
    if not m.platform.secure_boot or refuses_key(m) or signed or loads:
        return commands, None
    enroll = commands_in(_system(m).enroll) if family_of(m) in _BY_MOKUTIL and commands else ()
    if not enroll:
        return commands, _SECURE_BOOT
    # akmods signs with the key that is there when it builds.
    late = len(commands) - (commands[-1][0] == "akmods")
    return (*commands[:late], *enroll, *commands[late:]), _note_of_key(m)


_SIGNED = re.compile(r"linux-modules-nvidia-|-signed-kmp-|^switch-to$")
_BY_MOKUTIL = ("debian", "rhel", "fedora")
"""Whose packages build a module but neither ask for a password nor enroll the key."""


def _builds_modules(m: Machine) -> bool:
    """Whether the installed driver's module is built on this machine."""
    return bool(m.driver.dkms) or any(re.match(r"akmod|.*dkms", name) for name in _names(m))


def _note_of_key(m: Machine) -> OptStr:
    asked = next(row.note for row in _TABLE.loads if row.reason == "secure-boot")
    return _MOK_OF_GUEST if m.platform.virtual else asked


def from_run_file(m: Machine) -> bool:
    """Whether the driver that is installed belongs to no package, or lies over those of another."""
    driver = m.driver
    if not driver.installed or family_of(m) == "nixos":
        return False
    owners = [
        package.version for package in driver.packages or () if _WITH_LIBCUDA.match(package.name)
    ]
    over = owners and driver.library and "/compat" not in (driver.libcuda.path or "")
    if over and driver.kernel and driver.kernel != driver.library:
        return not any(str(driver.library) in version for version in owners)
    return driver.packages == ()


_WITH_LIBCUDA = re.compile(r"libnvidia-compute(-|$)|libcuda1$|nvidia-(driver-cuda|utils)|.*-cuda$")
"""The packages that libcuda.so.1 can be of."""


def _reason(bounds: Bounds, aim: Aim, *, exact: bool) -> OptStr:
    """Why this branch, where a reader would wonder."""
    if aim.branch == bounds.highest:
        ended = _LAST if aim.branch >= _SUPERSEDED_FROM else f"{_LAST} {_NO_UPDATES}"
        return ended.format(branch=aim.branch)
    if bounds.blackwell_or_newer:
        return _OPEN_ONLY
    return _OLDEST.format(branch=aim.branch) if exact and aim.branch > aim.least else None


_AMAZON_WITH_DNF = 2022
_NO_MODULES_FROM = 10  # RHEL 10 and its kin have no package modules (streams) any more.
_KEPLERS_BRANCH = 470
_OWN_OF_DEBIAN = {11: 470, 12: 535, 13: 550}
"""The driver's branch in each release of Debian itself."""
_SERVER_BRANCHES = (470, 535, 570, 580)
"""NVIDIA's production branches for data centres, which Ubuntu publishes as -server."""
_COMPONENTS = (
    (
        *("find", "/etc/apt", "-name", "sources.list", "-exec", "sed", "-i"),
        *(r"s/^\(deb.* main\).*/\1 contrib non-free non-free-firmware/", "{}", "+"),
    ),
    (
        *("find", "/etc/apt", "-name", "debian.sources", "-exec", "sed", "-i"),
        *("s/^Components: main.*/Components: main contrib non-free non-free-firmware/", "{}", "+"),
    ),
)
"""Opens the parts of Debian that are not free, in whichever of its two kinds of files."""


class System(Struct, frozen=True):
    """What a distribution uses; "" where it is not known (see driver_steps.toml)."""

    repository: str = ""
    remove: str = ""
    boot_image: str = ""
    grub: str = ""
    enroll: str = ""
    downgrade: str = ""
    compat: bool = False


class Recipe(Struct, frozen=True):
    """How a distribution installs a driver (see driver_steps.toml). modules, branched: None any."""

    system: str = ""
    modules: OptStr = None
    branched: OptBool = None
    source: bool = False
    components: bool = False
    commands: str = ""
    note: str = ""
    file: str = ""
    line: str = ""
    mode: Literal["by hand", "write"] = "write"
    title: str = ""
    tool: str = ""
    manual: OptStr = None


class Build(Struct, frozen=True):
    """How a module for the running kernel comes about (see driver_steps.toml). family: "" any."""

    format: str
    commands: str
    family: str = ""
    restart: bool = False
    note: OptStr = None
    title: OptStr = None


class Load(Struct, frozen=True):
    """How an installed driver comes to load (see driver_steps.toml). reason, family: "" any."""

    title: str
    reason: str = ""
    family: str = ""
    commands: str = ""
    file: str = ""
    what: str = ""
    mode: Literal["by hand", "write"] = "write"
    tool: OptStr = None
    manual: OptStr = None
    note: OptStr = None


class Table(Struct, frozen=True):
    """All of driver_steps.toml."""

    notes: dict[str, str]
    crb: dict[str, str]
    systems: dict[str, System]
    recipes: tuple[Recipe, ...]
    builds: tuple[Build, ...]
    loads: tuple[Load, ...]


_TABLE = texts("driver_steps", Table)


def _system_of(m: Machine) -> str:
    """The distribution's family, or the release or kin of it that has rows of its own."""
    family, release = str(family_of(m)), major_of(m) or 0
    if family == "amazon" and release < _AMAZON_WITH_DNF:
        return "amazon-2"
    own = m.platform.distro
    if family == "arch" and own in ("manjaro", "endeavouros", "cachyos"):
        return str(own)
    if own in ("bazzite", "bluefin", "aurora"):
        return "ublue"
    if own in ("gentoo", "void"):
        return str(own)
    return family


def _system(m: Machine) -> System:
    return _TABLE.systems.get(_system_of(m), System())


def _names(m: Machine) -> Strings:
    """The names of the driver's packages."""
    return tuple(package.name for package in m.driver.packages or () if is_driver(package))


def _rows_for(m: Machine, bounds: Bounds, aim: Aim) -> str:
    """Whose rows of the recipes install this driver here."""
    system, release, names = _system_of(m), major_of(m) or 0, _names(m)
    kepler = aim.branch == _KEPLERS_BRANCH
    if system == "debian":
        release = _debian_of(m) or 0
        if _debians_own(m, bounds, aim):
            return "debian-own"
        if release in _OWN_OF_DEBIAN and release < _LAST_DEBIAN_WITH_470:
            return "debian-old"
        if kepler:
            return "debian-470" if release == _LAST_DEBIAN_WITH_470 else "no-470"
        kin = not release and not bounds.blackwell_or_newer and not names
        return "debian-kin" if kin else system
    if kepler and (system == "amazon" or (system == "rhel" and release > _LAST_RHEL_WITH_470)):
        return "no-470"
    if system == "rhel" and release >= _NO_MODULES_FROM:
        return "rhel-10"
    if system == "rhel" and not (aim.open or bounds.blackwell_or_newer):
        # There are no open ones among the precompiled modules.
        found = filter(None, map(_KMOD.fullmatch, names))
        system = "rhel-precompiled" if any("-open-" not in name[1] for name in found) else system
    if system == "fedora" and any(name in _OF_NVIDIA for name in names):
        return "fedora-nvidia"
    if system == "suse" and (kepler or _flavour(m) != "default"):
        return "suse-470" if kepler else "suse-flavour"
    if system == "ubuntu" and any(name in _BARE for name in names):
        return "ubuntu-nvidia"
    if system == "ubuntu" and _of_ubuntu(m) and (_of_cloud(m) or not aim.free):
        keeps = _builds_modules(m) and m.driver.loaded is not False
        signed = _prebuilt(m) or (m.platform.secure_boot and not keeps)
        return "ubuntu-signed" if signed else system
    return "arch" if system == "endeavouros" else system


_DEBIAN_OF = {"linuxmint": {6: 12, 7: 13}, "devuan": {5: 12, 6: 13}}


def _debian_of(m: Machine) -> OptInt:
    """The release of Debian that this is, or is made from; None for what is of no release."""
    release, own = major_of(m), m.platform.distro or ""
    return release if own == "debian" else _DEBIAN_OF.get(own, {}).get(release or 0)


def _debians_own(m: Machine, bounds: Bounds, aim: Aim) -> OptInt:
    """The branch of the driver in this release of Debian, where that one will do."""
    own = _OWN_OF_DEBIAN.get(_debian_of(m) or 0)
    present = m.driver.version or m.driver.library
    # Modules of an old branch do not build for a kernel that is not of this release.
    plain = re.fullmatch(
        r"[\d.]+(-\d+|\+deb\d+)(-cloud)?-\w+", m.platform.kernel or "6.1.0-40-amd64"
    )
    if own is None or plain is None or aim.open or has_nvidias_repository(m):
        return None
    if present and present.branch > own and not from_run_file(m):
        return None  # The present driver is of another source, which would bring it back.
    least, most = max(aim.least, bounds.lowest or 0), bounds.highest or own
    return own if least <= own <= most else None


_LAST_DEBIAN_WITH_470, _LAST_RHEL_WITH_470 = 12, 8
_OF_NVIDIA = ("nvidia-open", "cuda-drivers", "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms")


def has_nvidias_repository(m: Machine) -> bool:
    """Whether a package shows that NVIDIA's own repository is set up here."""
    every = [package.name for package in m.driver.packages or ()]
    return family_of(m) not in ("arch", "suse") and any(
        name in _OF_NVIDIA or _FROM_NVIDIA.match(name) or _KMOD.fullmatch(name) for name in every
    )


_FROM_NVIDIA = re.compile(
    r"cuda-keyring$|nvidia-driver-pinning|(nvidia-open|cuda-drivers)-\d|cuda-compat-"
)
_BARE = ("libnvidia-compute", "nvidia-driver-cuda", "nvidia-driver", "nvidia-open", "cuda-drivers")
"""Names of NVIDIA's packages for Ubuntu; those of Ubuntu itself name their branch."""


def _flavour(m: Machine) -> str:
    """The flavour of SUSE's kernel: 6.4.0-150600.23.73-default."""
    flavour = (m.platform.kernel or "").rpartition("-")[2]
    return flavour if flavour in ("azure", "longterm", "64kb", "rt") else "default"


def _by(argvs: tuple[Strings, ...], note: OptStr = None, *edits: Edit) -> Json:
    """A step's fields for these commands; the first that is not a preparation names the tool."""
    tools = (argv[0].removesuffix("-get") for argv in argvs if argv[0] not in ("curl", "find"))
    tool = next(tools, None)
    return {"commands": argvs, "tool": tool, "note": note, "edits": edits}


def _headers(m: Machine) -> str:
    """The package of the running kernel's headers; of the newest kernel where that is unknown."""
    kernel, family = m.platform.kernel or "", family_of(m)
    if family == "debian":
        kind = "proxmox-headers" if kernel.endswith("-pve") else "linux-headers"
        arch = "arm64" if m.platform.machine == "aarch64" else "amd64"
        # The package without a version brings those of the next kernels too.
        own = re.search(r"\d(-cloud|-rt)?-(amd64|arm64)$", kernel)
        return f"{kind}-{kernel or arch}" + (f" {kind}{own[1] or ''}-{own[2]}" if own else "")
    if family == "ubuntu":
        return f"linux-headers-{kernel or 'generic'}"
    if family == "arch":
        return f"{_arch_kernel(m)}-headers"
    name = "kernel-uek" if "uek" in kernel else "kernel"
    if kernel.endswith("+64k"):
        name, kernel = "kernel-64k", kernel.removesuffix("+64k")
    elif family == "amazon" and (series := re.match(r"6\.(?!1\.)\d+", kernel)):
        name = f"kernel{series[0]}"
    return f"{name}-devel-{kernel}".rstrip("-")


def _arch_kernel(m: Machine) -> str:
    """The package of Arch's running kernel."""
    kernel = m.platform.kernel or ""
    kinds = (kind for kind in ("lts", "zen", "hardened", "rt") if f"-{kind}" in kernel)
    return "-".join(("linux", *[*kinds][:1]))


def _words(m: Machine) -> dict[str, str]:
    """What the running system fills in; "" for what is not known."""
    machine, release = m.platform.machine or "", major_of(m)
    kernel, headers = _arch_kernel(m), _headers(m)
    drivers = {"linux": "nvidia-open", "linux-lts": "nvidia-open-lts"}
    crb = (f"{m.platform.distro}-{release}", f"{release}")
    return {
        "headers": headers,
        "extra": headers.replace("-devel", "-modules-extra"),
        "driver": drivers.get(kernel, f"nvidia-open-dkms {kernel}-headers"),
        "flavour": _flavour(m),
        "release": m.platform.kernel or "",
        "kmps": " ".join(name for name in _names(m) if "-kmp-" in name),
        "prebuilt": _prebuilt(m),
        "kmod": _kmod(m),
        "series": _of_series(m),
        "update": "dup" if m.platform.distro == "opensuse-tumbleweed" else "update",
        "linux": _of_ubuntu(m),
        "major": str(release or ""),
        "nvidia": adding(m, repository_of(m)),
        "crb": next((found for key in crb if (found := _TABLE.crb.get(key))), "").format(
            machine=machine
        ),
    }


_ENDED = (
    "This release is too old for NVIDIA's driver packages. Upgrade the distribution, or install "
    "driver {branch} with NVIDIA's installer (the .run file from nvidia.com/drivers)."
)
_NEEDS_REPOSITORY = (
    "First set up NVIDIA's package repository for this distribution, following NVIDIA's driver "
    "installation guide (docs.nvidia.com/datacenter/tesla/driver-installation-guide)."
)


def _repository(m: Machine, words: dict[str, str]) -> tuple[Strings, ...]:
    """The commands that set up where the driver comes from; () where a word for it is missing."""
    text = _system(m).repository
    needed = [name for name in ("nvidia", "major") if f"{{{name}}}" in text]
    suse_on_arm = family_of(m) == "suse" and m.platform.machine == "aarch64"
    if not all(words[name] for name in needed) or suse_on_arm:
        return ()
    return commands_in(text, **words)


def _recipe(m: Machine, bounds: Bounds, aim: Aim) -> Json:
    """How this distribution installs a driver of that branch."""
    kernel, rows = "open" if bounds.open else "proprietary", _rows_for(m, bounds, aim)
    words = _words(m) | {
        "branch": f"{aim.branch}",
        "dash": f"-{aim.branch}",
        "kernel": kernel,
        "server": "-server" if bounds.data_center and aim.branch in _SERVER_BRANCHES else "",
        "stream": f"{aim.branch}-{'open' if bounds.open else 'dkms'}",
        "least": f" {aim.branch}{'' if aim.branch == bounds.highest else ' or newer'}",
        "own": f"{_debians_own(m, bounds, aim)}",
    }
    row = next(
        row
        for row in _TABLE.recipes
        if row.system in (rows, "")
        and row.modules in (None, kernel)
        and row.branched in (None, not aim.free)
    )
    note = _TABLE.notes.get(row.note)
    firmware = "firmware-" in row.commands  # in a part of Debian that no driver package needs
    opened = row.components and (firmware or not _names(m))
    before: tuple[Strings, ...] = _COMPONENTS if opened else ()
    manual = row.manual and row.manual.format(**words)
    if row.source and not _has_source(m) and is_ended(m):
        title, text = f"Install NVIDIA driver {aim.branch}", _ENDED.format(branch=aim.branch)
        return _by((), None) | {"title": title, "reason": None, "manual": text}
    if row.source and not _has_source(m):
        setup = _repository(m, words)
        manual = manual if setup else _NEEDS_REPOSITORY
        before += setup
    exact = any(f"{{{word}}}" in row.commands for word in ("branch", "dash", "stream"))
    argvs = (*before, *_replaced(m, row.commands), *commands_in(row.commands, **words))
    if built := [name for name in _names(m) if rows == "ubuntu-signed" and "dkms" in name]:
        # A module that DKMS builds would take the place of the signed one.
        argvs += ((*_system(m).remove.split(), *built),)
    present = m.driver.version
    if row.source and present and present.branch > aim.branch:
        argvs += commands_in(_system(m).downgrade)
    edits = (Edit(file=row.file, what=row.line.format(**words), mode=row.mode),) * bool(row.file)
    fields = _by(argvs, note, *edits)
    only = exact or aim.branch == bounds.highest
    title = f"Install NVIDIA driver {aim.branch}{'' if only else ' or newer'}"
    if row.branched is False or row.title:
        title = row.title.format(**words) or "Install the NVIDIA driver"
    return fields | {
        "title": title,
        "reason": None if row.title else _reason(bounds, aim, exact=exact),
        "manual": manual,
        "tool": row.tool or fields["tool"],
    }


def _has_source(m: Machine) -> bool:
    """Whether the driver that is installed came from the repository that a recipe would set up."""
    if family_of(m) == "fedora":
        return any(name.startswith(("akmod-nvidia", "xorg-x11-drv-nvidia")) for name in _names(m))
    if family_of(m) == "suse":
        return any("-G0" in name for name in _names(m))
    # What builds modules needs more repositories than the precompiled ones do.
    return has_nvidias_repository(m) and not any(map(_KMOD.fullmatch, _names(m)))


def _replaced(m: Machine, commands: str) -> tuple[Strings, ...]:
    """SUSE's packages of another generation go first: zypper does not mix them."""
    new = re.search(r"G0\d", commands)
    old = [name for name in _names(m) if re.search(r"G0\d", name) and new and new[0] not in name]
    return ((*_system(m).remove.split(), *old),) if old else ()


_PREBUILT = re.compile(r"linux-modules-nvidia-(\d{3}(?:-server)?(?:-open)?)-")


def _prebuilt(m: Machine) -> str:
    """Branch and flavour of Ubuntu's prebuilt modules, as their packages' names say them."""
    found = (_PREBUILT.match(name) for name in _names(m))
    return next((match[1] for match in found if match), "")


def _format(m: Machine) -> str:
    """In which form the driver's module comes, by its packages; else as the system usually has it.

    Empty where only its own system knows how to build it.
    """
    names, family, system = _names(m), family_of(m), _system_of(m)
    if system in ("nixos", "other", "amazon-2"):
        return ""
    if _prebuilt(m) and m.platform.kernel:
        return "prebuilt"
    if any(name.startswith("akmod-nvidia") for name in names):
        return "akmods"
    if m.driver.dkms or any("dkms" in name for name in names):
        return "dkms"
    by_dnf = family in ("rhel", "fedora", "amazon")
    if by_dnf and _kmod(m):
        return "precompiled"
    if by_dnf and any(re.match(r"kmod-nvidia(-\d|$)", name) for name in names):
        return "precompiled-unnamed"
    if family == "suse" and any("-kmp-" in name for name in names):
        return "kmp"
    if system == "manjaro" and _of_series(m):
        return "manjaro"
    return {"fedora": "akmods", "arch": "arch", "suse": "suse"}.get(family, "dkms")


def _built(m: Machine) -> Json:
    """The fields of a step that gets a module for the running kernel and loads it."""
    kind, family = _format(m), family_of(m)
    rows = (row for row in _TABLE.builds if row.format == kind and row.family in (family, ""))
    row = next(rows, None)
    if row is None:
        return {"reboot": True}
    commands = commands_in(row.commands, **_words(m))
    restart = row.restart or holder_of(m) is not None
    load = () if restart else commands_in("modprobe nvidia; modprobe nvidia_uvm")
    fields: Json = {"commands": commands + load, "reboot": restart, "manual": None}
    return fields | {"note": row.note} | ({"title": row.title} if row.title else {})


_OTHER_DRIVERS = ("nouveau", "nova")


def holder_of(m: Machine) -> OptStr:
    """The other driver that is bound to a GPU: until a restart, nvidia's module cannot have it."""
    bound = (device.bound for device in m.pci or () if device.vendor == "nvidia")
    return next((name for name in bound if name and name.startswith(_OTHER_DRIVERS)), None)


_HELD = (
    "On the host, {driver} holds the GPU, so `modprobe nvidia` fails there. Blacklist {driver} in "
    "/etc/modprobe.d, rebuild the initramfs and reboot the host."
)
_KMOD = re.compile(r"(kmod-nvidia-(?:open-)?\d+(?:\.\d+)+-)\d[\d.-]*")


def _kmod(m: Machine) -> str:
    """NVIDIA's precompiled module for the running kernel: kmod-nvidia-580.95.05-5.14.0-570.58.1."""
    kernel = re.sub(r"\.el\d+(_\d+)?\.\w+$", "", m.platform.kernel or "")
    found = next((match[1] for name in _names(m) if (match := _KMOD.fullmatch(name))), "")
    return f"{found}{kernel}" if found and re.fullmatch(r"\d[\d.-]*", kernel) else ""


def _of_series(m: Machine) -> str:
    """Manjaro's module for the running kernel: linux618-nvidia, or of a legacy branch."""
    series = re.match(r"(\d+)\.(\d+)\.\d+-\d+-MANJARO$", m.platform.kernel or "")
    legacy = (re.match(r"nvidia(-\d{3}xx)-utils$", name) for name in _names(m))
    suffix = next((found[1] for found in legacy if found), "")
    return f"linux{series[1]}{series[2]}-nvidia{suffix}" if series else ""


def _numbers(kernel: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", kernel)))


def _boot_newer(m: Machine) -> Remedies:
    """A restart, where a newer kernel is installed with its module but does not run yet."""
    kernel = next(iter(_other_kernels(m)), "")
    if keeper_of(m) != "here" or _numbers(kernel) <= _numbers(m.platform.kernel or ""):
        return ()
    title = f"Reboot into kernel {kernel}, which has an NVIDIA module"
    return _root(m, "boot-newer-kernel", title, "systemctl reboot", reboot=True)


def _other_kernels(m: Machine) -> Strings:
    """The other kernels for which a module is on disk, the newest first."""
    kernels = {file.kernel for file in m.driver.module_files or () if file.kernel}
    here = m.platform.kernel or ""
    return tuple(sorted(kernels - {here}, key=_numbers, reverse=True))


def _boot_older(m: Machine) -> Remedies:
    """Start a kernel whose module is on disk; Arch takes the old kernel away with its update."""
    here = _numbers(m.platform.kernel or "")
    kernel = next((name for name in _other_kernels(m) if _numbers(name) < here), None)
    gone = _system_of(m) in ("arch", "endeavouros", "cachyos", "nixos", "other")
    if kernel is None or gone or keeper_of(m) != "here":
        return ()
    step = partial(Remedy, id="boot-older-kernel", reboot=True)
    title = f"Boot kernel {kernel}, which has an NVIDIA module"
    if family_of(m) in ("rhel", "fedora", "amazon"):
        commands = commands_in(f"grubby --set-default /boot/vmlinuz-{kernel}")
        return (step(title=title, needs_root=True, commands=commands),)
    text = (
        f"Restart, and choose kernel {kernel} in the boot menu (in GRUB, under Advanced options)."
    )
    return (step(title=title, manual=text),)


def _cannot_be_built(m: Machine, kb: Knowledge) -> bool:
    """Whether the driver's branch has ended and the kernel is of a newer series than its modules.

    Ubuntu carries the old branches on to its own newer kernels.
    """
    driver, older = m.driver.library, _other_kernels(m)
    if driver is None or not older or _format(m) != "dkms" or family_of(m) == "ubuntu":
        return False
    newer = _numbers(m.platform.kernel or "")[:2] > _numbers(older[0])[:2]
    ended = driver.branch < kb.newest_branch() and not kb.branch_is_current(driver.branch)
    return newer and ended


def load_driver(m: Machine, reason: Reason, kb: Knowledge | None = None) -> Remedies:
    """Get the installed driver's module loaded. reason: what keeps it out."""
    if kb and reason == "not-built" and keeper_of(m) == "here" and _cannot_be_built(m, kb):
        # A build would only end in an error.
        branch = m.driver.library.branch if m.driver.library else 0
        newer, ended = upgrade_driver(m, kb, branch + 1), _NO_UPDATES.format(branch=branch)
        instead = tuple(replace(step, note=ended) for step in newer) + _boot_older(m)
        return instead or _loaded(m, reason)
    built = _loaded(m, reason)
    if kb and reason == "not-built":
        return (*_boot_newer(m), *built, *_boot_older(m))
    return built


def _loaded(m: Machine, reason: Reason) -> Remedies:
    """The same without another driver or kernel."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    load = partial(_root, m, "load-driver", "Load the NVIDIA driver")
    if (where := keeper_of(m)) != "here":
        if driver := holder_of(m):
            text = _HELD.format(driver=driver)
            return by_hand("load-driver", "Load the NVIDIA driver", text, where, Risk.SYSTEM)
        return load("" if where == "admin" and reason != "modprobe" else "modprobe nvidia")
    if reason == "modprobe" and not holder_of(m):
        return load("modprobe nvidia; modprobe nvidia_uvm")
    reason = "nouveau" if reason == "modprobe" else reason
    family, known, system = family_of(m), (reason, ""), _system(m)
    rows = (row for row in _TABLE.loads if row.reason in known and row.family in (family, ""))
    row = next(rows)
    edits = (Edit(file=row.file, what=row.what, mode=row.mode),) * bool(row.file)
    commands = commands_in(row.commands, **asdict(system))
    fields: Json = {"reboot": True, "commands": commands, "edits": edits}
    fields |= {"note": row.note} if commands else {"manual": row.manual}
    if row.reason == "secure-boot" and commands:
        fields["note"] = _note_of_key(m)
    if row.reason == "secure-boot" and (signed := _signed(m)):
        return signed
    if row.reason == "not-built":
        fields |= {"manual": row.manual} | _built(m)
    elif row.reason == "blacklisted" and m.driver.blacklisted_by:
        fields |= _unblocked(m, m.driver.blacklisted_by)
    return (
        Remedy(
            id="load-driver",
            title=str(fields.pop("title", row.title)).format(kernel=m.platform.kernel or "in use"),
            needs_root=True,
            tool=row.tool,
            **fields,
        ),
    )


_MOK_OF_GUEST = (
    "mokutil will ask you to choose a password. When the machine reboots, MOK Manager waits ten "
    "seconds for this password on the serial console. If you cannot use the serial console, "
    "disable Secure Boot for this virtual machine in your provider's settings."
)
_OF_DKMS = re.compile(r"nvidia-dkms-(\d{3}(?:-server)?(?:-open)?)$")
_CLOUDS_KERNEL = re.compile(r"\d[\d.]+-\d+-(aws|azure|gcp|oracle)$")


def _of_cloud(m: Machine) -> str:
    """Which cloud's kernel of Ubuntu runs, "" for none."""
    found = _CLOUDS_KERNEL.match(m.platform.kernel or "")
    return found[1] if found else ""


def _of_ubuntu(m: Machine) -> str:
    """The running kernel's series as Ubuntu's packages name it: generic-hwe-24.04; "" for none."""
    own, kernel = m.platform.distro, re.match(_UBUNTUS_OWN, m.platform.kernel or "")
    release = (m.platform.distro_version or "") if own == "ubuntu" else ""
    if own == "linuxmint":
        release = _UBUNTU_OF_MINT.get(major_of(m) or 0, "")
    if kernel is None or not release:
        return _of_cloud(m)
    # Releases between the long-supported ones have one series of kernels.
    first = _FIRST_KERNEL.get(release, kernel[1])
    return kernel[2] if kernel[1] == first else f"{kernel[2]}-hwe-{release}"


_UBUNTUS_OWN = r"(\d+\.\d+)\.\d+-\d+-(generic|lowlatency)$"
_UBUNTU_OF_MINT = {21: "22.04", 22: "24.04"}
_FIRST_KERNEL = {"20.04": "5.4", "22.04": "5.15", "24.04": "6.8", "26.04": "7.0"}
"""The kernel that each long-supported Ubuntu came with; later ones are its HWE series."""


def _signed(m: Machine) -> Remedies:
    """Canonical's signed modules for the kernels of clouds, whose screens nobody sees."""
    kernel = _of_cloud(m)
    series = next((found[1] for name in _names(m) if (found := _OF_DKMS.match(name))), None)
    if family_of(m) != "ubuntu" or not kernel or series is None:
        return ()
    title = "Use Ubuntu's signed kernel modules instead of DKMS"
    text = (
        "apt-get update; apt-get install -y linux-modules-nvidia-{series}-{kernel}; "
        "apt-get remove -y nvidia-dkms-{series}"
    )
    commands = commands_in(text, series=series, kernel=kernel)
    return (Remedy(id="load-driver", title=title, needs_root=True, reboot=True, **_by(commands)),)


_COMMENTED_OUT = (
    *("-e", r"s/^\s*blacklist\s\+nvidia/#&/", "-e", r"s/^\s*alias\s\+nvidia\s\+off/#&/"),
    *("-e", r"s,^\s*install\s\+nvidia\s.*bin/[ft],#&,"),
)
"""What sed does to the lines that keep the module from loading."""


_SWITCHERS = {
    "system76-power.conf": "system76-power graphics hybrid",
    "supergfxd.conf": "supergfxctl --mode Hybrid",
}
"""Files of modprobe.d that a program rewrites on each switch of graphics, and its command."""
_PRIME = {"blacklist-nvidia.conf": "prime-select on-demand"}
"""The same of Ubuntu's prime-select, which leaves the boot image to others."""
_ENVY = {"blacklist-nvidia.conf": "envycontrol --switch hybrid"}
"""The same of EnvyControl, which other distributions have."""
_WITHOUT_ENVY = (
    "If EnvyControl is not installed, remove blacklist-nvidia.conf from /etc/modprobe.d and "
    "50-remove-nvidia.rules from /etc/udev/rules.d, then rebuild the initramfs."
)
_SWITCHED = (
    "The program in this step created the file that blocks the nvidia module and would recreate "
    "the file if you deleted it by hand."
)


def switch_graphics(m: Machine) -> Remedies:
    """A laptop's GPU back on, where the tool that switched it off left its file; () elsewhere."""
    ubuntu = family_of(m) == "ubuntu"
    switchers = _SWITCHERS | (_PRIME if ubuntu else _ENVY)
    names = [file.rpartition("/")[2] for file in m.driver.blacklisted_by or ()]
    name = next((name for name in names if name in switchers), None)
    if name is None or m.platform.system == "Windows":
        return ()
    step = partial(_root, m, "switch-graphics", "Turn the NVIDIA GPU back on", reboot=True)
    return step(switchers[name], note=_WITHOUT_ENVY if name in _ENVY and not ubuntu else None)


def _unblocked(m: Machine, files: Strings) -> Json:
    """The fields of a step that takes the module off the blacklists in these files."""
    commands: list[Strings] = []
    edits, system = [], _system(m)
    for file in files:
        name = file.rpartition("/")[2]
        if switcher := _SWITCHERS.get(name):
            return {"commands": commands_in(switcher), "manual": None, "note": _SWITCHED}
        if file == "/proc/cmdline":
            what = "Take nvidia out of modprobe.blacklist= and module_blacklist=."
            edits.append(Edit(file="/etc/default/grub", what=what))
            commands += commands_in(system.grub)
        elif file.startswith("/etc/"):
            commands.append(("sed", "-i", *_COMMENTED_OUT, file))
        elif family_of(m) == "ubuntu" and name in _PRIME:
            commands += commands_in(_PRIME[name])
        else:
            # A file of that name under /etc takes the place of one that belongs to a package.
            what = f"# replaces {file}"
            edits.append(Edit(file=f"/etc/modprobe.d/{name}", what=what, mode="write"))
    commands += commands_in(system.boot_image)
    return {"commands": tuple(commands), "edits": tuple(edits), "manual": None}


def hmm_off(m: Machine) -> Remedies:
    """Switch HMM off in the module nvidia_uvm."""
    edit = _option("nvidia-uvm-hmm", "nvidia_uvm uvm_disable_hmm=1")
    note = (
        "torch does not need HMM (Heterogeneous Memory Management). A newer kernel or driver "
        "branch may also fix the problem."
    )
    title = "Disable HMM in the nvidia_uvm module"
    return _with_option(m, "hmm-off", title, edit, note)


def libcuda_away(m: Machine, path: str) -> Remedies:
    """Keep the loader from finding that libcuda: take its package out, or find what brought it."""
    step = partial(Remedy, id="libcuda-away", title="Remove the extra copy of libcuda")
    compat = re.search(r"/cuda-(\d+)\.(\d+)/compat", path)
    package = f"cuda-compat-{compat[1]}-{compat[2]}" if compat else ""
    boxed, system = bool(m.container.kind), _system(m)
    if system.remove and package in {found.name for found in m.driver.packages or ()}:
        out = ((*system.remove.split(), package), ("ldconfig",))
        where: Where = "container" if boxed else "here"
        return (step(where=where, needs_root=True, commands=out),)
    tool = system.remove.partition(" ")[0]
    asks = {"apt-get": ("dpkg", "-S"), "pacman": ("pacman", "-Qo")}.get(tool, ("rpm", "-qf"))
    title = "Find out what installed the extra copy of libcuda"
    text = (
        "Remove the package that owns the extra libcuda, or the line in /etc/ld.so.conf.d that "
        "adds the library's folder to the search path. Then run `ldconfig` as root. Do not "
        "delete the library file by hand."
    )
    if not path.startswith("/") or m.redacted:
        text = f"`ldconfig -p | grep libcuda` shows the paths of the libcuda files. {text}"
        return (step(title=title, risk=Risk.PROCESS, manual=text),)
    folder = path.rpartition("/")[0]
    commands: list[Strings] = [(*asks, path)]
    if not _USUAL_FOLDER.fullmatch(folder):
        commands.append(("grep", "-rl", folder, "/etc/ld.so.conf.d"))
    else:
        text = (
            "If a package owns this libcuda file, remove that package. If no package owns the "
            "file, it is a leftover copy: move it and any other libcuda files in the same folder "
            "to another location, then run `ldconfig` as root."
        )
    return (step(title=title, risk=Risk.PROCESS, commands=tuple(commands), manual=text),)


_USUAL_FOLDER = re.compile(r"(/usr)?(/local)?/lib(32|64)?(/\w+-linux-gnu)?")
"""A folder that the loader searches for good reason: it must stay in its configuration."""


_FIRMWARE = {
    "ubuntu": "apt-get update; apt-get install -y --reinstall nvidia-firmware-{branch}-{version}",
    "debian": "apt-get update; apt-get install -y --reinstall firmware-nvidia-gsp={version}-*",
    "rhel": "dnf reinstall -y nvidia-kmod-common",
    "amazon": "dnf reinstall -y nvidia-kmod-common",
    "fedora": "dnf reinstall -y xorg-x11-drv-nvidia",
    "arch": "pacman -Syu nvidia-utils",
}
"""What brings the files that the driver loads into the GPU."""


def install_firmware(m: Machine) -> Remedies:
    """The driver's firmware files once more, in the version of the loaded module."""
    family, version, names = _system_of(m), m.driver.version, _names(m)
    title = "Install the driver's GPU firmware"
    step = partial(Remedy, id="install-firmware", title=title)
    if keeper_of(m) != "here":
        return _root(m, "install-firmware", title, "")
    server = "-server" if any("-server" in name for name in names) else ""
    text = _FIRMWARE.get(family, "")
    if family == "fedora" and any(name in _OF_NVIDIA for name in names):
        text = _FIRMWARE["rhel"]
    if not text or version is None:
        text = (
            "Reinstall the package that provides the files in /lib/firmware/nvidia, at the same "
            "version as the loaded kernel module. Then rebuild the boot image (initramfs)."
        )
        return (step(needs_root=True, reboot=True, manual=text),)
    words = {"branch": f"{version.branch}{server}", "version": version}
    opened = _COMPONENTS if family == "debian" else ()
    commands = (*opened, *commands_in(f"{text}; {_system(m).boot_image}", **words))
    return (step(needs_root=True, reboot=True, **_by(commands)),)


def reload_driver(m: Machine) -> Remedies:
    """Load the module that is on disk in place of the loaded one, without a reboot."""
    if keeper_of(m) != "here" or side_of(m) in ("windows", "macos"):
        return ()
    known = m.driver.modules if "nvidia" in (m.driver.modules or ()) else None
    order = ("nvidia_fs", "nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset")
    loaded = [name for name in order if name in (order[2:] if known is None else known)]
    out = ("modprobe", "-r", *loaded, "nvidia")
    note = (
        "This works only if no program is using the GPU, not even the desktop: `sudo lsof "
        "/dev/nvidia*` lists the programs that use it."
    )
    start = commands_in("modprobe nvidia; modprobe nvidia_uvm; systemctl start nvidia-persistenced")
    commands = (*commands_in("systemctl stop nvidia-persistenced"), out, *start)
    title = "Reload the driver without rebooting"
    step = Remedy(id="reload-driver", title=title, needs_root=True, commands=commands, note=note)
    return (step,)


_PATH, _DRIVERS_OF_NIXOS = "LD_LIBRARY_PATH", "/run/opengl-driver/lib"
_IN_SHELL_NIX = (
    "To make this permanent, add `export LD_LIBRARY_PATH={path}` to the shellHook in your "
    "shell.nix or flake."
)
_NEWER_MODULE = (
    "If nvidia-smi then reports a driver/library version mismatch, reboot: apt installed a newer "
    "version of the driver."
)
_LIBCUDA = {
    "debian": ("apt-get", "libcuda1={version}-*"),
    "rhel": ("dnf", "nvidia-driver-cuda-{version}"),
    "amazon": ("dnf", "nvidia-driver-cuda-{version}"),
    "suse": ("zypper", "nvidia-compute-utils-{generation}={version}"),
}


def install_libcuda(m: Machine) -> Remedies:
    """The package with libcuda, of exactly the loaded module's version."""
    if keeper_of(m) != "here":
        return ()
    family, names, version = family_of(m), _names(m), m.driver.version
    step = partial(Remedy, id="install-libcuda", title="Install the CUDA driver library (libcuda)")
    generation = next((found[0] for name in names if (found := re.search(r"G0\d", name))), "G06")
    server = "-server" if any("-server" in name for name in names) else ""
    pair = _LIBCUDA.get(_system_of(m))
    if family == "nixos":
        value = in_front(m, _PATH, _DRIVERS_OF_NIXOS)
        (named,) = set_variables(
            "libcuda-of-nixos", f"Add {_DRIVERS_OF_NIXOS} to {_PATH}", {_PATH: value}
        )
        # A folder of the store is another one after an upgrade.
        path = f"{_DRIVERS_OF_NIXOS}:${_PATH}" if ":" in value else _DRIVERS_OF_NIXOS
        return (replace(named, note=_IN_SHELL_NIX.format(path=path)),)
    if family == "fedora":
        fusion = next((name for name in names if name.startswith("akmod-nvidia")), None)
        own = fusion and fusion.replace("akmod-", "xorg-x11-drv-") + "-cuda"
        pair = ("dnf", own or "nvidia-driver-cuda-{version}")
    if family == "ubuntu" and version:
        bare = names and not any(f"-{version.branch}" in name for name in names)
        suffix = "" if bare else f"-{version.branch}{server}"
        # What is installed comes in the newest version: so does the module.
        modules = (name for name in names if "dkms" in name or _PREBUILT.match(name))
        libraries = (f"libnvidia-compute{suffix}", f"nvidia-utils{suffix}")
        commands = system_packages("apt-get", *libraries, *modules)
        return (step(needs_root=True, **_by(commands, _NEWER_MODULE)),)
    if family == "arch":
        note = (
            "On Arch, this command also installs all other pending updates, including a new "
            "kernel module."
        )
        commands = commands_in("pacman -Syu nvidia-utils")
        return (step(needs_root=True, reboot=True, commands=commands, tool="pacman", note=note),)
    if pair is None or ("{version}" in pair[1] and version is None):
        text = (
            "Install the package from your distribution that provides libcuda.so.1, in the same "
            "version as the loaded kernel module "
            f"({version or 'shown in /proc/driver/nvidia/version'})."
        )
        return (step(needs_root=True, manual=text),)
    tool, packages = pair
    words = packages.format(version=version, generation=generation).split()
    return (step(needs_root=True, **_by(system_packages(tool, *words))),)


def reboot(m: Machine) -> Remedies:
    """Restart what runs the driver."""
    step, side = partial(Remedy, id="reboot"), side_of(m)
    if notebook_of(m):
        text = "In the notebook's menu, disconnect and delete the runtime, then connect again."
        return (step(title="Get a fresh runtime", manual=text),)
    if side == "wsl":
        commands, note = (
            commands_in("wsl.exe --shutdown"),
            "This stops everything that is running in WSL.",
        )
        return (step(title="Restart WSL", where="windows", commands=commands, note=note),)
    if side in ("windows", "macos"):
        title = "Restart the computer"
        return (step(title=title, reboot=True, manual=f"{title}."),)
    title = "Restart the host" if keeper_of(m) == "host" else "Restart the machine"
    return _root(m, "reboot", title, "systemctl reboot", reboot=True)


def nvlink_off(m: Machine) -> Remedies:
    """Run the GPUs without NVLink, for which CUDA then does not wait."""
    edit = _option("nvidia-nvlink", "nvidia NVreg_NvLinkDisable=1")
    note = "The GPUs then work, but they exchange data over PCIe, which is slower."
    return _with_option(m, "nvlink-off", "Disable NVLink in this virtual machine", edit, note)


def _option(name: str, option: str) -> Edit:
    return Edit(file=f"/etc/modprobe.d/{name}.conf", what=f"options {option}", mode="write")


def _with_option(m: Machine, id: str, title: str, edit: Edit, note: str) -> Remedies:  # noqa: A002
    """A file with an option of the driver's module, which takes effect with the next boot."""
    (step,) = _root(m, id, title, _system(m).boot_image, reboot=True, note=note)
    return (step if step.manual else replace(step, edits=(edit,)),)


def reload_uvm(m: Machine) -> Remedies:
    """Create the device nodes of nvidia_uvm; reload it if they open and CUDA fails."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    nodes, step = "nvidia-modprobe -u -c 0", partial(_root, m, "reload-uvm")
    opens = any(node.path == "/dev/nvidia-uvm" and not node.errno for node in m.driver.nodes or ())
    if not opens or "nvidia_uvm" not in (m.driver.modules or ()):
        (load,) = step("Load the nvidia_uvm module and create its device nodes", nodes)
        own = keeper_of(m) == "here" and family_of(m) != "nixos"
        return (replace(load, edits=(UVM_AT_BOOT,)) if own else load,)
    note = (
        "Stop all CUDA programs first: `sudo fuser -v /dev/nvidia-uvm` lists the processes that "
        "still use nvidia_uvm."
    )
    commands = f"modprobe -r nvidia_uvm; modprobe nvidia_uvm; {nodes}"
    return step("Reload the nvidia_uvm module", commands, note=note) + _through_suspend(m)


def _through_suspend(m: Machine) -> Remedies:
    """What keeps the memory of the GPU through a suspend, where the machine is the user's own."""
    if keeper_of(m) != "here" or family_of(m) == "nixos":
        return ()
    edit = _option("nvidia-suspend", "nvidia NVreg_PreserveVideoMemoryAllocations=1")
    title = "Keep CUDA working after the next suspend"
    note = "The driver then saves the GPU's memory to a file whenever the machine is suspended."
    (step,) = _with_option(m, "keep-through-suspend", title, edit, note)
    services = commands_in("systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate")
    return (replace(step, commands=services + step.commands),)


_BARE_NAME_FROM = 580
"""From this branch on NVIDIA's packages of the fabric manager have no branch in their name."""


def fabric_manager(m: Machine) -> tuple[Strings, ...]:
    """The commands that install the fabric manager of exactly the driver's version and start it.

    Empty where the version, or the name of the package on this system, is not known.
    """
    driver, fabric = m.driver.version, m.driver.fabric
    service = "nvidia-fabricmanager"
    start = ("systemctl", *(("restart",) if fabric.manager == "active" else ("enable", "--now")))
    tool = _system(m).remove.partition(" ")[0]
    known = tool in ("apt-get", "dnf", "zypper") and keeper_of(m) == "here"
    # NVLink 5 has its switches driven by another daemon, over a module of InfiniBand.
    fifth = ("nvlsm",) if known and has_nvlink_5(m) else ()
    starts: tuple[Strings, ...] = ((*start, service),)
    if fifth:
        starts = (("modprobe", "ib_umad"), ("systemctl", "restart", service))
    if fabric.version is not None and fabric.version == driver:
        return (*(system_packages(tool, *fifth) if fifth else ()), *starts)
    if driver is None or not known:
        return ()
    if tool == "apt-get":
        theirs = any("ubuntu" in package.version for package in m.driver.packages or ())
        old = driver.branch < _BARE_NAME_FROM or theirs or m.driver.packages is None
        # Its last part is the packager's own, and differs from that of the driver's package.
        name = f"{service}{f'-{driver.branch}' * old}={driver}-*"
    else:
        bare = service if driver.branch >= _BARE_NAME_FROM else "nvidia-fabric-manager"
        name = f"{bare}{'=' if tool == 'zypper' else '-'}{driver}"
    return (*system_packages(tool, name, *fifth), *starts)


def wsl_driver(m: Machine) -> Remedies:
    """The driver on the Windows side, and any Linux driver taken out of WSL."""
    if side_of(m) != "wsl":
        return ()
    step = partial(Remedy, id="wsl-driver", where="windows")
    if m.platform.wsl == 1:
        name = (m.env or {}).get("WSL_DISTRO_NAME", "")
        title, note = "Convert this distribution to WSL 2", "WSL 1 has no access to the GPU."
        if re.fullmatch(r"[\w.-]+", name) and not m.redacted:
            commands = commands_in(f"wsl.exe --set-version {name} 2")
            return (step(title=title, commands=commands, note=note),)
        text = (
            "In Windows, run `wsl --list` to find the name of this distribution, then `wsl "
            "--set-version <name> 2` with that name."
        )
        return (step(title=title, manual=text, note=note),)
    versions = {package.version for package in m.driver.packages or () if is_driver(package)}
    inside = [found.name for found in m.driver.packages or () if found.version in versions]
    there = bool(m.container.wsl_libs and not m.container.kind and m.driver.libcuda.loads is False)
    on_windows = step(
        id="wsl-windows-driver",
        title="Update the NVIDIA driver on Windows, then update WSL",
        commands=commands_in("wsl.exe --update; wsl.exe --shutdown"),
        manual=_ON_WINDOWS,
        note="`wsl --shutdown` stops everything that is running in WSL.",
    )
    note = (
        "WSL uses the Windows driver; a Linux driver installed in WSL hides it. Then run `wsl "
        "--shutdown` in Windows."
    )
    take_out = _system(m).remove or "apt-get remove -y"
    remove = _by(((*take_out.split(), *inside), ("ldconfig",)), note)
    title = "Remove the Linux driver from WSL"
    without = step(title=title, where="here", needs_root=True, **remove)
    if not inside and there and m.container.dxg is not False:
        return (*_wsl_loader(m), on_windows)
    if not inside:
        return (on_windows,)
    # Where Windows' libraries are mounted, only the Linux driver is in their way.
    return (without,) if m.container.wsl_libs else (without, on_windows)


_OF_WSL = "/usr/lib/wsl/lib"


def _wsl_loader(m: Machine) -> Remedies:
    """The folder with the libraries of Windows' driver on the loader's path."""
    title = f"Add {_OF_WSL} to the loader's search path"
    if family_of(m) == "nixos":
        (step,) = set_variables("wsl-loader", title, {_PATH: in_front(m, _PATH, _OF_WSL)})
        return (replace(step, note=_ON_NIXOS_IN_WSL),)
    edit = Edit(file="/etc/ld.so.conf.d/ld.wsl.conf", what=_OF_WSL, mode="write")
    step = Remedy(id="wsl-loader", title=title, needs_root=True)
    return (replace(step, edits=(edit,), commands=(("ldconfig",),), note=_LDCONFIG_OF_WSL),)


_ON_NIXOS_IN_WSL = (
    "To make this permanent, set `wsl.useWindowsDriver = true;` in /etc/nixos/configuration.nix "
    "and run `sudo nixos-rebuild switch`."
)
_LDCONFIG_OF_WSL = (
    "WSL usually does this by itself: if /etc/wsl.conf contains `ldconfig = false`, remove that "
    "line."
)
_SHARED = "Ask the administrator to do this, because other people also use this machine."
_DRAINED_POD = (
    "Ask the administrator to drain the node (`kubectl drain --ignore-daemonsets`), restart it, "
    "and then run `kubectl uncordon`."
)


def _root(
    m: Machine,
    id: str,  # noqa: A002
    title: str,
    commands: str,
    *,
    reboot: bool = False,
    note: OptStr = None,
) -> Remedies:
    """A step for root, or a request to the administrator where the machine is shared."""
    where = keeper_of(m)
    step = partial(Remedy, id=id, title=title, where=where, reboot=reboot)
    if where == "admin" and (reboot or not commands or m.container.kind):
        in_pod = reboot and m.container.kind == "kubernetes"
        asked = step(manual=_DRAINED_POD if in_pod else _SHARED)
        return (drained(m, asked, commands) if commands == "systemctl reboot" else asked,)
    return (step(needs_root=True, commands=commands_in(commands), note=note),)


_LIMITS = (
    "The package works only on data center GPUs, and only for compute, not for graphics. Remove "
    "the package after updating the driver to branch {branch} or newer."
)
_IMAGES = ("ubuntu24.04", "ubuntu22.04", "rockylinux9", "ubuntu20.04")


def forward_compat(m: Machine, kb: Knowledge, cuda: OptVersion) -> Remedies:
    """The package for that CUDA release; () where it does not run on these GPUs or this driver.

    Also () where the installed torch has no code for a GPU: there no driver helps.
    """
    if cuda is None or not compat_lifts(m, kb, cuda):
        return ()
    archs, capabilities = m.torch.archs, capabilities_of(m, kb)
    if (
        m.torch.cuda == cuda
        and archs is not None
        and capabilities is not None
        and not serves_all(archs, capabilities, m.torch.version, cuda, kb)
    ):
        return ()
    name = f"cuda-compat-{cuda.major}-{cuda.minor}"
    folder = f"/usr/local/cuda-{cuda.major}.{cuda.minor}/compat"
    where, side = keeper_of(m), side_of(m)
    install: Json = {"needs_root": False}
    setting = f"{_PATH}={in_front(m, _PATH, folder)}"
    start = f"After installing the package, start your program with {setting}."
    if side == "container":
        # In a container the package is part of the image.
        where = "container"
        tags = (kb.newest_docker_tag(cuda, "base", system) for system in _IMAGES)
        tag = next(filter(None, tags), None)
        image = f"nvidia/cuda:{tag}" if tag else f"an nvidia/cuda image of CUDA {cuda}"
        text = (
            f"Base the container image on {image}, which includes {name}. If CUDA still fails to "
            f"initialize, set {setting} in the image."
        )
    elif side in ("linux", "dgx"):
        where, text, system = "here", start, _system(m)
        setup = () if has_nvidias_repository(m) else _repository(m, _words(m))
        if system.compat:
            tool = system.remove.split()[0]
            install = _by((*setup, *system_packages(tool, name)))
        if not (setup or has_nvidias_repository(m)) or not system.compat:
            text = f"{name} comes from NVIDIA's package repository. {_NEEDS_REPOSITORY} {start}"
        install["needs_root"] = True
    else:
        text = f"Ask the administrator to install NVIDIA's {name} package on this system. {start}"
    branch = kb.branch_for(cuda)
    note = _LIMITS.format(branch=branch) if branch else _LIMITS.partition(" Remove")[0]
    title = f"Use NVIDIA's forward-compatibility package {name}"
    install |= {"where": where, "manual": text, "note": note}
    return (Remedy(id="cuda-compat", title=title, **install),)

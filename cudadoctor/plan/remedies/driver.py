"""Remedies that install or change the driver, by the kind of machine.

Never inside WSL, a container or a Jetson; never a branch that does not support the GPU.
"""

from functools import partial
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from cudadoctor.knowledge import Knowledge
from cudadoctor.knowledge.tables import texts
from cudadoctor.model.driver_packages import is_driver
from cudadoctor.model.findings import Edit, Remedies, Remedy
from cudadoctor.model.machine import Json, Machine, OptBool, OptInt, OptStr, OptVersion, Strings
from cudadoctor.plan.remedies.process import (
    family_of,
    is_cloud,
    keeper_of,
    major_of,
    notebook_of,
    side_of,
)
from cudadoctor.solver.demand import capabilities_of, serves_all
from cudadoctor.solver.fit import compat_lifts, has_virtual_gpu

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


def install_driver(m: Machine, kb: Knowledge) -> Remedies:
    """Install a driver where there is none."""
    bounds = _bounds(m, kb)
    chosen = bounds.highest is not None or bounds.blackwell_or_newer
    branch = _maintained(bounds.lowest or 0, bounds, kb) if chosen else None
    title = f"Install NVIDIA driver {branch}" if branch else "Install the NVIDIA driver"
    return _driver("install-driver", title, m, bounds, branch)


def upgrade_driver(m: Machine, kb: Knowledge, branch: int) -> Remedies:
    """A newer driver, of at least that branch; () where no such branch supports the GPU."""
    bounds = _bounds(m, kb)
    if bounds.highest is not None and branch > bounds.highest:
        return ()
    wanted = _maintained(max(branch, bounds.lowest or 0), bounds, kb)
    return _driver("upgrade-driver", f"Install NVIDIA driver {wanted} or newer", m, bounds, wanted)


def open_modules(m: Machine, kb: Knowledge) -> Remedies:
    """The open kernel modules in place of the proprietary ones."""
    return _modules("open", m, kb)


def proprietary_modules(m: Machine, kb: Knowledge) -> Remedies:
    """The proprietary kernel modules in place of the open ones."""
    return _modules("proprietary", m, kb)


def _modules(kind: str, m: Machine, kb: Knowledge) -> Remedies:
    """Modules of that kind, of the branch that is installed if it supports the GPUs."""
    bounds = _bounds(m, kb)._replace(open=kind == "open")
    present = m.driver.version or m.driver.library
    branch = present.branch if present else bounds.lowest
    if branch is not None:
        branch = max(branch, bounds.lowest or 0)
    if bounds.highest is not None:
        branch = min(branch or bounds.highest, bounds.highest)
    title = f"Install the driver with the {kind} kernel modules"
    return _driver(f"{kind}-modules", title, m, bounds, branch)


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
    title: str,
    m: Machine,
    bounds: Bounds,
    branch: OptInt,
) -> Remedies:
    """The step in the way of this machine: by packages, by its vendor's means, or by others."""
    if bounds.highest is not None and bounds.blackwell_or_newer:
        return ()  # Two GPUs that no single driver serves: there is no such driver to install.
    least = f" of branch {branch} or newer" if branch else ""
    where, side = keeper_of(m), side_of(m)
    step = partial(Remedy, id=id, title=title)
    if side == "macos":
        return ()
    if side == "wsl":
        text = f"{_WINDOWS} No driver belongs inside WSL."
        return (step(title=f"{title} on Windows", where="windows", manual=text),)
    if side == "windows":
        text = f"{_WINDOWS} It must be{least}." if least else _WINDOWS
        return (step(needs_root=True, manual=text),)
    if side == "jetson":
        own, title = where == "here", "Update JetPack"
        return (step(title=title, where=where, needs_root=own, reboot=own, manual=_JETPACK),)
    if side != "dgx" and has_virtual_gpu(m):
        return (step(where="admin", manual=_VGPU),)
    if side in ("dgx", "linux"):
        return (Remedy(id=id, needs_root=True, reboot=True, **_fields(title, m, bounds, branch)),)
    who = "whoever runs the host" if where == "host" else "the administrator of this machine"
    text = (
        f"Ask {who} for an NVIDIA driver{least}: it belongs to the host and cannot be changed "
        "from in here."
    )
    return (step(title=f"{title} on the host", where=where, manual=text),)


def _fields(title: str, m: Machine, bounds: Bounds, branch: OptInt) -> Json:
    """What the step of a Linux of one's own consists of."""
    if side_of(m) == "dgx":
        # DGX OS is an Ubuntu; NVIDIA's software for DGX also comes for Red Hat's systems.
        update = "apt-get update; apt-get full-upgrade"
        if family_of(m) in ("rhel", "fedora"):
            update = "dnf upgrade --refresh"
        return {"title": f"{title} by the DGX system's own update", **_by(_argvs(update))}
    fields, here = _recipe(m, bounds, branch), m.platform
    focal = branch and (here.distro, here.distro_version) == ("ubuntu", "20.04")
    notes = (
        fields["note"],
        _FOCAL if focal else None,
        _CLOUD if is_cloud(m) else None,
        _SECURE_BOOT if here.secure_boot else None,
        _RUN_FILE if m.driver.installed and m.driver.packages == () else None,
    )
    return {"title": title, **fields, "note": " ".join(filter(None, notes)) or None}


_FOCAL = (
    "Ubuntu 20.04 is past its standard support and gets no new branches of the driver: where the "
    "package is not found, take a newer Ubuntu, or the build of torch for the present driver."
)
_AMAZON_WITH_DNF = 2022
_NO_MODULES_FROM = 10  # RHEL 10 and its kin have no package modules (streams) any more.


class System(Struct, frozen=True):
    """What a distribution uses; "" where it is not known (see driver_steps.toml)."""

    remove: str = "apt-get remove"
    boot_image: str = ""
    enrol: str = ""
    rebuild: str = ""
    compat: bool = False


class Recipe(Struct, frozen=True):
    """How a distribution installs a driver (see driver_steps.toml). modules, branched: None any."""

    system: str = ""
    modules: OptStr = None
    branched: OptBool = None
    commands: str = ""
    note: str = ""
    file: str = ""
    line: str = ""
    tool: str = ""
    manual: OptStr = None


class Load(Struct, frozen=True):
    """How an installed driver comes to load (see driver_steps.toml). reason, family: "" any."""

    title: str
    reason: str = ""
    family: str = ""
    commands: str = ""
    file: str = ""
    what: str = ""
    tool: OptStr = None
    manual: OptStr = None
    note: OptStr = None


class Table(Struct, frozen=True):
    """All of driver_steps.toml."""

    notes: dict[str, str]
    systems: dict[str, System]
    recipes: tuple[Recipe, ...]
    loads: tuple[Load, ...]


_TABLE = texts("driver_steps", Table)


def _system_of(m: Machine) -> str:
    """The distribution's family, or the release or kin of it that has rows of its own."""
    family, release = str(family_of(m)), major_of(m) or 0
    if family == "amazon" and release < _AMAZON_WITH_DNF:
        return "amazon-2"
    if family == "rhel" and release >= _NO_MODULES_FROM:
        return "rhel-10"
    own = m.platform.distro
    return own if family == "arch" and own in ("manjaro", "endeavouros") else family


def _system(m: Machine) -> System:
    return _TABLE.systems.get(_system_of(m), System())


def _argvs(text: str, **words: object) -> tuple[Strings, ...]:
    """The commands in a text that separates them by semicolons, filled in word by word."""
    argvs = (
        filter(None, (word.format(**words) for word in argv.split())) for argv in text.split(";")
    )
    return tuple(filter(None, map(tuple, argvs)))


def _by(argvs: tuple[Strings, ...], note: OptStr = None, *edits: Edit) -> Json:
    """A step's fields for these commands, whose first one names the tool."""
    tool = argvs[0][0].removesuffix("-get") if argvs else None
    return {"commands": argvs, "tool": tool, "note": note, "edits": edits}


def _rebuild_modules(m: Machine) -> tuple[Strings, ...]:
    """The commands that build the driver's modules for the running kernel, with its headers.

    Empty where only its own system knows how: then a sentence stands in their place.
    """
    own, family = f"-{m.platform.kernel}" if m.platform.kernel else "", family_of(m)
    release = own or ("-generic" if family == "ubuntu" else "")
    argvs = _argvs(_system(m).rebuild, release=release, headers=_debian_headers(m, own))
    if family == "suse":
        names = (package.name for package in m.driver.packages or ())
        modules = [name for name in names if "-kmp-" in name]
        return ((*argvs[0], *modules),) if modules else ()
    return argvs if family != "arch" or m.platform.distro == "arch" else ()


def _debian_headers(m: Machine, release: str = "") -> str:
    """The package of headers: of that very kernel, or of the newest of its flavour."""
    arch = "arm64" if m.platform.machine == "aarch64" else "amd64"
    kernel = m.platform.kernel or ""
    if kernel.endswith("-pve"):
        return f"proxmox-headers{release}" if release else "proxmox-default-headers"
    cloud = "cloud-" if "-cloud-" in kernel else ""
    return f"linux-headers{release}" if release else f"linux-headers-{cloud}{arch}"


def _recipe(m: Machine, bounds: Bounds, branch: OptInt) -> Json:
    """How this distribution installs a driver of that branch (None: the one of its choice)."""
    kernel, stream = ("open", "open") if bounds.open else ("proprietary", "dkms")
    newest = "open-dkms" if bounds.open else "latest-dkms"
    words = {
        "branch": branch,
        "dash": f"-{branch}" if branch else "",
        "kernel": kernel,
        "server": "-server" if bounds.data_center else "",
        "gpgpu": "--gpgpu" if bounds.data_center else "",
        "headers": _debian_headers(m),
        "stream": f"{branch}-{stream}" if branch else newest,
        "least": f" of branch {branch} or newer" if branch else "",
    }
    row = next(
        row
        for row in _TABLE.recipes
        if row.system in (_system_of(m), "")
        and row.modules in (None, kernel)
        and row.branched in (None, branch is not None)
    )
    edits = (Edit(file=row.file, what=row.line.format(**words)),) if row.file else ()
    fields = _by(_argvs(row.commands, **words), _TABLE.notes.get(row.note), *edits)
    manual = row.manual and row.manual.format(**words)
    return fields | {"manual": manual, "tool": row.tool or fields["tool"]}


def load_driver(m: Machine, reason: Reason) -> Remedies:
    """Get the installed driver's module loaded. reason: what keeps it out."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    load = partial(_root, m, "load-driver", "Load the NVIDIA driver")
    if keeper_of(m) != "here":
        return load("modprobe nvidia")
    if reason == "modprobe":
        return load("modprobe nvidia; modprobe nvidia_uvm")
    family, known = family_of(m), (reason, "")
    rows = (row for row in _TABLE.loads if row.reason in known and row.family in (family, ""))
    row = next(rows)
    files: Strings = (row.file,) if row.file else ()
    commands = _argvs(row.commands.format(**asdict(_system(m))))
    if row.reason == "not-built":
        commands = _rebuild_modules(m)
        if commands and family != "arch":
            commands += _argvs("modprobe nvidia")
    elif row.reason == "blacklisted":
        files = m.driver.blacklisted_by or ()
    return (
        Remedy(
            id="load-driver",
            title=row.title.format(kernel=m.platform.kernel or "in use"),
            needs_root=True,
            reboot=("modprobe", "nvidia") not in commands,
            commands=commands,
            manual=None if (files if row.reason == "blacklisted" else commands) else row.manual,
            edits=tuple(Edit(file=file, what=row.what) for file in files),
            tool=row.tool,
            note=row.note,
        ),
    )


def reboot(m: Machine) -> Remedies:
    """Restart what runs the driver."""
    step, side = partial(Remedy, id="reboot"), side_of(m)
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


def reload_uvm(m: Machine) -> Remedies:
    """Create the device nodes of nvidia_uvm; reload it if they open and CUDA fails."""
    if side_of(m) in ("wsl", "jetson", "macos", "windows"):
        return ()
    nodes, step = "nvidia-modprobe -u -c 0", partial(_root, m, "reload-uvm")
    opens = any(node.path == "/dev/nvidia-uvm" and not node.errno for node in m.driver.nodes or ())
    if not opens or "nvidia_uvm" not in (m.driver.modules or ()):
        return step("Load the nvidia_uvm module and make its device nodes", nodes)
    note = (
        "End all CUDA programs first; where the module is in use, `fuser -v /dev/nvidia-uvm` "
        "names the process that holds it."
    )
    commands = f"modprobe -r nvidia_uvm; modprobe nvidia_uvm; {nodes}"
    return step("Reload the nvidia_uvm module", commands, note=note)


def reset_gpu(m: Machine, index: int) -> Remedies:
    """Reset one GPU. On a machine that others share, only its administrator may."""
    side, title = side_of(m), f"Reset GPU {index}"
    if side in ("wsl", "jetson", "macos"):
        return ()
    if side == "windows":
        text = "Restart the computer; that resets the GPU as well."
        return (Remedy(id="reset-gpu", title=title, reboot=True, manual=text),)
    note = (
        "Only while nothing uses the GPU. GPUs that NVLink joins are reset together, or by a "
        "reboot."
    )
    return _root(m, "reset-gpu", title, f"nvidia-smi --gpu-reset -i {index}", note=note)


_BARE_NAME_FROM = 580
"""From this branch on NVIDIA's packages of the fabric manager have no branch in their name."""


def fabric_manager(m: Machine) -> tuple[Strings, ...]:
    """The commands that install the fabric manager of exactly the driver's version and start it.

    Empty where the version, or the name of the package on this system, is not known.
    """
    driver, fabric = m.driver.version, m.driver.fabric
    service = "nvidia-fabricmanager"
    start = ("systemctl", *(("restart",) if fabric.manager == "active" else ("enable", "--now")))
    if fabric.version is not None and fabric.version == driver:
        return ((*start, service),)
    tool = _system(m).remove.split()[0]
    if driver is None or tool not in ("apt-get", "dnf", "zypper"):
        return ()
    if tool == "apt-get":
        theirs = any("ubuntu" in package.version for package in m.driver.packages or ())
        old = driver.branch < _BARE_NAME_FROM or theirs or m.driver.packages is None
        # Its last part is the packager's own, and differs from that of the driver's package.
        names = (f"{service}{f'-{driver.branch}' * old}={driver}-*",)
        install: tuple[Strings, ...] = (("apt-get", "update"), ("apt-get", "install", "-y", *names))
    else:
        name = service if driver.branch >= _BARE_NAME_FROM else "nvidia-fabric-manager"
        sign = "=" if tool == "zypper" else "-"
        install = ((tool, "install", "-y", f"{name}{sign}{driver}"),)
    return (*install, (*start, service))


def wsl_driver(m: Machine) -> Remedies:
    """The driver on the Windows side, and any Linux driver taken out of WSL."""
    if side_of(m) != "wsl":
        return ()
    step = partial(Remedy, id="wsl-driver")
    if m.platform.wsl == 1:
        text = (
            "In Windows, `wsl --set-version NAME 2` turns this distribution into WSL 2; WSL 1 "
            "has no GPU."
        )
        return (step(title="Turn to WSL 2", where="windows", manual=text),)
    inside = [package.name for package in m.driver.packages or () if is_driver(package)]
    on_windows = step(
        id="wsl-windows-driver",
        title="Install or update the NVIDIA driver on Windows",
        where="windows",
        manual="Install the current driver from the NVIDIA App or from nvidia.com/drivers on "
        "Windows, then run `wsl --shutdown` there.",
    )
    note = (
        "WSL uses the driver of Windows; a Linux driver inside hides it. Afterwards run "
        "`wsl --shutdown` in Windows."
    )
    remove = _by(((*_system(m).remove.split(), *inside), ("ldconfig",)), note)
    without = step(title="Take the Linux driver out of WSL", needs_root=True, **remove)
    return (without, on_windows) if inside else (on_windows,)


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
    if where == "admin":
        return (step(manual="This belongs to the administrator: others use the machine."),)
    return (step(needs_root=True, commands=_argvs(commands), note=note),)


_LIMITS = (
    "It is for data-centre GPUs and for computing only, not for graphics, and its libraries must "
    "come first in the loader's path. After an update of the driver to branch {branch} or newer it "
    "must go again."
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
    if side == "container":
        # In a container the package is part of the image.
        where = "container"
        tags = (kb.newest_docker_tag(cuda, "base", system) for system in _IMAGES)
        tag = next(filter(None, tags), None)
        image = f"nvidia/cuda:{tag}" if tag else f"an nvidia/cuda image of CUDA {cuda}"
        text = (
            f"Start from {image}, which brings the package, and put {folder} first in "
            "LD_LIBRARY_PATH where the container toolkit does not pick it up by itself."
        )
    elif side in ("linux", "dgx"):
        where, system = "here", _system(m)
        if system.compat:
            install = _by(((system.remove.split()[0], "install", "-y", name),))
        install["needs_root"] = True
        text = (
            f"{name} comes from NVIDIA's repository for this system, which must be set up. "
            f"Programs that need it are then started with {folder} first in LD_LIBRARY_PATH."
        )
    else:
        text = f"Ask for NVIDIA's package {name}; {folder} then comes first in LD_LIBRARY_PATH."
    branch = kb.branch_for(cuda)
    note = _LIMITS.format(branch=branch) if branch else _LIMITS.partition(" After")[0]
    title = "Use NVIDIA's forward-compatibility package"
    install |= {"where": where, "manual": text, "note": note}
    return (Remedy(id="cuda-compat", title=title, **install),)

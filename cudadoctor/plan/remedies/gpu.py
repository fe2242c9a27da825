"""Remedies for single GPUs: a reset, a mode, a limit, or another GPU in its place.

A command names the GPU as the system counts that runs it: a container or a job may have indexes of
its own, so from there a GPU goes by its address on the PCI bus.
"""

from collections.abc import Iterable

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.installers.tool import joined
from cudadoctor.model.findings import Edit, Remedies, Remedy, Risk
from cudadoctor.model.machine import Gpu, Machine, OptStr, Strings
from cudadoctor.plan.remedies.driver import reboot
from cudadoctor.plan.remedies.process import (
    another_node,
    drained,
    family_of,
    indexes_of,
    keeper_of,
    move_vm,
    notebook_of,
    on_hardware,
    side_of,
    smi_ids,
)
from cudadoctor.solver.demand import listed

_ALONE_FROM = Version("8.0")
"""From Ampere on a GPU is reset by itself, also where NVLink joins it to others."""
_ONE_PROFILE = frozenset(map(Version, ("8.0", "9.0", "10.0", "10.3")))
"""Generations whose MIG profile 0 is the whole GPU."""
_FREE_IT = (
    "First stop every program that uses the GPU, including nvidia-persistenced and monitoring "
    "tools: `sudo fuser -v /dev/nvidia*` lists them."
)
_FREE_REST = "First stop every program that uses the GPU: `sudo fuser -v /dev/nvidia*` lists them."
_FABRIC_STAYS = "Leave nvidia-fabricmanager running: the reset needs it."
_FREE_NODE = (
    "First drain the node (`kubectl drain --ignore-daemonsets`). Afterward, run `kubectl uncordon`."
)
_MIG = (
    "To create several smaller instances instead, choose a profile from the output of "
    "`nvidia-smi mig -lgip`."
)
_NEW_UUID = (
    "Then set CUDA_VISIBLE_DEVICES to the UUID that `nvidia-smi -L` prints for the new instance: "
    "the instance that the variable currently points to no longer exists."
)
_STALE_UUID = (
    "If a service or script sets CUDA_VISIBLE_DEVICES, set it there to a UUID that `nvidia-smi -L` "
    "prints: the instance that the variable names no longer exists."
)
_STALE = "If a service or script sets CUDA_VISIBLE_DEVICES, delete the line there."
_UNIT = """\
[Unit]
Description=Create MIG instances
After=nvidia-persistenced.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=-/usr/bin/nvidia-smi -i {gpus} -mig 1
ExecStart=-/usr/bin/{make}
[Install]
WantedBy=multi-user.target"""
_ONE_EACH = (
    "One process can use only one MIG instance: set CUDA_VISIBLE_DEVICES to a UUID (MIG-...) that "
    "`nvidia-smi -L` prints."
)
_ASK_FIRST = "Someone turned MIG mode on, perhaps to share this GPU: ask them first."
_MANAGER = (
    "If nvidia-mig-manager is installed, set the layout in its configuration instead of this unit."
)
_AGAIN = "Then start the container again."
_OF_DGX = ("nvsm", "nvidia-dcgm")
"""Services of a DGX that hold its GPUs, beside nvidia-persistenced."""
_BROKEN = (
    "Neither a reset nor a new driver can repair this GPU. Do not train on this GPU until it is "
    "replaced."
)
_LINUX = ("linux", "dgx", "container", "cluster")
_REPORT = ("nvidia-bug-report.sh",)


def set_gpus(
    m: Machine,
    title: str,
    command: str,
    gpus: Iterable[Gpu],
    *,
    id: str,  # noqa: A002
    note: OptStr = None,
) -> Remedies:
    """Run a command for these GPUs, which stand in it as {gpus}; () where nvidia-smi cannot.

    The GPU of a notebook is only lent: there the way is another one.
    """
    if notebook_of(m):
        return restart(m)
    if side_of(m) in ("jetson", "macos"):
        return ()
    argv = tuple(command.format(gpus=smi_ids(m, gpus)).split())
    where = keeper_of(m)
    return (Remedy(id=id, title=title, where=where, needs_root=True, commands=(argv,), note=note),)


def license_vgpu(m: Machine) -> Remedies:
    """Have the license daemon of a virtual machine's vGPU try again, with its token."""
    step = Remedy(
        id="license-vgpu",
        title="Get a license for the vGPU",
        where=keeper_of(m),
        needs_root=True,
        commands=(("systemctl", "restart", "nvidia-gridd"),),
        note="First get the client configuration token (a .tok file) from the administrator of "
        "your vGPU license server, and copy it to /etc/nvidia/ClientConfigToken. Afterward, "
        "`nvidia-smi -q | grep -i license` must show Licensed; if not, `journalctl -u "
        "nvidia-gridd` shows why.",
    )
    return (step,) if side_of(m) in _LINUX else ()


def reset_gpus(m: Machine, *gpus: Gpu, note: OptStr = None) -> Remedies:
    """Reset these GPUs; () where none can be: a share of a GPU, or one that drives a display.

    note: what is to be looked at after it.
    """
    if side_of(m) not in _LINUX or any(gpu.display or gpu.virtualization == "vgpu" for gpu in gpus):
        return ()
    indexes = {gpu.index for gpu in gpus} | _joined(m, gpus)
    together = [gpu for gpu in m.gpus or () if gpu.index in indexes]
    users, services = _users(together), _services(m, together)
    free = (
        f"First stop {listed(users)}: a GPU cannot be reset while it is in use."
        if users
        else _FREE_NODE
        if m.container.kind == "kubernetes"
        else _FREE_REST
        if services
        else _FREE_IT
    )
    stays = _FABRIC_STAYS if m.driver.fabric.nvswitches else None
    title = f"Reset GPU {indexes_of(together)}"
    command = "nvidia-smi --gpu-reset -i {gpus}"
    ways = set_gpus(m, title, command, together, id="reset-gpu", note=joined(free, stays, note))
    if ways[0].id != "reset-gpu":
        return ways
    stop, start = (
        (("systemctl", verb, *services),) if services else () for verb in ("stop", "start")
    )
    commands = (*stop, *ways[0].commands, *start)
    told = "; sudo ".join(map(" ".join, commands))
    return (drained(m, replace(ways[0], commands=commands), told),)


def _services(m: Machine, gpus: Iterable[Gpu]) -> Strings:
    """The services that are known to hold these GPUs, and can be stopped for a reset.

    The fabric manager is none of them: where there are NVSwitches, a reset needs it.
    """
    if any(gpu.persistence is False for gpu in gpus) or m.container.kind == "kubernetes":
        return ()
    persistent = any(gpu.persistence for gpu in gpus) and family_of(m) != "nixos"
    return ("nvidia-persistenced",) * persistent + _OF_DGX * (side_of(m) == "dgx")


def _joined(m: Machine, gpus: tuple[Gpu, ...]) -> set[int]:
    """The GPUs that can only be reset together with one of these."""
    old = {gpu.index for gpu in gpus if gpu.capability and gpu.capability < _ALONE_FROM}
    pairs = ({pair.first, pair.second} for pair in m.driver.pairs or () if pair.nvlink)
    return {index for pair in pairs if pair & old for index in pair}


def _users(gpus: Iterable[Gpu]) -> Strings:
    """The programs on these GPUs, as far as the driver names them."""
    found = [process for gpu in gpus for process in gpu.processes or () if process.name]
    return tuple(dict.fromkeys(f"{process.name} (pid {process.pid})" for process in found))[:4]


def restart(m: Machine, note: OptStr = None) -> Remedies:
    """Restart the machine; a job can be moved to another one meanwhile."""
    own = side_of(m) in _LINUX and not notebook_of(m)
    restarts = reboot(m)
    if own and note:
        restarts = tuple(replace(way, note=joined(way.note, note)) for way in restarts)
    return another_node(m) + restarts


def reset_or_restart(m: Machine, *gpus: Gpu, note: OptStr = None) -> Remedies:
    """Reset these GPUs, or restart; what the user of a job can do comes first."""
    ways = (reset_gpus(m, *gpus, note=note) if gpus else ()) + restart(m)
    return tuple(sorted(ways, key=lambda way: way.id != "another-node"))


def replace_gpus(m: Machine, *gpus: Gpu) -> Remedies:
    """Train on the other GPUs, and have these replaced: in a cloud by another host."""
    if notebook_of(m):
        return restart(m)
    without = _without(m, gpus)
    if moved := move_vm(m):
        return without + moved
    which, text = indexes_of(gpus), _BROKEN
    report: tuple[Strings, ...] = ()
    title = f"Ask the vendor to replace GPU {which}"
    if side_of(m) in _LINUX:
        title, report = f"Collect the bug report needed to replace GPU {which}", (_REPORT,)
        text = "Send the resulting nvidia-bug-report.log.gz to the vendor and request an RMA."
    step = Remedy(id="replace-gpu", title=title, where=keeper_of(m), manual=text, commands=report)
    return (*another_node(m), *without, replace(step, needs_root=bool(report)))


def _without(m: Machine, gone: tuple[Gpu, ...]) -> Remedies:
    """Hide GPUs from programs; a scheduler hides its GPUs itself."""
    stay = [str(gpu.index) for gpu in m.gpus or () if not gpu.code and gpu not in gone]
    if not stay or keeper_of(m) == "admin":
        return ()
    shown = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(stay)}
    title = f"Train without GPU {indexes_of(gone)}"
    return (Remedy(id="hide-gpu", title=title, risk=Risk.PROCESS, variables=shown),)


def mig_instances(m: Machine, gpus: list[Gpu], *, leave_first: bool = False) -> Remedies:
    """Give GPUs in MIG mode an instance, or take them out of that mode.

    leave_first: the other GPUs are not in that mode.
    """
    if side_of(m) not in _LINUX:
        return ()
    which = indexes_of(gpus)
    make, leave = "nvidia-smi mig -i {gpus} -cgi 0 -C", "nvidia-smi -i {gpus} -mig 0"
    title = f"Create a full-size MIG instance on GPU {which} until the next reboot"
    known = all(
        gpu.capability in _ONE_PROFILE or "RTX PRO 6000" in (gpu.name or "") for gpu in gpus
    )
    note = f"{_MIG} {_AGAIN}" if m.container.kind else _MIG
    stale = (m.env or {}).get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    own = stale and keeper_of(m) == "here"
    # Without the variable CUDA takes the first instance, or a GPU outside of MIG mode.
    unset = own and not leave_first
    variable = (_STALE_UUID if unset else _NEW_UUID) if stale else None
    several = _ONE_EACH if len(gpus) > 1 else None
    own_unit = keeper_of(m) == "here" and family_of(m) != "nixos" and not notebook_of(m)
    lasts = known and own_unit
    told = joined(variable, None if lasts else several, note)
    made = set_gpus(m, title, make, gpus, id="mig-instances", note=told) if known else ()
    if lasts:
        lasting = _at_each_boot(m, make, gpus)
        made = (replace(lasting, note=joined(variable, several, _MANAGER)), *made)
    title = f"Disable MIG mode on GPU {which}"
    free = joined(None if leave_first else _ASK_FIRST, _FREE_IT, _STALE if own else None)
    left = set_gpus(m, title, leave, gpus, id="mig-off", note=free)
    without: dict[str, OptStr] = {"CUDA_VISIBLE_DEVICES": None}
    made = tuple(replace(way, variables=without) for way in made) if unset else made
    left = tuple(replace(way, variables=without) for way in left) if own else left
    return left + made if leave_first else made + left


def _at_each_boot(m: Machine, make: str, gpus: list[Gpu]) -> Remedy:
    """The instances now and after each boot, which removes them, and from Hopper on the mode."""
    file, which = "/etc/systemd/system/mig-instances.service", smi_ids(m, gpus)
    unit = _UNIT.format(gpus=which, make=make.format(gpus=which))
    return Remedy(
        id="mig-at-boot",
        title=f"Create a full-size MIG instance on GPU {indexes_of(gpus)} now and at every boot",
        where=keeper_of(m),
        needs_root=True,
        edits=(Edit(file=file, what=unit, mode="write"),),
        commands=(
            ("systemctl", "daemon-reload"),
            ("systemctl", "enable", "--now", "mig-instances.service"),
            ("nvidia-smi", "-L"),
        ),
    )


_COOL = "Improve the GPU's cooling"
_FANS = (
    "Clean the fans and filters, and make sure that air can flow through the case. Monitor the "
    "temperature and clocks with `nvidia-smi dmon -s pc` during training."
)
_NO_FANS = (
    "This card has no fan of its own: the case must force air through it. In a server, check its "
    "fans and air ducts; in a desktop case, mount a blower with a duct on the card."
)


def cool_gpus(m: Machine, gpus: list[Gpu], *, fans: bool) -> Remedies:
    """What keeps GPUs cool, by what their own fans do."""
    users = _users(gpus)
    load = f"Until then, stop the load on it: {listed(users)}." if users else _LOAD
    text, note = (_FANS, None) if fans else (_NO_FANS, load)
    cooled = on_hardware(m, "cool-gpu", _COOL, text, note=note)
    if fans or cooled[0].id != "cool-gpu" or side_of(m) not in _LINUX:
        return cooled
    which = smi_ids(m, gpus)
    lower = Remedy(
        id="lower-power-limit",
        title=f"Find the lowest power limit that GPU {indexes_of(gpus)} accepts",
        where=keeper_of(m),
        risk=Risk.PROCESS,
        commands=(("nvidia-smi", "-i", which, "-q", "-d", "POWER"),),
        note=f"Until the cooling is fixed, set the value of Min Power Limit with `sudo nvidia-smi "
        f"-i {which} -pl WATTS`.",
    )
    return (*cooled, lower)


_LOAD = "Until then, stop the load on it."

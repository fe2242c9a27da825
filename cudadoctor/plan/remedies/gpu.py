"""Remedies for single GPUs: a reset, a mode, a limit, or another GPU in its place.

A command names the GPU as the system counts that runs it: a container or a job may have indexes of
its own, so from there a GPU goes by its address on the PCI bus.
"""

from collections.abc import Iterable

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.model.findings import Remedies, Remedy, Risk
from cudadoctor.model.machine import Gpu, Machine, OptStr, Strings
from cudadoctor.plan.remedies.driver import reboot
from cudadoctor.plan.remedies.process import keeper_of, notebook_of, side_of, smi_ids
from cudadoctor.solver.demand import UsableGpu, listed, variables_for

_ALONE_FROM = Version("8.0")
"""From Ampere on a GPU is reset by itself, also where NVLink joins it to others."""
_ONE_PROFILE = frozenset(map(Version, ("8.0", "9.0", "10.0", "10.3")))
"""Generations whose MIG profile 0 is the whole GPU."""
_FREE_IT = (
    "Stop every program on the GPU first, monitoring too; `fuser -v /dev/nvidia*` lists them."
)
_MIG = "For several smaller instances, `nvidia-smi mig -lgip` lists the profiles."
_AGAIN = "Start the container again afterwards."
_COLD = "If the GPU is still missing, shut down, cut the power for a minute and start again."


def set_gpus(
    m: Machine,
    title: str,
    command: str,
    gpus: Iterable[Gpu],
    *,
    id: str,  # noqa: A002
    note: OptStr = None,
) -> Remedies:
    """Run a command for these GPUs, which stand in it as {gpus}; () where nvidia-smi cannot."""
    if side_of(m) in ("jetson", "macos") or notebook_of(m):
        return ()
    argv = tuple(command.format(gpus=smi_ids(m, gpus)).split())
    where = keeper_of(m)
    return (Remedy(id=id, title=title, where=where, needs_root=True, commands=(argv,), note=note),)


def reset_gpus(m: Machine, *gpus: Gpu) -> Remedies:
    """Reset these GPUs; () where none can be: a share of a GPU, or one that drives a display."""
    possible = side_of(m) in ("linux", "dgx", "container", "cluster")
    if not possible or any(gpu.display or gpu.virtualization == "vgpu" for gpu in gpus):
        return ()
    indexes = {gpu.index for gpu in gpus} | _joined(m, gpus)
    together = [gpu for gpu in m.gpus or () if gpu.index in indexes]
    users = _users(together)
    note = f"Stop {listed(users)} first: a GPU in use cannot be reset." if users else _FREE_IT
    title = f"Reset GPU {', '.join(str(gpu.index) for gpu in together)}"
    command = "nvidia-smi --gpu-reset -i {gpus}"
    return set_gpus(m, title, command, together, id="reset-gpu", note=note)


def _joined(m: Machine, gpus: tuple[Gpu, ...]) -> set[int]:
    """The GPUs that can only be reset together with one of these."""
    old = {gpu.index for gpu in gpus if gpu.capability and gpu.capability < _ALONE_FROM}
    pairs = ({pair.first, pair.second} for pair in m.driver.pairs or () if pair.nvlink)
    return {index for pair in pairs if pair & old for index in pair}


def _users(gpus: Iterable[Gpu]) -> Strings:
    """The programs on these GPUs, as far as the driver names them."""
    found = [process for gpu in gpus for process in gpu.processes or () if process.name]
    return tuple(dict.fromkeys(f"{process.name} (pid {process.pid})" for process in found))[:4]


def power_cycle(m: Machine, note: str = _COLD) -> Remedies:
    """Restart, with what to do if that is not enough for the hardware."""
    own = side_of(m) in ("linux", "dgx", "container", "cluster") and not notebook_of(m)
    return tuple(replace(step, note=note) if own else step for step in reboot(m))


def replace_gpu(m: Machine, gpu: Gpu) -> Remedies:
    """Have one GPU replaced, and train on the others until then."""
    linux, where = side_of(m) in ("linux", "dgx", "container", "cluster"), keeper_of(m)
    text = f"Ask the vendor of GPU {gpu.index} to replace it. No reset or driver repairs it."
    sent = "Send them the nvidia-bug-report.log.gz that this command writes."
    report = Remedy(id="replace-gpu", title=f"Have GPU {gpu.index} replaced", where=where)
    if linux:
        commands = (("nvidia-bug-report.sh",),)
        report = replace(report, needs_root=True, commands=commands, note=sent)
    return (replace(report, manual=text), *_without(m, gpu))


def _without(m: Machine, gone: Gpu) -> Remedies:
    """Hide that GPU from programs; a scheduler hides its GPUs itself."""
    others = [gpu for gpu in m.gpus or () if not gpu.code and gpu.index != gone.index]
    if not others or keeper_of(m) == "admin":
        return ()
    stay = (UsableGpu(index=gpu.index, name="", capability=None, uuid=gpu.uuid) for gpu in others)
    shown, title = variables_for(stay, redacted=m.redacted), f"Train without GPU {gone.index}"
    return (Remedy(id="hide-gpu", title=title, risk=Risk.PROCESS, variables=shown),)


def mig_instances(m: Machine, gpus: list[Gpu]) -> Remedies:
    """Give GPUs in MIG mode an instance, or take them out of that mode."""
    which = ", ".join(str(gpu.index) for gpu in gpus)
    make, leave = "nvidia-smi mig -i {gpus} -cgi 0 -C", "nvidia-smi -i {gpus} -mig 0"
    title = f"Create one MIG instance that is the whole of GPU {which}"
    known = all(gpu.capability in _ONE_PROFILE for gpu in gpus)
    note = f"{_MIG} {_AGAIN}" if m.container.kind else _MIG
    made = set_gpus(m, title, make, gpus, id="mig-instances", note=note) if known else ()
    title = f"Leave MIG mode on GPU {which}"
    return made + set_gpus(m, title, leave, gpus, id="mig-off", note=_FREE_IT)

"""Will several processes find each other, each with a GPU of its own? Read from the variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.model.rule import Found, need, rule
from cudadoctor.plan.remedies import by_hand, unset_variables
from cudadoctor.rules.evidence.signs import SUCCESS, live_gpus, torch_works

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine

_LEAST = {
    "RANK": 0,
    "LOCAL_RANK": 0,
    "WORLD_SIZE": 1,
    "LOCAL_WORLD_SIZE": 1,
    "MASTER_PORT": 0,
}
"""What a launcher sets as a number, and the smallest that makes sense."""
_BOUNDS = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
_PORTS = 1 << 16


@rule(
    "ddp-launch",
    title="{name} is {value}, and this process sees {count} GPUs",
    severity=Severity.WARNING,
    yields_to=("visible-devices-hides-gpu", "scheduler-no-gpu", "gpu-lost"),
)
def more_ranks_than_gpus(m: Machine, kb: Knowledge) -> Found | None:
    """Each process of a node takes the GPU of its LOCAL_RANK, counted from 0, and that one is
    not there.

    torch.cuda.set_device then ends in "invalid device ordinal" (CUDA error 101). Told from
    ddp-rank-device, where there are GPUs enough and the ranks land on one. A launcher that gives
    each process one visible GPU has them all use cuda:0, and must say so to the program.

    Start as many processes per node as there are GPUs: torchrun --nproc-per-node.
    """
    env = need(m.env, "env")
    rank, size = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE")
    if (rank is None and size is None) or m.torch.build not in (None, "cuda"):
        return None
    count = need(_visible(m), "driver.libcuda.count")
    if count <= 0 or (max(rank or 0, 0) < count and (size or 0) <= count):
        return None
    name = "LOCAL_RANK" if rank is not None and rank >= count else "LOCAL_WORLD_SIZE"
    text = (
        f"Start {count} processes on this node: `torchrun --nproc-per-node={count} ...`, or give "
    )
    text += "the job more GPUs."
    return Found(
        evidence=(f"env.{name}", _seen_by(m)),
        values={"name": name, "value": env[name].strip()[:40], "count": count},
        confidence=Confidence.LIKELY,
        remedies=by_hand("ranks-per-node", "Start as many processes as there are GPUs", text),
    )


def _visible(m: Machine) -> int | None:
    """How many GPUs a program of this environment sees."""
    if torch_works(m) and m.torch.imported and m.torch.imported.device_count:
        return m.torch.imported.device_count
    if m.driver.libcuda.code == SUCCESS and m.driver.libcuda.count is not None:
        return m.driver.libcuda.count
    if "CUDA_VISIBLE_DEVICES" in (m.env or {}) or any(gpu.mig for gpu in m.gpus or ()):
        return None
    return len(live_gpus(m)) if m.gpus is not None else None


def _seen_by(m: Machine) -> str:
    if torch_works(m) and m.torch.imported and m.torch.imported.device_count:
        return "torch.imported.device_count"
    return "driver.libcuda.count" if m.driver.libcuda.code == SUCCESS else "gpus"


@rule("ddp-launch", title="{name} is {value}, and {bound} is {limit}", severity=Severity.WARNING)
def launcher_variables(m: Machine, kb: Knowledge) -> Found | None:
    """Ranks are numbered from 0 up to one less than their number, so this process has no place.

    torch.distributed reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT with init_method="env://",
    and many programs start it as soon as RANK and WORLD_SIZE are set. Then one that is missing ends
    in "environment variable ... expected, but not set", and one that is wrong in a wait for others
    that never come. MASTER_ADDR alone is no sign of anything.

    torchrun, mpirun wrappers and srun scripts set them together; a shell that kept them from an
    earlier job should drop them.
    """
    env = need(m.env, "env")
    if m.torch.installed is False:
        return None
    return _no_number(env, m) or _beyond(env, m) or _half_set(env, m)


def _number(env: dict[str, str], name: str) -> int | None:
    """The number that the variable holds, None where it is not set or holds none."""
    text = env.get(name, "").strip()
    return int(text) if text.removeprefix("-").isascii() and _is_integer(text) else None


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isdecimal() and len(digits) < 10


def _no_number(env: dict[str, str], m: Machine) -> Found | None:
    for name, least in _LEAST.items():
        if not env.get(name, "").strip():
            continue
        value = _number(env, name)
        if value is not None and value >= least and (name != "MASTER_PORT" or value < _PORTS):
            continue
        return Found(
            evidence=(f"env.{name}",),
            values={"name": name, "value": env[name].strip()[:40]},
            title="{name} is {value}, which no launcher sets",
            why="torch.distributed reads this variable as a number, and cannot start so.",
            remedies=_launch(m, env),
        )
    return None


def _beyond(env: dict[str, str], m: Machine) -> Found | None:
    for name, bound in _BOUNDS:
        value, limit = _number(env, name), _number(env, bound)
        if value is not None and limit is not None and value >= limit:
            return Found(
                evidence=(f"env.{name}", f"env.{bound}"),
                values={"name": name, "value": value, "bound": bound, "limit": limit},
                remedies=_launch(m, env),
            )
    return None


def _half_set(env: dict[str, str], m: Machine) -> Found | None:
    if not all(env.get(name, "").strip() for name in ("RANK", "WORLD_SIZE")):
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name, "").strip()]
    if not missing:
        return None
    return Found(
        evidence=("env.RANK", "env.WORLD_SIZE"),
        values={"missing": missing},
        title="RANK and WORLD_SIZE are set, and without {missing}",
        why="torch.distributed starts from all of these variables and fails without one.",
        confidence=Confidence.LIKELY,
        remedies=_launch(m, env),
    )


def _launch(m: Machine, env: dict[str, str]) -> tuple[Remedy, ...]:
    names = [
        name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in env
    ]
    text = (
        "Start the program with `torchrun`, which sets all of them together; in a job script set "
    )
    text += "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process."
    launched = by_hand("launch-ranks", "Start all processes with one launcher", text)
    return (*(unset_variables(m, *names) if names else ()), *launched)


@rule(
    "nccl-network-interface",
    title="{name} names {value}, and no network interface here is called so",
    severity=Severity.WARNING,
)
def network_interface(m: Machine, kb: Knowledge) -> Found | None:
    """NCCL and Gloo connect the processes over the interface that this variable names.

    "Bootstrap : no socket interface found" is NCCL's refusal, also between GPUs of one machine.
    NCCL reads beginnings of names, separated by commas: = in front asks for the whole name, ^
    excludes. Gloo reads whole names. The values come with a job script from another cluster, or
    from a container whose network has other names than the host's.

    Cured by unsetting it, or by a name that `ip -brief link` lists.
    """
    env = need(m.env, "env")
    wanted = {name: env[name].strip() for name in _READ_BY if env.get(name, "").strip()}
    if not wanted or m.platform.system not in (None, "Linux"):
        return None
    present = need(m.limits.interfaces, "limits.interfaces")
    for name, value in wanted.items():
        if present and not _READ_BY[name](value, present):
            return Found(
                evidence=(f"env.{name}", "limits.interfaces"),
                values={"name": name, "value": value[:60]},
                severity=Severity.WARNING if _several(m, env) else Severity.INFO,
                remedies=unset_variables(m, name),
            )
    return None


def _several(m: Machine, env: dict[str, str]) -> bool:
    """Whether more than one process would be connected."""
    return len(live_gpus(m)) > 1 or (_number(env, "WORLD_SIZE") or 1) > 1


def _nccl_finds(value: str, present: tuple[str, ...]) -> bool:
    """Whether NCCL is left with an interface."""
    excludes, rest = value.startswith("^"), value.removeprefix("^")
    whole, rest = rest.startswith("="), rest.removeprefix("=")
    names = [one.partition(":")[0].strip() for one in rest.split(",") if one.strip()]
    if excludes or not names:
        return True
    return any(have == one if whole else have.startswith(one) for have in present for one in names)


def _gloo_finds(value: str, present: tuple[str, ...]) -> bool:
    """Gloo opens every one that is named."""
    return all(one.strip() in present for one in value.split(",") if one.strip())


_READ_BY = {"NCCL_SOCKET_IFNAME": _nccl_finds, "GLOO_SOCKET_IFNAME": _gloo_finds}

RULES = (more_ranks_than_gpus, launcher_variables, network_interface)

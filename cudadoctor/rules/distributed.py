"""Do the GPUs reach each other, and will several processes, each with a GPU of its own?"""

from __future__ import annotations

import re

from msgspec.structs import replace

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
)
from cudadoctor.model.machine import GpuPair, Machine, OptInt, OptStr, Stage, Strings
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import by_hand, unset_variables
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.evidence.signs import SUCCESS, live_gpus, torch_works, variable

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
    severity=WARNING,
)
def more_ranks_than_gpus(m: Machine) -> Answer:
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
    known, path = _visible(m)
    count = need(known, "driver.libcuda.count")
    if count <= 0 or max((rank or 0) + 1, size or 0) <= count:
        return None
    name = "LOCAL_RANK" if rank is not None and rank >= count else "LOCAL_WORLD_SIZE"
    return Found(
        evidence=(f"env.{name}", path),
        values={"name": name, "value": env[name].strip()[:40], "count": count},
        sure=False,
        remedies=by_hand(
            "ranks-per-node",
            "Start as many processes as there are GPUs",
            f"Start {count} processes on this node: `torchrun --nproc-per-node={count} ...`, "
            "or give the job more GPUs.",
        ),
    )


def _visible(m: Machine) -> tuple[OptInt, str]:
    """How many GPUs a program of this environment sees, and the fact that shows it."""
    torch, libcuda = m.torch.imported, m.driver.libcuda
    if torch_works(m) and torch and torch.device_count:
        return torch.device_count, "torch.imported.device_count"
    started = libcuda.code == SUCCESS
    listed = "CUDA_VISIBLE_DEVICES" in (m.env or {}) or any(gpu.mig for gpu in m.gpus or ())
    count = None if listed or m.gpus is None else len(live_gpus(m))
    if started:
        return count if libcuda.count is None else libcuda.count, "driver.libcuda.count"
    return count, "gpus"


@rule("ddp-launch", title="{name} is {value}, and {bound} is {limit}", severity=WARNING)
def launcher_variables(m: Machine) -> Answer:
    """Ranks are numbered from 0 up to one less than their number, so this process has no place.

    torch.distributed reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT with init_method="env://",
    and many programs start it as soon as RANK and WORLD_SIZE are set. Then one that is missing ends
    in "environment variable ... expected, but not set", and one that is wrong in a wait for others
    that never come. MASTER_ADDR alone is no sign of anything.

    torchrun, mpirun wrappers and srun scripts set them together; a shell that kept them from an
    earlier job should drop them.
    """
    env = need(m.env, "env")
    found = _ill_set({name: value.strip() for name, value in env.items()})
    if found is None or m.torch.installed is False:
        return None
    names = [
        name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in env
    ]
    launched = by_hand(
        "launch-ranks",
        "Start all processes with one launcher",
        "Start the program with `torchrun`, which sets all of them together; in a job script "
        "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process.",
    )
    return replace(found, remedies=(unset_variables(m, *names) if names else ()) + launched)


def _number(env: dict[str, str], name: str) -> OptInt:
    """The number that the variable holds, None where it is not set or holds none."""
    text = env.get(name, "").strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


def _ill_set(env: dict[str, str]) -> Answer:
    """What is wrong with a launcher's variables."""
    for name, least in _LEAST.items():
        value = _number(env, name)
        below = name != "MASTER_PORT" or (value or 0) < _PORTS
        if env.get(name) and not (value is not None and value >= least and below):
            return Found(
                evidence=(f"env.{name}",),
                values={"name": name, "value": env[name][:40]},
                title="{name} is {value}, which no launcher sets",
                why="torch.distributed reads this variable as a number, and cannot start so.",
            )
    for name, bound in _BOUNDS:
        value, limit = _number(env, name), _number(env, bound)
        if value is not None and limit is not None and value >= limit:
            return Found(
                evidence=(f"env.{name}", f"env.{bound}"),
                values={"name": name, "value": value, "bound": bound, "limit": limit},
            )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if not missing or not (env.get("RANK") and env.get("WORLD_SIZE")):
        return None
    return Found(
        evidence=("env.RANK", "env.WORLD_SIZE"),
        values={"missing": missing},
        title="RANK and WORLD_SIZE are set, and without {missing}",
        why="torch.distributed starts from all of these variables and fails without one.",
        sure=False,
    )


@rule(
    "nccl-network-interface",
    title="{name} names {value}, and no network interface here is called so",
    severity=WARNING,
)
def network_interface(m: Machine) -> Answer:
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
    several = len(live_gpus(m)) > 1 or (_number(env, "WORLD_SIZE") or 1) > 1
    for name, value in wanted.items():
        if present and not _READ_BY[name](value, present):
            return Found(
                evidence=(f"env.{name}", "limits.interfaces"),
                values={"name": name, "value": value[:60]},
                severity=WARNING if several else INFO,
                remedies=unset_variables(m, name),
            )
    return None


def _nccl_finds(value: str, present: Strings) -> bool:
    """Whether NCCL is left with an interface."""
    excludes, rest = value.startswith("^"), value.removeprefix("^")
    whole, rest = rest.startswith("="), rest.removeprefix("=")
    names = [entry.partition(":")[0].strip() for entry in rest.split(",") if entry.strip()]
    if excludes or not names:
        return True
    if whole:
        return not set(names).isdisjoint(present)
    return any(interface.startswith(tuple(names)) for interface in present)


def _gloo_finds(value: str, present: Strings) -> bool:
    """Whether every interface that Gloo is to open is present."""
    return all(name.strip() in present for name in value.split(",") if name.strip())


_READ_BY = {"NCCL_SOCKET_IFNAME": _nccl_finds, "GLOO_SOCKET_IFNAME": _gloo_finds}


_NEAR = ("internal", "switch", "switches", "bridge")
"""Both below one root of the PCI tree: data-centre GPUs reach each other there."""
_BY_THE_BOARD = ("chipset", "topology", "disabled", "unsupported")
_WORDS = {
    "chipset": "the board's chipset does not support it",
    "gpu": "the GPUs do not support it",
    "topology": "the way between their PCI roots does not support it",
    "disabled": "a setting of the driver disables it",
    "unsupported": "it is not supported",
    "unknown": "for a reason that the driver does not name",
}
_UNEQUAL = ("gradients of the ranks are not equal", "gradients are off by")
_STUCK = ("no answer", "did not end", "nothing within", "ended, since", "timed out", "timeout")
_STATED = re.compile(r"(?i)out of memory|no space|errno|killed by|import|interface")
"""Words of a failure that has a name of its own."""
_NCCL = re.compile(
    r"(?i)(?:unhandled (?:cuda|system) error|nccl \w+ error|internal error - please report"
    r"|ncclsystemerror|ncclinternalerror|ncclunhandledcudaerror|ncclremoteerror)[^\n;]*",
)


@rule(
    "p2p-not-possible",
    title="GPU {first} and GPU {second} do not reach each other's memory: {reason}",
    severity=INFO,
    essential=False,
)
def p2p_not_possible(m: Machine, kb: Knowledge) -> Answer:
    """Copies between them go through the memory of the host, which is slower; NCCL sees to it.

    GeForce cards from the RTX 40 series on, and pairs of different models, have no P2P by design,
    and in virtual machines the hypervisor decides: there this is information, and nothing is to be
    done. Data-centre GPUs below one root of the PCI tree have it, and where the driver denies it to
    them, the firmware, an IOMMU or a setting of the module stands between: then it is a warning.

    `nvidia-smi topo -p2p r` shows all pairs. Told from nccl-p2p-broken, where the driver offers P2P
    and it does not work. NCCL_P2P_DISABLE=1 changes nothing here.
    """
    live = live_gpus(m)
    if len(live) < 2 or any(gpu.mig for gpu in live):
        return None
    pairs = need(m.driver.pairs, "driver.pairs")
    refused = [pair for pair in pairs if pair.p2p not in (None, "ok")]
    odd = [pair for pair in refused if _ought_to_work(pair, m, kb)]
    if not refused:
        return None
    shown = (odd or refused)[0]
    reason = _WORDS[shown.p2p or "unknown"]
    remedies = by_hand(
        "allow-p2p",
        "Find what keeps the GPUs from P2P",
        "Look for settings of the module in /etc/modprobe.d (NVreg_RegistryDwords), then at "
        "the firmware's settings for ACS and PCIe, and at a newer firmware of the board.",
        keeper_of(m),
    )
    return Found(
        evidence=(f"driver.pairs.{pairs.index(shown)}",),
        values={"first": shown.first, "second": shown.second, "reason": reason},
        severity=WARNING if odd else INFO,
        sure=not odd,
        remedies=remedies if odd else (),
    )


def _ought_to_work(pair: GpuPair, m: Machine, kb: Knowledge) -> bool:
    """Whether these are two alike data-centre GPUs, side by side, on real hardware."""
    two = [gpu for gpu in live_gpus(m) if gpu.index in (pair.first, pair.second)]
    models = [kb.gpu_by_name(gpu.name or "") for gpu in two]
    return (
        not m.platform.virtual
        and pair.level in _NEAR
        and pair.p2p in _BY_THE_BOARD
        and not any(gpu.virtualization in ("vgpu", "passthrough") for gpu in two)
        and len({gpu.name for gpu in two}) == 1
        and all(model is not None and model.data_center for model in models)
    )


@rule(
    "nccl-p2p-broken",
    title="P2P between the GPUs does not work: the ranks {what}",
)
def nccl_p2p_broken(m: Machine) -> Answer:
    """{between}, and what one GPU writes does not arrive at the other as it should.

    With an IOMMU that translates, or with ACS on the bridges, what one GPU sends to another takes
    the way to the root of the PCI tree and may be lost there: the first all-reduce hangs with every
    GPU at 100 %, or its sums are wrong. A pair of GPUs that the driver gives no P2P cannot show it.

    Proven where NCCL_P2P_DISABLE=1 cures it. That variable shows the cause and costs speed: it is
    not to stay. Cured by whoever runs the machine: the IOMMU in passthrough mode (`iommu=pt` on the
    kernel's command line), ACS off in the firmware where no virtual machine needs it.
    """
    stage = _ranks_that_failed(m)
    if stage is None or len(live_gpus(m)) < 2 or variable(m, "NCCL_P2P_DISABLE") == "1":
        return None
    pairs = need(m.driver.pairs, "driver.pairs")
    if not any(pair.p2p == "ok" and not pair.nvlink for pair in pairs):
        return None
    number, what = stage
    between, evidence = _between(m)
    return Found(
        evidence=(f"smoke.stages.{number}.detail", "driver.pairs", evidence),
        values={"what": what, "between": between},
        confidence=LIKELY if evidence else POSSIBLE,
        remedies=by_hand(
            "p2p-way",
            "Give the GPUs a straight way to each other",
            "First a test: the same program with NCCL_P2P_DISABLE set to 1. Where that runs, "
            "put the IOMMU into passthrough mode (the kernel's option iommu=pt), then look at ACS "
            "in the firmware; virtual machines that are given devices need both as they are.",
            keeper_of(m),
        ),
    )


def _ranks_that_failed(m: Machine) -> tuple[int, str] | None:
    """The stage of the ranks, where it hung or gave wrong data, and how; None else."""
    cuda = m.smoke is not None and m.smoke.device.startswith("cuda")
    for number, stage in enumerate(m.smoke.stages if m.smoke and cuda else ()):
        if stage.name == "ddp" and (what := _how(stage)):
            return number, what
    return None


def _how(stage: Stage) -> OptStr:
    text, failed = (stage.detail or "").lower(), stage.status == "failed"
    if failed and any(words in text for words in _UNEQUAL):
        return "computed wrong gradients"
    stuck = failed and "nccl" in text and any(words in text for words in _STUCK)
    return "hang" if (stuck or stage.status == "timed-out") and not _STATED.search(text) else None


def _between(m: Machine) -> tuple[str, OptStr]:
    """What stands between the GPUs, and the fact that shows it, where that explains much."""
    for field, value, what in (
        ("iommu", "translated", "An IOMMU translates"),
        ("acs", True, "ACS redirects"),
    ):
        for number, device in enumerate(m.pci or ()):
            if device.vendor == "nvidia" and getattr(device, field) == value:
                return f"{what} what the GPUs send each other", f"pci.{number}.{field}"
    return "The driver offers P2P over PCIe", None


@rule(
    "nccl-other",
    title="NCCL fails between the GPUs of this machine: {words}",
)
def nccl_other(m: Machine) -> Answer:
    """The ranks of the training step could not talk, and NCCL's own words are all that is known.

    Each GPU works alone. "unhandled system error" mostly means the network, shared memory or a
    limit, "internal error" a PCI tree that cannot be read, "remote process exited" another rank
    whose own first error counts.

    Cured by what its log names: NCCL_DEBUG=WARN makes it say which call failed, and where.
    """
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        words = _NCCL.search(stage.detail or "")
        if stage.name == "ddp" and stage.status == "failed" and words:
            return Found(
                evidence=(f"smoke.stages.{number}.detail",),
                # Without the file and line before it.
                values={"words": words[0].strip().splitlines()[0][:120]},
                sure=False,
                remedies=by_hand(
                    "nccl-debug",
                    "Let NCCL say what failed",
                    "Run it again with NCCL_DEBUG set to WARN; the first line of the first "
                    "rank that complains counts.",
                ),
            )
    return None


@rule(
    "gpu-topology",
    title="GPU {first} and GPU {second} sit at different processors",
    severity=INFO,
    essential=False,
)
def gpu_topology(m: Machine) -> Answer:
    """What they exchange crosses the link between the processors, the slowest way in the machine.

    It is how boards with two processors are built, and no fault. A job that needs a part of the
    GPUs is faster on those of one processor; CUDA_VISIBLE_DEVICES or the scheduler chooses them.
    Pairs with NVLink are not counted.

    `nvidia-smi topo -m` shows all pairs: SYS is this one, NODE and nearer are better.
    """
    pairs = need(m.driver.pairs, "driver.pairs") if len(live_gpus(m)) > 1 else ()
    for number, pair in enumerate(pairs):
        if pair.level == "system" and pair.nvlink is not True:
            return Found(
                evidence=(f"driver.pairs.{number}",),
                values={"first": pair.first, "second": pair.second},
            )
    return None

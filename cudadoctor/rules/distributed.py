"""Do the GPUs reach each other, and will several processes, each with a GPU of its own?"""

from __future__ import annotations

import re

from msgspec.structs import replace

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    ERROR,
    INFO,
    LIKELY,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import GpuPair, Machine, OptInt, OptStr, Stage, Strings
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import (
    allow_p2p,
    by_hand,
    set_variables,
    unset_variables,
    without_p2p,
)
from cudadoctor.plan.remedies.process import lasting
from cudadoctor.rules.evidence.signs import SUCCESS, bus_key, live_gpus, torch_works, variable

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
    title="{name} is {value}, but the number of visible GPUs is {count}",
    severity=WARNING,
)
def more_ranks_than_gpus(m: Machine) -> Answer:
    """Each process uses the GPU whose index equals its LOCAL_RANK; GPU indexes and local ranks both
    start at 0. Start one process per visible GPU.

    torch.cuda.set_device fails with "invalid device ordinal" (CUDA error 101). To check by hand:
    run `nvidia-smi -L` and `echo "$CUDA_VISIBLE_DEVICES"`.

    Look-alikes: if there are enough GPUs for all processes but every process uses the same GPU, the
    cause is ddp-rank-device. Some launchers make only one GPU visible to each process; every
    process must then use cuda:0.

    Fix: start as many processes per node as the node has GPUs, for example `torchrun
    --nproc-per-node=2` for two GPUs.
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
    instances = [uuid for gpu in m.gpus or () for uuid in gpu.mig_devices or ()]
    return Found(
        evidence=(f"env.{name}", path),
        values={"name": name, "value": env[name].strip()[:40], "count": count},
        sure=False,
        why=_ONE_INSTANCE if instances else None,
        remedies=_one_each(instances) if instances else _ranks(count),
    )


def _ranks(count: int) -> Remedies:
    return by_hand(
        "ranks-per-node",
        "Start one process per GPU",
        f"Start your script with `torchrun --nproc-per-node={count}` instead of python, or request "
        "more GPUs for the job.",
    )


def _one_each(instances: list[str]) -> Remedies:
    """Programs that know nothing of each other, each with an instance of its own."""
    (first,) = set_variables(
        "one-instance", "Use one MIG instance per program", {"CUDA_VISIBLE_DEVICES": instances[0]}
    )
    others = (
        " Start each of the other programs in its own shell, with CUDA_VISIBLE_DEVICES set "
        f"to one of these instances: {', '.join(instances[1:])}."
    )
    note = "Start your script with python instead of torchrun."
    return (replace(first, note=note + others if instances[1:] else note),)


_ONE_INSTANCE = (
    "A process sees only one MIG instance, whatever CUDA_VISIBLE_DEVICES lists, and NCCL does "
    "not connect instances of the same GPU, so each program needs an instance of its own."
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


@rule("ddp-launch", title="{name}={value} is too high for {bound}={limit}", severity=WARNING)
def launcher_variables(m: Machine) -> Answer:
    """Ranks start at 0, so {name} must be less than {bound}. These values may be left over from an
    earlier job.

    With init_method="env://", torch.distributed reads RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT, and many programs initialize torch.distributed as soon as RANK and WORLD_SIZE are
    set. If one of the variables is missing, the program stops with "environment variable ...
    expected, but not set". If one of the variables is wrong, the program waits for processes that
    never start. To check by hand: run `env | grep -E "RANK|WORLD_SIZE|MASTER_"` to see which of
    these variables are set.

    Fix: unset RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and let torchrun, mpirun
    or the job script set them for each process.
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
        "Let torchrun set RANK, WORLD_SIZE and related variables",
        "Start your script with `torchrun` instead of python; torchrun sets RANK, WORLD_SIZE and "
        "related variables for every process. In a job script, set RANK, WORLD_SIZE, MASTER_ADDR "
        "and MASTER_PORT for every process.",
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
                title="{name}={value} is not a valid number",
                why="torch.distributed reads {name} at startup and stops with an error.",
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
        title="RANK and WORLD_SIZE are set, but not {missing}",
        why='torch.distributed needs all of these variables and stops with "environment variable '
        'expected, but not set" if one is missing.',
        sure=False,
    )


@rule(
    "nccl-network-interface",
    title="{name}={value} does not match any network interface",
    severity=WARNING,
)
def network_interface(m: Machine) -> Answer:
    """NCCL and Gloo connect the processes through the interface that this variable specifies. This
    machine has these interfaces: {present}.

    NCCL stops with "Bootstrap : no socket interface found", even if all GPUs are in a single
    machine. To check by hand: run `ip -brief link` to list the network interfaces of this machine.
    The wrong value is often copied from another cluster's job script, or passed into a container
    whose interface names differ from the host's.

    NCCL accepts a comma-separated list of interface name prefixes: a leading = requires an exact
    match, and a leading ^ excludes interfaces. Gloo accepts only full names.

    Fix: unset the variable that selects the interface; NCCL then finds an interface by itself. For
    a job on several machines, set the variable to the interface that connects them.
    """
    env = need(m.env, "env")
    wanted = {name: env[name].strip() for name in _READ_BY if env.get(name, "").strip()}
    if not wanted or m.platform.system not in (None, "Linux"):
        return None
    present = need(m.limits.interfaces, "limits.interfaces")
    stages = m.smoke.stages if m.smoke else ()
    stopped = any(_NO_INTERFACE in (stage.detail or "") for stage in stages)
    several = len(live_gpus(m)) > 1 or (_number(env, "WORLD_SIZE") or 1) > 1
    wrong = [name for name in wanted if present and not _READ_BY[name](wanted[name], present)]
    if not wrong:
        return None
    return Found(
        evidence=(*(f"env.{name}" for name in wrong), "limits.interfaces"),
        values={"name": wrong[0], "value": wanted[wrong[0]][:60], "present": present[:8]},
        severity=ERROR if stopped else WARNING if several else INFO,
        remedies=_right_interface(m, wrong, present),
    )


_NO_INTERFACE = "no socket interface found"
_VIRTUAL = re.compile(r"lo|(?:docker|br-|veth|virbr|cni|flannel|cali|tun|tap|tailscale|wg|lxc)")
"""Interfaces that lead to no other machine of a cluster."""


def _right_interface(m: Machine, names: list[str], present: Strings) -> Remedies:
    """NCCL's own choice; between machines the only interface that leads out, if there is one."""
    unset = unset_variables(m, *names)
    real = [interface for interface in present if not _VIRTUAL.match(interface)]
    nodes = (_number(m.env or {}, "WORLD_SIZE") or 1) > len(live_gpus(m))
    if len(real) != 1 or not nodes:
        return unset
    title = f"Set {' and '.join(names)} to this machine's network interface"
    (step,) = set_variables("set-interface", title, dict.fromkeys(names, real[0]))
    return (replace(step, note=lasting(m, names[0])), *unset)


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
"""Both below one root of the PCI tree: data center GPUs reach each other there."""
_BY_THE_BOARD = ("chipset", "topology", "disabled", "unsupported")
_WORDS = {
    "chipset": "the motherboard's chipset does not support P2P",
    "gpu": "these GPUs do not support P2P",
    "topology": "the PCIe path between the GPUs does not support P2P",
    "disabled": "a driver setting disables P2P",
    "unsupported": "it is not supported",
    "unknown": "the driver gives no reason",
}
_UNEQUAL = (
    "gradients of the ranks are not equal",
    "gradients are not equal across ranks",
    "gradients are off by",
    "gradients differ by",
)
_STUCK = (
    *("no answer", "no response", "did not end", "nothing within"),
    *("ended, since", "stopped because", "timed out", "timeout"),
)
_STATED = re.compile(r"(?i)out of memory|no space|errno|killed by|import|interface")
"""Words of a failure that has a name of its own."""
_EXPLAINED = ((_NO_INTERFACE, "nccl-network-interface"), ("ibv_reg_mr", "ulimit"))
"""Words of NCCL that another rule knows the cause of."""
_LAST = re.compile(r"Last error:\s*([^\n]+)")
_NCCL = re.compile(
    r"(?i)(?:unhandled (?:cuda|system) error|nccl \w+ error|internal error - please report"
    r"|ncclsystemerror|ncclinternalerror|ncclunhandledcudaerror|ncclremoteerror)[^\n;]*",
)


@rule(
    "p2p-not-possible",
    title="No P2P between GPU {first} and GPU {second}: {reason}",
    severity=INFO,
    essential=False,
)
def p2p_not_possible(m: Machine, kb: Knowledge) -> Answer:
    """Copies between these GPUs go through host memory. This path is slower, but NCCL uses it
    automatically.

    By design, GeForce cards from the RTX 40 series on do not support P2P, and neither do pairs of
    different models. In a virtual machine, the hypervisor decides whether P2P is available. None of
    this needs a fix. Two identical data center GPUs under one PCIe root do support P2P. If the
    driver does not offer P2P between two such GPUs, the firmware, an IOMMU or a module option is
    blocking it, and cudadoctor reports a warning.

    To check by hand: `nvidia-smi topo -p2p r` shows the P2P status of all GPU pairs.

    Look-alikes: if the driver offers P2P but P2P transfers do not work, see nccl-p2p-broken. If the
    driver does not offer P2P, NCCL_P2P_DISABLE=1 has no effect.

    Fix: for GeForce cards and pairs of different models, there is nothing to fix. For data center
    GPUs, look for NVreg_RegistryDwords in /etc/modprobe.d, then check ACS in the firmware
    settings.
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
    return Found(
        evidence=(f"driver.pairs.{pairs.index(shown)}",),
        values={"first": shown.first, "second": shown.second, "reason": reason},
        severity=WARNING if odd else INFO,
        sure=not odd,
        remedies=allow_p2p(m) if odd else (),
    )


def _ought_to_work(pair: GpuPair, m: Machine, kb: Knowledge) -> bool:
    """Whether these are two alike data center GPUs, side by side, on real hardware."""
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
    title="P2P transfers between the GPUs fail: the ranks {what}",
)
def nccl_p2p_broken(m: Machine) -> Answer:
    """{between}, and data from one GPU does not reach the other. Set NCCL_P2P_DISABLE=1 to route
    the data through host memory, which is slower but correct.

    The first all-reduce hangs with every GPU at 100% utilization, or it returns wrong sums. To
    check by hand, run the same program with NCCL_P2P_DISABLE=1: if the program then works, P2P is
    broken.

    An IOMMU that translates addresses, or ACS on the PCIe bridges, routes data from one GPU to
    another through the root of the PCIe tree, where the data may be lost.

    Look-alikes: if the driver does not offer P2P between two GPUs, the cause is p2p-not-possible,
    and NCCL does not use P2P between them.

    Fix: as an immediate workaround, set NCCL_P2P_DISABLE=1. For a permanent fix, put the IOMMU into
    passthrough mode (`iommu=pt` on the kernel command line), or turn ACS off in the firmware if no
    virtual machine needs it.
    """
    stage = _ranks_that_failed(m)
    if (alone := _passed_without(m, "p2p")) is not None:
        return Found(
            evidence=(f"smoke.stages.{alone}",),
            values={
                "what": "communicate only with NCCL_P2P_DISABLE=1",
                "between": _between(m)[0] if _between(m)[1] else "The driver offers P2P",
            },
            confidence=CERTAIN,
            remedies=without_p2p(m, _between(m)[1], proven=False),
        )
    if stage is None or len(live_gpus(m)) < 2 or variable(m, "NCCL_P2P_DISABLE") == "1":
        return None
    pairs = need(m.driver.pairs, "driver.pairs")
    if not any(pair.p2p == "ok" and not pair.nvlink for pair in pairs):
        return None
    number, what = stage
    between, evidence = _between(m)
    refused = _refused_by_iommu(m) if (evidence or "").endswith(".iommu") else None
    return Found(
        evidence=(f"smoke.stages.{number}.detail", "driver.pairs", evidence, refused),
        values={"what": what, "between": between},
        why="The IOMMU translates the addresses of PCIe transfers, and it refused a transfer of a "
        "GPU, so data from one GPU does not reach the other."
        if refused
        else None,
        confidence=CERTAIN if refused else LIKELY if evidence else POSSIBLE,
        remedies=without_p2p(m, evidence, proven=refused is not None),
    )


def _refused_by_iommu(m: Machine) -> OptStr:
    """The kernel's line about a transfer of an NVIDIA GPU that the IOMMU refused."""
    places = {bus_key(device.address) for device in m.pci or () if device.vendor == "nvidia"}
    for number, line in enumerate(m.driver.log or ()):
        if _REFUSED.search(line) and places & {*map(bus_key, _ADDRESS.findall(line))}:
            return f"driver.log.{number}"
    return None


_REFUSED = re.compile(r"IO_PAGE_FAULT|DMAR: \[DMA ")
_ADDRESS = re.compile(r"\b(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d\b")


def _ranks_that_failed(m: Machine) -> tuple[int, str] | None:
    """The stage of the ranks, where it hung or gave wrong data, and how; None else."""
    cuda = m.smoke is not None and m.smoke.device.startswith("cuda")
    for number, stage in enumerate(m.smoke.stages if m.smoke and cuda else ()):
        if stage.name == "ddp" and (what := _how(stage)):
            return number, what
    return None


def _passed_without(m: Machine, transport: str) -> OptInt:
    """The stage in which the ranks passed without a transport of NCCL, after they had failed."""
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        if stage.name == f"ddp-without-{transport}" and stage.status == "passed":
            return number
    return None


def _how(stage: Stage) -> OptStr:
    text, failed = (stage.detail or "").lower(), stage.status == "failed"
    if failed and any(words in text for words in _UNEQUAL):
        return "compute wrong gradients"
    stuck = failed and "nccl" in text and any(words in text for words in _STUCK)
    return "hang" if (stuck or stage.status == "timed-out") and not _STATED.search(text) else None


def _between(m: Machine) -> tuple[str, OptStr]:
    """What stands between the GPUs, and the fact that shows it, where that explains much."""
    for field, value, what in (
        ("iommu", "translated", "An IOMMU translates the addresses of PCIe transfers"),
        ("acs", True, "ACS redirects PCIe transfers to the root of the PCIe tree"),
    ):
        for number, device in enumerate(m.pci or ()):
            if device.vendor == "nvidia" and getattr(device, field) == value:
                return what, f"pci.{number}.{field}"
    return "The driver offers P2P over PCIe", None


_TRANSPORTS = {
    "nvls": ("NVLink SHARP (NVLS)", "NCCL_NVLS_ENABLE", "0"),
    "ib": ("InfiniBand", "NCCL_IB_DISABLE", "1"),
}


@rule("nccl-other", title="NCCL works only without {transport}")
def nccl_transport(m: Machine) -> Answer:
    """The training step failed with NCCL's default settings, and passed with {setting}.

    NVLS needs a running fabric manager and an NVSwitch that has room for it. InfiniBand inside one
    machine is used only if the GPUs cannot reach each other in another way.

    Fix: set the variable as a workaround. Then find out why the transport fails: NCCL_DEBUG=WARN
    shows its first error.
    """
    for name, (transport, variable_name, value) in _TRANSPORTS.items():
        if (number := _passed_without(m, name)) is not None:
            return Found(
                evidence=(f"smoke.stages.{number}",),
                values={"transport": transport, "setting": f"{variable_name}={value}"},
                confidence=CERTAIN,
                remedies=set_variables(
                    "nccl-transport", f"Turn off {transport}", {variable_name: value}
                ),
            )
    return None


@rule(
    "nccl-other",
    title="NCCL failed between the GPUs in this machine: {words}",
)
def nccl_other(m: Machine) -> Answer:
    """Each GPU works on its own, but the ranks could not communicate during the training step.
    NCCL's own log shows which call failed.

    "unhandled system error" usually points to the network, shared memory or a resource limit.
    "internal error" often means that NCCL cannot read the PCIe tree. "remote process exited" means
    that another rank failed first; look at that rank's error.

    Fix: run the program again with NCCL_DEBUG=WARN. In the output of the rank that failed first,
    the first line with WARN says what is wrong.
    """
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        words = _NCCL.search(stage.detail or "")
        last = _LAST.search(stage.detail or "")
        if stage.name == "ddp" and stage.status == "failed" and words:
            return Found(
                evidence=(f"smoke.stages.{number}.detail",),
                # Without the file and line before it.
                values={"words": (last[1] if last else words[0]).strip().splitlines()[0][:120]},
                sure=False,
                yields_to=tuple(
                    cause for words, cause in _EXPLAINED if words in (stage.detail or "")
                ),
                remedies=set_variables(
                    "nccl-debug",
                    "Run the program again with NCCL logging enabled",
                    {"NCCL_DEBUG": "WARN"},
                ),
            )
    return None


@rule(
    "gpu-topology",
    title="GPU {first} and GPU {second} are attached to different CPUs",
    severity=INFO,
    essential=False,
)
def gpu_topology(m: Machine) -> Answer:
    """Data sent between these GPUs crosses the link between the CPUs, the slowest path in the
    machine. All dual-CPU boards are built this way; this is not a fault.

    GPU pairs connected by NVLink do not use the link between the CPUs, so cudadoctor does not
    report them.

    To check by hand: `nvidia-smi topo -m` shows all GPU pairs. SYS means that the GPUs are
    attached to different CPUs; NODE, PHB, PXB and PIX are closer connections.

    Fix: a job that needs only some of the GPUs runs faster if the GPUs it uses are all attached to
    the same CPU. Select such GPUs with CUDA_VISIBLE_DEVICES or through the scheduler.
    """
    pairs = need(m.driver.pairs, "driver.pairs") if len(live_gpus(m)) > 1 else ()
    for number, pair in enumerate(pairs):
        if pair.level == "system" and pair.nvlink is not True:
            return Found(
                evidence=(f"driver.pairs.{number}",),
                values={"first": pair.first, "second": pair.second},
            )
    return None

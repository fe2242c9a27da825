"""How do the GPUs of one machine reach each other?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.model.findings import Confidence, Severity
from cudadoctor.model.rule import Found, need, rule
from cudadoctor.plan.remedies import by_hand
from cudadoctor.plan.remedies.place import keeper_of
from cudadoctor.rules.evidence.signs import live_gpus

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import GpuPair, Machine, PciGpu, Stage

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
_STATED = re.compile(r"out of memory|no space|errno|killed by|import|interface", re.IGNORECASE)
"""Words of a failure that has a name of its own."""
_NCCL = re.compile(
    r"(?:unhandled (?:cuda|system) error|nccl \w+ error|internal error - please report"
    r"|ncclsystemerror|ncclinternalerror|ncclunhandledcudaerror|ncclremoteerror)[^\n;]*",
    re.IGNORECASE,
)


@rule(
    "p2p-not-possible",
    title="GPU {first} and GPU {second} do not reach each other's memory: {reason}",
    severity=Severity.INFO,
    essential=False,
    yields_to=("fabric-manager", "nvlink-down", "gpu-lost", "mig-misconfigured"),
)
def p2p_not_possible(m: Machine, kb: Knowledge) -> Found | None:
    """Copies between them go through the memory of the host, which is slower; NCCL sees to it.

    GeForce cards from the RTX 40 series on, and pairs of different models, have no P2P by design,
    and in virtual machines the hypervisor decides: there this is information, and nothing is to be
    done. Data-centre GPUs below one root of the PCI tree have it, and where the driver denies it to
    them, the firmware, an IOMMU or a setting of the module stands between: then it is a warning.

    `nvidia-smi topo -p2p r` shows all pairs. Told from nccl-p2p-broken, where the driver offers P2P
    and it does not work. NCCL_P2P_DISABLE=1 changes nothing here.
    """
    if len(live_gpus(m)) < 2 or any(gpu.mig for gpu in live_gpus(m)):
        return None
    pairs = need(m.driver.pairs, "driver.pairs")
    refused = [one for one in pairs if one.p2p not in (None, "ok")]
    if not refused:
        return None
    odd = [one for one in refused if _ought_to_work(one, m, kb)]
    shown = (odd or refused)[0]
    return Found(
        evidence=(f"driver.pairs.{pairs.index(shown)}",),
        values={
            "first": shown.first,
            "second": shown.second,
            "reason": _WORDS[shown.p2p or "unknown"],
        },
        severity=Severity.WARNING if odd else Severity.INFO,
        confidence=Confidence.LIKELY if odd else Confidence.CERTAIN,
        remedies=_open_the_way(m) if odd else (),
    )


def _ought_to_work(pair: GpuPair, m: Machine, kb: Knowledge) -> bool:
    """Whether these are two alike data-centre GPUs, side by side, on real hardware."""
    if m.platform.virtual or pair.level not in _NEAR or pair.p2p not in _BY_THE_BOARD:
        return False
    two = [gpu for gpu in live_gpus(m) if gpu.index in (pair.first, pair.second)]
    if any(gpu.virtualization in ("vgpu", "passthrough") for gpu in two):
        return False
    names = {gpu.name for gpu in two}
    model = kb.gpu_by_name(two[0].name or "") if len(names) == 1 else None
    return model is not None and model.data_center


def _open_the_way(m: Machine) -> tuple[Remedy, ...]:
    text = "Look for settings of the module in /etc/modprobe.d (NVreg_RegistryDwords), then at the "
    text += "firmware's settings for ACS and PCIe, and at a newer firmware of the board."
    return by_hand("allow-p2p", "Find what keeps the GPUs from P2P", text, keeper_of(m))


@rule(
    "nccl-p2p-broken",
    title="P2P between the GPUs does not work: the ranks {what}",
    yields_to=(
        "gpu-lost",
        "gpu-ecc",
        "gpu-unhealthy-hardware",
        "shm-too-small",
        "nccl-shadowed",
        "nccl-network-interface",
        "fabric-manager",
        "driver-bug",
    ),
)
def nccl_p2p_broken(m: Machine, kb: Knowledge) -> Found | None:
    """{between}, and what one GPU writes does not arrive at the other as it should.

    With an IOMMU that translates, or with ACS on the bridges, what one GPU sends to another takes
    the way to the root of the PCI tree and may be lost there: the first all-reduce hangs with every
    GPU at 100 %, or its sums are wrong. A pair of GPUs that the driver gives no P2P cannot show it.

    Proven where NCCL_P2P_DISABLE=1 cures it. That variable shows the cause and costs speed: it is
    not to stay. Cured by whoever runs the machine: the IOMMU in passthrough mode (`iommu=pt` on the
    kernel's command line), ACS off in the firmware where no virtual machine needs it.
    """
    stage = _ranks_that_failed(m)
    if stage is None or len(live_gpus(m)) < 2 or (m.env or {}).get("NCCL_P2P_DISABLE") == "1":
        return None
    number, what = stage
    offered = [one for one in need(m.driver.pairs, "driver.pairs") if one.p2p == "ok"]
    over_pcie = [one for one in offered if not one.nvlink]
    if not over_pcie:
        return None
    between, evidence, sure = _between(m)
    return Found(
        evidence=(f"smoke.stages.{number}.detail", "driver.pairs", *evidence),
        values={"what": what, "between": between},
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        remedies=_straight_way(m),
    )


def _ranks_that_failed(m: Machine) -> tuple[int, str] | None:
    """The stage of the ranks, where it hung or gave wrong data, and how; None else."""
    if m.smoke is None or not m.smoke.device.startswith("cuda"):
        return None
    for number, stage in enumerate(m.smoke.stages):
        if stage.name == "ddp" and (what := _how(stage)):
            return number, what
    return None


def _how(stage: Stage) -> str | None:
    text = (stage.detail or "").lower()
    if stage.status == "failed" and any(words in text for words in _UNEQUAL):
        return "computed wrong gradients"
    if stage.status == "timed-out" and not _STATED.search(text):
        return "hang"
    hung = stage.status == "failed" and any(words in text for words in _STUCK)
    return "hang" if hung and "nccl" in text and not _STATED.search(text) else None


def _between(m: Machine) -> tuple[str, tuple[str, ...], bool]:
    """What stands between the GPUs, the facts that show it, and whether that explains much."""
    here = [(n, one) for n, one in enumerate(m.pci or ()) if one.vendor == "nvidia"]
    for fits, words, field in (
        (_translated, "An IOMMU translates what the GPUs send each other", "iommu"),
        (_redirected, "ACS redirects what the GPUs send each other", "acs"),
    ):
        found = [n for n, one in here if fits(one)]
        if found:
            return words, (f"pci.{found[0]}.{field}",), True
    return "The driver offers P2P over PCIe", (), False


def _translated(one: PciGpu) -> bool:
    return one.iommu == "translated"


def _redirected(one: PciGpu) -> bool:
    return one.acs is True


def _straight_way(m: Machine) -> tuple[Remedy, ...]:
    text = "First a test: the same program with NCCL_P2P_DISABLE set to 1. Where that runs, put "
    text += "the IOMMU into passthrough mode (the kernel's option iommu=pt), then look at ACS in "
    text += "the firmware; virtual machines that are given devices need both as they are."
    return by_hand("p2p-way", "Give the GPUs a straight way to each other", text, keeper_of(m))


@rule(
    "gpu-topology",
    title="GPU {first} and GPU {second} sit at different processors",
    severity=Severity.INFO,
    essential=False,
)
def gpu_topology(m: Machine, kb: Knowledge) -> Found | None:
    """What they exchange crosses the link between the processors, the slowest way in the machine.

    It is how boards with two processors are built, and no fault. A job that needs a part of the
    GPUs is faster on those of one processor; CUDA_VISIBLE_DEVICES or the scheduler chooses them.
    Pairs with NVLink are not counted.

    `nvidia-smi topo -m` shows all pairs: SYS is this one, NODE and nearer are better.
    """
    if len(live_gpus(m)) < 2:
        return None
    far = [
        (n, one)
        for n, one in enumerate(need(m.driver.pairs, "driver.pairs"))
        if one.level == "system" and one.nvlink is not True
    ]
    if not far:
        return None
    number, pair = far[0]
    return Found(
        evidence=(f"driver.pairs.{number}",),
        values={"first": pair.first, "second": pair.second},
    )


@rule(
    "nccl-other",
    title="NCCL fails between the GPUs of this machine: {words}",
    yields_to=(
        "gpu-lost",
        "gpu-unhealthy-hardware",
        "shm-too-small",
        "nccl-shadowed",
        "nccl-network-interface",
        "nccl-p2p-broken",
        "fabric-manager",
        "driver-bug",
    ),
)
def nccl_other(m: Machine, kb: Knowledge) -> Found | None:
    """The ranks of the training step could not talk, and NCCL's own words are all that is known.

    Each GPU works alone. "unhandled system error" mostly means the network, shared memory or a
    limit, "internal error" a PCI tree that cannot be read, "remote process exited" another rank
    whose own first error counts.

    Cured by what its log names: NCCL_DEBUG=WARN makes it say which call failed, and where.
    """
    for number, stage in enumerate(m.smoke.stages if m.smoke else ()):
        text = stage.detail or ""
        if stage.name == "ddp" and stage.status == "failed" and _NCCL.search(text):
            say = "Run it again with NCCL_DEBUG set to WARN; the first line of the first rank "
            say += "that complains counts."
            return Found(
                evidence=(f"smoke.stages.{number}.detail",),
                values={"words": _first_words(text)},
                confidence=Confidence.LIKELY,
                remedies=by_hand("nccl-debug", "Let NCCL say what failed", say),
            )
    return None


def _first_words(text: str) -> str:
    """What NCCL says, without the file and line before it."""
    found = _NCCL.search(text)
    return (found[0] if found else text).strip().splitlines()[0][:120]


RULES = (p2p_not_possible, nccl_p2p_broken, nccl_other, gpu_topology)

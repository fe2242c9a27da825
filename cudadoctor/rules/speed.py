"""Is a GPU that works held back: by heat, power, its slot, its links, or a variable?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudadoctor.knowledge import Knowledge
from cudadoctor.model.findings import (
    CERTAIN,
    INFO,
    POSSIBLE,
    WARNING,
    Remedies,
)
from cudadoctor.model.machine import Gpu, Machine, Strings
from cudadoctor.model.rule import Answer, Found, need, rule
from cudadoctor.plan.remedies import by_hand, unset_variables
from cudadoctor.plan.remedies.process import keeper_of
from cudadoctor.rules.evidence.signs import bare, cuda_works, live_gpus

_SOFT_HEAT, _HARD_HEAT, _POWER_BRAKE = 0x20, 0x40, 0x80
_BITS_END = 0x1000
"""NVML's clock event bits all lie below this; a larger number is no set of them."""
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
_NO_GENERATION = 10
_BUSY_PERCENT, _FAST_STATE = 50, 2
_LOW_POWER = 0.75
_FIRST_WITH_TENSOR_CORES, _FIRST_WITH_TF32 = (7, 0), (8, 0)
_FAST_HALVES = frozenset({(5, 3), (6, 0), (6, 2)})
"""Without tensor cores, and twice as fast in float16 all the same: P100 and the first Tegras."""
_MANY = 4
_LAPTOP = ("laptop", "max-q", "mobile")


def _which(m: Machine, fits: Callable[[Gpu], bool]) -> list[tuple[int, Gpu]]:
    """The answering GPUs of which that is true, with their places in the list of facts."""
    live = live_gpus(m)
    return [(number, gpu) for number, gpu in enumerate(m.gpus or ()) if gpu in live and fits(gpu)]


def _paths(gpus: list[tuple[int, Gpu]], *fields: str) -> Strings:
    return tuple(
        f"gpus.{number}.{field}"
        for number, gpu in gpus[:4]
        for field in fields
        if getattr(gpu, field) is not None
    )


def _about(
    gpus: list[tuple[int, Gpu]], *fields: str, shows: dict[str, str] | None = None, **more: Any
) -> Answer:
    """What is found about these GPUs, with these of their facts as evidence; None without a GPU.

    shows: placeholder -> the fact of the first GPU that fills it. more: for Found.
    """
    if not gpus:
        return None
    values: dict[str, object] = {"which": [gpu.index for _, gpu in gpus]}
    values |= {name: getattr(gpus[0][1], field) for name, field in (shows or {}).items()}
    return Found(evidence=_paths(gpus, *fields), values=values, **more)


def _slowed(gpu: Gpu, bits: int) -> bool:
    return gpu.throttle is not None and gpu.throttle < _BITS_END and bool(gpu.throttle & bits)


@rule(
    "thermal-throttle",
    title="Heat holds down the clocks of GPU {which}",
    severity=WARNING,
)
def thermal_throttle(m: Machine) -> Answer:
    """The driver says that this GPU runs below its clocks now because it, or its memory, is hot.

    NVML's clock event bits 0x20 (software) and 0x40 (hardware) say so. The other bits are no fault:
    0x1 is idle, 0x4 the power limit under full load, 0x2 and 0x100 chosen clocks. The bits are of
    this moment; a short look at an idle GPU can miss it.

    Dust, fans, blocked air and a full case come first, then the room, then dried thermal paste or
    pads. On a laptop also its power profile.
    """
    hot = _which(m, lambda gpu: _slowed(gpu, _SOFT_HEAT | _HARD_HEAT))
    return _about(
        hot,
        "throttle",
        "temperature_c",
        "slowdown_c",
        sure=any(_slowed(gpu, _HARD_HEAT) for _, gpu in hot),
        remedies=by_hand(
            "cool-gpu",
            "Cool the GPU",
            "Clean its fans and filters, let air in and out of the case, and watch the "
            "temperature with `nvidia-smi dmon -s pc` while a training runs.",
            keeper_of(m),
        ),
    )


@rule(
    "gpu-unhealthy-hardware",
    title="A power brake holds down the clocks of GPU {which}",
    severity=WARNING,
)
def power_brake(m: Machine) -> Answer:
    """The power supply, or the rack, tells this GPU to draw less, and it runs far below its clocks.

    NVML's clock event bit 0x80 says so. It comes from outside the GPU: a supply that is overloaded
    or has lost one of its halves, a cable that is missing, or a limit of the whole rack. The
    ordinary power limit is bit 0x4, which is normal under load.
    """
    return _about(
        _which(m, lambda gpu: _slowed(gpu, _POWER_BRAKE)),
        "throttle",
        "power_w",
        "power_limit_w",
        remedies=by_hand(
            "check-power",
            "Check the power supply",
            (
                "Check the power supplies, the GPU's power cables and the power limit of the "
                "rack; the log of the management controller (BMC) names the part."
            ),
            keeper_of(m),
        ),
    )


@rule(
    "power-limited",
    title="The power limit of GPU {which} is {limit} W, and {default} W is its default",
    severity=INFO,
)
def power_limited(m: Machine) -> Answer:
    """Somebody lowered it: full load runs slower than on the same GPU elsewhere, and cooler.

    It is a choice of whoever runs the machine and no fault; it is told only below three quarters of
    the default, and not for laptops, whose limit moves with battery and profile.
    """
    low = _which(m, _is_limited)
    if not low:
        return None
    first = low[0][1]
    return Found(
        evidence=_paths(low, "power_limit_w", "power_default_w"),
        values={
            "which": [gpu.index for _, gpu in low],
            "limit": f"{first.power_limit_w:g}",
            "default": f"{first.power_default_w:g}",
        },
    )


def _is_limited(gpu: Gpu) -> bool:
    limit, default = gpu.power_limit_w or 0, gpu.power_default_w or 0
    return 0 < limit < _LOW_POWER * default and not _in_laptop(gpu)


def _in_laptop(gpu: Gpu) -> bool:
    return any(word in (gpu.name or "").lower() for word in _LAPTOP)


@rule(
    "clocks-capped",
    title="The clock of GPU {which} is set to {now} MHz, and {usual} MHz is its default",
    severity=INFO,
)
def clocks_capped(m: Machine) -> Answer:
    """Somebody set its application clocks lower: full load runs slower than it could here.

    `nvidia-smi -ac` does that, and `nvidia-smi -rac` takes it back; both are for whoever runs the
    machine. It is a choice and no fault. GPUs that have no application clocks say nothing here.
    """
    fields = {"now": "sm_clock_set_mhz", "usual": "sm_clock_default_mhz"}
    low = _which(m, lambda gpu: 0 < (gpu.sm_clock_set_mhz or 0) < (gpu.sm_clock_default_mhz or 0))
    return _about(low, *fields.values(), shows=fields)


@rule(
    "pcie-degraded",
    title="The PCIe link of GPU {which} is {now} lanes wide, and {most} are possible",
    severity=WARNING,
)
def pcie_degraded(m: Machine, kb: Knowledge) -> Answer:
    """Copies between the computer and the GPU run at that share of their speed.

    A link keeps its width when it idles, so a narrow one is narrow for good: a card that does not
    sit well, dirt, a riser, or lanes that the board shares with another slot. Laptops, boards with
    several GPUs and virtual machines do so by design: there it is information, unless one lane
    alone carries a GPU at work. The generation falls when the GPU idles, so it counts only under
    load. A GPU in one package with its processor (GB10, Grace Hopper, Jetson) has no link to judge.

    Seat the card again, take out the riser, use the slot next to the processor, and look at the
    board's table of shared lanes and at the slot's bifurcation in the firmware.
    """
    fields = {"now": "pcie_width", "most": "pcie_width_max"}
    narrow = _which(m, lambda gpu: _is_narrow(gpu) and has_link(gpu, m, kb))
    if all(_by_design(gpu, m, kb) for _, gpu in narrow):
        return _about(narrow, *fields.values(), shows=fields, severity=INFO)
    return _about(
        narrow,
        *fields.values(),
        shows=fields,
        remedies=_reseat(
            m,
            "Seat the card again and without a riser, in the slot that has all lanes; the board's "
            "manual says which slots share theirs. In the firmware (BIOS), the bifurcation of that "
            "slot must not be split (x16, not x4x4x4x4).",
        ),
    )


def _reseat(m: Machine, text: str) -> Remedies:
    return by_hand("pcie-slot", "Give the GPU its full PCIe link", text, keeper_of(m))


def _is_narrow(gpu: Gpu) -> bool:
    now, most = gpu.pcie_width or 0, gpu.pcie_width_max or 0
    return now < most and {now, most} <= _WIDTHS


def has_link(gpu: Gpu, m: Machine, kb: Knowledge) -> bool:
    """Whether it has a PCIe link of its own: one in a package with the processor has none."""
    board = kb.board(gpu.name or "")
    return not m.platform.jetson and (board is None or board.pcie)


def _by_design(gpu: Gpu, m: Machine, kb: Knowledge) -> bool:
    if gpu.pcie_width == 1 and _is_busy(gpu):
        return False
    if _in_laptop(gpu) or m.platform.virtual or gpu.virtualization in ("vgpu", "passthrough"):
        return True
    half = 2 * (gpu.pcie_width or 0) >= (gpu.pcie_width_max or 0)
    model = kb.gpu_by_name(gpu.name or "")
    return half and len(m.gpus or ()) > 1 and not (model is not None and model.data_center)


@rule(
    "pcie-degraded",
    title="The PCIe link of GPU {which} stays at generation {now} of {most} under load",
    severity=WARNING,
)
def pcie_slow_under_load(m: Machine, kb: Knowledge) -> Answer:
    """A busy GPU brings its link to full speed; this one stays below, and copies take longer.

    Counted only where the GPU is at work in its highest performance states: an idle link clocks
    down to save power. Where the slot itself allows less than the GPU could do, that is information
    and no fault.
    """
    slow, capped = [], []
    for number, gpu in _which(m, lambda gpu: has_link(gpu, m, kb)):
        now, most = gpu.pcie_generation or 0, gpu.pcie_generation_max or 0
        if 0 < now < most and _is_busy(gpu):
            slow.append((number, gpu))
        if 0 < most < (gpu.pcie_generation_gpu_max or 0) < _NO_GENERATION:
            capped.append((number, gpu))
    if slow:
        fields = {"now": "pcie_generation", "most": "pcie_generation_max"}
        return _about(
            slow,
            *fields.values(),
            "utilization",
            shows=fields,
            sure=False,
            remedies=_reseat(
                m,
                "Look at the generation that the firmware sets for that slot, then at the riser "
                "and the seat of the card.",
            ),
        )
    fields = {"now": "pcie_generation_max", "most": "pcie_generation_gpu_max"}
    return _about(
        capped,
        *fields.values(),
        shows=fields,
        title="The slot of GPU {which} allows PCIe generation {now}, and the GPU could use {most}",
        severity=INFO,
    )


def _is_busy(gpu: Gpu) -> bool:
    busy, state = gpu.utilization or 0, gpu.performance_state
    return state is not None and state <= _FAST_STATE and _BUSY_PERCENT <= busy <= 100


@rule("tf32-off", title="NVIDIA_TF32_OVERRIDE=0 switches TF32 off", severity=INFO)
def tf32_off(m: Machine) -> Answer:
    """float32 products and convolutions run without tensor cores, whatever the program asks for.

    Ampere and newer GPUs have TF32, which keeps float32's range with fewer digits; torch uses it
    for convolutions, and for matrix products where the program allows it. The variable overrides
    both. It is a choice where every digit counts. Mixed precision (bfloat16, float16) is not
    touched by it.
    """
    able = _which(m, lambda gpu: _capability(gpu) >= _FIRST_WITH_TF32)
    if need(m.env, "env").get("NVIDIA_TF32_OVERRIDE", "").strip() != "0" or not able:
        return None
    return Found(
        evidence=("env.NVIDIA_TF32_OVERRIDE", *_paths(able[:1], "capability")),
        remedies=unset_variables(m, "NVIDIA_TF32_OVERRIDE"),
    )


def _capability(gpu: Gpu) -> tuple[int, int]:
    known = gpu.capability
    return (known.major, known.minor) if known is not None else (0, 0)


@rule(
    "amp-no-benefit",
    title="GPU {which} has no tensor cores",
    severity=INFO,
)
def amp_no_benefit(m: Machine, kb: Knowledge) -> Answer:
    """Mixed precision (torch.autocast) saves memory there and makes hardly anything faster.

    Tensor cores came with Volta (7.0); the GTX 16 series is younger and has none either. bfloat16
    needs Ampere (8.0) to be fast. Nothing is broken: float32 is the right choice on such a GPU
    where the memory suffices.
    """
    if m.torch.build != "cuda" or not cuda_works(m):
        return None
    without = _which(m, lambda gpu: _lacks_tensor_cores(gpu, kb) and _is_served(gpu, m, kb))
    return _about(without, "name", "capability")


def _is_served(gpu: Gpu, m: Machine, kb: Knowledge) -> bool:
    """Whether this torch has code for the GPU: else its speed is not the question."""
    device, torch = gpu.capability, m.torch
    return device is not None and any(
        kb.serves(code, device, torch.version, torch.cuda) for code in torch.archs or ()
    )


def _lacks_tensor_cores(gpu: Gpu, kb: Knowledge) -> bool:
    capability = _capability(gpu)
    model = kb.gpu_by_name(gpu.name or "") if capability == (7, 5) else None
    old = (0, 0) < capability < _FIRST_WITH_TENSOR_CORES and capability not in _FAST_HALVES
    return old or (model is not None and model.tensor_cores is False)


@rule(
    "nvlink-down",
    title="{count} NVLink links of GPU {which} are down",
    severity=WARNING,
)
def nvlink_down(m: Machine) -> Answer:
    """GPUs exchange gradients over these links; with some down that is slower, or NCCL fails.

    On a board with NVSwitch every link is in use, so one that is down is a fault. Elsewhere a link
    without a bridge or a peer is down by design, and this is information. In MIG mode links are off
    and are not counted.

    `nvidia-smi nvlink --status` lists them. A reset of all GPUs of the board or a reboot trains
    them anew; where one stays down, the hardware.
    """
    broken = _which(m, lambda gpu: bool(gpu.nvlink_down) and not gpu.mig)
    if not broken:
        return None
    switched = bool(m.driver.fabric.nvswitches)
    remedies = by_hand(
        "nvlink",
        "Bring the NVLink links up",
        "Run `nvidia-smi nvlink --status`, reboot the machine while nobody uses it, and "
        "give what stays down to whoever services the hardware.",
        "admin",
    )
    return Found(
        evidence=(*_paths(broken, "nvlink_down"), "driver.fabric.nvswitches"),
        values={
            "which": [gpu.index for _, gpu in broken],
            "count": sum(gpu.nvlink_down or 0 for _, gpu in broken),
        },
        severity=WARNING if switched else INFO,
        confidence=CERTAIN if switched else POSSIBLE,
        remedies=remedies if switched else (),
    )


@rule("mixed-gpus", title="The GPUs are of different models: {models}", severity=INFO)
def mixed_gpus(m: Machine) -> Answer:
    """Training on all of them keeps the pace of the slowest and the memory of the smallest.

    CUDA numbers the fastest first, and nvidia-smi by slot, unless CUDA_DEVICE_ORDER=PCI_BUS_ID is
    set: cuda:0 may then be another card than GPU 0 of nvidia-smi.
    """
    named = _which(m, lambda gpu: bool(gpu.name))
    models = list(dict.fromkeys(gpu.name for _, gpu in named))
    if len(models) < 2:
        return None
    return Found(evidence=_paths(named, "name"), values={"models": models})


@rule("persistence-off", title="Persistence mode is off on {count} GPUs", severity=INFO)
def persistence_off(m: Machine) -> Answer:
    """Each program that starts while no other runs waits for all GPUs to be started: seconds each.

    Without it the driver shuts an unused GPU down. With one GPU nobody notices; it is told from
    four on. The daemon nvidia-persistenced keeps them started, and is whoever runs the machine's
    to enable.
    """
    off = _which(m, lambda gpu: gpu.persistence is False)
    if len(off) < _MANY or not bare(m):
        return None
    return Found(evidence=_paths(off, "persistence"), values={"count": len(off)})

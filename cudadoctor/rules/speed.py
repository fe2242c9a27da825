"""Is a GPU that works held back: by heat, power, its slot, its links, or a variable?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

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
from cudadoctor.plan.remedies import cool_gpus, on_hardware, restart, unset_variables
from cudadoctor.plan.remedies.process import indexes_of, smi_ids
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
_HOT = 75
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
    values: dict[str, object] = {"which": indexes_of(gpu for _, gpu in gpus)}
    values |= {name: getattr(gpus[0][1], field) for name, field in (shows or {}).items()}
    return Found(evidence=_paths(gpus, *fields), values=values, **more)


def _slowed(gpu: Gpu, bits: int) -> bool:
    return gpu.throttle is not None and gpu.throttle < _BITS_END and bool(gpu.throttle & bits)


@rule(
    "thermal-throttle",
    title="Overheating is slowing down GPU {which}",
    severity=WARNING,
)
def thermal_throttle(m: Machine, kb: Knowledge) -> Answer:
    """The GPU or its memory is too hot, so the GPU is running below its normal clock speed.

    `nvidia-smi -q -d PERFORMANCE` shows "SW Thermal Slowdown" or "HW Thermal Slowdown" as active
    (NVML's clock event bits 0x20 and 0x40). The output shows only the current state, so you can
    miss the slowdown if you check while the GPU is idle.

    Look-alikes: it is normal to see "Idle", "SW Power Cap" under full load, or application clocks
    that were set on purpose.

    Fix: clean the fans and filters, improve the airflow through the case, and cool the room. On an
    old card, replace the thermal paste or pads. On a laptop, also check the power profile.
    """
    hot = _which(m, lambda gpu: _slowed(gpu, _SOFT_HEAT | _HARD_HEAT))
    if not hot:
        return None  # and no remedy is loaded
    warmest = max((gpu.temperature_c or 0 for _, gpu in hot), default=0)
    found = _about(
        hot,
        "throttle",
        "temperature_c",
        "slowdown_c",
        title="Overheating is slowing down GPU {which} ({now} °C)" if warmest >= _HOT else None,
        sure=any(_slowed(gpu, _HARD_HEAT) for _, gpu in hot),
        remedies=cool_gpus(m, [gpu for _, gpu in hot], fans=not _all_passive(hot, kb)),
    )
    return found and replace(found, values=found.values | {"now": warmest})


_WITH_A_FAN = re.compile(r"\bK\d0c\b|\bDGXS\b|\bDGX Station\b|\bActive\b|\bMobile\b")
"""Boards of data centers that are not cooled by the air of a server."""


def _all_passive(gpus: list[tuple[int, Gpu]], kb: Knowledge) -> bool:
    """Whether these are boards for servers, which have no fan of their own."""
    names = [gpu.name or "" for _, gpu in gpus]
    models = [kb.gpu_by_name(name) for name in names]
    return all(model is not None and model.data_center for model in models) and not any(
        map(_WITH_A_FAN.search, names)
    )


@rule(
    "gpu-unhealthy-hardware",
    title="An external power brake signal is slowing down GPU {which}",
    severity=WARNING,
)
def power_brake(m: Machine) -> Answer:
    """An external signal makes the GPU draw less power and run far below its normal clock speed.

    `nvidia-smi -q -d PERFORMANCE` shows "HW Power Brake Slowdown" as active (NVML's clock event bit
    0x80). Common causes are an overloaded power supply, a failed unit in a redundant pair of power
    supplies, a missing power cable, or a power limit for the whole rack.

    Look-alikes: hitting the GPU's own power limit ("SW Power Cap") is normal under full load.

    Fix: check the power supplies, the cables and the rack's power limit. The log of the management
    controller (BMC) shows which part is faulty.
    """
    return _about(
        _which(m, lambda gpu: _slowed(gpu, _POWER_BRAKE)),
        "throttle",
        "power_w",
        "power_limit_w",
        remedies=on_hardware(
            m,
            "check-power",
            "Check the power supply",
            "Check the power supplies, the GPU's power cables and the rack's power limit. On a "
            "server, `sudo ipmitool sel list` shows what the management controller (BMC) logged.",
        ),
    )


@rule(
    "power-limited",
    title="Power limit on GPU {which}: {limit} W instead of {default} W (undo: `{command}`)",
    severity=INFO,
)
def power_limited(m: Machine) -> Answer:
    """Under full load, the GPU runs slower than it could. Someone set this power limit; it is not a
    fault.

    Power limits are usually lowered to reduce heat or noise, or because the power supply is too
    weak. cudadoctor reports a power limit below three quarters of the default, except on laptops,
    where the limit changes with the battery and the power profile. `nvidia-smi -q -d POWER` shows
    all limits.

    Fix: to set the power limit of GPU 0 to 450 W, run `sudo nvidia-smi -i 0 -pl 450`.
    """
    low = _which(m, _is_limited)
    if not low:
        return None
    first = low[0][1]
    default = f"{first.power_default_w:g}"
    alike = [gpu for _, gpu in low if gpu.power_default_w == first.power_default_w]
    return Found(
        evidence=_paths(low, "power_limit_w", "power_default_w"),
        values={
            "which": indexes_of(gpu for _, gpu in low),
            "limit": f"{first.power_limit_w:g}",
            "default": default,
            "command": _as_root(m, f"nvidia-smi -i {smi_ids(m, alike)} -pl {default}"),
        },
    )


def _as_root(m: Machine, command: str) -> str:
    """The command as a title shows it."""
    bare_command = m.platform.root or m.platform.system == "Windows"
    return command if bare_command else f"sudo {command}"


def _is_limited(gpu: Gpu) -> bool:
    limit, default = gpu.power_limit_w or 0, gpu.power_default_w or 0
    return 0 < limit < _LOW_POWER * default and not _in_laptop(gpu)


def _in_laptop(gpu: Gpu) -> bool:
    return any(word in (gpu.name or "").lower() for word in _LAPTOP)


@rule(
    "clocks-capped",
    title="Clock limit on GPU {which}: {now} MHz instead of {usual} MHz (undo: `{command}`)",
    severity=INFO,
)
def clocks_capped(m: Machine) -> Answer:
    """Under full load, the GPU runs slower than it could. Someone set this clock limit; it is not a
    fault.

    The application clocks were lowered with `nvidia-smi -ac`. `nvidia-smi -q -d CLOCK` shows all
    clock frequencies. cudadoctor does not check GPUs that have no application clocks.

    Fix: to restore the default clocks of GPU 0, run `sudo nvidia-smi -i 0 -rac`.
    """
    fields = {"now": "sm_clock_set_mhz", "usual": "sm_clock_default_mhz"}
    low = _which(m, lambda gpu: 0 < (gpu.sm_clock_set_mhz or 0) < (gpu.sm_clock_default_mhz or 0))
    found = _about(low, *fields.values(), shows=fields)
    command = _as_root(m, f"nvidia-smi -i {smi_ids(m, [gpu for _, gpu in low])} -rac")
    return found and replace(found, values=found.values | {"command": command})


@rule(
    "pcie-degraded",
    title="Only {now} of {most} PCIe lanes are in use on GPU {which}",
    severity=WARNING,
)
def pcie_degraded(m: Machine, kb: Knowledge) -> Answer:
    """Copies between host memory and the GPU are {times} times slower than they could be.

    `nvidia-smi -q | grep -A8 "Link Width"` shows the number of lanes. Unlike the link speed, the
    number of lanes does not drop when the GPU is idle, so a low number is not caused by power
    saving. Common causes are a poorly seated card, dirty contacts, a riser, or a slot that shares
    its lanes with another slot.

    Look-alikes: laptops, virtual machines and boards with several GPUs have fewer lanes by design.
    On these systems, the finding is for information only, unless a busy GPU has only one lane. The
    PCIe generation drops when the GPU is idle, so only the generation under load matters. A GPU in
    the same package as its CPU (GB10, Grace Hopper, Jetson) has no PCIe link to check.

    Fix: reseat the card, remove any riser, and use the slot closest to the CPU. The motherboard's
    manual shows which slots share lanes. In the BIOS, set the slot's bifurcation to x16.
    """
    fields = {"now": "pcie_width", "most": "pcie_width_max"}
    narrow = _which(m, lambda gpu: _is_narrow(gpu) and has_link(gpu, m, kb))
    usual = all(_by_design(gpu, m, kb) for _, gpu in narrow)
    found = _about(
        narrow,
        *fields.values(),
        shows=fields,
        severity=INFO if usual else None,
        why="Laptops, virtual machines and boards with several GPUs often have fewer lanes."
        if usual
        else None,
        remedies=() if usual else _reseat(m, _SEAT),
    )
    shares = ((gpu.pcie_width_max or 1) / (gpu.pcie_width or 1) for _, gpu in narrow)
    return found and replace(found, values=found.values | {"times": f"{max(shares):.2g}"})


_SEAT = (
    "Reseat the card, without a riser, in a slot with all PCIe lanes connected; the motherboard "
    "manual lists these slots. In the BIOS, set the slot's bifurcation to x16."
)


def _reseat(m: Machine, text: str) -> Remedies:
    return on_hardware(m, "pcie-slot", "Restore the GPU's full PCIe bandwidth", text)


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
    title="The PCIe link to GPU {which} runs at generation {now} instead of {most} under load",
    severity=WARNING,
)
def pcie_slow_under_load(m: Machine, kb: Knowledge) -> Answer:
    """Copies between host memory and the GPU take longer than necessary.

    When a GPU is busy, its PCIe link should run at full speed. When the GPU is idle, the link slows
    down to save power, so cudadoctor checks only busy GPUs in their highest performance states.
    `nvidia-smi -q | grep -A8 "PCIe Generation"` shows the current and the maximum PCIe generation.
    If the slot itself does not support the GPU's PCIe generation, the finding is for information
    only.

    Fix: in the BIOS, set the slot to its highest PCIe generation. Then check the riser, if there is
    one, and make sure that the card is seated correctly.
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
                "In the BIOS, set the slot's PCIe generation to Auto or to the highest setting "
                "available. Then check the riser, and make sure that the card is fully seated.",
            ),
        )
    fields = {"now": "pcie_generation_max", "most": "pcie_generation_gpu_max"}
    return _about(
        capped,
        *fields.values(),
        shows=fields,
        title="GPU {which} is in a PCIe generation {now} slot, but supports generation {most}",
        why="Copies to the GPU are slower than they would be with a newer slot. The GPU itself "
        "is fine.",
        severity=INFO,
    )


def _is_busy(gpu: Gpu) -> bool:
    busy, state = gpu.utilization or 0, gpu.performance_state
    return state is not None and state <= _FAST_STATE and _BUSY_PERCENT <= busy <= 100


@rule(
    "tf32-off",
    title="NVIDIA_TF32_OVERRIDE=0 slows down float32 (undo: `unset NVIDIA_TF32_OVERRIDE`)",
    severity=INFO,
)
def tf32_off(m: Machine) -> Answer:
    """The NVIDIA_TF32_OVERRIDE variable keeps float32 training from using the tensor cores.

    Ampere and newer GPUs can compute in TF32, which has the range of float32 but lower precision.
    torch uses TF32 for convolutions and, if the program allows it, for matrix products.
    NVIDIA_TF32_OVERRIDE takes precedence over torch's TF32 settings. It does not affect mixed
    precision (bfloat16, float16).

    Fix: run `unset NVIDIA_TF32_OVERRIDE`. Keep the variable only if you need the full precision of
    float32.
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
    title="No tensor cores on GPU {which}",
    severity=INFO,
)
def amp_no_benefit(m: Machine, kb: Knowledge) -> Answer:
    """On this GPU, mixed precision (torch.autocast) saves memory but provides almost no speedup.

    Tensor cores were introduced with Volta (compute capability 7.0); the GTX 16 series is newer but
    has none. bfloat16 is fast only on Ampere (8.0) and newer. The lack of a speedup is not a fault.

    Fix: train in float32 if the model fits in the GPU's memory, and use torch.autocast only to save
    memory. No setting makes mixed precision faster on this GPU; that takes a GPU with tensor cores.
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
    title="{count} NVLink links on GPU {which} are down",
    severity=WARNING,
)
def nvlink_down(m: Machine) -> Answer:
    """The GPUs exchange gradients over NVLink, so when links are down, training is slower or NCCL
    fails.

    `nvidia-smi nvlink --status` shows the state of the NVLink links. On a board with NVSwitch,
    every link is in use, so a link that is down indicates a fault. In MIG mode, NVLink is off, so
    cudadoctor ignores its links.

    Look-alikes: without NVSwitch, an NVLink link that has no bridge or peer is down by design, and
    the finding is informational only.

    Fix: stop all jobs and restart the machine to retrain the NVLink links. If a link stays down,
    have the hardware checked.
    """
    broken = _which(m, lambda gpu: bool(gpu.nvlink_down) and not gpu.mig)
    if not broken:
        return None
    switched = bool(m.driver.fabric.nvswitches)
    count = sum(gpu.nvlink_down or 0 for _, gpu in broken)
    return Found(
        evidence=(*_paths(broken, "nvlink_down"), "driver.fabric.nvswitches"),
        values={"which": indexes_of(gpu for _, gpu in broken), "count": count},
        title="An NVLink link on GPU {which} is down" if count == 1 else None,
        why=None if switched else "Without NVSwitch, links that have no bridge or peer stay down.",
        severity=WARNING if switched else INFO,
        confidence=CERTAIN if switched else POSSIBLE,
        remedies=restart(m, _STAYS_DOWN) if switched else (),
    )


_STAYS_DOWN = (
    "If `nvidia-smi nvlink --status` still shows a link as down, have the hardware checked."
)


@rule("mixed-gpus", title="The GPUs are different models: {models}", severity=INFO)
def mixed_gpus(m: Machine) -> Answer:
    """Training on all GPUs runs at the speed of the slowest GPU and is limited by the GPU with the
    least memory.

    By default, CUDA lists the fastest GPU first, while nvidia-smi sorts GPUs by PCI address.
    cuda:0 can therefore be a different card than GPU 0 in nvidia-smi.

    Fix: train only on GPUs of the same model (select them with CUDA_VISIBLE_DEVICES), or give the
    slower GPUs smaller batches. To make CUDA list GPUs in the same order as nvidia-smi, run `export
    CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    """
    named = _which(m, lambda gpu: bool(gpu.name))
    models = list(dict.fromkeys((gpu.name or "").removeprefix("NVIDIA ") for _, gpu in named))
    if len(models) < 2:
        return None
    return Found(evidence=_paths(named, "name"), values={"models": models})


@rule(
    "persistence-off",
    title="Persistence mode is off on {count} GPUs (enable: `{command}`)",
    severity=INFO,
)
def persistence_off(m: Machine) -> Answer:
    """The first program after an idle period has to wait until all GPUs have initialized.

    Without persistence mode, the driver shuts down unused GPUs, and initializing each GPU again
    takes several seconds. The delay is hardly noticeable with one GPU, so this finding is reported
    only for four or more GPUs.

    Fix: `sudo nvidia-smi -pm 1` keeps all GPUs initialized until the next restart. To keep
    persistence mode on permanently, run the nvidia-persistenced service with the --persistence-mode
    option.
    """
    off = _which(m, lambda gpu: gpu.persistence is False)
    if len(off) < _MANY or not bare(m):
        return None
    values = {"count": len(off), "command": _as_root(m, "nvidia-smi -pm 1")}
    return Found(evidence=_paths(off, "persistence"), values=values)

"""On what it is measured: the device that a guest may use, and what the tables know of it. Pure."""

from typing import Any

import msgspec
from packaging.version import Version

from cudadoctor.bench.judging import Peaks
from cudadoctor.bench.techniques import Ground
from cudadoctor.knowledge import Knowledge
from cudadoctor.model.machine import Gpu
from cudadoctor.model.versions import version_of
from cudadoctor.smoke import short_bus_id, skipped
from cudadoctor.smoke.inside.spec import choose

REACHED, REACHED_BY_A_COPY = 0.6, 0.7
"""Part of a data sheet's figure that a large product, or a large copy, reaches on such a board."""
NOT_COMPILED = "torch.compile compiles nothing, and its figures are of that"
FALSIFIED = {
    "CUDA_LAUNCH_BLOCKING=1": "every operation waits for the GPU, and the figures are of that",
    "TORCHDYNAMO_DISABLE=1": NOT_COMPILED,
    "TORCH_COMPILE_DISABLE=1": NOT_COMPILED,
    "NVIDIA_TF32_OVERRIDE=0": "nothing is computed in TF32, whatever a technique asks for",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1": "TF32 is the default here: your scripts have already what"
    " tf32 gains below",
}


class NotMeasured(Exception):  # noqa: N818 - told in one sentence
    """Why nothing can be measured."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The device. name, total_bytes: of the GPU, None on a CPU."""

    device: str
    name: str | None = None
    capability: str | None = None
    total_bytes: int | None = None
    notes: tuple[str, ...] = ()


def place_of(look: dict[str, Any], asked: str | None, gpus: tuple[Gpu, ...] | None) -> Place:
    """The first GPU that nobody else is using, or what was asked for; else the CPU.

    Raises NotMeasured where what was asked for cannot be had.
    """
    chosen = choose(asked or "", skipped(gpus), look)
    if chosen.error:
        raise NotMeasured(chosen.error)
    notes = tuple(f"GPU {index} is left alone: {reason}" for index, reason in chosen.skipped)
    for setting in look["environment"]:
        why = FALSIFIED.get(setting, "")
        if why and (chosen.devices or why == NOT_COMPILED):
            notes += (f"{setting} is set: {why}",)
    if not chosen.devices:
        if look["error"]:
            notes += (f"torch sees no GPU: {look['error']}",)
        return Place(device="cpu", notes=notes)
    index = chosen.devices[0]
    known = next(device for device in look["devices"] if device["index"] == index)
    bus_id = known["bus_id"]
    modes = {short_bus_id(gpu.bus_id): gpu.compute_mode for gpu in gpus or ()}
    if bus_id and modes.get(bus_id) == "exclusive":
        why = (
            f"GPU {index} is in the compute mode exclusive: one process may use it at a time, and"
            " the bench compares several; whoever administers it can allow that for the while with"
            f" nvidia-smi -i {bus_id} -c DEFAULT"
        )
        if look["count"] > 1:
            why += "; or take another with --device cuda:N"
        raise NotMeasured(why)
    return Place(
        device=f"cuda:{index}",
        name=known["name"],
        capability=known["capability"],
        total_bytes=known["total_bytes"],
        notes=notes,
    )


def ground_of(look: dict[str, Any], place: Place) -> Ground:
    """What decides where a technique can work. compiler: C for a GPU, C++ for a CPU."""
    gpu = place.device != "cpu"
    return Ground(
        gpu=gpu,
        capability=version_of(place.capability),
        torch=version_of(look["torch"].partition("+")[0]) or Version("2.4"),
        compiler=bool(look["c_compiler" if gpu else "compiler"]),
        triton=look["triton"],
        cores=look["cores"],
        forks=look["forks"],
        cpu_bf16=look["cpu_bf16"],
    )


def peaks_of(place: Place, knowledge: Knowledge, workload: str) -> Peaks | None:
    """The most that the maker says of this GPU; None where the tables do not name it.

    torch computes convolutions in TF32 where the GPU has it, and products in fp32.
    """
    if place.name is None or " MIG " in place.name:
        return None  # a slice has a part of what the card has
    known = knowledge.peaks(place.name)
    if known is None:
        return None
    fp32 = known.fp32_tflops
    tflops = (known.tf32_tflops or fp32) if workload == "cnn" else fp32
    if tflops is None:
        return None
    return Peaks(tflops * 1e12, known.bandwidth_gb_s * 1e9, "by its data sheet")


def believed(table: Peaks | None, measured: Peaks | None, workload: str) -> Peaks | None:
    """The table's, but where what was measured is far below it: boards of one name may differ.

    measured: a large product in fp32 and a large copy. It says nothing of the convolutions, for
    which the table gives TF32.
    """
    if table is None or measured is None:
        return table or measured
    less_flops = workload != "cnn" and measured.flops < REACHED * table.flops
    less_bytes = measured.bytes_s < REACHED_BY_A_COPY * table.bytes_s
    if not less_flops and not less_bytes:
        return table
    flops = measured.flops if less_flops else table.flops
    bytes_s = measured.bytes_s if less_bytes else table.bytes_s
    return Peaks(flops, bytes_s, "as measured here, far below its data sheet")

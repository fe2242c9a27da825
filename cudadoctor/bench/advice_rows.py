"""The rows of the advice: what is expected of which machine, and the recipe that shows it. Pure.

No row holds a number of its own: what a technique is worth is measured, never promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.model.machine import Gpu, Machine

SMALL_BYTES = 4_000_000_000
SMALL_SHM_BYTES = 1 << 30
FP8_FROM, COMPILE_FROM = Version("8.9"), Version("7.0")
_LAPTOP = ("laptop", "mobile", "max-q", "notebook")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a GPU here; None not known."""

    name: str
    capability: Version | None
    tensor_cores: bool | None
    bf16: bool | None
    tf32: bool | None
    memory_bytes: int | None
    laptop: bool


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows look at. cards: None where the GPUs are not known, () where there are none."""

    cards: tuple[Card, ...] | None
    system: str | None
    wsl: bool
    shm_bytes: int | None
    cpus: int | None

    def every(self, test: Callable[[Card], bool | None]) -> bool:
        """Whether it is known of each GPU, and there is one."""
        return bool(self.cards) and all(test(one) is True for one in self.cards or ())

    def values(self) -> dict[str, str]:
        names = list(dict.fromkeys(one.name for one in self.cards or ()))
        shm = self.shm_bytes or 0
        return {
            "gpu": ", ".join(names),
            "count": str(len(self.cards or ())),
            "size": f"{shm / 2**20:.0f} MiB",
            "cpus": str(self.cpus or ""),
        }


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice. pays_in: "time" is taken back where the bench found no gain."""

    id: str
    text: str
    why: str
    when: Callable[[Seen], bool]
    recipe: str | None = None
    techniques: tuple[str, ...] = ()
    pays_in: Literal["time", "memory", "care"] = "time"


def seen_of(machine: Machine, kb: Knowledge) -> Seen:
    """What the rows look at, from the facts and the tables."""
    gpus = machine.gpus
    return Seen(
        cards=None if gpus is None else tuple(_card(one, kb) for one in gpus),
        system=machine.platform.system,
        wsl=bool(machine.platform.wsl),
        shm_bytes=machine.limits.shm_bytes,
        cpus=machine.limits.cpus,
    )


def _card(gpu: Gpu, kb: Knowledge) -> Card:
    model = kb.gpu_by_name(gpu.name) if gpu.name else None
    if model is None and gpu.device_id:
        same = kb.gpus_by_pci(gpu.device_id)
        model = same[0] if len(same) == 1 else None
    capability = gpu.capability or (model.capability if model else None)
    name = gpu.name or (model.name if model else "GPU")
    return Card(
        name=name,
        capability=capability,
        tensor_cores=_tensor_cores(model, capability),
        bf16=_since_ampere(capability),
        tf32=_since_ampere(capability),
        memory_bytes=gpu.memory_bytes,
        laptop=any(word in name.lower() for word in _LAPTOP),
    )


def _tensor_cores(model: GpuModel | None, capability: Version | None) -> bool | None:
    """By the model; of 7.5 some have none, so that only a known model decides."""
    if model is not None and model.tensor_cores is not None:
        return model.tensor_cores
    if capability is None or capability.release[:2] == (7, 5):
        return None
    return capability >= Version("7.0")


def _since_ampere(capability: Version | None) -> bool | None:
    return None if capability is None else capability >= Version("8.0")


def _any(seen: Seen) -> bool:
    return bool(seen.cards)


def _none(seen: Seen) -> bool:
    return seen.cards == ()


def _some_without_bf16(one: Card) -> bool | None:
    return one.tensor_cores and one.bf16 is False


def _since(least: Version) -> Callable[[Card], bool]:
    return lambda one: one.capability is not None and one.capability >= least


def _small(one: Card) -> bool:
    return one.memory_bytes is not None and one.memory_bytes < SMALL_BYTES


def _little_shm(seen: Seen) -> bool:
    known = seen.shm_bytes is not None and 0 <= seen.shm_bytes < SMALL_SHM_BYTES
    return known and seen.system == "Linux"


ROWS: tuple[Row, ...] = (
    Row(
        id="bf16",
        text="Train in bf16 with autocast",
        why="The {gpu} multiplies bf16 on tensor cores, and bf16 has the range of fp32: "
        "no loss scaling is needed.",
        when=lambda seen: seen.every(lambda one: one.bf16),
        recipe="amp_bf16",
        techniques=("amp-bf16",),
    ),
    Row(
        id="tf32",
        text="Allow TF32 for what stays in fp32",
        why="The {gpu} multiplies fp32 matrices on tensor cores once "
        'torch.set_float32_matmul_precision("high") allows it, with fewer digits.',
        when=lambda seen: seen.every(lambda one: one.tf32),
        recipe="tf32",
        techniques=("tf32",),
    ),
    Row(
        id="fp16",
        text="Train in fp16 with autocast and GradScaler, not in bf16",
        why="The {gpu} has tensor cores for fp16 and none for bf16.",
        when=lambda seen: seen.every(_some_without_bf16),
        recipe="amp_fp16",
        techniques=("amp-fp16",),
    ),
    Row(
        id="fp16-for-memory",
        text="Use fp16 to save memory, not to save time",
        why="The {gpu} has no tensor cores: fp16 is not expected to be faster there, "
        "but what is kept for the backward pass takes less room.",
        when=lambda seen: seen.every(lambda one: one.tensor_cores is False),
        recipe="amp_fp16",
        techniques=("amp-fp16",),
        pays_in="memory",
    ),
    Row(
        id="compile",
        text="Try torch.compile",
        why="It fuses operators and takes work from Python; the {gpu} is new enough for the "
        "compiler behind it. It pays back its compiling in long runs with fixed shapes.",
        when=lambda seen: seen.every(_since(COMPILE_FROM)),
        recipe="torch_compile",
        techniques=("compile", "compile-reduce-overhead", "compile-max-autotune"),
    ),
    Row(
        id="channels-last",
        text="Use channels-last with convolutional networks",
        why="Convolutions on tensor cores read that order of memory without turning it around.",
        when=lambda seen: seen.every(lambda one: one.tensor_cores),
        recipe="channels_last",
        techniques=("channels-last",),
    ),
    Row(
        id="fused-optimiser",
        text="Use the fused form of the optimiser",
        why="One kernel updates many parameters, where the plain loop starts several for each.",
        when=_any,
        recipe="fused_optimizers",
        techniques=("fused-optimizer",),
    ),
    Row(
        id="loader",
        text="Load the data with several workers and pinned memory",
        why="A GPU that waits for its next batch does nothing; how many workers are enough "
        "depends on the data.",
        when=_any,
        recipe="dataloader",
        techniques=("loader-workers", "pinned-memory"),
        pays_in="care",  # the bench's data is not the user's: it takes nothing back
    ),
    Row(
        id="fp8",
        text="For very large models, look at fp8 outside of torch's core",
        why="The {gpu} has tensor cores for fp8, but autocast does not know it: a library of its "
        "own, such as Transformer Engine or torchao, brings it.",
        when=lambda seen: seen.every(_since(FP8_FROM)),
        pays_in="care",
    ),
    Row(
        id="small-memory",
        text="Use a small batch, gradient accumulation and activation checkpointing",
        why="The {gpu} has less than 4 GB of memory.",
        when=lambda seen: seen.every(_small),
        recipe="activation_checkpointing",
        techniques=("activation-checkpointing",),
        pays_in="memory",
    ),
    Row(
        id="several-gpus",
        text="Use DistributedDataParallel under torchrun, not DataParallel",
        why="DataParallel drives all {count} GPUs from the threads of one Python process and "
        "copies the model to them at every step.",
        when=lambda seen: len(seen.cards or ()) > 1,
        recipe="ddp",
        pays_in="care",
    ),
    Row(
        id="laptop",
        text="Train with the charger connected",
        why="The {gpu} is a laptop's: on battery its power and clock are held down.",
        when=lambda seen: any(one.laptop for one in seen.cards or ()),
        pays_in="care",
    ),
    Row(
        id="wsl-files",
        text="Keep the data on the Linux side of WSL",
        why="Files under /mnt/c are fetched from Windows one by one, and loader workers wait "
        "for them.",
        when=lambda seen: seen.wsl,
        recipe="dataloader",
        pays_in="care",
    ),
    Row(
        id="little-shm",
        text="Give /dev/shm more room, or use fewer loader workers",
        why="Loader workers hand over their batches through /dev/shm, which has {size} here; "
        "in a container --shm-size or --ipc=host gives more.",
        when=_little_shm,
        recipe="dataloader",
        pays_in="care",
    ),
    Row(
        id="windows-loader",
        text="Keep loader workers alive with persistent_workers=True",
        why="On Windows each worker is a new Python that imports the script again, at every epoch "
        "unless they persist; the script needs its __main__ guard.",
        when=lambda seen: seen.system == "Windows",
        recipe="dataloader",
        pays_in="care",
    ),
    Row(
        id="cpu-threads",
        text="Give torch as many threads as there are cores",
        why="Without a GPU the cores do all the work; {cpus} CPUs are allotted here, and "
        "torch.get_num_threads() says how many torch takes.",
        when=lambda seen: _none(seen) and seen.cpus is not None,
        pays_in="care",
    ),
    Row(
        id="cpu-compile",
        text="Try torch.compile on the CPU",
        why="It fuses operators, so that memory is read less often; it needs a C++ compiler.",
        when=_none,
        recipe="torch_compile",
        techniques=("compile", "compile-reduce-overhead", "compile-max-autotune"),
    ),
    Row(
        id="cpu-channels-last",
        text="Try channels-last with convolutional networks on the CPU",
        why="The CPU's convolutions are written for that order of memory.",
        when=_none,
        recipe="channels_last",
        techniques=("channels-last",),
    ),
    Row(
        id="cpu-bf16",
        text="Measure bf16 on this CPU before it is used",
        why="It is expected to be faster only where the CPU has AMX or AVX512-BF16, which is not "
        "known here.",
        when=_none,
        recipe="amp_bf16",
        techniques=("amp-bf16",),
    ),
)

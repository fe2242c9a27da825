"""What is tried: each technique with what it changes, where it works and what it costs. Pure."""

from collections.abc import Iterable
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from packaging.version import Version

from cudadoctor.bench.results import Kind
from cudadoctor.model.machine import OptVersion, Strings

T = TypeVar("T", bound=Struct)
Value = str | int | bool
Losses = Literal["steps", "mean", "first"]
WORKLOADS = ("cnn", "encoder", "decoder")
UNITS = {"cnn": "images", "encoder": "sequences", "decoder": "sequences"}
EIGHT = Version("8.0")
"""Compute capability: tensor cores multiply TF32 and bf16."""
NOTHING = "nothing"
"""The baseline under another name: what it seems to gain is noise."""


class Ground(Struct, frozen=True, kw_only=True):
    """What decides where a technique can work. capability: of the GPU, None on a CPU.

    forks: a loader's workers can be forked, as on Linux. cpu_bf16: the CPU multiplies bf16 itself.
    """

    gpu: bool
    capability: OptVersion = None
    torch: Version = Version("2.4")
    compiler: bool = False
    triton: bool = False
    cores: int = 1
    forks: bool = True
    cpu_bf16: bool = False


class Technique(Struct, frozen=True, kw_only=True):
    """One technique.

    changes: settings that differ from the baseline's. recipe: the script in recipes/train that
    shows it, "" none. cost: what it costs, in a sentence. code: the lines that switch it on.
    tolerance: how far its losses may be from the baseline's, as a part of them; losses: which of
    them are compared (each step, the mean of all where the same samples come in another order, the
    first where the batch is another).
    helps: where the time must go for it to help. group: only one of a group at a time. clashes:
    techniques it cannot be combined with. needs: see `why_not`. since: the first torch that has it,
    on any device, on a CPU, or for a workload on a GPU. prepares: its first steps compile, record
    or fill something, and that time is reported separately.
    """

    name: str
    changes: dict[str, Value] = {}
    recipe: str = ""
    cost: str = "None."
    code: Strings = ()
    helps: tuple[Kind, ...] = ()
    tolerance: float = 0.01
    losses: Losses = "steps"
    group: str = ""
    clashes: Strings = ()
    needs: Strings = ()
    since: dict[str, str] = {}
    workloads: Strings = WORKLOADS
    prepares: bool = False

    @property
    def script(self) -> str:
        return f"recipes/train/{self.recipe}"


def table(name: str, kind: type[T]) -> tuple[T, ...]:
    """The rows of a table that lies beside this module."""
    text = files(__package__).joinpath(f"{name}.toml").read_bytes()
    rows = msgspec.toml.decode(text, type=dict[str, tuple[kind, ...]])  # type: ignore[valid-type]
    return next(iter(rows.values()))


TECHNIQUES = table("techniques", Technique)
BY_NAME = {technique.name: technique for technique in TECHNIQUES}
KNOWN = {**BY_NAME, NOTHING: Technique(name=NOTHING)}
ORDER = (*KNOWN,)


def why_not(technique: Technique, ground: Ground, workload: str) -> str:
    """Why a technique cannot be tried here, "" where it can."""
    if workload not in technique.workloads:
        return f"this technique does not apply to {workload}"
    gpu, torch = ground.gpu, ground.torch
    capability = ground.capability or Version("0")
    lacking = (
        ("cuda", not gpu, "this technique needs a GPU"),
        ("cpu", gpu, "torch already uses this technique by default on a GPU"),
        ("products", gpu, "on a GPU, this technique does the same thing as tf32"),
        ("cc8", capability < EIGHT, "TF32 needs a GPU with compute capability 8.0 or higher"),
        (
            "forks",
            not ground.forks,
            "the benchmark's DataLoader workers need fork, which this system does not support",
        ),
        ("cores", ground.cores < 2, "DataLoader workers need at least two CPU cores"),
        ("compiles", torch < Version("2.0"), f"torch {torch} does not include torch.compile"),
        (
            "compiles",
            not ground.compiler,
            f"torch.compile needs a {'C' if gpu else 'C++'} compiler, but none is on PATH",
        ),
        (
            "compiles",
            gpu and not ground.triton,
            "torch.compile needs triton, which is not installed",
        ),
        (
            "compiles",
            ground.capability is not None and capability < Version("7.0"),
            "triton needs a GPU with compute capability 7.0 or higher",
        ),
    )
    why = next((why for need, here, why in lacking if here and need in technique.needs), "")
    # This torch may lack it.
    since = technique.since.get(workload if gpu else "cpu") or technique.since.get("any")
    older = (
        f"this technique needs torch {since} or newer" if since and torch < Version(since) else ""
    )
    return why or older


def settings_of(names: Strings) -> dict[str, Value]:
    """What these techniques change together."""
    return {key: value for name in names for key, value in KNOWN[name].changes.items()}


def fits(name: str, chosen: Strings) -> bool:
    """Whether a technique can be added to those that are chosen."""
    new = KNOWN[name]
    return not any(
        other.name == name
        or (new.group and new.group == other.group)
        or other.name in new.clashes
        or name in other.clashes
        for other in (KNOWN[known] for known in chosen)
    )


def tolerance_of(names: Strings) -> float:
    """How far the losses of a combination may be off: the parts add up."""
    return max(0.01, sum(KNOWN[name].tolerance for name in names))


def losses_of(names: Strings) -> Losses:
    """Which losses of a combination can be compared."""
    kinds = {KNOWN[name].losses for name in names}
    return "first" if "first" in kinds else "mean" if "mean" in kinds else "steps"


def slowness(name: str) -> int:
    """0 where a process with it starts like any other; else how long it takes, as a factor."""
    changes = KNOWN[name].changes
    if changes.get("compile") == "max-autotune":
        return 3
    return 1 if "compile" in changes or changes.get("batch") == 0 else 0


def ordered(names: Iterable[str], kind: Kind, ground: Ground) -> list[str]:
    """What can help there first, then torch.compile, which brings much for its time on a GPU.

    Late what takes long or what another does better, and last what cannot help by what it is.
    Where it is not known where the time goes, it is taken to go to computing.
    """
    likely = "compute" if kind == "not known" else kind

    modern = ground.capability is not None and ground.capability >= EIGHT
    late = set() if ground.gpu else {"compile"}
    if kind != "host overhead":
        late |= {"larger-batch", "compile-reduce-overhead", "cuda-graphs"}
    if modern:
        late.add("amp-fp16")
    hopeless = {name for name in names if not KNOWN[name].helps}
    if not ground.gpu and not ground.cpu_bf16:
        hopeless |= {"amp-bf16", "matmul-precision"}
    if ground.capability is not None and not modern:
        hopeless.add("amp-bf16")

    def rank(name: str) -> int:
        if name in hopeless:
            return 5
        if name == "compile-max-autotune":
            return 4
        if name in late:
            return 3
        if likely in KNOWN[name].helps:
            return 1 if slowness(name) else 0
        return 1 if name == "compile" else 2

    return sorted(names, key=lambda name: (rank(name), ORDER.index(name)))

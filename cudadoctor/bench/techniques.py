"""What is tried: each technique with what it changes, where it works and what it costs. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec
from packaging.version import Version

from cudadoctor.bench.results import Kind

Value = str | int | bool
Losses = Literal["steps", "mean", "first"]
WORKLOADS = ("cnn", "encoder", "decoder")
UNITS = {"cnn": "images", "encoder": "sequences", "decoder": "sequences"}
NOTHING = "nothing"
"""The baseline under another name: what it seems to gain is noise."""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What decides where a technique can work. capability: of the GPU, None on a CPU.

    forks: a loader's workers can be forked, as on Linux. cpu_bf16: the CPU multiplies bf16 itself.
    """

    gpu: bool
    capability: Version | None = None
    torch: Version = Version("2.4")
    compiler: bool = False
    triton: bool = False
    cores: int = 1
    forks: bool = True
    cpu_bf16: bool = False


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """One technique.

    changes: settings that differ from the baseline's. recipe: the script in recipes/train that
    shows it, "" none. cost: what it costs, in a sentence. code: the lines that switch it on.
    tolerance: how far its losses may be from the baseline's, as a part of them; losses: which of
    them are compared (each step, the mean of all where the same samples come in another order, the
    first where the batch is another).
    helps: where the time must go for it to help. group: only one of a group at a time. clashes:
    techniques it cannot be combined with. needs: see `why_not`. prepares: its first steps compile,
    record or fill something, and that time is told apart.
    """

    name: str
    changes: dict[str, Value]
    recipe: str
    cost: str
    code: tuple[str, ...] = ()
    helps: tuple[Kind, ...] = ()
    tolerance: float = 0.01
    losses: Losses = "steps"
    group: str = ""
    clashes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    workloads: tuple[str, ...] = WORKLOADS
    prepares: bool = False


_BUSY: tuple[Kind, ...] = ("compute", "memory bandwidth")
_HOST: tuple[Kind, ...] = ("host overhead",)
_DATA: tuple[Kind, ...] = ("data loading",)

TECHNIQUES: tuple[Technique, ...] = (
    Technique(
        name="amp-bf16",
        changes={"amp": "bfloat16"},
        recipe="amp_bf16.py",
        cost="8 bits of precision in matrix products; no scaler is needed.",
        code=(
            "with torch.autocast(device.type, dtype=torch.bfloat16):",
            "    loss = loss_of(model(x), y)",
        ),
        helps=_BUSY,
        tolerance=0.05,
        group="precision",
    ),
    Technique(
        name="amp-fp16",
        changes={"amp": "float16"},
        recipe="amp_fp16.py",
        cost="A narrow range: the loss is scaled, and a step that overflows is left out.",
        code=(
            'scaler = torch.amp.GradScaler("cuda")',
            'with torch.autocast("cuda", dtype=torch.float16):',
            "    loss = loss_of(model(x), y)",
            "scaler.scale(loss).backward()",
            "scaler.step(optimizer)",
            "scaler.update()",
        ),
        helps=_BUSY,
        tolerance=0.05,
        # A step that overflows is left out, and from there all losses are one step late.
        losses="mean",
        group="precision",
        clashes=("cuda-graphs",),
        needs=("cuda",),
    ),
    Technique(
        name="tf32",
        changes={"matmul": "high"},
        recipe="tf32.py",
        cost="10 bits of precision in fp32 matrix products.",
        code=('torch.set_float32_matmul_precision("high")',),
        helps=_BUSY,
        tolerance=0.02,
        group="matmul",
        needs=("cc8",),
    ),
    Technique(
        name="matmul-precision",
        changes={"matmul": "medium"},
        recipe="tf32.py",
        cost="8 bits of precision in fp32 matrix products where the device has bf16.",
        code=('torch.set_float32_matmul_precision("medium")',),
        helps=_BUSY,
        tolerance=0.05,
        group="matmul",
        needs=("products",),
    ),
    Technique(
        name="compile",
        changes={"compile": "default"},
        recipe="torch_compile.py",
        cost="The first step compiles, and so does every new shape.",
        code=("model = torch.compile(model)",),
        helps=("memory bandwidth", "host overhead", "compute"),
        tolerance=0.02,
        group="compile",
        needs=("compiles",),
        prepares=True,
    ),
    Technique(
        name="compile-reduce-overhead",
        changes={"compile": "reduce-overhead"},
        recipe="torch_compile.py",
        cost="Compiles longer, and keeps memory for the CUDA graphs that it records.",
        code=('model = torch.compile(model, mode="reduce-overhead")',),
        helps=("host overhead", "memory bandwidth"),
        tolerance=0.02,
        group="compile",
        needs=("cuda", "compiles"),
        prepares=True,
    ),
    Technique(
        name="compile-max-autotune",
        changes={"compile": "max-autotune"},
        recipe="torch_compile.py",
        cost="Compiles for minutes: it measures many kernels of every matrix product.",
        code=('model = torch.compile(model, mode="max-autotune")',),
        helps=_BUSY,
        tolerance=0.02,
        group="compile",
        needs=("cuda", "compiles"),
        prepares=True,
    ),
    Technique(
        name="cuda-graphs",
        changes={"graphs": True},
        recipe="cuda_graphs.py",
        cost="Shapes are fixed, and nothing in a step may wait for the GPU.",
        helps=_HOST,
        tolerance=0.01,
        group="compile",
        clashes=("amp-fp16", "shorter-sequences"),
        needs=("cuda",),
        prepares=True,
    ),
    Technique(
        name="channels-last",
        changes={"channels_last": True},
        recipe="channels_last.py",
        cost="Layers that know only the other order convert at every step.",
        code=(
            "model = model.to(memory_format=torch.channels_last)",
            "x = x.to(device, memory_format=torch.channels_last)",
        ),
        helps=_BUSY,
        tolerance=0.02,
        workloads=("cnn",),
    ),
    Technique(
        name="cudnn-benchmark",
        changes={"cudnn_benchmark": True},
        recipe="channels_last.py",
        cost="Every new shape is measured once; which kernel is taken can differ between runs.",
        code=("torch.backends.cudnn.benchmark = True",),
        helps=_BUSY,
        tolerance=0.02,
        needs=("cuda",),
        workloads=("cnn",),
        prepares=True,
    ),
    Technique(
        name="sdpa",
        changes={"attention": "sdpa"},
        recipe="",
        cost="No attention weights to look at.",
        code=("torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)",),
        helps=("memory bandwidth", "compute"),
        tolerance=0.01,
        workloads=("encoder", "decoder"),
    ),
    Technique(
        name="fused-optimizer",
        changes={"optimizer": "fused"},
        recipe="fused_optimizers.py",
        cost="None that is known; gradients must lie on one kind of device.",
        code=("torch.optim.AdamW(model.parameters(), fused=True)",),
        helps=("host overhead", "memory bandwidth"),
        group="optimizer",
    ),
    Technique(
        name="foreach-optimizer",
        changes={"optimizer": "foreach"},
        recipe="fused_optimizers.py",
        cost="Memory for copies of the size of the parameters.",
        code=("torch.optim.AdamW(model.parameters(), foreach=True)",),
        helps=("host overhead", "memory bandwidth"),
        group="optimizer",
        needs=("cpu",),
    ),
    Technique(
        name="loader-workers",
        changes={"workers": -1},
        recipe="dataloader.py",
        cost="Processes that need memory and shared memory of their own.",
        code=("DataLoader(dataset, num_workers=4, persistent_workers=True)",),
        helps=_DATA,
        needs=("forks", "cores"),
    ),
    Technique(
        name="cached-data",
        changes={"cached": True},
        recipe="cached_data.py",
        cost="The decoded data must fit into memory.",
        helps=_DATA,
        workloads=("cnn", "encoder"),
        prepares=True,
    ),
    Technique(
        name="pinned-memory",
        changes={"pinned": True},
        recipe="dataloader.py",
        cost="Memory that the system cannot move or swap out.",
        code=(
            "DataLoader(dataset, pin_memory=True)",
            "x = x.to(device, non_blocking=True)",
        ),
        helps=(*_DATA, *_HOST),
        needs=("cuda",),
    ),
    Technique(
        name="prefetch-to-device",
        changes={"prefetch": True},
        recipe="prefetch.py",
        cost="One more batch in the GPU's memory.",
        helps=(*_DATA, *_HOST),
        needs=("cuda",),
    ),
    Technique(
        name="larger-batch",
        changes={"batch": 0},
        recipe="largest_batch.py",
        cost="Another optimisation: fewer steps an epoch, and another learning rate.",
        helps=("host overhead", "memory bandwidth", "compute"),
        tolerance=0.15,
        losses="first",
        group="batch",
        prepares=True,
    ),
    Technique(
        name="shorter-sequences",
        changes={"lengths": "bucketed"},
        recipe="sequence_length.py",
        cost="The longest 5 % are cut off, and batches are no longer drawn freely.",
        helps=_BUSY,
        tolerance=0.20,
        losses="mean",
        clashes=("cuda-graphs",),
        workloads=("encoder",),
    ),
    Technique(
        name="gradient-accumulation",
        changes={"accumulate": 4},
        recipe="gradient_accumulation.py",
        cost="Time for memory: four small passes a step in place of one.",
        helps=(),
        tolerance=0.10,
        group="batch",
    ),
    Technique(
        name="activation-checkpointing",
        changes={"checkpointing": True},
        recipe="activation_checkpointing.py",
        cost="Time for memory: the forward pass is computed twice.",
        code=("x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",),
        helps=(),
    ),
)
BY_NAME = {one.name: one for one in TECHNIQUES}
CONTROL = Technique(name=NOTHING, changes={}, recipe="", cost="None.", helps=())

_NEEDS = {
    "cuda": "it is about CUDA, and this is a CPU",
    "cpu": "it is torch's default on a GPU already",
    "products": "on a GPU it allows TF32 and nothing else, as tf32 does",
    "cc8": "TF32 needs a GPU of compute capability 8.0 or newer",
    "compiles": "",
    "forks": "the bench starts a loader's workers by fork, and this system has none",
    "cores": "the loader would have no core of its own: there is one core",
}


def technique(name: str) -> Technique:
    """The technique of that name, or the control."""
    return CONTROL if name == NOTHING else BY_NAME[name]


def why_not(one: Technique, ground: Ground, workload: str) -> str:
    """Why a technique cannot be tried here, "" where it can."""
    if workload not in one.workloads:
        return f"it does not touch the {workload}"
    for need in one.needs:
        if not _met(need, ground):
            return _no_compiler(ground) if need == "compiles" else _NEEDS[need]
    return _too_old(one, ground, workload)


def _met(need: str, ground: Ground) -> bool:
    if need == "cc8":
        return ground.gpu and ground.capability is not None and ground.capability >= Version("8.0")
    if need == "compiles":
        return not _no_compiler(ground)
    if need in ("cpu", "products"):
        return not ground.gpu
    return {"cuda": ground.gpu, "cores": ground.cores > 1, "forks": ground.forks}[need]


def _no_compiler(ground: Ground) -> str:
    """Why torch.compile cannot work, "" where it can."""
    if ground.torch < Version("2.0"):
        return f"torch {ground.torch} has no torch.compile"
    if not ground.compiler:
        language = "C" if ground.gpu else "C++"
        return f"torch.compile needs a {language} compiler, and none is on PATH"
    if not ground.gpu:
        return ""
    if not ground.triton:
        return "torch.compile needs triton for a GPU, and it is not installed"
    if ground.capability is not None and ground.capability < Version("7.0"):
        return "triton needs a GPU of compute capability 7.0 or newer"
    return ""


def _too_old(one: Technique, ground: Ground, workload: str) -> str:
    """Why this torch lacks it. The cnn trains with SGD, whose fused form came later."""
    since = {"sdpa": "2.0", "amp-fp16": "2.3", "activation-checkpointing": "1.11"}.get(one.name)
    if one.name == "fused-optimizer":
        since = ("2.3" if workload == "cnn" else "2.0") if ground.gpu else "2.4"
    if since is not None and ground.torch < Version(since):
        return f"it needs torch {since} or newer"
    return ""


def settings_of(names: tuple[str, ...]) -> dict[str, Value]:
    """What these techniques change together."""
    changed: dict[str, Value] = {}
    for name in names:
        changed |= technique(name).changes
    return changed


def fits(name: str, chosen: tuple[str, ...]) -> bool:
    """Whether a technique can be added to those that are chosen."""
    new = technique(name)
    for other in map(technique, chosen):
        if other.name == name or (new.group and new.group == other.group):
            return False
        if other.name in new.clashes or name in other.clashes:
            return False
    return True


def tolerance_of(names: tuple[str, ...]) -> float:
    """How far the losses of a combination may be off: the parts add up."""
    return max(0.01, sum(technique(name).tolerance for name in names))


def losses_of(names: tuple[str, ...]) -> Losses:
    """Which losses of a combination can be compared."""
    kinds = {technique(name).losses for name in names}
    return "first" if "first" in kinds else "mean" if "mean" in kinds else "steps"


def slowness(name: str) -> int:
    """0 where a process with it starts like any other; else how long it takes, as a factor."""
    changes = technique(name).changes
    if changes.get("compile") == "max-autotune":
        return 3
    return 1 if "compile" in changes or changes.get("batch") == 0 else 0


def ordered(names: tuple[str, ...], kind: Kind, ground: Ground) -> tuple[str, ...]:
    """What can help there first, then torch.compile, which brings much for its time on a GPU.

    Late what takes long or what another does better, and last what cannot help by what it is.
    Where it is not known where the time goes, it is taken to go to computing.
    """
    likely: Kind = "compute" if kind == "not known" else kind

    def rank(name: str) -> tuple[int, int]:
        one = technique(name)
        place = [*BY_NAME, NOTHING].index(name)
        if _hopeless(one, ground):
            return 5, place
        if name == "compile-max-autotune":
            return 4, place
        if _late(one, kind, ground):
            return 3, place
        if name == NOTHING or likely in one.helps:
            return (1 if slowness(name) else 0), place
        return (1 if name == "compile" else 2), place

    return tuple(sorted(names, key=rank))


def _late(one: Technique, kind: Kind, ground: Ground) -> bool:
    """What is begun only where there is time for it."""
    if one.name == "compile":
        return not ground.gpu
    if one.name == "amp-fp16":
        return ground.capability is not None and ground.capability >= Version("8.0")
    late = one.name in ("larger-batch", "compile-reduce-overhead", "cuda-graphs")
    return late and kind != "host overhead"


def _hopeless(one: Technique, ground: Ground) -> bool:
    """It can be run, and nothing speaks for it."""
    if not one.helps:
        return True
    if one.name in ("amp-bf16", "matmul-precision") and not ground.gpu:
        return not ground.cpu_bf16
    if one.name == "amp-bf16" and ground.capability is not None:
        return ground.capability < Version("8.0")
    return False

"""The stages: what is run on a device, checked against float64, the CPU or another run."""

import importlib
import os
import sysconfig
import warnings
import zlib
from datetime import timedelta
from functools import partial
from math import ceil, inf, sqrt
from typing import Any, Iterable, List, Tuple

import torch
from torch import nn
from torch.backends import cudnn
from torch.nn.functional import conv2d, cross_entropy

from . import room, wire
from .spec import COMPILE, FULL, WITHOUT, Fields, Spec, Task

StageResult = Tuple[str, Fields]


class Verdict(Exception):
    """How a stage ends that got to judge; the text says why."""

    status = ""


class Skip(Verdict):
    """This torch, device or system cannot do it."""

    status = "skipped"


class Wrong(Verdict):
    """It ran and the answer is wrong; the text says by how much."""

    status = "failed"


class Place:
    """The device of the stages, if it can be had at all, and the folder they may write to.

    Exact arithmetic, one thread, and on a GPU no more than a guest's share. fault: what a test
    planted in the stage, "" nothing.
    """

    fault = ""

    def __init__(self, task: Task, spec: Spec) -> None:
        self.spec = spec
        self.rank, self.world = task.rank or 0, task.world
        self.device = torch.device("cpu" if spec.pretend else task.device)
        self.gpu = self.device.type == "cuda"
        self.multiprocessors = 0
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        cudnn.allow_tf32 = False
        cudnn.deterministic = True
        cudnn.benchmark = False
        if self.gpu:
            torch.cuda.set_device(self.device)
            about = torch.cuda.get_device_properties(self.device)
            self.multiprocessors, total = about.multi_processor_count, about.total_memory
            # Nobody could say beforehand how full the GPU is: look before taking any of it.
            if spec.careful and hasattr(torch.cuda, "mem_get_info"):
                free, _ = room.free_bytes(self.device.index)
                if free < total * (1 - FULL):
                    raise Skip("%d%% of its memory is in use" % (100 - 100 * free // total))
            # Half a GiB is left for the context, cuDNN and NCCL, which the allocator cannot count.
            torch.cuda.set_per_process_memory_fraction(min(1.0, (512 << 20) / total), self.device)

    @property
    def capability(self) -> Tuple[int, int]:
        """The compute capability of the GPU."""
        major, minor = torch.cuda.get_device_capability(self.device)
        return major, minor

    def computes(self, name: str) -> bool:
        """Whether a GPU of this generation has that format; a CPU is asked elsewhere."""
        if not self.gpu or torch.version.hip:
            return True
        return self.capability >= {"bf16": (8, 0), "fp16": (5, 3)}.get(name, (0, 0))

    def proven(self, *tensors: Any) -> None:
        """Fail a stage whose result lies elsewhere than on the device that it was to prove."""
        claimed = torch.device("cuda:0") if self.fault == "elsewhere" else self.device
        for tensor in tensors:
            if tensor.device != claimed:
                raise Wrong("the result is on %s, not on %s" % (tensor.device, claimed))

    def settle(self) -> None:
        """Wait for the GPU, so that a fault shows in the stage that made it."""
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def file(self, name: str) -> str:
        """A path in the scratch folder, after proving that this takes a file."""
        folder = self.spec.scratch
        if not folder:
            raise Skip("there is no writable temporary folder")
        path = os.path.join(folder, "room-%d" % os.getpid())
        try:
            with open(path, "wb") as handle:
                handle.write(b"\0" * (1 << 20))
            os.remove(path)
        except OSError as problem:
            refusal = "cannot write to the temporary folder %s: %s" % (folder, problem.strerror)
            raise Skip(refusal) from None
        return os.path.join(folder, name)


# --- memory, a matrix product and a convolution -----------------------------------------------

# The largest error allowed, in units of the root mean square of the exact result: the rounding of
# sums and of the result. TF32 and bf16 are off by 1e-3 and more, which no fp32 is allowed.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}
# How far the results may be from the exact ones on average, as a share: rounding has no direction.
GAINS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 2e-3}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE = 1024
TILE = 128
# Tiles of a product for every multiprocessor of a GPU: one alone would leave some of them idle.
TILES = 3
# So many rows of a result are compared number by number; all others by their sum.
ROWS = 64


def allocate(place: Place) -> StageResult:
    """Memory can be had, written, read back, and holds what was written."""
    sent = torch.arange(1 << 18, dtype=torch.float32)
    there = sent.to(place.device) + 1
    place.proven(there)
    back = there.to("cpu")
    if place.fault == "wrong":
        back[7] += 1
    place.settle()
    differing = int((back != sent + 1).sum())
    if differing:
        raise Wrong("%d of %d values came back changed" % (differing, back.numel()))
    if not place.gpu:
        return "on the CPU: this tests torch, not the GPU", {}
    figures: Fields = {"name": str(torch.cuda.get_device_name(place.device))}
    if hasattr(torch.cuda, "mem_get_info"):
        free, total = room.free_bytes(place.device.index)
        figures.update(free_bytes=free, total_bytes=total)
    return "", figures


def matmul(place: Place) -> StageResult:
    """A product of two square matrices in every format that torch has here."""
    torch.manual_seed(1)
    tiles = TILES * place.multiprocessors
    side = max(SIDE, TILE * ceil(sqrt(tiles)))
    left, right = torch.randn(side, side), torch.randn(side, side)
    return _compared(place, torch.matmul, left, right)


def conv(place: Place) -> StageResult:
    """A convolution of 16 to 32 channels, and on a GPU whether cuDNN computes it."""
    torch.manual_seed(2)
    images = max(8, TILES * place.multiprocessors * TILE // 32**2)
    many, kernel = torch.randn(images, 16, 32, 32), torch.randn(32, 16, 3, 3)
    detail, figures = _compared(place, lambda x, w: conv2d(x, w, padding=1), many, kernel)
    if place.gpu and not torch.version.hip:
        chosen = _convolver(many[:1].to(place.device), kernel.to(place.device))
        figures["cudnn"] = "cudnn" in chosen.lower()
        if not figures["cudnn"]:
            detail = "; ".join(filter(None, [detail, "cuDNN was not used, but " + chosen]))
    return detail, figures


def _convolver(image: Any, kernel: Any) -> str:
    """What torch chooses to compute this convolution with: Cudnn, or its own Slow2d."""
    ask = getattr(torch._C, "_select_conv_backend", None)
    if ask is None:
        return "cudnn" if cudnn.is_acceptable(image) else "torch's own kernel"
    pair = [1, 1]
    return str(ask(image, kernel, None, pair, pair, pair, False, [0, 0], 1)).rpartition(".")[2]


def _compared(place: Place, operation: Any, many: Any, other: Any) -> StageResult:
    """Every format twice, bit by bit the same, and against float64 on the CPU.

    The operation is linear in its first operand. Some of its rows are compared number by number,
    and the sum of all rows with what the sum of the operand's rows gives.
    """
    figures = {}
    missing = []
    # Older releases sum fp16 on the CPU in fp16, and slowly.
    slow = [] if place.gpu or hasattr(getattr(torch, "amp", 0), "GradScaler") else ["fp16"]
    # bfloat16, float16 and float32 all hold these numbers without rounding.
    exact = [tensor.to(torch.bfloat16).to(torch.float32) for tensor in (many, other)]
    for name, kind in FORMATS.items():
        rows, factor = (many, other) if name == "fp32" else exact
        if not place.gpu and name != "fp32":
            # A CPU without half precision gets fewer numbers.
            rows, factor = rows[: max(2, len(rows) // 16)], factor[..., :ROWS]
        results = []
        if place.computes(name) and name not in slow:
            there = [tensor.to(place.device).to(kind) for tensor in (rows, factor)]
            try:
                results = [operation(*there) for _ in range(2)]
            except RuntimeError as problem:
                if name == "fp32" or place.gpu or "not implemented" not in str(problem):
                    raise
        if not results:
            missing.append(name)
            continue
        place.proven(*results)
        figures["error_" + name] = _error(place, name, results, operation, rows, factor)
    place.settle()
    refused = "not supported by this torch build on this device: " + ", ".join(missing)
    return (refused if missing else ""), figures


def _error(place: Place, name: str, results: Any, operation: Any, rows: Any, factor: Any) -> float:
    """The largest error in units of the root mean square; Wrong where anything is too far off."""
    first, second = [result.to("cpu") for result in results]
    if place.fault == "bit":
        second.view(-1)[second.numel() // 2] *= 1 + 2.0**-7
    found = first.double()
    if place.fault == "wrong":
        found[0] += found.abs().max()
    if place.fault == "gain":
        found *= 1.005
    step = max(1, len(rows) // ROWS)
    expected = operation(rows[::step].double(), factor.double())
    whole = operation(rows.double().sum(0, keepdim=True), factor.double())
    sums = _off(found.sum(0, keepdim=True), whole)
    error = _worst([_off(found[::step], expected), sums])
    if not error <= TOLERANCES[name]:
        raise Wrong("%s is off by %.3g (allowed: %.3g)" % (name, error, TOLERANCES[name]))
    gain = float((found[::step] * expected).sum() / (expected * expected).sum()) - 1
    if not abs(gain) <= GAINS[name]:
        raise Wrong("the results in %s are %.3g %% too large" % (name, 100 * gain))
    differing = int((first != second).sum())
    if differing:
        text = "%s: %d of %d values differ when the same operation runs again"
        raise Wrong(text % (name, differing, first.numel()))
    return round(error, 9)


def _off(found: Any, expected: Any) -> float:
    """The largest difference, in units of the root mean square of what is expected."""
    return _apart([(found, expected)]) / float(expected.pow(2).mean().sqrt())


def _apart(pairs: Iterable[Tuple[Any, Any]]) -> float:
    """The largest difference of any two numbers; nan if one of them is not a number."""
    return _worst(
        [float((found.double() - expected.double()).abs().max()) for found, expected in pairs]
    )


def _worst(offs: List[float]) -> float:
    """The largest; nan if one of them is not a number."""
    return max(offs, key=lambda off: inf if off != off else off)


# --- attention, by everything that torch can compute it with ----------------------------------


def attention(place: Place) -> StageResult:
    """Scaled dot product attention by each backend of this device, and as torch chooses."""
    attend = getattr(nn.functional, "scaled_dot_product_attention", None)
    if attend is None:
        raise Skip("this torch version has no scaled_dot_product_attention")
    torch.manual_seed(5)
    name = "bf16" if place.gpu and place.computes("bf16") else "fp16" if place.gpu else "fp32"
    query, key, value = [torch.randn(2, 4, 128, 64).to(FORMATS["bf16"]).float() for _ in range(3)]
    weights = (query.double() @ key.double().transpose(-1, -2) / 8).softmax(-1)
    expected = weights @ value.double()
    there = [part.to(place.device).to(FORMATS[name]) for part in (query, key, value)]
    figures, served, refused = {}, [], []
    for backend, only in [("default", None)] + _backends():
        try:
            with warnings.catch_warnings():
                # Each refusal is explained by warnings.
                warnings.simplefilter("ignore")
                with only() if only else torch.enable_grad():
                    result = attend(*there)
        except RuntimeError as problem:
            if backend in ("default", "math") or "No " not in str(problem):
                raise
            refused.append(backend)
            continue
        place.proven(result)
        found = result.to("cpu").double()
        if place.fault == "wrong":
            found[0] *= 1.5
        error = _off(found, expected)
        if not error <= TOLERANCES[name]:
            text = "attention by %s in %s is off by %.3g (allowed: %.3g)"
            raise Wrong(text % (backend, name, error, TOLERANCES[name]))
        served.append(backend)
        figures["error_" + backend] = round(error, 9)
    place.settle()
    return ("not available on this device: " + ", ".join(refused) if refused else ""), figures


def _backends() -> List[Tuple[str, Any]]:
    """The name of each backend with a context in which no other is allowed."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        only = getattr(torch.backends.cuda, "sdp_kernel", None)
        options = {
            "math": "math",
            "flash_attention": "flash",
            "efficient_attention": "mem_efficient",
        }
        offs = {"enable_" + option: False for option in options.values()}
        return [
            (name, partial(only, **dict(offs, **{"enable_" + option: True})))
            for name, option in options.items()
            if only
        ]
    named = [(name.lower(), kind) for name, kind in SDPBackend.__members__.items()]
    return [
        (name, partial(sdpa_kernel, kind))
        for name, kind in named
        if name not in ("error", "overrideable")
    ]


# --- a few steps of training, in fp32 and with mixed precision --------------------------------

STEPS = 4
# The first scale never overflows here, so that no step is left out unless it is meant to be.
SCALE = 2.0**10
# A loss as much larger: its gradients in fp16, which end at 65504, are infinite.
OVERFLOW = 2.0**20
SAME_RUN = 1e-5
OTHER_DEVICE = 5e-3
# How far the loss of mixed precision may lie from that of fp32, as a share of it.
MIXED = {"fp16": 0.02, "bf16": 0.05}


def network(device: Any, norm: Any) -> Any:
    """Convolution, norm and linear: what cuDNN and cuBLAS are used for, in 4,600 parameters."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 16),
    ).to(device)


def batch(device: Any, size: int, seed: int = 4) -> Any:
    """Images and their labels, the same on every device."""
    torch.manual_seed(seed)
    return torch.randn(size, 3, 16, 16).to(device), (torch.arange(size) % 16).to(device)


class Momentum:
    """Stochastic gradient descent with momentum, by hand.

    torch.optim imports torch._dynamo, which takes longer than all early stages together; the stage
    `optimizer` tests it. A GradScaler takes this one as well.
    """

    def __init__(self, net: Any) -> None:
        self.param_groups = [{"params": list(net.parameters())}]
        self.steps = [torch.zeros_like(parameter) for parameter in net.parameters()]

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for parameter, step in zip(self.param_groups[0]["params"], self.steps):
                step.mul_(0.9).add_(parameter.grad)
                parameter.sub_(step * 0.1)


def step(place: Place, net: Any, optimizer: Any, images: Any, labels: Any) -> Any:
    """One step of training; its loss."""
    optimizer.zero_grad()
    loss = cross_entropy(net(images), labels)
    place.proven(loss)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_fp32(place: Place) -> StageResult:
    """Full precision; on a GPU the losses are those of the CPU, on a CPU those of a second run."""
    found = _losses(place, place.device)
    expected = _losses(place, torch.device("cpu"))
    allowed = OTHER_DEVICE if place.gpu else SAME_RUN
    off = _judged(place, found, expected, allowed, "differ from the CPU losses %s")
    return "", {"loss_first": found[0], "loss_last": found[-1], "difference": off}


def amp_fp16(place: Place) -> StageResult:
    """Mixed precision in fp16, the gradients scaled; one step overflows and is left out."""
    if not place.computes("fp16"):
        raise Skip("this GPU generation does not support fp16")
    amp: Any = getattr(torch, "amp", None)
    if hasattr(amp, "GradScaler"):
        scaler = amp.GradScaler(place.device.type, init_scale=SCALE)
    elif place.gpu:
        scaler = torch.cuda.amp.GradScaler(init_scale=SCALE)
    else:
        raise Skip("this torch version can scale gradients only on a GPU")
    figures = dict(_mixed(place, "fp16", scaler), scale=float(scaler.get_scale()))
    return "", dict(figures, scale_after_overflow=_overflown(place, scaler))


def _overflown(place: Place, scaler: Any) -> float:
    """The scale after a step whose gradients overflow, which must change nothing but the scale."""
    net = network(place.device, nn.BatchNorm2d(16))
    images, labels = batch(place.device, 16)
    optimizer = Momentum(net)
    scale = float(scaler.get_scale())
    for factor in (OVERFLOW, 1.0):
        before = [parameter.detach().clone() for parameter in net.parameters()]
        optimizer.zero_grad()
        with torch.autocast(place.device.type, dtype=torch.float16):
            loss = cross_entropy(net(images), labels) * factor
        scaler.scale(loss).backward()
        finite = all([bool(part.grad.isfinite().all()) for part in net.parameters()])
        if finite == (factor == OVERFLOW):
            raise Wrong("gradients %s" % ("did not overflow" if finite else "are not finite"))
        scaler.step(optimizer)
        scaler.update()
        moved = _apart(zip(net.parameters(), before))
        if factor == OVERFLOW and moved != 0:
            raise Wrong("the step was not skipped though its gradients had overflowed")
        if not 0 < moved < inf and factor != OVERFLOW:
            raise Wrong("training did not continue after a skipped step")
        if scaler.get_scale() != scale / 2:
            text = "after an overflow the scale is %g, not %g"
            raise Wrong(text % (scaler.get_scale(), scale / 2))
    return float(scaler.get_scale())


def amp_bf16(place: Place) -> StageResult:
    """Mixed precision in bf16, which needs no scaling."""
    if not place.computes("bf16"):
        raise Skip("this GPU generation does not support bf16; its half-precision format is fp16")
    return "", _mixed(place, "bf16")


def _mixed(place: Place, name: str, scaler: Any = None) -> Fields:
    try:
        found = _losses(place, place.device, FORMATS[name], scaler)
    except RuntimeError as problem:
        if place.gpu or "not implemented" not in str(problem):
            raise
        raise Skip("this torch build cannot train in %s on the CPU" % name) from None
    expected = _losses(place, place.device)
    off = _judged(place, found, expected, MIXED[name], "are far from the fp32 losses %s")
    return {"loss_last": found[-1], "difference": off}


def _losses(place: Place, device: Any, kind: Any = None, scaler: Any = None) -> List[float]:
    """Train anew and say the loss of every step; what was trained on the place has to be there."""
    net = network(device, nn.BatchNorm2d(16))
    images, labels = batch(device, 16)
    optimizer = Momentum(net)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        # Without a kind as good as no context: old releases refuse one even where it is off.
        with torch.autocast(device.type, dtype=kind) if kind else torch.enable_grad():
            logits = net(images)
            loss = cross_entropy(logits, labels)
        if device == place.device:
            place.proven(logits, loss)
        if kind not in (None, logits.dtype):
            # Mixed precision that quietly stayed in float32 proves nothing.
            remark = "autocast left the values in %s" % str(logits.dtype).replace("torch.", "")
            raise (
                Wrong(remark)
                if place.gpu
                else Skip("this torch build cannot do this on the CPU: " + remark)
            )
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(float(loss.detach()))
    return losses


def _judged(
    place: Place, losses: List[float], expected: List[float], allowed: float, words: str
) -> float:
    """How far they lie from what is expected, as a share of it; Wrong where that is too far."""
    if place.fault == "wrong":
        losses = [loss * (1.5 - 0.1 * step) for step, loss in enumerate(losses)]
    if place.fault == "nan":
        losses = losses[:-1] + [float("nan")]
    if place.fault == "rising":
        losses = losses[::-1]
    listed = "the losses %s " % _list(losses)
    if not all([abs(loss) < inf for loss in losses]):
        raise Wrong(listed + "are not finite")
    if not losses[-1] < losses[0]:
        raise Wrong(listed + "do not decrease")
    off = max([abs(loss - other) / abs(other) for loss, other in zip(losses, expected)])
    if not off <= allowed:
        raise Wrong(listed + words % _list(expected))
    return round(off, 9)


def _list(losses: List[float]) -> str:
    return ", ".join(["%.5g" % loss for loss in losses])


# --- steps that are recorded, and steps that are compiled -------------------------------------

# cuBLAS, autograd and cuDNN allocate lazily: steps before a recording.
WARM_UP = 3
# Other kernels, or the same ones with other workspaces: rounding, no more.
OTHER_KERNELS = 1e-4


def cuda_graph(place: Place) -> StageResult:
    """A step recorded as one CUDA graph and replayed with new batches trains as eager steps do."""
    if not place.gpu:
        raise Skip("CUDA graphs exist only on a GPU")
    if not hasattr(torch.cuda, "CUDAGraph"):
        raise Skip("this torch version has no CUDA graphs")
    first, *others = batches = _batches(place)
    eager, recorded = _trainers(place)
    expected = [float(step(place, *eager, *found)) for found in [first] * WARM_UP + others]
    read = [tensor.clone() for tensor in first]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(place, *recorded, *read)
    torch.cuda.current_stream().wait_stream(side)
    recorded[1].zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(place, *recorded, *read)
    losses = []
    for found in others:
        for to, new in zip(read, found):
            to.copy_(new)
        graph.replay()
        losses.append(float(loss))
    off = _as_eager(place, losses, expected[-len(losses) :], eager[0], recorded[0], "replayed")
    return "", {"difference": off, "batches": len(batches)}


def compiled(place: Place) -> StageResult:
    """What torch.compile makes of a small model trains as the model itself does."""
    if not hasattr(torch, "compile"):
        raise Skip("this torch version has no torch.compile")
    if place.gpu and not torch.version.hip and place.capability < (7, 0):
        raise Skip("torch.compile needs a GPU with compute capability 7.0 or newer")
    disabled = [name for name in DISABLES if os.environ.get(name, "") not in ("", "0")]
    if disabled:
        raise Skip("%s is set" % disabled[0])
    batches = _batches(place)
    eager, (net, optimizer) = _trainers(place)
    expected = [float(step(place, *eager, *found)) for found in batches]
    try:
        from torch._dynamo.utils import counters
        from torch._inductor import config

        config.compile_threads = 1  # processes would outlive this one
        if hasattr(config, "cpp_cache_precompile_headers"):
            config.cpp_cache_precompile_headers = False  # not kept in the scratch folder
        counters.clear()
        made = torch.compile(net)
        losses = [float(step(place, made, optimizer, *found)) for found in batches]
    except Exception as problem:
        raise Wrong(_not_compiled(problem)) from None
    place.settle()
    off = _as_eager(place, losses, expected, eager[0], net, "compiled")
    if not counters["stats"].get("unique_graphs"):
        raise Wrong("torch.compile compiled nothing")
    return "", {"difference": off}


DISABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
LACKS = (
    ("No working C++ compiler", "no C++ compiler was found"),
    ("Failed to find C compiler", "no C compiler was found"),
    ("Cannot find a working triton", "triton is not installed"),
    ("No module named 'triton'", "triton is not installed"),
    ("Python.h", "Python.h is missing"),
)
"""Words of torch and Triton, and what they say is missing."""


def _not_compiled(problem: BaseException) -> str:
    """Why nothing was compiled, what is missing first."""
    text = wire.words(problem)
    header = os.path.join(sysconfig.get_path("include") or "", "Python.h")
    if "CalledProcessError" in text and not os.path.exists(header):
        # Triton's launcher: what the compiler said of it is not in the exception.
        text = "%s does not exist: %s" % (header, text)
    if "riton" in text and "Cannot find" in text:
        try:
            importlib.import_module("triton")
        except Exception as reason:
            text = "%s: %s" % (wire.words(reason), text)
    lack = [what + ": " for words, what in LACKS if words in text]
    return "".join(lack[:1]) + text


def _batches(place: Place) -> List[Any]:
    return [batch(place.device, 16, seed) for seed in (20, 21, 22, 23)]


def _trainers(place: Place) -> List[Any]:
    """Two equal models, each with what trains it."""
    nets = [network(place.device, nn.GroupNorm(4, 16)) for _ in range(2)]
    return [(net, Momentum(net)) for net in nets]


def _as_eager(
    place: Place, losses: List[float], expected: List[float], eager: Any, net: Any, how: str
) -> float:
    """How far losses and weights lie from those of eager steps; Wrong where that is too far."""
    if place.fault == "wrong":
        losses = [loss * 1.01 for loss in losses]
    apart = [abs(loss - other) for loss, other in zip(losses, expected)]
    off = _worst(apart + [_apart(zip(net.parameters(), eager.parameters()))])
    if not off <= OTHER_KERNELS:
        raise Wrong("%s steps differ from eager steps by %.3g" % (how, off))
    return round(off, 9)


# --- torch's own optimizers, which import torch._dynamo ---------------------------------------

RATE, DECAY = 0.05, 0.1


def optimizer(place: Place) -> StageResult:
    """torch.optim's SGD and AdamW, in each implementation, against their formulas in float64."""
    torch.manual_seed(6)
    start, gradients = torch.randn(1000), torch.randn(3, 1000)
    figures, missing = {}, []
    for name, make, expected in (
        ("sgd", partial(torch.optim.SGD, momentum=0.9), _sgd(start.double(), gradients.double())),
        ("adamw", torch.optim.AdamW, _adamw(start.double(), gradients.double())),
    ):
        for way in ("default", "foreach", "fused"):
            weight = nn.Parameter(start.clone().to(place.device))
            more = {} if way == "default" else {way: True}
            try:
                steps = make([weight], lr=RATE, weight_decay=DECAY, **more)
                for gradient in gradients:
                    weight.grad = gradient.to(place.device)
                    steps.step()
            except (TypeError, RuntimeError) as problem:
                if way == "default" or (place.gpu and isinstance(problem, RuntimeError)):
                    raise
                missing.append("%s (%s)" % (name, way))
                continue
            place.proven(weight)
            found = weight.detach().to("cpu").double()
            if place.fault == "wrong":
                found[0] += 1e-2
            error = _off(found, expected)
            if not error <= 1e-5:
                raise Wrong("%s (%s) is off by %.3g (allowed: 1e-05)" % (name, way, error))
            figures["error_%s_%s" % (name, way)] = round(error, 9)
    return ("not in this torch version: " + ", ".join(missing) if missing else ""), figures


def _sgd(weight: Any, gradients: Any) -> Any:
    step = torch.zeros_like(weight)
    for gradient in gradients:
        step = 0.9 * step + gradient + DECAY * weight
        weight = weight - RATE * step
    return weight


def _adamw(weight: Any, gradients: Any) -> Any:
    mean = torch.zeros_like(weight)
    square = torch.zeros_like(weight)
    for number, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        step = mean / (1 - 0.9**number) / ((square / (1 - 0.999**number)).sqrt() + 1e-8)
        weight = weight * (1 - RATE * DECAY) - RATE * step
    return weight


# --- a checkpoint: saved, read back, and resumed ----------------------------------------------

GPU_TOLERANCE = 1e-5


def checkpoint(place: Place) -> StageResult:
    """Two steps, a checkpoint, two more; then the last two again from the file."""
    path = place.file("checkpoint-%d.pt" % os.getpid())
    whole = _trainer(place)
    _steps(place, (10, 11), **whole)
    torch.save({name: part.state_dict() for name, part in whole.items()}, path)
    size = os.path.getsize(path)
    if place.fault in ("wrong", "corrupt"):
        _corrupt(path)
    _steps(place, (12, 13), **whole)
    resumed, saved = _trainer(place), torch.load(path, map_location=place.device)
    for name, part in resumed.items():
        part.load_state_dict(saved[name])
    _steps(place, (12, 13), **resumed)
    place.settle()
    values, others = whole["net"].state_dict(), resumed["net"].state_dict()
    worst = _apart([(value, others[name]) for name, value in values.items()])
    if not worst <= (GPU_TOLERANCE if place.gpu else 0.0):
        raise Wrong("the resumed run differs from the uninterrupted one by %.3g" % worst)
    distributed = _distributed_checkpoint(place, values)
    return "", {"bytes": size, "difference": worst, "distributed": distributed}


def _distributed_checkpoint(place: Place, values: Fields) -> bool:
    """Whether torch.distributed.checkpoint is there; Wrong where what it loads is another."""
    try:
        from torch.distributed import checkpoint as distributed
    except ImportError:
        return False
    if not hasattr(distributed, "save"):
        return False  # before torch 2.2
    path = place.file("checkpoint-%d" % os.getpid())
    with warnings.catch_warnings():
        # It remarks that there is one process only.
        warnings.simplefilter("ignore")
        distributed.save(dict(values), checkpoint_id=path)
        loaded = {name: torch.zeros_like(value) for name, value in values.items()}
        distributed.load(loaded, checkpoint_id=path)
    worst = _apart([(value, loaded[name]) for name, value in values.items()])
    if worst != 0:
        raise Wrong("torch.distributed.checkpoint loads values that differ by %.3g" % worst)
    return True


def _trainer(place: Place) -> Fields:
    net = network(place.device, nn.BatchNorm2d(16))
    return {"net": net, "optimizer": torch.optim.Adam(net.parameters(), lr=1e-2)}


def _steps(place: Place, seeds: Iterable[int], net: Any, optimizer: Any) -> None:
    for seed in seeds:
        step(place, net, optimizer, *batch(place.device, 8, seed))


def _corrupt(path: str) -> None:
    """Turn over bits in the middle of the file, where the numbers stand."""
    with open(path, "r+b") as handle:
        found = handle.read()
        middle = handle.seek(len(found) // 2)
        handle.write(bytes([byte ^ 0x55 for byte in found[middle : middle + 256]]))


# --- distributed training: every rank against one process that sees the joined batch ----------

SHARE = 4
# Sums of the joined batch are added in another order than the shares: rounding, no more.
TOLERANCE = {"gloo": 1e-4, "nccl": 1e-3}
BUFFER_BYTES = {"cuda": 64 << 20, "cpu": 4 << 20}


def ddp(place: Place, stage: str = "ddp") -> StageResult:
    """Gradients of a share, averaged over the ranks, are those of the joined batch.

    NCCL runs as it would for the user, but for the transport that the stage leaves out.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise Skip("this torch build does not include torch.distributed")
    path = place.file("ranks-" + stage)
    os.environ.update([WITHOUT[stage]] if stage in WITHOUT else [])
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    os.environ.setdefault("NCCL_DEBUG_FILE", _nccl_log(place.spec, stage, place.rank))
    if place.gpu:
        # What is compared is the link between GPUs; a GPU that is wrong alone is told apart first.
        matmul(place)
    backend = "nccl" if place.gpu and dist.is_nccl_available() else "gloo"
    store = dist.FileStore(path, place.world)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world,
        # Longer than the stage has: whoever watches the ranks says where each of them stands.
        timeout=timedelta(seconds=place.spec.limit_s(stage) + 30.0),
    )
    _reduced(place, dist)
    figures = _trained(place, backend)
    # Stay until every rank has what it needs: one that leaves early breaks the others' pipes.
    store.set("done-%d" % place.rank, "1")
    store.wait(["done-%d" % rank for rank in range(place.world)])
    return "%s, %d ranks" % (backend, place.world), figures


def _nccl_log(spec: Spec, stage: str, rank: int) -> str:
    """Where NCCL writes what it warns of."""
    return os.path.join(spec.scratch, "nccl-%s-%d" % (stage, rank))


def nccl_warning(spec: Spec, stage: str, rank: int) -> str:
    """The first warning of NCCL in a stage of ranks, without the place in its code; "" none."""
    try:
        with open(_nccl_log(spec, stage, rank), errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError:
        return ""
    return next((line.partition(" NCCL WARN ")[2] for line in lines if " NCCL WARN " in line), "")


def _reduced(place: Place, dist: Any) -> None:
    """The sum of all ranks of one large buffer, as large as DDP's buckets grow, is exact."""
    numbers = BUFFER_BYTES["cuda" if place.gpu else "cpu"] // 4
    pattern = torch.arange(numbers, dtype=torch.float32, device=place.device) % 1024
    found = pattern * (place.rank + 1)
    dist.all_reduce(found)
    if place.fault == "sum":
        found[7] += 1
    wrong = int((found != pattern * (place.world * (place.world + 1) // 2)).sum())
    if wrong:
        text = "all_reduce of %d MB gives %d wrong sums"
        raise Wrong(text % (found.numel() >> 18, wrong))


def _trained(place: Place, backend: str) -> Fields:
    images, labels = batch(place.device, SHARE * place.world)
    mine = slice(SHARE * place.rank, SHARE * (place.rank + 1))
    net, same = [network(place.device, nn.GroupNorm(4, 16)) for _ in range(2)]
    expected = _gradients(same, images, labels)
    where = {"device_ids": [place.device]} if place.gpu else {}
    shared = nn.parallel.DistributedDataParallel(net, **where)
    found = _gradients(shared, images[mine], labels[mine])
    if place.fault == "wrong" or (place.fault == "unequal" and place.rank == place.world - 1):
        found[0].add_(1.0)
    place.proven(*found)
    # Equal where every bit of every gradient is.
    text = repr([gradient.to("cpu").flatten().tolist() for gradient in found])
    digest = "%08x" % (zlib.crc32(text.encode("ascii")) & 0xFFFFFFFF)
    # In units of the largest gradient.
    off = _apart(zip(found, expected)) / max([float(gradient.abs().max()) for gradient in expected])
    # Ranks that differ are told by their digests, by whoever sees them all.
    if place.fault != "unequal" and not off <= TOLERANCE[backend]:
        raise Wrong("the gradients differ by %.3g from those of the full batch" % off)
    return {"difference": round(off, 9), "digest": digest}


def _gradients(net: Any, images: Any, labels: Any) -> List[Any]:
    cross_entropy(net(images), labels).backward()
    return [parameter.grad.detach() for parameter in net.parameters()]


STAGES = {
    "allocate": allocate,
    "matmul": matmul,
    "conv": conv,
    "attention": attention,
    "train-fp32": train_fp32,
    "amp-fp16": amp_fp16,
    "amp-bf16": amp_bf16,
    "cuda-graph": cuda_graph,
    "optimizer": optimizer,
    "checkpoint": checkpoint,
    COMPILE: compiled,
    "ddp": ddp,
}
STAGES.update([(stage, partial(ddp, stage=stage)) for stage in WITHOUT])

"""The stages: what is run on a device, checked against float64, the CPU or another run."""

import os
import zlib
from datetime import timedelta
from math import inf
from typing import Any, Iterable, List, Tuple

import torch
from torch import nn
from torch.backends import cudnn
from torch.nn.functional import conv2d, cross_entropy

from .spec import Fields, Spec, Task

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
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        cudnn.allow_tf32 = False
        cudnn.deterministic = True
        cudnn.benchmark = False
        if self.gpu:
            torch.cuda.set_device(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            # Nobody could say beforehand how full the GPU is: look before taking any of it.
            if spec.careful and hasattr(torch.cuda, "mem_get_info"):
                free, _ = torch.cuda.mem_get_info(self.device)
                if free < total * 0.2:
                    raise Skip("%d%% of its memory is in use" % (100 - 100 * free // total))
            # Half a GiB is left for the context, cuDNN and NCCL, which the allocator cannot count.
            torch.cuda.set_per_process_memory_fraction(min(1.0, (512 << 20) / total), self.device)

    def computes(self, name: str) -> bool:
        """Whether a GPU of this generation has that format; a CPU is asked elsewhere."""
        if not self.gpu or torch.version.hip:
            return True
        capability = torch.cuda.get_device_capability(self.device)
        return bool(capability >= {"bf16": (8, 0), "fp16": (5, 3)}.get(name, (0, 0)))

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

# The largest error allowed, in units of the root mean square of the exact result. The inputs are
# exact in every format, so what is left is the rounding of sums and of the result.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE = 1024


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
    figures = {"name": str(torch.cuda.get_device_name(place.device))}
    if hasattr(torch.cuda, "mem_get_info"):
        free, total = torch.cuda.mem_get_info(place.device)
        figures.update(free_bytes=free, total_bytes=total)
    return "", figures


def matmul(place: Place) -> StageResult:
    """A product of two matrices of 1024 x 1024 in every format that torch has here."""
    torch.manual_seed(1)
    left, right = _exact(SIDE, SIDE), _exact(SIDE, SIDE)
    return _compared(place, lambda a, b: a @ b, (left, right), (left[:64, :], right[:, :64]))


def conv(place: Place) -> StageResult:
    """A convolution of 16 to 32 channels."""
    torch.manual_seed(2)
    image, kernel = _exact(8, 16, 32, 32), _exact(32, 16, 3, 3)
    detail, figures = _compared(
        place, lambda x, w: conv2d(x, w, padding=1), (image, kernel), (image[:1], kernel)
    )
    if place.gpu:
        figures["cudnn"] = bool(cudnn.is_acceptable(image.to(place.device)))
    return detail, figures


def _exact(*shape: int) -> Any:
    """Random numbers that bfloat16, float16 and float32 all hold without rounding."""
    return torch.randn(*shape).to(torch.bfloat16).to(torch.float32)


def _compared(place: Place, operation: Any, inputs: Any, fewer: Any) -> StageResult:
    """Every format against float64 on the CPU; a CPU without half precision gets fewer numbers."""
    figures = {}
    missing = []
    expected = operation(*[tensor.double() for tensor in inputs])
    # Older releases sum fp16 on the CPU in fp16, and slowly.
    slow = [] if place.gpu or hasattr(getattr(torch, "amp", 0), "GradScaler") else ["fp16"]
    for name, kind in FORMATS.items():
        if not place.gpu and name == "bf16":
            inputs, expected = fewer, operation(*[tensor.double() for tensor in fewer])
        result = None
        if place.computes(name) and name not in slow:
            try:
                result = operation(*[tensor.to(place.device).to(kind) for tensor in inputs])
            except RuntimeError as problem:
                if name == "fp32" or place.gpu or "not implemented" not in str(problem):
                    raise
        if result is None:
            missing.append(name)
            continue
        place.proven(result)
        found = result.to("cpu").double()
        if place.fault == "wrong":
            found[0] += expected.abs().max()
        error = _apart([(found, expected)]) / float(expected.pow(2).mean().sqrt())
        if not error <= TOLERANCES[name]:
            raise Wrong("%s is off by %.3g (allowed: %.3g)" % (name, error, TOLERANCES[name]))
        figures["error_" + name] = round(error, 9)
    place.settle()
    refused = "not supported by this torch build on this device: " + ", ".join(missing)
    return (refused if missing else ""), figures


def _apart(pairs: Iterable[Tuple[Any, Any]]) -> float:
    """The largest difference of any two numbers; nan if one of them is not a number."""
    worst = [float((found.double() - expected.double()).abs().max()) for found, expected in pairs]
    return max(worst, key=lambda off: inf if off != off else off)


# --- a few steps of training, in fp32 and with mixed precision --------------------------------

STEPS = 4
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


def train_fp32(place: Place) -> StageResult:
    """Full precision; on a GPU the losses are those of the CPU, on a CPU those of a second run."""
    found = _losses(place, place.device)
    expected = _losses(place, torch.device("cpu"))
    allowed = OTHER_DEVICE if place.gpu else SAME_RUN
    off = _judged(place, found, expected, allowed, "differ from the CPU losses %s")
    return "", {"loss_first": found[0], "loss_last": found[-1], "difference": off}


def amp_fp16(place: Place) -> StageResult:
    """Mixed precision in fp16, the gradients scaled."""
    if not place.computes("fp16"):
        raise Skip("this GPU generation does not support fp16")
    # A scale of 1024 never overflows here, so that no step is left out.
    amp: Any = getattr(torch, "amp", None)
    if hasattr(amp, "GradScaler"):
        scaler = amp.GradScaler(place.device.type, init_scale=1024.0)
    elif place.gpu:
        scaler = torch.cuda.amp.GradScaler(init_scale=1024.0)
    else:
        raise Skip("this torch version can scale gradients only on a GPU")
    return "", dict(_mixed(place, "fp16", scaler), scale=float(scaler.get_scale()))


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
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
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
    return "", {"bytes": size, "difference": worst}


def _trainer(place: Place) -> Fields:
    net = network(place.device, nn.BatchNorm2d(16))
    return {"net": net, "optimizer": torch.optim.Adam(net.parameters(), lr=1e-2)}


def _steps(place: Place, seeds: Iterable[int], net: Any, optimizer: Any) -> None:
    for seed in seeds:
        images, labels = batch(place.device, 8, seed)
        optimizer.zero_grad()
        loss = cross_entropy(net(images), labels)
        place.proven(loss)
        loss.backward()
        optimizer.step()


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


def ddp(place: Place) -> StageResult:
    """Gradients of a share, averaged over the ranks, are those of the joined batch."""
    import torch.distributed as dist

    if not dist.is_available():
        raise Skip("this torch build does not include torch.distributed")
    path = place.file("ranks")
    if place.gpu:
        # What is compared is the link between GPUs; a GPU that is wrong alone is told apart first.
        matmul(place)
        # NCCL takes its buffers by the number of channels; a guest takes few.
        os.environ.setdefault("NCCL_MAX_NCHANNELS", "4")
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    backend = "nccl" if place.gpu and dist.is_nccl_available() else "gloo"
    store = dist.FileStore(path, place.world)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world,
        # Longer than the stage has: whoever watches the ranks says where each of them stands.
        timeout=timedelta(seconds=place.spec.limit_s("ddp") + 30.0),
    )
    figures = _trained(place, backend)
    # Stay until every rank has what it needs: one that leaves early breaks the others' pipes.
    store.set("done-%d" % place.rank, "1")
    store.wait(["done-%d" % rank for rank in range(place.world)])
    return "%s, %d ranks" % (backend, place.world), figures


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
    "train-fp32": train_fp32,
    "amp-fp16": amp_fp16,
    "amp-bf16": amp_bf16,
    "checkpoint": checkpoint,
    "ddp": ddp,
}

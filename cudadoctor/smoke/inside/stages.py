"""The stages: what is run on a device, checked against float64, the CPU or another run."""

import os
import zlib
from datetime import timedelta
from typing import Any, Dict, List, Tuple

import torch

Said = Tuple[str, Dict[str, Any]]


class Skip(Exception):
    """This torch, device or system cannot do it; the text says why."""


class Wrong(Exception):
    """It ran and the answer is wrong; the text says by how much."""


class Place:
    """The device of a stage, and the folder it may write to.

    device: where it has to run. careful: nobody has looked yet whether others use it.
    fault: what a test planted, "" nothing.
    """

    def __init__(
        self, device: str, scratch: str, rank: int = 0, world: int = 1, careful: bool = False
    ) -> None:
        self.device = torch.device(device)
        self.gpu = self.device.type == "cuda"
        self.scratch = scratch
        self.rank = rank
        self.world = world
        self.careful = careful
        self.limit_s = 30.0
        self.fault = ""
        self._ready = False

    def begin(self, limit_s: float, fault: str) -> None:
        """Before each stage; the first one finds out whether the device can be had at all.

        Exact arithmetic, one thread, and on a GPU no more than a guest's share.
        """
        self.limit_s, self.fault = limit_s, fault
        if self._ready:
            return
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        if self.gpu:
            torch.cuda.set_device(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            # Nobody could say beforehand how full the GPU is: look before taking any of it.
            if self.careful and hasattr(torch.cuda, "mem_get_info"):
                free, _ = torch.cuda.mem_get_info(self.device)
                if free < total * 0.2:
                    raise Skip("%d %% of its memory is in use" % (100 - 100 * free // total))
            # Half a GiB is left for the context, cuDNN and NCCL, which the allocator cannot count.
            torch.cuda.set_per_process_memory_fraction(min(1.0, (512 << 20) / total), self.device)
        self._ready = True

    def computes(self, name: str) -> bool:
        """Whether a GPU of this generation has that format; a CPU is asked elsewhere."""
        if not self.gpu or torch.version.hip:
            return True
        capability = torch.cuda.get_device_capability(self.device)
        return bool(capability >= {"bf16": (8, 0), "fp16": (5, 3)}.get(name, (0, 0)))

    def proven(self, *tensors: Any) -> None:
        """Fail a stage whose result lies elsewhere than on the device that it was to prove."""
        claimed = torch.device("cuda:0") if self.fault == "elsewhere" else self.device
        for one in tensors:
            if one.device != claimed:
                raise Wrong("the result lies on %s, not on %s" % (one.device, claimed))

    def settle(self) -> None:
        """Wait for the GPU, so that a fault shows in the stage that made it."""
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def room(self) -> str:
        """The scratch folder, after proving that it takes a file."""
        if not self.scratch:
            raise Skip("there is no temporary folder that can be written to")
        path = os.path.join(self.scratch, "room-%d" % os.getpid())
        try:
            try:
                with open(path, "wb") as handle:
                    handle.write(b"\0" * (1 << 20))
            finally:
                if os.path.exists(path):
                    os.remove(path)
        except OSError as problem:
            raise Skip(
                "the temporary folder %s takes no file: %s" % (self.scratch, problem.strerror)
            ) from None
        return self.scratch


# --- memory, a matrix product and a convolution -----------------------------------------------

# The largest error allowed, in units of the root mean square of the exact result. The inputs are
# exact in every format, so what is left is the rounding of sums and of the result.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE = 1024


def allocate(place: Place) -> Said:
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
        raise Wrong("%d of %d numbers came back changed" % (differing, back.numel()))
    if not place.gpu:
        return "on the CPU: this proves torch, not the GPU", {}
    figures: Dict[str, Any] = {"name": str(torch.cuda.get_device_name(place.device))}
    if hasattr(torch.cuda, "mem_get_info"):
        free, total = torch.cuda.mem_get_info(place.device)
        figures["free_bytes"], figures["total_bytes"] = int(free), int(total)
    return "", figures


def matmul(place: Place) -> Said:
    """A product of two matrices of 1024 x 1024 in every format that torch has here."""
    torch.manual_seed(1)
    left, right = _exact(SIDE, SIDE), _exact(SIDE, SIDE)
    return _compared(place, lambda a, b: a @ b, (left, right), (left[:64, :], right[:, :64]))


def conv(place: Place) -> Said:
    """A convolution of 16 to 32 channels."""
    torch.manual_seed(2)
    image, kernel = _exact(8, 16, 32, 32), _exact(32, 16, 3, 3)
    convolve = torch.nn.functional.conv2d
    detail, figures = _compared(
        place, lambda x, w: convolve(x, w, padding=1), (image, kernel), (image[:1], kernel)
    )
    if place.gpu:
        figures["cudnn"] = bool(torch.backends.cudnn.is_acceptable(image.to(place.device)))
    return detail, figures


def _exact(*shape: int) -> Any:
    """Random numbers that bfloat16, float16 and float32 all hold without rounding."""
    return torch.randn(*shape).to(torch.bfloat16).to(torch.float32)


def _compared(place: Place, operation: Any, inputs: Any, fewer: Any) -> Said:
    """Every format against float64 on the CPU; a CPU without half precision gets fewer numbers."""
    figures: Dict[str, Any] = {}
    missing: List[str] = []
    expected = operation(*[one.double() for one in inputs])
    for name, kind in FORMATS.items():
        if not place.gpu and name == "bf16":
            inputs, expected = fewer, operation(*[one.double() for one in fewer])
        # Older releases sum fp16 on the CPU in fp16, and slowly.
        serious = place.gpu or name != "fp16" or hasattr(getattr(torch, "amp", 0), "GradScaler")
        if not place.computes(name) or not serious:
            missing.append(name)
            continue
        try:
            result = operation(*[one.to(place.device).to(kind) for one in inputs])
        except RuntimeError as problem:
            if place.gpu or name == "fp32" or "not implemented" not in str(problem):
                raise
            missing.append(name)
            continue
        place.proven(result)
        figures["error_" + name] = _error(place, result, expected, name)
    place.settle()
    return ("not done by this torch here: " + ", ".join(missing) if missing else ""), figures


def _error(place: Place, result: Any, expected: Any, name: str) -> float:
    """How far the worst number is off; raises Wrong where that is too far."""
    found = result.to("cpu").double()
    if place.fault == "wrong":
        found[0] += expected.abs().max()
    scale = float(expected.pow(2).mean().sqrt())
    error = float((found - expected).abs().max()) / scale
    if not error <= TOLERANCES[name]:
        raise Wrong("%s is off by %.3g, %.3g is allowed" % (name, error, TOLERANCES[name]))
    return round(error, 9)


# --- a few steps of training, in fp32 and with mixed precision --------------------------------

STEPS = 4
SAME_RUN = 1e-5
OTHER_DEVICE = 5e-3
# How far the loss of mixed precision may lie from that of fp32, as a share of it.
MIXED = {"fp16": 0.02, "bf16": 0.05}


def network(norm: Any) -> Any:
    """Convolution, norm and linear: what cuDNN and cuBLAS are used for, in 4,600 parameters."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        norm,
        torch.nn.ReLU(),
        torch.nn.AvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 16),
    )


def batch(size: int, seed: int = 4) -> Any:
    """Images and their labels, the same on every device."""
    torch.manual_seed(seed)
    return torch.randn(size, 3, 16, 16), torch.arange(size) % 16


def train_fp32(place: Place) -> Said:
    """Full precision; on a GPU the losses are those of the CPU, on a CPU those of a second run."""
    found = _spoilt(place, _losses(place.device, place=place))
    _judged(found)
    expected = _losses(torch.device("cpu"))
    off = _distance(found, expected)
    allowed = OTHER_DEVICE if place.gpu else SAME_RUN
    if not off <= allowed:
        raise Wrong("the losses %s differ from the %s on the CPU" % (_list(found), _list(expected)))
    return "", {"loss_first": found[0], "loss_last": found[-1], "difference": round(off, 9)}


def amp_fp16(place: Place) -> Said:
    """Mixed precision in fp16, the gradients scaled."""
    if not place.computes("fp16"):
        raise Skip("a GPU of this generation has no fp16")
    return _mixed(place, "fp16", _scaler(place))


def amp_bf16(place: Place) -> Said:
    """Mixed precision in bf16, which needs no scaling."""
    if not place.computes("bf16"):
        raise Skip("a GPU of this generation has no bf16; fp16 is its half precision")
    return _mixed(place, "bf16", None)


def _mixed(place: Place, name: str, scaler: Any) -> Said:
    kind = FORMATS[name]
    try:
        found = _losses(place.device, kind, scaler, place)
    except RuntimeError as problem:
        if place.gpu or "not implemented" not in str(problem):
            raise
        raise Skip("this torch cannot train in %s on the CPU" % name) from None
    found = _spoilt(place, found)
    _judged(found)
    expected = _losses(place.device)
    off = _distance(found, expected)
    if not off <= MIXED[name]:
        raise Wrong("the losses %s are far from fp32's %s" % (_list(found), _list(expected)))
    figures: Dict[str, Any] = {"loss_last": found[-1], "difference": round(off, 9)}
    if scaler is not None:
        figures["scale"] = float(scaler.get_scale())
    return "", figures


def _losses(device: Any, kind: Any = None, scaler: Any = None, place: Any = None) -> List[float]:
    """Train anew and say the loss of every step."""
    net = network(torch.nn.BatchNorm2d(16)).to(device)
    images, labels = [one.to(device) for one in batch(16)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with _autocast(device.type, kind):
            logits = net(images)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        if place is not None:
            place.proven(logits, loss)
            _cast(logits, kind, place)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(float(loss.detach()))
    return losses


def _cast(logits: Any, kind: Any, place: Place) -> None:
    """Mixed precision that quietly stayed in float32 proves nothing."""
    if kind is None or logits.dtype == kind:
        return
    said = "autocast left the numbers in %s" % str(logits.dtype).replace("torch.", "")
    if place.gpu:
        raise Wrong(said)
    raise Skip("this torch cannot do it on the CPU: " + said)


def _autocast(device: str, kind: Any) -> Any:
    """torch.amp where it has autocast, else torch.autocast of torch 1.10."""
    if kind is None:
        # As good as no context: old releases refuse a dtype even for autocast that is off.
        return torch.enable_grad()
    amp = getattr(torch, "amp", None)
    autocast: Any = getattr(amp, "autocast", None) or torch.autocast
    return autocast(device, dtype=kind)


def _scaler(place: Place) -> Any:
    """A scale of 1024 never overflows here, so that no step is left out."""
    amp: Any = getattr(torch, "amp", None)
    if hasattr(amp, "GradScaler"):
        return amp.GradScaler(place.device.type, init_scale=1024.0)
    if place.gpu:
        return torch.cuda.amp.GradScaler(init_scale=1024.0)
    raise Skip("this torch scales gradients on a GPU only")


def _spoilt(place: Place, losses: List[float]) -> List[float]:
    if place.fault == "wrong":
        return [one * (1.5 - 0.1 * step) for step, one in enumerate(losses)]
    if place.fault == "nan":
        return losses[:-1] + [float("nan")]
    if place.fault == "rising":
        return losses[::-1]
    return losses


def _judged(losses: List[float]) -> None:
    if not all([abs(one) < float("inf") for one in losses]):
        raise Wrong("the losses %s are not finite" % _list(losses))
    if not losses[-1] < losses[0]:
        raise Wrong("the losses %s do not fall" % _list(losses))


def _distance(found: List[float], expected: List[float]) -> float:
    return max([abs(one - other) / abs(other) for one, other in zip(found, expected)])


def _list(losses: List[float]) -> str:
    return ", ".join(["%.5g" % one for one in losses])


# --- a checkpoint: saved, read back, and resumed ----------------------------------------------

BEFORE, AFTER = 2, 2
GPU_TOLERANCE = 1e-5


def checkpoint(place: Place) -> Said:
    """Two steps, a checkpoint, two more; then the last two again from the file."""
    path = os.path.join(place.room(), "checkpoint-%d.pt" % os.getpid())
    net, optimizer = _trainer(place)
    _steps(place, net, optimizer, 0, BEFORE)
    try:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        size = os.path.getsize(path)
        if place.fault in ("wrong", "corrupt"):
            _corrupt(path)
        _steps(place, net, optimizer, BEFORE, AFTER)
        other, other_optimizer = _trainer(place)
        saved = torch.load(path, map_location=place.device)
    finally:
        if os.path.exists(path):
            os.remove(path)
    other.load_state_dict(saved["net"])
    other_optimizer.load_state_dict(saved["optimizer"])
    _steps(place, other, other_optimizer, BEFORE, AFTER)
    place.settle()
    return "", {"bytes": size, "difference": _resumed(place, net, other)}


def _trainer(place: Place) -> Any:
    net = network(torch.nn.BatchNorm2d(16)).to(place.device)
    return net, torch.optim.Adam(net.parameters(), lr=1e-2)


def _steps(place: Place, net: Any, optimizer: Any, first: int, count: int) -> None:
    for step in range(first, first + count):
        images, labels = [one.to(place.device) for one in batch(8, seed=10 + step)]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        place.proven(loss)
        loss.backward()
        optimizer.step()


def _resumed(place: Place, net: Any, other: Any) -> float:
    """The largest difference of any number; on a CPU none is allowed."""
    worst = 0.0
    theirs = other.state_dict()
    for name, value in net.state_dict().items():
        off = (value.double() - theirs[name].double()).abs().max()
        worst = max(worst, float(off)) if float(off) == float(off) else float("inf")
    if worst > (GPU_TOLERANCE if place.gpu else 0.0):
        raise Wrong("the resumed run differs from the uninterrupted one by %.3g" % worst)
    return worst


def _corrupt(path: str) -> None:
    """Turn over bits in the middle of the file, where the numbers stand."""
    with open(path, "r+b") as handle:
        middle = os.path.getsize(path) // 2
        handle.seek(middle)
        found = handle.read(256)
        handle.seek(middle)
        handle.write(bytes([one ^ 0x55 for one in found]))


# --- distributed training: every rank against one process that sees the joined batch ----------

SHARE = 4
# Sums of the joined batch are added in another order than the shares: rounding, no more.
TOLERANCE = {"gloo": 1e-4, "nccl": 1e-3}


def ddp(place: Place) -> Said:
    """Gradients of a share, averaged over the ranks, are those of the joined batch."""
    import torch.distributed as dist

    if not dist.is_available():
        raise Skip("this torch was built without torch.distributed")
    folder = place.room()
    if place.gpu:
        # What is compared is the link between GPUs; a GPU that is wrong alone is told apart first.
        matmul(place)
        # NCCL takes its buffers by the number of channels; a guest takes few.
        os.environ.setdefault("NCCL_MAX_NCHANNELS", "4")
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    backend = "nccl" if place.gpu and dist.is_nccl_available() else "gloo"
    store = dist.FileStore(os.path.join(folder, "ranks"), place.world)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world,
        # Longer than the stage has: whoever watches the ranks says where each of them stands.
        timeout=timedelta(seconds=place.limit_s + 30.0),
    )
    off, digest = _trained(place, backend)
    # Stay until every rank has what it needs: one that leaves early breaks the others' pipes.
    store.set("done-%d" % place.rank, "1")
    store.wait(["done-%d" % rank for rank in range(place.world)])
    return "%s, %d ranks" % (backend, place.world), {"difference": off, "digest": digest}


def _trained(place: Place, backend: str) -> Tuple[float, str]:
    images, labels = [one.to(place.device) for one in batch(SHARE * place.world)]
    mine = slice(SHARE * place.rank, SHARE * (place.rank + 1))
    expected = _gradients(network(torch.nn.GroupNorm(4, 16)).to(place.device), images, labels)
    net = network(torch.nn.GroupNorm(4, 16)).to(place.device)
    where: Dict[str, Any] = {"device_ids": [place.device]} if place.gpu else {}
    shared = torch.nn.parallel.DistributedDataParallel(net, **where)
    found = _gradients(shared, images[mine], labels[mine])
    if place.fault == "wrong" or (place.fault == "unequal" and place.rank == place.world - 1):
        found[0].add_(1.0)
    place.proven(*found)
    # Equal where every bit of every gradient is.
    text = repr([gradient.to("cpu").flatten().tolist() for gradient in found])
    digest = "%08x" % (zlib.crc32(text.encode("ascii")) & 0xFFFFFFFF)
    off = _largest_difference(found, expected)
    # Ranks that differ are told by their digests, by whoever sees them all.
    if place.fault != "unequal" and not off <= TOLERANCE[backend]:
        raise Wrong("the gradients are off by %.3g from those of the joined batch" % off)
    return round(off, 9), digest


def _gradients(net: Any, images: Any, labels: Any) -> List[Any]:
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    return [one.grad.detach() for one in net.parameters()]


def _largest_difference(found: List[Any], expected: List[Any]) -> float:
    """The largest difference, in units of the largest gradient."""
    largest = max([float(one.abs().max()) for one in expected])
    off = [float((one - other).abs().max()) for one, other in zip(found, expected)]
    return max([one if one == one else float("inf") for one in off]) / largest


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

"""A few steps of training: in fp32, and with mixed precision in fp16 and bf16."""

from typing import Any, Dict, List, Tuple

import torch

from .place import Place, Skip, Wrong

Said = Tuple[str, Dict[str, Any]]

STEPS = 4
SAME_RUN = 1e-5
OTHER_DEVICE = 5e-3
# How far the loss of mixed precision may lie from that of fp32, as a share of it.
MIXED = {"fp16": 0.02, "bf16": 0.05}
KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16}


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
    kind = KINDS[name]
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
        _step(loss, optimizer, scaler)
        losses.append(float(loss.detach()))
    return losses


def _step(loss: Any, optimizer: Any, scaler: Any) -> None:
    if scaler is None:
        loss.backward()
        optimizer.step()
        return
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


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

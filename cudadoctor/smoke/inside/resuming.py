"""A checkpoint: saved, read back, and the resumed run compared with the uninterrupted one."""

import os
from typing import Any, Dict, Tuple

import torch

from .place import Place, Wrong
from .training import batch, network

Said = Tuple[str, Dict[str, Any]]

BEFORE, AFTER = 2, 2
GPU_TOLERANCE = 1e-5


def checkpoint(place: Place) -> Said:
    """Two steps, a checkpoint, two more; then the last two again from the file."""
    path = os.path.join(place.room(), "checkpoint-%d.pt" % os.getpid())
    net, optimizer = _made(place)
    _steps(place, net, optimizer, 0, BEFORE)
    try:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        size = os.path.getsize(path)
        if place.fault in ("wrong", "corrupt"):
            _corrupt(path)
        _steps(place, net, optimizer, BEFORE, AFTER)
        other, other_optimizer = _made(place)
        saved = torch.load(path, map_location=place.device)
    finally:
        if os.path.exists(path):
            os.remove(path)
    other.load_state_dict(saved["net"])
    other_optimizer.load_state_dict(saved["optimizer"])
    _steps(place, other, other_optimizer, BEFORE, AFTER)
    place.settle()
    return "", {"bytes": size, "difference": _compared(place, net, other)}


def _made(place: Place) -> Any:
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


def _compared(place: Place, net: Any, other: Any) -> float:
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

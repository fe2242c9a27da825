"""Distributed training: every rank against one process that sees the joined batch."""

import os
import zlib
from datetime import timedelta
from typing import Any, Dict, List, Tuple

import torch

from .place import Place, Skip, Wrong
from .tensors import matmul
from .training import batch, network

Said = Tuple[str, Dict[str, Any]]

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
        _modest()
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
    _met(store, place)
    return "%s, %d ranks" % (backend, place.world), {"difference": off, "digest": digest}


def _trained(place: Place, backend: str) -> Tuple[float, str]:
    images, labels = [one.to(place.device) for one in batch(SHARE * place.world)]
    mine = slice(SHARE * place.rank, SHARE * (place.rank + 1))
    expected = _gradients(network(torch.nn.GroupNorm(4, 16)).to(place.device), images, labels)
    net = network(torch.nn.GroupNorm(4, 16)).to(place.device)
    where: Dict[str, Any] = {"device_ids": [place.device]} if place.gpu else {}
    shared = torch.nn.parallel.DistributedDataParallel(net, **where)
    found = _gradients(shared, images[mine], labels[mine])
    if place.fault == "unequal" and place.rank == place.world - 1:
        found[0].add_(1.0)
    if place.fault == "wrong":
        found[0].add_(1.0)
    place.proven(*found)
    digest = _digest(found)
    off = _distance(found, expected)
    # Ranks that differ are told by their digests, by whoever sees them all.
    if place.fault != "unequal" and not off <= TOLERANCE[backend]:
        raise Wrong("the gradients are off by %.3g from those of the joined batch" % off)
    return round(off, 9), digest


def _gradients(net: Any, images: Any, labels: Any) -> List[Any]:
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    return [one.grad.detach() for one in net.parameters()]


def _distance(found: List[Any], expected: List[Any]) -> float:
    """The largest difference, in units of the largest gradient."""
    largest = max([float(one.abs().max()) for one in expected])
    off = [float((one - other).abs().max()) for one, other in zip(found, expected)]
    return max([one if one == one else float("inf") for one in off]) / largest


def _digest(found: List[Any]) -> str:
    """A short word that is equal where every bit of every gradient is."""
    text = repr([one.to("cpu").flatten().tolist() for one in found])
    return "%08x" % (zlib.crc32(text.encode("ascii")) & 0xFFFFFFFF)


def _met(store: Any, place: Place) -> None:
    """Stay until every rank has what it needs: one that leaves early breaks the others' pipes."""
    store.set("done-%d" % place.rank, "1")
    store.wait(["done-%d" % rank for rank in range(place.world)])


def _modest() -> None:
    """NCCL takes its buffers by the number of channels; a guest takes few."""
    os.environ.setdefault("NCCL_MAX_NCHANNELS", "4")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

"""What the recipes share: options, timing, hooks and the verdict. No recipe's technique is here.

A recipe describes its technique at the top, between two marked lines, and proves it below them:

    def prove(proof: Proof) -> None:
        train = proof.technique(train_fp16, instead=train_fp32)
        ...
        proof.same(off < 0.05, f"losses within {off:.1%} of fp32")
        proof.active(seen == {torch.float16}, f"the layers computed in {seen}")
        proof.purpose(saved < plain / 1.5, f"{saved} bytes kept for backward() instead of {plain}")

    if __name__ == "__main__":
        main(__doc__, prove, steps=(100, 20), width=(256, 64))

Every claim is a measured statement. `proved` needs all of them to hold, and at least one that saw
the technique at work. With --off, the recipe runs without its technique and must say `not proved`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

Batch = tuple[torch.Tensor, torch.Tensor]
T = TypeVar("T")


class Skipped(Exception):
    """Something that the recipe needs is missing; the message says what."""


def skip(reason: str) -> NoReturn:
    raise Skipped(reason)


class Proof:
    """The options of a run, and the claims that it has collected.

    device: "cuda" or "cpu". off: run without the technique. small: the sizes of a quick test.
    Every size that the recipe declares is an attribute too (`proof.steps`).
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device: str = options.device
        self.off: bool = options.off
        self.small: bool = options.small
        self.claims: list[tuple[str, bool, str]] = []

    def __getattr__(self, size: str) -> Any:
        return getattr(self.__dict__["options"], size)

    def technique(self, with_it: T, *, instead: T) -> T:
        """The technique, or its replacement with --off."""
        return instead if self.off else with_it

    def same(self, held: object, text: str) -> None:
        """Claim that the result is what it would be without the technique."""
        self._claim("same result", held, text)

    def active(self, held: object, text: str) -> None:
        """Claim that the technique was seen at work: by a hook, a counter, a type or an address."""
        self._claim("seen at work", held, text)

    def purpose(self, held: object, text: str) -> None:
        """Claim that the technique does what people use it for."""
        self._claim("purpose", held, text)

    def _claim(self, kind: str, held: object, text: str) -> None:
        self.claims.append((kind, bool(held), text))
        print(f"{'ok    ' if held else 'FAILED'} {kind}: {text}")

    def train(self, name: str, steps: Iterable[Any]) -> list[float]:
        """Run a training loop that yields losses; print its time per step. Returns the losses."""
        losses: list[float] = []
        clock = [time.perf_counter()]
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        for loss in steps:
            losses.append(float(loss))  # waits for the device
            clock.append(time.perf_counter())
        ms = [1e3 * (end - start) for start, end in itertools.pairwise(clock)]
        ms = sorted(ms[len(ms) // 4 :])  # without the warm-up
        line = f"{name:<24} loss {losses[-1]:.4g}, {statistics.median(ms):.2f} ms per step"
        line += f" ({ms[0]:.2f} to {ms[-1]:.2f})"
        if torch.cuda.is_initialized():
            line += f", peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
        print(line)
        return losses

    def verdict(self) -> int:
        """Print the last line; returns the exit code."""
        kinds = [kind for kind, _, _ in self.claims]
        if "seen at work" not in kinds or len(set(kinds)) < 2:
            raise AssertionError("a proof needs a claim that saw the technique, and its effect")
        failed = [f"{kind}: {text}" for kind, held, text in self.claims if not held]
        if failed:
            print(f"not proved: {'; '.join(failed)}")
            return 1
        print(f"proved: all {len(self.claims)} claims above hold")
        return 0


def main(
    doc: str | None, prove: Callable[[Proof], None], **sizes: int | tuple[int, int]
) -> NoReturn:
    """Run a recipe from the command line and exit. sizes: name -> default, or default and small."""
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--device", choices=devices, default=devices[0])
    parser.add_argument("--off", action="store_true", help="run without the technique")
    parser.add_argument("--small", action="store_true", help="run a quick test with small sizes")
    small = "--small" in sys.argv[1:]
    for name, size in sizes.items():
        default, least = size if isinstance(size, tuple) else (size, size)
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=int, default=least if small else default, help="%(default)s"
        )
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the launcher of DeepSpeed adds it
    proof = Proof(parser.parse_args())
    torch.manual_seed(0)
    try:
        prove(proof)
    except Skipped as reason:
        print(f"skipped: {reason}")
        raise SystemExit(0) from None
    raise SystemExit(proof.verdict())


# --- workloads -----------------------------------------------------------------------------------


def labeled(
    steps: int, width: int, device: str, *, size: int = 64, classes: int = 10
) -> list[Batch]:
    """Batches of points, labeled by a random linear teacher; eight batches, repeated."""
    draw = torch.Generator().manual_seed(0)
    teacher = torch.randn(width, classes, generator=draw)
    inputs = [torch.randn(size, width, generator=draw) for _ in range(min(8, steps))]
    made = [(x.to(device), (x @ teacher).argmax(1).to(device)) for x in inputs]
    return (made * steps)[:steps]


def perceptron(width: int, device: str, *, classes: int = 10, seed: int = 0) -> torch.nn.Sequential:
    """A network with one hidden layer; the same weights for the same seed."""
    torch.manual_seed(seed)
    layers = (
        torch.nn.Linear(width, 2 * width),
        torch.nn.GELU(),
        torch.nn.Linear(2 * width, classes),
    )
    return torch.nn.Sequential(*layers).to(device)


def train_plain(
    model: torch.nn.Module, batches: Iterable[Batch], lr: float = 0.05
) -> Iterator[torch.Tensor]:
    """A loop without any technique: fp32, SGD; yields the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def apart(losses: Iterable[float], others: Iterable[float]) -> float:
    """The largest difference between two runs, relative to the first loss."""
    ours, theirs = list(losses), list(others)
    if len(ours) != len(theirs):
        return float("inf")
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / abs(theirs[0])


# --- what was seen -------------------------------------------------------------------------------


@contextlib.contextmanager
def outputs_seen(model: torch.nn.Module, *kinds: type) -> Iterator[list[torch.Tensor]]:
    """Collects what the layers of these kinds return (all leaf layers if none is given)."""
    seen: list[torch.Tensor] = []
    layers = [
        layer
        for layer in model.modules()
        if (isinstance(layer, kinds) if kinds else not list(layer.children()))
    ]
    hooks = [
        layer.register_forward_hook(lambda _layer, _args, out: seen.append(out.detach()))
        for layer in layers
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def saved_bytes(forward: Callable[[], Any], known: Iterable[torch.Tensor] = ()) -> int:
    """Bytes that autograd keeps for backward() of this forward pass, without the `known` ones."""
    own = {tensor.untyped_storage().data_ptr() for tensor in known}
    held: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # an address must not be used twice while we count

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(held.values())


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most memory that tensors held at once during this run, beyond what was there before."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    with torch.profiler.profile(profile_memory=True) as profiled:
        run()
    found = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(found, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0)


class operations_seen(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # noqa: N801
    """Collects the names of the operations that torch runs, such as "aten::addmm".

    What a CUDA graph or a fused kernel does by itself is not in it: that is the point of both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(operation._schema.name)
        return operation(*args, **(kwargs or {}))


@contextlib.contextmanager
def updates_seen(look: Callable[[Any], T]) -> Iterator[list[T]]:
    """Collects look(optimizer), called just before every update of any optimizer."""
    seen: list[T] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, _args, _options: seen.append(look(optimizer))
    )
    try:
        yield seen
    finally:
        hook.remove()


def peak_saved_bytes(run: Callable[[], Any], known: Iterable[torch.Tensor] = ()) -> int:
    """The most bytes that autograd keeps for backward() at one time, without the `known` ones."""
    own = {tensor.untyped_storage().data_ptr() for tensor in known}
    users: dict[int, int] = {}  # of each storage
    now = peak = 0

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal now, peak
            self.tensor = tensor
            self.storage = tensor.untyped_storage()
            self.address = self.storage.data_ptr()
            users[self.address] = users.get(self.address, 0) + 1
            if users[self.address] == 1 and self.address not in own:
                now += self.storage.nbytes()
                peak = max(peak, now)

        def __del__(self) -> None:  # backward() has used it
            nonlocal now
            users[self.address] -= 1
            if users[self.address] == 0 and self.address not in own:
                now -= self.storage.nbytes()

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run()
    return peak


@contextlib.contextmanager
def calls_seen(owner: Any, name: str) -> Iterator[list[tuple[Any, ...]]]:
    """Collects the positional arguments of every call of owner.name, which still happens."""
    original, seen = getattr(owner, name), list[tuple[Any, ...]]()

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(args)
        return original(*args, **options)

    setattr(owner, name, watched)
    try:
        yield seen
    finally:
        setattr(owner, name, original)


# --- several processes ---------------------------------------------------------------------------


def in_processes(worker: Callable[..., Any], device: str, *args: Any) -> list[Any]:
    """Run worker(rank, world, *args) in one process per GPU, or in two on a CPU.

    torch.distributed is initialized there (NCCL or Gloo). Returns what each rank returned; skips
    the recipe if there is only one GPU. Under torchrun, this process is one of the ranks: only
    rank 0 goes on, the others exit.
    """
    if "RANK" in os.environ:
        return _as_rank(worker, device, args)
    world = torch.cuda.device_count() if device == "cuda" else 2
    if world < 2:
        skip("this needs at least two GPUs; to try it on a CPU, pass --device cpu")
    # Forks share the import of torch, which takes longer than most runs; CUDA does not allow it.
    forks = device == "cpu" and sys.platform == "linux"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _work,
            (worker, device, world, folder, args),
            nprocs=world,
            start_method="fork" if forks else "spawn",
        )
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _as_rank(worker: Callable[..., Any], device: str, args: Any) -> list[Any]:
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    said: list[Any] = [None] * world
    dist.all_gather_object(said, worker(rank, world, *args))
    dist.barrier()  # no process may leave while another still needs it
    dist.destroy_process_group()
    if rank:
        raise SystemExit(0)
    return said


def _work(
    rank: int, worker: Callable[..., Any], device: str, world: int, folder: str, args: Any
) -> None:
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    store = dist.FileStore(str(Path(folder) / "store"), world)
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    said = worker(rank, world, *args)
    dist.barrier()  # no process may leave while another still needs it
    dist.destroy_process_group()
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(said))

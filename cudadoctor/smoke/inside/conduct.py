"""The order of things: one import of torch, the looks, the stages, the ranks."""

import sys
import time
from typing import Any, Dict

import torch

from . import looks, wire
from .chain import Task
from .choosing import Chosen, choose
from .spec import EARLY, LATE, Spec
from .workers import Board


def conduct(spec: Spec) -> None:
    """Ask torch, then run every stage where it can be run."""
    board = Board(spec, _forks(spec))
    looks.maps()
    look = board.start(Task(["cuda"]))
    others = [board.start(Task(["numpy"]))]
    others += [board.start(Task(["companion " + name])) for name in looks.companions()]
    if spec.mode == "full":
        _stages(board, spec, look)
    board.pump(lambda: not board.live)


def _forks(spec: Spec) -> bool:
    """A fork of a process that has touched CUDA is useless; macOS and Windows have none to use."""
    if spec.start:
        return spec.start == "fork"
    return sys.platform.startswith("linux") and not torch.cuda.is_initialized()


def _stages(board: Board, spec: Spec, look: Any) -> None:
    """On a CPU everything side by side; on GPUs one guest at a time."""
    early = None
    if spec.device != "cpu":
        board.pump(lambda: look.over or bool(_heard(board)), 0.25)
    if spec.device == "cpu" or _heard(board):
        early = _begun(board, spec)
    if board.forks:
        spec.dynamo = _dynamo()
    board.pump(lambda: look.over or early is not None)
    if early is None and look.last == ("cuda", "timed-out"):
        _mute(board, spec)
        return
    chosen = early or _begun(board, spec)
    if chosen.error:
        return
    if chosen.devices:
        board.pump(lambda: not [one for one in board.live if one.task.device != "cpu"])
        missed = _missed(board)
        if missed:
            board.skip(["ddp"], missed)
            return
    else:
        board.start(Task(LATE))
    _ranks(board, spec, chosen)


def _mute(board: Board, spec: Spec) -> None:
    """A driver that does not answer stops every backward pass, also one on the CPU."""
    why = "CUDA does not answer, and torch asks it in every backward pass, also on the CPU"
    wire.say("device", device=spec.device or "cpu", skipped=())
    wire.say("end", stage="allocate", status="timed-out", seconds=None, detail=why, figures={})
    board.skip(EARLY[1:] + LATE + ("ddp",), "allocate did not pass")


def _begun(board: Board, spec: Spec) -> Chosen:
    """Choose the devices, say so, and begin what needs no optimizer (on a GPU: everything)."""
    chosen = choose(spec, {} if spec.device == "cpu" else _heard(board))
    wire.say(
        "device", device=spec.device if chosen.error else chosen.device(), skipped=chosen.skipped
    )
    if chosen.error:
        wire.say(
            "end", stage="allocate", status="failed", seconds=0.0, detail=chosen.error, figures={}
        )
        board.skip(EARLY[1:] + LATE + ("ddp",), "allocate did not pass")
    elif chosen.devices:
        board.start(Task(EARLY + LATE, chosen.device()))
    else:
        board.start(Task(EARLY))
    return chosen


def _ranks(board: Board, spec: Spec, chosen: Chosen) -> None:
    world = chosen.world(spec.ranks)
    for rank in range(world):
        board.start(Task(["ddp"], chosen.device(rank), rank, world))


def _missed(board: Board) -> str:
    """Why it is of no use to start ranks on the GPUs, "" where nothing speaks against it."""
    if b'"stage": "allocate", "status": "passed"' not in b"".join(board.heard):
        return "allocate did not pass"
    return "the GPU did not come back from %s" % board.stuck if board.stuck else ""


def _heard(board: Board) -> Dict[str, Any]:
    """What the first look at CUDA said; nothing as long as it has not, or where it died."""
    import json

    for line in board.heard:
        if line.startswith(b'{"kind": "cuda"'):
            found: Dict[str, Any] = json.loads(line.decode("ascii"))
            return found
    return {}


def _dynamo() -> str:
    """What the first optimizer would import in every worker: once, before they are forked.

    Says what went wrong, which a second import of it would not repeat.
    """
    began = time.monotonic()
    try:
        import torch._dynamo  # noqa: F401
    except BaseException as problem:
        # Absent before torch 2; broken where triton, sympy or the temporary folder are.
        absent = getattr(problem, "name", "") == "torch._dynamo"
        wire.say("dynamo", error=wire.words(problem))
        return "" if absent else wire.words(problem)
    wire.say("dynamo", error="", seconds=round(time.monotonic() - began, 4))
    return ""

"""Inside a worker: run its stages one after another, and say so."""

import ctypes
import faulthandler
import os
import signal
import sys
import time
import warnings
from typing import Any, Callable, Dict, Tuple

from . import wire
from .spec import LATE, Spec

Said = Tuple[str, Dict[str, Any]]


class Task:
    """What one worker does. early: it needs no optimizer, so torch._dynamo is not waited for."""

    def __init__(self, stages: Any, device: str = "cpu", rank: int = -1, world: int = 1) -> None:
        self.stages = tuple(stages)
        self.device = device
        self.rank = rank
        self.world = world

    def text(self) -> str:
        """As one word, for the command line of a spawned worker."""
        return "%s|%s|%d|%d" % (",".join(self.stages), self.device, self.rank, self.world)


def task_of(text: str) -> Task:
    """The task that `Task.text` wrote."""
    stages, device, rank, world = text.split("|")
    return Task(stages.split(","), device, int(rank), int(world))


def run(task: Task, spec: Spec) -> None:
    """Every stage of the task. Ends the process where a CUDA error has spoilt its context."""
    _settle_in()
    place: Any = None
    if task.stages[0].split(" ")[0] not in LOOKS:
        from .place import Place

        device = "cpu" if spec.pretend else task.device
        place = Place(device, spec.scratch, max(task.rank, 0), task.world, spec.careful)
    for stage in task.stages:
        if not _one(stage, task, spec, place):
            break
    if place is not None and place.gpu and task.rank <= 0:
        _look("maps", spec)


def _one(stage: str, task: Task, spec: Spec, place: Any) -> bool:
    """Run a stage; False where the process cannot go on."""
    rank = {"rank": task.rank} if task.rank >= 0 else {}
    limit = spec.limit(stage)
    wire.say("start", stage=stage, **rank)
    # The trace of a hang is written shortly before whoever watches us ends us.
    faulthandler.dump_traceback_later(limit * 0.9, exit=False, file=wire.descriptor())
    began = time.monotonic()
    status, (detail, figures) = _tried(stage, spec, place, limit)
    faulthandler.cancel_dump_traceback_later()
    seconds = round(time.monotonic() - began, 4)
    end: Dict[str, Any] = dict(rank, status=status, seconds=seconds, detail=detail, figures=figures)
    broke = status == "broke"
    if broke:
        end["status"] = "failed"
    # The order of the first keys is what the watch reads.
    wire.say("end", stage=stage, status=end.pop("status"), **end)
    if stage == "allocate" and status != "passed":
        return False
    # An error of CUDA spoils every later call of the process.
    return not (broke and task.device != "cpu")


def _tried(stage: str, spec: Spec, place: Any, limit: float) -> Tuple[str, Said]:
    """How a stage ended: passed, skipped, failed, or broke where it did not even get to judge."""
    name = stage.split(" ")[0]
    fault = spec.fault(name)
    try:
        _planted(fault, place)
        if place is not None:
            place.begin(limit, fault)
            return "passed", _stage(name)(place)
        _look(stage, spec)
    except BaseException as problem:
        # A file of the user's that torch loads can also raise SystemExit.
        kind = type(problem).__name__
        if kind in ("Skip", "Wrong"):
            return {"Skip": "skipped", "Wrong": "failed"}[kind], (str(problem), {})
        if spec.dynamo and fault == "" and stage in LATE + ("ddp",):
            return "broke", ("import torch._dynamo: " + spec.dynamo, {})
        return "broke", (wire.words(problem), {})
    return "passed", ("", {})


def _planted(fault: str, place: Any) -> None:
    """What a test wants to see fail. A rank fails alone: the others must not hang for it."""
    if place is not None and place.world > 1 and place.rank != place.world - 1:
        return
    if fault == "error":
        raise RuntimeError("a planted error")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(1e6)


def _stage(name: str) -> Callable[[Any], Said]:
    """The function of a stage; its module is loaded only where it runs."""
    if name in ("allocate", "matmul", "conv"):
        from . import tensors

        return {"allocate": tensors.allocate, "matmul": tensors.matmul, "conv": tensors.conv}[name]
    if name == "checkpoint":
        from . import resuming

        return resuming.checkpoint
    if name == "ddp":
        from . import ranks

        return ranks.ddp
    from . import training

    return {
        "train-fp32": training.train_fp32,
        "amp-fp16": training.amp_fp16,
        "amp-bf16": training.amp_bf16,
    }[name]


LOOKS = ("cuda", "numpy", "companion", "maps")


def _look(stage: str, spec: Spec) -> None:
    from . import looks

    name, _, what = stage.partition(" ")
    if name == "cuda" and spec.pretend:
        looks.pretended(spec.pretend)
    elif name == "companion":
        looks.companion(what)
    else:
        {"cuda": looks.cuda, "numpy": looks.numpy_bridge, "maps": looks.maps}[name]()


def _settle_in() -> None:
    """A crash leaves its trace with us and no core file; we do not outlive who watches us."""
    warnings.simplefilter("ignore")
    faulthandler.enable(file=wire.descriptor())
    no_core()
    if sys.platform.startswith("linux"):
        set_at_parents_death, kill = 1, 9
        ctypes.CDLL(None).prctl(set_at_parents_death, kill)


def no_core() -> None:
    """A crash must not write a core file into the user's folder."""
    if sys.platform.startswith("linux"):
        limit_core, none = 4, (ctypes.c_ulong * 2)(0, 0)
        ctypes.CDLL(None).setrlimit(limit_core, none)

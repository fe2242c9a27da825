"""The order of things: one import of torch, the looks, the stages, the ranks; and who does them.

Workers are forked where that is possible, else started anew; the board watches them.
"""

import faulthandler
import gc
import json
import os
import queue
import select
import subprocess
import sys
import threading
from math import inf
from time import monotonic
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from . import looks, process, stages, wire
from .process import Fork
from .spec import COMPILE, EARLY, LATE, WITHOUT, Chosen, Fields, Spec, Task, choose
from .wire import say

# A spawned worker imports torch before its first stage.
IMPORT_S = 120.0
NO_TIME = "no time left"
NO_DEVICE = "the allocate stage did not pass"


def conduct(words: Sequence[str], began: float) -> None:
    """Ask torch, then run every stage where it can be run. began: when the child did."""
    Board(Spec(words), began).conduct()


def work(words: Sequence[str]) -> None:
    """The life of a worker that was started anew."""
    Run(Task(*json.loads(words[0])), Spec(words[1:]))


# --- workers and their watch ------------------------------------------------------------------


class Spawned(process.Child):
    """A new interpreter, where there is no fork or a fork would not be safe."""

    def __init__(self, task: Task, spec: Spec, mail: Any) -> None:
        super().__init__()
        words = ["task", json.dumps(task)] + list(spec.words)
        self.popen = subprocess.Popen(
            [sys.executable, "-c", wire.BOOT, os.path.dirname(__file__)] + words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.kill = self.popen.kill
        threading.Thread(target=self._read, args=(mail,), daemon=True).start()

    def _read(self, mail: Any) -> None:
        handle: Any = self.popen.stdout
        data = b"-"
        while data:
            data = os.read(handle.fileno(), 1 << 16)
            mail.put((self, data))

    def code(self, wait_s: float) -> Optional[int]:
        try:
            return self.popen.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None


class Worker:
    """Who runs a task. left: stages without an end; stage: the one that runs now; last: how the
    one before ended; doomed: when it is ended for the fault of another rank, and why.
    """

    stage = ""
    last = ("", "")
    doomed = (inf, "")

    def __init__(self, task: Task, child: Any) -> None:
        self.task = task
        self.child = child
        self.left = list(task.stages)
        self.began = monotonic()


class Board:
    """All workers: passes their lines on, ends those that hang, tells what became of them.

    ends: how each stage of any worker ended last. look: what the first look at CUDA said, if it
    did. stuck: why the GPU is out of reach.
    """

    def __init__(self, spec: Spec, began: float) -> None:
        self.spec = spec
        self.until = began + spec.until
        # A fork of a process that has touched CUDA is useless; macOS and Windows have none to use.
        can = sys.platform.startswith("linux") and not torch.cuda.is_initialized()
        self.forks = spec.start == "fork" if spec.start else can
        self.mail: Any = queue.Queue()
        self.live: Dict[Any, Worker] = {}
        self.ends: Dict[str, str] = {}
        self.look: Fields = {}
        self.stuck = ""
        self.later = [*sum(spec.late(), []), "ddp"]

    def conduct(self) -> None:
        """The looks and, where they are wanted, the stages."""
        looks.maps()
        names = ["companion " + name for name in looks.COMPANIONS if looks.there(name)]
        for name in ["cuda", "numpy"] + names:
            self._start(Task([name]))
        if self.spec.mode == "full":
            self._stages()
        self._pump(lambda: not self.live)

    def _stages(self) -> None:
        """On a CPU everything side by side; on GPUs one guest at a time."""
        spec = self.spec
        if spec.device != "cpu":
            self._pump(lambda: self.look or "cuda" in self.ends, 0.25)
        chosen = self._begun() if spec.device == "cpu" or self.look else None
        if self.forks:
            spec.dynamo = _dynamo()
        if chosen is None:
            self._pump(lambda: "cuda" in self.ends)
            if self.ends.get("cuda") == "timed-out":
                # A driver that does not answer stops every backward pass, also one on the CPU.
                say("device", device=spec.device or "cpu", skipped=())
                asks = "torch queries it in every backward pass, even on the CPU"
                self._give_up("timed-out", None, "CUDA is not responding, and " + asks)
                return
            chosen = self._begun()
        if chosen.error:
            return
        if chosen.devices:
            self._until_idle()
            missed = self.stuck if self.ends.get("allocate") == "passed" else NO_DEVICE
            if missed:
                self._skip(self.later, missed)
                return
        for late in spec.late():
            self._start(Task(late, chosen.device()))
            if chosen.devices:
                self._until_idle()
        self._ranks("ddp", chosen)
        if len(chosen.devices) > 1:
            self._without(chosen)

    def _ranks(self, stage: str, chosen: Chosen) -> None:
        """Start the ranks of a distributed stage, one a GPU, or as many as asked for on the CPU."""
        world = chosen.world(self.spec.ranks)
        for rank in range(world):
            self._start(Task([stage], chosen.device(rank), rank, world))

    def _without(self, chosen: Chosen) -> None:
        """Where the ranks fail, run them again without one transport after the other, until they
        pass: that transport is at fault.
        """
        self._until_idle()
        for stage, (name, value) in WITHOUT.items():
            if self.ends.get("ddp") not in ("failed", "timed-out"):
                return
            if os.environ.get(name) != value:
                self._ranks(stage, chosen)
                self._until_idle()
                if self.ends.get(stage) == "passed":
                    return

    def _until_idle(self) -> None:
        """Wait until no worker uses a GPU."""
        self._pump(lambda: all([worker.task.device == "cpu" for worker in self.live.values()]))

    def _begun(self) -> Chosen:
        """Choose the devices, say so, and begin the early stages on each of them."""
        device = self.spec.device
        chosen = choose(device, self.spec.skip, {} if device == "cpu" else self.look)
        device = device if chosen.error else chosen.device()
        say("device", device=device, skipped=chosen.skipped)
        if chosen.error:
            self._give_up("failed", 0.0, chosen.error)
        for rank in range(0 if chosen.error else len(chosen.devices) or 1):
            self._start(Task(EARLY, chosen.device(rank)))
        return chosen

    def _give_up(self, status: str, seconds: Optional[float], why: str) -> None:
        """The first stage fails in place of all."""
        say("end", stage="allocate", status=status, seconds=seconds, detail=why)
        self._skip([*EARLY[1:], *self.later], NO_DEVICE)

    def _skip(self, names: Iterable[str], why: str) -> None:
        """Say of stages that they are not run, and why."""
        for name in names:
            say("end", stage=name, status="skipped", seconds=0.0, detail=why)

    def _start(self, task: Task) -> None:
        if monotonic() >= self.until:
            self._skip([] if task.rank else task.stages, NO_TIME)
            return
        child: Any = None
        if self.forks:
            child = Fork(lambda: Run(task, self.spec), self.live)
        else:
            child = Spawned(task, self.spec, self.mail)
        self.live[child] = Worker(task, child)

    def _pump(self, done: Callable[[], Any], seconds: float = 1e6) -> None:
        """Read and watch until it is done, or for so long."""
        until = monotonic() + seconds
        while not done() and self.live and monotonic() < until:
            for child, data in self._arrivals(min(0.25, seconds)):
                if child in self.live:
                    self._take(self.live[child], data)
            for worker in list(self.live.values()):
                self._watch(worker)

    def _arrivals(self, wait: float) -> List[Tuple[Any, bytes]]:
        if self.forks:
            by_pipe = {child.back: child for child in self.live}
            ready = select.select(list(by_pipe), [], [], wait)[0]
            return [(by_pipe[pipe], os.read(pipe, 1 << 16)) for pipe in ready]
        try:
            return [self.mail.get(timeout=wait)]
        except queue.Empty:
            return []

    def _take(self, worker: Worker, data: bytes) -> None:
        for line in worker.child.take(data):
            self._pass_on(worker, line)
        if not data:
            self._ended(worker, worker.child.code(1.0))

    def _pass_on(self, worker: Worker, line: Fields) -> None:
        """A line of a worker, or one in its place; its stages are followed."""
        ended_badly = line["kind"] == "end" and line["status"] in ("failed", "timed-out")
        if ended_badly and worker.task.rank is not None:
            warned = stages.nccl_warning(self.spec, line["stage"], worker.task.rank)
            line["detail"] += "; NCCL: " + warned if warned else ""
        if line["kind"] in ("start", "end"):
            line["device"] = worker.task.device
        say(**line)
        if line["kind"] == "cuda":
            self.look = line
        if line["kind"] not in ("start", "end"):
            return
        stage = line["stage"]
        worker.began = monotonic()
        worker.stage = stage if line["kind"] == "start" else ""
        if line["kind"] == "end":
            worker.left.remove(stage)
            worker.last = stage, line["status"]
            # Of several GPUs the first that fails decides.
            if self.ends.get(stage) in (None, "passed"):
                self.ends[stage] = line["status"]

    def _watch(self, worker: Worker) -> None:
        """End a worker whose stage, or the whole step, has had its time."""
        now = monotonic()
        took = now - worker.began
        limit = self.spec.limit_s(worker.stage) if worker.stage else IMPORT_S
        doomed, why = worker.doomed
        if took < limit and now < min(self.until, doomed):
            return
        worker.child.kill()
        if now < doomed:
            why = "no response within %.3g s%s" % (took, process.where(worker.child.trace))
        if worker.left:
            self._lost(worker, "timed-out", why)
        self._ended(worker, None)

    def _ended(self, worker: Worker, code: Optional[int]) -> None:
        del self.live[worker.child]
        if self.forks:
            worker.child.close()
        if worker.stage or (worker.left and not worker.last[0]):
            number = -code if code is not None and code < 0 else None
            self._lost(worker, "failed", process.ending(code, worker.child.trace), number)
        if worker.task.rank is None:
            if worker.left:
                self._go_on(worker)
        elif worker.last[1] != "passed":
            # Ranks wait for each other: the others get a moment to say so too.
            why = "stopped because rank %d did not pass" % worker.task.rank
            for other in self.live.values():
                if other.task.rank is not None:
                    other.doomed = min(other.doomed, (monotonic() + 0.5, why))

    def _lost(self, worker: Worker, status: str, why: str, number: Optional[int] = None) -> None:
        """Say the end of a stage in the place of a worker that cannot. number: of a signal."""
        line = {
            "kind": "end",
            "stage": worker.stage or worker.left[0],
            "status": status,
            "seconds": round(monotonic() - worker.began, 4),
            "detail": why,
            "lost": True,
            "rank": worker.task.rank,
            "signal": number,
        }
        self._pass_on(worker, line)

    def _go_on(self, worker: Worker) -> None:
        """The stages behind a crash run in a new process, unless the device is out of reach."""
        (stage, status), why = worker.last, ""
        if monotonic() >= self.until:
            why = NO_TIME
        elif worker.task.device != "cpu" and status == "timed-out":
            why = self.stuck = "the GPU did not complete " + stage
        elif stage == "allocate":
            why = NO_DEVICE
        elif status == "timed-out" and self.ends.get("cuda", "timed-out") == "timed-out":
            # The first look at CUDA still waits, or waited until it was ended.
            why = "CUDA did not respond while %s was waiting for it" % stage
        if why:
            self._skip(worker.left, why)
        else:
            self._start(Task(worker.left, worker.task.device))


def _dynamo() -> str:
    """What the first optimizer would import in every worker: once, before they are forked.

    Says what went wrong, which a second import of it would not repeat.
    """
    gc.disable()  # as for torch: nothing that an import makes is garbage
    try:
        import torch._dynamo  # noqa: F401
    except BaseException as problem:
        # Absent before torch 2; broken where triton, sympy or the temporary folder are.
        return "" if getattr(problem, "name", "") == "torch._dynamo" else wire.words(problem)
    finally:
        if hasattr(gc, "freeze"):
            gc.freeze()
        gc.enable()
    return ""


# --- inside a worker --------------------------------------------------------------------------


class Run:
    """The stages of a task, one after the other, until one leaves a process that cannot go on."""

    place: Optional[stages.Place] = None

    def __init__(self, task: Task, spec: Spec) -> None:
        self.task = task
        self.spec = spec
        process.settle_in()
        for stage in task.stages:
            if not self._goes_on(stage):
                break
        if self.place is not None and self.place.gpu and not task.rank:
            looks.maps()

    def _goes_on(self, stage: str) -> bool:
        """Run a stage; False where the process cannot go on."""
        name, _, what = stage.partition(" ")
        limit_s, fault = self.spec.limit_s(stage), self.spec.fault(name)
        status, detail, going = "passed", "", True
        figures: Dict[str, Any] = {}
        say("start", stage=stage, rank=self.task.rank)
        # The trace of a hang is written shortly before whoever watches us ends us.
        faulthandler.dump_traceback_later(limit_s * 0.9, exit=False, file=wire.Ends.send)
        began = monotonic()
        try:
            # A rank fails alone: the others must not hang for it.
            if self.task.rank in (None, self.task.world - 1):
                process.planted(fault)
            if name in stages.STAGES:
                self.place = self.place or stages.Place(self.task, self.spec)
                self.place.fault = fault
                detail, figures = stages.STAGES[name](self.place)
            elif name == "cuda" and self.spec.pretend:
                looks.pretended(self.spec.pretend)
            else:
                looks.LOOKS[name](*([what] if what else []))
        except stages.Verdict as problem:
            status, detail = problem.status, str(problem)
        except BaseException as problem:
            # A file of the user's that torch loads can also raise SystemExit.
            status, detail = "failed", wire.words(problem)
            if (
                self.spec.dynamo
                and fault == ""
                and (self.task.rank is not None or stage in (*LATE, COMPILE))
            ):
                detail = "import torch._dynamo: " + self.spec.dynamo
            # An error of CUDA spoils every later call of the process.
            going = self.task.device == "cpu"
        faulthandler.cancel_dump_traceback_later()
        seconds = round(monotonic() - began, 4)
        say(
            "end",
            stage=stage,
            status=status,
            seconds=seconds,
            detail=detail,
            figures=figures,
            rank=self.task.rank,
        )
        return going and (stage != "allocate" or status == "passed")

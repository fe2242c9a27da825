"""The order of things: one import of torch, the looks, the stages, the ranks; and who does them.

Workers are forked where that is possible, else started anew; the board watches them.
"""

import faulthandler
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import looks, process, stages, wire
from .spec import EARLY, LATE, Chosen, Spec, choose

# A spawned worker imports torch before its first stage.
IMPORT_S = 120.0


def conduct(spec: Spec) -> None:
    """Ask torch, then run every stage where it can be run."""
    # A fork of a process that has touched CUDA is useless; macOS and Windows have none to use.
    can = sys.platform.startswith("linux") and not torch.cuda.is_initialized()
    board = Board(spec, spec.start == "fork" if spec.start else can)
    looks.maps()
    look = board.start(Task(["cuda"]))
    others = [board.start(Task(["numpy"]))]
    others += [board.start(Task(["companion " + name])) for name in looks.companions()]
    if spec.mode == "full":
        _stages(board, spec, look)
    board.pump(lambda: not board.live)


def _stages(board: Any, spec: Spec, look: Any) -> None:
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
        # A driver that does not answer stops every backward pass, also one on the CPU.
        wire.say("device", device=spec.device or "cpu", skipped=())
        why = "CUDA does not answer, and torch asks it in every backward pass, also on the CPU"
        _give_up(board, "timed-out", None, why)
        return
    chosen = early or _begun(board, spec)
    if chosen.error:
        return
    if chosen.devices:
        board.pump(lambda: not [one for one in board.live if one.task.device != "cpu"])
        missed = "the GPU did not come back from %s" % board.stuck if board.stuck else ""
        if b'"stage": "allocate", "status": "passed"' not in b"".join(board.heard):
            missed = "allocate did not pass"
        if missed:
            board.skip(["ddp"], missed)
            return
    else:
        board.start(Task(LATE))
    world = chosen.world(spec.ranks)
    for rank in range(world):
        board.start(Task(["ddp"], chosen.device(rank), rank, world))


def _give_up(board: Any, status: str, seconds: Optional[float], why: str) -> None:
    """The first stage fails in place of all."""
    wire.say("end", stage="allocate", status=status, seconds=seconds, detail=why, figures={})
    board.skip(EARLY[1:] + LATE + ("ddp",), "allocate did not pass")


def _begun(board: Any, spec: Spec) -> Chosen:
    """Choose the devices, say so, and begin what needs no optimizer (on a GPU: everything)."""
    chosen = choose(spec.device, spec.skip, {} if spec.device == "cpu" else _heard(board))
    wire.say(
        "device", device=spec.device if chosen.error else chosen.device(), skipped=chosen.skipped
    )
    if chosen.error:
        _give_up(board, "failed", 0.0, chosen.error)
    elif chosen.devices:
        board.start(Task(EARLY + LATE, chosen.device()))
    else:
        board.start(Task(EARLY))
    return chosen


def _heard(board: Any) -> Dict[str, Any]:
    """What the first look at CUDA said; nothing as long as it has not, or where it died."""
    for line in board.heard:
        if line.startswith(b'{"kind": "cuda"'):
            found: Dict[str, Any] = json.loads(line.decode("ascii"))
            return found
    return {}


def _dynamo() -> str:
    """What the first optimizer would import in every worker: once, before they are forked.

    Says what went wrong, which a second import of it would not repeat.
    """
    try:
        import torch._dynamo  # noqa: F401
    except BaseException as problem:
        # Absent before torch 2; broken where triton, sympy or the temporary folder are.
        return "" if getattr(problem, "name", "") == "torch._dynamo" else wire.words(problem)
    return ""


# --- workers and their watch ------------------------------------------------------------------


class Task:
    """What one worker does. early: it needs no optimizer, so torch._dynamo is not waited for."""

    def __init__(self, stages: Any, device: str = "cpu", rank: int = -1, world: int = 1) -> None:
        self.stages = tuple(stages)
        self.device = device
        self.rank = rank
        self.world = world

    def text(self) -> str:
        """As one word, for the command line of a worker that is started anew."""
        return "%s|%s|%d|%d" % (",".join(self.stages), self.device, self.rank, self.world)


class Worker:
    """A child that runs a task. left: stages without an end; stage: the one that runs now."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.left: List[str] = list(task.stages)
        self.stage = ""
        self.last: Tuple[str, str] = ("", "")
        self.began = time.monotonic()
        self.trace: List[str] = []
        self.over = False
        self.doomed: Tuple[float, str] = (float("inf"), "")
        self.rest = b""

    def take(self, data: bytes) -> List[bytes]:
        """The whole lines that this piece completes; those that are no JSON are a trace."""
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            if line.startswith(b"{"):
                self._note(line)
            else:
                self.trace.append(line.decode("utf-8", "replace"))
        return [line for line in lines if line.startswith(b"{")]

    def _note(self, line: bytes) -> None:
        """Follow its stages: a line begins with its kind and its stage."""
        words = line.split(b'"', 12)
        if len(words) < 9 or words[3] not in (b"start", b"end"):
            return
        stage = words[7].decode()
        self.began = time.monotonic()
        if words[3] == b"start":
            self.stage = stage
            self.trace = []
        else:
            self.left.remove(stage)
            self.last = (stage, words[11].decode())
            self.stage = ""


class Forked(Worker):
    """A copy of this process, with torch already imported."""

    def __init__(self, task: Task, spec: Spec) -> None:
        Worker.__init__(self, task)
        self.pipe, theirs = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                wire.use(0, theirs)
                run(task, spec)
                code = 0
            finally:
                os._exit(code)  # Python's own ending belongs to the parent
        os.close(theirs)

    def code(self) -> Optional[int]:
        """Its exit status, negative for a signal; None where it does not end."""
        for _ in range(100):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return process.exit_code(status)
            time.sleep(0.01)
        return None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Spawned(Worker):
    """A new interpreter, where there is no fork or a fork would not be safe."""

    def __init__(self, task: Task, spec: Spec, mail: Any) -> None:
        Worker.__init__(self, task)
        words = [word for word in spec.words if not word.startswith("only=")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", wire.BOOT, os.path.dirname(__file__)]
            + words
            + ["only=" + task.text()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        reader = threading.Thread(target=self._read, args=(mail,))
        reader.daemon = True
        reader.start()

    def _read(self, mail: Any) -> None:
        handle: Any = self.process.stdout
        data = b"-"
        while data:
            data = os.read(handle.fileno(), 1 << 16)
            mail.put((self, data))

    def code(self) -> Optional[int]:
        try:
            return self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self.process.kill()


class Board:
    """All workers: passes their lines on, ends those that hang, tells what became of them."""

    def __init__(self, spec: Spec, forks: bool) -> None:
        self.spec = spec
        self.forks = forks
        self.mail: Any = queue.Queue()
        self.live: List[Any] = []
        self.stuck = ""
        self.silent = False
        self.heard: List[bytes] = []
        self.until = spec.began + spec.until_s

    def start(self, task: Task) -> Any:
        """Begin a task; a chain that dies is begun again behind the stage that killed it."""
        if time.monotonic() >= self.until:
            late = Worker(task)
            late.over = True
            self.skip(task.stages if task.rank <= 0 else (), "no time was left")
            return late
        worker: Any = Forked(task, self.spec) if self.forks else Spawned(task, self.spec, self.mail)
        self.live.append(worker)
        return worker

    def pump(self, done: Callable[[], bool], seconds: float = 1e6) -> None:
        """Read and watch until it is done, or for so long."""
        until = time.monotonic() + seconds
        while not done() and self.live and time.monotonic() < until:
            for worker, data in self._arrivals(min(0.25, max(0.0, until - time.monotonic()))):
                self._take(worker, data)
            for worker in list(self.live):
                self._watch(worker)

    def skip(self, stages: Any, why: str) -> None:
        """Say of stages that they are not run, and why."""
        for stage in stages:
            wire.say("end", stage=stage, status="skipped", seconds=0.0, detail=why, figures={})

    def _arrivals(self, wait: float) -> List[Any]:
        if not self.forks:
            try:
                return [self.mail.get(timeout=wait or 0.01)]
            except queue.Empty:
                return []
        by_pipe = {worker.pipe: worker for worker in self.live}
        ready = select.select(list(by_pipe), [], [], wait)[0]
        return [(by_pipe[pipe], os.read(pipe, 1 << 16)) for pipe in ready]

    def _take(self, worker: Any, data: bytes) -> None:
        for line in worker.take(data):
            self.heard.append(line)
            wire.forward(line + b"\n")
        if not data and not worker.over:
            self._ended(worker, worker.code())

    def _watch(self, worker: Any) -> None:
        """End a worker whose stage, or the whole step, has had its time."""
        if worker.over:
            return
        now = time.monotonic()
        limit = self.spec.limit(worker.stage) if worker.stage else IMPORT_S
        if now - worker.began < limit and now < min(self.until, worker.doomed[0]):
            return
        worker.kill()
        stage = worker.stage or worker.left[0]
        why = "no answer within %.3g s%s" % (now - worker.began, process.where(worker.trace))
        if now >= worker.doomed[0]:
            why = worker.doomed[1]
        self.silent = self.silent or stage == "cuda"
        self._lost(worker, stage, "timed-out", why, {})
        self._ended(worker, None)

    def _ended(self, worker: Any, code: Optional[int]) -> None:
        worker.over = True
        self.live.remove(worker)
        if self.forks:
            os.close(worker.pipe)
        if worker.stage or (worker.left and not worker.last[0]):
            by = process.ending(code, worker.trace)
            killed = {"signal": -code} if code is not None and code < 0 else {}
            self._lost(worker, worker.stage or worker.left[0], "failed", by, killed)
        if worker.task.rank < 0:
            if worker.left:
                self._go_on(worker)
        elif worker.last[1] != "passed":
            # Ranks wait for each other: the others get a moment to say so too.
            why = "ended, since rank %d did not pass" % worker.task.rank
            for other in self.live:
                if other.task.rank >= 0:
                    other.doomed = min(other.doomed, (time.monotonic() + 0.5, why))

    def _lost(self, worker: Any, stage: str, status: str, why: str, more: Any) -> None:
        """Say the end of a stage in the place of a worker that cannot."""
        if worker.task.rank >= 0:
            more = dict(more, rank=worker.task.rank)
        seconds = round(time.monotonic() - worker.began, 4)
        wire.say(
            "end",
            stage=stage,
            status=status,
            seconds=seconds,
            detail=why,
            figures={},
            lost=True,
            **more,
        )
        worker.stage = ""
        worker.left.remove(stage)
        worker.last = (stage, status)

    def _go_on(self, worker: Any) -> None:
        """The stages behind a crash run in a new process, unless the device is out of reach."""
        stage, status = worker.last
        gpu = worker.task.device != "cpu"
        if time.monotonic() >= self.until:
            self.skip(worker.left, "no time was left")
        elif gpu and status == "timed-out":
            self.skip(worker.left, "the GPU did not come back from %s" % stage)
            self.stuck = stage
        elif stage == "allocate":
            self.skip(worker.left, "%s did not pass" % stage)
        elif status == "timed-out" and (self.silent or any(w.stage == "cuda" for w in self.live)):
            # The first look at CUDA still waits, or waited until it was ended.
            self.skip(worker.left, "CUDA does not answer, and %s waited for it" % stage)
        else:
            self.start(Task(worker.left, worker.task.device))


# --- inside a worker --------------------------------------------------------------------------


def work(spec: Spec) -> None:
    """The life of a worker that was started anew."""
    stages_, device, rank, world = spec.only.split("|")
    run(Task(stages_.split(","), device, int(rank), int(world)), spec)


def run(task: Task, spec: Spec) -> None:
    """Every stage of the task, until one leaves a process that cannot go on."""
    process.settle_in()
    place: Any = None
    if task.stages[0].split(" ")[0] not in looks.LOOKS:
        device = "cpu" if spec.pretend else task.device
        place = stages.Place(
            device, spec.scratch, max(task.rank, 0), task.world, bool(spec.careful)
        )
    for stage in task.stages:
        if not _runs(stage, task, spec, place):
            break
    if place is not None and place.gpu and task.rank <= 0:
        looks.maps()


def _runs(stage: str, task: Task, spec: Spec, place: Any) -> bool:
    """Run a stage; False where the process cannot go on."""
    rank = {"rank": task.rank} if task.rank >= 0 else {}
    limit = spec.limit(stage)
    wire.say("start", stage=stage, **rank)
    # The trace of a hang is written shortly before whoever watches us ends us.
    faulthandler.dump_traceback_later(limit * 0.9, exit=False, file=wire.output_fd())
    began = time.monotonic()
    status, (detail, figures) = _tried(stage, spec, place, limit)
    faulthandler.cancel_dump_traceback_later()
    seconds = round(time.monotonic() - began, 4)
    broke = status == "broke"
    # The board reads the first keys by their order.
    line: Dict[str, Any] = {"stage": stage, "status": "failed" if broke else status}
    wire.say("end", **dict(line, seconds=seconds, detail=detail, figures=figures, **rank))
    if stage == "allocate" and status != "passed":
        return False
    # An error of CUDA spoils every later call of the process.
    return not (broke and task.device != "cpu")


def _tried(stage: str, spec: Spec, place: Any, limit: float) -> Tuple[str, stages.Said]:
    """How a stage ended: passed, skipped, failed, or broke where it did not even get to judge."""
    name, _, what = stage.partition(" ")
    fault = spec.fault(name)
    try:
        _planted(fault, place)
        if place is not None:
            place.begin(limit, fault)
            return "passed", stages.STAGES[name](place)
        if name == "cuda" and spec.pretend:
            looks.pretended(spec.pretend)
        else:
            looks.LOOKS[name](*([what] if what else []))
    except stages.Skip as problem:
        return "skipped", (str(problem), {})
    except stages.Wrong as problem:
        return "failed", (str(problem), {})
    except BaseException as problem:
        # A file of the user's that torch loads can also raise SystemExit.
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

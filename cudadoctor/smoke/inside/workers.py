"""Workers and their watch: forked where that is possible, started anew elsewhere."""

import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Callable, List, Optional, Tuple

from . import chain, wire
from .boot import BOOT
from .chain import Task
from .spec import Spec

# A spawned worker imports torch before its first stage.
IMPORT_S = 120.0


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
            _live(task, spec, theirs)
        os.close(theirs)

    def code(self) -> Optional[int]:
        """Its exit status, negative for a signal; None where it does not end."""
        for _ in range(100):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            time.sleep(0.01)
        return None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Spawned(Worker):
    """A new interpreter, where there is no fork or a fork would not be safe."""

    def __init__(self, task: Task, spec: Spec, mail: Any) -> None:
        Worker.__init__(self, task)
        words = [one for one in spec.words if not one.startswith("only=")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, os.path.dirname(__file__)]
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
        worker: Any = Worker(task)
        if time.monotonic() >= self.until:
            worker.over = True
            self.skip([one for one in task.stages if task.rank <= 0], "no time was left")
            return worker
        worker = Forked(task, self.spec) if self.forks else Spawned(task, self.spec, self.mail)
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
        why = "no answer within %.3g s%s" % (now - worker.began, _where(worker.trace))
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
            by = "%s%s" % (_end(code), _where(worker.trace))
            killed = {"signal": -code} if code is not None and code < 0 else {}
            self._lost(worker, worker.stage or worker.left[0], "failed", by, killed)
        if worker.task.rank >= 0:
            self._rank_ended(worker)
        elif worker.left:
            self._go_on(worker)

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
        elif status == "timed-out" and self._mute():
            self.skip(worker.left, "CUDA does not answer, and %s waited for it" % stage)
        else:
            self.start(Task(worker.left, worker.task.device))

    def _mute(self) -> bool:
        """Whether the first look at CUDA still waits, or waited until it was ended."""
        return self.silent or any(one.stage == "cuda" for one in self.live)

    def _rank_ended(self, worker: Any) -> None:
        """Ranks wait for each other: when one is lost, the others get a moment to say so too."""
        if worker.last[1] == "passed":
            return
        for other in self.live:
            if other.task.rank >= 0:
                why = "ended, since rank %d did not pass" % worker.task.rank
                other.doomed = min(other.doomed, (time.monotonic() + 0.5, why))


def _live(task: Task, spec: Spec, pipe: int) -> None:
    """The life of a forked worker; Python's own ending belongs to the parent."""
    code = 1
    try:
        wire.use(pipe)
        chain.run(task, spec)
        code = 0
    finally:
        os._exit(code)


def _end(code: Optional[int]) -> str:
    if code is None:
        return "the process did not end"
    if code >= 0:
        return "the process ended with status %d" % code
    try:
        return "killed by %s" % signal.Signals(-code).name
    except ValueError:
        return "killed by signal %d" % -code


def _where(trace: List[str]) -> str:
    """The innermost line of Python in a trace of faulthandler, of the thread that counts."""
    threads: List[List[str]] = []
    for line in trace:
        if "(most recent call first)" in line:
            threads.append([line])
        elif threads and line.strip().startswith("File "):
            threads[-1].append(line.strip())
    # A crash names the thread that crashed; of a hang the main thread stands last.
    threads = [one for one in threads if len(one) > 1]
    current = [one for one in threads if one[0].startswith("Current")] or threads[-1:]
    return _frame(current[0][1]) if current else ""


def _frame(line: str) -> str:
    """`File "/a/b.py", line 3 in f` as `, in f (b.py, line 3)`."""
    path, _, rest = line[len('File "') :].partition('", line ')
    number, _, name = rest.partition(" in ")
    return ", in %s (%s, line %s)" % (name, os.path.basename(path), number)

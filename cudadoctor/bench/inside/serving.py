"""The stable: forks a runner for every order, passes words on, and tells how each one ended."""

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import time
import warnings
from typing import Any, Dict, List

from . import leaving, wire

REAP_S = 0.2
"""How often it is looked whether a runner has ended."""


class Runner:
    """A forked child: its process, the pipe to it and the pipe from it."""

    def __init__(self, pid: int, to: int, back: int) -> None:
        self.pid = pid
        self.to = to
        self.back = back
        self.rest = b""
        self.trace: List[str] = []


class Stable:
    """All runners by the number that their order gave them."""

    def __init__(self) -> None:
        self.runners: Dict[int, Runner] = {}
        self.rest = b""

    def orders(self) -> bool:
        """Read what is ordered; False where stdin has closed."""
        data = os.read(wire.ears(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line.decode("utf-8")))
        return bool(data)

    def _obey(self, order: Dict[str, Any]) -> None:
        number = int(order["id"])
        if order["do"] == "start":
            if order.get("shape"):
                from . import data

                data.made(str(order["workload"]), dict(order["shape"]))  # once, for every fork
            self.runners[number] = _forked(order, self.runners.values())
        elif number in self.runners and order["do"] == "kill":
            os.kill(self.runners[number].pid, signal.SIGKILL)
        elif number in self.runners:
            _write(self.runners[number].to, order)

    def pass_on(self, number: int) -> bool:
        """Whole lines of a runner go to whoever ordered it; False where its pipe has closed."""
        runner = self.runners[number]
        data = os.read(runner.back, 1 << 16)
        *lines, runner.rest = (runner.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                wire.forward(line + b"\n")
            else:
                runner.trace.append(line.decode("utf-8", "replace"))
        return bool(data)

    def reap(self) -> None:
        """Tell of those that have ended. Workers of a loader may keep their pipes open."""
        for number, runner in list(self.runners.items()):
            pid, status = os.waitpid(runner.pid, os.WNOHANG)
            if not pid:
                continue
            while select.select([runner.back], [], [], 0)[0] and self.pass_on(number):
                pass
            del self.runners[number]
            os.close(runner.to)
            os.close(runner.back)
            wire.say("over", id=number, detail=_ending(status, runner.trace))


def serve() -> None:
    """Until stdin closes; then every runner is ended."""
    stable = Stable()
    going = True
    while going:
        backs = {runner.back: number for number, runner in stable.runners.items()}
        ready = select.select([wire.ears()] + list(backs), [], [], REAP_S)[0]
        closed = [one for one in ready if one in backs and not stable.pass_on(backs[one])]
        if closed:
            time.sleep(0.01)  # its process ends a moment after its pipe
        stable.reap()
        if wire.ears() in ready:
            going = stable.orders()
    for runner in stable.runners.values():
        os.kill(runner.pid, signal.SIGKILL)


def alone() -> None:
    """One runner in a process of its own, where there is no fork: the first order is its start."""
    order = wire.heard()
    if order is not None:
        order["alone"] = True
        _settle_in()
        _run(order)


def _forked(order: Dict[str, Any], others: Any) -> Runner:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        _live(order, theirs_in, theirs_out, [ours_in, ours_out], list(others))
    os.close(theirs_in)
    os.close(theirs_out)
    return Runner(pid, ours_out, ours_in)


def _live(order: Dict[str, Any], hears: int, says: int, ours: List[int], others: Any) -> None:
    """The life of a forked runner; Python's own ending belongs to the parent."""
    code = 1
    try:
        # An open copy of another's pipe would hide its end.
        for one in ours + [end for other in others for end in (other.to, other.back)]:
            os.close(one)
        wire.use(hears, says)
        _settle_in()
        _run(order)
        code = 0
    finally:
        os._exit(code)


def _run(order: Dict[str, Any]) -> None:
    """Do what was ordered; what goes wrong in it is a line, not a traceback."""
    from . import running

    try:
        running.run(order)
    except BaseException as problem:
        wire.say("failed", id=order["id"], error=wire.words(problem), oom=running.is_oom(problem))


def _settle_in() -> None:
    """A crash leaves its trace with us and no core file; we do not outlive the stable."""
    warnings.simplefilter("ignore")
    faulthandler.enable(file=wire.voice())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        limit_core, none = 4, (ctypes.c_ulong * 2)(0, 0)
        libc.setrlimit(limit_core, none)
    leaving.end_with_the_parent()


def _write(descriptor: int, order: Dict[str, Any]) -> None:
    try:
        os.write(descriptor, (json.dumps(order) + "\n").encode("ascii"))
    except OSError:
        return  # it has ended: told when its pipe closes


def _ending(status: int, trace: List[str]) -> str:
    """How a process ended; "" where it ended as it should."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal %d" % number
        return "killed by %s%s" % (name, _where(trace))
    code = os.WEXITSTATUS(status)
    return "the process ended with status %d" % code if code else ""


def _where(trace: List[str]) -> str:
    """The innermost line of Python that a crash left, as `, in f (file.py)`."""
    for line in trace:
        text = line.strip()
        if text.startswith("File ") and " in " in text:
            path = text.split('"')[1]
            return ", in %s (%s)" % (text.rpartition(" in ")[2], os.path.basename(path))
    return ""

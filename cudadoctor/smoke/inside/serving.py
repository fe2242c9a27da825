"""The stable: forks a runner for every order, passes words on, and tells how each one ended."""

import json
import os
import select
import signal
import time
import warnings
from typing import Any, Dict, List

from . import process, wire

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
        data = os.read(wire.input_fd(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line.decode("utf-8")))
        return bool(data)

    def _obey(self, order: Dict[str, Any]) -> None:
        number = int(order["id"])
        if order["do"] == "start":
            if order.get("shape"):
                from . import workloads

                workloads.made(str(order["workload"]), dict(order["shape"]))  # once, for every fork
            self.runners[number] = _forked(order, self.runners.values())
        elif number in self.runners and order["do"] == "kill":
            os.kill(self.runners[number].pid, signal.SIGKILL)
        elif number in self.runners:
            try:
                os.write(self.runners[number].to, (json.dumps(order) + "\n").encode("ascii"))
            except OSError:
                return  # it has ended: told when its pipe closes

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
            code = process.exit_code(status)
            wire.say("over", id=number, detail=process.ending(code, runner.trace) if code else "")


def serve() -> None:
    """Until stdin closes; then every runner is ended."""
    stable = Stable()
    going = True
    while going:
        backs = {runner.back: number for number, runner in stable.runners.items()}
        ready = select.select([wire.input_fd()] + list(backs), [], [], REAP_S)[0]
        closed = [one for one in ready if one in backs and not stable.pass_on(backs[one])]
        if closed:
            time.sleep(0.01)  # its process ends a moment after its pipe
        stable.reap()
        if wire.input_fd() in ready:
            going = stable.orders()
    for runner in stable.runners.values():
        os.kill(runner.pid, signal.SIGKILL)


def alone() -> None:
    """One runner in a process of its own, where there is no fork: the first order is its start."""
    order = wire.heard()
    if order is not None:
        order["alone"] = True
        _run(order)


def _forked(order: Dict[str, Any], others: Any) -> Runner:
    """A runner of its own; in the child it is the whole life."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # An open copy of another's pipe would hide its end.
            for end in [ours_in, ours_out] + [end for it in others for end in (it.to, it.back)]:
                os.close(end)
            wire.use(theirs_in, theirs_out)
            _run(order)
            code = 0
        finally:
            os._exit(code)  # Python's own ending belongs to the parent
    os.close(theirs_in)
    os.close(theirs_out)
    return Runner(pid, ours_out, ours_in)


def _run(order: Dict[str, Any]) -> None:
    """Do what was ordered; what goes wrong in it is a line, not a traceback."""
    from . import measuring

    process.settle_in()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        measuring.run(order)
    except BaseException as problem:
        oom = measuring.is_oom(problem)
        wire.say("failed", id=order["id"], error=wire.words(problem), oom=oom)

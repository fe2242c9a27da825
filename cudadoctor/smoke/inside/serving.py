"""The stable: forks a runner for every order, passes words on, and tells how each one ended."""

import os
import select
import signal
import time
from typing import Dict

from . import process, wire
from .process import Fork
from .spec import Fields
from .wire import say

REAP_S = 0.2
"""How often it is looked whether a runner has ended."""


def serve() -> None:
    """Until stdin closes; then every runner is ended."""
    runners: Dict[int, Fork] = {}
    while True:
        backs = {fork.back: fork for fork in runners.values()}
        wait_s = 0.0 if wire.Ends.rest else REAP_S
        ready = select.select([wire.Ends.receive] + list(backs), [], [], wait_s)[0]
        if [fork for back, fork in backs.items() if back in ready and not _passed_on(fork)]:
            time.sleep(0.01)  # its process ends a moment after its pipe
        _reap(runners)
        if wire.Ends.receive in ready or wire.Ends.rest:
            order = wire.next_order()
            if order is None:
                break
            _obey(order, runners)
    for fork in runners.values():
        fork.kill()


def alone() -> None:
    """One runner in a process of its own, where there is no fork: the first order is its start."""
    order = wire.next_order()
    if order is not None:
        _run(dict(order, alone=True))


def _obey(order: Fields, runners: Dict[int, Fork]) -> None:
    """runners: by the number that their order gave them."""
    number = int(order["id"])
    if order["do"] == "start":
        if order.get("shape"):
            from . import workloads

            workloads.made(str(order["workload"]), dict(order["shape"]))  # once, for every fork
        runners[number] = Fork(lambda: _run(order), runners.values())
    elif number in runners and order["do"] == "kill":
        runners[number].kill()
    elif number in runners:
        try:
            os.write(runners[number].to, (wire.encoded(order) + "\n").encode("ascii"))
        except OSError:
            return  # it has ended: told when its pipe closes


def _passed_on(fork: Fork) -> bool:
    """Lines of a runner go to whoever ordered it; False where its pipe has closed."""
    data = os.read(fork.back, 1 << 16)
    for line in fork.take(data):
        say(**line)
    return bool(data)


def _reap(runners: Dict[int, Fork]) -> None:
    """Tell of those that have ended. Workers of a loader may keep their pipes open."""
    for number, fork in list(runners.items()):
        code = fork.code()
        if code is None:
            continue
        while select.select([fork.back], [], [], 0)[0] and _passed_on(fork):
            pass
        runners.pop(number).close()
        say("over", id=number, detail=process.ending(code, fork.trace) if code else "")


def _run(order: Fields) -> None:
    """Do what was ordered; what goes wrong in it is a line, not a traceback."""
    from . import measuring

    wire.Ends.about = {"id": order["id"]}
    process.settle_in()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        measuring.run(order)
    except BaseException as problem:
        say("failed", error=wire.words(problem), oom=measuring.is_oom(problem))

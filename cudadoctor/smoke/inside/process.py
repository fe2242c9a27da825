"""A worker as a process: how it begins and settles in, how it ends and how its end is told."""

import ctypes
import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import warnings
from time import monotonic, sleep
from typing import Any, Callable, Iterable, List, Optional

from . import wire
from .spec import Fields


class Child:
    """A process that writes lines to a pipe. trace: what else it wrote since the last of them."""

    def __init__(self) -> None:
        self.rest = b""
        self.trace: List[str] = []

    def take(self, data: bytes) -> List[Fields]:
        """The lines that this piece of its output completes."""
        *texts, self.rest = (self.rest + data).split(b"\n")
        lines = []
        for text in texts:
            if text.startswith(b'{"kind": ') and text.endswith(b"}"):
                lines.append(json.loads(text.decode("ascii")))
                self.trace = []
            else:
                self.trace.append(text.decode("utf-8", "replace"))
        return lines


class Fork(Child):
    """A copy of this process, with torch already imported; `to` and `back` are pipes for lines."""

    def __init__(self, job: Callable[[], Any], others: Iterable["Fork"] = ()) -> None:
        super().__init__()
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                # An open copy of another's pipe would hide its end.
                for fork in [self] + list(others):
                    fork.close()
                wire.use(theirs_in, theirs_out)
                job()
                code = 0
            finally:
                os._exit(code)  # Python's own ending belongs to the parent
        os.close(theirs_in)
        os.close(theirs_out)

    def close(self) -> None:
        os.close(self.to)
        os.close(self.back)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def code(self, wait_s: float = 0.0) -> Optional[int]:
        """Its exit status, negative for a signal; None where it does not end in that time."""
        until = monotonic() + wait_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if monotonic() >= until:
                return None
            sleep(0.01)


def settle_in() -> None:
    """A crash leaves its trace with us and no core file; we do not outlive whoever watches us."""
    warnings.simplefilter("ignore")
    faulthandler.enable(file=wire.Ends.send)
    if sys.platform.startswith("linux"):
        limit_core, none = 4, (ctypes.c_ulong * 2)(0, 0)
        ctypes.CDLL(None).setrlimit(limit_core, none)
    end_with_the_parent()


def end_with_the_parent(*_: Any) -> None:
    """Be killed when the process that forked this one ends, however it ends. Only Linux can."""
    if sys.platform.startswith("linux"):
        set_at_parents_death, kill = 1, 9
        ctypes.CDLL(None).prctl(set_at_parents_death, kill)


def end_loaders() -> None:
    """Kill the workers of loaders, and wait until they are gone.

    They inherited the GPU: while one of them lives, the driver frees nothing of what was used.
    """
    children = multiprocessing.active_children()
    if children and hasattr(signal, "SIGCHLD"):
        # The loader would take their end for a fault, and raise wherever the code is.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in children:
        child.kill() if hasattr(child, "kill") else child.terminate()
    for child in children:
        child.join(1.0)


def ending(code: Optional[int], trace: List[str]) -> str:
    """How a process ended, with the line of Python where it did. code: negative for a signal."""
    if code is None:
        how = "the process did not end"
    elif code >= 0:
        how = "the process exited with status %d" % code
    else:
        named = [known.name for known in signal.Signals if known == -code]
        how = "killed by " + (named or ["signal %d" % -code])[0]
    return how + where(trace)


def where(trace: List[str]) -> str:
    """The innermost line of Python in a trace of faulthandler, of the thread that counts."""
    threads: List[Any] = re.findall(
        r"(?m)^(Current)?.*\(most recent call first\).*\n(?:\s*Garbage-collecting\n)?"
        r'\s*File "(.*)", line (\d+) in (.*)$',
        "\n".join(trace),
    )
    if not threads:
        return ""
    # A crash names the thread that crashed; of a hang the main thread stands last.
    _, path, number, name = next((thread for thread in threads if thread[0]), threads[-1])
    return ", in %s (%s, line %s)" % (name, os.path.basename(path), number)


def planted(fault: str) -> None:
    """What a test wants to see fail."""
    if fault == "error":
        raise RuntimeError("a planted error")
    if fault == "oom":
        raise MemoryError("CUDA out of memory (planted)")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault in ("hang", "slow"):
        sleep(1e6 if fault == "hang" else 0.02)

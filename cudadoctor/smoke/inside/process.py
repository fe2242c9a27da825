"""A worker as a process: how it settles in, how it ends with its parent, how its end is told."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import warnings
from typing import Any, List, Optional

from . import wire


def settle_in() -> None:
    """A crash leaves its trace with us and no core file; we do not outlive whoever watches us."""
    warnings.simplefilter("ignore")
    faulthandler.enable(file=wire.output_fd())
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


def exit_code(status: int) -> int:
    """Of a status of waitpid; negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ending(code: Optional[int], trace: List[str]) -> str:
    """How a process ended, with the line of Python where it did."""
    if code is None:
        how = "the process did not end"
    elif code >= 0:
        how = "the process ended with status %d" % code
    else:
        try:
            how = "killed by %s" % signal.Signals(-code).name
        except ValueError:
            how = "killed by signal %d" % -code
    return how + where(trace)


def where(trace: List[str]) -> str:
    """The innermost line of Python in a trace of faulthandler, of the thread that counts."""
    threads: List[List[str]] = []
    for line in trace:
        if "(most recent call first)" in line:
            threads.append([line])
        elif threads and line.strip().startswith("File "):
            threads[-1].append(line.strip())
    # A crash names the thread that crashed; of a hang the main thread stands last.
    threads = [thread for thread in threads if len(thread) > 1]
    current = [thread for thread in threads if thread[0].startswith("Current")] or threads[-1:]
    if not current:
        return ""
    # `File "/a/b.py", line 3 in f` becomes `, in f (b.py, line 3)`.
    path, _, rest = current[0][1][len('File "') :].partition('", line ')
    number, _, name = rest.partition(" in ")
    return ", in %s (%s, line %s)" % (name, os.path.basename(path), number)

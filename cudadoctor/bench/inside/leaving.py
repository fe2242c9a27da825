"""Processes that end with the one that forked them: what they inherit keeps its memory busy."""

import ctypes
import multiprocessing
import signal
import sys
from typing import Any


def end_with_the_parent(*_: Any) -> None:
    """Be killed when the process that forked this one ends, however it ends. Only Linux can."""
    if sys.platform.startswith("linux"):
        set_at_parents_death, kill = 1, 9
        ctypes.CDLL(None).prctl(set_at_parents_death, kill)


def end_children() -> None:
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

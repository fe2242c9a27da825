"""The first lines of the child: import torch as a program of the user would, and go on."""

import gc
import os
import sys
import time
from typing import Any, List

from . import wire
from .spec import Spec


def main(words: List[str]) -> None:
    """Run as told, and end without the interpreter's own slow ending."""
    spec = Spec(words)
    wire.claim()
    code = 1
    try:
        if spec.only:
            _worker(spec)
        elif _imported():
            from . import conduct

            conduct.conduct(spec)
        code = 0
    except BaseException as problem:
        wire.say("broken", error=wire.words(problem))
    finally:
        os._exit(code)


def _imported() -> bool:
    """Import torch once, and say how that went."""
    began = time.monotonic()
    wire.say("start", stage="import")
    # A fifth faster: nothing that an import makes is garbage.
    gc.disable()
    error = ""
    torch: Any = None
    try:
        torch = __import__("torch")
        error = _no_torch(torch)
    except BaseException as problem:
        error = wire.words(problem)
    wire.say(
        "torch",
        ok=not error,
        error=error,
        seconds=round(time.monotonic() - began, 4),
        version=str(getattr(torch, "__version__", "")),
        path=str(getattr(torch, "__file__", None) or ""),
    )
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return not error


def _no_torch(module: Any) -> str:
    """A file or folder of the user's with the same name imports well and is no torch."""
    for name in ("__version__", "Tensor", "nn", "cuda"):
        if not hasattr(module, name):
            where = getattr(module, "__file__", None) or list(getattr(module, "__path__", []))
            return "AttributeError: module 'torch' has no attribute '%s' (it is %s)" % (name, where)
    return ""


def _worker(spec: Spec) -> None:
    """A worker that was started anew: it imports torch itself."""
    import torch  # noqa: F401

    from . import chain

    chain.run(chain.task_of(spec.only), spec)


assert sys.version_info >= (3, 6)

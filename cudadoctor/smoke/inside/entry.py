"""The first lines of the child: import torch as a program of the user would, and go on."""

import gc
import os
import sys
import time
from typing import Any, List, Tuple

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
    shadows: List[str] = []
    torch: Any = None
    try:
        torch = __import__("torch")
        error = _no_torch(torch)
    except BaseException as problem:
        error = wire.words(problem)
        shadows = _shadows(problem, error)
    wire.say(
        "torch",
        ok=not error,
        error=error,
        shadows=shadows,
        seconds=round(time.monotonic() - began, 4),
        version=str(getattr(torch, "__version__", "")),
        path=str(getattr(torch, "__file__", None) or ""),
    )
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return not error


def _shadows(problem: BaseException, error: str) -> List[str]:
    """The user's files that hide a module of Python's own and had a part in this failure."""
    files = set()
    trace = problem.__traceback__
    while trace is not None:
        files.add(os.path.abspath(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    try:
        found = _like_the_library()
    except OSError:
        return []
    return [
        path for name, path in found if path in files or path in error or "'%s'" % name in error
    ][:8]


def _like_the_library() -> List[Tuple[str, str]]:
    """Files before the standard library on the path that are named like one of its modules."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    known = {name.partition(".")[0] for name in os.listdir(library)}
    found = []
    for entry in sys.path:
        folder = os.path.abspath(entry)
        if folder == library:
            break
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in sorted(names):
            stem, dot, ending = name.partition(".")
            if stem in known and dot and ending == "py":
                found.append((stem, os.path.join(folder, name)))
    return found


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

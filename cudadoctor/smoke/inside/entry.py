"""The first lines of the child: import torch as a program of the user would, and go on."""

import gc
import os
import sys
import time

from . import wire
from .spec import Spec

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, List, Set, Tuple


def main(words: "List[str]") -> None:
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


def _shadows(problem: BaseException, error: str) -> "List[str]":
    """The user's files that hide a module of Python's own and had a part in this failure."""
    try:
        files = {os.path.abspath(str(getattr(problem, "filename", None) or ""))}
        trace = problem.__traceback__
        while trace is not None:
            files.add(os.path.abspath(trace.tb_frame.f_code.co_filename))
            trace = trace.tb_next
        found = _like_the_library()
    except OSError:
        return []
    return [path for name, path in found if _took_part(path, files) or _named(name, path, error)][
        :8
    ]


def _took_part(path: str, files: "Set[str]") -> bool:
    return path in files or any(one.startswith(path + os.sep) for one in files)


def _named(name: str, path: str, error: str) -> bool:
    """Whether the words name the file or, in quotes, its module or a part of it."""
    return path in error or "'%s'" % name in error or "'%s." % name in error


def _like_the_library() -> "List[Tuple[str, str]]":
    """Files and packages before the standard library on the path, named like one of its modules."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    parts = [one for one in (library, os.path.join(library, "lib-dynload")) if os.path.isdir(one)]
    known = {name.partition(".")[0] for part in parts for name in os.listdir(part)}
    known.update(getattr(sys, "stdlib_module_names", ()))
    found = []
    for entry in sys.path:
        folder = os.path.abspath(entry)
        if folder == library:
            break
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in sorted(names):
            stem, dot, ending = name.partition(".")
            path = os.path.join(folder, name)
            package = os.path.exists(os.path.join(path, "__init__.py"))
            if stem in known and ((dot and ending == "py") or package):
                found.append((stem, path))
    return found


def _no_torch(module: "Any") -> str:
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

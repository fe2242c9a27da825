"""The first lines of the child: import torch as a program of the user would, and do its orders."""

import gc
import os
import sys
import time

from . import wire
from .spec import Spec

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, List, Tuple

BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(words: "List[str]") -> None:
    """Do what the words order, and end without the interpreter's own slow ending."""
    wire.claim()
    code = 1
    try:
        if words[:1] in (["fork"], ["one"]):
            _bench(words[0] == "fork")
        else:
            spec = Spec(words)
            if spec.only or _imported():
                # A worker that was started anew imports torch itself.
                from . import conduct

                conduct.work(spec) if spec.only else conduct.conduct(spec)
        code = 0
    except BaseException as problem:
        wire.say("broken", error=wire.words(problem))
    finally:
        os._exit(code)


# --- the training step -----------------------------------------------------------------------


def _imported() -> bool:
    """Import torch once, and say how that went."""
    began = time.monotonic()
    wire.say("start", stage="import")
    # A fifth faster: nothing that an import makes is garbage.
    gc.disable()
    error = ""
    shadows: List[str] = []
    try:
        error = _no_torch(__import__("torch"))
    except BaseException as problem:
        error = wire.words(problem)
        shadows = _shadows(problem, error)
    wire.say(
        "torch",
        ok=not error,
        error=error,
        shadows=shadows,
        seconds=round(time.monotonic() - began, 4),
    )
    _keep_what_was_imported()
    return not error


def _keep_what_was_imported() -> None:
    """Garbage is collected again, but never looked for in what an import made."""
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()


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
    shadows: List[str] = []
    for name, path in found:
        took_part = path in files or any(file.startswith(path + os.sep) for file in files)
        # Whether the words name the file or, in quotes, its module or a part of it.
        if took_part or path in error or "'%s'" % name in error or "'%s." % name in error:
            shadows.append(path)
    return shadows[:8]


def _like_the_library() -> "List[Tuple[str, str]]":
    """Files and packages before the standard library on the path, named like one of its modules."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    parts = [library, os.path.join(library, "lib-dynload")]
    known = {
        name.partition(".")[0] for part in parts if os.path.isdir(part) for name in os.listdir(part)
    }
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


# --- the bench ------------------------------------------------------------------------------


def _bench(forks: bool) -> None:
    """Serve as a stable that forks a runner for every order, or as one runner."""
    began = time.monotonic()
    gc.disable()
    error = _with_torch()
    begun = not error and forks and _begun()
    wire.say(
        "torch",
        error=error,
        version="" if error else str(sys.modules["torch"].__version__),
        seconds=round(time.monotonic() - began, 3),
        begun=begun,
    )
    _keep_what_was_imported()
    if not error and not begun:
        from . import serving

        serving.serve() if forks else serving.alone()


def _with_torch() -> str:
    """Import torch and all that forks would import again; why that failed.

    A module that asks meanwhile whether there is a GPU is answered by NVML: the other way begins
    CUDA, and no fork could use it any more.
    """
    before = os.environ.get(BY_NVML)
    os.environ[BY_NVML] = "1"
    try:
        import torch
        import torch.utils.data  # noqa: F401

        try:
            import torch._dynamo  # noqa: F401
        except BaseException:
            return ""  # broken: whoever needs it says so
    except BaseException as problem:
        return wire.words(problem)
    finally:
        if before is None:
            del os.environ[BY_NVML]
        else:
            os.environ[BY_NVML] = before
    return ""


def _begun() -> bool:
    """Whether an import has begun CUDA all the same, by torch or past it."""
    import torch

    if torch.cuda.is_initialized():
        return True
    try:
        opened = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
    except OSError:
        return False
    # NVML has no use for this device, CUDA has.
    return any(os.path.realpath(path).startswith("/dev/nvidia-uvm") for path in opened)


assert sys.version_info >= (3, 6)

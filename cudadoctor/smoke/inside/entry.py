"""The first lines of the child: import torch as a program of the user would, and do its orders."""

import gc
import os
import sys
import time

from . import wire
from .wire import say

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(words: "List[str]") -> None:
    """Do what the words order, and end without the interpreter's own slow ending."""
    began = time.monotonic()
    wire.claim()
    code = 1
    try:
        if words[0] in ("fork", "one"):
            _bench(words[0] == "fork")
        elif words[0] == "health":
            if _smoke():
                from . import health

                health.run(words[1:], began)
        elif words[0] == "task" or _smoke():
            from . import conduct

            # A worker that was started anew imports torch itself.
            conduct.work(words[1:]) if words[0] == "task" else conduct.conduct(words, began)
        code = 0
    except BaseException as problem:
        say("broken", error=wire.words(problem))
    finally:
        os._exit(code)


def _imported(job: "Callable[[], str]") -> "Dict[str, Any]":
    """Import torch once, and how that went. job: does it, and says what is wrong with it."""
    began = time.monotonic()
    gc.disable()  # a fifth faster: nothing that an import makes is garbage
    shadows = []
    try:
        error = job()
    except BaseException as problem:
        error = wire.words(problem)
        try:
            shadows = _shadows(problem, error)
        except OSError:
            pass  # a folder on the path that cannot be read
    # Garbage is collected again, but never looked for in what an import made.
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return dict(error=error, shadows=shadows, seconds=round(time.monotonic() - began, 4))


# --- the training step -----------------------------------------------------------------------


def _smoke() -> bool:
    """Import torch as a program of the user would."""
    say("start", stage="import")
    imported = _imported(_torch)
    say("torch", ok=not imported["error"], **imported)
    return not imported["error"]


def _torch() -> str:
    """A file or folder of the user's with the same name imports well and is no torch."""
    module = __import__("torch")
    for name in ("__version__", "Tensor", "nn", "cuda"):
        if not hasattr(module, name):
            where = getattr(module, "__file__", None) or list(getattr(module, "__path__", []))
            return "AttributeError: module 'torch' has no attribute '%s' (it is %s)" % (name, where)
    return ""


def _shadows(problem: BaseException, error: str) -> "List[str]":
    """The user's files that hide a module of Python's own and had a part in this failure.

    Files and packages before the standard library on the path, named like one of its modules.
    """
    files = [os.path.abspath(str(getattr(problem, "filename", None) or ""))]
    trace = problem.__traceback__
    while trace is not None:
        files.append(os.path.abspath(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    library = os.path.dirname(os.path.abspath(os.__file__))
    names = _listed(library) + _listed(os.path.join(library, "lib-dynload"))
    known = {name.partition(".")[0] for name in names}
    known.update(getattr(sys, "stdlib_module_names", ()))
    shadows = []
    for folder in map(os.path.abspath, sys.path):
        if folder == library:
            break
        for name in sorted(_listed(folder)):
            stem, _, ending = name.partition(".")
            path = os.path.join(folder, name)
            if stem in known and (
                ending == "py" or os.path.exists(os.path.join(path, "__init__.py"))
            ):
                took_part = any((file + os.sep).startswith(path + os.sep) for file in files)
                # Whether the words name the file or, in quotes, its module or a part of it.
                if took_part or path in error or "'%s'" % stem in error or "'%s." % stem in error:
                    shadows.append(path)
    return shadows[:8]


def _listed(folder: str) -> "List[str]":
    return os.listdir(folder) if os.path.isdir(folder) else []


# --- the bench ------------------------------------------------------------------------------


def _bench(forks: bool) -> None:
    """Serve as a stable that forks a runner for every order, or as one runner."""
    imported = _imported(_with_torch)
    begun = forks and not imported["error"] and _begun()
    say("torch", begun=begun, **imported)
    if not imported["error"] and not begun:
        from . import serving

        serving.serve() if forks else serving.alone()


def _with_torch() -> str:
    """Import torch and all that forks would import again.

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
    finally:
        del os.environ[BY_NVML]
        if before is not None:
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

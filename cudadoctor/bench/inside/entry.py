"""The first lines of the child: import torch once, then serve orders."""

import gc
import os
import sys
import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main(words: "List[str]") -> None:
    """Serve as a stable that forks (`fork`) or as one runner (`one`), until stdin closes."""
    wire.claim()
    code = 1
    try:
        forks = bool(words) and words[0] == "fork"
        if _imported(forks):
            from . import serving

            serving.serve() if forks else serving.alone()
            code = 0
    except BaseException as problem:
        wire.say("broken", error=wire.words(problem))
    finally:
        os._exit(code)


def _imported(forks: bool) -> bool:
    """Whether torch came, and orders can be served."""
    began = time.monotonic()
    # Nothing that an import makes is garbage.
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
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return not error and not begun


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

        _with_dynamo()
    except BaseException as problem:
        return wire.words(problem)
    finally:
        if before is None:
            del os.environ[BY_NVML]
        else:
            os.environ[BY_NVML] = before
    return ""


def _with_dynamo() -> None:
    """What every first optimizer would import, once before the forks. Broken, it is told there."""
    try:
        import torch._dynamo  # noqa: F401
    except BaseException:
        return


def _begun() -> bool:
    """Whether an import has begun CUDA all the same, by torch or past it."""
    import torch

    if torch.cuda.is_initialized():
        return True
    try:
        opened = ["/proc/self/fd/" + one for one in os.listdir("/proc/self/fd")]
    except OSError:
        return False
    # NVML has no use for this device, CUDA has.
    return any(os.path.realpath(one).startswith("/dev/nvidia-uvm") for one in opened)


assert sys.version_info >= (3, 6)

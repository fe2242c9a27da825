"""The first lines of the child: import torch once, then serve orders."""

import gc
import os
import sys
import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def main(words: "List[str]") -> None:
    """Serve as a stable that forks (`fork`) or as one runner (`one`), until stdin closes."""
    wire.claim()
    code = 1
    try:
        if _imported():
            from . import serving

            serving.serve() if words and words[0] == "fork" else serving.alone()
            code = 0
    except BaseException as problem:
        wire.say("broken", error=wire.words(problem))
    finally:
        os._exit(code)


def _imported() -> bool:
    began = time.monotonic()
    # Nothing that an import makes is garbage.
    gc.disable()
    error = ""
    try:
        import torch
        import torch.utils.data
    except BaseException as problem:
        error = wire.words(problem)
    if not error:
        _with_dynamo()
    version = "" if error else str(torch.__version__)
    wire.say("torch", error=error, version=version, seconds=round(time.monotonic() - began, 3))
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    return not error


def _with_dynamo() -> None:
    """What every first optimizer would import, once before the forks. Broken, it is told there."""
    try:
        import torch._dynamo  # noqa: F401
    except BaseException:
        return


assert sys.version_info >= (3, 6)

"""Open device nodes, which can block inside the driver. argv: their paths, in order.

Prints a line before each opening and one with its errno after it.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # the module typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any


def say(kind: str, **rest: Any) -> None:
    print(json.dumps({"kind": kind, **rest}), flush=True)


def opened(path: str) -> int | None:
    try:
        os.close(os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0)))
    except OSError as error:
        return error.errno
    return 0


for path in sys.argv[1:]:
    say("calling", call="open " + path)
    say("node", path=path, errno=opened(path))
os._exit(0)

"""What libcuda says, asked in a process that can be abandoned.

Prints one JSON line for each thing learnt, and one before each call.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False  # the module typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any

_OUT = os.dup(1)
os.dup2(2, 1)


def say(kind: str, **rest: Any) -> None:
    os.write(_OUT, (json.dumps({"kind": kind, **rest}) + "\n").encode("ascii"))


def load() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    say("calling", call="loading " + name)
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        say("not-loaded", why=str(error))
        return None
    say("loaded", path=mapped("libcuda.so") or name)
    return library


def mapped(stem: str) -> str | None:
    """The file that the loader really took."""
    try:
        with open("/proc/self/maps", errors="replace") as maps:
            paths = ["/" + line.rstrip("\n").partition("/")[2] for line in maps]
    except OSError:
        return None
    return next((path for path in paths if path.rpartition("/")[2].startswith(stem)), None)


def ask(library: Any, call: str, *args: Any) -> int | None:
    """The code of a call, None where the library has no such function."""
    function = getattr(library, call, None)
    if function is None:
        return None
    say("calling", call=call)
    return int(function(*args))


def report_number(library: Any, call: str, name: str) -> None:
    """What a call says through its pointer, or the code that it failed with."""
    number = ctypes.c_int(0)
    code = ask(library, call, ctypes.byref(number))
    if code == 0:
        say("value", name=name, value=number.value)
    elif code is not None:
        say("value", name=name + "-code", value=code)


def main() -> None:
    library = load()
    if library is None:
        return
    # Needs no cuInit, and is wanted most where cuInit fails.
    report_number(library, "cuDriverGetVersion", "version")
    code = ask(library, "cuInit", 0)
    if code is not None:
        say("value", name="code", value=code)
    if code == 0:
        report_number(library, "cuDeviceGetCount", "count")


if __name__ == "__main__":
    main()
    say("done")
    os._exit(0)

"""How a child talks: one JSON object a line, on a descriptor that no print reaches.

Written without the json module: nothing but sys and os is loaded before torch is.
"""

import os
import sys

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, Dict, List

_state: "Dict[str, int]" = {"out": 1}


def claim() -> None:
    """Keep standard output for these lines; what torch and others print goes to stderr."""
    _state["out"] = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)


def use(descriptor: int) -> None:
    """Write to this descriptor from now on."""
    _state["out"] = descriptor


def descriptor() -> int:
    """Where the lines go."""
    return _state["out"]


def say(kind: str, **fields: "Any") -> None:
    """Write one line; its first key is always "kind"."""
    line: Dict[str, Any] = {"kind": kind}
    line.update(fields)
    forward((encoded(line) + "\n").encode("ascii"))


def forward(data: bytes) -> None:
    """Write bytes that are whole lines already."""
    while data:
        data = data[os.write(_state["out"], data) :]


def encoded(value: "Any") -> str:
    """JSON in pure ASCII."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # JSON has no infinity and no nan: they travel as words.
        return repr(float(value)) if abs(value) < float("inf") else '"%s"' % value
    if isinstance(value, dict):
        pairs = ["%s: %s" % (_quoted(str(key)), encoded(one)) for key, one in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([encoded(one) for one in value]) + "]"
    return _quoted(str(value))


def words(error: BaseException) -> str:
    """An exception as its type and its text, at most 2,000 characters."""
    text = str(error).strip()
    return ("%s: %s" % (type(error).__name__, text) if text else type(error).__name__)[:2000]


def _quoted(text: str) -> str:
    parts: List[str] = []
    for letter in text:
        code = ord(letter)
        if letter in '"\\':
            parts.append("\\" + letter)
        elif 0x20 <= code < 0x7F:
            parts.append(letter)
        elif 0xD800 <= code < 0xE000:
            # A byte of a file name that is no UTF-8.
            parts.append("\\ufffd")
        elif code > 0xFFFF:
            code -= 0x10000
            parts.append("\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)))
        else:
            parts.append("\\u%04x" % code)
    return '"' + "".join(parts) + '"'

"""How a child starts, talks and listens: one JSON object a line, on descriptors of its own.

Nothing but sys and os is loaded before torch is, so lines are written without the json module.
"""

import os
import sys

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

# What `python -c` runs: a package by its folder, never the current one. Only sys is imported before
# that: with -c, Python looks into the current folder first.
BOOT = """\
import sys
sys.path[:] = [one for one in sys.path if one]
home = type(sys)("cudadoctor_inside")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_inside"] = home
from cudadoctor_inside import entry
entry.main(sys.argv[2:])
"""

_ends = {"in": 0, "out": 1}
_rest = {"bytes": b""}


def claim() -> None:
    """Keep stdin and stdout for these lines; what torch and others print goes to stderr."""
    sys.stdout.flush()
    use(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def use(receive: int, send: int) -> None:
    """Listen and write to these descriptors from now on."""
    _ends["in"], _ends["out"] = receive, send
    _rest["bytes"] = b""


def input_fd() -> int:
    """The descriptor that orders come from."""
    return _ends["in"]


def output_fd() -> int:
    """The descriptor that lines go to."""
    return _ends["out"]


def say(kind: str, **fields: "Any") -> None:
    """Write one line; its first key is always "kind"."""
    line: Dict[str, Any] = {"kind": kind}
    line.update(fields)
    forward((encoded(line) + "\n").encode("ascii"))


def forward(data: bytes) -> None:
    """Write bytes that are whole lines already."""
    while data:
        data = data[os.write(_ends["out"], data) :]


def heard() -> "Optional[Dict[str, Any]]":
    """Wait for the next order; None if whoever gives them is gone."""
    import json

    while b"\n" not in _rest["bytes"]:
        data = os.read(_ends["in"], 1 << 16)
        if not data:
            return None
        _rest["bytes"] += data
    line, _, _rest["bytes"] = _rest["bytes"].partition(b"\n")
    order: Dict[str, Any] = json.loads(line.decode("utf-8"))
    return order


def encoded(value: "Any") -> str:
    """JSON in pure ASCII."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # JSON has no infinity and no nan: they travel as words.
        return repr(float(value)) if abs(value) < float("inf") else '"%s"' % value
    if isinstance(value, dict):
        pairs = ["%s: %s" % (_quoted(str(key)), encoded(part)) for key, part in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([encoded(part) for part in value]) + "]"
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
            # A byte of a file name that is not UTF-8.
            parts.append("\\ufffd")
        elif code > 0xFFFF:
            code -= 0x10000
            parts.append("\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)))
        else:
            parts.append("\\u%04x" % code)
    return '"' + "".join(parts) + '"'

"""How a child starts, talks and listens: one JSON object a line, on descriptors of its own.

Nothing but sys and os is loaded before torch is, so lines are written without the json module.
"""

import os
import sys

TYPE_CHECKING = False  # a typing.py beside the user's program must hit torch, not this
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

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


class Ends:
    """The descriptors that orders come from and lines go to, and what came after the last order.

    about: what every line of this process says.
    """

    receive, send, rest = 0, 1, b""
    about: "Dict[str, Any]" = {}


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
    Ends.receive, Ends.send, Ends.rest = receive, send, b""


def say(kind: str, **fields: "Any") -> None:
    """Write one line; its first key is always "kind"."""
    line: Dict[str, Any] = {"kind": kind}
    line.update(Ends.about, **fields)
    data = (encoded(line) + "\n").encode("ascii")
    while data:
        data = data[os.write(Ends.send, data) :]


def next_order() -> "Optional[Dict[str, Any]]":
    """Wait for the next order; None if whoever gives them is gone."""
    import json

    while b"\n" not in Ends.rest:
        data = os.read(Ends.receive, 1 << 16)
        if not data:
            return None
        Ends.rest += data
    line, _, Ends.rest = Ends.rest.partition(b"\n")
    order: Dict[str, Any] = json.loads(line.decode("utf-8"))
    return order


def encoded(value: "Any") -> str:
    """JSON in pure ASCII."""
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value).lower()
    if isinstance(value, float) and abs(value) < float("inf"):
        return repr(float(value))
    if isinstance(value, dict):
        pairs = ["%s: %s" % (_quoted(str(key)), encoded(part)) for key, part in value.items()]
        return "{%s}" % ", ".join(pairs)
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join([encoded(part) for part in value])
    return _quoted(str(value))  # JSON has no infinity and no nan: they travel as words


def words(error: BaseException) -> str:
    """An exception as its type and its text, at most 2,000 characters."""
    text = str(error).strip()
    return ("%s: %s" % (type(error).__name__, text) if text else type(error).__name__)[:2000]


def _quoted(text: str) -> str:
    """Every unit of UTF-16 that is not plain ASCII is escaped, as JSON wants it."""
    # A byte of a file name that is not UTF-8 is a lone surrogate, and no text.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    units = memoryview(whole.encode("utf-16")).cast("H")[1:]
    return '"%s"' % "".join([chr(u) if u in _PLAIN else "\\u%04x" % u for u in units])


_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')

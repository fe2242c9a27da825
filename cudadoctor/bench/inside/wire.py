"""How a child talks and listens: one JSON object a line, on descriptors that no print reaches."""

import json
import os
import sys
from typing import Any, Dict, Optional

_state: Dict[str, int] = {"out": 1, "in": 0}
_rest: Dict[str, bytes] = {"bytes": b""}


def claim() -> None:
    """Keep stdin and stdout for these lines; what torch prints goes to stderr."""
    _state["out"], _state["in"] = os.dup(1), os.dup(0)
    sys.stdout.flush()
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def use(receive: int, send: int) -> None:
    """Listen and write to these descriptors from now on."""
    _state["in"], _state["out"] = receive, send
    _rest["bytes"] = b""


def ears() -> int:
    """The descriptor that is listened to."""
    return _state["in"]


def voice() -> int:
    """The descriptor that lines are written to."""
    return _state["out"]


def say(kind: str, **fields: Any) -> None:
    """Write one line; its first key is always "kind"."""
    line: Dict[str, Any] = {"kind": kind}
    line.update(fields)
    forward((json.dumps(_sound(line)) + "\n").encode("ascii"))


def forward(data: bytes) -> None:
    """Write bytes that are whole lines already."""
    while data:
        data = data[os.write(_state["out"], data) :]


def heard() -> Optional[Dict[str, Any]]:
    """The next order; None where whoever gave them is gone. Waits."""
    while b"\n" not in _rest["bytes"]:
        data = os.read(_state["in"], 1 << 16)
        if not data:
            return None
        _rest["bytes"] += data
    line, _, _rest["bytes"] = _rest["bytes"].partition(b"\n")
    order: Dict[str, Any] = json.loads(line.decode("utf-8"))
    return order


def words(error: BaseException) -> str:
    """An exception as its type and its text, at most 600 characters."""
    text = " ".join(str(error).split())
    return ("%s: %s" % (type(error).__name__, text) if text else type(error).__name__)[:600]


def _sound(value: Any) -> Any:
    """JSON has no infinity and no nan: they travel as null."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): _sound(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sound(one) for one in value]
    return value

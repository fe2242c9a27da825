"""How a recording is written: questions as plain data, answers in a form that people can read.

A recording is a folder: recording.json says how was looked, and one file of JSON lines for each
kind of question has the answers in the order of asking. Long answers lie in `texts`.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional, TypedDict

import msgspec

from cudadoctor.host.children import Ran
from cudadoctor.host.local import Answer, Listing, Space, Stat
from cudadoctor.smoke.inside.wire import BOOT

ABOUT = "recording.json"
TEXTS = "texts"
FORMAT = 1
LONGEST = 2000
MOST_BYTES = 64 << 20
"""Of one file of a recording."""
KINDS = ("read", "listing", "stat", "glob", "which", "space", "run", "inside")
STAT = ("exists", "is_dir", "mode", "uid", "gid", "size", "why")

Question = dict[str, Any]
Store = Callable[[bytes, str], str]
"""Keeps a long content under an ending, and says where."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_SCRATCH = re.compile(r"(?<![^\s=|])[^\s=|]*cudadoctor-smoke-\w+")
_CONTROLS = frozenset(range(32)) - set(b"\t\n\r\f\x1b")


class ToldStat(Stat):
    """A Stat that does not look at the disk for the end of a link."""

    __slots__ = ("_link",)

    def __init__(self, *, link: bool, **values: Any) -> None:
        super().__init__(**values)
        self._link = link

    @property
    def is_link(self) -> bool:
        return self._link


def key_of(question: Question) -> str:
    """The question as one text: the same question has the same one."""
    return json.dumps(question, sort_keys=True)


def program(
    argv: tuple[str, ...],
    own: Mapping[str, str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    stdin: str | None,
) -> Question:
    """A program as it is asked, without what differs from run to run or is the doctor's own."""
    return {"argv": [_spoken(word) for word in argv]} | _around(own, env, cwd, stdin)


def script(
    words: tuple[str, ...],
    python: str | None,
    own: Mapping[str, str],
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> Question:
    """A script of probes/inside; where the doctor's pynvml lies is no matter of the host."""
    name, *args = words
    args = [] if name == "nvml.py" else args
    question: Question = {"script": name, "args": [_spoken(word) for word in args]}
    return question | ({"python": python} if python else {}) | _around(own, env, cwd, None)


def _around(
    own: Mapping[str, str], env: Mapping[str, str] | None, cwd: str | None, stdin: str | None
) -> Question:
    around: Question = {}
    if env is not None:
        changed = {name: _spoken(one) for name, one in env.items() if own.get(name) != one}
        around |= {"env": changed} if changed else {}
        gone = sorted(name for name in own.keys() - env.keys())
        around |= {"without": gone} if gone else {}
    around |= {"cwd": cwd} if cwd else {}
    return around | ({"stdin": stdin} if stdin is not None else {})


def _spoken(word: str) -> str:
    if word == BOOT:
        return "<boot>"
    return _SCRATCH.sub("<scratch>", word.replace(_PACKAGE, "<cudadoctor>"))


# --- answers --------------------------------------------------------------------------------


def is_text(data: bytes) -> bool:
    """Whether it can be shown as text and comes back unchanged."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not _CONTROLS & set(data)


def written(data: bytes, store: Store) -> dict[str, str]:
    """A content: as text where it is one, else as base64; a long one in a file of its own."""
    text = is_text(data)
    if len(data) > LONGEST:
        return {"file": store(data, ".txt") if text else store(base64.encodebytes(data), ".b64")}
    return {"text": data.decode()} if text else {"base64": base64.b64encode(data).decode()}


def content(plain: Mapping[str, Any], folder: Path) -> bytes:
    """The content that `written` wrote."""
    if "file" in plain:
        name = Path(plain["file"]).name
        data = whole(folder / TEXTS / name)
        return base64.decodebytes(data) if name.endswith(".b64") else data
    if "base64" in plain:
        return base64.b64decode(plain["base64"])
    return str(plain.get("text", "")).encode("utf-8", "surrogatepass")


def whole(path: Path) -> bytes:
    """All of a file of a recording. Raises OSError for what lies elsewhere or is far too large."""
    if path.is_symlink() or not path.is_file():
        raise OSError("it is not a file of this folder")
    if path.stat().st_size > MOST_BYTES:
        raise OSError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def encoded(answer: Any, store: Store) -> Any:
    """An answer as plain data."""
    if isinstance(answer, Answer):
        ended = {"missing": True} if answer.missing else {"why": answer.why} if answer.why else {}
        return ended or written(answer.data, store)
    if isinstance(answer, Stat):
        plain = {name: getattr(answer, name) for name in STAT if getattr(answer, name)}
        ends = {"real": answer.real} if answer.real else {}
        link = {"link": True} if answer.is_link else {}
        return {"exists": answer.exists} | plain | ends | link
    if isinstance(answer, Ran):
        values = {name: getattr(answer, name) for name in ("code", "missing", "why", "timed_out")}
        told = {name: one for name, one in values.items() if one is not None and one is not False}
        streams = {
            name: written(text.encode("utf-8", "surrogatepass"), store)
            for name in ("stdout", "stderr")
            if (text := getattr(answer, name))
        }
        times = {"seconds": answer.seconds, "silent_s": answer.silent_s}
        rounded = {name: round(one, 3) for name, one in times.items() if one is not None}
        return told | streams | rounded
    if isinstance(answer, Listing):
        ended = {"missing": True} if answer.missing else {"why": answer.why} if answer.why else {}
        return ended or {"names": list(answer.names)}
    if isinstance(answer, Space):
        return {"total_bytes": answer.total_bytes, "free_bytes": answer.free_bytes}
    return list(answer) if isinstance(answer, tuple) else answer


class _Content(TypedDict, total=False):
    text: str
    base64: str
    file: str


class _Read(_Content, total=False):
    missing: bool
    why: str


class _Listing(TypedDict, total=False):
    names: list[str]
    missing: bool
    why: str


class _Stat(TypedDict, total=False):
    exists: Optional[bool]  # noqa: UP045 - msgspec reads it on Python 3.10
    is_dir: bool
    mode: int
    uid: int
    gid: int
    size: int
    why: str
    real: str
    link: bool


class _Ran(TypedDict, total=False):
    code: int
    missing: bool
    why: str
    timed_out: bool
    seconds: float
    silent_s: float
    stdout: _Content
    stderr: _Content


_SHAPES: dict[str, Any] = {
    "read": _Read,
    "stat": _Stat,
    "listing": _Listing,
    "run": _Ran,
    "inside": _Ran,
    "space": Space | None,
    "glob": list[str],
    "which": str | None,
}
"""What `encoded` makes of each kind of answer. A recording comes from anybody."""


def decoded(kind: str, plain: Any, folder: Path) -> Any:
    """The answer to a question of that kind that `encoded` made plain.

    Raises ValueError for what it never makes.
    """
    plain = msgspec.convert(plain, _SHAPES[kind])
    if kind == "read":
        ended = {name: plain[name] for name in ("missing", "why") if name in plain}
        return Answer(**ended) if ended else Answer(data=content(plain, folder))
    if kind == "stat":
        values = {name: one for name, one in plain.items() if name != "link"}
        return ToldStat(link=plain.get("link", False), **values)
    if kind == "listing":
        return Listing(**(plain | {"names": tuple(plain.get("names", ()))}))
    if kind in ("run", "inside"):
        streams = {
            name: content(plain[name], folder).decode("utf-8", "surrogatepass")
            for name in ("stdout", "stderr")
            if name in plain
        }
        if plain.get("timed_out"):  # recordings made before silence was measured
            plain.setdefault("silent_s", plain.get("seconds", 0.0))
        return Ran(**(plain | streams))
    if kind == "space":
        return plain
    return tuple(plain) if kind == "glob" else plain

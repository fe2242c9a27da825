"""Recording a host and replaying it: every question of an examination, with its answer.

A recording is a folder: recording.json says how was looked, and one file of JSON lines for each
kind of question has the answers in the order of asking. Long answers lie in `texts`. `record`
writes one, `replay` examines it as if it were the host.
"""

import base64
import itertools
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os.path import abspath, dirname
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypedDict, TypeVar

from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict

from cudadoctor import __version__
from cudadoctor.host.children import Environment, Ran, working_folder
from cudadoctor.host.local import Answer, Host, How, Listing, Space, Stat
from cudadoctor.model.machine import Json, Machine, OptBool, OptInt, OptStr, Strings, StrPair
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.probes.examine import Look, NoInterpreter, examine_host
from cudadoctor.smoke.inside.wire import BOOT

if TYPE_CHECKING:
    from typing_extensions import Unpack

ABOUT = "recording.json"
TEXTS = "texts"
FORMAT = 1
LONGEST = 2000
MOST_BYTES = 64 << 20
"""Of one file of a recording."""
STAT = ("exists", "is_dir", "mode", "uid", "gid", "size", "why", "real")
SILENT = "the recording does not contain this information"

Question = dict[str, Any]
Store = Callable[[bytes, str], str]
"""Keeps a long content under an ending, and says where."""

_Reply = TypeVar("_Reply")
_PACKAGE = dirname(dirname(abspath(__file__)))  # noqa: PTH100, PTH120
_SCRATCH = re.compile(r"(?<![^\s=|])[^\s=|]*cudadoctor-smoke-\w+")
_CONTROLS = frozenset(range(32)) - set(b"\t\n\r\f\x1b")


class RecordError(ValueError):
    """Why nothing can be recorded there, in one sentence."""


class ReplayError(ValueError):
    """Why a folder cannot be replayed, in one sentence."""


class NoAnswer(LookupError):  # noqa: N818 - what it is
    """A question that the recording has no answer to."""


# --- questions ------------------------------------------------------------------------------


def key_of(question: Question) -> str:
    """The question as one text: the same question has the same one."""
    return json.dumps(question, sort_keys=True)


def _around(
    own: Environment,
    stdin: OptStr = None,
    env: Environment | None = None,
    cwd: OptStr = None,
    **_: object,
) -> Question:
    """What differs from the doctor's own environment, folder and stdin."""
    around: Question = {"cwd": cwd}
    if env is not None:
        changed = {
            name: _normalised(value) for name, value in env.items() if own.get(name) != value
        }
        around |= {"env": changed, "without": sorted(own.keys() - env.keys())}
    around = {name: value for name, value in around.items() if value}
    return around | ({} if stdin is None else {"stdin": stdin})


def _normalised(word: str) -> str:
    """A word without what differs from run to run or is the doctor's own."""
    if word == BOOT:
        return "<boot>"
    return _SCRATCH.sub("<scratch>", word.replace(_PACKAGE, "<cudadoctor>"))


class _PlainHost:
    """A Host whose questions are plain data; `_answer` says what the answer is."""

    env: Environment
    system: str
    _own_env: Environment

    def _answer(
        self, kind: str, question: Question, silent: _Reply, *args: Any, **how: Any
    ) -> _Reply:
        """The answer to a question. silent: says that it is not known. The rest asks a host."""
        raise NotImplementedError

    def _answer_to(self, kind: str, silent: _Reply, **question: Any) -> _Reply:
        return self._answer(kind, question, silent, *question.values())

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        return self._answer_to("read", Answer(why=SILENT), path=path, limit=limit, offset=offset)

    def listing(self, path: str) -> Listing:
        return self._answer_to("listing", Listing(why=SILENT), path=path)

    def stat(self, path: str) -> Stat:
        return self._answer_to("stat", Stat(exists=None, why=SILENT), path=path)

    def glob(self, pattern: str) -> Strings:
        return self._answer_to("glob", (), pattern=pattern)

    def which(self, name: str) -> OptStr:
        return self._answer_to("which", None, name=name)

    def space(self, path: str) -> Space | None:
        return self._answer_to("space", None, path=path)

    def run(self, *argv: str, stdin: OptStr = None, **how: "Unpack[How]") -> Ran:
        question = {"argv": [_normalised(word) for word in argv]}
        question |= _around(self._own_env, stdin, **how)
        return self._answer("run", question, Ran(why=SILENT), *argv, stdin=stdin, **how)

    def inside(self, script: str, *args: str, python: OptStr = None, **how: "Unpack[How]") -> Ran:
        # Where the doctor's pynvml lies is no matter of the host.
        words = [] if script == "nvml.py" else [_normalised(word) for word in args]
        question = {"script": script, "args": words}
        question |= ({"python": python} if python else {}) | _around(self._own_env, **how)
        return self._answer(
            "inside", question, Ran(why=SILENT), script, *args, python=python, **how
        )


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


def content(stored: Any, folder: Path) -> bytes:
    """Read back the content that `written` stored."""
    plain = convert(stored, dict[str, str])
    if "file" in plain:
        name = Path(plain["file"]).name
        data = whole(folder / TEXTS / name)
        return base64.decodebytes(data) if name.endswith(".b64") else data
    if "base64" in plain:
        return base64.b64decode(plain["base64"])
    return plain.get("text", "").encode("utf-8", "surrogatepass")


def whole(path: Path) -> bytes:
    """All of a file of a recording. Raises OSError for what lies elsewhere or is far too large."""
    if path.is_symlink() or not path.is_file():
        raise OSError("the path is not a regular file in the recording folder")
    if path.stat().st_size > MOST_BYTES:
        raise OSError(f"the file is larger than {MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def encoded(answer: Any, store: Store, words: Concealer | None, source: str) -> Any:
    """An answer as plain data, without what has its default, nor what identifies.

    words: None keeps all. source: the file, folder or program that the answer is from.
    """
    hidden = words.text if words else str
    output = partial(words.output, source=source) if words else str
    if isinstance(answer, Stat):
        values = {name: getattr(answer, name) for name in STAT} | {"real": hidden(answer.real)}
        known = {name: value for name, value in values.items() if value}
        return {"exists": answer.exists} | known | ({"link": True} if answer.is_link else {})
    if isinstance(answer, Ran):
        plain = asdict(answer)
        for name in ("stdout", "stderr"):
            text = output(plain.pop(name)).encode("utf-8", "surrogatepass")
            plain |= {name: written(text, store)} if text else {}
        for name in ("seconds", "silent_s"):
            plain[name] = None if plain[name] is None else round(plain[name], 3)
        return {
            name: value for name, value in plain.items() if value is not None and value is not False
        }
    if isinstance(answer, (Answer, Listing)) and (answer.missing or answer.why):
        return {"missing": True} if answer.missing else {"why": hidden(answer.why or "")}
    if isinstance(answer, Listing):
        names = (hidden(f"{source}/{name}").rpartition("/")[2] for name in answer.names)
        return {"names": sorted(names)}
    if isinstance(answer, Answer):
        if is_text(answer.data):
            return written(output(answer.data.decode()).encode(), store)
        return written(words.data(answer.data) if words else answer.data, store)
    plain = to_builtins(answer)
    return words.plain(plain) if words else plain


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


_TYPES: Json = {
    "read": Answer,
    "stat": _Stat,
    "listing": Listing,
    "run": Ran,
    "inside": Ran,
    "space": Space | None,
    "glob": Strings,
    "which": str | None,
}
KINDS = tuple(_TYPES)


def decoded(kind: str, plain: Any, folder: Path) -> Any:
    """The answer to a question of that kind that `encoded` made plain.

    A recording comes from anybody. Raises ValueError for what `encoded` never makes.
    """
    if kind in ("read", "run", "inside"):
        plain = convert(plain, dict[str, Any])
    if kind == "read" and not {"missing", "why"} & plain.keys():
        plain = {"data": content(plain, folder)}
    if kind in ("run", "inside"):
        for name in {"stdout", "stderr"} & plain.keys():
            plain[name] = content(plain[name], folder).decode("utf-8", "surrogatepass")
        if plain.get("timed_out"):  # recordings made before silence was measured
            plain.setdefault("silent_s", plain.get("seconds", 0.0))
    answer = convert(plain, _TYPES[kind])
    return Stat(is_link=answer.pop("link", False), **answer) if kind == "stat" else answer


# --- recording ------------------------------------------------------------------------------


class Entry(Struct, frozen=True):
    """A question of a kind, and what the host said."""

    kind: str
    question: Question
    answer: Any


class AskedFor(dict[str, str]):
    """An environment that notes which variables were asked for: no other is recorded."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


class RecordingHost(_PlainHost):
    """A Host that asks another one and notes what it said; of the same question, the first answer.

    Probes ask from several threads; a dict takes each entry as a whole.
    """

    def __init__(self, door: Host) -> None:
        self.door = door
        self.scratch = getattr(door, "scratch", None)
        self.uid = getattr(door, "uid", None)
        self.noted: dict[StrPair, Entry] = {}
        self.env = self.asked_for = AskedFor(door.env)
        self._own_env = door.env
        self.system = door.system

    def _answer(
        self,
        kind: str,
        question: Question,
        silent: _Reply,  # noqa: ARG002 - the host always answers
        *args: Any,
        **how: Any,
    ) -> _Reply:
        answer: _Reply = getattr(self.door, kind)(*args, **how)
        self.noted.setdefault((kind, key_of(question)), Entry(kind, question, answer))
        return answer


def prepare(folder: str) -> None:
    """Make the folder. Raises RecordError where it is not empty or cannot be written to."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RecordError(f"{folder} is not empty; specify a new or empty folder")
        if not os.access(path, os.W_OK | os.X_OK):
            raise RecordError(f"{folder} cannot be written to: no permission")
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror}") from error


def write(
    folder: str, host: RecordingHost, look: Look, machine: Machine, *, full: bool = False
) -> int:
    """Write the answers into a prepared folder and return their number.

    machine: what was seen, since it knows the names that are to be concealed unless `full`.
    """
    entries = list(host.noted.values())
    # What programs printed can name people and hosts that the facts leave out.
    rans = [entry.answer for entry in entries if isinstance(entry.answer, Ran)]
    output = "\n".join(text for ran in rans for text in (ran.stdout, ran.stderr) if text)
    words = None if full else Concealer(machine, output)
    # The variables that the examination turned on.
    asked = {name for name in host.env if name.startswith("ENROOT_")} | host.asked_for.names
    kept = sorted((asked | (machine.env or {}).keys()) & set(host.env))
    try:
        (Path(folder) / TEXTS).mkdir()
        about = _about_of(host, look, machine, words) | {
            "env": {
                name: words.valued(f"env.{name}", host.env[name]) if words else host.env[name]
                for name in kept
            }
        }
        (Path(folder) / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        _write_entries(Path(folder), entries, words, kept)
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror}") from error
    return len(entries)


def _about_of(host: RecordingHost, look: Look, machine: Machine, words: Concealer | None) -> Json:
    """What recording.json says, but for the variables."""
    about = {
        "recording": FORMAT,
        "cudadoctor": __version__,
        "redacted": words is not None,
        "date": machine.date,
        "system": host.system,
        "folder": getattr(host.door, "folder", "") or working_folder() or os.sep,
        "uid": host.uid,
        "own_environment": machine.python.own,
        "own": machine.python.executable if machine.python.chosen_by == "own" else None,
        "look": to_builtins(look),
    }
    return about if words is None else words.plain(about)


def _write_entries(
    folder: Path, entries: list[Entry], words: Concealer | None, kept: list[str]
) -> None:
    """Write the entries; of variables that are unset only those that the recording has."""
    numbers = itertools.count(1)

    def store(data: bytes, ending: str) -> str:
        name = f"{TEXTS}/{next(numbers):04d}{ending}"
        (folder / name).write_bytes(data)
        return name

    for kind in KINDS:
        with (folder / f"{kind}.jsonl").open("w", encoding="utf-8") as file:
            for entry in entries:
                if entry.kind == kind:
                    question = dict(entry.question)
                    source = str(question.get("path") or (question.get("argv") or [""])[0])
                    answer = encoded(entry.answer, store, words, source)
                    unset = [name for name in question.pop("without", ()) if name in kept]
                    question |= {"without": unset} if unset else {}
                    asked = words.plain(question) if words else question
                    file.write(json.dumps({"asked": asked, "said": answer}) + "\n")


# --- replaying ------------------------------------------------------------------------------


class About(Struct, frozen=True, kw_only=True):
    """What recording.json says: how was looked, and where."""

    recording: int
    system: str
    folder: str
    look: Look
    env: dict[str, str]
    date: OptStr = None
    own: OptStr = None
    own_environment: OptBool = None
    uid: OptInt = None


class ReplayHost(_PlainHost):
    """A Host that answers from the folder of a recording.

    strict: a question without an answer raises NoAnswer; else the answer is that it is not known.
    unanswered: those questions, since a probe may turn an error into a gap.
    folder, own, uid: the recorded host's working folder, doctor's interpreter and user.
    """

    def __init__(self, folder: str, *, strict: bool = True) -> None:
        self._folder = Path(folder)
        self.about = _about(self._folder)
        self.strict = strict
        self.unanswered: list[str] = []
        self.folder = self.about.folder
        self.uid = self.about.uid
        if self.about.own:
            self.own = self.about.own
        self.own_environment = self.about.own_environment
        self.env = self._own_env = self.about.env
        self.system = self.about.system
        self._answers = {kind: _entries(self._folder, kind) for kind in KINDS}

    def _answer(
        self,
        kind: str,
        question: Question,
        silent: _Reply,
        *_: Any,
        **how: Any,  # noqa: ARG002 - there is nobody to ask
    ) -> _Reply:
        key = key_of(question)
        if key in self._answers[kind]:
            # What is damaged is no answer.
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                answer: _Reply = decoded(kind, self._answers[kind][key], self._folder)
                return answer
        self.unanswered.append(f"{kind} {key}")
        if self.strict:
            raise NoAnswer(f"this recording has no data for {kind} {key}")
        return silent

    def examine(self) -> Machine:
        """Look at it as the recorded host was looked at. Raises NoInterpreter."""
        return examine_host(self, self.about.look, lambda *_: None, today=self.about.date)


def replay(folder: str, *, strict: bool = True) -> Machine:
    """The machine of a recording. Raises NoAnswer where strict and it lacks an answer."""
    host = ReplayHost(folder, strict=strict)
    try:
        machine = host.examine()
    except NoInterpreter as error:
        raise ReplayError(
            f"the recording in {folder} does not say which Python was examined: {error}"
        ) from error
    if strict and host.unanswered:
        raise NoAnswer(f"this recording has no data for {'; '.join(host.unanswered)}")
    return machine


def lacking(folder: str) -> Strings:
    """What a replay asks and the recording cannot answer: nothing, where it was written well."""
    host = ReplayHost(folder, strict=False)
    with suppress(NoInterpreter):
        host.examine()
    return tuple(host.unanswered)


def _about(folder: Path) -> About:
    try:
        about = convert(json.loads(whole(folder / ABOUT)), About)
    except (OSError, ValueError, RecursionError) as error:
        raise ReplayError(f"{folder} is not a recording: {error}") from error
    if about.recording > FORMAT:
        raise ReplayError(
            f"{folder} was recorded by a newer version of cudadoctor; use that version"
        )
    return about


def _entries(folder: Path, kind: str) -> Json:
    """By question, what was said."""
    found: Json = {}
    try:
        for line in whole(folder / f"{kind}.jsonl").splitlines():
            entry = json.loads(line)
            found.setdefault(key_of(entry["asked"]), entry["said"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReplayError(f"{folder}/{kind}.jsonl cannot be read: {error}") from error
    return found

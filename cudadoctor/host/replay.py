"""Replaying a recording: a host that knows only what another one once said."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cudadoctor.host import recorded
from cudadoctor.host.children import OnLine, Ran
from cudadoctor.host.local import Answer, Listing, Space, Stat
from cudadoctor.host.recorded import Question
from cudadoctor.model.machine import Machine
from cudadoctor.probes.examine import Look, NoInterpreter, examine_host

SILENT = "the recording has no answer to this"


class NoAnswer(LookupError):  # noqa: N818 - what it is
    """A question that the recording has no answer to."""


class ReplayError(ValueError):
    """Why a folder cannot be replayed, in one sentence."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What recording.json says: how was looked, and where."""

    recording: int
    system: str
    folder: str
    look: Look
    env: dict[str, str]
    date: str | None = None
    own: str | None = None
    own_environment: bool | None = None
    uid: int | None = None


class ReplayHost:
    """A Host that answers from the folder of a recording.

    strict: a question without an answer raises NoAnswer; else the answer is that it is not known.
    unanswered: those questions, since a probe may turn an error into a gap.
    folder, own, uid: the recorded host's working folder, doctor's interpreter and user.
    """

    def __init__(self, folder: str, *, strict: bool = True) -> None:
        self._folder = Path(folder)
        about = _about(self._folder)
        self.strict = strict
        self.unanswered: list[str] = []
        self.date = about.date
        self.look = about.look
        self.folder = about.folder
        self.uid = about.uid
        if about.own:
            self.own = about.own
        self.own_environment = about.own_environment
        self._env = about.env
        self._system = about.system
        self._said = {kind: _entries(self._folder, kind) for kind in recorded.KINDS}

    @property
    def env(self) -> Mapping[str, str]:
        return self._env

    @property
    def system(self) -> str:
        return self._system

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        question = {"path": path, "limit": limit, "offset": offset}
        said: Answer = self._answer("read", question, Answer(why=SILENT))
        return said

    def listing(self, path: str) -> Listing:
        said: Listing = self._answer("listing", {"path": path}, Listing(why=SILENT))
        return said

    def stat(self, path: str) -> Stat:
        said: Stat = self._answer("stat", {"path": path}, Stat(exists=None, why=SILENT))
        return said

    def glob(self, pattern: str) -> tuple[str, ...]:
        said: tuple[str, ...] = self._answer("glob", {"pattern": pattern}, ())
        return said

    def which(self, name: str) -> str | None:
        said: str | None = self._answer("which", {"name": name}, None)
        return said

    def space(self, path: str) -> Space | None:
        said: Space | None = self._answer("space", {"path": path}, None)
        return said

    def run(
        self,
        *argv: str,
        timeout_s: float,  # noqa: ARG002 - it took as long as it took
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
    ) -> Ran:
        question = recorded.program(argv, self._env, env, cwd, stdin)
        said: Ran = self._answer("run", question, Ran(why=SILENT))
        return said

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,  # noqa: ARG002
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_line: OnLine | None = None,  # noqa: ARG002
    ) -> Ran:
        question = recorded.script((script, *args), python, self._env, env, cwd)
        said: Ran = self._answer("inside", question, Ran(why=SILENT))
        return said

    def _answer(self, kind: str, question: Question, silent: Any) -> Any:
        key = recorded.key_of(question)
        if key in self._said[kind]:
            # What is damaged is no answer.
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                return recorded.decoded(kind, self._said[kind][key], self._folder)
        self.unanswered.append(f"{kind} {key}")
        if self.strict:
            raise NoAnswer(f"this recording has no answer to {kind} {key}")
        return silent


def replay(folder: str, *, strict: bool = True) -> Machine:
    """The machine of a recording. Raises NoAnswer where strict and it lacks an answer."""
    host = ReplayHost(folder, strict=strict)
    try:
        machine = examine_host(host, host.look, lambda *_: None, today=host.date)
    except NoInterpreter as error:
        raise ReplayError(f"{folder} does not say which Python was examined: {error}") from error
    if strict and host.unanswered:
        raise NoAnswer(f"this recording has no answer to {'; '.join(host.unanswered)}")
    return machine


def lacking(folder: str) -> tuple[str, ...]:
    """What a replay asks and the recording cannot answer: nothing, where it was written well."""
    host = ReplayHost(folder, strict=False)
    with contextlib.suppress(NoInterpreter):
        examine_host(host, host.look, lambda *_: None, today=host.date)
    return tuple(host.unanswered)


def _about(folder: Path) -> About:
    try:
        plain = json.loads(recorded.whole(folder / recorded.ABOUT))
        about = msgspec.convert(plain, About)
    except (OSError, ValueError, RecursionError) as error:
        raise ReplayError(f"{folder} is no recording: {error}") from error
    if about.recording > recorded.FORMAT:
        raise ReplayError(f"{folder} was recorded by a newer cudadoctor: take that one")
    return about


def _entries(folder: Path, kind: str) -> dict[str, Any]:
    """By question, what was said."""
    found: dict[str, Any] = {}
    try:
        for line in recorded.whole(folder / f"{kind}.jsonl").splitlines():
            entry = json.loads(line)
            found.setdefault(recorded.key_of(entry["asked"]), entry["said"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReplayError(f"{folder}/{kind}.jsonl cannot be read: {error}") from error
    return found

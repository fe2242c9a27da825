"""Recording a host: every question of an examination and its answer, written into a folder."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cudadoctor import __version__
from cudadoctor.host import recorded
from cudadoctor.host.children import OnLine, Ran
from cudadoctor.host.local import Answer, Host, Listing, LocalHost, Space, Stat
from cudadoctor.host.recorded import Question, ToldStat
from cudadoctor.model.machine import Machine
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.probes.examine import Look

_Said = TypeVar("_Said")


class RecordError(ValueError):
    """Why nothing can be recorded there, in one sentence."""


class Entry(msgspec.Struct, frozen=True):
    """A question of a kind, and what the host said."""

    kind: str
    question: Question
    answer: Any


class AskedFor(Mapping[str, str]):
    """An environment that notes which variables were asked for: no other is recorded."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return self._env.get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return name in self._env

    def __getitem__(self, name: str) -> str:
        return self._env[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)


class RecordingHost:
    """A Host that asks another one and notes what it said; of the same question, the first answer.

    Probes ask from several threads; a dict takes each entry as a whole.
    """

    def __init__(self, door: Host) -> None:
        self.door = door
        self.scratch = getattr(door, "scratch", None)
        self.uid = getattr(door, "uid", None)
        self.noted: dict[tuple[str, str], Entry] = {}
        self._env = AskedFor(door.env)

    @property
    def env(self) -> Mapping[str, str]:
        return self._env

    @property
    def asked_for(self) -> frozenset[str]:
        """The variables that were asked for by their names."""
        return frozenset(self._env.names)

    @property
    def system(self) -> str:
        return self.door.system

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        question = {"path": path, "limit": limit, "offset": offset}
        return self._noted("read", question, self.door.read(path, limit, offset))

    def listing(self, path: str) -> Listing:
        return self._noted("listing", {"path": path}, self.door.listing(path))

    def stat(self, path: str) -> Stat:
        return self._noted("stat", {"path": path}, self.door.stat(path))

    def glob(self, pattern: str) -> tuple[str, ...]:
        return self._noted("glob", {"pattern": pattern}, self.door.glob(pattern))

    def which(self, name: str) -> str | None:
        return self._noted("which", {"name": name}, self.door.which(name))

    def space(self, path: str) -> Space | None:
        return self._noted("space", {"path": path}, self.door.space(path))

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        """Run a program without a shell. on_line: told every line, where the host can do that."""
        question = recorded.program(argv, self.door.env, env, cwd, stdin)
        if on_line is not None and isinstance(self.door, LocalHost):
            ran = self.door.run(
                *argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin, on_line=on_line
            )
        else:
            ran = self.door.run(*argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        return self._noted("run", question, ran)

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        question = recorded.script((script, *args), python, self.door.env, env, cwd)
        ran = self.door.inside(
            script,
            *args,
            timeout_s=timeout_s,
            python=python,
            env=env,
            cwd=cwd,
            on_line=on_line,
        )
        return self._noted("inside", question, ran)

    def _noted(self, kind: str, question: Question, answer: _Said) -> _Said:
        key = (kind, recorded.key_of(question))
        self.noted.setdefault(key, Entry(kind, question, answer))
        return answer


# --- the folder -----------------------------------------------------------------------------


def prepare(folder: str) -> None:
    """Make the folder. Raises RecordError where it is not empty or cannot be written to."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RecordError(f"{folder} is not empty: name a folder that is new or empty")
        if not os.access(path, os.W_OK | os.X_OK):
            raise RecordError(f"{folder} cannot be written to: no permission")
    except OSError as error:
        raise RecordError(f"{folder} cannot be written to: {error.strerror}") from error


def write(
    folder: str, host: RecordingHost, look: Look, machine: Machine, *, full: bool = False
) -> int:
    """Write what was said into a prepared folder; the number of answers.

    machine: what was seen, since it knows the names that are to be concealed unless `full`.
    """
    words = None if full else Concealer(machine, _said(host))
    entries = [one if words is None else concealed(one, words) for one in [*host.noted.values()]]
    try:
        (Path(folder) / recorded.TEXTS).mkdir()
        _write_about(Path(folder), host, look, machine, words)
        _write_entries(Path(folder), entries, _kept(host, machine))
    except OSError as error:
        raise RecordError(f"{folder} cannot be written to: {error.strerror}") from error
    return len(entries)


def _said(host: RecordingHost) -> str:
    """What programs printed: it can name people and hosts that the facts leave out."""
    rans = [one.answer for one in [*host.noted.values()] if isinstance(one.answer, Ran)]
    return "\n".join(text for ran in rans for text in (ran.stdout, ran.stderr) if text)


def concealed(entry: Entry, words: Concealer) -> Entry:
    """The entry without what identifies, in its question as in its answer."""
    question = words.plain(entry.question)
    source = str(entry.question.get("path") or (entry.question.get("argv") or [""])[0])
    return Entry(entry.kind, question, _concealed(entry.answer, source, words))


def _concealed(answer: Any, source: str, words: Concealer) -> Any:
    change = msgspec.structs.replace
    if isinstance(answer, Answer):
        why = answer.why and words.text(answer.why)
        return change(answer, data=_content(answer.data, source, words), why=why)
    if isinstance(answer, Ran):
        streams = (words.output(one, source) for one in (answer.stdout, answer.stderr))
        stdout, stderr = streams
        return change(answer, stdout=stdout, stderr=stderr)
    if isinstance(answer, Listing):
        names = (words.text(f"{source}/{one}").rpartition("/")[2] for one in answer.names)
        return change(answer, names=tuple(sorted(names)))
    if isinstance(answer, Stat):
        values = {name: getattr(answer, name) for name in recorded.STAT}
        return ToldStat(link=answer.is_link, real=words.text(answer.real), **values)
    return words.plain(answer) if isinstance(answer, (str, tuple)) else answer


def _content(data: bytes, source: str, words: Concealer) -> bytes:
    if not recorded.is_text(data):
        return words.data(data)
    return words.output(data.decode("utf-8"), source).encode("utf-8")


def _kept(host: RecordingHost, machine: Machine) -> frozenset[str]:
    """The variables that the examination turned on."""
    told = {name for name in host.env if name.startswith("ENROOT_")}
    return frozenset((host.asked_for | told | (machine.env or {}).keys()) & set(host.env))


def _write_about(
    folder: Path, host: RecordingHost, look: Look, machine: Machine, words: Concealer | None
) -> None:
    env = {name: host.env[name] for name in sorted(_kept(host, machine))}
    about = {
        "recording": recorded.FORMAT,
        "cudadoctor": __version__,
        "redacted": words is not None,
        "date": machine.date,
        "system": host.system,
        "folder": getattr(host.door, "folder", "") or _working_folder(),
        "uid": host.uid,
        "own_environment": machine.python.own,
        "own": machine.python.executable if machine.python.chosen_by == "own" else None,
        "look": msgspec.to_builtins(look),
    }
    if words is not None:
        about = words.plain(about)
        env = {name: words.valued(f"env.{name}", value) for name, value in env.items()}
    text = json.dumps(about | {"env": env}, indent=1)
    (folder / recorded.ABOUT).write_text(text + "\n", encoding="utf-8")


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a text, compared with texts
    except OSError:
        return os.sep


def _write_entries(folder: Path, entries: list[Entry], kept: frozenset[str]) -> None:
    written = 0

    def store(data: bytes, ending: str) -> str:
        nonlocal written
        written += 1
        name = f"{written:04d}{ending}"
        (folder / recorded.TEXTS / name).write_bytes(data)
        return f"{recorded.TEXTS}/{name}"

    for kind in recorded.KINDS:
        with (folder / f"{kind}.jsonl").open("w", encoding="utf-8") as file:
            for entry in entries:
                if entry.kind == kind:
                    question = _without_strangers(entry.question, kept)
                    answer = recorded.encoded(entry.answer, store)
                    file.write(json.dumps({"asked": question, "said": answer}) + "\n")


def _without_strangers(question: Question, kept: frozenset[str]) -> Question:
    """The question without the names of variables that the recording does not have."""
    if "without" not in question:
        return question
    left = [name for name in question["without"] if name in kept]
    return {key: one for key, one in question.items() if key != "without"} | (
        {"without": left} if left else {}
    )

"""A machine made of answers: what a real host said, so that a test can ask it again.

Files are a closed world: what is not recorded is not there. A program or script that is asked and
not recorded fails the test, unless `otherwise` answers for all of them.
"""

# ruff: noqa: ARG002

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from cudadoctor.host.children import OnLine, Ran
from cudadoctor.host.local import Answer, Listing, Space, Stat

Said = Ran | str | Sequence[Mapping[str, object]] | Callable[..., Ran]
"""How a program answers: in full; with its stdout; with JSON lines; or by its arguments."""

NOTHING = Ran(missing=True)


class RecordedHost:
    """A Host that answers from dicts.

    files: path -> text, bytes or Answer. folders: path -> names, where the files below it do not
    say them. stats: path -> Stat, for device nodes and the like. links: path -> what it points to.
    programs: name -> path, for `which`. runs: argv -> answer; the key is a tuple or a command line
    with single blanks. inside: script -> answer. asked: every program and script that was asked.
    """

    def __init__(
        self,
        *,
        files: Mapping[str, str | bytes | Answer] | None = None,
        folders: Mapping[str, Iterable[str] | Listing] | None = None,
        stats: Mapping[str, Stat] | None = None,
        links: Mapping[str, str] | None = None,
        programs: Mapping[str, str] | None = None,
        runs: Mapping[str | tuple[str, ...], Said] | None = None,
        inside: Mapping[str, Said] | None = None,
        spaces: Mapping[str, Space] | None = None,
        env: Mapping[str, str] | None = None,
        system: str = "Linux",
        otherwise: Ran | None = None,
    ) -> None:
        self.files = dict(files or {})
        self.folders = dict(folders or {})
        self.stats = dict(stats or {})
        self.links = dict(links or {})
        self.programs = dict(programs or {})
        self.runs = {_argv(key): value for key, value in (runs or {}).items()}
        self.scripts = dict(inside or {})
        self.spaces = dict(spaces or {})
        self.otherwise = otherwise
        self.asked: list[tuple[str, ...]] = []
        self._env = dict(env or {})
        self._system = system

    @property
    def env(self) -> Mapping[str, str]:
        return self._env

    @property
    def system(self) -> str:
        return self._system

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        said = self.files.get(self._real(path), self.files.get(path))
        if said is None:
            folder = self._is_folder(path)
            return Answer(why="EISDIR: Is a directory") if folder else Answer(missing=True)
        if isinstance(said, Answer):
            return said
        data = said.encode() if isinstance(said, str) else said
        return Answer(data=data[offset : offset + limit])

    def listing(self, path: str) -> Listing:
        said = self.folders.get(path)
        if isinstance(said, Listing):
            return said
        names = {*(said or ()), *self._below(path)}
        if names or said is not None:
            return Listing(names=tuple(sorted(names)))
        return Listing(missing=True)

    def stat(self, path: str) -> Stat:
        if path in self.stats:
            return self.stats[path]
        real = self._real(path)
        said = self.files.get(real)
        if said is not None:
            size = len(said) if isinstance(said, (str, bytes)) else len(said.data)
            return Stat(exists=True, mode=0o644, size=size, real=real)
        if self._is_folder(real) or path in self.links:
            return Stat(exists=True, is_dir=self._is_folder(real), mode=0o755, real=real)
        return Stat(exists=False)

    def glob(self, pattern: str) -> tuple[str, ...]:
        depth = pattern.count("/")
        deep = "**" in pattern
        known = {*self.files, *self.stats, *self.links, *self._all_folders()}
        return tuple(
            sorted(
                path
                for path in known
                if fnmatch.fnmatchcase(path, pattern) and (deep or path.count("/") == depth)
            )
        )

    def which(self, name: str) -> str | None:
        return self.programs.get(name)

    def space(self, path: str) -> Space | None:
        return self.spaces.get(path)

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        self.asked.append(argv)
        return self._answer(argv, self.runs.get(argv), argv)

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
        self.asked.append((script, *args))
        return self._answer((script, *args), self.scripts.get(script), args)

    def _answer(self, asked: tuple[str, ...], said: Said | None, args: tuple[str, ...]) -> Ran:
        if said is None:
            if self.otherwise is None:
                pytest.fail(f"this recording has no data for {' '.join(asked)!r}")
            return self.otherwise
        if isinstance(said, Ran):
            return said
        if isinstance(said, str):
            return Ran(code=0, stdout=said)
        if callable(said):
            return said(*args)
        return lines(*said)

    def _real(self, path: str) -> str:
        for _ in range(8):
            if path not in self.links:
                break
            path = self.links[path]
        return path

    def _below(self, path: str) -> set[str]:
        start = path.rstrip("/") + "/"
        known = (*self.files, *self.folders, *self.stats, *self.links)
        return {entry[len(start) :].split("/")[0] for entry in known if entry.startswith(start)}

    def _is_folder(self, path: str) -> bool:
        return path in self.folders or bool(self._below(path))

    def _all_folders(self) -> set[str]:
        found = set(self.folders)
        for path in (*self.files, *self.folders, *self.stats, *self.links):
            parts = path.split("/")
            found |= {"/".join(parts[:n]) for n in range(2, len(parts))}
        return found


def _argv(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key.split(" ")) if isinstance(key, str) else key


def lines(*said: Mapping[str, object]) -> Ran:
    """What a script of inside/ printed, with the line that says it came to its end."""
    whole = [*said, {"kind": "done"}]
    return Ran(code=0, stdout="".join(json.dumps(line) + "\n" for line in whole))


def cut_short(
    *said: Mapping[str, object], signal: int | None = None, silent_s: float = 60.0
) -> Ran:
    """The same for a script that hung after these lines, or died by a signal."""
    text = "".join(json.dumps(line) + "\n" for line in said)
    if signal is not None:
        return Ran(code=-signal, stdout=text)
    why = f"no response within {silent_s:g} s"
    return Ran(stdout=text, why=why, timed_out=True, silent_s=silent_s)

"""Asking the resolvers: which are there, and what they say within the time that is left."""

# Paths are texts for children here.
# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cudadoctor.installers.address import manager
from cudadoctor.installers.resolver import pip, uv
from cudadoctor.installers.resolver.question import environment
from cudadoctor.installers.resolver.verdict import Answer
from cudadoctor.installers.uv import in_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.host.children import Ran
    from cudadoctor.host.local import LocalHost
    from cudadoctor.installers.resolver.question import Question
    from cudadoctor.installers.resolver.target import Target
    from cudadoctor.model.machine import Machine

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside", "pip_dry.py")
_VERSION_S = 10.0
_LOG_BYTES = 4 << 20
_RETRIES = "1"
"""What is tried again once is not tried for half of the limit."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A resolver that is there. program: uv's path, or the interpreter that runs pip.

    place: the wheel that holds pip, "" where the interpreter has one installed.
    """

    kind: str
    program: str
    name: str
    place: str = ""


class Clock:
    """The time that is left of a limit, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    @property
    def told(self) -> str:
        """The limit as it is shown, in seconds."""
        return f"{self.limit_s:.0f}" if self.limit_s >= 1 else f"{self.limit_s:.2g}"

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())


class Setting(NamedTuple):
    """In what the question is asked. here: the examined interpreter is on this machine."""

    door: LocalHost
    machine: Machine
    clock: Clock
    here: bool


def tools(at: Setting) -> Iterator[Tool]:
    """The resolvers of this machine, the truest first; each is looked at when it is its turn."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    known = manager(at.machine, "uv") if at.here else None
    for path in dict.fromkeys(one for one in (known, at.door.which("uv"), beside) if one):
        ran = at.door.run(path, "--version", timeout_s=min(_VERSION_S, at.clock.left_s))
        words = ran.stdout.split()
        if ran.ok and words[:1] == ["uv"] and len(words) > 1:
            yield Tool(kind="uv", program=path, name=f"uv {words[1]}")
            break
    examined = at.machine.python.executable if at.here and not at.machine.redacted else None
    for python, place in pips(examined):
        if found := pip_of(at.door, python, place, at.clock):
            yield found
            return


def pips(target: str | None) -> Iterator[tuple[str, str]]:
    """Interpreters with the place of the pip that they can run: the doctor's own first."""
    yield sys.executable, ""
    yield from ((sys.executable, wheel) for wheel in _bundled())
    if target:
        yield target, ""


def _bundled() -> list[str]:
    """The pip that Python brings along for new environments."""
    import glob

    folder = os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled")
    found = glob.glob(os.path.join(glob.escape(folder), "pip-*.whl"))  # noqa: PTH207
    return sorted(found)[-1:]


def pip_of(door: LocalHost, python: str, place: str, clock: Clock) -> Tool | None:
    ran = door.run(
        *_started(python, place, {}, ("--version",)),
        timeout_s=min(_VERSION_S, clock.left_s),
        cwd=door.scratch,
    )
    version = pip.version_in(ran.stdout) if ran.ok else None
    if version is None or version < pip.OLDEST:
        return None
    return Tool(kind="pip", program=python, name=f"pip {version}", place=place)


def _started(
    python: str, place: str, markers: dict[str, str], words: tuple[str, ...]
) -> tuple[str, ...]:
    return (python, "-E", "-B", _SCRIPT, json.dumps(markers), place, *words)


def ask(at: Setting, tool: Tool, target: Target, asked: Question) -> Answer:
    """One run of a resolver. Its caches and files stay in the scratch folder."""
    if at.clock.left_s <= 0:
        return _too_late(asked, at.clock)
    return (_ask_uv if tool.kind == "uv" else _ask_pip)(at, tool, target, asked)


def _ask_uv(at: Setting, tool: Tool, target: Target, asked: Question) -> Answer:
    answer = _run_uv(at, tool, target, asked)
    if answer.kind == "unfit" and target.executable:
        # The interpreter cannot be run, or is of a kind that uv does not take: by its tags.
        return _run_uv(at, tool, msgspec.structs.replace(target, executable=None), asked)
    return answer


def _run_uv(at: Setting, tool: Tool, target: Target, asked: Question) -> Answer:
    words = uv.argv(tool.program, target, asked, own=sys.executable, here=at.here)
    if words is None:
        return Answer(kind="unfit", text=f"{tool.name} has no words for this interpreter")
    words = (words[0], *in_project(at.machine), *words[1:]) if at.here else words
    lines = "".join(f"{one}\n" for one in asked.first)
    env = _environment(at, tool, asked)
    if target.macos and not target.executable:
        env["MACOSX_DEPLOYMENT_TARGET"] = target.macos  # else uv takes an old macOS for granted
    ran = at.door.run(*words, timeout_s=at.clock.left_s, env=env, stdin=lines)
    return _unended(ran, tool, asked, at.clock) or uv.read(ran.code, ran.stdout, ran.stderr)


def _ask_pip(at: Setting, tool: Tool, target: Target, asked: Question) -> Answer:
    folder = at.door.scratch or "."
    mark = os.urandom(4).hex()
    report, log = (os.path.join(folder, f"pip-{mark}.{end}") for end in ("json", "log"))
    words = pip.argv(target, asked, report=report, log=log, here=at.here)
    started = _started(tool.program, tool.place, target.markers, words)
    ran = at.door.run(*started, timeout_s=at.clock.left_s, env=_environment(at, tool, asked))
    if unended := _unended(ran, tool, asked, at.clock):
        return unended
    told = at.door.read(report, _LOG_BYTES).text
    # What ended it stands at the end.
    start = max(0, at.door.stat(log).size - _LOG_BYTES)
    noted = at.door.read(log, _LOG_BYTES, start).text
    return pip.read(ran.code, told, ran.stderr, noted, target.abi)


def _unended(ran: Ran, tool: Tool, asked: Question, clock: Clock) -> Answer | None:
    """Where a resolver did not come to its end: at the limit, or never begun."""
    if ran.timed_out:
        return _too_late(asked, clock)
    if ran.why or ran.missing:
        return Answer(kind="unfit", text=ran.why or f"{tool.program} is gone")
    return None


def _environment(at: Setting, tool: Tool, asked: Question) -> dict[str, str]:
    changed, scratch = dict(at.door.env), at.door.scratch
    more = environment(tool.kind, asked, here=at.here)
    more |= pip.variables() if tool.kind == "pip" else {}
    if scratch:
        # A child that is killed at its limit leaves nothing behind either.
        # pip asks rustc for its version, and rustup's makes a folder in a home that has none.
        more |= {"RUSTUP_HOME": os.path.join(scratch, "rustup")}
        more |= {"TMPDIR": scratch, "UV_CACHE_DIR": os.path.join(scratch, "uv")}
    changed.setdefault("UV_HTTP_RETRIES", _RETRIES)
    for name, value in more.items():
        changed.pop(name, None)
        if value is not None:
            changed[name] = value
    return changed


def _too_late(asked: Question, clock: Clock) -> Answer:
    hosts = asked.sources.hosts(asked.settings)
    how = f"did not answer within {clock.told} s"
    return Answer(kind="unreached", host=" or ".join(hosts), how=how)

"""`--verify`: asks a real resolver whether the plan's packages can be had together.

Nothing is installed and nothing is built: only wheels count, so no stranger's setup.py is run.
"""

# Paths are texts for children here.
# ruff: noqa: PTH100, PTH118, PTH120

import glob
import http.client
import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from os.path import abspath, dirname, join
from time import monotonic
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.cli.speech import english
from cudadoctor.host import local
from cudadoctor.host.children import start_thread
from cudadoctor.host.local import LocalHost
from cudadoctor.installers import docker, pip, registry, uv
from cudadoctor.installers.question import (
    Answer,
    File,
    Question,
    Target,
    environment,
    follow_up,
    question_of,
    target_of,
)
from cudadoctor.installers.stack import stack_for
from cudadoctor.installers.tool import Hashes, manager
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.findings import PackageChange, Plan, Step
from cudadoctor.model.machine import Machine, OptBool, OptInt, OptStr, Strings, StrPair
from cudadoctor.plan.remedies.torch import emptied, remedy_for
from cudadoctor.render import inert
from cudadoctor.render.summary import is_runnable
from cudadoctor.solver.demand import python_of

LIMIT_S = 60.0
_SCRIPT = join(dirname(abspath(__file__)), "inside", "pip_dry.py")
_VERSION_S = 10.0
_LOG_BYTES = 4 << 20
_RETRIES = "1"
"""What is tried again once is not tried for half of the limit."""
_FIRST = ("torch", "torchvision", "torchaudio")
_LONGEST = 300
_HEADS_AT_ONCE = 8
_HEADS_S = 8.0
_HEAD_S = 4.0


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a package change can be had for an interpreter.

    resolves: None if that could not be learnt. found: name and version of all that it comes to
    in an empty environment. tool: the resolver with its version, "" if none was asked.
    why: the sentence that is shown. unreached: the host that gave no answer, "" if all did.
    """

    resolves: OptBool
    found: tuple[StrPair, ...] = ()
    files: tuple[File, ...] = ()
    tool: str = ""
    why: str = ""
    unreached: str = ""


class Clock:
    """The time that is left of a limit, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = monotonic() + limit_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - monotonic())


class Setting(NamedTuple):
    """In what the question is asked. here: the examined interpreter is on this machine."""

    door: LocalHost
    machine: Machine
    clock: Clock
    here: bool


class Resolver(NamedTuple):
    """A resolver that is there. program: uv's path, or the interpreter that runs pip.

    name: with its version. place: the wheel that holds pip, "" if the interpreter has one.
    """

    kind: str
    program: str
    name: str
    place: str = ""


# --- a change, a file, a plan ------------------------------------------------------------------


def verify(
    change: PackageChange,
    m: Machine,
    kb: Knowledge,
    *,
    limit_s: float = LIMIT_S,
    here: bool,
    tool_name: OptStr = None,
    sized: bool = True,
) -> Verdict:
    """Whether the packages of a change can be had together for the machine's interpreter.

    here: the examined interpreter is on this machine and may be asked; else its tags are used.
    tool_name: the manager that the plan is written for. sized: ask for the size of each file too.
    Takes at most limit_s seconds. Never raises for an index or a resolver that fails.
    """
    if limit_s <= 0:
        return unverified(english("the time limit was reached"))
    tool = registry.tool_for(m, tool_name)
    if not tool.write(m, kb, change).wheels:
        return unverified(english("uv and pip cannot check packages for {tool}", tool=tool.name))
    at = Setting(local.this_host(), m, Clock(limit_s), here)
    if tool is docker.TOOL:
        at = at._replace(machine=docker.inside(m, kb, change), here=False)
    found = by_wheels(at, question_of(at.machine, change, tool.name))
    if not sized or not found.files:
        return found
    return replace(found, files=with_sizes(found.files, at.clock.left_s))


def verify_file(
    kind: str, m: Machine, kb: Knowledge, build: TorchBuild, *, limit_s: float, here: bool
) -> Verdict:
    """Whether the packages of a project's file can be had for a new environment of this machine."""
    fresh, tool = emptied(m), registry.BY_KIND[kind]
    change = remedy_for(build, fresh, kb).packages
    if change is None:
        return unverified(english("there is nothing to install"))
    here = here and tool in (pip.TOOL, uv.TOOL)  # the others make an environment of their own
    return verify(change, fresh, kb, limit_s=limit_s, here=here, tool_name=tool.name, sized=False)


def digests(
    m: Machine, kb: Knowledge, build: TorchBuild, *, limit_s: float, here: bool
) -> tuple[Verdict, Hashes]:
    """The digests of every file that a requirements file of that build comes to.

    Searched as the file is: torch's own index beside the default one. Files without a digest make
    the verdict None: pip takes digests for all packages or for none.
    """
    stack = stack_for("requirements", m, kb, build, python=python_of(m))
    torch, *companions = stack.pins
    question = Question(
        first=(f"{torch}+{build.variant}" if stack.index else torch, *companions),
        extra=(stack.index,) if stack.index else (),
        settings=None if m.redacted else m.python.index,
    )
    found = by_wheels(Setting(local.this_host(), m, Clock(limit_s), here), question)
    if found.resolves and (bare := [file.name for file in found.files if not file.sha256]):
        reason = english("the index provides no hash for {names}", names=", ".join(bare))
        return unverified(reason, found.tool, unreached="index"), {}
    return found, {(file.name, file.version): (file.sha256 or "",) for file in found.files}


def verified(plan: Plan, ask: Callable[[PackageChange], Verdict]) -> Plan:
    """Every step of packages with its verdict. ask: the resolver; each change is asked of once.

    An index that did not answer is not asked again.
    """
    known: dict[PackageChange, Verdict] = {}
    silent: dict[OptStr, Verdict] = {}

    def judged(step: Step) -> Step:
        change = step.packages
        if change is None or not (change.install or change.then):
            return step
        verdict = known.get(change) or silent.get(change.index) or ask(change)
        known[change] = verdict
        if verdict.unreached:
            silent[change.index] = verdict
        return replace(step, verified=verdict.resolves, resolution=verdict.why)

    return replace(plan, steps=tuple(map(judged, plan.steps)))


def holds(plan: Plan) -> bool:
    """Whether each group whose packages cannot be had has another way that may be taken."""
    failed = {step.group for step in plan.steps if step.verified is False}
    return failed <= {step.group for step in plan.steps if is_runnable(step)}


# --- one question ------------------------------------------------------------------------------


def by_wheels(at: Setting, question: Question) -> Verdict:
    """The verdict of uv if it is there, else of a pip that can report.

    Another tool may know better than one that is unfit. After uv, pip is asked too: it may have
    certificates and proxies in its own settings, and of several indexes searched as one, uv does
    not tell that one of them refused it; before 0.9, it never did.
    """
    if question.odd:
        return unverified(
            english("{name} does not come from a package index", name=question.odd[0])
        )
    if not question.first and not question.then:
        left = question.left_out
        return unverified(_as_source(left) if left else english("there is nothing to install"))
    target = target_of(at.machine, here=at.here)
    if isinstance(target, str):
        return unverified(target)
    last = unverified(english("the check needs uv, or pip 22.2 or newer"))
    several = question.mixed or bool(question.then and question.index)
    for resolver in resolvers(at):
        answer = answered(at, resolver, target, question)
        # What uv refuses for a plan of uv's own, pip cannot allow.
        refused = last.resolves is False and not question.like_pip
        less = bool(last.tool) if answer.kind == "unfit" else answer.kind == "resolved" and refused
        last = last if less else verdict_of(answer, resolver, question)
        if answer.kind == "refused":
            further = several or "not found in the package registry" in answer.text
        else:
            further = answer.kind == "unreached" and question.like_pip
        further = answer.kind == "unfit" or (resolver.kind == "uv" and further)
        if at.clock.left_s <= 0 or not further:
            break
    return last


def answered(at: Setting, resolver: Resolver, target: Target, question: Question) -> Answer:
    """The answer to the whole question: what follows is asked once the first part is known."""
    first = Answer(kind="resolved")
    if question.first:
        first = _ask(at, resolver, target, question)
    more = follow_up(question, first.files) if first.kind == "resolved" else None
    return _ask(at, resolver, target, more) if more else first


def _ask(at: Setting, resolver: Resolver, target: Target, question: Question) -> Answer:
    """One run of a resolver. Its caches and files stay in the scratch folder."""
    if at.clock.left_s <= 0:
        return _too_late(question, at.clock)
    door, env, stdin = at.door, _environment(at, resolver, question), None
    log = join(door.scratch or ".", f"pip-{os.urandom(4).hex()}.log")
    report = f"{log}.json"
    if resolver.kind == "pip":
        words = pip.argv(target, question, report=report, log=log, here=at.here)
        argv = _pip_started(resolver.program, resolver.place, words, target.markers)
    else:
        start = (resolver.program, *(uv.in_project(at.machine) if at.here else ()))
        argv = uv.argv(start, target, question, own=sys.executable, here=at.here)
        stdin = "".join(f"{requirement}\n" for requirement in question.first)
        if target.macos and not target.executable:
            env["MACOSX_DEPLOYMENT_TARGET"] = target.macos  # else uv takes an old macOS for granted
        if not argv:
            return Answer(
                kind="unfit", text=f"{resolver.name} cannot resolve packages for this Python"
            )
    ran = door.run(*argv, timeout_s=at.clock.left_s, env=env, stdin=stdin)
    if ran.timed_out:
        return _too_late(question, at.clock)
    if ran.why or ran.missing:
        answer = Answer(kind="unfit", text=ran.why or f"{resolver.program} is gone")
    elif resolver.kind == "uv":
        answer = uv.read(ran.code, ran.stdout, ran.stderr)
    else:
        # What ended it stands at the end.
        noted = door.read(log, _LOG_BYTES, max(0, door.stat(log).size - _LOG_BYTES)).text
        answer = pip.read(
            ran.code, door.read(report, _LOG_BYTES).text, ran.stderr, noted, target.abi
        )
    if resolver.kind == "uv" and answer.kind == "unfit" and target.executable:
        # The interpreter cannot be run, or is of a kind that uv does not take: by its tags.
        target = replace(target, executable=None)
        return _ask(at, resolver, target, question)
    return answer


def _environment(at: Setting, resolver: Resolver, question: Question) -> dict[str, str]:
    changed = {"UV_HTTP_RETRIES": _RETRIES, **at.door.env}
    more = environment(resolver.kind, question, here=at.here)
    more |= pip.VARIABLES if resolver.kind == "pip" else {}
    if scratch := at.door.scratch:
        # A child that is killed at its limit leaves nothing behind either.
        # pip asks rustc for its version, and rustup's makes a folder in a home that has none.
        more |= {"RUSTUP_HOME": join(scratch, "rustup")}
        more |= {"TMPDIR": scratch, "UV_CACHE_DIR": join(scratch, "uv")}
    changed |= {name: value for name, value in more.items() if value is not None}
    return {name: value for name, value in changed.items() if more.get(name, value) is not None}


def _too_late(question: Question, clock: Clock) -> Answer:
    limit = f"{clock.limit_s:{'.0f' if clock.limit_s >= 1 else '.2g'}}"
    how = english("did not respond within {limit} s", limit=limit)
    return Answer(kind="unreached", host=" or ".join(question.hosts), how=how)


# --- which resolvers are there -----------------------------------------------------------------


def resolvers(at: Setting) -> Iterator[Resolver]:
    """The resolvers of this machine, the truest first; each is looked at when it is its turn."""
    beside = join(dirname(sys.executable), "uv")
    known = manager(at.machine, "uv") if at.here else None
    for path in dict.fromkeys(filter(None, (known, at.door.which("uv"), beside))):
        ran = at.door.run(path, "--version", timeout_s=min(_VERSION_S, at.clock.left_s))
        words = ran.stdout.split()
        if ran.ok and words[:1] == ["uv"] and len(words) > 1:
            yield Resolver("uv", path, f"uv {words[1]}")
            break
    examined = at.machine.python.executable if at.here and not at.machine.redacted else None
    pythons = [(sys.executable, ""), *((sys.executable, wheel) for wheel in bundled())]
    pythons += [(examined, "")] if examined else []
    if found := next(filter(None, (pip_of(at, *python) for python in pythons)), None):
        yield found


def bundled() -> list[str]:
    """The pip that Python brings along for new environments."""
    folder = join(dirname(os.__file__), "ensurepip", "_bundled")
    return sorted(glob.glob(join(glob.escape(folder), "pip-*.whl")))[-1:]  # noqa: PTH207


def pip_of(at: Setting, python: str, place: str) -> Resolver | None:
    """The pip in that place that the interpreter runs, if it can report what it would install."""
    argv = _pip_started(python, place, ("--version",))
    ran = at.door.run(*argv, timeout_s=min(_VERSION_S, at.clock.left_s), cwd=at.door.scratch)
    version = pip.version_in(ran.stdout) if ran.ok else None
    if version is None or version < pip.OLDEST:
        return None
    return Resolver("pip", python, f"pip {version}", place)


def _pip_started(
    python: str, place: str, words: Strings, markers: dict[str, str] | None = None
) -> Strings:
    return (python, "-E", "-B", _SCRIPT, json.dumps(markers or {}), place, *words)


# --- sentences ---------------------------------------------------------------------------------


def verdict_of(answer: Answer, resolver: Resolver, question: Question) -> Verdict:
    """The verdict of one resolver, with its sentence."""
    name, text = resolver.name, answer.text
    match answer.kind:
        case "resolved":
            return resolved(answer.files, name, question.left_out)
        case "refused":
            why = english(
                "the packages cannot be installed together: {reason} ({tool})",
                reason=shortened(text),
                tool=name,
            )
            return Verdict(resolves=False, tool=name, why=why)
        case "source":
            return unverified(_as_source((text,)), name)
        case "unfit":
            return unverified(english("{tool} failed: {reason}", tool=name, reason=text), name)
    host = answer.host or next(iter(question.hosts), "")
    text = text or english(
        "the index {host} {how}", host=host, how=answer.how or english("did not respond")
    )
    return unverified(text, name, unreached=host)


def resolved(files: tuple[File, ...], tool: str, left_out: Strings = ()) -> Verdict:
    """left_out: packages that come as source and were not asked for."""
    versions = {file.name: file.version for file in files}
    first = [name for name in _FIRST if name in versions]
    found = tuple((name, versions[name]) for name in (*first, *sorted(versions.keys() - {*first})))
    shown = len(first) or 3
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    text = english(
        "the packages can be installed together: {packages} ({tool})",
        packages=", ".join(map(" ".join, found[:shown])) + more,
        tool=tool,
    )
    if left_out:
        names = ", ".join(left_out)
        text += english("; not checked: {names} (available only as source)", names=names)
    return Verdict(resolves=True, found=found, files=files, tool=tool, why=inert(text))


def _as_source(names: Strings) -> str:
    template = "{names} is available only as source, which this check does not build"
    return english(template, names=", ".join(names))


def unverified(reason: str, tool: str = "", *, unreached: str = "") -> Verdict:
    """Nothing is known of whether they can be had."""
    why = english("the packages could not be checked: {reason}", reason=shortened(reason))
    return Verdict(resolves=None, tool=tool, why=why, unreached=unreached)


def shortened(text: str) -> str:
    """A resolver's words on one line, inert, cut at a word."""
    line = inert(re.sub(r"://[^/\s@]+@", "://", " ".join(text.split())))
    if len(line) <= _LONGEST:
        return line
    return line[:_LONGEST].rsplit(" ", 1)[0] + " ..."


# --- sizes -------------------------------------------------------------------------------------


def with_sizes(files: tuple[File, ...], limit_s: float) -> tuple[File, ...]:
    """The files with their sizes in bytes, as far as they come within the limit (8 s at most)."""
    clock, found = Clock(min(limit_s, _HEADS_S)), dict[str, int]()
    urls = [file.url for file in files if file.size_bytes is None]
    wanted = iter(urls)

    def work() -> None:
        for url in wanted:  # the threads share them
            if not (left_s := clock.left_s):
                return
            if (size := _size_of(url, min(_HEAD_S, max(0.1, left_s)))) is not None:
                found[url] = size

    for thread in filter(None, [start_thread(work) for _ in urls[:_HEADS_AT_ONCE]]):
        # Left behind if it hangs: a daemon, whose answer nobody waits for.
        thread.join(clock.left_s)
    known = dict(found)
    return tuple(replace(file, size_bytes=known.get(file.url, file.size_bytes)) for file in files)


def _size_of(url: str, timeout_s: float) -> OptInt:
    """Size of a file behind a URL in bytes; None if the server does not say."""
    try:
        if url.startswith("file:"):
            path = urllib.request.url2pathname(url.removeprefix("file://"))
            return os.stat(path).st_size  # noqa: PTH116
        if not url.startswith(("https://", "http://")):
            return None
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            length = answer.headers.get("Content-Length")
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return int(length) if length and length.isdecimal() else None

"""`--verify`: asks a real resolver whether the plan's packages can be had together.

Nothing is installed and nothing is built: only wheels count, so no stranger's setup.py is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers.resolver.verdict import (
    Answer,
    File,
    Verdict,
    refused,
    resolved,
    unanswered,
    unverified,
)

if TYPE_CHECKING:
    from cudadoctor.installers.resolver.asking import Setting, Tool
    from cudadoctor.installers.resolver.question import Question
    from cudadoctor.installers.resolver.target import Target
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Dialect, PackageChange
    from cudadoctor.model.machine import Machine

__all__ = ["LIMIT_S", "File", "Verdict", "answered", "by_wheels", "verdict_of", "verify"]

LIMIT_S = 60.0


def verify(
    change: PackageChange,
    m: Machine,
    kb: Knowledge,
    *,
    limit_s: float = LIMIT_S,
    here: bool,
    wish: Dialect | None = None,
    sized: bool = True,
) -> Verdict:
    """Whether the packages of a change can be had together for the machine's interpreter.

    here: the examined interpreter is on this machine and may be asked; else its tags are used.
    wish: the manager that the plan is written for. sized: ask for the size of each file too.
    Takes at most limit_s seconds. Never raises for an index or a resolver that fails.
    """
    from cudadoctor import installers as dialects
    from cudadoctor.host import local
    from cudadoctor.installers.resolver.asking import Clock, Setting

    if limit_s <= 0:
        return unverified("no time is left to ask")
    at = Setting(local.this_host(), m, Clock(limit_s), here)
    dialect = wish or dialects.dialect_of(m)
    if dialect in ("conda", "pixi") and not _takes_wheels(m, kb, change, dialect):
        from cudadoctor.installers.resolver import channels

        return channels.verify(at, dialect, change, kb)
    if dialect == "docker":
        from cudadoctor.installers.resolver.image import inside

        at = at._replace(machine=inside(m, kb, change), here=False)
    found = _of_wheels(at, change, dialect)
    if not sized or not found.files:
        return found
    from cudadoctor.installers.resolver.sizes import with_sizes

    return msgspec.structs.replace(found, files=with_sizes(found.files, at.clock.left_s))


def _takes_wheels(m: Machine, kb: Knowledge, change: PackageChange, dialect: str) -> bool:
    """Whether the plan for conda or pixi takes wheels, since no channel has such builds."""
    from cudadoctor.installers import pixi
    from cudadoctor.installers.index import is_foreign

    return is_foreign(change.index) or (dialect == "pixi" and bool(pixi.by_wheels(m, kb, change)))


def _of_wheels(at: Setting, change: PackageChange, dialect: str) -> Verdict:
    from cudadoctor.installers.resolver.question import question_of

    return by_wheels(at, question_of(at.machine, change, dialect))


def by_wheels(at: Setting, asked: Question) -> Verdict:
    """The verdict of uv where it is there, else of a pip that can report."""
    from cudadoctor.installers.resolver.asking import tools
    from cudadoctor.installers.resolver.target import target_of

    if asked.odd:
        return unverified(f"{asked.odd[0]} names no release of a package index")
    if not asked.first and not asked.then:
        return unverified(_as_source(asked.left_out) if asked.left_out else "nothing is installed")
    target = target_of(at.machine, here=at.here)
    if isinstance(target, str):
        return unverified(target)
    last = unverified("neither uv nor a pip of 22.2 or newer is there to ask")
    for tool in tools(at):
        answer = answered(at, tool, target, asked)
        if not _is_worse(answer, last, asked):
            last = verdict_of(answer, tool, asked)
        if at.clock.left_s <= 0 or not _is_open(answer, tool, asked):
            return last
    return last


def _is_open(answer: Answer, tool: Tool, asked: Question) -> bool:
    """Whether the next tool may know better.

    pip may have certificates and proxies in its own settings. Of several indexes searched as one,
    uv does not tell that one of them refused it; before 0.9, it never did.
    """
    if answer.kind == "unfit":
        return True
    if tool.kind != "uv":
        return False
    if answer.kind == "refused":
        return _several(asked) or "not found in the package registry" in answer.text
    return answer.kind == "unreached" and asked.like_pip


def _is_worse(answer: Answer, last: Verdict, asked: Question) -> bool:
    """Whether a second tool's answer says less than the first one's.

    What uv refuses for a plan of uv's own, pip cannot allow.
    """
    if answer.kind == "unfit":
        return bool(last.tool)
    return answer.kind == "resolved" and last.resolves is False and not asked.like_pip


def _several(asked: Question) -> bool:
    return asked.mixed or bool(asked.then and asked.sources.index)


def answered(at: Setting, tool: Tool, target: Target, asked: Question) -> Answer:
    """The answer to the whole question: what follows is asked once the first part is known."""
    from cudadoctor.installers.resolver.asking import ask
    from cudadoctor.installers.resolver.question import follow_up

    first: tuple[File, ...] = ()
    if asked.first:
        answer = ask(at, tool, target, asked)
        if answer.kind != "resolved":
            return answer
        first = answer.files
    more = follow_up(asked, first)
    if more is None:
        return Answer(kind="resolved", files=first)
    return ask(at, tool, target, more)


def verdict_of(answer: Answer, tool: Tool, asked: Question) -> Verdict:
    if answer.kind == "resolved":
        return resolved(answer.files, tool.name, asked.left_out)
    if answer.kind == "refused":
        return refused(answer.text, tool.name)
    if answer.kind == "source":
        return unverified(_as_source((answer.text,)), tool.name)
    if answer.kind == "unfit":
        return unverified(f"{tool.name} cannot be asked: {answer.text}", tool.name)
    hosts = asked.sources.hosts(asked.settings)
    host = answer.host or (hosts[0] if hosts else "")
    text = answer.text or unanswered(host, answer.how or "did not answer")
    return unverified(text, tool.name, unreached=host)


def _as_source(names: tuple[str, ...]) -> str:
    come = "come" if len(names) > 1 else "comes"
    return f"{', '.join(names)} {come} as source, which is not built for it"

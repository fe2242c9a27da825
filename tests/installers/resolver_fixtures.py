"""A machine, and a resolver that is asked for it without the configuration of who runs the test."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from cudadoctor.host import local
from cudadoctor.installers import verify
from cudadoctor.installers.question import question_of, target_of
from cudadoctor.installers.verify import Clock, Resolver, Setting, Verdict
from cudadoctor.model import factfile
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine

MACHINES = Path(__file__).parent.parent / "machines"
LONG_S = 60.0


def machine(name: str = "rtx4090-linux") -> Machine:
    return factfile.loads((MACHINES / f"{name}.json").read_text())


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index, cache or proxy of whoever runs the test."""
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def setting(m: Machine, *, limit_s: float = LONG_S, here: bool = False) -> Setting:
    return Setting(local.this_host(), m, Clock(limit_s), here)


def tool_of(kind: str, at: Setting) -> Resolver:
    tool = found(kind, at) if at.here else found_beside(kind)
    return tool or pytest.skip(f"no {kind} is here that can be asked")


def found(kind: str, at: Setting) -> Resolver | None:
    return next((tool for tool in verify.resolvers(at) if tool.kind == kind), None)


@cache
def found_beside(kind: str) -> Resolver | None:
    """The one beside the doctor, which is the same whatever machine it is asked for."""
    return found(kind, setting(machine()))


def asked(
    kind: str,
    change: PackageChange,
    m: Machine | None = None,
    *,
    limit_s: float = LONG_S,
    here: bool = False,
    planned: str = "pip",
) -> Verdict:
    """The verdict of one kind of resolver, uv or pip, for the healthy machine.

    planned: the tool that the plan is written for.
    """
    m = m or machine()
    tool = tool_of(kind, setting(m, here=here))
    at = setting(m, limit_s=limit_s, here=here)
    question, target = question_of(m, change, planned), target_of(m, here=here)
    assert not isinstance(target, str)
    answer = verify.answered(at, tool, target, question)
    return verify.verdict_of(answer, tool, question)


def wanted(index: str, *requirements: str, then: tuple[str, ...] = ()) -> PackageChange:
    return PackageChange(install=requirements, index=index, then=then)

"""Run in a process of its own: one entry point of a plugin is loaded and asked.

Whatever it does, it does here: it may fail, exit, print or crash, and the doctor goes on.
"""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Iterator
from typing import Any

import msgspec

from cudadoctor import knowledge
from cudadoctor.model import factfile
from cudadoctor.model.findings import Finding, Undecided
from cudadoctor.model.machine import Json, Scalar
from cudadoctor.model.rule import NotKnown, Rule
from cudadoctor.plugins.answers import FACTS, Answer
from cudadoctor.rules.diagnose import finding_of, undecided_of


def main(request: Json) -> None:
    """Answer with one line of JSON on stdout, whose place stderr takes for what plugins print."""
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = _asked(request)
    except BaseException as error:
        answer = Answer(errors=(_told(error),))
    data = msgspec.json.encode(factfile.json_safe(msgspec.to_builtins(answer)))
    with os.fdopen(answers, "wb") as file:
        file.write(data + b"\n")
    os._exit(0)  # threads and handlers of the plugin keep nobody waiting


def _asked(request: Json) -> Answer:
    loaded: Any = importlib.import_module(request["module"])
    for name in filter(None, request["attribute"].split(".")):
        loaded = getattr(loaded, name)
    if request["group"] == FACTS:
        return Answer(facts=msgspec.convert(dict(loaded()), dict[str, Scalar]))
    return _judged([*_rules(loaded)], request)


def _rules(loaded: Any) -> Iterator[Rule]:
    """A rule, those of a list, or those of a module."""
    if isinstance(loaded, Rule):
        yield loaded
        return
    found = vars(loaded).values() if isinstance(loaded, types.ModuleType) else loaded
    for rule in found:
        if isinstance(rule, Rule):
            yield rule
        elif not isinstance(loaded, types.ModuleType):
            raise TypeError(f"{type(rule).__name__} is not a rule made by @rule")


def _judged(rules: list[Rule], request: Json) -> Answer:
    machine = factfile.from_plain(request["machine"])
    if request["tables"] is not None:
        from cudadoctor.cli import looking

        looking.use_tables(request["tables"])
    kb = knowledge.load()
    findings: list[Finding] = []
    passed: list[str] = []
    undecided: list[Undecided] = []
    errors: list[str] = []
    for rule in rules:
        try:
            answer = rule.judge(machine, kb)
            if answer is None:
                passed.append(rule.cause)
            else:
                findings.append(finding_of(rule, answer, machine))
        except NotKnown as gap:
            undecided.append(undecided_of(rule, gap, machine))
        except Exception as error:
            errors.append(f"{rule.name}: {_told(error)}")
    return Answer(
        findings=tuple(findings),
        passed=tuple(passed),
        undecided=tuple(undecided),
        errors=tuple(errors),
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:500].removesuffix(": ")

"""What is shown of a comparison: lines for a terminal, plain data for JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from msgspec import to_builtins

from cudadoctor import __version__
from cudadoctor.cluster.differences import Difference
from cudadoctor.cluster.judging import Judged
from cudadoctor.locale.language import Language
from cudadoctor.model.machine import Strings
from cudadoctor.render import inert

MOST_HOSTS = 8
MOST_VALUES = 5
"""Hosts of a value, and values of a fact, that the page names; JSON has all."""
MOST_ROWS = 40


def document(differences: tuple[Difference, ...], hosts: list[str]) -> dict[str, Any]:
    """The comparison as plain data, schema 1."""
    return {
        "schema": 1,
        "cudadoctor": __version__,
        "hosts": hosts,
        "differences": to_builtins(differences),
    }


def alike(count: int, shared: int, say: Language) -> str:
    """The whole report of hosts that do not differ. shared: how many facts they could differ in."""
    return say(
        "No differences between {count} hosts in {shared} facts.", count=count, shared=shared
    )


def headline(differences: tuple[Difference, ...], count: int, say: Language) -> str:
    """The first line of hosts that differ."""
    if len(differences) == 1:
        return say("1 difference between {count} hosts:", count=count)
    return say("{number} differences between {count} hosts:", number=len(differences), count=count)


def rows(differences: tuple[Difference, ...], width: int, say: Language) -> list[str]:
    """Every difference: the fact, the usual value, then each other value with its hosts."""
    lines = []
    for found in differences[:MOST_ROWS]:
        head = inert(found.fact.removeprefix("env."))
        if found.usual is not None:
            usual = _value(found.usual, say)
            head += ": " + say("{value} on {count} hosts", value=usual, count=found.count)
        lines += _wrapped(head, "  ", width)
        for odd in found.odd[:MOST_VALUES]:
            text = f"{named(odd.hosts, say)}: {_value(odd.value, say)}"
            lines += _wrapped(text, "      ", width)
        if len(found.odd) > MOST_VALUES:
            more = say("and {number} more values", number=len(found.odd) - MOST_VALUES)
            lines.append(f"      {more}")
    if len(differences) > MOST_ROWS:
        more = say("and {number} more; --json lists all", number=len(differences) - MOST_ROWS)
        lines.append(f"  {more}")
    return lines


def cluster_document(judged: Judged) -> dict[str, Any]:
    """The judged job as plain data, schema 1."""
    return {
        "schema": 1,
        "cudadoctor": __version__,
        "verdict": "broken" if judged.broken else "warnings" if judged.problems else "healthy",
        "nccl_tested": judged.nccl,
        "transports": list(judged.transports),
        "ranks": judged.ranks,
        "hosts": list(judged.hosts),
        "problems": [
            {
                "kind": problem.kind,
                "severity": "error" if problem.broken else "warning",
                "text": problem.template.format(**problem.values),
                "ranks": list(problem.ranks),
            }
            for problem in judged.problems
        ],
        "differences": to_builtins(judged.differences),
    }


def cluster_lines(judged: Judged, width: int, say: Language) -> list[str]:
    """The report of a job: the answer, each problem, what was not tested, what differs."""
    count = judged.ranks
    broken = [problem for problem in judged.problems if problem.broken]
    if not broken:
        lines = [say("DDP passed on all {count} ranks.", count=count)]
    elif len(broken) == 1:
        lines = [say("1 error in a job of {count} ranks:", count=count)]
    else:
        number = len(broken)
        lines = [say("{number} errors in a job of {count} ranks:", number=number, count=count)]
    for problem in judged.problems:
        values = {name: inert(value) for name, value in problem.values.items()}
        lines += _wrapped(say(problem.template, **values), "  ", width)
    if judged.transports:
        ways = ", ".join(map(inert, judged.transports))
        lines += _wrapped(say("NCCL's channels: {ways}.", ways=ways), "", width)
    if not judged.nccl:
        lines.append(say("NCCL not tested: no GPU for every rank. Tested with Gloo on the CPU."))
    if judged.differences:
        lines.append(headline(judged.differences, len(judged.hosts), say))
        lines += rows(judged.differences, width, say)
    return lines


def named(hosts: Strings, say: Language) -> str:
    """The hosts by name, the first few of many."""
    shown = ", ".join(map(inert, hosts[:MOST_HOSTS]))
    if len(hosts) <= MOST_HOSTS:
        return shown
    return say("{hosts} and {number} more", hosts=shown, number=len(hosts) - MOST_HOSTS)


def _value(value: str, say: Language) -> str:
    return say("not set") if value == "not set" else inert(value)


def _wrapped(text: str, margin: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )

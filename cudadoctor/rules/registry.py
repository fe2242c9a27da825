"""The one registry of rules: `check`, `check --from` and `explain` take theirs from here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType

from msgspec.structs import replace

from cudadoctor.knowledge.tables import table
from cudadoctor.model.machine import Strings
from cudadoctor.model.rule import Rule
from cudadoctor.rules import (
    build,
    companions,
    container,
    distributed,
    driver,
    gpu,
    health,
    healthy,
    install,
    libcuda,
    libraries,
    modes,
    platforms,
    process,
    speed,
    toolkit,
)

PRECEDENCE = table("rules/precedence", dict[str, Strings])
"""Rule -> the causes that explain its finding away where they are found too."""


def rules_in(families: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """The rules of these modules, in the order in which they stand there."""
    return tuple(
        replace(rule, yields_to=rule.yields_to + PRECEDENCE.get(rule.name, ()))
        for family in families
        for rule in vars(family).values()
        if isinstance(rule, Rule)
    )


RULES = rules_in(
    (
        *(platforms, gpu, driver, container, health, modes, libcuda, process, build, install),
        *(companions, libraries, toolkit, distributed, speed, healthy),
    )
)
"""The rules for hosts: platform, GPU, driver, box, process, torch, libraries; what is left last."""


@cache
def pasted_rules() -> tuple[Rule, ...]:
    """The rules for what only a pasted report shows; a host never loads them."""
    from cudadoctor.rules.pasted import installs, reported

    of_texts = rules_in((installs,)) + stated_rules()
    deeper: dict[str, Strings] = {}
    for rule in RULES + of_texts:
        deeper[rule.cause] = (*deeper.get(rule.cause, ()), *rule.yields_to)
    return of_texts + reported.reported_rules(deeper)


@cache
def stated_rules() -> tuple[Rule, ...]:
    """Of these the rules that compare what the author of a report says."""
    from cudadoctor.rules.pasted import stated

    return rules_in((stated,))


def explained_rules() -> tuple[Rule, ...]:
    """The rules whose pages `explain` shows: those for hosts, else those for reports."""
    on_hosts = {rule.cause for rule in RULES}
    return RULES + tuple(rule for rule in pasted_rules() if rule.cause not in on_hosts)

"""All rules, joined in causal order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.catalogue import CATALOGUE
from cudadoctor.model.rule import Rule
from cudadoctor.rules import (
    build,
    companions,
    container,
    distributed,
    driver,
    faults,
    gpu,
    health,
    install,
    libcuda,
    libraries,
    modes,
    peers,
    platforms,
    process,
    speed,
    toolkit,
    unknown,
)

if TYPE_CHECKING:
    from cudadoctor.model.machine import Machine

RULES: tuple[Rule, ...] = (
    *platforms.RULES,
    *gpu.RULES,
    *driver.RULES,
    *faults.RULES,
    *container.RULES,
    *health.RULES,
    *modes.RULES,
    *libcuda.RULES,
    *process.RULES,
    *build.RULES,
    *install.RULES,
    *companions.RULES,
    *libraries.RULES,
    *toolkit.RULES,
    *distributed.RULES,
    *peers.RULES,
    *speed.RULES,
    *unknown.RULES,
)
"""Every rule: platform, GPU, driver, box, process, torch, libraries, toolkit; what is left last."""


def rules_for(machine: Machine) -> tuple[Rule, ...]:
    """The rules that judge this machine: a pasted report has symptoms to judge as well."""
    if machine.look != "report":
        return RULES
    from cudadoctor.rules.pasted import resolution
    from cudadoctor.rules.pasted.reported import reported_rules

    deeper: dict[str, dict[str, None]] = {}
    for one in (*RULES, *resolution.RULES):
        deeper.setdefault(one.cause, {}).update(dict.fromkeys(one.yields_to))
    told = reported_rules(tuple((cause, tuple(some)) for cause, some in deeper.items()))
    return RULES + resolution.RULES + told


__all__ = ["CATALOGUE", "RULES", "rules_for"]

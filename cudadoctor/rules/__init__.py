"""All rules, joined in causal order."""

from __future__ import annotations

from cudadoctor.catalogue import CATALOGUE
from cudadoctor.rule import Rule
from cudadoctor.rules import (
    build,
    companions,
    container,
    distributed,
    driver,
    gpu,
    health,
    install,
    libcuda,
    libraries,
    modes,
    platforms,
    process,
    speed,
    toolkit,
    unknown,
)

RULES: tuple[Rule, ...] = (
    *platforms.RULES,
    *gpu.RULES,
    *driver.RULES,
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
    *speed.RULES,
    *unknown.RULES,
)
"""Every rule: platform, GPU, driver, box, process, torch, libraries, toolkit; what is left last."""

__all__ = ["CATALOGUE", "RULES"]

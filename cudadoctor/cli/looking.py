"""Examine this machine as the options say: the way of every command to the probes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import SHORTER, Waiting
from cudadoctor.probes import examine

if TYPE_CHECKING:
    from cudadoctor.model.machine import Machine, Smoke


def this_machine(options: Options) -> Machine:
    """This machine as the probes see it; no interpreter to examine is wrong use."""
    try:
        with Waiting(SHORTER) as progress:
            return examine.examine(look_of(options), progress, meanwhile=_load_the_core)
    except examine.NoInterpreter as error:
        from cudadoctor.cli.speech import spoken

        refuse(spoken(str(error)))


def look_of(options: Options) -> examine.Look:
    """How the probes are to look."""
    return examine.Look(
        python=options.python,
        depth="fast" if options.fast else "no-smoke" if options.no_smoke else "full",
        device=options.device,
        ranks=options.ranks,
        timeout_s=options.timeout,
    )


def passed(smoke: Smoke) -> bool:
    """Whether there is a stage, and none that failed."""
    fine = [stage.status in ("passed", "skipped") for stage in smoke.stages]
    return bool(fine) and all(fine)


def _load_the_core() -> None:
    """Import what judges, while the probes wait for their children."""
    for name in ("rules.registry", "pipeline", "render.json_v1"):
        importlib.import_module(f"cudadoctor.{name}")

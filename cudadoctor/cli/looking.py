"""The way of every command to the probes, and to the tables that it judges with."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from cudadoctor.cli.options import Options, refuse
from cudadoctor.cli.output import SHORTER, Waiting
from cudadoctor.host import local
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


KNOWLEDGE = "CUDADOCTOR_KNOWLEDGE"
"""Names a file of tables, as --knowledge does."""


def use_tables(named: str | None = None) -> None:
    """Judge with the tables of a file: one that is named, else the one that `update` has saved.

    Where neither is there, this is all that it costs: one look for a file.
    """
    chosen = named or os.environ.get(KNOWLEDGE)
    saved = None if chosen else local.saved_tables(os.environ)
    if chosen or (saved and os.path.exists(saved)):
        from cudadoctor.cli import renewing

        if chosen:
            renewing.use_named(chosen, variable=None if named else KNOWLEDGE)
        elif saved:
            renewing.use_saved(saved)


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

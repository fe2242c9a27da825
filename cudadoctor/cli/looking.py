"""The way of every command to the probes, and to the tables that it judges with."""

from __future__ import annotations

import importlib
import os
import sys
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
    if chosen and not (named or os.path.isabs(chosen)):
        refuse("{variable} must be an absolute path, not '{path}'", variable=KNOWLEDGE, path=chosen)
    path = chosen or local.saved_tables(os.environ)
    if path is None or not (chosen or os.path.exists(path)):
        return
    from cudadoctor.cli.speech import say, spoken
    from cudadoctor.knowledge import renewed

    try:
        used = renewed.use(tables_in(path), signed=chosen is None)
    except renewed.BadFile as error:
        reason = spoken(str(error))
        if chosen:
            refuse("cannot use the tables in {path}: {reason}", path=path, reason=reason)
        sentence = (
            "ignoring the updated tables in {path}: {reason}. To update them again, run: "
            "cudadoctor update"
        )
        note(say(sentence, path=path, reason=reason))
    else:
        if chosen and not used:
            note(say("ignoring the tables in {path}: cudadoctor's own are newer", path=path))


def tables_in(path: str) -> bytes:
    """What stands in a file of tables. Raises BadFile where it cannot be read."""
    from cudadoctor.knowledge.renewed import MOST_BYTES, BadFile

    try:
        # A pipe or a device is not opened.
        if not os.path.isfile(path):
            raise BadFile("it is not a file" if os.path.exists(path) else "there is no such file")
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadFile(error.strerror) from error
    if len(data) > MOST_BYTES:
        raise BadFile("it is too large")
    return data


def note(text: str) -> None:
    """A line on stderr beside the result."""
    from cudadoctor.render import inert

    sys.stderr.write(f"cudadoctor: {inert(text)}\n")


def look_of(options: Options) -> examine.Look:
    """How the probes are to look."""
    return examine.Look(
        python=options.python,
        depth="fast" if options.fast else "no-smoke" if options.no_smoke else "full",
        device=options.device,
        ranks=options.ranks,
        compiles=options.torch_compile,
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

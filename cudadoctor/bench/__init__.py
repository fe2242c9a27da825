"""Measure on this machine what the known techniques of faster training are worth.

The doctor's process drives: `search` says what to measure, `heats` lets processes of the examined
interpreter take turns (`stable` holds them), `judging` makes gains of their rounds.

The tests have no GPU: what only a GPU runs is not exercised by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudadoctor.cli.options import Options


def bench(asked: Options) -> int:
    """The command: with words after `--` a user's own script, else the workloads."""
    from cudadoctor.cli.options import refuse_contradictions

    refuse_contradictions(asked)
    if asked.words:
        from cudadoctor.bench import script

        return script.run(asked.words, asked)
    from cudadoctor.bench import command

    return command.run(asked)

"""The doctor from Python: a report of an interpreter, and the cause of an exception.

Nothing here initializes CUDA in the caller: whoever forks or calls `set_device` later still can.
"""

from __future__ import annotations

import html
import sys
import traceback
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from cudadoctor import knowledge
from cudadoctor.pipeline import judge, report
from cudadoctor.probes.streamed import no_progress
from cudadoctor.render import Report as Shown
from cudadoctor.render import json_v1, terminal

if TYPE_CHECKING:
    from cudadoctor.model.machine import Machine


class Report:
    """What the doctor found, redacted as the report of `cudadoctor check` is.

    A notebook shows it as HTML; `str` gives the same text.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    @property
    def verdict(self) -> str:
        """healthy, warnings, broken or undecided."""
        return self._shown.diagnosis.verdict

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of the causes found, the gravest first."""
        return tuple(finding.cause for finding in self._shown.diagnosis.findings)

    def to_json(self) -> dict[str, Any]:
        """The document that `cudadoctor check --json` prints."""
        return json_v1.report(self._shown)

    def __str__(self) -> str:
        lines = terminal.report(self._shown, terminal.Layout())
        return "\n".join(line.text for line in lines).strip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def check(
    *,
    python: str | None = None,
    depth: Literal["fast", "no-smoke", "full"] = "no-smoke",
    timeout_s: float | None = None,
) -> Report:
    """Examine an interpreter, by default the one that runs this, from child processes.

    depth: fast imports no torch; full also takes a training step. timeout_s: for each probe.
    Raises ValueError where `python` names no Python.
    """
    from cudadoctor.probes import examine

    look = examine.Look(python=python or sys.executable, depth=depth, timeout_s=timeout_s)
    return Report(report(judge(examine.examine(look, no_progress))))


def explain(error: BaseException) -> Report:
    """The cause of an exception, by its traceback and what this machine shows.

    This process makes no CUDA call: after a CUDA error most of them would fail.
    """
    from cudadoctor.probes import examine

    look = examine.Look(python=sys.executable, depth="fast", timeout_s=_PROBE_S)
    return Report(report(judge(described(error, examine.examine(look, no_progress)))))


def described(error: BaseException, here: Machine) -> Machine:
    """The exception as a report of it would read, from the machine on which it was raised."""
    from cudadoctor.reports.reading import read_report

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    facts = {section: getattr(here, section) for section in _OF_MACHINE}
    return replace(read_report(text, knowledge.load()), **facts)


_OF_MACHINE = (
    *("platform", "container", "python", "packages", "env"),
    *("pci", "driver", "gpus", "torch"),
)
"""What a report of an exception takes from the machine."""
_PROBE_S = 10.0

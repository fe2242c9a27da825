"""The smoke step alone, one line a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.render import inert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.machine import Machine


def lines(machine: Machine) -> Iterator[str]:
    """What each stage did, then what that proves."""
    run = machine.smoke
    if run is None or not run.stages:
        imported = machine.torch.imported
        why = (imported.error if imported else None) or _gap(machine) or "torch did not start"
        yield inert(f"no stage ran: {why}")
        return
    for stage in run.stages:
        took = f"{stage.seconds:7.2f} s" if stage.seconds is not None else " " * 9
        detail = f"  {stage.detail}" if stage.detail else ""
        yield inert(f"{stage.status:<9} {stage.name:<12} {took}{detail}")
    if run.ended:
        yield inert(f"ended     {run.ended}")
    if run.device == "cpu":
        yield "The step ran on the CPU: this proves torch, not a GPU."


def _gap(machine: Machine) -> str | None:
    return next((gap.why for gap in machine.gaps if gap.fact.startswith("smoke")), None)

"""GPUs that are left out of a program, because no torch serves them beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.findings import Remedy, Risk
from cudadoctor.plan.remedies.build import remedy_for
from cudadoctor.solver.mixed_gpus import named, seen_gpus, variables_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from packaging.version import Version

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Machine
    from cudadoctor.solver.ways_out import WayOut

_SCHEDULED = "A job's own list of GPUs is the scheduler's: ask it for GPUs of one kind instead."


def leave_out(m: Machine, kb: Knowledge, hidden: Collection[Version]) -> tuple[Remedy, ...]:
    """Hide the GPUs of these capabilities from programs; () where none or all of them would go."""
    gpus = seen_gpus(m, kb)
    gone = [one for one in gpus if one.capability in hidden]
    stay = [one for one in gpus if one.capability not in hidden]
    if not gone or not stay:
        return ()
    title = f"Leave out {named(gone)}"
    if m.container.scheduler or m.container.kind == "kubernetes":
        return (Remedy(id="hide-gpu", title=title, where="admin", manual=_SCHEDULED),)
    return (
        Remedy(
            id="hide-gpu",
            title=title,
            risk=Risk.PROCESS,
            variables=variables_for(stay, redacted=m.redacted),
            note="Programs that are started with it see the other GPUs only.",
        ),
    )


def for_some_gpus(way: WayOut, m: Machine, kb: Knowledge) -> tuple[Remedy, ...]:
    """The build that fits without some of the GPUs, and what hides those."""
    hiding = leave_out(m, kb, way.hidden)
    if way.build is None or not hiding:
        return ()
    install = remedy_for(way.build, m, kb)
    gone = hiding[0].title.removeprefix("Leave out ")
    notes = (f"No one build serves all GPUs here: this leaves out {gone}.", install.note)
    return (
        msgspec.structs.replace(
            install,
            title=f"{install.title} without {gone}",
            variables=hiding[0].variables,
            note=" ".join(note for note in notes if note),
        ),
    )

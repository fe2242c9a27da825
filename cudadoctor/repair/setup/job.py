"""One setup from the choice to the proof, as a value; and what it says at each end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.repair.setup import recipe as recipes
from cudadoctor.repair.setup import room as rooms
from cudadoctor.repair.setup import saying
from cudadoctor.repair.setup.document import Outcome, Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.cli.options import Asked
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.machine import Smoke
    from cudadoctor.pipeline import Judged
    from cudadoctor.render.terminal import Line
    from cudadoctor.repair.setup.choosing import Chosen, Tools
    from cudadoctor.repair.setup.place import Place
    from cudadoctor.repair.setup.recipe import Recipe
    from cudadoctor.repair.setup.room import Room


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made, where and how. verified: None not asked or not known; finding: how so."""

    chosen: Chosen
    place: Place
    recipe: Recipe
    room: Room
    verified: bool | None = None
    finding: str | None = None


def planned(chosen: Chosen, place: Place, tools: Tools, kb: Knowledge, asked: Asked) -> Job:
    """The whole plan; with --verify a resolver is asked for the files behind it."""
    build = chosen.choice.build
    assert build is not None
    made = recipes.recipe(chosen, place.path, tools, kb)
    verified, finding, sizes = _asked(chosen, made, kb) if asked.verify else (None, None, ())
    free = _free(place.path if place.kind == "folder" else place.parent)
    return Job(
        chosen=chosen,
        place=place,
        recipe=made,
        room=rooms.room(build, kb, sizes, free),
        verified=verified,
        finding=finding,
    )


def _asked(
    chosen: Chosen, made: Recipe, kb: Knowledge
) -> tuple[bool | None, str, tuple[int | None, ...]]:
    """What the resolver says: an answer, its words, and the sizes of the files in bytes."""
    from cudadoctor.cli.progress import shown_on_stderr
    from cudadoctor.host import local
    from cudadoctor.installers.verify import verify

    try:
        with shown_on_stderr() as progress:
            progress("the resolver", True)
            here = chosen.base is not None
            found = verify(made.change, chosen.machine, kb, here=here, wish=chosen.tool)
    finally:
        local.close_host()
    return found.resolves, found.why, tuple(one.size_bytes for one in found.files)


def _free(folder: str) -> int | None:
    from cudadoctor.host.local import LocalHost

    space = LocalHost().space(folder)
    return space.free_bytes if space else None


def shown(job: Job, width: int) -> Iterator[Line]:
    """The plan as the user reads it."""
    return saying.plan(job.chosen, job.recipe, job.room, job.finding, width)


def refused(job: Job) -> Told | None:
    """Why it is not begun: what does not resolve, and a disk that is too small."""
    if job.verified is False:
        return told(job, "unresolved", (job.finding or "", "Nothing was made."))
    if job.room.too_small:
        return told(job, "no-room", (f"{saying.too_small(job.room, job.place.path)}.",))
    return None


def judged(job: Job, found: Judged) -> Told:
    """Proven where the step passed and the verdict is no worse than warnings; else only kept."""
    passed = _passed(found.machine.smoke)
    if passed and found.diagnosis.verdict in ("healthy", "warnings"):
        return msgspec.structs.replace(told(job, "proven"), judged=found)
    why = f"{job.place.path} is made and kept, and the training step did not pass in it."
    if passed:
        why = f"{job.place.path} is made and kept; what the report names is still to be cured."
    return msgspec.structs.replace(told(job, "unproven", (why,)), judged=found)


def _passed(smoke: Smoke | None) -> bool:
    if smoke is None or not smoke.stages or smoke.ended:
        return False
    return all(one.status in ("passed", "skipped") for one in smoke.stages)


def told(job: Job, outcome: Outcome, why: tuple[str, ...] = ()) -> Told:
    """The end of this job."""
    return Told(
        outcome=outcome,
        folder=job.place.path,
        why=why,
        chosen=job.chosen,
        recipe=job.recipe,
        room=job.room,
        verified=job.verified,
    )
